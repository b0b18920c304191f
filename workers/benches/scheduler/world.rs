//! A service with a fleet in it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_service::{
    Body, Caller, DeleteOptions, Observer, Part, Patch, PatchType, Recorder, RequestContext, Service,
    ServiceConfig, WriteOptions,
};
use horchestra_store::{Entry, Heartbeat, Store};
use horchestra_workers::substrate::{Reconciler, Term};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Writers that fill the fleet; what they write at the same time shares commits.
const WRITERS: usize = 256;
const TERM: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub struct World {
    pub store: Store,
    pub service: Service,
    nodes: Vec<String>,
}

impl World {
    /// Ready nodes. However long a fleet takes to fill, none of them counts as silent meanwhile.
    pub async fn new(store: Store, nodes: usize) -> Result<World> {
        let config = ServiceConfig { ready_timeout: TERM, ..ServiceConfig::default() };
        let service = Service::new(store.clone(), config);
        let nodes: Vec<String> = (0..nodes).map(|at| format!("node-{at:05}")).collect();
        let world = World { store, service, nodes };
        together(world.nodes.iter().map(|name| world.ready_node(name))).await?;
        Ok(world)
    }

    /// So many Applications, `name-00000` and so on.
    pub async fn applications(&self, name: &str, count: usize) -> Result<()> {
        together((0..count).map(|at| self.create(Kind::Application, application(&format!("{name}-{at:05}")))))
            .await
    }

    /// The same, already placed: on one node after the other.
    pub async fn placed_applications(&self, name: &str, count: usize) -> Result<()> {
        let placed = |at: usize| {
            let mut app = application(&format!("{name}-{at:05}"));
            app["spec"]["placement"] = json!({"nodeName": self.nodes[at % self.nodes.len()]});
            self.create(Kind::Application, app)
        };
        together((0..count).map(placed)).await
    }

    /// Every node is heard of.
    pub async fn beat(&self) -> Result<()> {
        self.hear_of(&self.nodes).await
    }

    pub async fn hear_of(&self, nodes: &[String]) -> Result<()> {
        let beat = |node: &String| Heartbeat { node: node.clone(), allocated_cpu: 0, allocated_memory: 0 };
        let beats: Vec<Heartbeat> = nodes.iter().map(beat).collect();
        Ok(self.store.record_heartbeats(&beats).await?)
    }

    /// The scheduler hears of every node. Before the first beats that it sees nobody counts as heard of, so this
    /// comes before there is anything to place.
    pub async fn hear(&self, scheduler: &mut dyn Reconciler, term: &Term) -> Result<()> {
        scheduler.begin_term();
        self.beat().await?;
        scheduler.pass(term).await?;
        // The beats are looked at once a second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        self.beat().await
    }

    pub async fn term(&self, name: &str) -> Result<Term> {
        let lease = self.store.acquire_lease(name, Uuid::new_v4(), TERM).await?;
        Ok(Term { lease: lease.context("nobody else asks")? })
    }

    /// Where loops tell of what they do; the task ends with the last recorder.
    pub fn recorder(&self) -> (Recorder, JoinHandle<()>) {
        let observer: Observer = Arc::new(|_, _| ());
        let (recorder, task) =
            Recorder::new(self.service.clone(), "bench", observer, CancellationToken::new());
        (recorder, tokio::spawn(task))
    }

    /// How many of the Applications whose names begin so have a node.
    pub async fn bound(&self, name: &str) -> Result<usize> {
        let snapshot = self.store.fresh().await?;
        let bound = snapshot
            .list(Kind::Application, None)
            .filter(|entry| entry.key.name.starts_with(name) && entry.columns.node.is_some());
        Ok(bound.count())
    }

    pub async fn ready_node(&self, name: &str) -> Result<()> {
        let key = Key::cluster(Kind::Node, name);
        self.create(Kind::Node, json!({"metadata": {"name": name}, "spec": {}})).await?;
        let status = json!({"metadata": {"name": name}, "spec": {}, "status": {
            "ready": true, "capacity": {"cpu": "4", "memory": "32Gi"},
            "conditions": [
                {"type": "Admitted", "status": "True", "reason": "OperatorMade"},
                {"type": "Ready", "status": "True", "reason": "NodeReports"},
            ],
        }});
        self.service.update_status(&operator(), &key, body(&status), &WriteOptions::default()).await?;
        Ok(())
    }

    pub async fn create(&self, kind: Kind, object: Value) -> Result<()> {
        let namespace = if kind.namespaced() { "default" } else { "" };
        self.service.create(&operator(), kind, namespace, body(&object), &WriteOptions::default()).await?;
        Ok(())
    }

    pub async fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        let key =
            if kind.namespaced() { Key::namespaced(kind, "default", name) } else { Key::cluster(kind, name) };
        self.service.delete(&operator(), &key, &DeleteOptions::default()).await?;
        Ok(())
    }

    /// Every Application that has a node runs on it, as its node would say.
    pub async fn run_everything(&self) -> Result<()> {
        let snapshot = self.store.fresh().await?;
        let placed = snapshot.list(Kind::Application, None).filter(|entry| entry.columns.node.is_some());
        together(placed.map(|entry| self.runs(entry))).await
    }

    async fn runs(&self, entry: &Entry) -> Result<()> {
        let status = json!({"status": {"phase": "Running", "observedGeneration": entry.generation}});
        let patch = Patch { kind: PatchType::Merge, document: status.to_string().into() };
        let options = WriteOptions::default();
        self.service.patch(&operator(), &entry.key, Part::Status, patch, &options).await?;
        Ok(())
    }
}

/// Many at a time, all of which have to go well.
pub async fn together<F: Future<Output = Result<()>>>(work: impl Iterator<Item = F>) -> Result<()> {
    stream::iter(work).buffer_unordered(WRITERS).try_collect().await
}

pub fn application(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}})
}

fn operator() -> RequestContext {
    let identity = Identity {
        name: "operator".to_owned(),
        groups: vec!["system:masters".to_owned()],
        credential: Credential::Certificate { fingerprint: String::new(), not_after: jiff::Timestamp::MAX },
    };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

fn body(object: &Value) -> Body {
    Body::Json(object.to_string().into())
}
