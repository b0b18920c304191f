//! Who the node is: its certificate, and whom it trusts.
//!
//! The name of a node is the common name of its certificate and nothing else; no
//! flag and no file can say otherwise. The certificate is presented whatever
//! authorities the server hints at, and with the whole chain that the file holds.
//! Sessions are never resumed: each connection proves the key anew.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file that cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not PEM, or not what it should be.
    #[error("{what} holds no usable PEM")]
    Pem {
        /// Certificate, key or CA.
        what: &'static str,
        /// Why; absent when there was simply nothing in it.
        source: Option<rustls::pki_types::pem::Error>,
    },
    /// The certificate does not parse.
    #[error("the certificate does not parse: {0}")]
    Certificate(String),
    /// TLS refused certificate, key or CA.
    #[error("certificate, key or CA cannot be used for TLS")]
    Tls(#[from] rustls::Error),
    /// The common name cannot be the name of a node.
    #[error("the certificate's common name {0:?} cannot be the name of a node (a DNS-1123 subdomain)")]
    Name(String),
    /// The caller insisted on a name.
    #[error("the certificate is for node {actual:?}, not for {wanted:?}")]
    OtherName {
        /// What was asked for.
        wanted: String,
        /// What the certificate says.
        actual: String,
    },
    /// The configuration file names no usable cluster or user.
    #[error("the configuration file {path} has no {what}")]
    Config {
        /// Which file.
        path: PathBuf,
        /// What is missing in it.
        what: &'static str,
    },
    /// The configuration file is no YAML of the expected shape.
    #[error("the configuration file {path} does not parse: {reason}")]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
}

/// A certificate with its key, and the authorities that the server must come from.
#[derive(Clone)]
pub struct Identity {
    name: String,
    tls: Arc<ClientConfig>,
    /// PEM.
    authorities: Arc<[u8]>,
}

impl Identity {
    /// Takes PEM: the client chain, leaf first; its key; the authorities that
    /// servers are verified against. Does not judge the name: see
    /// [`Identity::node_name`].
    pub fn from_pem(chain: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, IdentityError> {
        let chain = certificates(chain, "the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| IdentityError::Pem { what: "the key", source: Some(source) })?;
        let name = common_name(&chain[0])?;
        let config = builder(ca)?.with_client_auth_cert(chain, key)?;
        Ok(Self { name, tls: finish(config), authorities: ca.into() })
    }

    /// Nobody in particular: a client without a certificate, for tests of refusal.
    pub fn anonymous(ca: &[u8]) -> Result<Self, IdentityError> {
        let tls = finish(builder(ca)?.with_no_client_auth());
        Ok(Self { name: String::new(), tls, authorities: ca.into() })
    }

    /// Reads three PEM files.
    pub fn from_files(cert: &Path, key: &Path, ca: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(&read(cert)?, &read(key)?, &read(ca)?)
    }

    /// The common name of the certificate, as it is.
    pub fn common_name(&self) -> &str {
        &self.name
    }

    /// The authorities that the server is verified against, as they were given.
    pub fn authorities(&self) -> &[u8] {
        &self.authorities
    }

    /// The name of the node, if the certificate has one that a node can have.
    pub fn node_name(&self) -> Result<&str, IdentityError> {
        if is_dns1123_subdomain(&self.name) {
            Ok(&self.name)
        } else {
            Err(IdentityError::Name(self.name.clone()))
        }
    }

    /// The same identity offering these protocols in ALPN. Nodes offer `h2` and
    /// nothing else; this is for tests of what a gateway does with others.
    #[must_use]
    pub fn offering(&self, protocols: &[&str]) -> Self {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        Self { tls: Arc::new(tls), ..self.clone() }
    }

    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        self.tls.clone()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn builder(ca: &[u8]) -> Result<Builder, IdentityError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(ca, "the CA")? {
        roots.add(root)?;
    }
    // One for all the nodes that a process may play.
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Ok(ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots))
}

fn finish(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(IdentityError::Pem { what, source: None }),
        Ok(found) => Ok(found),
        Err(source) => Err(IdentityError::Pem { what, source: Some(source) }),
    }
}

/// The last common name wins where there are several.
fn common_name(leaf: &CertificateDer<'_>) -> Result<String, IdentityError> {
    let (_, parsed) =
        X509Certificate::from_der(leaf).map_err(|error| IdentityError::Certificate(error.to_string()))?;
    let last = parsed.subject().iter_common_name().last();
    Ok(last.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    std::fs::read(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
}

pub(crate) fn is_dns1123_subdomain(name: &str) -> bool {
    let part_is_fine = |part: &str| {
        let bytes = part.as_bytes();
        let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|b| edge(b) || *b == b'-')
    };
    name.len() <= 253 && name.split('.').all(part_is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes() {
        for name in ["n1", "node-1", "n1.rack.example", "10.0.0.2", "0", &"a".repeat(253)] {
            assert!(is_dns1123_subdomain(name), "{name}");
        }
        for name in
            ["", "N1", "n1/x", "../n1", "n1.", ".n1", "-n", "n-", "n_1", "n..1", "ñ", &"a".repeat(254)]
        {
            assert!(!is_dns1123_subdomain(name), "{name}");
        }
    }

    #[test]
    fn what_is_no_identity() {
        assert!(matches!(
            Identity::from_pem(b"", b"", b""),
            Err(IdentityError::Pem { what: "the certificate", source: None })
        ));
        assert!(matches!(Identity::anonymous(b"x"), Err(IdentityError::Pem { what: "the CA", .. })));
    }
}
