//! A node as far as the wire goes: TLS, HTTP/2 and one stream.
//!
//! It does what deployed agents do: TLS with a client certificate and a full handshake each time, HTTP/2 and nothing
//! else by ALPN, no server name for an address, one call without metadata, deadline or compression, and messages of
//! at most 4 MiB. Nothing is sent and nothing answered that a test does not ask for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::node_service_client::NodeServiceClient;
use horchestra_proto::node::v1::{
    AppStatus, ControllerMessage, LogChunk, LogRequest, NodeMessage, NodeStatus, NodeUsage,
};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status, Streaming};

use super::pki::Credentials;
use super::push::Push;
use crate::world::{A_WHILE, SOON};

/// What agents accept.
const RECEIVE_LIMIT: usize = 4 << 20;

/// Why there is no stream.
#[derive(Debug)]
pub enum Refusal {
    /// There is no connection.
    Connection,
    /// There is one, and the call is refused.
    Call(Status),
}

impl Refusal {
    pub fn code(&self) -> Option<Code> {
        match self {
            Refusal::Connection => None,
            Refusal::Call(status) => Some(status.code()),
        }
    }
}

/// A TLS connection that shows these credentials, or none, and offers these protocols.
pub async fn tls(
    to: SocketAddr,
    authority: &CertificateDer<'static>,
    credentials: Option<&Credentials>,
    offers: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match credentials {
        Some(shown) => builder.with_client_auth_cert(shown.chain.clone(), shown.key.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(to).await?;
    tcp.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::IpAddress(to.ip().into()), tcp).await
}

/// One HTTP/2 connection.
#[derive(Clone)]
pub struct Line {
    send: SendRequest<Body>,
    driver: AbortHandle,
}

impl Line {
    /// Fails unless the server agrees to HTTP/2.
    pub async fn dial(
        to: SocketAddr,
        authority: &CertificateDer<'static>,
        credentials: Option<&Credentials>,
    ) -> std::io::Result<Line> {
        let tls = tls(to, authority, credentials, &["h2"]).await?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(std::io::Error::other("the server does not speak HTTP/2"));
        }
        let (send, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
            .await
            .map_err(std::io::Error::other)?;
        Ok(Line { send, driver: tokio::spawn(driver).abort_handle() })
    }
}

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.send.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.send.send_request(request))
    }
}

/// An open stream.
pub struct Node {
    pub name: String,
    up: Option<mpsc::Sender<NodeMessage>>,
    down: Streaming<ControllerMessage>,
    line: Line,
}

