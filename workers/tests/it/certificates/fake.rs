//! A Vault that does what it is told: its HTTP API for logging in with a certificate and for signing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use horchestra_auth::Identity;
use horchestra_auth::identity::NODES;
use horchestra_runtime::tls::{ClientCertificates, KeyPairFiles, ReloadingClient, ReloadingServer};
use horchestra_testkit::TempDir;
use horchestra_workers::certificates::vault::{Vault, VaultConfig};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKey,
};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An authority with a certificate of its own.
pub struct Ca {
    pub pem: String,
    pub issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn root(name: &str) -> Ca {
        let (key, params) = (KeyPair::generate().unwrap(), Ca::params(name));
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    pub fn below(&self, name: &str) -> Ca {
        let (key, params) = (KeyPair::generate().unwrap(), Ca::params(name));
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }

    /// A client's certificate and its key.
    pub fn client(&self, name: &str, group: &str, valid: Duration) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = leaf(name, Some(group), valid);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// A certificate for clients, as a well set up role signs it.
pub fn leaf(name: &str, group: Option<&str>, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = OffsetDateTime::now_utc() - Duration::seconds(30);
    params.not_after = OffsetDateTime::now_utc() + valid;
    params
}

/// What the role makes of a request.
pub type Role = Box<dyn Fn(&Asked) -> (String, Vec<String>) + Send + Sync>;

/// A request to sign, as Vault sees it.
pub struct Asked {
    pub common_name: String,
    pub public_key: PublicKey,
    pub ttl: i64,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    pub path: String,
    pub token: String,
    /// Who the client certificate is of.
    pub client: String,
    pub body: Value,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// Answers in place of the usual ones, by the end of the path; the last first.
    script: Vec<(&'static str, u16, String)>,
    tokens: usize,
    lease: u64,
}

pub struct FakeVault {
    pub folder: TempDir,
    pub root: Ca,
    pub intermediate: Arc<Ca>,
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    role: Arc<Mutex<Role>>,
}

impl FakeVault {
    pub async fn start() -> FakeVault {
        let folder = TempDir::new().unwrap();
        let root = Ca::root("root");
        let intermediate = Arc::new(root.below("intermediate"));
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        write("vault.crt", &params.signed_by(&key, &root.issuer).unwrap().pem());
        write("vault.key", &key.serialize_pem());
        write("ca.crt", &root.pem);
        let (certificate, key) = root.client("workers-1", "vault-clients", Duration::days(90));
        write("client.crt", &certificate);
        write("client.key", &key);

        let at = |name: &str| folder.path().join(name);
        let pair = KeyPairFiles { certificate: at("vault.crt"), key: at("vault.key") };
        let clients = ClientCertificates::Required { ca: at("ca.crt") };
        let tls = Arc::new(ReloadingServer::load(pair, clients, &[b"h2", b"http/1.1"]).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { lease: 3600, ..State::default() }));
        let role: Arc<Mutex<Role>> = Arc::new(Mutex::new(Box::new(|_| unreachable!("set below"))));
        tokio::spawn(accept(listener, tls, Arc::clone(&state), Arc::clone(&role)));
        let vault = FakeVault { folder, root, intermediate, address, state, role };
        vault.behave();
        vault
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn pair(&self) -> KeyPairFiles {
        KeyPairFiles { certificate: self.path("client.crt"), key: self.path("client.key") }
    }

    /// A client of it.
    pub fn client(&self) -> Arc<Vault> {
        let tls = ReloadingClient::load(Some(self.pair()), self.path("ca.crt"), &[b"http/1.1"]).unwrap();
        Arc::new(Vault::new(self.config(), Arc::new(tls)).unwrap())
    }

    pub fn config(&self) -> VaultConfig {
        VaultConfig {
            url: format!("https://{}", self.address),
            mount: "pki_int".to_owned(),
            auth_path: "cert".to_owned(),
            auth_role: Some("workers".to_owned()),
        }
    }

    /// Signs as it should from now on.
    pub fn behave(&self) {
        let (intermediate, root) = (Arc::clone(&self.intermediate), self.root.pem.clone());
        self.sign_with(move |asked| {
            let params = leaf(&asked.common_name, Some(NODES), Duration::seconds(asked.ttl));
            let leaf = params.signed_by(&asked.public_key, &intermediate.issuer).unwrap();
            (leaf.pem(), vec![intermediate.pem.clone(), root.clone()])
        });
    }

    pub fn sign_with(&self, role: impl Fn(&Asked) -> (String, Vec<String>) + Send + Sync + 'static) {
        *self.role.lock().unwrap() = Box::new(role);
    }

    /// Answers the next call to a path with this end so.
    pub fn answer(&self, end: &'static str, code: u16, body: impl Into<String>) {
        self.state.lock().unwrap().script.push((end, code, body.into()));
    }

    /// How long the tokens live that it gives, in seconds.
    pub fn lease(&self, seconds: u64) {
        self.state.lock().unwrap().lease = seconds;
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().unwrap().calls.clone()
    }

    /// How many calls there were to paths with this end.
    pub fn count(&self, end: &str) -> usize {
        self.calls().iter().filter(|call| call.path.ends_with(end)).count()
    }
}

async fn accept(
    listener: TcpListener,
    tls: Arc<ReloadingServer>,
    state: Arc<Mutex<State>>,
    role: Arc<Mutex<Role>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, state, role) = (TlsAcceptor::from(tls.config()), Arc::clone(&state), Arc::clone(&role));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let leaf = &stream.get_ref().1.peer_certificates().unwrap()[0];
            let client = Identity::from_verified(leaf).unwrap().unwrap().name;
            let serve = hyper::service::service_fn(move |request: Request<Incoming>| {
                let (state, role, client) = (Arc::clone(&state), Arc::clone(&role), client.clone());
                async move {
                    let path = request.uri().path().to_owned();
                    let token = request.headers().get("x-vault-token");
                    let token = token.map_or_else(String::new, |token| token.to_str().unwrap().to_owned());
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let body = serde_json::from_slice(&body).unwrap();
                    let call = Call { path, token, client, body };
                    let (code, answer) = respond(call, &state, &role);
                    let response =
                        Response::builder().status(code).body(Full::new(Bytes::from(answer))).unwrap();
                    Ok::<_, std::convert::Infallible>(response)
                }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), serve)
                .await;
        });
    }
}

fn respond(call: Call, state: &Mutex<State>, role: &Mutex<Role>) -> (u16, String) {
    let mut state = state.lock().unwrap();
    state.calls.push(call.clone());
    if let Some(at) = state.script.iter().rposition(|(end, ..)| call.path.ends_with(end)) {
        let (_, code, answer) = state.script.remove(at);
        return (code, answer);
    }
    if call.path.ends_with("/login") {
        state.tokens += 1;
        let answer = json!({"auth": {"client_token": format!("token-{}", state.tokens),
            "lease_duration": state.lease}});
        return (200, answer.to_string());
    }
    if !call.path.contains("/sign/") || call.token.is_empty() {
        return (403, json!({"errors": ["permission denied"]}).to_string());
    }
    let csr = CertificateSigningRequestParams::from_pem(call.body["csr"].as_str().unwrap()).unwrap();
    let ttl = call.body["ttl"].as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap();
    let common_name = call.body["common_name"].as_str().unwrap().to_owned();
    let (certificate, chain) = role.lock().unwrap()(&Asked { common_name, public_key: csr.public_key, ttl });
    (200, json!({"data": {"certificate": certificate, "ca_chain": chain}}).to_string())
}
