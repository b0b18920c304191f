//! A service with requests in it, and the loop that decides about them.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_auth::identity::{AUTHENTICATED, Credential, NODES};
use horchestra_auth::pki::{Authority, CertificateRequest, Lifetime};
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::certificate_signing_request::CertificateSigningRequest;
use horchestra_core::object::{self, Object};
use horchestra_core::values::{decode_base64, encode_base64};
use horchestra_runtime::{Backoff, Metrics};
use horchestra_service::{
    At, Body, Caller, Observer, Recorder, RequestContext, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::{Attribution, Columns, Draft, Index, Item, MemoryDatabase, Op, Store, StoreOptions};
use horchestra_workers::certificates::metrics::CertificateMetrics;
use horchestra_workers::certificates::reconcile::{NodeCertificates, Retry};
use horchestra_workers::certificates::signer::{Health, SignError, Signer};
use horchestra_workers::substrate::{PassReport, Reconciler, Term};
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub const SOON: Duration = Duration::from_secs(20);
const TERM: Duration = Duration::from_secs(600);

/// The request of somebody who wants a certificate for `name`: PEM, and the key that it is about.
pub fn request_with(name: &str, adorn: impl FnOnce(&mut CertificateParams)) -> (String, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    adorn(&mut params);
    (params.serialize_request(&key).unwrap().pem().unwrap(), key)
}

pub fn request(name: &str) -> String {
    request_with(name, |_| ()).0
}

/// A request whose name was changed after it was signed.
pub fn tampered() -> String {
    let (pem, _) = request_with("node-1", |_| ());
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let mut der = decode_base64(&body).unwrap();
    let at = der.windows(6).position(|window| window == b"node-1").unwrap();
    der[at + 5] = b'2';
    horchestra_auth::pki::pem_block("CERTIFICATE REQUEST", &der)
}

/// The object around a request.
pub fn object(name: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.horchestra.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": encode_base64(pem.as_bytes()), "groups": ["system:masters"]},
    })
}

/// As the agent of a node, with a certificate of this fingerprint.
pub fn agent(node: &str, certificate: &str) -> RequestContext {
    somebody(node, &[NODES], certificate)
}

pub fn operator() -> RequestContext {
    somebody("operator", &["system:masters"], "00")
}

