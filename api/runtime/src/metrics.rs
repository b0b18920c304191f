//! The metrics of a process, in the OpenMetrics text format.
//!
//! Metrics are typed families that their owner keeps and updates without a lookup; the registry only knows
//! how to print them. Every name gets the prefix `horchestra_`.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use prometheus_client;

use crate::process::ProcessCollector;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A family of histograms of seconds.
pub type DurationFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// The registry of a process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
}

impl Metrics {
    /// A registry with what every process shows: `horchestra_build_info{binary,version,commit}` and the
    /// process's memory, CPU time and open files. `commit` is `unknown` when the build did not say.
    pub fn new(binary: &'static str, version: &'static str, commit: Option<&'static str>) -> Metrics {
        let mut registry = Registry::with_prefix("horchestra");
        registry.register(
            "build",
            "What runs here",
            Info::new(vec![
                ("binary", binary),
                ("version", version),
                ("commit", commit.unwrap_or("unknown")),
            ]),
        );
        registry.register_collector(Box::new(ProcessCollector::default()));
        Metrics { registry: Arc::new(RwLock::new(registry)) }
    }

    /// Adds a metric and returns it. `name` is without prefix, unit and `_total`.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.write().register(name, help, metric.clone());
        metric
    }

    /// As [`Metrics::register`]; the unit becomes the end of the name.
    pub fn register_with_unit<M: Metric + Clone>(&self, name: &str, help: &str, unit: Unit, metric: M) -> M {
        self.registry.write().register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// Adds something that computes its values when it is asked.
    pub fn collector(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.register(name, help, Counter::default())
    }

    pub fn counters<L: LabelSet>(&self, name: &str, help: &str) -> Family<L, Counter> {
        self.register(name, help, Family::default())
    }

    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(name, help, Gauge::default())
    }

    pub fn gauges<L: LabelSet>(&self, name: &str, help: &str) -> Family<L, Gauge> {
        self.register(name, help, Family::default())
    }

    /// A histogram of seconds from 0.1 ms to half a minute; `_seconds` is added to the name.
    pub fn duration(&self, name: &str, help: &str) -> Histogram {
        self.register_with_unit(name, help, Unit::Seconds, duration_histogram())
    }

    /// As [`Metrics::duration`], by labels.
    pub fn durations<L: LabelSet>(&self, name: &str, help: &str) -> DurationFamily<L> {
        let family = Family::new_with_constructor(duration_histogram as fn() -> Histogram);
        self.register_with_unit(name, help, Unit::Seconds, family)
    }

    /// The exposition.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry.read())?;
        Ok(out)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What a family's labels must be.
pub trait LabelSet:
    EncodeLabelSet + Clone + std::hash::Hash + Eq + fmt::Debug + Send + Sync + 'static
{
}

impl<L> LabelSet for L where
    L: EncodeLabelSet + Clone + std::hash::Hash + Eq + fmt::Debug + Send + Sync + 'static
{
}

fn duration_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        kind: &'static str,
    }

    #[test]
    fn the_exposition_shows_every_registered_metric_under_the_prefix() {
        let metrics = Metrics::new("horchestra-test", "1.2.3", None);
        metrics.counter("things", "Things").inc();
        metrics.counters::<Labels>("kinds", "Kinds").get_or_create(&Labels { kind: "a" }).inc_by(3);
        metrics.gauge("depth", "Depth").set(7);
        metrics.durations::<Labels>("wait", "Wait").get_or_create(&Labels { kind: "b" }).observe(0.5);
        let text = metrics.encode().unwrap();
        for line in [
            "horchestra_build_info{binary=\"horchestra-test\",version=\"1.2.3\",commit=\"unknown\"} 1",
            "horchestra_things_total 1",
            "horchestra_kinds_total{kind=\"a\"} 3",
            "horchestra_depth 7",
            "horchestra_wait_seconds_count{kind=\"b\"} 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
