//! Accepting connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::tls::ReloadingServer;
use horchestra_runtime::{PeerChain, Tasks};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use super::hello::{Route, read_hello};
use super::pace::Pace;
use super::peer::Connection;
use super::serve;
use crate::metrics::GateMetrics;
use crate::settings::Settings;

/// Pause after an accept that failed for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a listener needs besides its socket.
#[derive(Clone)]
pub struct Listening {
    pub tls: Arc<ReloadingServer>,
    /// Calls at a time on one connection.
    pub streams: u32,
    pub settings: Arc<Settings>,
    pub metrics: GateMetrics,
    pub tasks: Tasks,
    pub pace: Arc<Pace>,
}

impl Listening {
    /// Accepts connections until `stop` and serves `grpc` on them. Connections that are open then end when
    /// their calls have, or when they are cut.
    pub async fn run<S>(self, listener: TcpListener, grpc: S, stop: CancellationToken)
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.pace.take() => {}
            }
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let (listening, grpc, stop) = (self.clone(), grpc.clone(), stop.clone());
                    self.tasks.spawn("connection", async move {
                        if let Err(error) = listening.connection(stream, address, grpc, &stop).await {
                            listening.metrics.handshakes_failed.inc();
                            tracing::debug!(%address, %error, "a connection came to nothing");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection<S>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        grpc: S,
        stop: &CancellationToken,
    ) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        stream.set_nodelay(true)?;
        let (config, mut trust) = self.tls.accept();
        let handshake = async {
            let arrival = read_hello(stream).await?;
            let tls = TlsAcceptor::from(config).accept(arrival.stream).await?;
            Ok::<_, io::Error>((arrival.route, tls))
        };
        let (route, tls) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            done = tokio::time::timeout(self.settings.handshake_timeout, handshake) => {
                done.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??
            }
        };
        let session = tls.get_ref().1;
        let h2 = session.alpn_protocol() == Some(b"h2");
        if route == Route::Elsewhere {
            tracing::debug!(%address, "a client of the API has come to the wrong address");
        }
        if h2 {
            let connection = Connection {
                address,
                chain: PeerChain::of(session),
                cut: CancellationToken::new(),
                in_use: Arc::new(()),
            };
            let chain = connection.chain.clone();
            tokio::select! {
                () = serve::http2(tls, connection, grpc, self.streams, &self.settings, &self.tasks, stop) => {}
                // Dropping the connection ends the calls on it.
                () = trust.lost(chain.as_ref()) => {
                    tracing::info!(%address, "cut: the authority of the client's certificate was removed");
                }
            }
        } else {
            serve::http1_refusal(tls, &self.settings).await;
        }
        Ok(())
    }
}
