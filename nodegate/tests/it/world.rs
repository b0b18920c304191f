//! What the tests stand on: a database, an operator, gateways and nodes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use horchestra_agent::controller::Controller;
use horchestra_agent::identity::Identity as NodeIdentity;
use horchestra_agent::mint::NodeIssuer;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_auth::identity::{Credential, Identity};
use horchestra_auth::pki::{Authority, HostName, Issued, Lifetime};
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, DenyList, KeyRing, SecretKeys};
use horchestra_core::Object;
use horchestra_core::kind::{Key, Kind};
use horchestra_nodegate::gateway::{Gateway, GatewayTls};
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::tokens::Tokens;
use horchestra_proto::node::v1::{AppStatus, DesiredState, NodeUsage, node_message};
use horchestra_runtime::tls::{ClientCertificates, KeyPairFiles, ReloadingServer};
use horchestra_runtime::{Metrics, Tasks};
use horchestra_service::{
    At, Body, Caller, DeleteOptions, ListRequest, Part, Patch, PatchType, RequestContext, Service,
    ServiceConfig, WriteOptions,
};
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::{Backend, Entry, MemoryBackend, MemoryDatabase, Store, StoreOptions};
use horchestra_testkit::{TempDir, Template, TestDatabase, eventually};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use uuid::Uuid;

/// Long enough for anything that is going to happen.
pub const SOON: Duration = Duration::from_secs(20);
/// Long enough to believe that something is not going to happen.
pub const A_WHILE: Duration = Duration::from_millis(600);

pub const NAMESPACE: &str = "team";
/// Where workloads get their addresses from.
pub const ROUTED: &str = "10.244.0.0/16";

/// Where everything is kept.
enum Database {
    Memory(MemoryDatabase),
    Postgres(TestDatabase),
}

impl Database {
    /// A connection of its own; the in-memory one can be broken on demand, the other one closed.
    fn connect(&self) -> (Arc<dyn Backend>, Connected) {
        match self {
            Database::Memory(database) => {
                let backend = database.connect();
                (backend.clone(), Connected::Memory(backend))
            }
            Database::Postgres(database) => {
                let application = format!("gateway {}", Uuid::new_v4());
                let options = Options { application, ..Options::default() };
                let backend = PostgresBackend::open(database.url(), options).unwrap();
                (backend.clone(), Connected::Postgres(backend))
            }
        }
    }
}

/// A gateway's connection to its database.
enum Connected {
    Memory(Arc<MemoryBackend>),
    Postgres(Arc<PostgresBackend>),
}

/// A database, its operator, and the authority that everybody believes.
pub struct World {
    database: Database,
    pub operator: Service,
    pub authority: Authority,
    issuer: NodeIssuer,
    /// What Secrets are sealed with.
    pub keys: Arc<SecretKeys>,
    folder: TempDir,
}

impl World {
    /// In memory, with an empty namespace in it.
    pub async fn new() -> World {
        World::over(Database::Memory(MemoryDatabase::new())).await
    }

    /// The same on PostgreSQL.
    pub async fn on_postgres() -> World {
        let schema = horchestra_store::postgres::fingerprint();
        let template = Template::prepare("nodegate", &schema, async |url| {
            horchestra_store::postgres::migrate_schema(&url).await?;
            Ok(())
        })
        .await
        .unwrap();
        World::over(Database::Postgres(template.database().await.unwrap())).await
    }

    async fn over(database: Database) -> World {
        let _ = horchestra_runtime::crypto::install();
        let store = Store::open(database.connect().0, StoreOptions::default());
        store.ready().await;
        let keys = Arc::new(SecretKeys::from(Arc::new(KeyRing::ephemeral().unwrap())));
        let config = ServiceConfig {
            routed_range: Some(ROUTED.parse().unwrap()),
            ..with_keys(Some(Arc::clone(&keys)))
        };
        let operator = Service::new(store, config);
        let authority = Authority::generate().unwrap();
        let pem = authority.pem().clone();
        let issuer = NodeIssuer::from_pem(&pem.certificate, &pem.key, &pem.certificate).unwrap();
        let folder = TempDir::new().unwrap();
        let world = World { database, operator, authority, issuer, keys, folder };
        world.create(Kind::Namespace, "", json!({"metadata": {"name": NAMESPACE}})).await;
        world
    }

