//! Client certificates with any subject that the standard can write.
//!
//! A certificate is made with the usual library, and then its subject is written anew and the whole signed again:
//! the library keeps one value for each attribute, each in a set of its own, and other issuers do not.

use horchestra_auth::pki::Authority;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SigningKey,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::NODES;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const BIT_STRING: u8 = 0x03;
/// Object identifiers 2.5.4.3, 2.5.4.10 and 2.5.4.11.
const COMMON_NAME: &[u8] = &[6, 3, 85, 4, 3];
const ORGANIZATION: &[u8] = &[6, 3, 85, 4, 10];
const UNIT: &[u8] = &[6, 3, 85, 4, 11];

/// One attribute of a name.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Cn(&'static str),
    O(&'static str),
    /// The same as a printable string, which older issuers write.
    PrintableO(&'static str),
    Ou(&'static str),
}

/// What a client shows: its chain, leaf first, and the leaf's key.
pub struct Credentials {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Clone for Credentials {
    fn clone(&self) -> Credentials {
        Credentials { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Credentials {
    /// A node of this name, as its authority makes them.
    pub fn node(authority: &Authority, name: &str) -> Credentials {
        let [cn, o] = node(name);
        Credentials::with(authority, &[&[cn], &[o]], jiff::Timestamp::now())
    }

    /// One whose certificate is a few days old.
    pub fn old_node(authority: &Authority, name: &str) -> Credentials {
        let [cn, o] = node(name);
        let made = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(72);
        Credentials::with(authority, &[&[cn], &[o]], made)
    }

    /// With this subject: sets of attributes, in their order.
    pub fn subject(authority: &Authority, sets: &[&[Part]]) -> Credentials {
        let attribute = |part: &Part| match *part {
            Part::Cn(value) => (COMMON_NAME, UTF8_STRING, value),
            Part::O(value) => (ORGANIZATION, UTF8_STRING, value),
            Part::PrintableO(value) => (ORGANIZATION, PRINTABLE_STRING, value),
            Part::Ou(value) => (UNIT, UTF8_STRING, value),
        };
        let sets: Vec<Vec<Attribute<'_>>> =
            sets.iter().map(|set| set.iter().map(attribute).collect()).collect();
        let sets: Vec<_> = sets.iter().map(Vec::as_slice).collect();
        Credentials::with(authority, &sets, jiff::Timestamp::now())
    }

    /// The leaf is followed by its authority's certificate, as agents send all that their file holds.
    /// The certificate is valid since the beginning of the day of `made`.
    fn with(authority: &Authority, sets: &[&[Attribute<'_>]], made: jiff::Timestamp) -> Credentials {
        let signing = KeyPair::from_pem(&authority.pem().key).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&authority.pem().certificate, &signing).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "written anew");
        let day = made.to_zoned(jiff::tz::TimeZone::UTC).date();
        params.not_before =
            date_time_ymd(day.year().into(), day.month().unsigned_abs(), day.day().unsigned_abs());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &issuer).unwrap();
        let leaf = with_subject(made.der(), &name(sets), |signed| signing.sign(signed).unwrap());
        let chain = vec![CertificateDer::from(leaf), authority.certificate().clone()];
        Credentials { chain, key: PrivateKeyDer::try_from(key.serialize_der()).unwrap() }
    }
}

/// The kind of an attribute, the kind of its text, and the text.
type Attribute<'a> = (&'static [u8], u8, &'a str);

fn node(name: &str) -> [Attribute<'_>; 2] {
    [(COMMON_NAME, UTF8_STRING, name), (ORGANIZATION, UTF8_STRING, NODES)]
}

fn name(sets: &[&[Attribute<'_>]]) -> Vec<u8> {
    let set = |attributes: &&[Attribute<'_>]| {
        let attribute = |(kind, text, value): &Attribute<'_>| {
            element(SEQUENCE, &[kind, element(*text, value.as_bytes()).as_slice()].concat())
        };
        let mut members: Vec<Vec<u8>> = attributes.iter().map(attribute).collect();
        members.sort();
        element(SET, &members.concat())
    };
    element(SEQUENCE, &sets.iter().map(set).collect::<Vec<_>>().concat())
}

/// The same certificate for another subject.
fn with_subject(certificate: &[u8], subject: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
    /// Version, serial number, algorithm, issuer and validity come before it.
    const SUBJECT: usize = 5;
    let [signed, algorithm, _] = elements(content(certificate))[..] else {
        panic!("a certificate has three parts")
    };
    let mut fields = elements(content(signed));
    fields[SUBJECT] = subject;
    let signed = element(SEQUENCE, &fields.concat());
    let signature = element(BIT_STRING, &[&[0], sign(&signed).as_slice()].concat());
    element(SEQUENCE, &[&signed, algorithm, &signature].concat())
}

/// Elements in DER that lie end to end.
fn elements(mut der: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (header, length) = header(der);
        let (element, rest) = der.split_at(header + length);
        found.push(element);
        der = rest;
    }
    found
}

fn content(element: &[u8]) -> &[u8] {
    let (header, length) = header(element);
    &element[header..header + length]
}

/// How long the tag with the length is, and how long what follows.
fn header(element: &[u8]) -> (usize, usize) {
    let first = usize::from(element[1]);
    if first < 0x80 {
        return (2, first);
    }
    let bytes = &element[2..2 + (first & 0x7f)];
    (2 + bytes.len(), bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("certificates are small");
    let [high, low] = length.to_be_bytes();
    let head = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [head.as_slice(), content].concat()
}
