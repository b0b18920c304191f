use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, version};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::denied::{Denied, Wary};
use super::files::{Contents, first_end};
use super::{ClientCertificates, KeyPairFiles, TlsError};
use crate::crypto;
use crate::follow::follow;
use crate::peer::PeerChain;

/// The TLS side of a listener.
pub struct ReloadingServer {
    pair: KeyPairFiles,
    clients: ClientCertificates,
    alpn: Vec<Vec<u8>>,
    seen: Mutex<Seen>,
    current: ArcSwap<Current>,
    denied: Denied,
    /// Tells that the authorities, or what is denied, have changed.
    authorities: watch::Sender<()>,
    failing: AtomicBool,
}

/// The files that are in use.
struct Seen {
    pair: Contents,
    authorities: Contents,
}

struct Current {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// When the first certificate of the serving chain, and the first authority, expires.
    serving_until: Option<SystemTime>,
    authorities_until: Option<SystemTime>,
}

/// Whether the client of one connection is still believed.
#[derive(Clone)]
pub struct Trust {
    server: Arc<ReloadingServer>,
    changes: watch::Receiver<()>,
}

impl ReloadingServer {
    /// Reads the files. `alpn` is what the listener speaks, the preferred first (`h2`, `http/1.1`).
    pub fn load(
        pair: KeyPairFiles,
        clients: ClientCertificates,
        alpn: &[&[u8]],
    ) -> Result<ReloadingServer, TlsError> {
        let alpn: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let seen = Seen {
            pair: Contents::read(&[&pair.certificate, &pair.key])?,
            authorities: Contents::read(&[clients.ca()])?,
        };
        let denied = Denied::default();
        let current = build(&seen.pair, &seen.authorities, &pair, &clients, &alpn, &denied)?;
        Ok(ReloadingServer {
            pair,
            clients,
            alpn,
            seen: Mutex::new(seen),
            current: ArcSwap::from_pointee(current),
            denied,
            authorities: watch::Sender::new(()),
            failing: AtomicBool::new(false),
        })
    }

    /// What the next connection is to be accepted with: take it anew for each.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// As [`ReloadingServer::config`], with what tells when the connection has to be cut.
    pub fn accept(self: &Arc<Self>) -> (Arc<ServerConfig>, Trust) {
        // First the ear, then the settings: a change between the two is heard.
        let changes = self.authorities.subscribe();
        (self.config(), Trust { server: Arc::clone(self), changes })
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
        let pair = self.reload_pair(&mut seen);
        Ok(authorities? | pair?)
    }

    fn reload_authorities(&self, seen: &mut Seen) -> Result<bool, TlsError> {
        let authorities = Contents::read(&[self.clients.ca()])?;
        if authorities == seen.authorities {
            return Ok(false);
        }
        let current = build(&seen.pair, &authorities, &self.pair, &self.clients, &self.alpn, &self.denied)?;
        self.current.store(Arc::new(current));
        self.authorities.send_replace(());
        seen.authorities = authorities;
        Ok(true)
    }

    fn reload_pair(&self, seen: &mut Seen) -> Result<bool, TlsError> {
        let pair = Contents::read(&[&self.pair.certificate, &self.pair.key])?;
        if pair == seen.pair {
            return Ok(false);
        }
        let current = build(&pair, &seen.authorities, &self.pair, &self.clients, &self.alpn, &self.denied)?;
        self.current.store(Arc::new(current));
        seen.pair = pair;
        Ok(true)
    }

    /// From now on the certificates that `denies` names are not believed, whatever authority they have:
    /// handshakes with them fail, and what is open with one is cut.
    pub fn deny(&self, denies: impl Fn(&CertificateDer<'_>) -> bool + Send + Sync + 'static) {
        self.denied.set(Box::new(denies));
        self.authorities.send_replace(());
    }

    /// Looks at the files at every `interval` until `stopping`: to be run as a supervised task.
    pub async fn follow(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        follow(interval, stopping, "the TLS files of a listener", || ready(self.reload())).await;
    }

    /// When the first certificate of the serving chain expires.
    pub fn serving_until(&self) -> Option<SystemTime> {
        self.current.load().serving_until
    }

    /// When the first of the clients' authorities expires.
    pub fn authorities_until(&self) -> Option<SystemTime> {
        self.current.load().authorities_until
    }

    /// Whether the files have changed and cannot be used.
    pub fn failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Whether a handshake with this certificate would succeed now.
    fn believes(&self, chain: &PeerChain) -> bool {
        let intermediates = chain.certificates().get(1..).unwrap_or_default();
        let verifier = Arc::clone(&self.current.load().verifier);
        verifier.verify_client_cert(chain.leaf(), intermediates, UnixTime::now()).is_ok()
    }
}

impl Trust {
    /// Returns when `chain` is not believed any more: the authorities have changed and it leads to none of them,
    /// or it was denied. Never, for a client that showed no certificate.
    pub async fn lost(&mut self, chain: Option<&PeerChain>) {
        if let Some(chain) = chain {
            while self.changes.changed().await.is_ok() {
                if !self.server.believes(chain) {
                    return;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("server", &self.server).finish_non_exhaustive()
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
    own: &Contents,
    authorities: &Contents,
    pair: &KeyPairFiles,
    clients: &ClientCertificates,
    alpn: &[Vec<u8>],
    denied: &Denied,
) -> Result<Current, TlsError> {
    let roots = authorities.roots(clients.ca())?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, crypto::provider()).clear_root_hint_subjects();
    let verifier = match clients {
        ClientCertificates::Optional { .. } => verifier.allow_unauthenticated(),
        ClientCertificates::Required { .. } => verifier,
    };
    let verifier = verifier.build().map_err(|source| TlsError::Verifier { source })?;
    let verifier = Wary::over(verifier, denied);
    let (certificates, key) = own.key_pair(pair)?;
    let serving_until = first_end(&certificates);
    let mut config = ServerConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|source| TlsError::Versions { source })?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_single_cert(certificates, key)
        .map_err(|source| TlsError::KeyPair {
            certificate: pair.certificate.clone(),
            key: pair.key.clone(),
            source,
        })?;
    config.alpn_protocols = alpn.to_vec();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let authorities_until = first_end(&authorities.certificates(clients.ca())?);
    Ok(Current { config: Arc::new(config), verifier, serving_until, authorities_until })
}
