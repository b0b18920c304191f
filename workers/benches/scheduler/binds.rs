//! From waiting to bound: the loop with its store on PostgreSQL.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::Application;
use horchestra_runtime::Metrics;
use horchestra_store::Store;
use horchestra_store::postgres::{Options, PostgresBackend, migrate};
use horchestra_store::store::StoreOptions;
use horchestra_testkit::{Cluster, ClusterOptions};
use horchestra_workers::scheduler::metrics::SchedulerMetrics;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::substrate::Reconciler;

use crate::world::World;

const NODES: usize = 5_000;
const APPS: usize = 10_000;

#[tokio::main(worker_threads = 2)]
pub async fn measure() -> Result<()> {
    let server = Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() })?;
    let url = server.url("postgres");
    migrate(&url).await.context("migrating")?;
    let backend = PostgresBackend::open(&url, Options::default())?;
    let store = Store::open(backend, StoreOptions { kinds: Kind::ALL.to_vec(), ..StoreOptions::default() });
    store.ready().await;
    let began = Instant::now();
    let world = World::new(store, NODES, APPS).await?;
    println!("{NODES} nodes and {APPS} applications made in {:.1} s", began.elapsed().as_secs_f64());

    let (recorder, telling) = world.recorder();
    let metrics = SchedulerMetrics::new(&Metrics::new("bench", "0", None));
    let profile = default_profile(Strategy::Spread)?;
    let mut scheduler = Scheduler::new(world.service.clone(), profile, recorder, metrics);
    let term = world.term("scheduler").await?;
    scheduler.begin_term();
    // Before the first beats that it sees nobody counts as heard of.
    world.beat().await?;
    scheduler.pass(&term).await?;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    world.beat().await?;

    let began = Instant::now();
    let (mut bound, mut passes) = (0, 0);
    while bound < APPS && passes < 100 {
        scheduler.pass(&term).await?;
        passes += 1;
        bound = world.bound().await?;
    }
    let elapsed = began.elapsed().as_secs_f64();
    let waits = world.store.fresh().await?.list(Kind::Application, None).find_map(|entry| {
        let app = entry.typed::<Application>().ok()?;
        entry.columns.node.is_none().then(|| app.status.message.clone())
    });
    ensure!(bound == APPS, "only {bound} of {APPS} were bound: {waits:?}");
    println!(
        "committed bindings: {:.0}/s ({APPS} on {NODES} nodes in {passes} passes, {elapsed:.1} s; floor 680)",
        APPS as f64 / elapsed
    );
    drop(scheduler);
    telling.await?;
    world.store.shutdown().await;
    Ok(())
}
