//! Who signs: the port, and the signer whose authority lies in files.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use horchestra_auth::pki::{Authority, CertificateRequest, Lifetime, PkiError};
use horchestra_runtime::follow::follow;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// Somebody who signs certificates for nodes.
pub trait Signer: Send + Sync + 'static {
    /// The certificate for the name and the key of `request`, in the group of nodes: PEM, the leaf first, then what
    /// leads to the authority. `pem` is the request as it was sent.
    fn sign<'a>(
        &'a self,
        request: &'a CertificateRequest,
        pem: &'a [u8],
    ) -> BoxFuture<'a, Result<String, SignError>>;

    fn health(&self) -> Health;
}

/// How the signer is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Its files have changed, cannot be used, and the previous ones are.
    pub unusable_files: bool,
    /// When the first of its own certificates ends.
    pub until: Option<Timestamp>,
}

/// Why a certificate was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// It has nothing to do with the request: others will fare no better for now.
    #[error("the signer cannot be used now")]
    Away(#[source] Box<dyn Error + Send + Sync>),
    /// The signer does not want to sign this.
    #[error("the signer refuses the request")]
    Refused(#[source] Box<dyn Error + Send + Sync>),
    /// What came back is not what was asked for. Nobody gets to see it.
    #[error("the signer returned another certificate than was asked for")]
    Wrong(#[source] Box<dyn Error + Send + Sync>),
}

impl SignError {
    /// Whether there is no use in asking for others now.
    pub fn is_outage(&self) -> bool {
        matches!(self, SignError::Away(_))
    }
}

/// The authority's certificate and key in files, which are read again when they change.
pub struct FileSigner {
    certificate: PathBuf,
    key: PathBuf,
    lifetime: Lifetime,
    authority: ArcSwap<Authority>,
    failing: AtomicBool,
}

impl FileSigner {
    /// Reads the files, which have to belong together.
    pub fn load(certificate: &Path, key: &Path, lifetime: Lifetime) -> Result<FileSigner, PkiError> {
        let authority = usable(certificate, key)?;
        Ok(FileSigner {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            lifetime,
            authority: ArcSwap::from_pointee(authority),
            failing: AtomicBool::new(false),
        })
    }

    /// Looks at the files. `true`: they had changed and are in use now. On an error the previous ones stay.
    pub fn reload(&self) -> Result<bool, PkiError> {
        let loaded = usable(&self.certificate, &self.key);
        self.failing.store(loaded.is_err(), Ordering::Relaxed);
        let loaded = loaded?;
        let (new, old) = (loaded.pem(), self.authority.load());
        if new.certificate == old.pem().certificate && new.key == old.pem().key {
            return Ok(false);
        }
        self.authority.store(Arc::new(loaded));
        Ok(true)
    }

    /// Looks at the files at every `interval` until `stopping`: to be run as a task.
    pub async fn follow(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        follow(interval, stopping, "the authority that signs for nodes", async || self.reload()).await;
    }
}

/// An authority that has ended signs nothing that anybody would believe.
fn usable(certificate: &Path, key: &Path) -> Result<Authority, PkiError> {
    let authority = Authority::load(certificate, key)?;
    if authority.expired_at(Timestamp::now()) {
        return Err(PkiError::EndedAuthority { path: certificate.to_owned() });
    }
    Ok(authority)
}

impl Signer for FileSigner {
    fn sign<'a>(
        &'a self,
        request: &'a CertificateRequest,
        _: &'a [u8],
    ) -> BoxFuture<'a, Result<String, SignError>> {
        let authority = self.authority.load_full();
        let signed = if authority.expired_at(Timestamp::now()) {
            let ended = PkiError::EndedAuthority { path: self.certificate.clone() };
            Err(SignError::Away(ended.into()))
        } else {
            authority.sign(request, self.lifetime).map_err(|error| SignError::Refused(error.into()))
        };
        Box::pin(std::future::ready(signed))
    }

    fn health(&self) -> Health {
        Health {
            unusable_files: self.failing.load(Ordering::Relaxed),
            until: Some(self.authority.load().not_after()),
        }
    }
}
