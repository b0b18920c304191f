//! The store's counters on the metrics page of the process.

use std::fmt;
use std::sync::Arc;

use horchestra_store::{Histogram, StoreMetrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Reads the counters when the page is asked for.
#[derive(Debug)]
pub struct StoreCollector {
    store: Arc<StoreMetrics>,
}

impl StoreCollector {
    pub fn new(store: Arc<StoreMetrics>) -> StoreCollector {
        StoreCollector { store }
    }
}

impl Collector for StoreCollector {
    fn encode(&self, mut page: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let store = &*self.store;
        let counters = [
            ("store_committed", "Items that were committed", &store.committed),
            ("store_refused", "Items that were refused", &store.refused),
            ("store_busy", "Items turned away because the queue was full", &store.busy),
            (
                "store_bisected",
                "Batches split to find an item that the database cannot take",
                &store.bisected,
            ),
            ("store_settled", "Batches whose outcome had to be looked up", &store.settled),
            ("store_applied_directly", "Batches put on the cache without a read", &store.applied_directly),
            ("store_tail_rows", "Rows that the tail read", &store.tail_rows),
            ("store_holes", "Holes found in the log", &store.holes),
            ("store_resyncs", "Reloads of the cache after the first", &store.resyncs),
            ("store_losses", "Times that the database had lost what was seen before", &store.losses),
            ("store_watchers_expired", "Watchers closed because they fell behind", &store.watchers_expired),
            ("store_head_queries", "Queries for the newest revision", &store.head_queries),
            ("store_fresh_reads", "Readers that asked for the newest state", &store.fresh_reads),
            ("store_rebuilt", "Old states rebuilt from the log", &store.rebuilt),
        ];
        for (name, help, count) in counters {
            let counter = ConstCounter::new(count.get());
            counter.encode(page.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let gauges = [
            ("store_tail_lag", "Revisions between the newest one heard of and the cache", &store.tail_lag),
            ("store_watchers", "Open watchers of the cache", &store.watchers),
        ];
        for (name, help, count) in gauges {
            let gauge = ConstGauge::new(i64::try_from(count.get()).unwrap_or(i64::MAX));
            gauge.encode(page.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let items = Distribution { of: &store.batch_items, unit: 1.0 };
        items.encode(page.encode_descriptor(
            "store_batch_items",
            "Items per batch",
            None,
            items.metric_type(),
        )?)?;
        for (name, help, times) in [
            ("store_batch", "From sending a batch to its answer", &store.batch_time),
            ("store_commit", "From the call of commit to its answer", &store.commit_time),
        ] {
            let times = Distribution { of: times, unit: 1e-6 };
            times.encode(page.encode_descriptor(name, help, Some(&Unit::Seconds), times.metric_type())?)?;
        }
        Ok(())
    }
}

/// A distribution of the store in the form of the page; `unit` is what one of its integers means there.
struct Distribution<'a> {
    of: &'a Histogram,
    unit: f64,
}

impl EncodeMetric for Distribution<'_> {
    #[allow(clippy::cast_precision_loss)]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let buckets: Vec<(f64, u64)> = self
            .of
            .buckets()
            .map(|(bound, count)| {
                (if bound == u64::MAX { f64::INFINITY } else { bound as f64 * self.unit }, count)
            })
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.of.sum() as f64 * self.unit, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_runtime::Metrics;

    #[test]
    fn the_page_shows_the_store() {
        let page = Metrics::new("test", "0", None);
        page.collector(Box::new(StoreCollector::new(Arc::default())));
        let text = page.encode().unwrap();
        for line in [
            "horchestra_store_committed_total 0",
            "horchestra_store_watchers 0",
            "horchestra_store_commit_seconds_count 0",
            "horchestra_store_batch_items_bucket{le=\"+Inf\"} 0",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }
}
