//! A fleet in which nothing happens: what a pass of each loop costs, and that none of them writes.

use std::time::Instant;

use anyhow::{Result, ensure};
use horchestra_runtime::Metrics;
use horchestra_store::Store;
use horchestra_workers::gc::{GarbageCollection, Limits};
use horchestra_workers::lifecycle::NodeLifecycle;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::sets::metrics::SetMetrics;
use horchestra_workers::sets::reconcile::Sets;
use horchestra_workers::substrate::Reconciler;

use crate::world::World;

const NODES: usize = 5_000;
const APPS: usize = 50_000;

#[tokio::main(worker_threads = 2)]
pub async fn measure() -> Result<()> {
    let store = Store::memory();
    store.ready().await;
    let world = World::new(store, NODES, APPS, true).await?;
    let (recorder, telling) = world.recorder();
    let metrics = Metrics::new("bench", env!("CARGO_PKG_VERSION"), None);
    let service = || world.service.clone();
    let profile = default_profile(Strategy::Spread)?;
    quiet(&world, Scheduler::new(service(), profile, recorder.clone())).await?;
    quiet(&world, NodeLifecycle::new(service(), recorder.clone())).await?;
    quiet(&world, Sets::new(service(), recorder.clone(), SetMetrics::new(&metrics))).await?;
    quiet(&world, GarbageCollection::new(service(), Limits::default(), &metrics)).await?;
    drop(recorder);
    telling.await?;
    Ok(())
}

/// The first pass may find something to say, the second may not.
async fn quiet<R: Reconciler>(world: &World, mut reconciler: R) -> Result<()> {
    let name = reconciler.name();
    let term = world.term(name).await?;
    reconciler.begin_term();
    world.beat().await?;
    let began = Instant::now();
    let first = reconciler.pass(&term).await?;
    let first_took = began.elapsed();
    world.beat().await?;
    let before = world.store.fresh().await?.revision();
    let began = Instant::now();
    let second = reconciler.pass(&term).await?;
    let took = began.elapsed();
    ensure!(second.writes == 0 && second.refused == 0, "{name} wrote {}", second.writes);
    ensure!(world.store.fresh().await?.revision() == before, "{name} wrote something");
    println!(
        "{name:<24} first pass {:>6.0} ms ({} writes), every later one {:>6.1} ms and no write",
        first_took.as_secs_f64() * 1e3,
        first.writes,
        took.as_secs_f64() * 1e3
    );
    Ok(())
}
