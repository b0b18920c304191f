//! From waiting to bound: the loop with its store on PostgreSQL, alone and while something else goes on.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_runtime::Metrics;
use horchestra_workers::scheduler::metrics::SchedulerMetrics;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::substrate::Reconciler;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::world::{World, application};

const NODES: usize = 5_000;

/// What goes on while Applications are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// Every second a node, a Service and an Application come, and those of the second before go.
    Churn,
    /// Five times a second one comes that fits nowhere.
    NeverFit,
    /// A hundred a second are deleted, and stay: their nodes let go of none.
    Deletions,
}

struct Scenario {
    name: &'static str,
    /// Those that wait.
    apps: usize,
    /// Those that are placed before.
    before: usize,
    meanwhile: Meanwhile,
    /// What Kubernetes demands of itself, Pods a second.
    floor: u32,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "basic", apps: 10_000, before: 0, meanwhile: Meanwhile::Nothing, floor: 680 },
    Scenario {
        name: "nodes, Services, Applications come and go, 1/s",
        apps: 10_000,
        before: 0,
        meanwhile: Meanwhile::Churn,
        floor: 710,
    },
    Scenario {
        name: "ones that never fit come, 5/s",
        apps: 10_000,
        before: 0,
        meanwhile: Meanwhile::NeverFit,
        floor: 590,
    },
    Scenario {
        name: "placed ones are deleted and held, 100/s",
        apps: 5_000,
        before: 5_000,
        meanwhile: Meanwhile::Deletions,
        floor: 830,
    },
];

#[tokio::main(worker_threads = 2)]
pub async fn measure(scale: usize) -> Result<()> {
    println!(
        "{:<48} {:>7} {:>7} {:>9} {:>8} {:>7} {:>7} {:>10}",
        "", "nodes", "apps", "binds/s", "floor", "ratio", "passes", "meanwhile"
    );
    for scenario in &SCENARIOS {
        scenario.measure(scale).await?;
    }
    Ok(())
}

impl Scenario {
    async fn measure(&self, scale: usize) -> Result<()> {
        let Scenario { name, meanwhile, floor, .. } = *self;
        let (nodes, apps, before) = (NODES / scale, self.apps / scale, self.before / scale);
        let server = Server::start().await?;
        let world = World::new(server.store.clone(), nodes).await?;
        let (recorder, telling) = world.recorder();
        let metrics = SchedulerMetrics::new(&Metrics::new("bench", "0", None));
        let profile = default_profile(Strategy::Spread)?;
        let mut scheduler = Scheduler::new(world.service.clone(), profile, recorder, metrics);
        let term = world.term("scheduler").await?;
        world.hear(&mut scheduler, &term).await?;
        world.placed_applications("before", before).await?;
        world.applications("app", apps).await?;

        let stop = CancellationToken::new();
        let going_on = meanwhile.begin(&world, &stop);
        let began = Instant::now();
        let (mut bound, mut passes) = (0, 0);
        while bound < apps && passes < 100 {
            scheduler.pass(&term).await?;
            passes += 1;
            bound = world.bound("app-").await?;
        }
        let elapsed = began.elapsed().as_secs_f64();
        stop.cancel();
        let done = going_on.await??;
        let waits = world.store.fresh().await?.list(Kind::Application, None).find_map(|entry| {
            let app = entry.typed::<Application>().ok()?;
            let waits = entry.columns.node.is_none() && entry.key.name.starts_with("app-");
            waits.then(|| app.status.message.clone())
        });
        ensure!(bound == apps, "only {bound} of {apps} were bound: {waits:?}");
        let rate = apps as f64 / elapsed;
        let ratio = rate / f64::from(floor);
        println!(
            "{name:<48} {nodes:>7} {apps:>7} {rate:>9.0} {floor:>8} {ratio:>7.1} {passes:>7} {done:>10}"
        );
        ensure!(done > 0 || meanwhile == Meanwhile::Nothing, "{name}: nothing went on");
        drop(scheduler);
        telling.await?;
        world.store.shutdown().await;
        Ok(())
    }
}

impl Meanwhile {
    /// Goes on until told to stop; answers how often it did what it does.
    fn begin(self, world: &World, stop: &CancellationToken) -> JoinHandle<Result<usize>> {
        let (world, stop) = (world.clone(), stop.clone());
        let every = match self {
            Meanwhile::Nothing | Meanwhile::Churn => Duration::from_secs(1),
            Meanwhile::NeverFit => Duration::from_millis(200),
            Meanwhile::Deletions => Duration::from_millis(10),
        };
        tokio::spawn(async move {
            let mut rhythm = interval(every);
            rhythm.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut done = 0;
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(done),
                    _ = rhythm.tick() => {}
                }
                self.once(&world, done).await?;
                done += usize::from(self != Meanwhile::Nothing);
            }
        })
    }

    async fn once(self, world: &World, number: usize) -> Result<()> {
        match self {
            Meanwhile::Nothing => {}
            Meanwhile::Churn => {
                let (node, app, service) = names(number);
                world.ready_node(&node).await?;
                world.hear_of(std::slice::from_ref(&node)).await?;
                let service = json!({"metadata": {"name": service}, "spec": {"ports": [{"port": 80}]}});
                world.create(Kind::Service, service).await?;
                world.create(Kind::Application, application(&app)).await?;
                if let Some(before) = number.checked_sub(1) {
                    let (node, app, service) = names(before);
                    world.delete(Kind::Application, &app).await?;
                    world.delete(Kind::Service, &service).await?;
                    world.delete(Kind::Node, &node).await?;
                }
            }
            Meanwhile::NeverFit => {
                let mut huge = application(&format!("huge-{number:05}"));
                huge["spec"]["resources"]["requests"]["cpu"] = json!("9");
                world.create(Kind::Application, huge).await?;
            }
            Meanwhile::Deletions => {
                let key = Key::namespaced(Kind::Application, "default", format!("before-{number:05}"));
                if world.store.snapshot().get(&key).is_some() {
                    world.delete(Kind::Application, &key.name).await?;
                }
            }
        }
        Ok(())
    }
}

/// A node, an Application and a Service; no two may share a name.
fn names(number: usize) -> (String, String, String) {
    (format!("churn-node-{number}"), format!("churn-app-{number}"), format!("churn-service-{number}"))
}
