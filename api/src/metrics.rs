//! What the API says about itself on the metrics listener.
//!
//! Every label has a bounded set of values: verbs, kinds and codes. Nothing that a client chooses (a name, a
//! path, a user) becomes a label, so the page stays small whatever happens.

use std::time::Duration;

use horchestra_runtime::metrics::{DurationFamily, Metrics as Page};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::catalog::CatalogMetrics;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Timed {
    verb: &'static str,
    resource: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfResource {
    resource: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClass {
    class: &'static str,
}

/// The metrics of the HTTP side. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<Request, Counter>,
    latency: DurationFamily<Timed>,
    in_flight: Family<OfClass, Gauge>,
    rejected: Family<OfClass, Counter>,
    watchers: Family<OfResource, Gauge>,
    slow_watchers: Family<OfResource, Counter>,
    frames: Counter,
    frames_shared: Counter,
    logs: Gauge,
    connections: Gauge,
    connections_refused: Counter,
    handshakes_failed: Counter,
    panics: Counter,
    pub catalog: CatalogMetrics,
}

/// One more while it lives.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Counted {
        gauge.inc();
        Counted(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Adds everything to the page of the process.
    pub fn new(page: &Page) -> Metrics {
        Metrics {
            requests: page.counters("api_requests", "Answered requests"),
            latency: page.durations(
                "api_request",
                "Time to the head of the answer; of watches and logs, to the start of the stream",
            ),
            in_flight: page.gauges("api_requests_in_flight", "Running requests"),
            rejected: page.counters("api_requests_rejected", "Requests above a limit of those in flight"),
            watchers: page.gauges("api_watchers", "Open watches"),
            slow_watchers: page.counters("api_watchers_slow", "Watches closed because nobody read them"),
            frames: page.counter("api_watch_frames", "Frames sent to watches"),
            frames_shared: page.counter("api_watch_frames_shared", "Frames encoded for an earlier watch"),
            logs: page.gauge("api_log_streams", "Open log streams"),
            connections: page.gauge("api_connections", "Open connections"),
            connections_refused: page.counter("api_connections_refused", "Connections above the limit"),
            handshakes_failed: page.counter("api_handshakes_failed", "Failed or abandoned TLS handshakes"),
            panics: page.counter("api_panics", "Panics in request handlers"),
            catalog: CatalogMetrics::new(page),
        }
    }

    pub fn answered(&self, verb: &'static str, resource: &'static str, code: u16, took: Duration) {
        self.requests.get_or_create(&Request { verb, resource, code }).inc();
        self.latency.get_or_create(&Timed { verb, resource }).observe(took.as_secs_f64());
    }

    pub fn rejected(&self, class: &'static str) {
        self.rejected.get_or_create(&OfClass { class }).inc();
    }

    pub fn in_flight(&self, class: &'static str) -> Counted {
        Counted::new(self.in_flight.get_or_create(&OfClass { class }).clone())
    }

    pub fn watcher(&self, resource: &'static str) -> Counted {
        Counted::new(self.watchers.get_or_create(&OfResource { resource }).clone())
    }

    pub fn slow_watcher(&self, resource: &'static str) {
        self.slow_watchers.get_or_create(&OfResource { resource }).inc();
    }

    pub fn frame(&self, shared: bool) {
        self.frames.inc();
        if shared {
            self.frames_shared.inc();
        }
    }

    pub fn log_stream(&self) -> Counted {
        Counted::new(self.logs.clone())
    }

    pub fn connection(&self) -> Counted {
        Counted::new(self.connections.clone())
    }

    pub fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    pub fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    pub fn panicked(&self) {
        self.panics.inc();
    }
}