    /// The database of a test in memory, to be put back or replaced.
    pub fn memory(&self) -> &MemoryDatabase {
        match &self.database {
            Database::Memory(database) => database,
            Database::Postgres(_) => panic!("a test in memory"),
        }
    }

    // ---- the operator ---------------------------------------------------------------------------------

    pub fn who(&self) -> RequestContext {
        let credential =
            Credential::Certificate { fingerprint: String::new(), not_after: jiff::Timestamp::MAX };
        let groups = vec!["system:masters".to_owned(), "system:authenticated".to_owned()];
        let identity = Identity { name: "operator".to_owned(), groups, credential };
        let authorizer = Authorizer::new(FixedPolicy::default());
        RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
    }

    pub async fn create(&self, kind: Kind, namespace: &str, object: Value) -> Value {
        let object = Object::from_value(object).unwrap();
        let written = self
            .operator
            .create(&self.who(), kind, namespace, Body::Object(object), &WriteOptions::default())
            .await
            .unwrap_or_else(|status| panic!("{}", status.message));
        written.entry.object().unwrap().into_value()
    }

    /// A Node that an operator made, hence admitted.
    pub async fn create_node(&self, name: &str) -> Value {
        self.create(Kind::Node, "", json!({"metadata": {"name": name}, "spec": {}})).await
    }

    /// An Application pinned to `node`; `spec` is laid over the minimum.
    pub async fn create_app(&self, name: &str, node: &str, spec: Value) -> Value {
        let mut full = json!({"image": "registry.example/app:1", "placement": {"nodeName": node}});
        for (member, value) in spec.as_object().unwrap() {
            full[member] = value.clone();
        }
        self.create(Kind::Application, NAMESPACE, json!({"metadata": {"name": name}, "spec": full})).await
    }

    pub async fn merge(&self, key: &Key, patch: Value) -> Value {
        let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
        let options = WriteOptions::default();
        let written = self.operator.patch(&self.who(), key, Part::Main, patch, &options).await;
        written.unwrap_or_else(|status| panic!("{}", status.message)).entry.object().unwrap().into_value()
    }

    pub async fn delete(&self, key: &Key) -> bool {
        let deleted = self.operator.delete(&self.who(), key, &DeleteOptions::default()).await;
        deleted.unwrap_or_else(|status| panic!("{}", status.message)).erased
    }

    pub async fn uncordon(&self, node: &str) {
        self.operator.cordon(&self.who(), node, false).await.unwrap();
    }

    /// Lets the operator seal with other keys from now on.
    pub fn operate_with(&mut self, keys: Arc<SecretKeys>) {
        self.operator = Service::new(self.operator.store().clone(), with_keys(Some(keys)));
    }

    /// A Secret of the test's namespace with these values.
    pub async fn create_secret(&self, name: &str, values: Value) -> Value {
        self.create(Kind::Secret, NAMESPACE, json!({"metadata": {"name": name}, "stringData": values})).await
    }

    /// One whose values nodes fetch, from this store.
    pub async fn create_vault_secret(&self, name: &str, store: &str) -> Value {
        let annotations =
            json!({"secrets.horchestra.io/store": store, "secrets.horchestra.io/path": "apps/x"});
        let secret =
            json!({"metadata": {"name": name, "annotations": annotations}, "type": "horchestra.io/vault"});
        self.create(Kind::Secret, NAMESPACE, secret).await
    }

