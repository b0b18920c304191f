//! The accept loop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::tls::{ReloadingServer, Trust};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{self, Ends};
use super::io::Guarded;
use crate::app::App;
use horchestra_runtime::proxy::{self, Block, Front};

/// By how much clients are told that a connection takes nothing new before the watches on it end: they would be begun
/// again right there, to end at once.
const GOODBYE: Duration = Duration::from_millis(100);

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// For the PROXY header and the TLS handshake together.
    pub handshake: Duration,
    /// For a request head on HTTP/1.1, counted from its first byte (or from the end of the answer before).
    pub head: Duration,
    /// After this long without a request a connection is closed.
    pub idle: Duration,
    /// Concurrent HTTP/2 streams of one connection.
    pub streams: u32,
    /// How long a write to a connection may make no progress.
    pub stall: Duration,
    /// Size of a request head.
    pub head_bytes: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 16_384,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(100),
            idle: Duration::from_secs(90),
            streams: 250,
            stall: Duration::from_secs(30),
            head_bytes: 64 * 1024,
        }
    }
}

/// A bound listener and how to serve it.
pub struct Listener {
    pub tcp: TcpListener,
    pub tls: Arc<ReloadingServer>,
    pub limits: Limits,
    /// Peers that may speak for others by a PROXY header.
    pub proxies: Vec<Block>,
}

impl Listener {
    /// Serves until `stop`; then lets running requests finish for at most `grace` and drops what is left.
    /// Watches end by themselves, with the app's own drain.
    pub async fn serve(self, app: Arc<App>, stop: CancellationToken, grace: Duration) {
        let tasks = TaskTracker::new();
        let ends = Ends { drain: CancellationToken::new(), kill: CancellationToken::new() };
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let proxies: Arc<[Block]> = self.proxies.into();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or a peer that was gone already: neither may end the loop, and
                    // the first must not spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                app.metrics().connection_refused();
                continue;
            };
            let (app, tls, limits) = (Arc::clone(&app), self.tls.accept(), self.limits);
            let (ends, proxies, streams) = (ends.clone(), Arc::clone(&proxies), tasks.clone());
            tasks.spawn(async move {
                let _place = place;
                let _open = app.metrics().connection();
                open(app, stream, address, tls, limits, ends, &proxies, streams).await;
            });
        }
        drop(self.tcp);
        ends.drain.cancel();
        tokio::time::sleep(GOODBYE.min(grace / 4)).await;
        app.drain();
        tasks.close();
        if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
            tracing::warn!(left = tasks.len(), "dropping connections that did not finish in time");
            ends.kill.cancel();
            let _ = tokio::time::timeout(Duration::from_secs(1), tasks.wait()).await;
        }
        // What feeds streams ends with them.
        let _ = tokio::time::timeout(Duration::from_secs(1), app.tasks().wait()).await;
    }
}

#[allow(clippy::too_many_arguments)]
async fn open(
    app: Arc<App>,
    mut stream: TcpStream,
    address: SocketAddr,
    (tls, trust): (Arc<ServerConfig>, Trust),
    limits: Limits,
    ends: Ends,
    proxies: &[Block],
    tasks: TaskTracker,
) {
    let _ = stream.set_nodelay(true);
    let handshake = async {
        let (ahead, address) = if proxies.iter().any(|block| block.contains(address.ip())) {
            match proxy::read(&mut stream).await? {
                Front::Direct(ahead) => (ahead, address),
                Front::Proxied(real) => (Vec::new(), real.unwrap_or(address)),
            }
        } else {
            (Vec::new(), address)
        };
        let stream = TlsAcceptor::from(tls).accept(Guarded::new(stream, ahead, limits.stall)).await?;
        Ok::<_, std::io::Error>((stream, address))
    };
    let shaken = tokio::select! {
        () = ends.drain.cancelled() => return,
        shaken = tokio::time::timeout(limits.handshake, handshake) => shaken,
    };
    match shaken {
        Ok(Ok((stream, address))) => {
            Box::pin(connection::serve(app, stream, address, limits, trust, ends, tasks)).await;
        }
        Ok(Err(error)) => {
            app.metrics().handshake_failed();
            tracing::debug!(peer = %address, %error, "handshake failed");
        }
        Err(_) => {
            app.metrics().handshake_failed();
            tracing::debug!(peer = %address, "handshake took too long");
        }
    }
}
