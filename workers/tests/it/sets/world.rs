//! A small cluster, in memory or on PostgreSQL: the loop of sets is real, scheduler and nodes do what a test says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::status::Status;
use horchestra_service::{
    ApplicationReport, Binding, Body, Caller, DeleteOptions, Order, Patch, PatchType, Propagation, Ready,
    ReadyVerdict, Recorder, RequestContext, Service, ServiceConfig, WriteOptions, Written,
};
use horchestra_store::backend::LogRow;
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::store::StoreOptions;
use horchestra_store::{Backend, Entry, MemoryBackend, MemoryDatabase, SessionClaim, Store};
use horchestra_testkit::{Template, TestDatabase};
use horchestra_workers::sets::apply::Port;
use horchestra_workers::sets::{SetMetrics, Sets};
use horchestra_workers::substrate::{PassReport, Reconciler, Term};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const TERM: Duration = Duration::from_secs(600);
/// More passes than anything here takes.
pub const PATIENCE: usize = 60;
pub const LOOP: &str = "system:loop:applicationset";

/// Where a cluster is stored.
pub enum Database {
    Memory(MemoryDatabase),
    Postgres(TestDatabase),
}

impl Database {
    /// A new one on PostgreSQL.
    pub async fn postgres() -> Database {
        let schema = postgres::fingerprint();
        let template = Template::prepare("store", &schema, async |url| {
            postgres::migrate_schema(&url).await?;
            Ok(())
        });
        let database = template.await.expect("a migrated template").database().await.expect("a database");
        Database::Postgres(database)
    }

    /// One more process that works on it.
    fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Database::Memory(database) => database.connect(),
            Database::Postgres(database) => {
                PostgresBackend::open(database.url(), Options::default()).expect("a well-formed URL")
            }
        }
    }

    /// As [`Database::backend`], for faults that only the one in memory can have.
    pub fn in_memory(&self) -> Arc<MemoryBackend> {
        match self {
            Database::Memory(database) => database.connect(),
            Database::Postgres(_) => panic!("this cluster is on PostgreSQL"),
        }
    }
}

pub struct World {
    pub database: Database,
    pub service: Service,
    pub sets: Sets,
    pub term: Term,
    scheduler: RequestContext,
    judge: RequestContext,
    sessions: BTreeMap<String, RequestContext>,
}

