//! A small HTTPS client for the stack's own API, with the administrator's certificate.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// One request, one connection: this client is for a handful of calls.
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Client {
    /// `certificate`, `key` and `authority` are PEM files.
    pub fn new(address: SocketAddr, authority: &Path, certificate: &Path, key: &Path) -> Result<Client> {
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
        Ok(Client { address, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// The answer's code and JSON (`Null` when it is not JSON).
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let stream = TcpStream::connect(self.address).await?;
        let server = ServerName::IpAddress(self.address.ip().into());
        let tls = self.connector.connect(server, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let exchange = async {
            let bytes = body.map(Value::to_string).unwrap_or_default();
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("host", self.address.to_string())
                .header("accept", "application/json")
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(bytes)))?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
        };
        tokio::pin!(exchange);
        tokio::pin!(connection);
        tokio::select! {
            answer = &mut exchange => answer,
            ended = &mut connection => {
                ended?;
                exchange.await
            }
        }
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
