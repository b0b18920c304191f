//! A large fleet in which nothing happens: every loop looks at everything, and writes nothing.
//!
//! 5,000 nodes and 50,000 Applications, half of them children of 500 sets, all placed and running, on PostgreSQL.
//! Each loop passes a few times. What a pass costs is the processor time of the whole process (cache and
//! connections included) and the statements that it ran; multiplied with how often a loop passes when nothing wakes
//! it, that is what rest costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use horchestra_core::kind::Kind;
use horchestra_runtime::Metrics;
use horchestra_service::{Service, ServiceConfig};
use horchestra_store::backend::Retention;
use horchestra_workers::certificates::metrics::CertificateMetrics;
use horchestra_workers::certificates::reconcile::NodeCertificates;
use horchestra_workers::compaction::Compaction;
use horchestra_workers::expiry::EventRetention;
use horchestra_workers::gc::{GarbageCollection, Limits};
use horchestra_workers::lifecycle::NodeLifecycle;
use horchestra_workers::scheduler::metrics::SchedulerMetrics;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::sets::{SetMetrics, Sets};
use horchestra_workers::substrate::{PassReport, Reconciler, Term};
use serde_json::json;

use crate::server::{Server, Statements};
use crate::world::{World, together};

const NODES: usize = 5_000;
const SETS: usize = 500;
const CHILDREN: usize = 50;
const OTHERS: usize = 25_000;
/// Passes that are measured, of each loop.
const PASSES: usize = 5;
/// Passes after which everything must have come to rest.
const PATIENCE: usize = 50;

/// A loop that leads.
struct Led {
    reconciler: Box<dyn Reconciler>,
    term: Term,
}

impl Led {
    async fn new(world: &World, mut reconciler: impl Reconciler) -> Result<Led> {
        let term = world.term(reconciler.name()).await?;
        reconciler.begin_term();
        Ok(Led { reconciler: Box::new(reconciler), term })
    }

    async fn pass(&mut self) -> Result<PassReport> {
        Ok(self.reconciler.pass(&self.term).await?)
    }

    /// Passes until one writes nothing; how much was written, and how long it took.
    async fn settle(&mut self, world: &World) -> Result<(usize, f64)> {
        let (mut written, began) = (0, Instant::now());
        for _ in 0..PATIENCE {
            world.beat().await?;
            world.store.fresh().await?;
            let report = self.pass().await?;
            if report.writes + report.refused == 0 {
                return Ok((written, began.elapsed().as_secs_f64()));
            }
            written += report.writes;
        }
        anyhow::bail!("{} does not come to rest", self.reconciler.name())
    }
}

