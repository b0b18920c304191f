//! Reading certificate requests, which come from strangers.

use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// What counts in a request. Everything else that one may ask for (groups, names, usages, a lifetime) is the
/// signer's to decide and is not even read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Whom the certificate is to be for. Never empty.
    pub common_name: String,
    /// SubjectPublicKeyInfo in DER. The request is signed with the key that belongs to it.
    pub public_key: Vec<u8>,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("is not PEM with a block CERTIFICATE REQUEST")]
    Pem,
    #[error("holds no PKCS #10 request")]
    Pkcs10,
    #[error("is not signed with the key that it is about")]
    Signature,
    #[error("names nobody: the subject needs exactly one common name")]
    CommonName,
}

impl CertificateRequest {
    /// Reads a request in PEM form and checks that whoever made it holds the key.
    pub fn from_pem(pem: &[u8]) -> Result<CertificateRequest, RequestError> {
        let der = CertificateSigningRequestDer::from_pem_slice(pem).map_err(|_| RequestError::Pem)?;
        let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|_| RequestError::Pkcs10)?;
        // A signature is whole bytes; the verifier would not look at how many bits of the last one count.
        if !rest.is_empty() || request.signature_value.unused_bits != 0 {
            return Err(RequestError::Pkcs10);
        }
        let info = &request.certification_request_info;
        if !names_an_algorithm(&der, info.raw) {
            return Err(RequestError::Pkcs10);
        }
        request.verify_signature().map_err(|_| RequestError::Signature)?;
        let mut names = info.subject.iter_common_name();
        let name = names.next().and_then(|name| name.as_str().ok()).filter(|name| !name.is_empty());
        match (name, names.next()) {
            (Some(name), None) if !name.chars().any(char::is_control) => Ok(CertificateRequest {
                common_name: name.to_owned(),
                public_key: info.subject_pki.raw.to_vec(),
            }),
            _ => Err(RequestError::CommonName),
        }
    }
}

/// Whether a sequence that begins with an object identifier follows what is signed. The parser takes that
/// identifier under any tag, and the signature does not cover it.
fn names_an_algorithm(request: &[u8], signed: &[u8]) -> bool {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    let at = request.windows(signed.len()).position(|window| window == signed);
    let after = at.and_then(|at| request.get(at + signed.len()..)).unwrap_or_default();
    // Its length takes one byte: no algorithm that we verify has long parameters.
    matches!(after, [SEQUENCE, length, OBJECT_IDENTIFIER, ..] if *length < 0x80)
}
