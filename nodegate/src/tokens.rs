//! What this gateway gives workloads tokens with.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::tokens::{Issuer, SigningKeyError, TokenCache};
use parking_lot::RwLock;

/// Largest file of authorities.
const CA_LIMIT: usize = 256 << 10;

/// The issuer of tokens, and what goes along with a token where a node is sent the files of a token volume.
#[derive(Default)]
pub struct Tokens {
    /// `None`: no keys, no tokens.
    pub cache: Option<TokenCache>,
    issuer: Option<Arc<Issuer>>,
    ca: Option<AgentCa>,
}

impl Tokens {
    pub fn new(issuer: Option<Arc<Issuer>>, ca: Option<AgentCa>) -> Tokens {
        Tokens { cache: issuer.clone().map(TokenCache::new), issuer, ca }
    }

    /// Looks at the files again. `true`: something is different, and nodes have to be looked at.
    pub fn reload(&self) -> Result<bool, TokenFileError> {
        let keys = self.issuer.as_ref().map_or(Ok(false), |issuer| issuer.reload())?;
        let ca = self.ca.as_ref().map_or(Ok(false), AgentCa::reload)?;
        Ok(keys || ca)
    }

    /// The authorities that agents believe this control plane by.
    pub fn agent_ca(&self) -> Option<Bytes> {
        self.ca.as_ref().map(AgentCa::content)
    }

    /// How a node is sent token volumes that nobody has decided about.
    pub fn as_secrets_by_default(&self) -> bool {
        self.ca.is_some()
    }
}

/// Why tokens cannot be made from these files.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("the keys of tokens cannot be used")]
    Keys(#[from] SigningKeyError),
    #[error("the authorities for agents cannot be read from {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no file of certificates in PEM form", path.display())]
    NotPem { path: PathBuf },
}

/// The file of authorities that is put beside a token.
pub struct AgentCa {
    path: PathBuf,
    content: RwLock<Bytes>,
}

impl AgentCa {
    pub fn load(path: &Path) -> Result<AgentCa, TokenFileError> {
        Ok(AgentCa { path: path.to_owned(), content: RwLock::new(read(path)?) })
    }

    fn content(&self) -> Bytes {
        self.content.read().clone()
    }

    fn reload(&self) -> Result<bool, TokenFileError> {
        let found = read(&self.path)?;
        if *self.content.read() == found {
            return Ok(false);
        }
        *self.content.write() = found;
        Ok(true)
    }
}

/// Nothing but certificates: whatever is in the file is sent to nodes.
fn read(path: &Path) -> Result<Bytes, TokenFileError> {
    let text =
        std::fs::read(path).map_err(|source| TokenFileError::Read { path: path.to_owned(), source })?;
    let found = |what: &str| text.windows(what.len()).any(|window| window == what.as_bytes());
    if text.len() > CA_LIMIT || !found("-----BEGIN CERTIFICATE-----") || found("PRIVATE KEY") {
        return Err(TokenFileError::NotPem { path: path.to_owned() });
    }
    Ok(Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_sent_certificates_and_nothing_else() {
        let folder = horchestra_testkit::TempDir::new().unwrap();
        let path = folder.path().join("ca.crt");
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";
        for (content, good) in [
            (String::new(), false),
            ("text".to_owned(), false),
            (key.to_owned(), false),
            (format!("{certificate}{key}"), false),
            (certificate.repeat(2), true),
        ] {
            std::fs::write(&path, &content).unwrap();
            assert_eq!(AgentCa::load(&path).is_ok(), good, "{content}");
        }
        let ca = AgentCa::load(&path).unwrap();
        assert!(!ca.reload().unwrap());
        std::fs::write(&path, certificate).unwrap();
        assert!(ca.reload().unwrap());
        assert_eq!(ca.content(), certificate);
        std::fs::write(&path, key).unwrap();
        assert!(ca.reload().is_err());
        assert_eq!(ca.content(), certificate, "what was good stays");
    }
}
