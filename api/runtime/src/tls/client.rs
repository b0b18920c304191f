use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::{ClientConfig, version};
use tokio_util::sync::CancellationToken;

use super::files::{Contents, first_end};
use super::{KeyPairFiles, TlsError};
use crate::crypto;
use crate::follow::follow;

/// The TLS side of calls to servers of a known authority, with a client certificate or without.
pub struct ReloadingClient {
    pair: Option<KeyPairFiles>,
    ca: PathBuf,
    alpn: Vec<Vec<u8>>,
    seen: Mutex<Seen>,
    current: ArcSwap<Current>,
    failing: AtomicBool,
}

/// The files that are in use.
struct Seen {
    own: Contents,
    authorities: Contents,
}

struct Current {
    config: Arc<ClientConfig>,
    /// When the first certificate of the own chain, and the first authority, expires.
    own_until: Option<SystemTime>,
    authorities_until: Option<SystemTime>,
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
        let seen = Seen { own: Contents::read(&paths(pair.as_ref()))?, authorities: Contents::read(&[&ca])? };
        let current = build(&seen.own, &seen.authorities, pair.as_ref(), &ca, &alpn)?;
        Ok(ReloadingClient {
            pair,
            ca,
            alpn,
            seen: Mutex::new(seen),
            current: ArcSwap::from_pointee(current),
            failing: AtomicBool::new(false),
        })
    }

    /// What the next connection is to be made with: take it anew for each.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// Looks at the files. `true`: they had changed and are in use now. On an error the previous ones are; a
    /// pair that cannot be used does not keep a change of the authorities from being taken, nor the other way
    /// round.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let reloaded = self.try_reload();
        self.failing.store(reloaded.is_err(), Ordering::Relaxed);
        reloaded
    }

    fn try_reload(&self) -> Result<bool, TlsError> {
        let mut seen = self.seen.lock();
        let authorities = self.reload_authorities(&mut seen);
        let own = self.reload_own(&mut seen);
        Ok(authorities? | own?)
    }

    fn reload_authorities(&self, seen: &mut Seen) -> Result<bool, TlsError> {
        let authorities = Contents::read(&[&self.ca])?;
        if authorities == seen.authorities {
            return Ok(false);
        }
        let current = build(&seen.own, &authorities, self.pair.as_ref(), &self.ca, &self.alpn)?;
        self.current.store(Arc::new(current));
        seen.authorities = authorities;
        Ok(true)
    }

    fn reload_own(&self, seen: &mut Seen) -> Result<bool, TlsError> {
        let own = Contents::read(&paths(self.pair.as_ref()))?;
        if own == seen.own {
            return Ok(false);
        }
        let current = build(&own, &seen.authorities, self.pair.as_ref(), &self.ca, &self.alpn)?;
        self.current.store(Arc::new(current));
        seen.own = own;
        Ok(true)
    }

    /// Looks at the files at every `interval` until `stopping`: to be run as a supervised task.
    pub async fn follow(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        follow(interval, stopping, "the TLS files for calls", || ready(self.reload())).await;
    }

    /// When the first certificate of the own chain expires; `None` when there is none.
    pub fn own_until(&self) -> Option<SystemTime> {
        self.current.load().own_until
    }

    /// When the first of the servers' authorities expires.
    pub fn authorities_until(&self) -> Option<SystemTime> {
        self.current.load().authorities_until
    }

    /// Whether the files have changed and cannot be used.
    pub fn failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
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

fn paths(pair: Option<&KeyPairFiles>) -> Vec<&PathBuf> {
    pair.map_or_else(Vec::new, |pair| vec![&pair.certificate, &pair.key])
}

fn build(
    own: &Contents,
    authorities: &Contents,
    pair: Option<&KeyPairFiles>,
    ca: &Path,
    alpn: &[Vec<u8>],
) -> Result<Current, TlsError> {
    let builder = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|source| TlsError::Versions { source })?
        .with_root_certificates(authorities.roots(ca)?);
    let authorities_until = first_end(&authorities.certificates(ca)?);
    let mut own_until = None;
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (certificates, key) = own.key_pair(pair)?;
            own_until = first_end(&certificates);
            builder.with_client_auth_cert(certificates, key).map_err(|source| TlsError::KeyPair {
                certificate: pair.certificate.clone(),
                key: pair.key.clone(),
                source,
            })?
        }
    };
    config.alpn_protocols = alpn.to_vec();
    config.resumption = Resumption::disabled();
    Ok(Current { config: Arc::new(config), own_until, authorities_until })
}
