//! A small HTTPS client for an API of ours.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Where to call, and as whom.
#[derive(Clone)]
pub struct Client {
    /// host:port, as resolved anew for every connection.
    address: String,
    server: ServerName<'static>,
    connector: TlsConnector,
}

impl Client {
    /// `certificate`, `key` and `authority` are PEM files.
    pub fn new(address: SocketAddr, authority: &Path, certificate: &Path, key: &Path) -> Result<Client> {
        Client::to(&address.to_string(), authority, certificate, key)
    }

    /// The same for `host:port`, where the host may be a name.
    pub fn to(address: &str, authority: &Path, certificate: &Path, key: &Path) -> Result<Client> {
        let host = address
            .rsplit_once(':')
            .map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'))
            .with_context(|| format!("{address:?} is no HOST:PORT"))?;
        let server = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host:?} is neither a name nor an address"))?;
        let mut roots = rustls::RootCertStore::empty();
        for root in CertificateDer::pem_file_iter(authority).context("reading the CA")? {
            roots.add(root?)?;
        }
        let chain = CertificateDer::pem_file_iter(certificate)
            .context("reading the administrator's certificate")?
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(key).context("reading the administrator's key")?;
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Client { address: address.to_owned(), server, connector })
    }

    /// A connection for many calls, one after the other.
    pub async fn open(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let tls = self.connector.connect(self.server.clone(), stream).await?;
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        Ok(Connection { sender, host: self.address.clone(), tasks })
    }

    /// One call on a connection of its own.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        self.open().await?.call(method, path, body).await
    }

    /// GET that must succeed.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let (status, body) = self.call(Method::GET, path, None).await?;
        if !status.is_success() {
            bail!("GET {path}: {status}: {}", body["message"].as_str().unwrap_or("no message"));
        }
        Ok(body)
    }
}

/// An open connection; dropping it closes it.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    /// What drives the connection.
    tasks: JoinSet<Result<(), hyper::Error>>,
}

impl Connection {
    /// The answer's code and JSON (`Null` when it is not JSON). A PATCH is a merge patch.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let (status, body) = self.exchange(method, path, bytes.into()).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// The answer's code and bytes.
    pub async fn exchange(&mut self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        match response.into_body().collect().await {
            Ok(body) => Ok((status, body.to_bytes())),
            Err(error) => Err(self.cause(error).await),
        }
    }

    /// The bytes of a GET that must succeed, as they come to a client that takes gzip.
    pub async fn squeezed(&mut self, path: &str) -> Result<Bytes> {
        let request = Request::get(path)
            .header("host", &self.host)
            .header("accept-encoding", "gzip")
            .body(Full::default())?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        if !answer.status().is_success() {
            bail!("GET {path}: {}", answer.status());
        }
        Ok(answer.into_body().collect().await?.to_bytes())
    }

    /// The answer as it begins, for what goes on.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("accept", "application/json")
            .header("content-type", content_type)
            .body(Full::new(body))?;
        let answer = match self.sender.ready().await {
            Ok(()) => self.sender.send_request(request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(response) => Ok(response),
            Err(error) => Err(self.cause(error).await),
        }
    }

    /// What drives the connection knows better why it ended.
    async fn cause(&mut self, error: hyper::Error) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(cause))) => cause.into(),
            _ => error.into(),
        }
    }
}
