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
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use crate::catalog::CatalogMetrics;
use crate::http::limits::Class;

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

/// Upper bounds of the buckets of latencies, in seconds: few, since there are as many series for every verb of every
/// resource.
const LATENCIES: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

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
        let metrics = Metrics {
            requests: page.counters("api_requests", "Answered requests"),
            latency: page.register_with_unit(
                "api_request",
                "Time to the head of the answer; of watches and logs, to the start of the stream",
                Unit::Seconds,
                Family::new_with_constructor((|| Histogram::new(LATENCIES)) as fn() -> Histogram),
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
        };
        // Shown from the start: what appears only when it has happened once shows no increase then.
        for class in Class::ALL.map(Class::word) {
            drop(metrics.in_flight.get_or_create(&OfClass { class }));
            drop(metrics.rejected.get_or_create(&OfClass { class }));
        }
        metrics
    }

    /// Methods that are not served are counted together, whatever they were tried on.
    pub fn answered(&self, verb: &'static str, resource: &'static str, code: u16, took: Duration) {
        let (verb, resource) = if code == 405 { ("other", "none") } else { (verb, resource) };
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use horchestra_core::doors::Door;
    use horchestra_core::registry;
    use horchestra_core::reviews::REVIEWS;
    use http::Method;

    use super::*;
    use crate::http::route::Served;

    /// Everything that a request can be counted as.
    fn requests() -> BTreeSet<(&'static str, &'static str)> {
        let served = Served::new(registry::served().iter().map(|spec| spec.kind)).with_issuer(true);
        let served = served.with_node_logs(true);
        let mut paths: Vec<String> = [
            "livez",
            "version",
            "metrics",
            "api",
            "openapi/v2",
            "openid/v1/jwks",
            "api/v1/pods",
            "api/v1/pods/x/log",
            "api/v1/nodes",
            "api/v1/namespaces",
            "apis/horchestra.io/v1/nodes/x/log",
            "apis/horchestra.io/v1/namespaces/n/applications/x/metrics",
            "apis/metrics.k8s.io/v1beta1/pods",
            "apis/metrics.k8s.io/v1beta1/nodes",
            "apis/authentication.k8s.io/v1/tokenreviews",
        ]
        .map(str::to_owned)
        .into();
        for spec in registry::described() {
            let place = if spec.namespaced() { "/namespaces/n" } else { "" };
            let group = if spec.group().is_empty() { "api".into() } else { format!("apis/{}", spec.group()) };
            let all = format!("{group}/{}{place}/{}", spec.version(), spec.plural());
            paths.push(format!("{all}/x/status"));
            paths.extend(Door::of(spec.kind).map(|door| format!("{all}/x/{}", door.name())));
            paths.push(format!("{all}/x"));
            paths.push(all);
        }
        for spec in &REVIEWS {
            let place = if spec.namespaced { "/namespaces/n" } else { "" };
            paths.push(format!("apis/{}/{}{place}/{}", spec.group, spec.version, spec.plural));
        }
        let methods =
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
        let mut counted: BTreeSet<_> = [("get", "none"), ("other", "none")].into();
        for route in paths.iter().filter_map(|path| served.resolve(&format!("/{path}")).ok()) {
            for (method, watch) in methods.iter().flat_map(|method| [(method, false), (method, true)]) {
                let verb = match route.verb(method, watch) {
                    Some(verb) => verb.word(),
                    None if *method == Method::GET => "get",
                    None => "other",
                };
                if route.methods().is_empty() || route.methods().contains(method) {
                    counted.insert((verb, route.label()));
                }
            }
        }
        counted
    }

    #[test]
    fn a_replica_that_was_asked_everything_shows_less_than_five_thousand_series() {
        let page = Page::new("horchestra-api", "0", None);
        let metrics = Metrics::new(&page);
        let requests = requests();
        assert!(requests.len() > 100, "{requests:?}");
        for (verb, resource) in requests {
            for code in [200, 401, 403, 404, 405, 409, 422, 503] {
                metrics.answered(verb, resource, code, Duration::from_millis(3));
            }
        }
        let text = page.encode().unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        // Those of the store and its statements come on top.
        assert!(series < 4_000, "{series}");
    }
}
