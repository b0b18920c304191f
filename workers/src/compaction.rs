//! The compaction loop: makes room in the change log ahead of time, drops what is older than is kept, and lets
//! Events go that have had their time.
//!
//! Any process makes room when it finds none, so writes never depend on this loop; it only sees to it that
//! they need not wait, and that the past does not grow without end.

use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::Kind;
use horchestra_service::{DoorError, RequestContext, Service};
use horchestra_store::Change;
use horchestra_store::backend::Retention;
use jiff::Timestamp;

use crate::expiry::EventRetention;
use crate::substrate::{PassError, PassReport, Reconciler, Term};

/// Events that are deleted before the lease is looked at again.
const BATCH: usize = 1024;

/// The loop.
pub struct Compaction {
    service: Service,
    retention: Retention,
    events: EventRetention,
    now: fn() -> Timestamp,
}

impl Compaction {
    pub fn new(service: Service, retention: Retention, events: EventRetention) -> Compaction {
        Compaction { service, retention, events, now: Timestamp::now }
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

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(async move {
            let report = self.expire(term).await?;
            let maintained = self.service.store().maintain(self.retention).await;
            let oldest = maintained.map_err(PassError::Read)?;
            tracing::debug!(oldest, "compacted");
            Ok(report)
        })
    }
}
