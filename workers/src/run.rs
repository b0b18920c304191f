//! The process: opens the store, runs every loop, ends in order.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use horchestra_core::kind::Kind;
use horchestra_runtime::metrics::Readings;
use horchestra_runtime::{Checks, Metrics, Shutdown, Tasks, Traces, health, place, telemetry};
use horchestra_service::settings::{ClusterSettings, Wanted};
use horchestra_service::{Fate, Observer, Recorder, Service, ServiceConfig};
use horchestra_store::backend::Retention;
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::store::StoreOptions;
use horchestra_store::{Announcement, Store, StoreReadings};
use prometheus_client::encoding::EncodeLabelSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::args::Args;
use crate::certificates::metrics::CertificateMetrics;
use crate::certificates::reconcile::NodeCertificates;
use crate::compaction::Compaction;
use crate::expiry::EventRetention;
use crate::gc::{GarbageCollection, Limits};
use crate::holds::{HoldMetrics, PushHolds};
use crate::lifecycle::NodeLifecycle;
use crate::scheduler::metrics::SchedulerMetrics;
use crate::scheduler::plugins;
use crate::scheduler::reconcile::Scheduler;
use crate::sets::{SetMetrics, Sets};
use crate::substrate::{LoopMetrics, Reconciler, Runner, RunnerOptions};
use crate::survey;

/// How long the database may be away before this process says that it is not ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// For how long the database is waited for at the very end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs until a signal or a failure.
pub async fn run(args: Args) -> Result<ExitCode> {
    telemetry::init(&args.telemetry)?;
    let traces = Traces::begin("horchestra-workers", env!("CARGO_PKG_VERSION"));
    let code = Box::pin(process(args)).await;
    traces.finish().await;
    code
}

async fn process(args: Args) -> Result<ExitCode> {
    let metrics =
        Metrics::new("horchestra-workers", env!("CARGO_PKG_VERSION"), option_env!("HORCHESTRA_COMMIT"));
    let tasks = Tasks::new(&metrics);
    let shutdown = Shutdown::install(&args.shutdown, &tasks)?;
    let checks = Checks::new();
    checks.draining(shutdown.draining());
    // Fails until there is a store to look at.
    let _starting = checks.state("store");
    let listener = health::bind(args.metrics.metrics_addr).await?;
    tasks.essential(
        "health",
        &shutdown,
        health::serve(listener, checks.clone(), metrics.clone(), shutdown.stopping().clone()),
    );

    let signer = args.signer.open(&tasks).context("certificates of nodes cannot be signed")?;
    let backend = PostgresBackend::open(
        &args.database.database_url,
        Options {
            application: "horchestra-workers".to_owned(),
            connections: args.database.database_connections,
            listen_url: args.database.database_listen_url.clone(),
            observer: Some(Arc::new(metrics.statements())),
        },
    )
    .context("opening the database")?;
    tracing::info!(database_connections = args.database.most_connections(), "working");
    // All: whoever owns what has to be known. Secrets are kept as they are stored, sealed; this process has no key.
    let kinds = Kind::ALL.to_vec();
    let store = Store::open(backend, StoreOptions { kinds, ..StoreOptions::default() });
    watch_store(&checks, &store);
    let shown = store.clone();
    metrics.readings(move || {
        let StoreReadings { counters, gauges, gauges_by, histograms } = shown.readings();
        Readings { counters, gauges, gauges_by, histograms }
    });
    let wanted = Wanted {
        node_ready_timeout: args.node_ready_timeout,
        node_lost_after: args.node_lost_after,
        feature_gates: args.feature_gates,
        service_range: args.service_cidr,
        routed_range: args.routed_cidr,
        ..Wanted::default()
    };
    let settings = tokio::select! {
        settings = ClusterSettings::agree_patiently(&store, wanted) => settings?,
        () = shutdown.draining().cancelled() => return Ok(shutdown.finish(&tasks).await),
    };
    let config = ServiceConfig {
        ready_timeout: settings.node_ready_timeout(),
        node_lost_after: settings.node_lost_after(),
        gates: settings.feature_gates,
        service_range: settings.service_range,
        routed_range: settings.routed_range,
        ..ServiceConfig::default()
    };
    let service = Service::new(store.clone(), config);

    let options =
        RunnerOptions { holder: Uuid::new_v4(), lease_ttl: args.lease_ttl, ..RunnerOptions::default() };
    store.announce(Announcement {
        id: options.holder,
        program: "horchestra-workers".to_owned(),
        place: place(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let profile = plugins::default_profile(args.scheduler_strategy)?;
    let recorder = record(&service, options.holder, &metrics, &tasks);
    let garbage = GarbageCollection::new(service.clone(), Limits::default(), &metrics);
    let scheduler = SchedulerMetrics::new(&metrics);
    let sets = SetMetrics::new(&metrics);
    let certificates = CertificateMetrics::new(&metrics);
    let compaction =
        Compaction::new(service.clone(), Retention::default(), EventRetention::default(), &metrics);
    let holds = HoldMetrics::new(&metrics);
    tasks.spawn("survey", survey::follow(store.clone(), &metrics, shutdown.stopping().clone()));
    let metrics = LoopMetrics::new(&metrics);
    let start = Start { store: &store, options: &options, metrics, tasks: &tasks, shutdown: &shutdown };
    start.run(Scheduler::new(service.clone(), profile, recorder.clone(), scheduler));
    start.run(Sets::new(service.clone(), recorder.clone(), sets));
    start.run(NodeLifecycle::new(service.clone(), recorder.clone()));
    start.run(PushHolds::new(service.clone(), recorder.clone(), holds));
    start.run(NodeCertificates::new(service, recorder, signer, certificates));
    start.run(garbage);
    start.run(compaction);

    let code = shutdown.finish(&tasks).await;
    let _ = tokio::time::timeout(FAREWELL, store.shutdown()).await;
    Ok(code)
}

/// Readiness: the cache is loaded, and the database has not been away for long.
fn watch_store(checks: &Checks, store: &Store) {
    let looked_at = store.clone();
    checks.add("store", move || {
        let health = looked_at.health();
        if !health.loaded {
            return Err("the objects are being loaded".to_owned());
        }
        if health.disconnected_for > PATIENCE {
            return Err(format!("no database for {} s", health.disconnected_for.as_secs()));
        }
        Ok(())
    });
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FateLabels {
    fate: &'static str,
}

/// What the loops tell people with.
fn record(service: &Service, process: Uuid, metrics: &Metrics, tasks: &Tasks) -> Recorder {
    let observed = metrics.counters::<FateLabels>("events_observed", "Observations, by what became of them");
    let observer: Observer = Arc::new(move |fate: Fate, count| {
        observed.get_or_create(&FateLabels { fate: fate.word() }).inc_by(count);
    });
    let instance = format!("horchestra-workers-{}", process.simple());
    // It ends after the last loop, which may have something to tell to the end.
    let (recorder, task) = Recorder::new(service.clone(), &instance, observer, CancellationToken::new());
    tasks.spawn("events", task);
    recorder
}

/// What it takes to start a loop.
struct Start<'a> {
    store: &'a Store,
    options: &'a RunnerOptions,
    metrics: LoopMetrics,
    tasks: &'a Tasks,
    shutdown: &'a Shutdown,
}

impl Start<'_> {
    fn run<R: Reconciler>(&self, reconciler: R) {
        let name = reconciler.name();
        let runner = Runner::new(reconciler, self.store.clone(), self.options.clone(), self.metrics.clone());
        self.tasks.vital(name, runner.run(self.shutdown.stopping().clone()));
    }
}
