//! The garbage collection: what is left over when something was deleted.
//!
//! # Dependents
//!
//! An object whose owners are gone is deleted, in the background. One whose owner waits for it (finalizer
//! `foregroundDeletion`) is deleted as well, and the owner goes when nothing is left that it waits for. One whose
//! owner is to leave it behind (finalizer `orphan`) has the reference taken off, and then the owner goes. An
//! object with several owners lives as long as one of them does, and only loses the others.
//!
//! **An owner counts as gone only if it was deleted here**: there is a tombstone of that very uid, kind and place.
//! A reference that cannot be followed, to a uid that nobody here has ever seen or to an object elsewhere, keeps
//! its object and means nothing else. Manifests from another cluster, with references in them that mean nothing
//! here, are never collected. Tombstones are kept for thirty days; what could not be deleted until then stays.
//!
//! Owners that wait for each other in a circle go together, once nothing outside of the circle holds any of them.
//!
//! Children of an ApplicationSet belong to its controller for as long as the set is there: it deletes or frees them
//! itself, under every policy, and nothing is done about them here. Once the set is gone they are dependents like
//! any other.
//!
//! # Everything else
//!
//! Applications that are deleted while they wait for a node that was forgotten are let go. Claims (ids, addresses)
//! of owners that were deleted are given back: an object gives its claims back in the very change that deletes
//! it, so this finds something only after a defect or a restored table. Sessions that no gateway serves, terms of
//! gateways that have ended and heartbeats of nodes that are no more are removed. Events, tombstones and the log
//! are the business of [`crate::compaction`].
//!
//! # How
//!
//! A pass takes a view, makes a plan of it, which is a pure function, and writes at most [`Limits::writes`]
//! changes. Each says what it rests on and is refused where that is no longer so; then a later pass looks again.
//! What is refused for reasons of its own (somebody still uses it) is tried again after a growing wait and keeps
//! nobody else waiting. What the loop remembers from pass to pass it could find out anew.

mod absent;
mod graph;
mod metrics;
mod plan;
mod rest;

use std::collections::HashSet;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use horchestra_core::kind::Kind;
use horchestra_runtime::Metrics;
use horchestra_service::{DoorError, Outcome, RequestContext, Service};
use horchestra_store::{Change, ChangeKind};
use tokio::time::Instant;
use uuid::Uuid;

use crate::retries::Retries;
use crate::substrate::{PassError, PassReport, Reconciler, Term};
use absent::Absent;
use graph::Graph;
use metrics::GarbageMetrics;
use plan::{Plan, Step, plan};
use rest::Rest;

/// Kinds whose objects own and are owned.
const KINDS: [Kind; 13] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Application,
    Kind::ApplicationSet,
    Kind::Service,
    Kind::PersistentVolume,
    Kind::Secret,
    Kind::SecretStore,
    Kind::Role,
    Kind::RoleBinding,
    Kind::ClusterRole,
    Kind::ClusterRoleBinding,
    Kind::CertificateSigningRequest,
];

/// How soon what was refused is looked at again, at the earliest.
const SOON: Duration = Duration::from_secs(1);

/// How much one pass does.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Objects that are changed or deleted.
    pub writes: usize,
    /// Of those, how many at the same time.
    pub at_once: usize,
    /// Owners of whom it is found out whether they were deleted.
    pub owners: usize,
    /// Nodes of which it is found out whether they were forgotten.
    pub nodes: usize,
    /// Claims that are looked at.
    pub claims: usize,
    /// Sessions, gateways and heartbeats that are removed, of each.
    pub presence: usize,
    /// How often the rest (claims, presence) is looked at.
    pub rest_every: Duration,
    /// How long presence is kept after its last sign of life.
    pub presence_kept: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            writes: 512,
            at_once: 16,
            owners: 1_000,
            nodes: 100,
            claims: 2_000,
            presence: 100,
            rest_every: Duration::from_secs(60),
            presence_kept: Duration::from_secs(3600),
        }
    }
}

/// The loop.
pub struct GarbageCollection {
    service: Service,
    limits: Limits,
    metrics: GarbageMetrics,
    graph: Graph,
    absent: Absent,
    retries: Retries<Uuid>,
    rest: Rest,
}

impl GarbageCollection {
    pub fn new(service: Service, limits: Limits, metrics: &Metrics) -> GarbageCollection {
        GarbageCollection {
            service,
            limits,
            metrics: GarbageMetrics::new(metrics),
            graph: Graph::default(),
            absent: Absent::default(),
            retries: Retries::default(),
            rest: Rest::default(),
        }
    }

