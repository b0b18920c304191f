//! Runs one [`Reconciler`]: campaign, term, passes.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use horchestra_store::store::Lease;
use horchestra_store::{Change, Store, WatchEnd, Watcher};
use rand::Rng;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::metrics::{LoopLabels, LoopMetrics};
use super::{PassReport, Reconciler, Term, leader};

/// How a loop is run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// This process, as the holder of leases.
    pub holder: Uuid,
    /// How long a lease lasts without being renewed.
    pub lease_ttl: Duration,
    /// How often a process that does not lead asks for the lease.
    pub campaign_every: Duration,
    /// The first wait after a failed pass; doubles up to `resync`.
    pub retry: Duration,
}

impl Default for RunnerOptions {
    fn default() -> RunnerOptions {
        RunnerOptions {
            holder: Uuid::new_v4(),
            lease_ttl: Duration::from_secs(15),
            campaign_every: Duration::from_secs(1),
            retry: Duration::from_millis(200),
        }
    }
}

/// Runs one loop for as long as the process lives.
pub struct Runner<R> {
    reconciler: R,
    store: Store,
    options: RunnerOptions,
    metrics: LoopMetrics,
    labels: LoopLabels,
}

impl<R: Reconciler> Runner<R> {
    pub fn new(reconciler: R, store: Store, options: RunnerOptions, metrics: LoopMetrics) -> Runner<R> {
        let labels = LoopLabels { reconciler: reconciler.name() };
        Runner { reconciler, store, options, metrics, labels }
    }

    /// Campaigns and leads, term after term, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            let asked = Instant::now();
            match self.campaign(&shutdown).await {
                Some(lease) => self.lead(lease, asked, &shutdown).await,
                None => {
                    let wait = jittered(self.options.campaign_every);
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    async fn campaign(&self, shutdown: &CancellationToken) -> Option<Lease> {
        let name = self.reconciler.name();
        let asked = self.store.acquire_lease(name, self.options.holder, self.options.lease_ttl);
        tokio::select! {
            () = shutdown.cancelled() => None,
            answer = asked => match answer {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::debug!(reconciler = name, %error, "could not ask for the lease");
                    None
                }
            },
        }
    }

    async fn lead(&mut self, lease: Lease, acquired: Instant, shutdown: &CancellationToken) {
        tracing::info!(reconciler = lease.name, epoch = lease.epoch, "leading");
        self.metrics.leading.get_or_create(&self.labels).set(1);
        self.metrics.epoch.get_or_create(&self.labels).set(lease.epoch);
        let over = CancellationToken::new();
        let holding =
            leader::hold(self.store.clone(), lease.clone(), self.options.lease_ttl, acquired, over.clone());
        // A task of its own, so that a pass that keeps its thread busy does not keep the lease from being
        // renewed. When the lease is lost, the pass in flight is fenced by the database and ends by itself.
        let mut holder = JoinSet::new();
        holder.spawn(holding);
        let term = Term { lease: lease.clone() };
        self.reconciler.begin_term();
        self.passes(&term, &over, shutdown).await;
        self.metrics.leading.get_or_create(&self.labels).set(0);
        let led_to_the_end = !over.is_cancelled();
        over.cancel();
        holder.join_all().await;
        if led_to_the_end && let Err(error) = self.store.release_lease(&lease).await {
            tracing::warn!(reconciler = lease.name, %error, "could not give the lease up; it will run out");
        }
        tracing::info!(reconciler = lease.name, epoch = lease.epoch, "no longer leading");
    }

    /// Passes until the term is over or the process ends.
    async fn passes(&mut self, term: &Term, over: &CancellationToken, shutdown: &CancellationToken) {
        let mut wakes = Wakes::open(&self.store, self.reconciler.kinds());
        let mut failures = 0u32;
        loop {
            let rest = match self.pass(term).await {
                Some(report) => {
                    failures = 0;
                    let resync = jittered(self.reconciler.resync());
                    report.again_in.map_or(resync, |soon| soon.min(resync))
                }
                None => {
                    failures += 1;
                    let grown = self.options.retry.saturating_mul(1 << failures.min(16));
                    jittered(grown.min(self.reconciler.resync()))
                }
            };
            let due = Instant::now() + rest;
            // After a failure, changes do not hurry the next attempt: it would fail the same way.
            let hurry = failures == 0;
            loop {
                tokio::select! {
                    () = over.cancelled() => return,
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep_until(due) => break,
                    changes = wakes.next(), if hurry => {
                        if changes.is_none_or(|changes| changes.iter().any(|change| self.reconciler.wakes(change))) {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// One pass; `None` when it failed.
    async fn pass(&mut self, term: &Term) -> Option<PassReport> {
        let began = Instant::now();
        let name = self.reconciler.name();
        let outcome = AssertUnwindSafe(self.reconciler.pass(term)).catch_unwind().await;
        self.metrics.pass_duration.get_or_create(&self.labels).observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(Ok(report)) => {
                self.metrics.writes.get_or_create(&self.labels).inc_by(report.writes as u64);
                self.metrics.refused_writes.get_or_create(&self.labels).inc_by(report.refused as u64);
                Some(report)
            }
            Ok(Err(error)) => {
                tracing::warn!(reconciler = name, error = %Chain(&error), "a pass failed");
                self.metrics.failed_passes.get_or_create(&self.labels).inc();
                None
            }
            Err(_) => {
                tracing::error!(reconciler = name, "a pass panicked");
                self.metrics.panics.get_or_create(&self.labels).inc();
                self.metrics.failed_passes.get_or_create(&self.labels).inc();
                None
            }
        }
    }
}

/// An error with its sources, for the log.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// 90 to 110 per cent of a duration, so that replicas do not act in step.
fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.9..1.1))
}

/// The watches of a loop.
struct Wakes {
    store: Store,
    watchers: Vec<(horchestra_core::Kind, Watcher)>,
}

impl Wakes {
    fn open(store: &Store, kinds: &[horchestra_core::Kind]) -> Wakes {
        let revision = store.snapshot().revision();
        let watchers =
            kinds.iter().filter_map(|kind| Some((*kind, store.watch(*kind, revision).ok()?))).collect();
        Wakes { store: store.clone(), watchers }
    }

    /// The next changes of any watched kind. `None`: a watch had to be opened again, so anything may have
    /// changed.
    async fn next(&mut self) -> Option<Vec<Change>> {
        let mut waiting: FuturesUnordered<_> = self
            .watchers
            .iter_mut()
            .enumerate()
            .map(|(at, (_, watcher))| async move { (at, watcher.next().await) })
            .collect();
        let Some((at, outcome)) = waiting.next().await else {
            // Nothing to watch: only the resync drives this loop.
            return std::future::pending().await;
        };
        drop(waiting);
        match outcome {
            Ok(changes) => Some(changes),
            Err(WatchEnd::Expired { .. }) => {
                let kind = self.watchers[at].0;
                match self.store.watch(kind, self.store.snapshot().revision()) {
                    Ok(watcher) => self.watchers[at].1 = watcher,
                    Err(_) => drop(self.watchers.remove(at)),
                }
                None
            }
            Err(WatchEnd::Closed) => {
                drop(self.watchers.remove(at));
                None
            }
        }
    }
}
