//! What a store shows of itself, in plain numbers: this package knows nothing of metrics.

use horchestra_core::kind::Kind;

use crate::metrics::{Histogram, StoreMetrics};
use crate::store::Store;

/// A name, an explanation, and what it is about.
pub type Titled<T> = (&'static str, &'static str, T);

/// Upper bounds with how many values lie in each bucket, the last one infinite; and the sum of all values.
pub type Distribution = (Vec<(f64, u64)>, f64);

/// A number for each value of a label.
pub type ByLabel = (&'static str, Vec<(String, f64)>);

/// The connections of one sort that a process has to its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// `commit` or `general`.
    pub pool: &'static str,
    pub open: usize,
    pub idle: usize,
    pub limit: usize,
    /// Calls that wait for one.
    pub waiting: usize,
}

/// Everything that a store shows. Names end with their unit.
#[derive(Clone, Debug, Default)]
pub struct StoreReadings {
    pub counters: Vec<Titled<u64>>,
    pub gauges: Vec<Titled<f64>>,
    pub gauges_by: Vec<Titled<ByLabel>>,
    pub histograms: Vec<Titled<Distribution>>,
}

#[expect(clippy::cast_precision_loss, reason = "for people to look at")]
fn number(count: usize) -> f64 {
    count as f64
}

impl Store {
    /// What there is to show at this moment. Asks nobody.
    pub fn readings(&self) -> StoreReadings {
        let metrics = self.metrics();
        let (health, tail) = (self.health(), self.tail_lag());
        let flag = |set: bool| f64::from(u8::from(set));
        let waiting = self.queue_length();
        StoreReadings {
            counters: metrics.counters(),
            gauges: vec![
                ("store_loaded", "Whether the cache holds the state of the world", flag(health.loaded)),
                #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
                ("store_revision", "The revision of the cache", health.revision as f64),
                #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
                (
                    "store_tail_lag_revisions",
                    "Revisions between the newest one heard of and the cache",
                    tail.revisions as f64,
                ),
                (
                    "store_tail_lag_seconds",
                    "Time since the cache was last known to hold everything; at rest as long as between two looks",
                    tail.since.as_secs_f64(),
                ),
                (
                    "store_disconnected_seconds",
                    "How long the database has not answered; 0 while it does",
                    health.disconnected_for.as_secs_f64(),
                ),
                ("store_listening", "Whether notifications are heard", flag(tail.listening)),
                (
                    "store_unwritable",
                    "Whether the database answers and takes no writes",
                    flag(self.backend().unwritable().is_some()),
                ),
                ("store_watchers", "Open watchers of the cache", number(metrics.watchers.get() as usize)),
                ("store_queue_items", "Writes that wait for the committer", number(waiting.0)),
                ("store_queue_limit_items", "Writes that may wait for the committer", number(waiting.1)),
            ],
            gauges_by: self.objects().into_iter().chain(self.connections()).collect(),
            histograms: metrics.histograms(),
        }
    }

    fn objects(&self) -> Option<Titled<ByLabel>> {
        let snapshot = self.snapshot();
        let counts =
            self.kinds().map(|kind: Kind| (kind.plural().to_owned(), number(snapshot.count(kind, None))));
        Some(("store_objects", "Objects in the cache", ("resource", counts.collect())))
    }

    fn connections(&self) -> Vec<Titled<ByLabel>> {
        let pools = self.backend().pools();
        let by = |part: fn(&PoolUse) -> usize| {
            ("pool", pools.iter().map(|pool| (pool.pool.to_owned(), number(part(pool)))).collect())
        };
        vec![
            ("store_connections", "Open connections to the database", by(|pool| pool.open)),
            ("store_connections_idle", "Open connections that nobody uses", by(|pool| pool.idle)),
            ("store_connections_limit", "Connections that there may be", by(|pool| pool.limit)),
            ("store_connections_waiting", "Calls that wait for a connection", by(|pool| pool.waiting)),
        ]
    }
}

impl StoreMetrics {
    fn counters(&self) -> Vec<Titled<u64>> {
        vec![
            ("store_committed", "Items that were committed", self.committed.get()),
            ("store_refused", "Items that were refused", self.refused.get()),
            ("store_busy", "Items turned away because the queue was full", self.busy.get()),
            (
                "store_bisected",
                "Batches split to find an item that the database cannot take",
                self.bisected.get(),
            ),
            ("store_settled", "Batches whose outcome had to be looked up", self.settled.get()),
            (
                "store_applied_directly",
                "Batches put on the cache without a read",
                self.applied_directly.get(),
            ),
            ("store_tail_rows", "Rows that the tail read", self.tail_rows.get()),
            ("store_holes", "Holes found in the log", self.holes.get()),
            ("store_resyncs", "Reloads of the cache after the first", self.resyncs.get()),
            ("store_losses", "Times that the database had lost what was seen before", self.losses.get()),
            (
                "store_watchers_expired",
                "Watchers closed because they fell behind",
                self.watchers_expired.get(),
            ),
            ("store_head_queries", "Queries for the newest revision", self.head_queries.get()),
            ("store_fresh_reads", "Readers that asked for the newest state", self.fresh_reads.get()),
            ("store_rebuilt", "Old states rebuilt from the log", self.rebuilt.get()),
        ]
    }

    fn histograms(&self) -> Vec<Titled<Distribution>> {
        let micros = 1e-6;
        vec![
            ("store_batch_items", "Items per batch", distribution(&self.batch_items, 1.0)),
            (
                "store_batch_seconds",
                "From sending a batch to its answer",
                distribution(&self.batch_time, micros),
            ),
            (
                "store_commit_seconds",
                "From the call of commit to its answer",
                distribution(&self.commit_time, micros),
            ),
        ]
    }
}

/// `unit` is what one of its integers means.
#[expect(clippy::cast_precision_loss, reason = "for people to look at")]
fn distribution(of: &Histogram, unit: f64) -> Distribution {
    let bound = |bound: u64| if bound == u64::MAX { f64::INFINITY } else { bound as f64 * unit };
    (of.buckets().map(|(upper, count)| (bound(upper), count)).collect(), of.sum() as f64 * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_has_loaded_shows_so() {
        let store = Store::memory();
        store.ready().await;
        let shown = store.readings();
        let gauge =
            |name: &str| shown.gauges.iter().find(|(found, _, _)| *found == name).map(|(_, _, value)| *value);
        for (name, value) in [
            ("store_loaded", 1.0),
            ("store_tail_lag_revisions", 0.0),
            ("store_disconnected_seconds", 0.0),
            ("store_queue_items", 0.0),
            ("store_queue_limit_items", 2048.0),
        ] {
            assert_eq!(gauge(name), Some(value), "{name}");
        }
        let (_, _, (label, counts)) = &shown.gauges_by[0];
        assert_eq!((*label, counts.len()), ("resource", Kind::ALL.len()));
        let (_, _, (buckets, sum)) = &shown.histograms[0];
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 0)));
        assert!(sum.abs() < 1e-9);
    }
}
