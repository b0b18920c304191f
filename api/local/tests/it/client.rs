//! A client that does what client-go's reflectors do: list, then watch from there, then watch again from the
//! last revision seen, whatever happens to the connection.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

pub const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";

#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Client {
    pub fn new(address: SocketAddr, pki: &Path) -> Client {
        let chain =
            CertificateDer::pem_file_iter(pki.join("admin.crt")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(pki.join("admin.key")).unwrap();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots(pki))
            .with_client_auth_cert(chain, key)
            .unwrap();
        Client { address, connector: TlsConnector::from(Arc::new(config)) }
    }

    /// One without a certificate.
    pub fn anonymous(address: SocketAddr, pki: &Path) -> Client {
        let config = rustls::ClientConfig::builder().with_root_certificates(roots(pki)).with_no_client_auth();
        Client { address, connector: TlsConnector::from(Arc::new(config)) }
    }

    /// A request on a connection of its own.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Response<Incoming>> {
        self.send_as(method, path, body, None).await
    }

    /// As [`Client::send`], with a token.
    pub async fn send_as(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> anyhow::Result<Response<Incoming>> {
        let token = token.map(|token| ("authorization", format!("Bearer {token}")));
        self.send_with(method, path, body, token.as_slice()).await
    }

    /// As [`Client::send`], with further headers.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, String)],
    ) -> anyhow::Result<Response<Incoming>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let tls = self.connector.connect(ServerName::IpAddress(self.address.ip().into()), stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("content-type", content_type);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default())))?;
        Ok(sender.send_request(request).await?)
    }

    /// The answer's code and JSON.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(u16, Value)> {
        let response = self.send(method, path, body).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((code, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// The answer's code and bytes to a body that need not be JSON.
    pub async fn call_raw(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let tls = self.connector.connect(ServerName::IpAddress(self.address.ip().into()), stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("content-type", content_type)
            .body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        let code = response.status().as_u16();
        Ok((code, response.into_body().collect().await?.to_bytes()))
    }

    /// The code of the answer to a DELETE over this connection.
    pub async fn delete_over(&self, stream: TcpStream, path: &str) -> u16 {
        let tls =
            self.connector.connect(ServerName::IpAddress(self.address.ip().into()), stream).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::delete(path).header("host", self.address.to_string());
        let request = request.body(Full::new(Bytes::new())).unwrap();
        sender.send_request(request).await.unwrap().status().as_u16()
    }

    /// As a careful client: again after a lost connection or a 429/5xx, until the deadline.
    pub async fn call_patiently(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let attempt =
                tokio::time::timeout(Duration::from_secs(10), self.call(method.clone(), path, body)).await;
            match attempt {
                Ok(Ok((code, body))) if code != 429 && code < 500 => return (code, body),
                other => assert!(Instant::now() < deadline, "no answer to {method} {path}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A page of a listener without TLS.
pub async fn page(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request =
        Request::builder().uri(path).header("host", address.to_string()).body(Full::new(Bytes::new()))?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn roots(pki: &Path) -> rustls::RootCertStore {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(pki.join("ca.crt")).unwrap() {
        roots.add(root.unwrap()).unwrap();
    }
    roots
}

/// One connection that is kept, for many requests in a row.
pub struct Session {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    host: String,
}

impl Session {
    pub async fn open(client: &Client) -> Session {
        let stream = TcpStream::connect(client.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::IpAddress(client.address.ip().into());
        let tls = client.connector.connect(name, stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        Session { sender, host: client.address.to_string() }
    }

    pub async fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", content_type)
            .body(Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default())))
            .unwrap();
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

/// One event as a reflector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: String,
    pub name: String,
    pub revision: i64,
}

/// A list and everything that was watched after it.
pub struct Reflector {
    pub listed_at: i64,
    pub events: Vec<Seen>,
    /// How often the stream had to be opened again.
    pub reconnects: usize,
}

impl Reflector {
    /// Lists, and watches until an event's revision reaches what `until` says (asked after each event and
    /// twice a second). A 410 or a second list is a failure: nothing may be lost.
    pub async fn run(client: &Client, until: impl Fn() -> Option<i64>) -> Reflector {
        let (code, list) = client.call_patiently(Method::GET, APPLICATIONS, None).await;
        assert_eq!(code, 200, "{list}");
        let listed_at: i64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let mut reflector = Reflector { listed_at, events: Vec::new(), reconnects: 0 };
        let mut revision = listed_at;
        loop {
            let path = format!("{APPLICATIONS}?watch=1&resourceVersion={revision}&allowWatchBookmarks=true");
            if let Ok(response) = client.send(Method::GET, &path, None).await
                && response.status() == 200
                && reflector.follow(response.into_body(), &mut revision, &until).await
            {
                return reflector;
            }
            if until().is_some_and(|last| revision >= last) {
                return reflector;
            }
            reflector.reconnects += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// True when the end was reached.
    async fn follow(
        &mut self,
        mut body: Incoming,
        revision: &mut i64,
        until: &impl Fn() -> Option<i64>,
    ) -> bool {
        let mut buffer = Vec::new();
        loop {
            if until().is_some_and(|last| *revision >= last) {
                return true;
            }
            let frame = match tokio::time::timeout(Duration::from_millis(500), body.frame()).await {
                Err(_) => continue,
                Ok(Some(Ok(frame))) => frame,
                Ok(_) => return false,
            };
            buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                let kind = event["type"].as_str().unwrap().to_owned();
                assert_ne!(kind, "ERROR", "the watch failed: {event}");
                let metadata = &event["object"]["metadata"];
                *revision = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
                if kind != "BOOKMARK" {
                    let name = metadata["name"].as_str().unwrap().to_owned();
                    self.events.push(Seen { kind, name, revision: *revision });
                }
            }
        }
    }
}
