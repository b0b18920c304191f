//! What the catalog says about itself on the metrics listener.

use std::time::Duration;

use horchestra_runtime::metrics::{DurationFamily, Metrics as Page};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::Woken;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfEndpoint {
    endpoint: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Why {
    why: &'static str,
}

/// The metrics of the catalog. Cloning shares them.
#[derive(Clone, Debug)]
pub struct CatalogMetrics {
    parked: Gauge,
    wakes: Family<Why, Counter>,
    answers: DurationFamily<OfEndpoint>,
}

/// A parked query, for as long as it lives.
#[derive(Debug)]
pub struct Parked(Gauge);

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl CatalogMetrics {
    /// Adds everything to the page of the process.
    pub fn new(page: &Page) -> CatalogMetrics {
        CatalogMetrics {
            parked: page.gauge("api_catalog_parked", "Catalog queries that wait for a change"),
            wakes: page.counters("api_catalog_wakes", "Catalog queries that waited, by what ended it"),
            answers: page
                .durations("api_catalog_answer", "Time to make an answer of the catalog, without waits"),
        }
    }

    pub fn parked(&self) -> Parked {
        self.parked.inc();
        Parked(self.parked.clone())
    }

    pub fn woken(&self, why: Woken) {
        self.wakes.get_or_create(&Why { why: why.word() }).inc();
    }

    pub fn answered(&self, endpoint: &'static str, took: Duration) {
        self.answers.get_or_create(&OfEndpoint { endpoint }).observe(took.as_secs_f64());
    }
}
