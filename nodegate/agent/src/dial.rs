//! One connection to the control plane.
//!
//! Each session dials afresh: the name is resolved again, the first address that
//! answers is taken, the handshake is a full one. The connection speaks HTTP/2 and
//! only if the server chose `h2` in ALPN. There are no keepalive pings; pings of the
//! server are answered. `:authority` is the host without the port, and a host that
//! is an IP address is not sent as SNI.
//!
//! gRPC runs on hyper's connection directly instead of tonic's channel: a channel
//! reconnects on its own, which would hide the end of a session, and it cannot take
//! a TLS connection that is established already.

use std::future::Future;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use horchestra_proto::MAX_MESSAGE_BYTES;
use horchestra_proto::node::v1::node_service_client::NodeServiceClient;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use crate::controller::Controller;
use crate::identity::Identity;

/// How long connecting and the handshake may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes that may wait here for the server to read. As small as in deployed agents:
/// a server that stops reading is felt soon.
const SEND_BUFFER: usize = 64 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nothing answered in time.
    #[error("{0} did not answer within {CONNECT_TIMEOUT:?}")]
    Timeout(Controller),
    /// Resolving, connecting or the TLS handshake failed.
    #[error("cannot connect to {controller}")]
    Connect {
        /// Where to.
        controller: Controller,
        /// Why.
        source: std::io::Error,
    },
    /// The host can be no name in a certificate.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Host(String),
    /// The server did not choose HTTP/2.
    #[error("the server did not select h2")]
    Protocol,
    /// The HTTP/2 preface failed.
    #[error("HTTP/2 could not be started")]
    Http(#[from] hyper::Error),
}

/// A client whose calls all go over one connection.
pub type Client = NodeServiceClient<Line>;

/// An established connection. Dropping it closes the connection at once.
pub struct Connection {
    /// For the one call.
    pub client: Client,
    /// Our address on the way to the control plane.
    pub local_ip: IpAddr,
    tasks: TaskTracker,
    closed: CancellationToken,
}

impl Connection {
    /// Closes the connection and waits until its tasks are gone.
    pub async fn close(self) {
        self.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Connects, as the identity says, to the control plane.
pub async fn dial(controller: &Controller, identity: &Identity) -> Result<Connection, DialError> {
    let server_name = ServerName::try_from(controller.host.clone())
        .map_err(|_| DialError::Host(controller.host.clone()))?;
    let failed = |source| DialError::Connect { controller: controller.clone(), source };
    let connected = async {
        let tcp = TcpStream::connect((controller.host.as_str(), controller.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let local_ip = tcp.local_addr().map_err(failed)?.ip();
        let tls = TlsConnector::from(identity.tls()).connect(server_name, tcp).await.map_err(failed)?;
        Ok::<_, DialError>((tls, local_ip))
    };
    let (tls, local_ip) = tokio::time::timeout(CONNECT_TIMEOUT, connected)
        .await
        .map_err(|_| DialError::Timeout(controller.clone()))??;
    if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(DialError::Protocol);
    }

    let tasks = TaskTracker::new();
    let closed = CancellationToken::new();
    let (send, driver) =
        hyper::client::conn::http2::Builder::new(Tracked { tasks: tasks.clone(), closed: closed.clone() })
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(tls))
            .await?;
    tasks.spawn(closed.clone().run_until_cancelled_owned(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "connection ended");
        }
    }));

    let origin = Uri::builder()
        .scheme("https")
        .authority(controller.authority())
        .path_and_query("/")
        .build()
        .map_err(|_| DialError::Host(controller.host.clone()))?;
    let client =
        NodeServiceClient::with_origin(Line(send), origin).max_decoding_message_size(MAX_MESSAGE_BYTES);
    Ok(Connection { client, local_ip, tasks, closed })
}

/// Runs what hyper spawns in the set of the connection, and ends it with it.
#[derive(Clone)]
struct Tracked {
    tasks: TaskTracker,
    closed: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        let closed = self.closed.clone();
        self.tasks.spawn(async move {
            closed.run_until_cancelled_owned(future).await;
        });
    }
}

/// The sending side of the connection, as a service.
#[derive(Clone)]
pub struct Line(SendRequest<Body>);

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = futures::future::BoxFuture<'static, Result<Response<Incoming>, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
