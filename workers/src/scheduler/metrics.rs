//! What the scheduler shows of itself.

use std::collections::HashMap;
use std::time::Instant;

use horchestra_runtime::Metrics;
use horchestra_runtime::metrics::DurationFamily;
use horchestra_service::DoorError;
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::cluster::Pending;
use super::cycle::{Decision, Outcome};
use crate::substrate::LeaderGauge;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    /// `bind` or `unschedulable`.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    /// `view`, `plan`, `bind` or `tell`, in this order.
    phase: &'static str,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    pending: LeaderGauge,
    attempts: Family<ResultLabels, Counter>,
    unschedulable: Family<PluginLabels, Gauge>,
    phases: DurationFamily<PhaseLabels>,
    bind_batch: Histogram,
    conflicts: Family<CauseLabels, Counter>,
    create_to_bound: Histogram,
}

impl SchedulerMetrics {
    pub fn new(metrics: &Metrics) -> SchedulerMetrics {
        SchedulerMetrics {
            pending: LeaderGauge::new(
                metrics,
                "scheduler_pending",
                "Applications without a node, as the leader last saw them",
            ),
            attempts: metrics
                .counters("scheduler_attempts", "Decisions about Applications, by what was decided"),
            unschedulable: metrics.gauges(
                "scheduler_unschedulable",
                "Applications that found no node, by each plugin that turned nodes down for them",
            ),
            phases: metrics.durations("scheduler_phase_duration", "How long the phases of a pass take"),
            bind_batch: metrics.register(
                "scheduler_bind_batch",
                "Bindings that were handed over together",
                Histogram::new(exponential_buckets(1.0, 2.0, 8)),
            ),
            conflicts: metrics.counters("scheduler_bind_conflicts", "Bindings that were refused, by why"),
            create_to_bound: metrics.duration(
                "scheduler_create_to_bound",
                "From the creation of an Application (whole seconds) to its binding",
            ),
        }
    }

    pub(super) fn decided(&self, decisions: &[Decision]) {
        self.pending.set(i64::try_from(decisions.len()).unwrap_or(i64::MAX));
        let mut blamed: HashMap<&'static str, i64> = HashMap::new();
        let mut waiting = 0;
        for decision in decisions {
            waiting += u64::from(matches!(decision.outcome, Outcome::Wait(_)));
            for plugin in &decision.turned_down_by {
                *blamed.entry(plugin).or_default() += 1;
            }
        }
        self.attempts.get_or_create(&ResultLabels { result: "unschedulable" }).inc_by(waiting);
        self.attempts
            .get_or_create(&ResultLabels { result: "bind" })
            .inc_by(decisions.len() as u64 - waiting);
        self.unschedulable.clear();
        for (plugin, count) in blamed {
            self.unschedulable.get_or_create(&PluginLabels { plugin }).set(count);
        }
    }

    /// Others decide now.
    pub(super) fn clear(&self) {
        self.pending.clear();
        self.unschedulable.clear();
    }

    /// Ends a phase; answers the beginning of the next one.
    pub(super) fn phase(&self, phase: &'static str, since: Instant) -> Instant {
        let now = Instant::now();
        self.phases.get_or_create(&PhaseLabels { phase }).observe((now - since).as_secs_f64());
        now
    }

    #[expect(clippy::cast_precision_loss, reason = "batches are small")]
    pub(super) fn batch(&self, bindings: usize) {
        self.bind_batch.observe(bindings as f64);
    }

    /// The creation is by an API replica's clock, this by ours: a difference of theirs shows here and nowhere else.
    pub(super) fn bound(&self, app: &Pending) {
        if let Some(created) = app.app.metadata.creation_timestamp {
            let took = Timestamp::now().duration_since(created.timestamp()).as_secs_f64();
            self.create_to_bound.observe(took.max(0.0));
        }
    }

    pub(super) fn conflict(&self, error: &DoorError) {
        let cause = match error {
            DoorError::Gone => "gone",
            DoorError::Changed => "changed",
            DoorError::NoNode => "no_node",
            DoorError::NoCapacity => "no_capacity",
            DoorError::Fenced => "fenced",
            DoorError::Refused(_) => "refused",
            DoorError::Unavailable(_) => "unavailable",
        };
        self.conflicts.get_or_create(&CauseLabels { cause }).inc();
    }
}