impl Node {
    /// Connects and opens the stream; an accepted one is open when this returns.
    pub async fn dial(
        to: SocketAddr,
        authority: &CertificateDer<'static>,
        name: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Node, Refusal> {
        let line = Line::dial(to, authority, credentials).await.map_err(|_| Refusal::Connection)?;
        Node::over(line, name).await
    }

    /// Opens a stream over a connection that there is.
    pub async fn over(line: Line, name: &str) -> Result<Node, Refusal> {
        let mut client = NodeServiceClient::with_origin(line.clone(), Uri::from_static("https://127.0.0.1/"))
            .max_decoding_message_size(RECEIVE_LIMIT);
        let (up, outgoing) = mpsc::channel(8);
        let answer = timeout(SOON, client.session(ReceiverStream::new(outgoing))).await.expect("an answer");
        let down = match answer {
            Ok(down) => down.into_inner(),
            // A connection that was closed under the call is none.
            Err(status) if status.metadata().is_empty() && std::error::Error::source(&status).is_some() => {
                return Err(Refusal::Connection);
            }
            Err(status) => return Err(Refusal::Call(status)),
        };
        Ok(Node { name: name.to_owned(), up: Some(up), down, line })
    }

    // ---- saying ---------------------------------------------------------------------------------------

    /// Says this; what is said to a stream that is over is lost.
    pub async fn say(&self, body: Up) {
        if let Some(up) = &self.up {
            let _ = up.send(NodeMessage { body: Some(body) }).await;
        }
    }

    /// A message without anything in it that the gateway knows.
    pub async fn say_nothing(&self) {
        if let Some(up) = &self.up {
            let _ = up.send(NodeMessage { body: None }).await;
        }
    }

    /// A report of the node itself, as text.
    pub async fn say_of_itself(&self, json: impl Into<String>) {
        self.say(Up::Status(NodeStatus { node: json.into().into_bytes().into() })).await;
    }

    /// What agents say with every heartbeat.
    pub async fn beat(&self) {
        self.say_of_itself(heartbeat(&self.name).to_string()).await;
    }

    /// A report of a workload in the middle of a pass.
    pub async fn report(&self, report: AppStatus) {
        self.say(Up::AppStatus(report)).await;
    }

    /// A whole pass: what it says of each workload, and what it closes with.
    pub async fn pass(&self, reports: impl IntoIterator<Item = AppStatus>) {
        for report in reports {
            self.report(report).await;
        }
        self.say(Up::NodeUsage(NodeUsage::default())).await;
    }

    pub async fn chunk(&self, chunk: LogChunk) {
        self.say(Up::LogChunk(chunk)).await;
    }

    // ---- hearing --------------------------------------------------------------------------------------

    /// The next message; how the stream ended, when it is over.
    pub async fn hear(&mut self) -> Result<Down, Option<Status>> {
        self.hear_within(SOON).await.expect("a message or an end")
    }

    /// `None`: neither a message nor an end.
    async fn hear_within(&mut self, within: Duration) -> Option<Result<Down, Option<Status>>> {
        let heard = timeout(within, self.down.message()).await.ok()?;
        Some(match heard {
            Ok(Some(message)) => Ok(message.body.expect("a body that agents know")),
            Ok(None) => Err(None),
            Err(status) => Err(Some(status)),
        })
    }

    /// The next message, which has to be a push.
    pub async fn push(&mut self) -> Push {
        match self.hear().await {
            Ok(Down::Desired(desired)) => Push::of(&self.name, desired),
            other => panic!("{}: not a push: {other:?}", self.name),
        }
    }

    /// The first push of which this holds; others before it are passed over, as agents do.
    pub async fn push_where(&mut self, holds: impl Fn(&Push) -> bool) -> Push {
        let deadline = Instant::now() + SOON;
        let mut last = None;
        loop {
            match timeout_at(deadline, self.hear()).await {
                Ok(Ok(Down::Desired(desired))) => {
                    let push = Push::of(&self.name, desired);
                    if holds(&push) {
                        return push;
                    }
                    last = Some(push);
                }
                Ok(Ok(_)) => {}
                Ok(Err(end)) => panic!("{}: the stream is over: {end:?}", self.name),
                Err(_) => panic!("{}: not pushed; the last one: {last:?}", self.name),
            }
        }
    }

    pub async fn log_request(&mut self) -> LogRequest {
        loop {
            match self.hear().await {
                Ok(Down::LogRequest(request)) => return request,
                Ok(_) => {}
                Err(end) => panic!("{}: the stream is over: {end:?}", self.name),
            }
        }
    }

    /// The id of the log that is no longer wanted.
    pub async fn log_cancel(&mut self) -> String {
        loop {
            match self.hear().await {
                Ok(Down::LogCancel(cancel)) => return cancel.id,
                Ok(_) => {}
                Err(end) => panic!("{}: the stream is over: {end:?}", self.name),
            }
        }
    }

    /// Hears nothing for a while, and the stream stays open.
    pub async fn hears_nothing(&mut self) {
        if let Some(heard) = self.hear_within(A_WHILE).await {
            panic!("{}: this was not to come: {heard:?}", self.name);
        }
    }

    /// The code with which the stream ends; `Ok` for a clean end. Messages before it are passed over.
    pub async fn end(&mut self) -> Code {
        let deadline = Instant::now() + SOON;
        loop {
            match timeout_at(deadline, self.hear()).await.expect("an end of the stream") {
                Ok(_) => {}
                Err(end) => return end.map_or(Code::Ok, |status| status.code()),
            }
        }
    }

    /// Nothing has come that was not heard yet.
    pub async fn is_quiet(&mut self) -> bool {
        self.hear_within(Duration::from_millis(1)).await.is_none()
    }

    /// The stream is not over, whatever was heard last.
    pub async fn is_open(&mut self) -> bool {
        loop {
            match self.hear_within(Duration::from_millis(1)).await {
                None => return true,
                Some(Ok(_)) => {}
                Some(Err(_)) => return false,
            }
        }
    }

    // ---- leaving --------------------------------------------------------------------------------------

    /// Says that nothing more comes, as an agent that is told to stop.
    pub fn finish(&mut self) {
        self.up = None;
    }

    /// Goes away as a process that is killed: the kernel closes its connection.
    pub fn vanish(self) {
        self.line.driver.abort();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.line.driver.abort();
    }
}

/// What an agent says of a machine with 4 CPUs and 8 GiB.
pub fn heartbeat(name: &str) -> Value {
    serde_json::json!({
        "kind": "Node", "apiVersion": "horchestra.io/v1", "metadata": {"name": name}, "spec": {},
        "status": {
            "capacity": {"cpu": "4", "memory": "8388608Ki"}, "allocated": {}, "os": "Debian (6.1, amd64)",
            "ip": "127.0.0.1", "ready": true, "heartbeat": "2024-01-01T00:00:00Z", "runtimes": ["userns"],
            "platform": {"os": "linux", "arch": "amd64"},
        },
    })
}

/// A report about a workload.
pub fn report(namespace: &str, name: &str, phase: &str, observed_generation: i64) -> AppStatus {
    AppStatus {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        phase: phase.to_owned(),
        observed_generation,
        ..AppStatus::default()
    }
}
