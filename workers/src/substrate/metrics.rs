//! What the loops show of themselves, by loop.

use std::fmt;
use std::sync::Arc;

use horchestra_runtime::Metrics;
use horchestra_runtime::metrics::DurationFamily;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// A number that only who leads can know: shown from when it is first set in a term until that term is over.
#[derive(Clone, Debug, Default)]
pub struct LeaderGauge(Arc<Mutex<Option<i64>>>);

impl LeaderGauge {
    pub fn new(metrics: &Metrics, name: &str, help: &str) -> LeaderGauge {
        metrics.register(name, help, LeaderGauge::default())
    }

    pub fn set(&self, value: i64) {
        *self.0.lock() = Some(value);
    }

    pub fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl EncodeMetric for LeaderGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let value = *self.0.lock();
        value.map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// Names the loop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LoopLabels {
    pub reconciler: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PassLabels {
    pub reconciler: &'static str,
    /// `ok`, `failed`, `panicked` or `dropped` (the term or the process came to its end meanwhile).
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WakeLabels {
    pub reconciler: &'static str,
    /// `term` (its first pass), `change`, `again` (the loop asked for it), `retry` (of a pass that failed) or
    /// `resync`.
    pub source: &'static str,
}

/// The families of all loops of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LoopMetrics {
    pub leading: Family<LoopLabels, Gauge>,
    pub epoch: Family<LoopLabels, Gauge>,
    pub passes: Family<PassLabels, Counter>,
    pub wakes: Family<WakeLabels, Counter>,
    pub failed_passes: Family<LoopLabels, Counter>,
    pub panics: Family<LoopLabels, Counter>,
    pub writes: Family<LoopLabels, Counter>,
    pub refused_writes: Family<LoopLabels, Counter>,
    pub pass_duration: DurationFamily<LoopLabels>,
}

impl LoopMetrics {
    pub fn new(metrics: &Metrics) -> LoopMetrics {
        LoopMetrics {
            leading: metrics.gauges("loop_leading", "Whether this process leads the loop"),
            epoch: metrics.gauges("loop_epoch", "Epoch of the last term that this process led"),
            passes: metrics.counters("loop_passes", "Passes, by how they ended"),
            wakes: metrics.counters("loop_wakes", "Passes, by what led to them"),
            failed_passes: metrics.counters("loop_failed_passes", "Passes that failed as a whole"),
            panics: metrics.counters("loop_panics", "Passes that panicked"),
            writes: metrics.counters("loop_writes", "Writes of the loop that were committed"),
            refused_writes: metrics.counters("loop_refused_writes", "Writes of the loop that were refused"),
            pass_duration: metrics.durations("loop_pass_duration", "How long a pass takes"),
        }
    }

    /// Shows the loop from the start: what appears only when it has happened once shows no increase then.
    pub(super) fn begin(&self, labels: &LoopLabels) {
        for counter in [&self.failed_passes, &self.panics, &self.writes, &self.refused_writes] {
            drop(counter.get_or_create(labels));
        }
        drop(self.leading.get_or_create(labels));
    }
}
