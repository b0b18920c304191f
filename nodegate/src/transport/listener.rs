//! Accepting connections, and what becomes of each.
//!
//! A connection is accepted at once and judged by its first message ([`hello`](super::hello)). That of a node
//! waits for its turn at the handshake, in the order of arrival, or is turned away at once if its turn would
//! come too late: an agent dials again after a fixed wait whatever it is told. Every other one is passed on to
//! the API and costs no handshake here. A listener that passes nothing on says so, over HTTP.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use horchestra_runtime::proxy::{self, Block, Front};
use horchestra_runtime::tls::{ReloadingServer, Trust};
use horchestra_runtime::{PeerChain, Tasks};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use super::arrivals::Arrivals;
use super::hello::{Hello, NoHello, Replay, Route, read_hello};
use super::pace::Pace;
use super::peer::Connection;
use super::serve;
use super::socket;
use super::splice::Splicer;
use crate::metrics::GateMetrics;
use crate::settings::Settings;

/// Pause after an accept that failed for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a peer that is told something before it is left may take to hear it.
const GOODBYE: Duration = Duration::from_secs(1);

/// What somebody is told who speaks HTTP without TLS.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    content-length: 51\r\nconnection: close\r\n\r\nThis port speaks TLS: use https:// instead of http.";

/// What a listener needs besides its socket.
#[derive(Clone)]
pub struct Listening {
    pub tls: Arc<ReloadingServer>,
    /// Calls at a time on one connection.
    pub streams: u32,
    /// Peers that may say by a PROXY header whom they speak for.
    pub proxies: Arc<[Block]>,
    /// Where what is no stream of a node is passed on to.
    pub splicer: Option<Arc<Splicer>>,
    /// Ends what is passed on.
    pub leaving: CancellationToken,
    pub arrivals: Arrivals,
    pub settings: Arc<Settings>,
    pub metrics: GateMetrics,
    pub tasks: Tasks,
    pub pace: Arc<Pace>,
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum Dropped {
    #[error("{0}")]
    NoHello(#[from] NoHello),
    #[error("the header of the proxy in front is not one: {0}")]
    Proxy(io::Error),
    #[error("it did not say what it wants in time")]
    Silent,
    #[error("it was silent while too many others came")]
    Displaced,
    #[error("too many sessions are being opened")]
    Crowded,
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    #[error("{0}")]
    Broken(#[from] io::Error),
}

impl Dropped {
    fn word(&self) -> &'static str {
        match self {
            Dropped::NoHello(NoHello::Ended | NoHello::Broken(_)) => "hung_up",
            Dropped::NoHello(NoHello::PlainHttp) => "plain_http",
            Dropped::NoHello(NoHello::NotTls) => "not_tls",
            Dropped::NoHello(NoHello::TooLong) => "too_long",
            Dropped::NoHello(NoHello::Senseless { .. }) => "senseless",
            Dropped::Proxy(_) => "proxy",
            Dropped::Silent => "silent",
            Dropped::Displaced => "displaced",
            Dropped::Crowded => "crowded",
            Dropped::Handshake(_) => "handshake",
            Dropped::Broken(_) => "broken",
        }
    }
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
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let (listening, grpc, stop) = (self.clone(), grpc.clone(), stop.clone());
                    self.tasks.spawn("connection", async move {
                        if let Err(error) = listening.connection(stream, address, grpc, &stop).await {
                            listening.metrics.transport.drop_for(error.word());
                            if matches!(error, Dropped::Handshake(_)) {
                                listening.metrics.handshakes_failed.inc();
                            }
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

    /// Each way that it can take has its room while it is taken, and no longer: a task is as large as the largest of
    /// what stands in it, and most of these last for as long as a node has a session.
    async fn connection<S>(
        &self,
        mut stream: TcpStream,
        address: SocketAddr,
        grpc: S,
        stop: &CancellationToken,
    ) -> Result<(), Dropped>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        socket::prepare(&stream)?;
        let arrival = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            arrival = Box::pin(self.arrival(&mut stream, address)) => arrival,
        };
        let (hello, address) = match arrival {
            Ok(arrived) => arrived,
            Err(error) => {
                Box::pin(tell(&mut stream, &error)).await;
                return Err(error);
            }
        };
        match (&self.splicer, hello.route) {
            (Some(splicer), Route::Elsewhere) => {
                Box::pin(self.pass_on(splicer, stream, hello.bytes, address)).await;
                Ok(())
            }
            _ => Box::pin(self.serve(stream, hello.bytes, address, grpc, stop)).await,
        }
    }

    /// What the client wants, and where it is.
    async fn arrival(
        &self,
        stream: &mut TcpStream,
        address: SocketAddr,
    ) -> Result<(Hello, SocketAddr), Dropped> {
        let place = self.arrivals.enter();
        let reading = async {
            let (ahead, address) = if self.proxies.iter().any(|block| block.contains(address.ip())) {
                match proxy::read(stream).await.map_err(Dropped::Proxy)? {
                    Front::Direct(ahead) => (ahead, address),
                    Front::Proxied(real) => (Vec::new(), real.unwrap_or(address)),
                }
            } else {
                (Vec::new(), address)
            };
            Ok((read_hello(stream, ahead).await?, address))
        };
        tokio::select! {
            () = place.displaced() => Err(Dropped::Displaced),
            read = timeout(self.settings.hello_timeout, reading) => read.map_err(|_| Dropped::Silent)?,
        }
    }

    async fn pass_on(&self, splicer: &Splicer, stream: TcpStream, hello: Bytes, address: SocketAddr) {
        match splicer.carry(stream, hello, address, &self.leaving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "a connection to the API broke");
            }
            Err(why) => {
                self.metrics.transport.splice_failed(why.word());
                tracing::warn!(%address, %why, "a connection to the API was closed");
            }
        }
    }

    async fn serve<S>(
        &self,
        stream: TcpStream,
        hello: Bytes,
        address: SocketAddr,
        grpc: S,
        stop: &CancellationToken,
    ) -> Result<(), Dropped>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let handshake = async {
            if !self.pace.take_within(self.settings.accept_patience).await {
                return Err(Dropped::Crowded);
            }
            let (config, trust) = self.tls.accept();
            let shaking = TlsAcceptor::from(config).accept(Replay::new(hello, stream));
            match timeout(self.settings.handshake_timeout, shaking).await {
                Ok(Ok(tls)) => Ok((tls, trust)),
                Ok(Err(error)) => Err(Dropped::Handshake(error)),
                Err(_) => Err(Dropped::Handshake(io::ErrorKind::TimedOut.into())),
            }
        };
        // The room that it needs is given back with its end.
        let handshake = Box::pin(handshake);
        let (tls, trust) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            shaken = handshake => shaken?,
        };
        self.course(tls, trust, address, grpc, stop).await;
        Ok(())
    }

    /// Everything after the handshake. Not an `async fn`, which would keep room for the connection a second time.
    fn course<S>(
        &self,
        tls: TlsStream<Replay<TcpStream>>,
        mut trust: Trust,
        address: SocketAddr,
        grpc: S,
        stop: &CancellationToken,
    ) -> BoxFuture<'_, ()>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let session = tls.get_ref().1;
        if session.alpn_protocol() != Some(b"h2") {
            tracing::debug!(%address, "a client of the API has come to the wrong address");
            return serve::http1_refusal(tls, &self.settings).boxed();
        }
        let connection = Connection {
            address,
            chain: PeerChain::of(session),
            cut: CancellationToken::new(),
            in_use: Arc::new(()),
        };
        let chain = connection.chain.clone();
        let why_not = serve::misdirection(self.splicer.is_some());
        let serving = serve::http2(tls, connection, grpc, why_not, self, stop);
        async move {
            tokio::select! {
                () = serving => {}
                // Dropping the connection ends the calls on it.
                () = trust.lost(chain.as_ref()) => {
                    tracing::info!(%address, "cut: the client's certificate is not believed any more");
                }
            }
        }
        .boxed()
    }
}

/// Tells a peer what it did wrong, where it can understand that.
async fn tell(stream: &mut TcpStream, error: &Dropped) {
    let text = match error {
        Dropped::NoHello(NoHello::PlainHttp) => PLAIN_HTTP,
        Dropped::NoHello(NoHello::Senseless { alert, .. }) => alert,
        _ => return,
    };
    let _ = timeout(GOODBYE, async {
        stream.write_all(text).await?;
        stream.shutdown().await?;
        // Closing with something unread would make the peer lose what it was told.
        let mut unread = [0; 1024];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut unread) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    })
    .await;
}
