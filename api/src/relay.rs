//! Reading a log through the gateway that holds a node's session.
//!
//! The session table says which gateway that is and where it listens; the call names the session that was
//! read there. A gateway that no longer holds it says so (`NOT_FOUND`, `ABORTED`), and the table is read once
//! more: the node may just have moved. Nothing is ever forwarded between gateways.
//!
//! The caller has been judged before; what the gateway checks is that this process is a controller. The other
//! direction is checked here: the server at that address must prove to be a controller too, since any node
//! could otherwise serve made-up logs from an address that it got hold of.
//!
//! One pool of channels per gateway. A channel carries many calls; the pool bounds their number and replaces
//! those that broke. A gateway that vanishes takes its connections along, and with the last of them its pool goes;
//! one that vanishes without a word is noticed because it answers no pings any more.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool::managed::{self, Metrics as PoolMetrics, RecycleError, RecycleResult};
use horchestra_auth::Identity;
use horchestra_auth::identity::CONTROLLERS;
use horchestra_core::status::Status;
pub use horchestra_proto::relay::v1::log_request::Source;
use horchestra_proto::relay::v1::relay_client::RelayClient;
use horchestra_proto::relay::v1::{LogRequest, LogResponse};
use horchestra_runtime::PeerChain;
use horchestra_store::Store;
use horchestra_trace::{Role, attribute};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Streaming};

/// For a connection to a gateway, and for its first answer.
const CONNECT: Duration = Duration::from_secs(5);
const OPEN: Duration = Duration::from_secs(10);

/// Channels to one gateway.
const CHANNELS: usize = 4;

/// Receive windows, in bytes. A reader that takes nothing fills its own stream's window and keeps that much of
/// the connection's; so many small windows fit into the latter that no reader can starve its neighbours.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// The call, as spans name it.
const LOG: &str = "horchestra.relay.v1.Relay/Log";

/// Gives the TLS settings for the next connection.
pub type ClientTls = Arc<dyn Fn() -> Arc<ClientConfig> + Send + Sync>;

/// Makes channels to one address.
struct Dialer {
    address: String,
    tls: ClientTls,
    pools: Weak<Pools>,
}

/// A pool for each gateway that was called, by its address.
#[derive(Default)]
struct Pools(Mutex<HashMap<String, managed::Pool<Dialer>>>);

impl Pools {
    /// A connection to this address is over: channels without one are dropped, and an empty pool is.
    fn sweep(&self, address: &str) {
        let mut pools = self.0.lock();
        let Some(pool) = pools.get(address) else { return };
        pool.retain(|dialed, _| !dialed.over.load(Ordering::Acquire));
        if pool.status().size == 0 {
            pools.remove(address);
        }
    }
}

/// Notes the end of a connection, whoever ends it.
struct Ending {
    over: Arc<AtomicBool>,
    pools: Weak<Pools>,
    address: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(pools) = self.pools.upgrade() {
            pools.sweep(&self.address);
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("the address of the gateway is malformed")]
    Address,
    #[error("the gateway cannot be reached")]
    Connect(#[source] tonic::transport::Error),
}

/// A channel, and the settings that its connection was made with.
struct Dialed {
    channel: Channel,
    tls: Arc<ClientConfig>,
    /// Its connection is over.
    over: Arc<AtomicBool>,
}

impl managed::Manager for Dialer {
    type Type = Dialed;
    type Error = DialError;

    async fn create(&self) -> Result<Dialed, DialError> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address))
            .map_err(|_| DialError::Address)?
            .connect_timeout(CONNECT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        let tls = (self.tls)();
        let config = Arc::clone(&tls);
        let over = Arc::new(AtomicBool::new(false));
        let (noted, pools, address) = (Arc::clone(&over), self.pools.clone(), self.address.clone());
        let connector = tower::service_fn(move |uri: Uri| {
            let config = Arc::clone(&config);
            let ending = Ending { over: Arc::clone(&noted), pools: pools.clone(), address: address.clone() };
            async move { dial(&uri, config, ending).await }
        });
        let channel = endpoint.connect_with_connector(connector).await.map_err(DialError::Connect)?;
        Ok(Dialed { channel, tls, over })
    }

    async fn recycle(&self, dialed: &mut Dialed, _: &PoolMetrics) -> RecycleResult<DialError> {
        // What the gateway proved is worth nothing once its authority, or our own certificate, was replaced.
        if !Arc::ptr_eq(&dialed.tls, &(self.tls)()) {
            return Err(RecycleError::message("the TLS files have changed"));
        }
        if dialed.over.load(Ordering::Acquire) {
            return Err(RecycleError::message("the connection is over"));
        }
        // A channel whose connection broke reports that instead of becoming ready.
        let ready = std::future::poll_fn(|cx| tower::Service::poll_ready(&mut dialed.channel, cx));
        match tokio::time::timeout(Duration::from_secs(1), ready).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(RecycleError::message("the connection is gone")),
        }
    }
}

