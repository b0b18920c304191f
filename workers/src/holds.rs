//! The push-holds loop: shows people which nodes are held.
//!
//! Whether a node is held is a matter of rows that gateways read (see the store's module `pushes`). This loop puts the
//! condition `Held` on every Node that is, takes it off those that are no longer, tells of both in Events, and counts.
//! Nothing rests on the condition but the scheduler, which keeps work off such nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::meta::{Condition, condition};
use horchestra_core::kinds::node::{CONDITION_HELD, Node};
use horchestra_core::reasons;
use horchestra_runtime::Metrics;
use horchestra_service::{DoorError, HoldVerdict, Recorder, RequestContext, Service, Subject};
use horchestra_store::pushes::reason;
use horchestra_store::{Change, ChangeKind, Hold};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::substrate::{PassError, PassReport, Reconciler, Term, store_verdicts};

/// How often holds are looked at.
const PERIOD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabels {
    /// As in the condition.
    pub reason: String,
}

/// What the loop counts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HoldMetrics {
    pub held: Family<ReasonLabels, Gauge>,
}

impl HoldMetrics {
    pub fn new(metrics: &Metrics) -> HoldMetrics {
        HoldMetrics {
            held: metrics
                .gauges("held_nodes", "Nodes that are sent nothing, by why, as the leader last saw them"),
        }
    }

    /// Reasons that no node has are shown as well, so that one that begins is an increase.
    fn show(&self, mut counts: BTreeMap<String, i64>) {
        for reason in reason::ALL {
            counts.entry(reason.to_owned()).or_default();
        }
        self.held.clear();
        for (reason, count) in counts {
            self.held.get_or_create(&ReasonLabels { reason }).set(count);
        }
    }
}

/// The loop.
pub struct PushHolds {
    service: Service,
    recorder: Recorder,
    metrics: HoldMetrics,
}

impl PushHolds {
    pub fn new(service: Service, recorder: Recorder, metrics: HoldMetrics) -> PushHolds {
        PushHolds { service, recorder, metrics }
    }

    async fn reconcile(&self, term: &Term) -> Result<PassReport, PassError> {
        let store = self.service.store();
        let holds = store.holds().await.map_err(PassError::Read)?;
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        let mut due = Vec::new();
        for entry in store.snapshot().list(Kind::Node, None) {
            let Ok(node) = entry.typed::<Node>() else { continue };
            let wanted = holds.of(&entry.key.name).map(|hold| verdict(&entry.key.name, hold));
            if let Some(verdict) = &wanted {
                *counts.entry(verdict.reason.clone()).or_default() += 1;
            }
            if !shows(condition(&node.status.conditions, CONDITION_HELD), wanted.as_ref()) {
                due.push((entry.key.name.clone(), wanted));
            }
        }
        self.metrics.show(counts);
        let context = RequestContext::new(term.caller());
        let context = &context;
        let mut report = PassReport { again_in: Some(PERIOD), ..PassReport::default() };
        let write = |name: String, wanted| async move { self.show(context, &name, wanted).await };
        store_verdicts(due, write, &mut report).await?;
        Ok(report)
    }

    async fn show(
        &self,
        context: &RequestContext,
        name: &str,
        wanted: Option<HoldVerdict>,
    ) -> Result<(), DoorError> {
        let (reason, message) = match &wanted {
            Some(verdict) => (&reasons::PUSH_HELD, verdict.message.clone()),
            None => (&reasons::PUSH_RELEASED, "the node is sent what it is to run again".to_owned()),
        };
        match self.service.show_hold(context, name, wanted).await {
            Ok(outcome) => {
                if outcome.changed {
                    self.recorder.record(Subject::of(&outcome.entry), reason, message);
                }
                Ok(())
            }
            Err(DoorError::Gone | DoorError::NoNode) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What a hold says on a Node, and what to do about it.
fn verdict(node: &str, hold: &Hold) -> HoldVerdict {
    HoldVerdict {
        reason: hold.reason.clone(),
        message: format!(
            "{}; nothing is sent to the node that could stop what it runs. Compare what runs there with what the \
             API shows, mend what is missing, then POST nodes/{node}/admit, or release all nodes with \
             \"horchestra-api hold release\"",
            hold.message
        ),
    }
}

fn shows(stands: Option<&Condition>, wanted: Option<&HoldVerdict>) -> bool {
    match (stands, wanted) {
        (None, None) => true,
        (Some(stands), Some(wanted)) => {
            (&stands.reason, &stands.message) == (&wanted.reason, &wanted.message)
        }
        _ => false,
    }
}

impl Reconciler for PushHolds {
    fn name(&self) -> &'static str {
        "push-holds"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn wakes(&self, change: &Change) -> bool {
        change.kind == ChangeKind::Added
    }

    fn end_term(&mut self) {
        self.metrics.held.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}