pub fn operator() -> RequestContext {
    let identity = Identity {
        name: "operator".to_owned(),
        groups: vec!["system:masters".to_owned()],
        credential: Credential::Certificate { fingerprint: String::new(), not_after: Timestamp::MAX },
    };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

pub fn app(name: &str) -> Key {
    Key::namespaced(Kind::Application, "default", name)
}

pub fn service(name: &str) -> Key {
    Key::namespaced(Kind::Service, "default", name)
}

pub fn set(name: &str) -> Key {
    Key::namespaced(Kind::ApplicationSet, "default", name)
}

/// A component that is kept running.
pub fn component(name: &str, image: &str) -> Value {
    json!({"name": name, "spec": {"image": image}})
}

/// A component with replicas.
pub fn replicas(name: &str, image: &str, count: usize) -> Value {
    json!({"name": name, "spec": {"image": image}, "scale": {"replicas": count}})
}

/// A component that runs to its end.
pub fn step(name: &str, image: &str) -> Value {
    json!({"name": name, "spec": {"image": image, "lifecycle": {"restartPolicy": "Never"}}})
}

pub async fn lease(service: &Service, name: &str) -> Term {
    let lease = service.store().acquire_lease(name, Uuid::new_v4(), TERM).await.unwrap();
    Term { lease: lease.expect("nobody else asks") }
}

pub async fn connect(database: &Database) -> Service {
    let store = Store::open(database.backend(), StoreOptions::default());
    store.ready().await;
    Service::new(store, ServiceConfig::default())
}

/// A recorder of which nobody reads.
pub fn recorder(service: &Service) -> Recorder {
    let (recorder, task) =
        Recorder::new(service.clone(), "test", Arc::new(|_, _| {}), CancellationToken::new());
    tokio::spawn(task);
    recorder
}

impl World {
    /// A namespace `default` and these nodes, ready, in memory.
    pub async fn new(nodes: &[&str]) -> World {
        World::on(Database::Memory(MemoryDatabase::new()), nodes).await
    }

    /// As [`World::new`], in this database.
    pub async fn on(database: Database, nodes: &[&str]) -> World {
        let service = connect(&database).await;
        let term = lease(&service, "applicationset").await;
        let scheduler = RequestContext::new(lease(&service, "scheduler").await.caller());
        let judge = RequestContext::new(lease(&service, "node-lifecycle").await.caller());
        let sets = Sets::new(service.clone(), recorder(&service), SetMetrics::default());
        let sessions = BTreeMap::new();
        let mut world = World { database, service, sets, term, scheduler, judge, sessions };
        if world.entry(&Key::cluster(Kind::Namespace, "default")).await.is_none() {
            world.create(json!({"kind": "Namespace", "metadata": {"name": "default"}})).await.unwrap();
        }
        for node in nodes {
            world.add_node(node, json!({})).await;
        }
        world
    }

    pub async fn add_node(&mut self, name: &str, labels: Value) {
        let gateway = Uuid::new_v4();
        let store = self.service.store();
        store.renew_gateway(gateway, "127.0.0.1:1", TERM).await.unwrap();
        let claim = SessionClaim {
            node: name.to_owned(),
            gateway,
            peer: "127.0.0.1:2".to_owned(),
            certificate: "00".repeat(32),
        };
        let grant = store.claim_session(claim, TERM).await.unwrap().expect("the session");
        let session = RequestContext::new(Caller::Node { name: name.to_owned(), grant, gateway });
        let status = json!({"ready": true, "capacity": {"cpu": "64", "memory": "256Gi"}});
        self.service.register_node(&session, name, &status).await.unwrap();
        self.service.cordon(&operator(), name, false).await.unwrap();
        self.merge(&Key::cluster(Kind::Node, name), json!({"metadata": {"labels": labels}})).await;
        self.judge(name, true).await;
        self.sessions.insert(name.to_owned(), session);
    }

    /// The verdict on a node.
    pub async fn judge(&self, node: &str, ready: bool) {
        let ready = if ready { Ready::True } else { Ready::Unknown };
        let verdict = ReadyVerdict { ready, reason: "Test".to_owned(), message: String::new() };
        self.service.set_node_ready(&self.judge, node, verdict).await.unwrap();
    }

    pub async fn create(&self, object: Value) -> Result<Written, Status> {
        let name = object["kind"].as_str().unwrap_or("Application").to_owned();
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind");
        let namespace = if kind.namespaced() { "default" } else { "" };
        let body = Body::Json(object.to_string().into());
        self.service.create(&operator(), kind, namespace, body, &WriteOptions::default()).await
    }

    /// Makes a set, or replaces its spec.
    pub async fn put_set(&self, name: &str, spec: Value) {
        let object = json!({"kind": "ApplicationSet", "metadata": {"name": name}, "spec": spec});
        if self.entry(&set(name)).await.is_none() {
            self.create(object).await.unwrap();
            return;
        }
        let body = Body::Json(object.to_string().into());
        self.service.update(&operator(), &set(name), body, &WriteOptions::default()).await.unwrap();
    }

    pub async fn merge(&self, key: &Key, patch: Value) {
        let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
        let options = WriteOptions::default();
        let part = horchestra_service::Part::Main;
        self.service.patch(&operator(), key, part, patch, &options).await.unwrap();
    }

    pub async fn act(&self, key: &Key, door: Door) {
        let order = Order::default();
        self.service.act(&operator(), key, door, &order, &WriteOptions::default()).await.unwrap();
    }

    pub async fn delete(&self, key: &Key, propagation: Option<Propagation>) {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        self.service.delete(&operator(), key, &options).await.unwrap();
    }

    pub async fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.service.store().fresh().await.unwrap().get(key)
    }

    pub async fn tree(&self, key: &Key) -> Value {
        let entry = self.entry(key).await.unwrap_or_else(|| panic!("{key} is not there"));
        serde_json::from_slice(&entry.encoded()).unwrap()
    }

    pub async fn status(&self, name: &str) -> Value {
        self.tree(&set(name)).await["status"].clone()
    }

    /// `phase desired/current/running`.
    pub async fn summary(&self, name: &str) -> String {
        let status = self.status(name).await;
        let phase = status["phase"].as_str().unwrap_or("");
        format!("{phase} {}/{}/{}", status["desired"], status["current"], status["running"])
    }

    /// `status reason`, and nothing when there is no such condition.
    pub async fn condition(&self, name: &str, kind: &str) -> String {
        let status = self.status(name).await;
        let found = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == kind);
        found.map_or_else(String::new, |it| {
            format!("{} {}", it["status"].as_str().unwrap(), it["reason"].as_str().unwrap())
        })
    }

    pub async fn message(&self, name: &str, kind: &str) -> String {
        let status = self.status(name).await;
        let found = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == kind);
        found.map_or_else(String::new, |it| it["message"].as_str().unwrap().to_owned())
    }

    /// Names of a kind in `default`.
    pub async fn names(&self, kind: Kind) -> Vec<String> {
        let snapshot = self.service.store().fresh().await.unwrap();
        snapshot.list(kind, Some("default")).map(|entry| entry.key.name.clone()).collect()
    }

    pub async fn apps(&self) -> Vec<String> {
        self.names(Kind::Application).await
    }

    /// Images of Applications, by name.
    pub async fn images(&self) -> BTreeMap<String, String> {
        let snapshot = self.service.store().fresh().await.unwrap();
        let apps = snapshot.list(Kind::Application, Some("default"));
        apps.map(|entry| (entry.key.name.clone(), entry.typed::<Application>().unwrap().spec.image.clone()))
            .collect()
    }

    /// One pass of the loop, over everything that has been written.
    pub async fn pass(&mut self) -> PassReport {
        self.service.store().fresh().await.unwrap();
        let report = self.sets.pass(&self.term).await.unwrap();
        self.service.store().fresh().await.unwrap();
        report
    }

    /// Passes until one has nothing to do.
    pub async fn settle(&mut self) {
        for _ in 0..PATIENCE {
            let report = self.pass().await;
            if report.writes == 0 {
                return;
            }
        }
        panic!("the loop goes on writing");
    }

    /// Binds whatever waits, in turn to every ready node.
    pub async fn schedule(&self) {
        let snapshot = self.service.store().fresh().await.unwrap();
        let nodes: Vec<Arc<Entry>> = snapshot
            .list(Kind::Node, None)
            .filter(|entry| {
                let node = entry.typed::<horchestra_core::kinds::node::Node>().unwrap();
                node.ready() == Some(horchestra_core::kinds::meta::ConditionStatus::True)
            })
            .cloned()
            .collect();
        if nodes.is_empty() {
            return;
        }
        let waiting = snapshot.list(Kind::Application, None).filter(|entry| {
            entry.columns.node.is_none()
                && !entry.deleting
                && !entry.typed::<Application>().unwrap().spec.frozen
        });
        let bindings: Vec<Binding> = waiting
            .enumerate()
            .map(|(at, entry)| Binding {
                key: entry.key.clone(),
                uid: entry.uid,
                revision: entry.revision,
                node: nodes[at % nodes.len()].key.name.clone(),
                node_revision: None,
            })
            .collect();
        for outcome in self.service.bind(&self.scheduler, bindings).await {
            outcome.unwrap();
        }
    }

    /// What a node says of an Application.
    pub async fn report(&self, name: &str, phase: &str, exit_code: Option<i32>) {
        let entry = self.entry(&app(name)).await.expect("the application");
        let node = entry.columns.node.clone().expect("a node");
        let ended = matches!(phase, "Succeeded" | "Failed");
        let report = ApplicationReport {
            phase: phase.to_owned(),
            observed_generation: entry.generation,
            exit_code,
            attempts: i32::from(ended),
            finished_at: ended.then(Timestamp::now),
            ..ApplicationReport::default()
        };
        let session = &self.sessions[&node];
        self.service.report_application(session, &entry.key, entry.uid, report).await.unwrap();
    }

    /// Nodes do what is asked of them: they run what is placed on them, jobs to a good end, and let go of
    /// what is being deleted.
    pub async fn run_nodes(&self) {
        let snapshot = self.service.store().fresh().await.unwrap();
        for entry in snapshot.list(Kind::Application, None) {
            let Some(node) = &entry.columns.node else { continue };
            if entry.deleting {
                let session = &self.sessions[node];
                self.service.release_teardown(session, &entry.key, entry.uid).await.unwrap();
                continue;
            }
            let app = entry.typed::<Application>().unwrap();
            if !app.is_finished() {
                let (phase, code) = if app.is_job() { ("Succeeded", Some(0)) } else { ("Running", None) };
                self.report(&entry.key.name, phase, code).await;
            }
        }
    }

    /// Everybody does their part until nothing is left to do.
    pub async fn converge(&mut self) {
        for _ in 0..PATIENCE {
            let before = self.head().await;
            self.pass().await;
            self.schedule().await;
            self.run_nodes().await;
            if self.head().await == before {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    pub async fn head(&self) -> i64 {
        self.service.store().backend().head().await.unwrap().revision
    }

    /// What was written since, but for Events.
    pub async fn log(&self, since: i64) -> Vec<LogRow> {
        let changes = self.service.store().backend().changes(since, 100_000).await.unwrap();
        let rows = changes.rows.into_iter();
        rows.filter(|row| row.change.object_kind() != Kind::Event).collect()
    }

    /// What the loop wrote since, in short: `update Application web-a`.
    pub async fn written(&self, since: i64) -> Vec<String> {
        let rows = self.log(since).await;
        rows.iter()
            .filter(|row| row.who.user == LOOP && row.who.verb != "status")
            .map(|row| format!("{} {} {}", row.who.verb, row.change.object_kind(), row.change.key().name))
            .collect()
    }
}

/// A loop of another process, which starts with nothing in mind.
pub async fn successor<P: Port>(service: &Service, port: P) -> Sets<P> {
    Sets::with_port(service.store().clone(), port, recorder(service), SetMetrics::default())
}
