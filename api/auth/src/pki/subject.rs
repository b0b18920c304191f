//! Subjects with several organizations.
//!
//! The library that makes our certificates keeps one value for each attribute of a name, and groups are several
//! values of one. So such a certificate is made with one of them, and here its subject is written anew and what
//! results is signed again. Everything else in it stays byte for byte.

use x509_parser::prelude::{FromDer, X509Certificate};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
/// Object identifiers 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 5] = [6, 3, 85, 4, 3];
const ORGANIZATION: [u8; 5] = [6, 3, 85, 4, 10];

/// The certificate (DER) with this subject in place of its own. `None`: it is not one of ours, or `sign` failed.
pub(super) fn replace(
    certificate: &[u8],
    common_name: &str,
    organizations: &[String],
    sign: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let signed = parsed.tbs_certificate.as_ref();
    let content = parsed.tbs_certificate.as_ref().get(header_of(signed)?..)?;
    let (issuer, subject) = (parsed.issuer().as_raw(), parsed.subject().as_raw());
    // The issuer comes first, and may be the same name.
    let after_issuer = find(content, issuer)? + issuer.len();
    let at = after_issuer + find(content.get(after_issuer..)?, subject)?;
    let rest = content.get(at + subject.len()..)?;
    let signed = element(SEQUENCE, &[content.get(..at)?, &name(common_name, organizations), rest]);

    let after = find(certificate, parsed.tbs_certificate.as_ref())? + parsed.tbs_certificate.as_ref().len();
    let algorithm = certificate.get(after..)?;
    let algorithm = algorithm.get(..2 + usize::from(*algorithm.get(1).filter(|length| **length < 0x80)?))?;
    let signature = element(BIT_STRING, &[&[0], &sign(&signed)?]);
    Some(element(SEQUENCE, &[&signed, algorithm, &signature]))
}

fn name(common_name: &str, organizations: &[String]) -> Vec<u8> {
    let attribute = |kind: &[u8], value: &str| {
        let value = element(UTF8_STRING, &[value.as_bytes()]);
        element(SET, &[&element(SEQUENCE, &[kind, &value])])
    };
    let mut parts = vec![attribute(&COMMON_NAME, common_name)];
    parts.extend(organizations.iter().map(|organization| attribute(&ORGANIZATION, organization)));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    element(SEQUENCE, &parts)
}

/// One element in DER.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes = length.to_be_bytes();
            let significant = &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(0)..];
            out.push(0x80 | u8::try_from(significant.len()).unwrap_or(0));
            out.extend_from_slice(significant);
        }
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// The length of the tag and the length of an element.
fn header_of(element: &[u8]) -> Option<usize> {
    let length = *element.get(1)?;
    Some(if length < 0x80 { 2 } else { 2 + usize::from(length & 0x7f) })
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
