//! A small HTTP client that shows everything: status, headers, raw bytes, and streams piece by piece.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Nothing in these tests takes longer.
pub const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

pub const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Every request goes over a connection of its own, unless one is [kept](Client::keep).
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    protocol: Protocol,
    kept: Option<http2::SendRequest<Full<Bytes>>>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    /// The body of an answer with this code, or what came instead.
    pub fn json_of(&self, code: u16) -> Result<Value, String> {
        if self.status == code { Ok(self.json()) } else { Err(format!("{self:?}")) }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    pub fn headers_of(&self, name: &str) -> Vec<String> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?").to_owned()).collect()
    }

    /// The reason of a Status; asserts that the body is a consistent one.
    pub fn reason(&self) -> String {
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{self:?}");
        assert_eq!(status["apiVersion"], "v1", "{self:?}");
        assert_eq!(status["status"], "Failure", "{self:?}");
        assert_eq!(status["code"], self.status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/json");
        status["reason"].as_str().unwrap_or("").to_owned()
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or("").to_owned()
    }
}

impl Client {
    pub fn new(address: SocketAddr, tls: Arc<ClientConfig>, protocol: Protocol) -> Client {
        Client { address, tls, protocol, kept: None }
    }

    /// A client whose requests share one HTTP/2 connection, for tests that send thousands.
    pub async fn keep(&self) -> Client {
        assert_eq!(self.protocol, Protocol::Http2);
        let io = TokioIo::new(self.connect().await.expect("a connection"));
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        tokio::spawn(connection);
        Client { kept: Some(sender), ..self.clone() }
    }

    pub async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        self.handshake(stream).await
    }

    /// TLS over a connection that something was already written to.
    pub async fn handshake(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::from(self.address.ip());
        TlsConnector::from(self.tls.clone()).connect(name, stream).await
    }

    pub fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let uri = match self.protocol {
            Protocol::Http1 => path.to_owned(),
            Protocol::Http2 => format!("https://{}{path}", self.address),
        };
        let mut request = Request::builder().method(method).uri(uri);
        if self.protocol == Protocol::Http1 {
            request = request.header(header::HOST, self.address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).unwrap()
    }

    /// Sends a request and returns the head of the answer with its body still coming.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        if let Some(kept) = &self.kept {
            return kept.clone().send_request(request).await.map_err(|error| format!("{error:?}"));
        }
        let io = TokioIo::new(self.connect().await.map_err(|error| error.to_string())?);
        let answer = match self.protocol {
            Protocol::Http1 => {
                let (mut sender, connection) =
                    http1::handshake(io).await.map_err(|error| error.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
            Protocol::Http2 => {
                let (mut sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.map_err(|error| error.to_string())?;
                tokio::spawn(connection);
                sender.send_request(request).await
            }
        };
        answer.map_err(|error| format!("{error:?}"))
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let request = self.request(method, path, headers, body.into());
        let exchange = async {
            let answer = self.open(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.unwrap_or_else(|error| panic!("{path}: {error}")).to_bytes();
            Reply { status: parts.status.as_u16(), headers: parts.headers, body }
        };
        tokio::time::timeout(DEADLINE, exchange).await.unwrap_or_else(|_| panic!("{path}: no answer"))
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.send(Method::GET, path, &[("accept", accept)], Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Reply {
        let headers = [("content-type", "application/merge-patch+json")];
        self.send(Method::PATCH, path, &headers, body.to_string()).await
    }

    pub async fn json_patch(&self, path: &str, body: &Value) -> Reply {
        let headers = [("content-type", "application/json-patch+json")];
        self.send(Method::PATCH, path, &headers, body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], Bytes::new()).await
    }

    /// Opens a stream of lines.
    pub async fn lines(&self, path: &str, headers: &[(&str, &str)]) -> Lines {
        let request = self.request(Method::GET, path, headers, Bytes::new());
        let answer = tokio::time::timeout(DEADLINE, self.open(request))
            .await
            .expect("an answer")
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let (parts, body) = answer.into_parts();
        assert_eq!(parts.status, 200, "{path}");
        Lines { headers: parts.headers, body, buffer: BytesMut::new() }
    }
}

/// A GET as a careful client sends it: again after "not now", until the deadline.
pub async fn patiently(client: &Client, path: &str) -> Reply {
    let started = std::time::Instant::now();
    loop {
        let reply = client.get(path).await;
        if !matches!(reply.status, 429 | 503) || started.elapsed() > DEADLINE {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How a stream went on.
#[derive(Debug, PartialEq)]
pub enum Next {
    Line(String),
    /// The stream ended in order.
    End,
    /// The stream was torn.
    Torn,
}

/// A stream of lines.
pub struct Lines {
    pub headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
}

impl Lines {
    /// The next line or the end.
    pub async fn next(&mut self) -> Next {
        tokio::time::timeout(DEADLINE, self.read()).await.expect("a line or an end")
    }

    /// The next frame of a watch.
    pub async fn frame(&mut self) -> Value {
        match self.next().await {
            Next::Line(line) => serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")),
            other => panic!("no frame but {other:?}"),
        }
    }

    /// Type and name of the next frame.
    pub async fn event(&mut self) -> (String, String) {
        let frame = self.frame().await;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        (text(&frame["type"]), text(&frame["object"]["metadata"]["name"]))
    }

    async fn read(&mut self) -> Next {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(at + 1);
                return Next::Line(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Next::End,
                None => {
                    let rest = self.buffer.split();
                    return Next::Line(String::from_utf8_lossy(&rest).into_owned());
                }
                Some(Err(_)) => return Next::Torn,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
