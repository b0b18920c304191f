//! The signer that has a Vault sign, over its HTTP API.
//!
//! This process proves itself with a client certificate of its own (Vault's `cert` method), gets a token for it, and
//! asks the `sign` endpoint of a PKI mount, never `sign-verbatim`: the role there bounds what can be signed at all.
//! Of the node's request Vault is sent what was verified here, and what comes back is not believed but checked (see
//! [`super::verify`]), against the authorities that the listeners believe. A token is used again until two thirds of
//! its time are over, or until Vault does not take it any more.
//!
//! Nothing is asked of Vault until there is something to sign. Redirects are not followed: a standby forwards by
//! itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_auth::pki::{CertificateRequest, Lifetime, pem_block};
use horchestra_runtime::tls::ReloadingClient;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::signer::{Health, SignError, Signer};
use super::verify::{self, Expected, Fault};

/// How long one call may take, connecting included.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 2 << 20;
/// Longest part of a refusal that is told, in characters.
const EXCERPT: usize = 256;

/// Where the Vault is, and as what it knows us.
#[derive(Clone, Debug)]
pub struct VaultConfig {
    /// Such as `https://vault.example:8200`.
    pub url: String,
    /// Of the PKI secrets engine.
    pub mount: String,
    /// Of the `cert` auth method.
    pub auth_path: String,
    /// To log in as; without, Vault picks the one that fits the certificate.
    pub auth_role: Option<String>,
}

/// What cannot be right about it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0:?} is not the address of a Vault, such as https://vault.example:8200")]
    Url(String),
    #[error("{value:?} cannot be {what} of a Vault")]
    Name { what: &'static str, value: String },
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no usable certificate in PEM", path.display())]
    Authorities { path: PathBuf },
}