/// A connection whose end is noted.
struct Line {
    stream: TlsStream<TcpStream>,
    _ending: Ending,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn dial(uri: &Uri, config: Arc<ClientConfig>, ending: Ending) -> io::Result<TokioIo<Line>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "the address of the gateway is malformed");
    let host = uri.host().ok_or_else(invalid)?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().ok_or_else(invalid)?;
    let name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let controller = PeerChain::of(stream.get_ref().1)
        .and_then(|chain| Identity::from_verified(chain.leaf()).ok().flatten())
        .is_some_and(|identity| identity.in_group(CONTROLLERS));
    if !controller {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the gateway is no controller"));
    }
    Ok(TokioIo::new(Line { stream, _ending: ending }))
}

/// The way to logs.
pub struct Relay {
    store: Store,
    tls: ClientTls,
    pools: Arc<Pools>,
}

/// Which log, and for whom.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub node: String,
    pub source: Source,
    pub follow: bool,
    /// `None`: the whole backlog.
    pub tail_lines: Option<i64>,
    pub caller: String,
    pub audit_id: String,
}

fn away(node: &str) -> Status {
    Status::unavailable(format!("node \"{node}\" is not connected"), 2)
}

impl Relay {
    pub fn new(store: Store, tls: ClientTls) -> Relay {
        Relay { store, tls, pools: Arc::default() }
    }

    /// Gateways that there are channels to.
    pub fn gateways(&self) -> usize {
        self.pools.0.lock().len()
    }

    /// Opens a log. Both ends can drop the stream at any time.
    pub async fn open(&self, wanted: &Wanted) -> Result<Streaming<LogResponse>, Status> {
        let mut again = true;
        loop {
            let session = self
                .store
                .session_of(&wanted.node)
                .await
                .map_err(|_| Status::unavailable("the sessions of nodes cannot be read now", 2))?
                .ok_or_else(|| away(&wanted.node))?;
            let request = LogRequest {
                node: wanted.node.clone(),
                session_epoch: session.grant.epoch,
                session_id: session.grant.session.to_string(),
                source: Some(wanted.source.clone()),
                follow: wanted.follow,
                tail_lines: wanted.tail_lines.unwrap_or(0),
                caller: wanted.caller.clone(),
                audit_id: wanted.audit_id.clone(),
            };
            let failed = match self.call(&session.internal_address, request).await {
                Ok(stream) => return Ok(stream),
                Err(failed) => failed,
            };
            tracing::info!(
                node = wanted.node,
                gateway = session.internal_address,
                code = ?failed.code(),
                message = failed.message(),
                "a log could not be opened"
            );
            match failed.code() {
                Code::NotFound | Code::Aborted if again => again = false,
                Code::ResourceExhausted => {
                    return Err(Status::unavailable(
                        "too many logs are open on the gateway of this node, please try again later",
                        1,
                    ));
                }
                Code::InvalidArgument => {
                    return Err(Status::bad_request(format!("the log cannot be read: {}", failed.message())));
                }
                _ => return Err(away(&wanted.node)),
            }
        }
    }

    async fn call(
        &self,
        address: &str,
        request: LogRequest,
    ) -> Result<Streaming<LogResponse>, tonic::Status> {
        let pool = self.pool(address)?;
        let dialed = pool.get().await.map_err(|error| {
            tracing::warn!(gateway = address, error = %chain(&error), "no connection to a gateway");
            tonic::Status::unavailable("the gateway cannot be reached")
        })?;
        // The call keeps a handle of its own; the pool gets the channel back at once for others.
        let mut client = RelayClient::new(dialed.channel.clone());
        drop(dialed);
        let span = horchestra_trace::child(LOG, Role::Client, horchestra_trace::current());
        span.set(|| {
            [
                attribute("rpc.system", "grpc"),
                attribute("server.address", address.to_owned()),
                attribute("horchestra.node", request.node.clone()),
            ]
        });
        let mut request = tonic::Request::new(request);
        // What came with the request is passed on even where nothing is recorded.
        let passed = span.headers().or_else(horchestra_trace::current_headers);
        if let Some((parent, state)) = passed {
            let named = [("traceparent", Some(parent)), ("tracestate", state)];
            for (name, value) in named.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                if let Ok(value) = value.parse() {
                    request.metadata_mut().insert(name, value);
                }
            }
        }
        let answer = tokio::time::timeout(OPEN, client.log(request))
            .await
            .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("the gateway does not answer")));
        if let Err(status) = &answer {
            span.fail(|| format!("{:?}", status.code()).into());
        }
        answer.map(tonic::Response::into_inner)
    }

    fn pool(&self, address: &str) -> Result<managed::Pool<Dialer>, tonic::Status> {
        let mut pools = self.pools.0.lock();
        if let Some(pool) = pools.get(address) {
            return Ok(pool.clone());
        }
        // Gateways come and go; pools of those that nobody calls any more are dropped now and then.
        if pools.len() >= 64 {
            pools.retain(|_, pool| pool.status().size > pool.status().available);
        }
        let (address, tls) = (address.to_owned(), Arc::clone(&self.tls));
        let dialer = Dialer { address: address.clone(), tls, pools: Arc::downgrade(&self.pools) };
        let pool = managed::Pool::builder(dialer)
            .max_size(CHANNELS)
            .wait_timeout(Some(OPEN))
            .create_timeout(Some(CONNECT))
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(|_| tonic::Status::internal("no pool of channels"))?;
        pools.insert(address, pool.clone());
        Ok(pool)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
