//! A whole control plane in memory: the database, the world outside of the loops, and processes that run all of
//! them.
//!
//! Time stands still but for [`Plane::round`], so that hours pass in no time and nothing depends on how busy a
//! machine is. Nodes do what they are told at the end of each round.

use std::collections::{BTreeMap, BTreeSet};
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
    ApplicationReport, Body, Caller, DeleteOptions, Order, Part, Patch, PatchType, Propagation, Recorder,
    RequestContext, Service, ServiceConfig, WriteOptions, Written,
};
use horchestra_store::backend::LogRow;
use horchestra_store::memory::Backup;
use horchestra_store::{
    Entry, Heartbeat, MemoryBackend, MemoryDatabase, SessionClaim, SessionGrant, Store, StoreOptions,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::process::Process;
use crate::certificates::support::TestSigner;

/// How often nodes report. Rounds are that long.
pub const BEAT: Duration = Duration::from_secs(5);
/// How long a gateway is there without saying so again.
const TERM: Duration = Duration::from_secs(10);
/// More rounds than anything here takes.
const PATIENCE: usize = 80;

pub struct Plane {
    pub database: MemoryDatabase,
    /// People, nodes and gateways: a connection that nothing happens to.
    pub outside: Service,
    pub recorder: Recorder,
    pub signer: Arc<TestSigner>,
    gateway: Uuid,
    /// Whether the gateway is there.
    pub served: bool,
    sessions: BTreeMap<String, SessionGrant>,
    /// Nodes that say nothing at present.
    pub silent: BTreeSet<String>,
    /// The last revision that a round has looked at.
    seen: i64,
}

pub fn operator() -> RequestContext {
    somebody("operator", &["system:masters"])
}

pub fn somebody(name: &str, groups: &[&str]) -> RequestContext {
    let identity = Identity {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        credential: Credential::Certificate { fingerprint: "aa".to_owned(), not_after: Timestamp::MAX },
    };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

pub fn app(name: &str) -> Key {
    Key::namespaced(Kind::Application, "default", name)
}

pub fn node(name: &str) -> Key {
    Key::cluster(Kind::Node, name)
}

pub fn volume(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, "default", name)
}

pub fn set(name: &str) -> Key {
    Key::namespaced(Kind::ApplicationSet, "default", name)
}

/// A service on a store of its own, as a process has one.
pub async fn connect(backend: Arc<MemoryBackend>, options: StoreOptions) -> Service {
    let store = Store::open(backend, options);
    store.ready().await;
    let gates = "AutoNodeCertRotation=true".parse().unwrap();
    Service::new(store, ServiceConfig { gates, ..ServiceConfig::default() })
}

/// All there is at one moment, to go on from.
#[derive(Clone)]
pub struct Moment {
    backup: Backup,
    signer: Arc<TestSigner>,
    gateway: Uuid,
    sessions: BTreeMap<String, SessionGrant>,
    silent: BTreeSet<String>,
}

impl Plane {
    /// This moment. Nobody must lead at it.
    pub fn moment(&self) -> Moment {
        Moment {
            backup: self.database.backup(),
            signer: Arc::clone(&self.signer),
            gateway: self.gateway,
            sessions: self.sessions.clone(),
            silent: self.silent.clone(),
        }
    }

    /// Goes on from a moment, an hour later.
    pub async fn at(moment: Moment) -> Plane {
        let Moment { backup, signer, gateway, sessions, silent } = moment;
        let database = MemoryDatabase::new();
        database.restore(&backup);
        database.advance(Duration::from_secs(3600));
        let plane = Plane { signer, gateway, sessions, silent, ..Plane::on(database).await };
        plane.beat().await;
        plane
    }

    async fn on(database: MemoryDatabase) -> Plane {
        let outside = connect(database.connect(), StoreOptions::default()).await;
        let (recorder, task) =
            Recorder::new(outside.clone(), "test", Arc::new(|_, _| {}), CancellationToken::new());
        tokio::spawn(task);
        Plane {
            database,
            outside,
            recorder,
            signer: TestSigner::new(),
            gateway: Uuid::new_v4(),
            served: true,
            sessions: BTreeMap::new(),
            silent: BTreeSet::new(),
            seen: 0,
        }
    }

    /// A namespace `default` and these nodes, of eight cores each.
    pub async fn new(nodes: &[&str]) -> Plane {
        let mut plane = Plane::on(MemoryDatabase::new()).await;
        plane.create(json!({"kind": "Namespace", "metadata": {"name": "default"}})).await.unwrap();
        for node in nodes {
            plane.add_node(node, "8").await;
        }
        plane
    }

    pub fn store(&self) -> &Store {
        self.outside.store()
    }

    pub async fn add_node(&mut self, name: &str, cores: &str) {
        self.keep_gateway().await;
        let claim = SessionClaim {
            node: name.to_owned(),
            gateway: self.gateway,
            peer: "127.0.0.1:2".to_owned(),
            certificate: "00".repeat(32),
        };
        let grant = self.store().claim_session(claim, Duration::ZERO).await.unwrap().expect("the session");
        self.sessions.insert(name.to_owned(), grant);
        let status = json!({"ready": true, "capacity": {"cpu": cores, "memory": "256Gi"}});
        self.outside.register_node(&self.session(name), name, &status).await.unwrap();
        self.outside.cordon(&operator(), name, false).await.unwrap();
    }

    /// What a node says of itself.
    pub async fn report(&self, node: &str, ready: bool) {
        let status = json!({"ready": ready, "capacity": {"cpu": "8", "memory": "256Gi"}});
        self.outside.report_node(&self.session(node), node, &status).await.unwrap();
    }

    /// What the node of an Application says of it.
    pub async fn report_phase(&self, name: &str, phase: &str) {
        let entry = self.entry(&app(name)).await.expect("the application");
        let node = entry.columns.node.clone().expect("a node");
        let report = ApplicationReport {
            phase: phase.to_owned(),
            observed_generation: entry.generation,
            ..ApplicationReport::default()
        };
        let session = self.session(&node);
        self.outside.report_application(&session, &entry.key, entry.uid, report).await.unwrap();
    }

    fn session(&self, node: &str) -> RequestContext {
        let grant = self.sessions[node].clone();
        RequestContext::new(Caller::Node { name: node.to_owned(), grant, gateway: self.gateway })
    }

    /// The node's connection ends.
    pub async fn disconnect(&mut self, node: &str) {
        if let Some(grant) = self.sessions.remove(node) {
            self.store().release_session(node, &grant).await.unwrap();
        }
    }

    // ---- people ------------------------------------------------------------------------------------

    pub async fn create(&self, object: Value) -> Result<Written, Status> {
        self.create_as(&operator(), object).await
    }

    pub async fn create_as(&self, who: &RequestContext, object: Value) -> Result<Written, Status> {
        let name = object["kind"].as_str().unwrap_or("Application").to_owned();
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind");
        let namespace = if kind.namespaced() { "default" } else { "" };
        let body = Body::Json(object.to_string().into());
        self.outside.create(who, kind, namespace, body, &WriteOptions::default()).await
    }

    /// An Application that asks for so many cores.
    pub async fn run(&self, name: &str, cores: &str) {
        let resources = json!({"requests": {"cpu": cores}});
        let spec = json!({"image": "x", "resources": resources});
        self.create(json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
    }

    pub async fn put_set(&self, name: &str, spec: Value) {
        let object = json!({"kind": "ApplicationSet", "metadata": {"name": name}, "spec": spec});
        if self.entry(&set(name)).await.is_none() {
            self.create(object).await.unwrap();
            return;
        }
        let body = Body::Json(object.to_string().into());
        self.outside.update(&operator(), &set(name), body, &WriteOptions::default()).await.unwrap();
    }

    pub async fn merge(&self, key: &Key, patch: Value) -> Result<Written, Status> {
        let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
        self.outside.patch(&operator(), key, Part::Main, patch, &WriteOptions::default()).await
    }

    pub async fn merge_status(&self, key: &Key, patch: Value) {
        let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
        let options = WriteOptions::default();
        self.outside.patch(&operator(), key, Part::Status, patch, &options).await.unwrap();
    }

    pub async fn act(&self, key: &Key, door: Door, order: &Order) -> Result<Written, Status> {
        self.outside.act(&operator(), key, door, order, &WriteOptions::default()).await
    }

    pub async fn delete(&self, key: &Key, propagation: Option<Propagation>) {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        self.outside.delete(&operator(), key, &options).await.unwrap();
    }

    pub async fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.store().fresh().await.unwrap().get(key)
    }

    pub async fn tree(&self, key: &Key) -> Value {
        let entry = self.entry(key).await.unwrap_or_else(|| panic!("{key} is not there"));
        serde_json::from_slice(&entry.encoded()).unwrap()
    }

    pub async fn placed_on(&self, name: &str) -> Option<String> {
        self.entry(&app(name)).await?.columns.node.clone()
    }

    /// The verdict on a node: `True`, `False`, `Unknown`, or nothing.
    pub async fn verdict(&self, name: &str) -> String {
        let tree = self.tree(&node(name)).await;
        let conditions = tree["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        ready.map_or_else(String::new, |ready| ready["status"].as_str().unwrap().to_owned())
    }

    /// What was written after a revision, but for Events.
    pub async fn log(&self, since: i64) -> Vec<LogRow> {
        let changes = self.store().backend().changes(since, 1_000_000).await.unwrap();
        let rows = changes.rows.into_iter();
        rows.filter(|row| row.change.object_kind() != Kind::Event).collect()
    }

    /// Reasons and counts of the Events about an object.
    pub async fn told_of(&self, name: &str) -> BTreeMap<String, i64> {
        let snapshot = self.store().fresh().await.unwrap();
        let mut told = BTreeMap::new();
        for entry in snapshot.list(Kind::Event, None) {
            let event: Value = serde_json::from_slice(&entry.encoded()).unwrap();
            if event["involvedObject"]["name"] == name {
                *told.entry(event["reason"].as_str().unwrap().to_owned()).or_default() +=
                    event["count"].as_i64().unwrap_or(1);
            }
        }
        told
    }

    // ---- time --------------------------------------------------------------------------------------

    /// Nodes report, the processes look, nodes do what they are told. Answers which of the processes have died.
    pub async fn round(&mut self, processes: &mut [Process]) -> Vec<bool> {
        tokio::time::sleep(BEAT).await;
        self.beat().await;
        let mut died = Vec::new();
        for process in processes {
            died.push(process.pass().await.is_err());
        }
        self.work().await;
        died
    }

    /// One moment of the world outside.
    pub async fn beat(&self) {
        if !self.served {
            return;
        }
        self.keep_gateway().await;
        let speaking = self.sessions.keys().filter(|node| !self.silent.contains(*node));
        let beats: Vec<Heartbeat> = speaking
            .map(|node| Heartbeat { node: node.clone(), allocated_cpu: 0, allocated_memory: 0 })
            .collect();
        self.store().record_heartbeats(&beats).await.unwrap();
    }

    /// The gateway says that it is there.
    pub async fn keep_gateway(&self) {
        self.store().renew_gateway(self.gateway, "127.0.0.1:1", TERM).await.unwrap();
    }

    /// Nodes run what is placed on them, jobs to a good end, and let go of what is being deleted.
    pub async fn work(&self) {
        let snapshot = self.store().fresh().await.unwrap();
        for entry in snapshot.list(Kind::Application, None) {
            let Some(node) = &entry.columns.node else { continue };
            if !self.served || self.silent.contains(node) || !self.sessions.contains_key(node) {
                continue;
            }
            let session = self.session(node);
            if entry.deleting {
                self.outside.release_teardown(&session, &entry.key, entry.uid).await.unwrap();
                continue;
            }
            let app = entry.typed::<Application>().unwrap();
            if app.is_finished() {
                continue;
            }
            let ended = app.is_job();
            let report = ApplicationReport {
                phase: if ended { "Succeeded" } else { "Running" }.to_owned(),
                observed_generation: entry.generation,
                exit_code: ended.then_some(0),
                attempts: i32::from(ended),
                finished_at: ended.then(Timestamp::now),
                ..ApplicationReport::default()
            };
            self.outside.report_application(&session, &entry.key, entry.uid, report).await.unwrap();
        }
    }

    /// Whether something was written since it was last asked.
    pub async fn has_news(&mut self) -> bool {
        let rows = self.log(self.seen).await;
        self.seen = rows.last().map_or(self.seen, |row| row.change.revision);
        !rows.is_empty()
    }

    /// Rounds until nothing is left to do. A process that dies has a successor at once; answers how many died.
    pub async fn settle(&mut self, processes: &mut [Process]) -> usize {
        // Somebody who has just fallen silent is not yet judged.
        let long_enough = if self.silent.is_empty() { 1 } else { 11 };
        let (mut deaths, mut quiet) = (0, 0);
        for _ in 0..PATIENCE {
            for (at, died) in self.round(processes).await.into_iter().enumerate() {
                if died {
                    (deaths, quiet) = (deaths + 1, 0);
                    processes[at].leave(self).await;
                    processes[at] = Process::start(self).await;
                }
            }
            quiet = if self.has_news().await { 0 } else { quiet + 1 };
            if quiet > long_enough {
                return deaths;
            }
        }
        panic!("the control plane does not come to rest");
    }
}