/// Why Vault gave no answer that is of use.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error("Vault cannot be reached")]
    Connect(#[source] io::Error),
    #[error("Vault broke the exchange off")]
    Exchange(#[source] hyper::Error),
    #[error("Vault did not answer in time")]
    Timeout,
    #[error("the answer of Vault is longer than is read")]
    TooLong,
    #[error("Vault answers {status} to {what}: {excerpt}")]
    Answer { what: &'static str, status: StatusCode, excerpt: String },
    #[error("the answer of Vault to {what} has no {member}")]
    Incomplete { what: &'static str, member: &'static str },
    #[error("what is asked of Vault cannot be written as a request")]
    Request(#[source] hyper::http::Error),
}

/// A Vault, and the token that it gave.
pub struct Vault {
    host: String,
    port: u16,
    /// What `Host` says.
    authority: String,
    server: ServerName<'static>,
    /// Path of the API before `/v1`.
    prefix: String,
    config: VaultConfig,
    tls: Arc<ReloadingClient>,
    token: Mutex<Option<Token>>,
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    until: Instant,
}

/// What was signed: the leaf, and what leads up from it.
pub type Signed = (CertificateDer<'static>, Vec<CertificateDer<'static>>);

impl Vault {
    /// Checks the configuration; nothing is dialled.
    pub fn new(config: VaultConfig, tls: Arc<ReloadingClient>) -> Result<Vault, ConfigError> {
        let wrong = || ConfigError::Url(config.url.clone());
        let url: Uri = config.url.parse().map_err(|_| wrong())?;
        let host = url.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let authority = url.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        if url.scheme_str() != Some("https") || url.query().is_some() || authority.contains('@') {
            return Err(wrong());
        }
        let server = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
        for (what, value) in [("a mount", &config.mount), ("the path of an auth method", &config.auth_path)] {
            check_path(what, value)?;
        }
        Ok(Vault {
            port: url.port_u16().unwrap_or(443),
            prefix: url.path().trim_end_matches('/').to_owned(),
            host,
            authority,
            server,
            config,
            tls,
            token: Mutex::new(None),
        })
    }

    /// The files that this process proves itself with.
    pub fn tls(&self) -> &Arc<ReloadingClient> {
        &self.tls
    }

    /// Has a request signed under a role of the mount. What comes back is not checked.
    pub async fn sign(
        &self,
        role: &str,
        request: &CertificateSigningRequestDer<'_>,
        common_name: &str,
        lifetime: Duration,
    ) -> Result<Signed, VaultError> {
        let path = format!("{}/sign/{role}", self.config.mount);
        let body = json!({
            "csr": pem_block("CERTIFICATE REQUEST", request),
            "common_name": common_name,
            "ttl": format!("{}s", lifetime.as_secs()),
        });
        const WHAT: &str = "sign";
        let (token, reused) = self.token().await?;
        let answer = match self.call(WHAT, &path, Some(&token), &body).await {
            // It may have been revoked.
            Err(VaultError::Answer { status: StatusCode::FORBIDDEN, .. }) if reused => {
                self.forget(&token).await;
                let (token, _) = self.token().await?;
                self.call(WHAT, &path, Some(&token), &body).await?
            }
            answer => answer?,
        };
        let incomplete = |member| VaultError::Incomplete { what: WHAT, member };
        let data = &answer["data"];
        let leaf = certificates(&data["certificate"]).pop().ok_or_else(|| incomplete("certificate"))?;
        let listed = data["ca_chain"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut further: Vec<_> = listed.iter().flat_map(certificates).collect();
        if further.is_empty() {
            // A mount that was not given the chain of its authority knows that one alone.
            further = certificates(&data["issuing_ca"]);
        }
        Ok((leaf, further))
    }

    /// A token, and whether it has been used before.
    async fn token(&self) -> Result<(HeaderValue, bool), VaultError> {
        let mut kept = self.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| Instant::now() < token.until) {
            return Ok((token.header.clone(), true));
        }
        const WHAT: &str = "log in";
        let path = format!("auth/{}/login", self.config.auth_path);
        let body = self.config.auth_role.as_ref().map_or_else(|| json!({}), |role| json!({"name": role}));
        let asked = Instant::now();
        let answer = self.call(WHAT, &path, None, &body).await?;
        let text = answer["auth"]["client_token"].as_str().filter(|text| !text.is_empty());
        let mut header = text
            .and_then(|text| HeaderValue::from_str(text).ok())
            .ok_or(VaultError::Incomplete { what: WHAT, member: "client_token" })?;
        header.set_sensitive(true);
        let lease = Duration::from_secs(answer["auth"]["lease_duration"].as_u64().unwrap_or(0));
        *kept = Some(Token { header: header.clone(), until: asked + lease.min(LONGEST_LEASE) * 2 / 3 });
        Ok((header, false))
    }

    async fn forget(&self, token: &HeaderValue) {
        let mut kept = self.token.lock().await;
        if kept.as_ref().is_some_and(|kept| kept.header == *token) {
            *kept = None;
        }
    }

    async fn call(
        &self,
        what: &'static str,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Value,
    ) -> Result<Value, VaultError> {
        let exchange = self.exchange(path, token, body);
        let (status, answer) =
            tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| VaultError::Timeout)??;
        if status != StatusCode::OK {
            return Err(VaultError::Answer { what, status, excerpt: excerpt(&answer) });
        }
        Ok(serde_json::from_slice(&answer).unwrap_or(Value::Null))
    }

    /// One request on a connection of its own: they are rare, and the certificate may be another one by now.
    async fn exchange(
        &self,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Value,
    ) -> Result<(StatusCode, Bytes), VaultError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/v1/{path}", self.prefix))
            .header(HOST, &self.authority)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header("x-vault-token", token);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(VaultError::Request)?;
        let stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(VaultError::Connect)?;
        stream.set_nodelay(true).map_err(VaultError::Connect)?;
        let tls = TlsConnector::from(self.tls.config())
            .connect(self.server.clone(), stream)
            .await
            .map_err(VaultError::Connect)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(VaultError::Exchange)?;
        // Ends with this exchange, however that ends.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let response = sender.send_request(request).await.map_err(VaultError::Exchange)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(|error| {
            match error.downcast::<hyper::Error>() {
                Ok(error) => VaultError::Exchange(*error),
                Err(_) => VaultError::TooLong,
            }
        })?;
        Ok((status, body.to_bytes()))
    }
}

/// Tokens that claim to live longer are fetched anew all the same.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