#[tokio::main(worker_threads = 2)]
pub async fn measure(scale: usize) -> Result<()> {
    let server = Server::start().await?;
    let (nodes, alone, of_sets) = (NODES / scale, OTHERS / scale, SETS / scale);
    let all = alone + of_sets * CHILDREN;
    let world = World::new(server.store.clone(), nodes).await?;
    let metrics = Metrics::new("bench", "0", None);
    let (recorder, telling) = world.recorder();
    let profile = || default_profile(Strategy::Spread);
    let counters = SchedulerMetrics::new(&metrics);
    let filler = Scheduler::new(world.service.clone(), profile()?, recorder.clone(), counters.clone());
    let mut filler = Led::new(&world, filler).await?;
    world.hear(&mut *filler.reconciler, &filler.term).await?;
    world.applications("app", alone).await?;
    together((0..of_sets).map(|at| world.create(Kind::ApplicationSet, set(at)))).await?;

    // As processes have it that run for good.
    let service = Service::new(server.store.clone(), ServiceConfig::default());
    let mut sets =
        Led::new(&world, Sets::new(service.clone(), recorder.clone(), SetMetrics::new(&metrics))).await?;
    let (written, seconds) = sets.settle(&world).await?;
    println!("{} children of {of_sets} sets made, {:.0} writes/s", all - alone, written as f64 / seconds);
    let (written, seconds) = filler.settle(&world).await?;
    println!("{written} Applications bound on {nodes} nodes, {:.0}/s", written as f64 / seconds);
    let bound = world.bound("").await?;
    ensure!(bound == all, "only {bound} of {all} are bound");
    world.run_everything().await?;
    sets.settle(&world).await?;
    let scheduler = Scheduler::new(service.clone(), profile()?, recorder.clone(), counters);
    let certificates = CertificateMetrics::new(&metrics);
    let compaction =
        Compaction::new(service.clone(), Retention::default(), EventRetention::default(), &metrics);
    let mut others = vec![
        Led { reconciler: Box::new(scheduler), term: filler.term },
        Led::new(&world, NodeLifecycle::new(service.clone(), recorder.clone())).await?,
        Led::new(&world, GarbageCollection::new(service.clone(), Limits::default(), &metrics)).await?,
        Led::new(&world, NodeCertificates::new(service.clone(), recorder, None, certificates)).await?,
        Led::new(&world, compaction).await?,
    ];
    for led in &mut others {
        led.settle(&world).await?;
    }
    // What was observed is written down a little later.
    quiet(&world).await?;

    let head = world.store.fresh().await?.revision();
    println!("\nat rest at revision {head}: of each loop {PASSES} passes, the median of each number");
    println!(
        "{:<20} {:>10} {:>10} {:>12} {:>9} {:>10}",
        "", "ms", "CPU ms", "statements", "every s", "CPU ms/s"
    );
    let mut at_rest = 0.0;
    for led in std::iter::once(&mut sets).chain(&mut others) {
        at_rest += rest(&world, led, &server.statements).await?;
    }
    println!("all loops at rest: {:.1} % of a core", at_rest / 10.0);
    let now = world.store.fresh().await?.revision();
    ensure!(now == head, "at rest, and yet revision {head} became {now}");
    drop((sets, filler.reconciler, others));
    telling.await?;
    world.store.shutdown().await;
    Ok(())
}

fn set(at: usize) -> serde_json::Value {
    json!({"metadata": {"name": format!("set-{at:03}")}, "spec": {
        "rollout": {"maxUnavailable": 1},
        "applications": [{"name": "a", "scale": {"replicas": CHILDREN}, "spec": {
            "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}}],
    }})
}

/// Waits until nothing has been written for a while.
async fn quiet(world: &World) -> Result<()> {
    let (mut head, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(10) {
        let now = world.store.fresh().await?.revision();
        if now != head {
            (head, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Measures passes of a loop; answers what it costs at rest, in milliseconds a second.
async fn rest(world: &World, led: &mut Led, statements: &Statements) -> Result<f64> {
    let name = led.reconciler.name();
    let (mut wall, mut used, mut ran, mut again) = (Vec::new(), Vec::new(), Vec::new(), None);
    for _ in 0..PASSES {
        world.beat().await?;
        // A second after the last look at heartbeats they are read anew.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        statements.take();
        let (before, began) = (cpu(), Instant::now());
        let report = led.pass().await?;
        wall.push(began.elapsed().as_secs_f64() * 1e3);
        used.push(cpu() - before);
        ran.push(statements.take().values().sum::<usize>() as f64);
        ensure!(report.writes + report.refused == 0, "{name} wrote at rest: {report:?}");
        again = report.again_in;
    }
    let every = again.unwrap_or(led.reconciler.resync()).min(led.reconciler.resync()).as_secs_f64();
    let (wall, used, ran) = (median(wall), median(used), median(ran));
    println!("{name:<20} {wall:>10.1} {used:>10.1} {ran:>12.0} {every:>9.1} {:>10.2}", used / every);
    Ok(used / every)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Milliseconds of processor time that the threads of this process have used.
fn cpu() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 / 1e6
}