    async fn reconcile(&mut self, term: &Term) -> Result<PassReport, PassError> {
        let context = RequestContext::new(term.caller());
        let snapshot = self.service.store().snapshot();
        // Looking through everything takes a while: off the threads that renew leases.
        let (mut graph, view) = (std::mem::take(&mut self.graph), snapshot.clone());
        let looked = tokio::task::spawn_blocking(move || {
            graph.follow(&view);
            graph
        });
        self.graph = looked.await.map_err(|_| PassError::Panicked)?;
        let unknown = self.graph.absent_owners(&snapshot);
        let store = self.service.store();
        let more_owners = self.absent.learn(store, unknown, self.limits.owners).await?;
        let missing = self.graph.missing_nodes(&snapshot);
        let forgotten = absent::forgotten_nodes(store, missing, self.limits.nodes).await?;
        let wanted = plan(&self.graph, &snapshot, &self.absent, &forgotten);
        self.metrics.waiting.set(i64::try_from(wanted.waiting).unwrap_or(i64::MAX));
        let mut report = self.carry_out(&context, wanted).await?;
        if more_owners {
            report.again_in = Some(Duration::ZERO);
        }
        self.collect_rest(&context, &mut report).await?;
        Ok(report)
    }

    /// Writes what is planned, as far as the limit allows.
    async fn carry_out(&mut self, context: &RequestContext, wanted: Plan) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let now = Instant::now();
        let garbage: HashSet<Uuid> = wanted.steps.iter().map(|step| step.of().uid).collect();
        self.retries.forget_all_but(|uid| garbage.contains(uid));
        let (steps, resting): (Vec<Step>, Vec<Step>) =
            wanted.steps.into_iter().partition(|step| self.retries.is_due(&step.of().uid, now));
        let all = steps.len();
        let mut failed: HashSet<Uuid> = resting.iter().map(|step| step.of().uid).collect();
        let writes = self.limits.writes.min(all);
        let mut steps = steps.into_iter().take(writes).peekable();
        while steps.peek().is_some() {
            // Whoever waits for another of this pass comes after it.
            let mut together = Vec::new();
            let mut ahead: HashSet<Uuid> = HashSet::new();
            while let Some(step) = steps.next_if(|step| {
                together.len() < self.limits.at_once.max(1)
                    && !step.after().iter().any(|uid| ahead.contains(uid))
            }) {
                if step.after().iter().any(|uid| failed.contains(uid)) {
                    failed.insert(step.of().uid);
                    continue;
                }
                ahead.insert(step.of().uid);
                together.push(step);
            }
            let service = &self.service;
            let done = join_all(together.iter().map(|step| write(service, context, step))).await;
            for (step, outcome) in together.iter().zip(done) {
                let uid = step.of().uid;
                match outcome {
                    Ok(Outcome { changed: true, .. }) => {
                        report.writes += 1;
                        self.retries.succeeded(&uid);
                        self.metrics.count(step.what());
                        tracing::info!(key = %step.of().key, what = step.what(), "garbage");
                    }
                    Ok(_) | Err(DoorError::Gone) => self.retries.succeeded(&uid),
                    Err(DoorError::Fenced) => return Err(PassError::Deposed),
                    Err(error) => {
                        report.refused += 1;
                        failed.insert(uid);
                        self.metrics.count("refused");
                        let wait = self.retries.failed(uid, now);
                        tracing::debug!(key = %step.of().key, %error, ?wait, "garbage stays for now");
                    }
                }
            }
        }
        // What was written may make more possible.
        let progress = report.writes + report.refused > 0;
        report.again_in = if report.writes > 0 || all > writes && progress {
            Some(Duration::ZERO)
        } else if all > writes {
            Some(SOON)
        } else {
            self.retries.next_due(now).map(|wait| wait.max(SOON))
        };
        Ok(report)
    }
}

async fn write(service: &Service, context: &RequestContext, step: &Step) -> Result<Outcome, DoorError> {
    match step {
        Step::Collect { of, propagation } => service.collect(context, of, *propagation).await,
        Step::Disown { of, owners } => service.disown(context, of, owners).await,
        Step::LetGo { of, policy, .. } => service.let_go(context, of, *policy).await,
        Step::GiveUpNode { of } => service.forget_teardown(context, of).await,
    }
}

impl Reconciler for GarbageCollection {
    fn name(&self) -> &'static str {
        "garbage-collection"
    }

    fn kinds(&self) -> &'static [Kind] {
        &KINDS
    }

    fn wakes(&self, change: &Change) -> bool {
        let entry = &change.entry;
        match change.kind {
            ChangeKind::Added => graph::names_owners(entry),
            // What nodes and loops report is about the status.
            ChangeKind::Modified => {
                entry.core_revision == entry.revision
                    && (entry.deleting || self.graph.get(&entry.uid).is_some() || graph::names_owners(entry))
            }
            ChangeKind::Deleted => self.graph.is_missed(entry),
        }
    }

    fn begin_term(&mut self) {
        self.graph = Graph::default();
        self.absent = Absent::default();
        self.retries = Retries::default();
        self.rest = Rest::default();
    }

    fn end_term(&mut self) {
        self.metrics.waiting.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_that_can_own_are_followed() {
        let owning: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| horchestra_core::owners::can_own(*kind)).collect();
        assert_eq!(owning, KINDS);
    }
}
