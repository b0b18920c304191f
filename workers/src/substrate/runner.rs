//! Runs one [`Reconciler`]: campaign, term, passes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use horchestra_store::store::Lease;
use horchestra_store::{Change, ReadError, Store, WatchEnd, Watcher};
use rand::Rng;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use horchestra_trace::{Role, Trace, attribute};

use super::metrics::{LoopLabels, LoopMetrics, PassLabels, WakeLabels};
use super::{PassError, PassReport, Reconciler, Term, leader};

/// How a loop is run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// This process, as the holder of leases.
    pub holder: Uuid,
    /// How long a lease lasts without being renewed.
    pub lease_ttl: Duration,
    /// How often a process that does not lead asks for the lease while it cannot tell when the term of who leads
    /// ends, or would not hear of a lease that is given up before. A fifth of it is how much later than its end it may
    /// ask otherwise.
    pub campaign_every: Duration,
    /// The first wait after a failed pass; doubles up to `resync`, or up to `campaign_every` while the database is away.
    pub retry: Duration,
    /// How long a pass may go on after the process was told to end.
    pub grace: Duration,
    /// Panics in a row after which the lease is left to another process.
    pub panics: u32,
}

impl Default for RunnerOptions {
    fn default() -> RunnerOptions {
        RunnerOptions {
            holder: Uuid::new_v4(),
            lease_ttl: Duration::from_secs(12),
            campaign_every: Duration::from_secs(1),
            retry: Duration::from_millis(200),
            grace: Duration::from_millis(500),
            panics: 5,
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

/// Why passes came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The term is over, or the process ends.
    Told,
    /// The loop panics again and again.
    GivesUp,
}

/// What a loop is told of its term.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Begin,
    End,
}

/// How a pass ended.
enum Passed {
    Well(PassReport),
    Failed,
    /// It could not read the database.
    Away,
    Panicked,
    /// Nobody waits for it any more.
    Dropped,
}

impl<R: Reconciler> Runner<R> {
    pub fn new(reconciler: R, store: Store, options: RunnerOptions, metrics: LoopMetrics) -> Runner<R> {
        let labels = LoopLabels { reconciler: reconciler.name() };
        metrics.begin(&labels);
        Runner { reconciler, store, options, metrics, labels }
    }

