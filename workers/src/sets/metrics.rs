//! What the loop of sets shows of itself.

use std::collections::BTreeMap;

use horchestra_runtime::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StepLabels {
    pub verb: &'static str,
    /// `done`, `refused`, or `put_off`.
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PhaseLabels {
    pub phase: String,
}

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SetMetrics {
    pub steps: Family<StepLabels, Counter>,
    pub sets: Family<PhaseLabels, Gauge>,
    pub children: Family<PhaseLabels, Gauge>,
}

impl SetMetrics {
    pub fn new(metrics: &Metrics) -> SetMetrics {
        SetMetrics {
            steps: metrics.counters("applicationset_steps", "Writes of sets, by what became of them"),
            sets: metrics.gauges("applicationsets", "Sets, by their phase, as the leader last saw them"),
            children: metrics.gauges(
                "applicationset_children",
                "Children of sets, by their phase, as the leader last saw them",
            ),
        }
    }

    pub fn step(&self, verb: &'static str, outcome: &'static str) {
        self.steps.get_or_create(&StepLabels { verb, outcome }).inc();
    }

    /// Shows these counts and no others.
    pub fn show(family: &Family<PhaseLabels, Gauge>, counts: BTreeMap<String, i64>) {
        family.clear();
        for (phase, count) in counts {
            family.get_or_create(&PhaseLabels { phase }).set(count);
        }
    }
}