    /// A store that nodes log in to in this way.
    pub async fn create_store(&self, name: &str, method: &str) -> Value {
        let spec = json!({"server": "https://vault.example:8200", "auth": {"method": method}});
        self.create(Kind::SecretStore, NAMESPACE, json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// As the database has it now; `Null` when it does not exist.
    pub async fn get(&self, key: &Key) -> Value {
        match self.operator.get(key, At::Fresh).await {
            Ok(entry) => entry.object().unwrap().into_value(),
            Err(status) if status.code() == 404 => Value::Null,
            Err(status) => panic!("{}", status.message),
        }
    }

    pub async fn app(&self, name: &str) -> Value {
        self.get(&app_key(name)).await
    }

    pub async fn node(&self, name: &str) -> Value {
        self.get(&Key::cluster(Kind::Node, name)).await
    }

    /// How many changes there have been, Events left out: those are written beside what they tell of.
    pub async fn revision(&self) -> i64 {
        let changes = self.operator.store().backend().changes(0, 1_000_000).await.unwrap();
        let told = |change: &horchestra_store::Change| change.object_kind() == Kind::Event;
        let counted = changes.rows.iter().filter(|row| !told(&row.change)).count();
        i64::try_from(counted).unwrap()
    }

    /// The database's clock is later by so much. In memory only.
    pub fn advance(&self, by: Duration) {
        match &self.database {
            Database::Memory(database) => database.advance(by),
            Database::Postgres(_) => panic!("a test in memory"),
        }
    }

    /// The messages of the Events of this reason about an object of this name.
    pub async fn told(&self, reason: &str, name: &str) -> Vec<String> {
        let selector = format!("reason={reason},involvedObject.name={name}");
        let request = ListRequest { field_selector: selector, ..ListRequest::of(Kind::Event) };
        let listing = self.operator.list(request).await.unwrap();
        let message = |entry: &Arc<Entry>| entry.object().unwrap().str_at(&["message"]).to_owned();
        listing.entries.iter().map(message).collect()
    }

    // ---- gateways -------------------------------------------------------------------------------------

    /// A gateway with short times.
    pub async fn gateway(&self) -> TestGateway {
        self.gateway_with(|_| ()).await
    }

    pub async fn gateway_with(&self, adjust: impl FnOnce(&mut Settings)) -> TestGateway {
        self.gateway_of(Some(Arc::clone(&self.keys)), Tokens::default(), adjust).await
    }

    /// A gateway with these keys of Secrets, and what it has for tokens.
    pub async fn gateway_of(
        &self,
        keys: Option<Arc<SecretKeys>>,
        tokens: Tokens,
        adjust: impl FnOnce(&mut Settings),
    ) -> TestGateway {
        let millis = Duration::from_millis;
        let nodes = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let internal = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, internal_address) = (nodes.local_addr().unwrap(), internal.local_addr().unwrap());
        let mut settings = Settings {
            internal_address: internal_address.to_string(),
            term: millis(3000),
            renew_every: millis(150),
            margin: millis(500),
            touch_every: millis(100),
            beat_every: millis(50),
            sample_every: millis(50),
            resend_every: None,
            settle: Duration::ZERO,
            first_report: Duration::ZERO,
            holds_every: millis(50),
            pass_quiet: millis(200),
            confirm_after: millis(50),
            end_grace: millis(500),
            drain_over: millis(200),
            routed_range: Some(ROUTED.parse().unwrap()),
            fleet_gap: millis(50),
            address_retry: millis(100),
            ..Settings::default()
        };
        adjust(&mut settings);
        let (backend, connected) = self.database.connect();
        let store = Store::open(backend, StoreOptions::default());
        let service = Service::new(store, with_keys(keys));
        let metrics = Metrics::new("test", "0", None);
        let tasks = Tasks::new(&metrics);
        let tls = self.tls();
        let gateway = Gateway::launch(service, settings, tokens, (nodes, internal), &tls, &metrics, &tasks);
        let authorities = self.authorities();
        let test =
            TestGateway { gateway, connected, address, internal: internal_address, tls, authorities, tasks };
        eventually(SOON, async || test.gateway.gate.readiness()).await;
        test
    }

    fn tls(&self) -> GatewayTls {
        let hosts = [HostName::parse("localhost").unwrap()];
        let server = self.authority.server(&hosts, Lifetime::CLIENT).unwrap();
        let controller = self.authority.controller("horchestra-nodegate", &hosts, Lifetime::CLIENT).unwrap();
        let ca = self.authorities();
        std::fs::write(&ca, &self.authority.pem().certificate).unwrap();
        GatewayTls::load(self.files("server", &server), &ca, self.files("controller", &controller), &ca)
            .unwrap()
    }

    /// What a replica of the API shows.
    pub fn api_tls(&self) -> ReloadingServer {
        let hosts = [HostName::parse("localhost").unwrap()];
        let server = self.authority.server(&hosts, Lifetime::CLIENT).unwrap();
        let ca = self.folder.path().join("api-clients.crt");
        std::fs::write(&ca, &self.authority.pem().certificate).unwrap();
        let clients = ClientCertificates::Optional { ca };
        ReloadingServer::load(self.files("api", &server), clients, &[b"h2", b"http/1.1"]).unwrap()
    }

    /// The file of the authorities that gateways believe.
    fn authorities(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    fn files(&self, name: &str, issued: &Issued) -> KeyPairFiles {
        let path = |ending: &str| -> PathBuf { self.folder.path().join(format!("{name}.{ending}")) };
        std::fs::write(path("crt"), &issued.certificate).unwrap();
        std::fs::write(path("key"), &issued.key).unwrap();
        KeyPairFiles { certificate: path("crt"), key: path("key") }
    }

    // ---- nodes ----------------------------------------------------------------------------------------

    pub fn identity(&self, node: &str) -> NodeIdentity {
        self.issuer.node(node).unwrap()
    }

    pub fn identity_of(&self, name: &str, groups: &[&str]) -> NodeIdentity {
        let minted = self.issuer.mint(name, groups).unwrap();
        let ca = &self.authority.pem().certificate;
        NodeIdentity::from_pem(minted.chain.as_bytes(), minted.key.as_bytes(), ca.as_bytes()).unwrap()
    }

    /// Connects a node; whether it is let in shows on the stream.
    pub async fn connect(&self, gateway: &TestGateway, node: &str) -> ScriptedNode {
        ScriptedNode::connect(&gateway.controller(), &self.identity(node)).await.unwrap()
    }

    /// Connects a node and waits until its session is open.
    pub async fn join(&self, gateway: &TestGateway, node: &str) -> ScriptedNode {
        let scripted = self.connect(gateway, node).await;
        gateway.wait_for_session(node).await;
        scripted
    }
}

/// A gateway under test.
pub struct TestGateway {
    pub gateway: Gateway,
    connected: Connected,
    pub address: SocketAddr,
    pub internal: SocketAddr,
    tls: GatewayTls,
    authorities: PathBuf,
    tasks: Tasks,
}

impl TestGateway {
    /// The gateway's own connection to the database, to be broken.
    pub fn backend(&self) -> &MemoryBackend {
        match &self.connected {
            Connected::Memory(backend) => backend,
            Connected::Postgres(_) => panic!("not a test in memory"),
        }
    }

    pub fn controller(&self) -> Controller {
        Controller::parse(&self.address.to_string()).unwrap()
    }

    /// Lets these authorities, and no others, be believed from now on.
    pub fn believe(&self, authorities: &[&Authority]) {
        let bundle: String = authorities.iter().map(|ca| ca.pem().certificate.as_str()).collect();
        std::fs::write(&self.authorities, bundle).unwrap();
        for listener in [&self.tls.nodes, &self.tls.internal] {
            assert!(listener.reload().unwrap());
        }
    }

    /// Denies certificates of a name that have begun to be valid until then.
    pub fn deny(&self, name: &str, begun_until: jiff::Timestamp) {
        let mut list = DenyList::default();
        list.deny_name(name, begun_until);
        self.tls.nodes.deny(move |leaf| list.denies(leaf));
    }

    pub fn has_session(&self, node: &str) -> bool {
        self.gateway.gate.sessions.get(node).is_some()
    }

    pub async fn wait_for_session(&self, node: &str) {
        eventually(SOON, async || self.has_session(node)).await;
    }

    /// Ends at once, giving nothing up: what kill -9 leaves behind.
    pub async fn crash(self) {
        self.tasks.finish(Duration::ZERO).await;
        // The kernel closes the connections of a process that died.
        if let Connected::Postgres(backend) = &self.connected {
            self.gateway.gate.store.shutdown().await;
            backend.close().await;
        }
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

fn with_keys(secret_keys: Option<Arc<SecretKeys>>) -> ServiceConfig {
    ServiceConfig { secret_keys, ..ServiceConfig::default() }
}

pub fn secret_key(name: &str) -> Key {
    Key::namespaced(Kind::Secret, NAMESPACE, name)
}

/// The TLS side of a client, with a node's certificate or without, that offers these protocols.
pub fn tls_client(world: &World, node: Option<&str>, offers: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = &world.authority.pem().certificate;
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match node {
        Some(name) => {
            let issued = world.authority.node(name, Lifetime::CLIENT).unwrap();
            let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes())
                .collect::<Result<_, _>>()
                .unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    Arc::new(config)
}

pub fn app_key(name: &str) -> Key {
    Key::namespaced(Kind::Application, NAMESPACE, name)
}

pub fn node_key(name: &str) -> Key {
    Key::cluster(Kind::Node, name)
}

/// A report about an Application of the test's namespace.
pub fn report(name: &str, phase: &str, observed_generation: i64) -> AppStatus {
    AppStatus {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        phase: phase.to_owned(),
        observed_generation,
        ..AppStatus::default()
    }
}

/// As [`report`], of a running workload with this address.
pub fn running_at(name: &str, address: &str) -> AppStatus {
    AppStatus { address: address.to_owned(), ..report(name, "Running", 1) }
}

/// Says of a node that it is at this address.
pub async fn report_ip(node: &ScriptedNode, ip: &str) {
    let status = json!({"capacity": {"cpu": "4", "memory": "8388608Ki"}, "allocated": {}, "os": "scripted", "ip": ip,
        "ready": true, "platform": {"os": "linux", "arch": "amd64"}, "routedNetwork": true});
    let node_object = json!({"metadata": {"name": node.name()}, "spec": {}, "status": status});
    node.node_status(&node_object).await.unwrap();
}

/// The networks of a push: the name of the workload and its address.
pub fn networks(desired: &DesiredState) -> Vec<(String, String)> {
    let uid_of = |app: &Value| app["metadata"]["uid"].as_str().unwrap().to_owned();
    let apps: Vec<(String, String)> =
        named(desired).into_iter().map(|(name, app)| (uid_of(&app), name)).collect();
    let mut networks: Vec<(String, String)> = desired
        .workload_networks
        .iter()
        .map(|network| {
            assert_eq!((network.gateway.as_str(), network.mtu), ("169.254.1.1", 0));
            let name = apps.iter().find(|(uid, _)| *uid == network.workload).map(|(_, name)| name.clone());
            (name.expect("of an Application in the same push"), network.address.clone())
        })
        .collect();
    networks.sort();
    networks
}

/// What agents close a pass with.
pub fn end_of_pass() -> node_message::Body {
    node_message::Body::NodeUsage(NodeUsage::default())
}

/// The Applications of a push, decoded, by name.
pub fn named(desired: &DesiredState) -> Vec<(String, Value)> {
    let mut apps: Vec<(String, Value)> = desired
        .applications
        .iter()
        .map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap())
        .map(|app| (app["metadata"]["name"].as_str().unwrap().to_owned(), app))
        .collect();
    apps.sort_by(|a, b| a.0.cmp(&b.0));
    apps
}

pub fn names(desired: &DesiredState) -> Vec<String> {
    named(desired).into_iter().map(|(name, _)| name).collect()
}

/// Nothing is pushed to this node for a while.
pub async fn assert_no_push(node: &mut ScriptedNode) {
    if let Ok(desired) = node.desired(A_WHILE).await {
        panic!("a push of {:?} was not to come", names(&desired));
    }
}