    /// Campaigns and leads, term after term, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut released = self.store.lease_hints();
        while !shutdown.is_cancelled() {
            // What is heard from here on may be news to the answer.
            released.mark_unchanged();
            let asked = Instant::now();
            let wait = match self.campaign(&shutdown).await {
                Some(lease) => match self.lead(lease, asked, &shutdown).await {
                    End::Told => continue,
                    End::GivesUp => {
                        // Others come first.
                        tokio::select! {
                            () = shutdown.cancelled() => {}
                            () = tokio::time::sleep(jittered(self.options.lease_ttl)) => {}
                        }
                        continue;
                    }
                },
                None => self.until_free(&shutdown).await,
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
                Ok(()) = released.changed() => {}
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

    /// How long to wait before asking again.
    async fn until_free(&self, shutdown: &CancellationToken) -> Duration {
        let asked = Instant::now();
        let left = self.store.lease_left(self.reconciler.name());
        let seen = match shutdown.run_until_cancelled(left).await {
            // Who does not hear of one that is given up must not rely on the whole term.
            Some(Ok(left)) if self.store.hears() => Some(left.unwrap_or_default()),
            _ => None,
        };
        leader::until_attempt(seen, &self.options).saturating_sub(asked.elapsed())
    }

    async fn lead(&mut self, lease: Lease, acquired: Instant, shutdown: &CancellationToken) -> End {
        tracing::info!(reconciler = lease.name, epoch = lease.epoch, "leading");
        self.metrics.leading.get_or_create(&self.labels).set(1);
        self.metrics.epoch.get_or_create(&self.labels).set(lease.epoch);
        let over = CancellationToken::new();
        let holding =
            leader::hold(self.store.clone(), lease.clone(), self.options.lease_ttl, acquired, over.clone());
        // A task of its own, so that a pass that keeps its thread busy does not keep the lease from being
        // renewed. When the lease is lost, the pass in flight is dropped; what it has under way is fenced by the
        // database.
        let mut holder = JoinSet::new();
        holder.spawn(holding);
        let term = Term { lease: lease.clone() };
        self.turn(Turn::Begin);
        let end = self.passes(&term, &over, shutdown).await;
        self.turn(Turn::End);
        self.metrics.leading.get_or_create(&self.labels).set(0);
        let led_to_the_end = !over.is_cancelled();
        over.cancel();
        holder.join_all().await;
        if led_to_the_end && let Err(error) = self.store.release_lease(&lease).await {
            tracing::warn!(reconciler = lease.name, %error, "could not give the lease up; it will run out");
        }
        tracing::info!(reconciler = lease.name, epoch = lease.epoch, "no longer leading");
        end
    }

    /// The loop starts over with nothing remembered, or shows nothing any more.
    fn turn(&mut self, turn: Turn) {
        let told = || match turn {
            Turn::Begin => self.reconciler.begin_term(),
            Turn::End => self.reconciler.end_term(),
        };
        if catch_unwind(AssertUnwindSafe(told)).is_err() {
            tracing::error!(
                reconciler = self.labels.reconciler,
                ?turn,
                "a loop panicked at a turn of its term"
            );
            self.metrics.panics.get_or_create(&self.labels).inc();
        }
    }

    /// Passes until the term is over or the process ends.
    async fn passes(&mut self, term: &Term, over: &CancellationToken, shutdown: &CancellationToken) -> End {
        let mut wakes = Wakes::open(&self.store, self.reconciler.kinds());
        let mut failures = 0u32;
        let mut panics = 0u32;
        self.woken("term");
        let mut causes = Vec::new();
        loop {
            let span = horchestra_trace::linked("pass", Role::Consumer, causes.drain(..));
            let name = self.labels.reconciler;
            span.rename(|| format!("pass {name}"));
            span.set(|| {
                [attribute("horchestra.loop", name), attribute("horchestra.epoch", term.lease.epoch)]
            });
            let passed = span.around(self.pass(term, over, shutdown)).await;
            drop(span);
            let (rest, source) = match passed {
                Passed::Well(report) => {
                    (failures, panics) = (0, 0);
                    let resync = jittered(self.reconciler.resync());
                    match report.again_in {
                        Some(soon) if soon < resync => (soon, "again"),
                        _ => (resync, "resync"),
                    }
                }
                Passed::Dropped => return End::Told,
                ended => {
                    failures += 1;
                    panics = if matches!(ended, Passed::Panicked) { panics + 1 } else { 0 };
                    if panics >= self.options.panics {
                        let reconciler = self.labels.reconciler;
                        tracing::error!(
                            reconciler,
                            panics,
                            "a loop panics again and again; giving its lease up"
                        );
                        return End::GivesUp;
                    }
                    let grown = self.options.retry.saturating_mul(1 << failures.min(16));
                    // A database that is back is not to wait for us.
                    let longest = match ended {
                        Passed::Away => self.options.campaign_every,
                        _ => self.reconciler.resync(),
                    };
                    (jittered(grown.min(longest)), "retry")
                }
            };
            let due = Instant::now() + rest;
            // After a failure, changes do not hurry the next attempt: it would fail the same way.
            let hurry = failures == 0;
            loop {
                tokio::select! {
                    biased;
                    () = over.cancelled() => return End::Told,
                    () = shutdown.cancelled() => return End::Told,
                    () = tokio::time::sleep_until(due) => {
                        self.woken(source);
                        break;
                    }
                    changes = wakes.next(), if hurry => {
                        if changes.as_ref().is_none_or(|changes| self.concern(changes)) {
                            self.woken("change");
                            causes = changes.map_or_else(Vec::new, |changes| self.causes(&changes));
                            break;
                        }
                    }
                }
            }
        }
    }

    fn woken(&self, source: &'static str) {
        let labels = WakeLabels { reconciler: self.labels.reconciler, source };
        self.metrics.wakes.get_or_create(&labels).inc();
    }

    /// Whether any of the changes concerns the loop. One that it cannot judge does.
    fn concern(&self, changes: &[Change]) -> bool {
        let judged =
            catch_unwind(AssertUnwindSafe(|| changes.iter().any(|change| self.reconciler.wakes(change))));
        judged.unwrap_or_else(|_| {
            tracing::error!(reconciler = self.labels.reconciler, "a loop panicked at a change");
            self.metrics.panics.get_or_create(&self.labels).inc();
            true
        })
    }

    /// The traces in which the changes were made that concern the loop.
    fn causes(&self, changes: &[Change]) -> Vec<Trace> {
        if !horchestra_trace::enabled() {
            return Vec::new();
        }
        let traced =
            changes.iter().filter_map(|change| Some((change, self.store.trace_of(change.revision)?)));
        // That a change can be judged is known by now, or it concerns the loop anyway.
        let concerns = |change: &Change| {
            catch_unwind(AssertUnwindSafe(|| self.reconciler.wakes(change))).unwrap_or(true)
        };
        traced.filter(|(change, _)| concerns(change)).map(|(_, trace)| trace).collect()
    }

    async fn pass(&mut self, term: &Term, over: &CancellationToken, shutdown: &CancellationToken) -> Passed {
        let began = Instant::now();
        let name = self.labels.reconciler;
        let grace = self.options.grace;
        let too_late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        let pass = AssertUnwindSafe(async { self.reconciler.pass(term).await }).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = pass => Some(outcome),
            () = over.cancelled() => None,
            () = too_late => None,
        };
        self.metrics.pass_duration.get_or_create(&self.labels).observe(began.elapsed().as_secs_f64());
        let (passed, outcome) = match outcome {
            Some(Ok(Ok(report))) => {
                self.metrics.writes.get_or_create(&self.labels).inc_by(report.writes as u64);
                self.metrics.refused_writes.get_or_create(&self.labels).inc_by(report.refused as u64);
                (Passed::Well(report), "ok")
            }
            Some(Ok(Err(PassError::Panicked))) | Some(Err(_)) => {
                tracing::error!(reconciler = name, "a pass panicked");
                self.metrics.panics.get_or_create(&self.labels).inc();
                self.metrics.failed_passes.get_or_create(&self.labels).inc();
                self.turn(Turn::Begin);
                (Passed::Panicked, "panicked")
            }
            Some(Ok(Err(error))) => {
                tracing::warn!(reconciler = name, error = %Chain(&error), "a pass failed");
                self.metrics.failed_passes.get_or_create(&self.labels).inc();
                let away = matches!(error, PassError::Read(ReadError::Unavailable));
                (if away { Passed::Away } else { Passed::Failed }, "failed")
            }
            None => {
                tracing::info!(reconciler = name, "a pass was dropped in the middle");
                (Passed::Dropped, "dropped")
            }
        };
        self.metrics.passes.get_or_create(&PassLabels { reconciler: name, outcome }).inc();
        passed
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
pub(super) fn jittered(duration: Duration) -> Duration {
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
