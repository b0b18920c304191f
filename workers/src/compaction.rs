//! The compaction loop: makes room in the change log ahead of time, drops what is older than is kept, and lets
//! Events go that have had their time.
//!
//! Any process makes room when it finds none, so writes never depend on this loop; it only sees to it that
//! they need not wait, and that the past does not grow without end. A pass is bounded; where it leaves something, the
//! next one follows soon. What is old is a matter of the database's clock alone, and what is gone is gone whoever
//! removed it: a process that was deposed in the middle of a pass removes nothing that its successor would keep.

use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::Kind;
use horchestra_runtime::Metrics;
use horchestra_service::{DoorError, RequestContext, Service};
use horchestra_store::backend::Retention;
use horchestra_store::{Change, Upkeep};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::expiry::EventRetention;
use crate::substrate::{LeaderGauge, PassError, PassReport, Reconciler, Term};

/// Events that are deleted before the lease is looked at again.
const BATCH: usize = 1024;

/// When to go on with what one pass had no room for.
const GO_ON_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: &'static str,
}

/// What the loop removes and leaves, for dashboards.
#[derive(Clone)]
struct CompactionMetrics {
    removed: Family<What, Counter>,
    oldest: LeaderGauge,
    headroom: LeaderGauge,
}

impl CompactionMetrics {
    fn new(metrics: &Metrics) -> CompactionMetrics {
        CompactionMetrics {
            removed: metrics.counters("compaction_removed", "Rows and partitions removed, by what they were"),
            oldest: LeaderGauge::new(
                metrics,
                "log_oldest_revision",
                "What is older than this revision is gone from the log",
            ),
            headroom: LeaderGauge::new(
                metrics,
                "log_headroom_revisions",
                "Revisions that the log has room for without another partition",
            ),
        }
    }

    fn note(&self, done: Upkeep) {
        self.oldest.set(done.oldest);
        self.headroom.set(done.headroom);
        self.count("partitions", done.partitions);
        self.count("versions", done.versions);
        self.count("tombstones", done.tombstones);
        self.count("outcomes", done.outcomes);
    }

    fn count(&self, what: &'static str, how_many: usize) {
        if how_many > 0 {
            self.removed.get_or_create(&What { what }).inc_by(how_many as u64);
        }
    }
}

/// The loop.
pub struct Compaction {
    service: Service,
    retention: Retention,
    events: EventRetention,
    now: fn() -> Timestamp,
    metrics: CompactionMetrics,
}

impl Compaction {
    pub fn new(
        service: Service,
        retention: Retention,
        events: EventRetention,
        metrics: &Metrics,
    ) -> Compaction {
        Compaction {
            service,
            retention,
            events,
            now: Timestamp::now,
            metrics: CompactionMetrics::new(metrics),
        }
    }

    /// With another clock.
    #[must_use]
    pub fn with_clock(self, now: fn() -> Timestamp) -> Compaction {
        Compaction { now, ..self }
    }

    async fn expire(&self, term: &Term) -> Result<PassReport, PassError> {
        let snapshot = self.service.store().snapshot();
        let (events, now) = (self.events, (self.now)());
        // Many Events take a while to look through: off the threads that renew leases.
        let due = tokio::task::spawn_blocking(move || events.due(&snapshot, now))
            .await
            .map_err(|_| PassError::Panicked)?;
        let context = RequestContext::new(term.caller());
        let mut report = PassReport::default();
        for batch in due.chunks(BATCH) {
            match self.service.expire_events(&context, batch).await {
                Ok(gone) => {
                    report.writes += gone;
                    report.refused += batch.len() - gone;
                }
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                Err(error) => {
                    tracing::warn!(%error, "Events could not be deleted; the next pass tries again");
                    report.refused += batch.len();
                    break;
                }
            }
        }
        if report.writes > 0 {
            self.metrics.count("events", report.writes);
            tracing::debug!(gone = report.writes, "Events expired");
        }
        Ok(report)
    }
}

impl Reconciler for Compaction {
    fn name(&self) -> &'static str {
        "compaction"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[]
    }

    fn wakes(&self, _: &Change) -> bool {
        false
    }

    fn resync(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn end_term(&mut self) {
        self.metrics.oldest.clear();
        self.metrics.headroom.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(async move {
            let mut report = self.expire(term).await?;
            let maintained = self.service.store().maintain(self.retention).await;
            let done = maintained.map_err(PassError::Read)?;
            self.metrics.note(done);
            tracing::debug!(?done, "compacted");
            report.again_in = done.unfinished.then_some(GO_ON_AFTER);
            Ok(report)
        })
    }
}
