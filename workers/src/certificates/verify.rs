//! Holding what an outside signer returned against what it was asked for.
//!
//! Whoever signs for us decides, in the end, who is let in: a certificate in another group, for another name or with
//! another key would be an identity that nobody here has granted. A signer that is set up wrongly must therefore
//! never get a certificate through to the node. All of this has to hold:
//!
//! * the subject has exactly the name and exactly the groups that were asked for;
//! * the key is that of the request;
//! * it is not an authority, and it is good for clients;
//! * it bears no other names than that one;
//! * it is valid now, and no longer than was asked for;
//! * each certificate of the chain has issued the one before it, and all of it leads to an authority that clients
//!   are believed by.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::NODES;
use horchestra_auth::pki::CertificateRequest;
use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// By how much the clocks of the signer and of this process may differ.
const SKEW: SignedDuration = SignedDuration::from_mins(10);

/// What a certificate has to be like.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    pub common_name: &'a str,
    /// In any order.
    pub organizations: Vec<&'a str>,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: &'a [u8],
    /// Longest time from now to its end.
    pub lifetime: Duration,
}

impl<'a> Expected<'a> {
    /// The certificate of the node that made this request.
    pub fn node(request: &'a CertificateRequest, lifetime: Duration) -> Expected<'a> {
        Expected {
            common_name: &request.common_name,
            organizations: vec![NODES],
            public_key: &request.public_key,
            lifetime,
        }
    }
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("it cannot be read")]
    Unreadable,
    #[error("it is for the name {0:?}")]
    CommonName(String),
    #[error("it is for the groups {0:?}")]
    Organizations(Vec<String>),
    #[error("it is for another key")]
    PublicKey,
    #[error("it is the certificate of an authority")]
    Authority,
    #[error("it is not for clients")]
    Usage,
    #[error("it bears the name {0:?} as well")]
    OtherName(String),
    #[error("it is valid from {from} to {until}")]
    Validity { from: String, until: String },
    #[error("its chain is broken: one of its certificates has not issued the one before")]
    Chain,
    #[error("it leads to no authority that is believed: {0}")]
    Untrusted(String),
}

/// The leaf, and those of `further` that lead up from it: each once, the root, which everybody has, left out.
pub fn chain(
    leaf: CertificateDer<'static>,
    further: Vec<CertificateDer<'static>>,
) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let mut chain = vec![leaf];
    for certificate in further {
        if chain.contains(&certificate) || issued(&certificate, &certificate)? {
            continue;
        }
        if !issued(&chain[chain.len() - 1], &certificate)? {
            return Err(Fault::Chain);
        }
        chain.push(certificate);
    }
    Ok(chain)
}

/// Whether the second certificate is that of the first one's issuer.
fn issued(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> Result<bool, Fault> {
    let (certificate, issuer) = (parse(certificate)?, parse(issuer)?);
    Ok(certificate.issuer().as_raw() == issuer.subject().as_raw()
        && certificate.verify_signature(Some(issuer.public_key())).is_ok())
}

/// Checks the first certificate of a chain.
pub fn verify(leaf: &CertificateDer<'_>, expected: &Expected<'_>, now: Timestamp) -> Result<(), Fault> {
    let parsed = parse(leaf)?;
    let subject = parsed.subject();
    let texts = |values: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| -> Result<Vec<String>, Fault> {
        values
            .into_iter()
            .map(|value| value.as_str().map(str::to_owned).map_err(|_| Fault::Unreadable))
            .collect()
    };
    let names = texts(subject.iter_common_name().collect())?;
    if names != [expected.common_name] {
        return Err(Fault::CommonName(names.join(", ")));
    }
    let mut organizations = texts(subject.iter_organization().collect())?;
    organizations.sort_unstable();
    let mut wanted = expected.organizations.clone();
    wanted.sort_unstable();
    if organizations != wanted {
        return Err(Fault::Organizations(organizations));
    }
    if parsed.public_key().raw != expected.public_key {
        return Err(Fault::PublicKey);
    }
    let may_sign =
        parsed.key_usage().map_err(|_| Fault::Unreadable)?.is_some_and(|usage| usage.value.key_cert_sign());
    if parsed.is_ca() || may_sign {
        return Err(Fault::Authority);
    }
    let usage = parsed.extended_key_usage().map_err(|_| Fault::Unreadable)?;
    if !usage.is_some_and(|usage| usage.value.client_auth) {
        return Err(Fault::Usage);
    }
    if let Some(alternatives) = parsed.subject_alternative_name().map_err(|_| Fault::Unreadable)? {
        let other = alternatives.value.general_names.iter().find(|name| !is_own(name, expected.common_name));
        if let Some(other) = other {
            return Err(Fault::OtherName(other.to_string()));
        }
    }
    let moment = |second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
    let (from, until) =
        (moment(parsed.validity().not_before.timestamp()), moment(parsed.validity().not_after.timestamp()));
    let longest = SignedDuration::try_from(expected.lifetime).unwrap_or(SignedDuration::MAX);
    let latest = now.checked_add(longest).and_then(|end| end.checked_add(SKEW)).unwrap_or(Timestamp::MAX);
    if from > now || until <= now || until > latest {
        return Err(Fault::Validity { from: from.to_string(), until: until.to_string() });
    }
    Ok(())
}

/// Some signers put the common name among the alternative names.
fn is_own(name: &GeneralName<'_>, common_name: &str) -> bool {
    match name {
        GeneralName::DNSName(name) => *name == common_name,
        GeneralName::IPAddress(bytes) => common_name.parse().is_ok_and(|address| match address {
            IpAddr::V4(address) => *bytes == address.octets(),
            IpAddr::V6(address) => *bytes == address.octets(),
        }),
        _ => false,
    }
}

/// Checks that listeners which believe clients of these authorities would take the chain.
pub fn leads_to(
    chain: &[CertificateDer<'_>],
    authorities: RootCertStore,
    now: Timestamp,
) -> Result<(), Fault> {
    let untrusted = |why: String| Fault::Untrusted(why);
    let (leaf, intermediates) = chain.split_first().ok_or(Fault::Unreadable)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
        .build()
        .map_err(|error| untrusted(error.to_string()))?;
    let second = u64::try_from(now.as_second()).unwrap_or(0);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(second));
    verifier
        .verify_client_cert(leaf, intermediates, now)
        .map(|_| ())
        .map_err(|error| untrusted(error.to_string()))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Fault> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(Fault::Unreadable),
    }
}
