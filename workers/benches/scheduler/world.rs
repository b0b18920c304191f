//! A service with a fleet in it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt};
use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_service::{
    Body, Caller, Observer, Recorder, RequestContext, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::{Heartbeat, Store};
use horchestra_workers::substrate::Term;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Writers that fill the fleet.
const WRITERS: usize = 64;
const TERM: Duration = Duration::from_secs(3600);

pub struct World {
    pub store: Store,
    pub service: Service,
    nodes: Vec<String>,
}

impl World {
    /// Ready nodes, and Applications that wait.
    pub async fn new(store: Store, nodes: usize, apps: usize) -> Result<World> {
        let service = Service::new(store.clone(), ServiceConfig::default());
        let nodes: Vec<String> = (0..nodes).map(|at| format!("node-{at:05}")).collect();
        let world = World { store, service, nodes };
        let made = stream::iter(&world.nodes).map(|name| world.ready_node(name)).buffer_unordered(WRITERS);
        made.collect::<Vec<Result<()>>>().await.into_iter().collect::<Result<Vec<()>>>()?;
        let made = stream::iter(0..apps).map(|at| world.application(format!("app-{at:05}")));
        let made = made.buffer_unordered(WRITERS);
        made.collect::<Vec<Result<()>>>().await.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(world)
    }

    /// Every node is heard of.
    pub async fn beat(&self) -> Result<()> {
        let beat = |node: &String| Heartbeat { node: node.clone(), allocated_cpu: 0, allocated_memory: 0 };
        let beats: Vec<Heartbeat> = self.nodes.iter().map(beat).collect();
        Ok(self.store.record_heartbeats(&beats).await?)
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

    pub async fn bound(&self) -> Result<usize> {
        let snapshot = self.store.fresh().await?;
        Ok(snapshot.list(Kind::Application, None).filter(|entry| entry.columns.node.is_some()).count())
    }

    async fn ready_node(&self, name: &str) -> Result<()> {
        let key = Key::cluster(Kind::Node, name);
        let object = json!({"metadata": {"name": name}, "spec": {}});
        let options = WriteOptions::default();
        self.service.create(&operator(), Kind::Node, "", body(&object), &options).await?;
        let status = json!({"metadata": {"name": name}, "spec": {}, "status": {
            "ready": true, "capacity": {"cpu": "4", "memory": "32Gi"},
            "conditions": [
                {"type": "Admitted", "status": "True", "reason": "OperatorMade"},
                {"type": "Ready", "status": "True", "reason": "NodeReports"},
            ],
        }});
        self.service.update_status(&operator(), &key, body(&status), &options).await?;
        Ok(())
    }

    async fn application(&self, name: String) -> Result<()> {
        let object = json!({"metadata": {"name": name}, "spec": {
            "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}});
        let options = WriteOptions::default();
        self.service.create(&operator(), Kind::Application, "default", body(&object), &options).await?;
        Ok(())
    }
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
