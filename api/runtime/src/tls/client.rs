use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::{ClientConfig, version};
use tokio_util::sync::CancellationToken;

use super::files::Contents;
use super::{KeyPairFiles, TlsError};
use crate::crypto;

/// The TLS side of calls to servers of a known authority, with a client certificate or without.
pub struct ReloadingClient {
    pair: Option<KeyPairFiles>,
    ca: PathBuf,
    alpn: Vec<Vec<u8>>,
    seen: Mutex<Contents>,
    current: ArcSwap<ClientConfig>,
}

impl ReloadingClient {
    /// Reads the files. Servers must show a certificate of an authority in `ca` that bears the name they
    /// are called by; the system's authorities play no part.
    pub fn load(
        pair: Option<KeyPairFiles>,
        ca: PathBuf,
        alpn: &[&[u8]],
    ) -> Result<ReloadingClient, TlsError> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let contents = Contents::read(&paths(pair.as_ref(), &ca))?;
        let config = build(&contents, pair.as_ref(), &ca, &alpn)?;
        Ok(ReloadingClient {
            pair,
            ca,
            alpn,
            seen: Mutex::new(contents),
            current: ArcSwap::from_pointee(config),
        })
    }

    /// What the next connection is to be made with: take it anew for each.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.current.load_full()
    }

    /// Looks at the files. `true`: they had changed and are in use now. On an error the previous ones are.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&paths(self.pair.as_ref(), &self.ca))?;
        let mut seen = self.seen.lock();
        if *seen == contents {
            return Ok(false);
        }
        let config = build(&contents, self.pair.as_ref(), &self.ca, &self.alpn)?;
        self.current.store(Arc::new(config));
        *seen = contents;
        Ok(true)
    }

    /// Looks at the files at every `interval` until `stopping`: to be run as a supervised task.
    pub async fn follow(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        super::follow(interval, stopping, &self.ca, || self.reload()).await;
    }
}

impl std::fmt::Debug for ReloadingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadingClient")
            .field("pair", &self.pair)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

fn paths<'a>(pair: Option<&'a KeyPairFiles>, ca: &'a PathBuf) -> Vec<&'a PathBuf> {
    let mut paths = vec![ca];
    if let Some(pair) = pair {
        paths.extend([&pair.certificate, &pair.key]);
    }
    paths
}

fn build(
    contents: &Contents,
    pair: Option<&KeyPairFiles>,
    ca: &Path,
    alpn: &[Vec<u8>],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|source| TlsError::Versions { source })?
        .with_root_certificates(contents.roots(ca)?);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (certificates, key) = contents.key_pair(pair)?;
            builder.with_client_auth_cert(certificates, key).map_err(|source| TlsError::KeyPair {
                certificate: pair.certificate.clone(),
                key: pair.key.clone(),
                source,
            })?
        }
    };
    config.alpn_protocols = alpn.to_vec();
    config.resumption = Resumption::disabled();
    Ok(config)
}
