use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, version};
use tokio_util::sync::CancellationToken;

use super::files::Contents;
use super::{ClientCertificates, KeyPairFiles, TlsError};
use crate::crypto;

/// The TLS side of a listener.
pub struct ReloadingServer {
    pair: KeyPairFiles,
    clients: ClientCertificates,
    alpn: Vec<Vec<u8>>,
    seen: Mutex<Contents>,
    current: ArcSwap<ServerConfig>,
}

impl ReloadingServer {
    /// Reads the files. `alpn` is what the listener speaks, the preferred first (`h2`, `http/1.1`).
    pub fn load(
        pair: KeyPairFiles,
        clients: ClientCertificates,
        alpn: &[&[u8]],
    ) -> Result<ReloadingServer, TlsError> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let contents = Contents::read(&[&pair.certificate, &pair.key, clients.ca()])?;
        let config = build(&contents, &pair, &clients, &alpn)?;
        Ok(ReloadingServer {
            pair,
            clients,
            alpn,
            seen: Mutex::new(contents),
            current: ArcSwap::from_pointee(config),
        })
    }

    /// What the next connection is to be accepted with: take it anew for each.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Looks at the files. `true`: they had changed and are in use now. On an error the previous ones are.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&[&self.pair.certificate, &self.pair.key, self.clients.ca()])?;
        let mut seen = self.seen.lock();
        if *seen == contents {
            return Ok(false);
        }
        let config = build(&contents, &self.pair, &self.clients, &self.alpn)?;
        self.current.store(Arc::new(config));
        *seen = contents;
        Ok(true)
    }

    /// Looks at the files at every `interval` until `stopping`: to be run as a supervised task.
    pub async fn follow(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        super::follow(interval, stopping, &self.pair.certificate, || self.reload()).await;
    }
}

impl std::fmt::Debug for ReloadingServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingServer")
            .field("pair", &self.pair)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

fn build(
    contents: &Contents,
    pair: &KeyPairFiles,
    clients: &ClientCertificates,
    alpn: &[Vec<u8>],
) -> Result<ServerConfig, TlsError> {
    let roots = contents.roots(clients.ca())?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, crypto::provider()).clear_root_hint_subjects();
    let verifier = match clients {
        ClientCertificates::Optional { .. } => verifier.allow_unauthenticated(),
        ClientCertificates::Required { .. } => verifier,
    };
    let verifier = verifier.build().map_err(|source| TlsError::Verifier { source })?;
    let (certificates, key) = contents.key_pair(pair)?;
    let mut config = ServerConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|source| TlsError::Versions { source })?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(|source| TlsError::KeyPair {
            certificate: pair.certificate.clone(),
            key: pair.key.clone(),
            source,
        })?;
    config.alpn_protocols = alpn.to_vec();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
