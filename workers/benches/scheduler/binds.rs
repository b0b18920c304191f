//! From waiting to bound: the loop with its store on PostgreSQL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt};
use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_service::{
    Body, Caller, Observer, Recorder, RequestContext, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::postgres::{Options, PostgresBackend, migrate};
use horchestra_store::store::StoreOptions;
use horchestra_store::{Heartbeat, Store};
use horchestra_testkit::{Cluster, ClusterOptions};
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::substrate::{Reconciler, Term};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const NODES: usize = 5_000;
const APPS: usize = 10_000;
/// Writers that fill the fleet.
const WRITERS: usize = 64;
const TERM: Duration = Duration::from_secs(3600);

#[tokio::main(worker_threads = 2)]
pub async fn measure() -> Result<()> {
    let server = Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() })?;
    let url = server.url("postgres");
    migrate(&url).await.context("migrating")?;
    let backend = PostgresBackend::open(&url, Options::default())?;
    let kinds = vec![Kind::Namespace, Kind::Node, Kind::Application, Kind::PersistentVolume, Kind::Event];
    let store = Store::open(backend, StoreOptions { kinds, ..StoreOptions::default() });
    store.ready().await;
    let service = Service::new(store.clone(), ServiceConfig::default());

    let nodes: Vec<String> = (0..NODES).map(|at| format!("node-{at:05}")).collect();
    let began = Instant::now();
    let made = stream::iter(&nodes).map(|name| ready_node(&service, name)).buffer_unordered(WRITERS);
    made.collect::<Vec<Result<()>>>().await.into_iter().collect::<Result<Vec<()>>>()?;
    let apps: Vec<String> = (0..APPS).map(|at| format!("app-{at:05}")).collect();
    let made = stream::iter(&apps).map(|name| application(&service, name)).buffer_unordered(WRITERS);
    made.collect::<Vec<Result<()>>>().await.into_iter().collect::<Result<Vec<()>>>()?;
    println!("{NODES} nodes and {APPS} applications made in {:.1} s", began.elapsed().as_secs_f64());

    let observer: Observer = Arc::new(|_, _| ());
    let (recorder, task) = Recorder::new(service.clone(), "bench", observer, CancellationToken::new());
    let telling = tokio::spawn(task);
    let mut scheduler = Scheduler::new(service.clone(), default_profile(Strategy::Spread)?, recorder);
    let lease = store.acquire_lease("scheduler", Uuid::new_v4(), TERM).await?.context("nobody else asks")?;
    let term = Term { lease };
    scheduler.begin_term();
    // Before the first beats nobody counts as heard of.
    let beats: Vec<Heartbeat> = nodes
        .iter()
        .map(|node| Heartbeat { node: node.clone(), allocated_cpu: 0, allocated_memory: 0 })
        .collect();
    store.record_heartbeats(&beats).await?;
    let first = scheduler.pass(&term).await?;
    ensure!(first.writes <= APPS, "a pass writes once for each");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    store.record_heartbeats(&beats).await?;

    let began = Instant::now();
    let (mut bound, mut passes) = (0, 0);
    while bound < APPS && passes < 100 {
        scheduler.pass(&term).await?;
        passes += 1;
        let snapshot = store.fresh().await?;
        bound = snapshot.list(Kind::Application, None).filter(|entry| entry.columns.node.is_some()).count();
    }
    let elapsed = began.elapsed().as_secs_f64();
    let waits = store.fresh().await?.list(Kind::Application, None).find_map(|entry| {
        let app = entry.typed::<Application>().ok()?;
        entry.columns.node.is_none().then(|| app.status.message.clone())
    });
    ensure!(bound == APPS, "only {bound} of {APPS} were bound: {waits:?}");
    println!(
        "committed bindings: {:.0}/s ({APPS} on {NODES} nodes in {passes} passes, {elapsed:.1} s; floor 680)",
        APPS as f64 / elapsed
    );
    let before = store.fresh().await?.revision();
    drop(scheduler);
    telling.await?;
    let after = store.fresh().await?.revision();
    println!("{} Events were still to be written after that", after - before);
    store.shutdown().await;
    Ok(())
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

async fn ready_node(service: &Service, name: &str) -> Result<()> {
    let key = Key::cluster(Kind::Node, name);
    let object = json!({"metadata": {"name": name}, "spec": {}});
    let options = WriteOptions::default();
    service.create(&operator(), Kind::Node, "", body(&object), &options).await?;
    let status = json!({"metadata": {"name": name}, "spec": {}, "status": {
        "ready": true, "capacity": {"cpu": "4", "memory": "32Gi"},
        "conditions": [
            {"type": "Admitted", "status": "True", "reason": "OperatorMade"},
            {"type": "Ready", "status": "True", "reason": "NodeReports"},
        ],
    }});
    service.update_status(&operator(), &key, body(&status), &options).await?;
    Ok(())
}

async fn application(service: &Service, name: &str) -> Result<()> {
    let object = json!({"metadata": {"name": name}, "spec": {
        "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}});
    let options = WriteOptions::default();
    service.create(&operator(), Kind::Application, "default", body(&object), &options).await?;
    Ok(())
}
