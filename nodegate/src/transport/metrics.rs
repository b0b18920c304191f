//! What the listeners count.

use horchestra_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::Why;

/// Counters of connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TransportMetrics {
    /// Connections that came to nothing before it was known who they are, by reason.
    pub dropped: Family<Why, Counter>,
    pub spliced: Counter,
    pub splices_failed: Family<Why, Counter>,
    pub splice_retries: Counter,
    splices: Gauge,
}

/// A connection that is being carried.
#[derive(Debug)]
pub struct OpenSplice(Gauge);

impl TransportMetrics {
    pub fn new(metrics: &Metrics) -> TransportMetrics {
        TransportMetrics {
            dropped: metrics.counters("gate_connections_dropped", "Connections dropped before any session"),
            spliced: metrics.counter("gate_spliced", "Connections passed on to the API"),
            splices_failed: metrics
                .counters("gate_splices_failed", "Connections that could not be passed on to the API"),
            splice_retries: metrics
                .counter("gate_splice_retries", "Replicas of the API that were passed over for a connection"),
            splices: metrics.gauge("gate_splices", "Connections to the API being passed on now"),
        }
    }

    pub fn drop_for(&self, why: &'static str) {
        self.dropped.get_or_create(&Why { why }).inc();
    }

    /// How many connections were dropped for this reason.
    pub fn dropped_for(&self, why: &'static str) -> u64 {
        self.dropped.get_or_create(&Why { why }).get()
    }

    pub fn splice_failed(&self, why: &'static str) {
        self.splices_failed.get_or_create(&Why { why }).inc();
    }

    /// How many connections could not be passed on for this reason.
    pub fn splices_failed_for(&self, why: &'static str) -> u64 {
        self.splices_failed.get_or_create(&Why { why }).get()
    }

    /// Counts a connection as being carried until the answer is dropped.
    pub fn splice_open(&self) -> OpenSplice {
        self.splices.inc();
        OpenSplice(self.splices.clone())
    }

    /// How many connections are being carried.
    pub fn splices_open(&self) -> i64 {
        self.splices.get()
    }
}

impl Drop for OpenSplice {
    fn drop(&mut self) {
        self.0.dec();
    }
}
