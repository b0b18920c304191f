//! Claims of owners that were deleted, and presence that stands for nothing.

use horchestra_service::{DoorError, RequestContext};
use horchestra_store::ClaimRow;
use tokio::time::Instant;

use super::GarbageCollection;
use crate::substrate::{PassError, PassReport};

/// How far the rest is.
#[derive(Debug, Default)]
pub(super) struct Rest {
    looked: Option<Instant>,
    /// The claim to go on behind.
    after: Option<ClaimRow>,
}

impl GarbageCollection {
    /// Now and then: a stretch of the claims, and of what presence there is.
    pub(super) async fn collect_rest(
        &mut self,
        context: &RequestContext,
        report: &mut PassReport,
    ) -> Result<(), PassError> {
        if self.rest.looked.is_some_and(|at| at.elapsed() < self.limits.rest_every) {
            return Ok(());
        }
        let store = self.service.store();
        let (age, limit) = (self.limits.presence_kept, self.limits.presence);
        let pruned = store.prune_presence(age, limit).await.map_err(PassError::Read)?;
        self.metrics.count_many("sessions_ended", pruned.sessions);
        self.metrics.count_many("gateways_removed", pruned.gateways);
        self.metrics.count_many("heartbeats_removed", pruned.heartbeats);
        self.metrics.count_many("samples_removed", pruned.samples);
        let removed = pruned.sessions + pruned.gateways + pruned.heartbeats + pruned.samples;
        if removed > 0 {
            tracing::info!(
                sessions = pruned.sessions,
                gateways = pruned.gateways,
                heartbeats = pruned.heartbeats,
                samples = pruned.samples,
                "presence that stood for nothing was removed"
            );
        }
        report.writes += removed;

        let claims = store.all_claims(self.rest.after.as_ref(), self.limits.claims).await;
        let claims = claims.map_err(PassError::Read)?;
        self.rest.after = match claims.last() {
            Some(last) if claims.len() == self.limits.claims => Some(last.claim.clone()),
            _ => None,
        };
        let stray: Vec<ClaimRow> =
            claims.into_iter().filter(|owned| owned.owner_deleted).map(|owned| owned.claim).collect();
        if !stray.is_empty() {
            match self.service.release_claims(context, &stray).await {
                Ok(released) => {
                    tracing::warn!(released, "claims of deleted owners were still held");
                    self.metrics.count_many("claims_released", released);
                    report.writes += released;
                }
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                Err(error) => {
                    tracing::warn!(%error, "claims of deleted owners stay for now");
                    report.refused += stray.len();
                }
            }
        }
        self.rest.looked = Some(Instant::now());
        Ok(())
    }
}
