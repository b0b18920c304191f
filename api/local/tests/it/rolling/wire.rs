//! Clients that are as strict as clients may be: a connection may be closed on them, and a request that got no answer is
//! sent again on another. Everything else that goes wrong is written down.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;

/// For how long a request may find nobody. A replica that is being replaced is passed over by the balancer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happened to all clients.
#[derive(Default)]
pub struct Tally {
    pub requests: AtomicUsize,
    /// Requests that were sent again, since their connection ended without an answer.
    pub repeated: AtomicUsize,
    /// Connections that ended after an answer had said so.
    pub announced: AtomicUsize,
    /// Connections of HTTP/2 that ended with a goodbye.
    pub goodbyes: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Tally {
    pub fn fail(&self, what: impl Into<String>) {
        self.failures.lock().push(what.into());
    }

    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().clone()
    }
}

fn count(of: &AtomicUsize) {
    of.fetch_add(1, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    One,
    Two,
}

/// Where everybody goes, and as whom.
#[derive(Clone)]
pub struct Wire {
    address: SocketAddr,
    one: TlsConnector,
    two: TlsConnector,
    pub tally: Arc<Tally>,
}

impl Wire {
    pub fn new(address: SocketAddr, pki: &Path) -> Wire {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let connector = |protocols: &[&[u8]]| {
            let mut roots = rustls::RootCertStore::empty();
            for root in CertificateDer::pem_file_iter(pki.join("ca.crt")).unwrap() {
                roots.add(root.unwrap()).unwrap();
            }
            let chain =
                CertificateDer::pem_file_iter(pki.join("admin.crt")).unwrap().map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(pki.join("admin.key")).unwrap();
            let mut config = rustls::ClientConfig::builder()
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
                .unwrap();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Wire { address, one: connector(&[]), two: connector(&[b"h2"]), tally: Arc::default() }
    }

    pub async fn connect(&self, protocol: Protocol) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        Ok(match protocol {
            Protocol::One => {
                let tls = self.one.connect(name, stream).await?;
                let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
                Connection { sender: Sender::One(sender), ended: tokio::spawn(connection) }
            }
            Protocol::Two => {
                let tls = self.two.connect(name, stream).await?;
                let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
                Connection { sender: Sender::Two(sender), ended: tokio::spawn(connection) }
            }
        })
    }

    /// Half of a request that creates `object`, to this very replica. The rest is up to the caller.
    pub async fn half(&self, replica: SocketAddr, path: &str, object: &Value) -> Half {
        let stream = TcpStream::connect(replica).await.unwrap();
        let name = ServerName::IpAddress(replica.ip().into());
        let tls = self.one.connect(name, stream).await.unwrap();
        let (mut requests, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        let mut first = object.to_string().into_bytes();
        let rest = first.split_off(first.len() / 2);
        let (sender, body) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
        let request = Request::post(path)
            .header("host", replica.to_string())
            .header("content-type", "application/json")
            .body(StreamBody::new(ReceiverStream::new(body)))
            .unwrap();
        let answer = tokio::spawn(async move { requests.send_request(request).await });
        sender.send(Ok(Frame::data(first.into()))).await.unwrap();
        Half { sender, rest: rest.into(), answer }
    }

    pub fn request(&self, method: &Method, path: &str, body: Option<&Value>) -> Request<Full<Bytes>> {
        let content_type =
            if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("host", self.address.to_string())
            .header("content-type", content_type)
            .body(Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default())))
            .unwrap()
    }
}

/// A request that a replica has begun to read.
pub struct Half {
    sender: mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
    rest: Bytes,
    answer: JoinHandle<hyper::Result<Response<Incoming>>>,
}

impl Half {
    /// Sends the rest: the code of the answer, and whether it says that the connection ends.
    pub async fn finish(self) -> hyper::Result<(u16, bool)> {
        let _ = self.sender.send(Ok(Frame::data(self.rest))).await;
        drop(self.sender);
        let response = self.answer.await.unwrap()?;
        Ok((response.status().as_u16(), says_the_end(&response)))
    }
}

fn says_the_end<T>(response: &Response<T>) -> bool {
    response.headers().get("connection").is_some_and(|value| value == "close")
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

pub struct Connection {
    sender: Sender,
    ended: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    pub async fn send(&mut self, mut request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::One(sender) => {
                let path = request.uri().path_and_query().unwrap().as_str().parse().unwrap();
                *request.uri_mut() = path;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Two(sender) => {
                request.headers_mut().remove("host");
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Looks how a connection ended that takes no more requests. One of HTTP/2 has to be said goodbye to.
    pub async fn bury(self, tally: &Tally) {
        let Connection { sender, ended } = self;
        let two = matches!(sender, Sender::Two(_));
        // Whoever waits for the end must not keep it open.
        drop(sender);
        match tokio::time::timeout(PATIENCE, ended).await {
            Ok(Ok(Ok(()))) if two => count(&tally.goodbyes),
            Ok(Ok(Err(error))) if two => {
                tally.fail(format!("a connection of HTTP/2 ended without a goodbye: {error:?}"));
            }
            Ok(_) => {}
            Err(_) => tally.fail("a connection that takes no requests does not end"),
        }
    }
}

/// The answer to a request, and whether it had to be sent more than once.
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub again: bool,
}

/// Somebody who sends one request after the other over a connection that is kept.
pub struct Caller {
    wire: Wire,
    protocol: Protocol,
    connection: Option<Connection>,
}

impl Caller {
    pub fn new(wire: &Wire, protocol: Protocol) -> Caller {
        Caller { wire: wire.clone(), protocol, connection: None }
    }

    /// `None`: it failed, which is written down.
    pub async fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Option<Answer> {
        let tally = Arc::clone(&self.wire.tally);
        let deadline = Instant::now() + PATIENCE;
        let mut sent = 0;
        while Instant::now() < deadline {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => match self.wire.connect(self.protocol).await {
                    Ok(connection) => connection,
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
            };
            sent += 1;
            let Ok(response) = connection.send(self.wire.request(&method, path, body)).await else {
                count(&tally.repeated);
                connection.bury(&tally).await;
                continue;
            };
            count(&tally.requests);
            let ends = says_the_end(&response);
            let (parts, body) = response.into_parts();
            let text = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) => {
                    tally.fail(format!("{method} {path}: the answer breaks off: {error:?}"));
                    return None;
                }
            };
            if ends {
                count(&tally.announced);
                connection.bury(&tally).await;
            } else {
                self.connection = Some(connection);
            }
            let body = serde_json::from_slice(&text).unwrap_or(Value::Null);
            return Some(Answer { code: parts.status.as_u16(), body, again: sent > 1 });
        }
        tally.fail(format!("{method} {path}: nobody answers"));
        None
    }
}