fn somebody(name: &str, groups: &[&str], certificate: &str) -> RequestContext {
    let groups = groups.iter().copied().chain([AUTHENTICATED]).map(str::to_owned).collect();
    let credential =
        Credential::Certificate { fingerprint: certificate.to_owned(), not_after: Timestamp::MAX };
    let identity = Identity { name: name.to_owned(), groups, credential };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

/// Signs with an authority of its own, or does what it is told to; counts what it is asked.
pub struct TestSigner {
    pub authority: Authority,
    script: Mutex<Vec<SignError>>,
    asked: Mutex<Vec<String>>,
}

impl TestSigner {
    pub fn new() -> Arc<TestSigner> {
        Arc::new(TestSigner {
            authority: Authority::generate().unwrap(),
            script: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    /// Fails so many times from now on.
    pub fn fail(&self, times: usize, error: impl Fn() -> SignError) {
        self.script.lock().unwrap().extend((0..times).map(|_| error()));
    }

    pub fn recover(&self) {
        self.script.lock().unwrap().clear();
    }

    /// The names that it was asked to sign for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Signer for TestSigner {
    fn sign<'a>(
        &'a self,
        request: &'a CertificateRequest,
        _: &'a [u8],
    ) -> BoxFuture<'a, Result<String, SignError>> {
        self.asked.lock().unwrap().push(request.common_name.clone());
        let told = self.script.lock().unwrap().pop();
        let signed = match told {
            Some(error) => Err(error),
            None => Ok(self.authority.sign(request, Lifetime::CLIENT).unwrap()),
        };
        Box::pin(std::future::ready(signed))
    }

    fn health(&self) -> Health {
        Health::default()
    }
}

/// Requests and everything around them, on one database.
pub struct World {
    database: MemoryDatabase,
    pub service: Service,
    gates: &'static str,
    pub term: Term,
    pub recorder: Recorder,
}

impl World {
    /// Nodes renew their own certificates where the gate is on.
    pub async fn new(automatic: bool) -> World {
        let gates = if automatic { "AutoNodeCertRotation=true" } else { "" };
        let database = MemoryDatabase::new();
        let service = connect(&database, gates).await;
        let body = Body::Json(json!({"metadata": {"name": "default"}}).to_string().into());
        service.create(&operator(), Kind::Namespace, "", body, &WriteOptions::default()).await.unwrap();
        let term = term(service.store()).await;
        let observer: Observer = Arc::new(|_, _| ());
        let (recorder, task) = Recorder::new(service.clone(), "test", observer, CancellationToken::new());
        tokio::spawn(task);
        World { database, service, gates, term, recorder }
    }

    /// The same database with the gate on.
    pub async fn with_gate(self) -> World {
        let gates = "AutoNodeCertRotation=true";
        let service = connect(&self.database, gates).await;
        World { service, gates, ..self }
    }

    /// Another process on the same database.
    pub async fn replica(&self) -> Service {
        connect(&self.database, self.gates).await
    }

    pub fn reconciler(&self, signer: Option<Arc<dyn Signer>>) -> NodeCertificates {
        let metrics = CertificateMetrics::new(&Metrics::new("test", "0", None));
        let quick = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
        let retry = Retry { request: quick.clone(), signer: quick };
        NodeCertificates::new(self.service.clone(), self.recorder.clone(), signer, metrics).with_retry(retry)
    }

    /// One pass of a loop that has just begun, over all that was acknowledged.
    pub async fn pass(&self, signer: Option<&Arc<TestSigner>>) -> PassReport {
        self.pass_of(&mut self.reconciler(signer.map(|signer| Arc::clone(signer) as Arc<dyn Signer>))).await
    }

    pub async fn pass_of(&self, reconciler: &mut NodeCertificates) -> PassReport {
        self.service.store().fresh().await.unwrap();
        reconciler.pass(&self.term).await.unwrap()
    }

    pub async fn create(&self, who: &RequestContext, name: &str, pem: &str) {
        let body = Body::Json(object(name, pem).to_string().into());
        let kind = Kind::CertificateSigningRequest;
        self.service.create(who, kind, "", body, &WriteOptions::default()).await.unwrap();
    }

    /// Stores an object as it is, as an import does, or a control plane of another time did.
    pub async fn plant(&self, mut planted: Value) {
        let uid = Uuid::new_v4();
        planted["metadata"]["uid"] = json!(uid.to_string());
        let kind = Kind::CertificateSigningRequest;
        let phase = planted["status"]["phase"].as_str().map(str::to_owned);
        let planted = Object::from_value(planted).unwrap();
        let draft = Draft {
            key: key(planted.name()),
            uid,
            generation: 1,
            deleting: false,
            body: object::encode(kind, &planted),
            managed: None,
            index: Index::default(),
            columns: Columns { phase, ..Columns::default() },
            edges: Vec::new(),
        };
        let who =
            Attribution { user: "test".into(), verb: "import".into(), audit_id: Uuid::new_v4(), trace: None };
        let item = Item { ops: vec![Op::Create(draft)], guards: Vec::new(), who };
        self.service.store().commit(item).await.unwrap();
    }

    pub async fn get(&self, name: &str) -> Option<Value> {
        let entry = self.service.get(&key(name), At::Fresh).await.ok()?;
        Some(entry.object().unwrap().into_value())
    }

    pub async fn status(&self, name: &str) -> Value {
        self.get(name).await.unwrap()["status"].clone()
    }

    /// The certificate that a request came to.
    pub async fn certificate(&self, name: &str) -> CertificateDer<'static> {
        let status = self.status(name).await;
        assert_eq!(status["phase"], "Approved", "{status}");
        let pem = decode_base64(status["certificate"].as_str().unwrap()).unwrap();
        CertificateDer::from_pem_slice(&pem).unwrap()
    }

    pub async fn names(&self) -> Vec<String> {
        let snapshot = self.service.store().fresh().await.unwrap();
        snapshot.list(Kind::CertificateSigningRequest, None).map(|entry| entry.key.name.clone()).collect()
    }

    /// Messages of the Events with this reason, and what they are about.
    pub async fn told(&self, reason: &str) -> Vec<(String, String)> {
        let snapshot = self.service.store().fresh().await.unwrap();
        snapshot
            .list(Kind::Event, None)
            .map(|entry| entry.object().unwrap().into_value())
            .filter(|event| event["reason"] == reason)
            .map(|event| {
                let about = &event["involvedObject"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (format!("{}/{}", text(&about["kind"]), text(&about["name"])), text(&event["message"]))
            })
            .collect()
    }
}

async fn connect(database: &MemoryDatabase, gates: &str) -> Service {
    let store = Store::open(database.connect(), StoreOptions::default());
    store.ready().await;
    Service::new(store, ServiceConfig { gates: gates.parse().unwrap(), ..ServiceConfig::default() })
}

pub async fn term(store: &Store) -> Term {
    let lease = store.acquire_lease("node-csr", Uuid::new_v4(), TERM).await.unwrap();
    Term { lease: lease.expect("nobody else asks") }
}

pub fn key(name: &str) -> Key {
    Key::cluster(Kind::CertificateSigningRequest, name)
}

/// An object as the rules see it.
pub fn typed(object: Value) -> CertificateSigningRequest {
    Object::from_value(object).unwrap().read().unwrap()
}

pub fn refuses() -> SignError {
    SignError::Refused("as asked".into())
}

pub fn away() -> SignError {
    SignError::Away("as asked".into())
}
