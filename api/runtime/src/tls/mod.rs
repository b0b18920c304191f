//! TLS whose files can be replaced while it serves.
//!
//! What a listener made here guarantees:
//!
//! - TLS 1.2 or 1.3, nothing older, with aws-lc-rs.
//! - A client certificate is asked for and may be withheld; one that is shown must verify (chain, validity,
//!   usage for client authentication) or the handshake fails. So a finished handshake with a certificate
//!   is proof. The request names no authorities: clients with certificates of an unlisted intermediate
//!   would otherwise keep theirs back. [`ClientCertificates::Required`] is for listeners between the control
//!   plane's own processes.
//! - A client without SNI, or with any name in it, gets the one certificate there is.
//! - Every connection is verified anew. Session resumption is off: a resumed session would carry over an
//!   identity whose certificate has expired, or whose authority was removed, since it was verified.
//! - The files are compared by content at every interval. A complete, consistent new set is used from the
//!   next handshake on; anything else (a key that does not fit, a half-written file) leaves the previous set
//!   in use, is logged, and is tried again. Open connections keep what they were made with.
//!
//! Refused: watching by inotify (misses bind mounts and symbolic-link swaps in containers), and revocation
//! lists (certificates here are short-lived instead).

mod client;
mod files;
mod server;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub use client::ReloadingClient;
pub use server::ReloadingServer;

/// Which client certificates a listener wants.
#[derive(Clone, Debug)]
pub enum ClientCertificates {
    /// Verified if given, against the authorities in this file.
    Optional { ca: PathBuf },
    /// As `Optional`, and without one there is no connection.
    Required { ca: PathBuf },
}

impl ClientCertificates {
    fn ca(&self) -> &PathBuf {
        match self {
            ClientCertificates::Optional { ca } | ClientCertificates::Required { ca } => ca,
        }
    }
}

/// A certificate (with its intermediates) and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct KeyPairFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no usable {what} in PEM", path.display())]
    Pem {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: Option<rustls_pki_types::pem::Error>,
    },
    #[error("an authority in {} cannot be used", path.display())]
    Authority {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the certificate in {} and the key in {} cannot be used together", certificate.display(), key.display())]
    KeyPair {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the client certificate verifier cannot be made")]
    Verifier {
        #[source]
        source: rustls::client::VerifierBuilderError,
    },
    #[error("the TLS provider does not support the wanted protocol versions")]
    Versions {
        #[source]
        source: rustls::Error,
    },
}

/// Runs `reload` at every `interval` until `stopping`. A failure is logged when it starts, not at every look.
async fn follow(
    interval: Duration,
    stopping: CancellationToken,
    what: &Path,
    reload: impl Fn() -> Result<bool, TlsError>,
) {
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_failure = String::new();
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        match reload() {
            Ok(false) => last_failure.clear(),
            Ok(true) => {
                last_failure.clear();
                tracing::info!(file = %what.display(), "new TLS files are in use");
            }
            Err(error) => {
                let failure = error.to_string();
                if failure != last_failure {
                    tracing::warn!(
                        %error,
                        cause = error.source().map(tracing::field::display),
                        "TLS files cannot be used, the previous ones stay in use"
                    );
                    last_failure = failure;
                }
            }
        }
    }
}
