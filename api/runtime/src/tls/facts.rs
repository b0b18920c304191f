//! What stands in the certificates of files, for whoever wants to know before anything is served with them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::Contents;
use super::{KeyPairFiles, TlsError};

/// The first certificate of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Common name.
    pub name: String,
    /// Hosts that it is for: names and addresses.
    pub hosts: Vec<String>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl CertificateFacts {
    /// Whether a client that calls the server so is content.
    pub fn is_for(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.hosts.iter().any(|own| {
            let own = own.to_ascii_lowercase();
            match own.strip_prefix("*.") {
                Some(domain) => {
                    host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == domain)
                }
                None => own == host,
            }
        })
    }
}

/// Reads a pair as a listener would; that the key fits is part of it.
pub fn pair_facts(files: &KeyPairFiles) -> Result<CertificateFacts, TlsError> {
    let contents = Contents::read(&[&files.certificate, &files.key])?;
    let (chain, key) = contents.key_pair(files)?;
    let refuse =
        |source| TlsError::KeyPair { certificate: files.certificate.clone(), key: files.key.clone(), source };
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let signing = provider.key_provider.load_private_key(key).map_err(refuse)?;
    let certified = rustls::sign::CertifiedKey::new(chain, signing);
    certified.keys_match().map_err(refuse)?;
    certified.cert.first().and_then(facts).ok_or_else(|| unreadable(&files.certificate))
}

/// The authorities in a file.
pub fn authority_facts(path: &Path) -> Result<Vec<CertificateFacts>, TlsError> {
    let contents = Contents::read(&[&path.to_owned()])?;
    contents.roots(path)?;
    let certificates = contents.certificates(path)?;
    certificates.iter().map(|der| facts(der).ok_or_else(|| unreadable(path))).collect()
}

/// Whether the first certificate of the file leads to one of the authorities, as far as signatures tell: with those
/// that stand behind it in the file in between.
pub fn leads_to(certificate: &Path, authorities: &Path) -> Result<bool, TlsError> {
    let contents = Contents::read(&[&certificate.to_owned(), &authorities.to_owned()])?;
    let (chain, roots) = (contents.certificates(certificate)?, contents.certificates(authorities)?);
    let signed = |der: &CertificateDer<'_>, by: &CertificateDer<'_>| {
        let (Ok((_, one)), Ok((_, other))) = (X509Certificate::from_der(der), X509Certificate::from_der(by))
        else {
            return false;
        };
        one.issuer() == other.subject() && one.verify_signature(Some(other.public_key())).is_ok()
    };
    for (at, der) in chain.iter().enumerate() {
        if roots.iter().any(|root| root == der || signed(der, root)) {
            return Ok(true);
        }
        if !chain.get(at + 1).is_some_and(|next| signed(der, next)) {
            break;
        }
    }
    Ok(false)
}

fn unreadable(path: &Path) -> TlsError {
    TlsError::Pem { path: path.to_owned(), what: "certificate", source: None }
}

fn facts(der: &CertificateDer<'_>) -> Option<CertificateFacts> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let hosts = alternatives.map(|found| found.value.general_names.iter().filter_map(host).collect());
    let moment =
        |seconds: i64| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?));
    Some(CertificateFacts {
        name: name.unwrap_or_default().to_owned(),
        hosts: hosts.unwrap_or_default(),
        not_before: moment(certificate.validity().not_before.timestamp().max(0))?,
        not_after: moment(certificate.validity().not_after.timestamp())?,
    })
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(four) => Some(Ipv4Addr::from(four).to_string()),
            Err(_) => Some(Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_its_hosts_in_either_case_and_below_a_star() {
        let facts = CertificateFacts {
            name: "x".into(),
            hosts: ["Fleet.example", "*.nodes.example", "192.0.2.7", "::1"].map(str::to_owned).into(),
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
        };
        for (host, meant) in [
            ("fleet.example", true),
            ("FLEET.example", true),
            ("a.nodes.example", true),
            ("nodes.example", false),
            (".nodes.example", false),
            ("a.b.nodes.example", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("::1", true),
            ("x", false),
        ] {
            assert_eq!(facts.is_for(host), meant, "{host}");
        }
    }
}
