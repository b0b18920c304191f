//! Counters of one store, for whoever exports them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that goes up (or, as a gauge, down again).
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// A distribution over fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One per bound, and one for what lies above the last.
    buckets: Vec<Count>,
    sum: Count,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Histogram {
        let buckets = bounds.iter().map(|_| Count::default()).chain([Count::default()]).collect();
        Histogram { bounds, buckets, sum: Count::default() }
    }

    pub(crate) fn record(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.add(1);
        }
        self.sum.add(value);
    }

    pub(crate) fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// (upper bound, how many values lie in this bucket); the last bound is `u64::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = self.bounds.iter().copied().chain([u64::MAX]);
        bounds.zip(self.buckets.iter().map(Count::get))
    }

    pub fn sum(&self) -> u64 {
        self.sum.get()
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Count::get).sum()
    }
}

const MICROS: &[u64] =
    &[250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];
const ITEMS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128];

/// See the fields.
#[derive(Debug)]
pub struct StoreMetrics {
    /// Items per batch that was sent to the database.
    pub batch_items: Histogram,
    /// Microseconds from sending a batch to its answer.
    pub batch_time: Histogram,
    /// Microseconds from the call of `commit` to its answer.
    pub commit_time: Histogram,
    /// Items that were committed.
    pub committed: Count,
    /// Items that were refused.
    pub refused: Count,
    /// Items turned away because the queue was full.
    pub busy: Count,
    /// Batches that were split to find an item that the database cannot take.
    pub bisected: Count,
    /// Batches whose outcome had to be looked up.
    pub settled: Count,
    /// Batches put on the cache without being read back.
    pub applied_directly: Count,
    /// Rows that the tail read.
    pub tail_rows: Count,
    /// Holes found in the log: each is a bug somewhere.
    pub holes: Count,
    /// Full reloads of the cache after the first.
    pub resyncs: Count,
    /// Times that the database turned out not to hold what this process had already seen.
    pub losses: Count,
    /// Open watchers (gauge).
    pub watchers: Count,
    /// Watchers closed because they fell behind.
    pub watchers_expired: Count,
    /// Queries for the current revision; many readers share one.
    pub head_queries: Count,
    /// Readers that asked for the current state.
    pub fresh_reads: Count,
    /// Old states that had to be rebuilt from the log.
    pub rebuilt: Count,
}

impl Default for StoreMetrics {
    fn default() -> Self {
        StoreMetrics {
            batch_items: Histogram::new(ITEMS),
            batch_time: Histogram::new(MICROS),
            commit_time: Histogram::new(MICROS),
            committed: Count::default(),
            refused: Count::default(),
            busy: Count::default(),
            bisected: Count::default(),
            settled: Count::default(),
            applied_directly: Count::default(),
            tail_rows: Count::default(),
            holes: Count::default(),
            resyncs: Count::default(),
            losses: Count::default(),
            watchers: Count::default(),
            watchers_expired: Count::default(),
            head_queries: Count::default(),
            fresh_reads: Count::default(),
            rebuilt: Count::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_in_the_first_bucket_that_holds_them() {
        let histogram = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21] {
            histogram.record(value);
        }
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(10, 2), (20, 2), (u64::MAX, 1)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 62));
    }
}
