//! The metrics of a process, in the text formats that scrapers read.
//!
//! Metrics are typed families that their owner keeps and updates without a lookup; the registry only knows
//! how to print them. Every name gets the prefix `horchestra_`, but for those of the process itself, which have the
//! names that every program gives them (`process_…`). Names end with their unit; labels have values from sets that do
//! not grow with what is stored, so a page is small whatever the fleet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use prometheus_client;

pub use crate::readings::Readings;

use crate::process::ProcessCollector;
use crate::readings::Look;

/// How a page is written. The samples are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Version 0.0.4 of the text format: what everything reads.
    Classic,
    /// Version 1.0.0, for who asks for it.
    OpenMetrics,
}

impl Form {
    /// The form for a client that says what it takes. Whoever names OpenMetrics prefers it.
    pub fn accepted(accept: Option<&str>) -> Form {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Form::OpenMetrics,
            _ => Form::Classic,
        }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Form::Classic => prometheus_text::CONTENT_TYPE,
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A family of histograms of seconds.
pub type DurationFamily<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementLabels {
    statement: &'static str,
}

/// The registry of a process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
    /// What is shown without the prefix.
    process: Arc<Registry>,
}

impl Metrics {
    /// A registry with what every process shows: `horchestra_build_info{binary,version,commit}`, and `process_…`: its
    /// memory, CPU time, open files and start. `commit` is `unknown` when the build did not say.
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
        let mut process = Registry::default();
        process.register_collector(Box::new(ProcessCollector::default()));
        Metrics { registry: Arc::new(RwLock::new(registry)), process: Arc::new(process) }
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

    /// Adds what somebody else counts: `look` is called whenever the page is asked for, and returns at once.
    pub fn readings(&self, look: impl Fn() -> Readings + Send + Sync + 'static) {
        self.collector(Box::new(Look(look)));
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

    /// A histogram of seconds from half a millisecond to half a minute; `_seconds` is added to the name.
    pub fn duration(&self, name: &str, help: &str) -> Histogram {
        self.register_with_unit(name, help, Unit::Seconds, duration_histogram())
    }

    /// As [`Metrics::duration`], by labels.
    pub fn durations<L: LabelSet>(&self, name: &str, help: &str) -> DurationFamily<L> {
        let family = Family::new_with_constructor(duration_histogram as fn() -> Histogram);
        self.register_with_unit(name, help, Unit::Seconds, family)
    }

    /// Takes the times of SQL statements by their names: `sql_statement_seconds{statement}`.
    pub fn statements(&self) -> impl Fn(&'static str, Duration) + Send + Sync + 'static {
        let times = self
            .durations::<StatementLabels>("sql_statement", "How long a statement takes, as seen from here");
        move |statement, took| {
            times.get_or_create(&StatementLabels { statement }).observe(took.as_secs_f64());
        }
    }

    /// The page in the classic form.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        self.encode_as(Form::Classic)
    }

    pub fn encode_as(&self, form: Form) -> Result<String, fmt::Error> {
        let mut out = String::new();
        match form {
            Form::Classic => {
                prometheus_text::encode(&mut out, &self.registry.read())?;
                prometheus_text::encode(&mut out, &self.process)?;
            }
            Form::OpenMetrics => {
                text::encode_registry(&mut out, &self.registry.read())?;
                text::encode(&mut out, &self.process)?;
            }
        }
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

/// Upper bounds of the buckets of times, in seconds.
const DURATIONS: [f64; 15] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

fn duration_histogram() -> Histogram {
    Histogram::new(DURATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        kind: &'static str,
    }

    #[test]
    fn the_page_shows_every_registered_metric_under_the_prefix() {
        let metrics = Metrics::new("horchestra-test", "1.2.3", None);
        metrics.counter("things", "Things").inc();
        metrics.counters::<Labels>("kinds", "Kinds").get_or_create(&Labels { kind: "a" }).inc_by(3);
        metrics.gauge("depth", "Depth").set(7);
        metrics.durations::<Labels>("wait", "Wait").get_or_create(&Labels { kind: "b" }).observe(0.5);
        let shown = [
            "horchestra_build_info{binary=\"horchestra-test\",version=\"1.2.3\",commit=\"unknown\"} 1",
            "horchestra_things_total 1",
            "horchestra_kinds_total{kind=\"a\"} 3",
            "horchestra_depth 7",
            "horchestra_wait_seconds_count{kind=\"b\"} 1",
        ];
        for (form, own) in [
            (Form::Classic, ["# TYPE horchestra_things_total counter", "# TYPE horchestra_build_info gauge"]),
            (Form::OpenMetrics, ["# TYPE horchestra_things counter", "# EOF"]),
        ] {
            let text = metrics.encode_as(form).unwrap();
            for line in shown.iter().chain(&own) {
                assert!(text.lines().any(|found| found == *line), "no {line} in\n{text}");
            }
            let mut unprefixed = text.lines().filter(|line| !line.contains("horchestra_"));
            assert!(unprefixed.all(|line| line.contains("process_") || line == "# EOF"), "{text}");
        }
    }

    #[test]
    fn whoever_names_the_newer_form_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                          q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, form) in [
            (None, Form::Classic),
            (Some("*/*"), Form::Classic),
            (Some("text/plain;version=0.0.4"), Form::Classic),
            (Some(prometheus), Form::OpenMetrics),
        ] {
            assert_eq!(Form::accepted(accept), form, "{accept:?}");
        }
    }
}
