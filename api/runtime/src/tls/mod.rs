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
//!   in use, is logged, and is tried again.
//! - Open connections keep what they were made with, with one exception: when the clients' authorities have
//!   changed, [`Trust`] verifies the client's certificate anew, and tells the listener to cut a connection whose
//!   certificate leads to none of them any more. The same happens when a single certificate is denied
//!   ([`ReloadingServer::deny`]); where that is known from is the binary's affair.
//!
//! Refused: watching by inotify (misses bind mounts and symbolic-link swaps in containers), and revocation
//! lists and responders of the authority (certificates here are short-lived instead).

mod client;
mod denied;
mod facts;
mod files;
mod metrics;
mod server;

use std::path::PathBuf;

pub use client::ReloadingClient;
pub use facts::{CertificateFacts, authority_facts, leads_to, pair_facts};
pub use metrics::TlsMetrics;
pub use server::{ReloadingServer, Trust};

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
