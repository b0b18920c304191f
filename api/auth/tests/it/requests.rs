//! Certificate requests as strangers send them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_auth::pki::{CertificateRequest, RequestError};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};

fn pem(kind: &str, der: &[u8]) -> String {
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", STANDARD.encode(der))
}

/// The DER of a request for these common names, and the key that it is about.
fn request(names: &[&str]) -> (Vec<u8>, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    for name in names {
        params.distinguished_name.push(DnType::CommonName, *name);
    }
    (params.serialize_request(&key).unwrap().der().to_vec(), key)
}

#[test]
fn a_request_is_read_for_name_and_key() {
    let (der, key) = request(&["node-1"]);
    let read = CertificateRequest::from_pem(pem("CERTIFICATE REQUEST", &der).as_bytes()).unwrap();
    assert_eq!(read.common_name, "node-1");
    assert_eq!(read.public_key, key.subject_public_key_info());
    let chatty = format!("made by hand\n{}\n", pem("CERTIFICATE REQUEST", &der));
    assert_eq!(CertificateRequest::from_pem(chatty.as_bytes()), Ok(read));
}

#[test]
fn what_is_no_request_is_refused_with_the_step_that_failed() {
    let (good, _) = request(&["node-1"]);
    let (nameless, _) = request(&[]);
    let mut forged = good.clone();
    let at = forged.windows(6).position(|window| window == b"node-1").unwrap();
    forged[at + 5] = b'2';
    let mut longer = good.clone();
    longer.push(0);
    let kind = "CERTIFICATE REQUEST";
    for (what, text, error) in [
        ("nothing", String::new(), RequestError::Pem),
        ("no PEM", "node-1".to_owned(), RequestError::Pem),
        ("another block", pem("CERTIFICATE", &good), RequestError::Pem),
        ("another spelling", pem("NEW CERTIFICATE REQUEST", &good), RequestError::Pem),
        ("no request inside", pem(kind, b"hello"), RequestError::Pkcs10),
        ("bytes behind it", pem(kind, &longer), RequestError::Pkcs10),
        ("a changed name", pem(kind, &forged), RequestError::Signature),
        ("no name", pem(kind, &nameless), RequestError::CommonName),
    ] {
        assert_eq!(CertificateRequest::from_pem(text.as_bytes()), Err(error), "{what}");
    }
    assert!(RequestError::Signature.to_string().contains("key"));
}

#[test]
fn no_damage_to_a_request_passes_or_panics() {
    let (good, _) = request(&["node-1"]);
    for length in 0..good.len() {
        let text = pem("CERTIFICATE REQUEST", &good[..length]);
        assert!(CertificateRequest::from_pem(text.as_bytes()).is_err(), "cut at {length}");
    }
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 1;
        let text = pem("CERTIFICATE REQUEST", &damaged);
        assert!(CertificateRequest::from_pem(text.as_bytes()).is_err(), "changed at {at}");
    }
}