impl VaultError {
    /// Whether others would fare no better for now.
    fn is_outage(&self) -> bool {
        match self {
            // What it says to one request it need not say to the next.
            VaultError::Answer { what: "sign", status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            VaultError::Incomplete { what: "sign", .. } => false,
            _ => true,
        }
    }
}

impl From<VaultError> for SignError {
    fn from(error: VaultError) -> SignError {
        if error.is_outage() { SignError::Away(error.into()) } else { SignError::Refused(error.into()) }
    }
}

impl From<Fault> for SignError {
    fn from(fault: Fault) -> SignError {
        SignError::Wrong(fault.into())
    }
}

/// All certificates in a text of PEM blocks; none when one of them is broken.
fn certificates(text: &Value) -> Vec<CertificateDer<'static>> {
    let text = text.as_str().unwrap_or_default();
    CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().unwrap_or_default()
}

/// What a refusal says, on one line.
fn excerpt(answer: &[u8]) -> String {
    let errors = serde_json::from_slice::<Value>(answer).ok().and_then(|answer| {
        let errors = answer["errors"].as_array()?;
        Some(errors.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "))
    });
    let text = errors.unwrap_or_else(|| String::from_utf8_lossy(answer).into_owned());
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(EXCERPT).collect()
}

/// A name that stands between slashes: it must not lead anywhere else.
pub fn check_name(what: &'static str, value: &str) -> Result<(), ConfigError> {
    let fine = !value.is_empty()
        && value != "."
        && value != ".."
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if fine { Ok(()) } else { Err(ConfigError::Name { what, value: value.to_owned() }) }
}

fn check_path(what: &'static str, value: &str) -> Result<(), ConfigError> {
    let names: Result<(), ConfigError> = value.split('/').try_for_each(|name| check_name(what, name));
    names.map_err(|_| ConfigError::Name { what, value: value.to_owned() })
}

/// Signs for nodes under one role.
pub struct VaultSigner {
    vault: Arc<Vault>,
    role: String,
    /// File with the authorities that listeners believe clients of.
    authorities: PathBuf,
    lifetime: Lifetime,
}

impl VaultSigner {
    pub fn new(
        vault: Arc<Vault>,
        role: &str,
        authorities: &Path,
        lifetime: Lifetime,
    ) -> Result<VaultSigner, ConfigError> {
        check_name("a role", role)?;
        roots(authorities)?;
        Ok(VaultSigner { vault, role: role.to_owned(), authorities: authorities.to_owned(), lifetime })
    }

    async fn signed(&self, request: &CertificateRequest, pem: &[u8]) -> Result<String, SignError> {
        // What was decided on is what is sent.
        let read = CertificateRequest::from_pem(pem).map_err(|error| SignError::Refused(error.into()))?;
        let der = CertificateSigningRequestDer::from_pem_slice(pem)
            .map_err(|error| SignError::Refused(error.into()))?;
        if read != *request {
            return Err(SignError::Refused("it is not the request that was decided on".into()));
        }
        let lifetime = self.lifetime.duration();
        let (leaf, further) = self.vault.sign(&self.role, &der, &request.common_name, lifetime).await?;
        let now = Timestamp::now();
        verify::verify(&leaf, &Expected::node(request, lifetime), now)?;
        let chain = verify::chain(leaf, further)?;
        // Few and small: read each time, so that they are those of now.
        let authorities = roots(&self.authorities).map_err(|error| SignError::Away(error.into()))?;
        verify::leads_to(&chain, authorities, now)?;
        Ok(chain.iter().map(|certificate| pem_block("CERTIFICATE", certificate)).collect())
    }
}

fn roots(path: &Path) -> Result<RootCertStore, ConfigError> {
    let text = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let added = certificate.ok().and_then(|certificate| roots.add(certificate).ok());
        added.ok_or_else(|| ConfigError::Authorities { path: path.to_owned() })?;
    }
    if roots.is_empty() { Err(ConfigError::Authorities { path: path.to_owned() }) } else { Ok(roots) }
}

impl Signer for VaultSigner {
    fn sign<'a>(
        &'a self,
        request: &'a CertificateRequest,
        pem: &'a [u8],
    ) -> BoxFuture<'a, Result<String, SignError>> {
        Box::pin(self.signed(request, pem))
    }

    fn health(&self) -> Health {
        let tls = self.vault.tls();
        let until = tls.own_until().and_then(|until| Timestamp::try_from(until).ok());
        Health { unusable_files: tls.failing(), until }
    }
}
