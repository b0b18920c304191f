//! What the collection does, for dashboards.

use horchestra_runtime::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::substrate::LeaderGauge;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: &'static str,
}

pub(super) struct GarbageMetrics {
    done: Family<What, Counter>,
    /// Owners that wait for dependents.
    pub waiting: LeaderGauge,
}

impl GarbageMetrics {
    pub fn new(metrics: &Metrics) -> GarbageMetrics {
        GarbageMetrics {
            done: metrics.counters("garbage", "What garbage collection did, by what it was"),
            waiting: LeaderGauge::new(
                metrics,
                "garbage_waiting",
                "Owners that are being deleted and wait for dependents",
            ),
        }
    }

    pub fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    pub fn count_many(&self, what: &'static str, how_many: usize) {
        if how_many > 0 {
            self.done.get_or_create(&What { what }).inc_by(how_many as u64);
        }
    }
}
