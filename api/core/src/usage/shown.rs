//! Usage as clients see it: `applications/<name>/metrics` of our own group, and the group `metrics.k8s.io`, from
//! which `kubectl top` reads.
//!
//! All documents are functions of one stored object and what was measured of it. Those of `metrics.k8s.io` need a
//! rate; without one there is no such document. Memory is that of the newest sample, never an average.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::named::Named;
use super::{Measured, Rate};
use crate::alias::PODS;
use crate::kind::Kind;
use crate::object::Object;
use crate::quantity::Quantity;
use crate::table::{Column, NAME, text_at};

/// The group of what `kubectl top` reads. It is listed behind all others, so that `pods` and `nodes` without a
/// group never mean these.
pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";
/// What can be done with what is in the group.
pub const VERBS: [&str; 2] = ["get", "list"];

/// The subresource of Applications that shows what was measured of them, and its kind.
pub const SUBRESOURCE: &str = "metrics";
pub const APPLICATION_METRICS: &str = "ApplicationMetrics";

/// A resource of the group [`GROUP`].
pub struct Resource {
    pub plural: &'static str,
    pub singular: &'static str,
    pub name: &'static str,
    pub list_kind: &'static str,
    /// The kind whose objects are measured.
    pub kind: Kind,
    /// Field selectors, each with the field of that kind that it means.
    pub fields: &'static [(&'static str, &'static str)],
    pub columns: &'static [Column],
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resource").field("plural", &self.plural).finish_non_exhaustive()
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Resource) -> bool {
        self.plural == other.plural
    }
}

impl Eq for Resource {}

pub static NODES: Resource = Resource {
    plural: "nodes",
    singular: "node",
    name: "NodeMetrics",
    list_kind: "NodeMetricsList",
    kind: Kind::Node,
    fields: &[("metadata.name", "metadata.name")],
    columns: &[
        NAME,
        Column::text("CPU", "CPU in use.", |shown, _| text_at(shown, &["usage", "cpu"])),
        Column::text("Memory", "Memory in use.", |shown, _| text_at(shown, &["usage", "memory"])),
        WINDOW,
    ],
};

pub static WORKLOADS: Resource = Resource {
    plural: "pods",
    singular: "pod",
    name: "PodMetrics",
    list_kind: "PodMetricsList",
    kind: Kind::Application,
    fields: PODS.fields,
    columns: &[
        NAME,
        Column::text("CPU", "CPU in use.", |shown, _| of_container(shown, "cpu")),
        Column::text("Memory", "Memory in use.", |shown, _| of_container(shown, "memory")),
        WINDOW,
    ],
};

/// In byte order of their plurals.
pub static RESOURCES: [&Resource; 2] = [&NODES, &WORKLOADS];

const WINDOW: Column =
    Column::text("Window", "Time over which the CPU was measured.", |shown, _| text_at(shown, &["window"]));

fn of_container(shown: &Object, what: &str) -> Value {
    let first = shown.at(&["containers"]).and_then(|containers| containers.get(0));
    first.map_or(Value::from(""), |container| container["usage"][what].clone())
}

/// The resource of the group that has this plural.
pub fn by_plural(plural: &str) -> Option<&'static Resource> {
    RESOURCES.into_iter().find(|resource| resource.plural == plural)
}

fn time(unix_nano: i64) -> Option<String> {
    let time = Timestamp::from_nanosecond(i128::from(unix_nano)).ok().filter(|_| unix_nano != 0)?;
    Some(format!("{time:.0}"))
}

/// A document of [`GROUP`], as it is written: members in byte order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document<'a> {
    api_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    containers: Option<[Container<'a>; 1]>,
    kind: &'static str,
    metadata: &'a Named<'a>,
    timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    window: String,
}

#[derive(Serialize)]
struct Container<'a> {
    name: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    cpu: String,
    memory: String,
}

impl Document<'_> {
    /// As a tree, for forms that are not the plain one.
    pub fn object(&self) -> Result<Object, serde_json::Error> {
        serde_json::to_value(self).map(|value| Object::from_value(value).unwrap_or_default())
    }
}

impl Resource {
    /// The document of one object.
    pub fn document<'a>(&self, named: &'a Named<'a>, measured: &Measured, rate: Rate) -> Document<'a> {
        let usage = Usage {
            cpu: Quantity::from_milli(rate.milli_cpu).to_string(),
            memory: Quantity::from_bytes(measured.now.memory_bytes).to_string(),
        };
        let (containers, usage) = match self.kind {
            Kind::Node => (None, Some(usage)),
            _ => (Some([Container { name: &named.name, usage }]), None),
        };
        Document {
            api_version: API_VERSION,
            containers,
            kind: self.name,
            metadata: named,
            timestamp: time(measured.now.at),
            usage,
            window: window(rate),
        }
    }
}

/// As Go prints durations, with thousandths of a second at most.
fn window(rate: Rate) -> String {
    let millis = rate.window.as_millis();
    let (minutes, millis) = (millis / 60_000, millis % 60_000);
    let mut seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}

/// What was measured of an Application on `node`: counters since it was started, and the rate where there is one.
pub fn application_metrics(stored: &Object, node: &str, measured: &Measured) -> Value {
    let now = &measured.now;
    let mut shown = json!({
        "kind": APPLICATION_METRICS,
        "apiVersion": Kind::Application.api_version(),
        "metadata": {"name": stored.name(), "namespace": stored.namespace()},
        "node": node,
        "cpuMicroseconds": now.cpu_usec,
        "cpuThrottledMicroseconds": now.cpu_throttled_usec,
        "memoryBytes": now.memory_bytes,
        "memoryPeakBytes": now.memory_peak_bytes,
        "pids": now.pids,
        "oomKills": now.oom_kills,
    });
    if let Some(time) = time(now.at) {
        shown["timestamp"] = Value::from(time);
    }
    if let Some(rate) = measured.rate() {
        shown["cpu"] = Value::from(Quantity::from_milli(rate.milli_cpu).to_string());
        shown["window"] = Value::from(window(rate));
    }
    shown
}

/// The entries of `/apis/metrics.k8s.io/v1beta1`.
pub(crate) fn entries() -> Vec<Value> {
    let entry = |resource: &&Resource| {
        json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.kind.namespaced(),
            "group": GROUP,
            "version": VERSION,
            "kind": resource.name,
            "verbs": VERBS,
        })
    };
    RESOURCES.iter().map(entry).collect()
}

/// The entry of the subresource of Applications.
pub(crate) fn subresource_entry() -> Value {
    json!({
        "name": format!("{}/{SUBRESOURCE}", Kind::Application.plural()),
        "singularName": "",
        "namespaced": true,
        "group": Kind::Application.group(),
        "version": Kind::Application.version(),
        "kind": APPLICATION_METRICS,
        "verbs": ["get"],
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Before, Sample};
    use super::*;

    fn measured() -> Measured {
        let now = Sample {
            cpu_usec: 3_500_000,
            cpu_throttled_usec: 4,
            memory_bytes: 5 << 20,
            memory_peak_bytes: 9 << 20,
            pids: 3,
            oom_kills: 2,
            at: 1_700_000_015_123_456_789,
        };
        Measured { now, before: Some(Before { cpu_usec: 500_000, at: 1_700_000_000_123_456_789 }) }
    }

    fn stored(labels: Value, derived: Value) -> Object {
        let metadata = json!({
            "name": "web", "namespace": "team-a", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2023-01-01T00:00:00Z", "labels": labels,
        });
        Object::from_value(json!({"metadata": metadata, "status": {"labels": derived}})).unwrap_or_default()
    }

    fn document(resource: &Resource, stored: &Object) -> Object {
        let (measured, body) = (measured(), serde_json::to_vec(&stored.0).unwrap());
        let named = Named::read(&body).unwrap();
        resource.document(&named, &measured, measured.rate().unwrap()).object().unwrap()
    }

    #[test]
    fn what_is_shown_of_an_object_is_read_from_whatever_is_stored() {
        for (body, shown) in [
            (
                r#"{"metadata":{"labels":{"a\"b":"c\u00e9"},"name":"w\u00e9b"},"spec":{"x":[1,{"metadata":7}]}}"#,
                r#"{"labels":{"a\"b":"c\u00e9"},"name":"wéb"}"#,
            ),
            (
                r#"{"metadata":{"name":"web","labels":null,"namespace":null},"status":null}"#,
                r#"{"name":"web"}"#,
            ),
            (
                r#"{"metadata":{"name":"web"},"status":{"labels":{"z":"1"}}}"#,
                r#"{"labels":{"z":"1"},"name":"web"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&Named::read(body.as_bytes()).unwrap()).unwrap(), shown);
        }
        for unreadable in ["", "{}", r#"{"metadata":{}}"#, r#"{"metadata":{"name":"web"}"#] {
            assert!(Named::read(unreadable.as_bytes()).is_err(), "{unreadable}");
        }
    }

    #[test]
    fn documents_of_workloads_and_nodes() {
        let measured = measured();
        let rate = measured.rate().unwrap();
        let metadata = json!({
            "name": "web", "namespace": "team-a", "creationTimestamp": "2023-01-01T00:00:00Z",
            "labels": {"tier": "front"},
        });
        let head = |kind: &str| {
            json!({
                "kind": kind, "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata,
                "timestamp": "2023-11-14T22:13:35Z", "window": "15s",
            })
        };
        let usage = json!({"cpu": "200m", "memory": "5Mi"});
        let mut pod = head("PodMetrics");
        pod["containers"] = json!([{"name": "web", "usage": usage}]);
        let plain = stored(json!({"tier": "front"}), Value::Null);
        assert_eq!(document(&WORKLOADS, &plain).into_value(), pod);
        let mut node = head("NodeMetrics");
        node["usage"] = usage;
        let derived = stored(json!({"tier": "back"}), json!({"tier": "front"}));
        assert_eq!(document(&NODES, &derived).into_value(), node, "derived labels win");
        // Written as a tree would be.
        let body = serde_json::to_vec(&derived.0).unwrap();
        let named = Named::read(&body).unwrap();
        let text = serde_json::to_string(&NODES.document(&named, &measured, rate)).unwrap();
        assert_eq!(text, node.to_string());
    }

    #[test]
    fn documents_of_applications() {
        let app = stored(json!({}), Value::Null);
        let full = json!({
            "kind": "ApplicationMetrics", "apiVersion": "horchestra.io/v1",
            "metadata": {"name": "web", "namespace": "team-a"},
            "node": "node-1", "timestamp": "2023-11-14T22:13:35Z",
            "cpuMicroseconds": 3_500_000, "cpuThrottledMicroseconds": 4, "memoryBytes": 5_242_880,
            "memoryPeakBytes": 9_437_184, "pids": 3, "oomKills": 2, "cpu": "200m", "window": "15s",
        });
        assert_eq!(application_metrics(&app, "node-1", &measured()), full);
        let once = application_metrics(&app, "node-1", &Measured::first(Sample::default()));
        for absent in ["timestamp", "cpu", "window"] {
            assert!(once.get(absent).is_none(), "{absent} of a first sample without a time: {once}");
        }
    }

    #[test]
    fn windows_are_written_as_clients_read_them() {
        for (millis, text) in [
            (1_000, "1s"),
            (5_250, "5.25s"),
            (15_003, "15.003s"),
            (60_000, "1m0s"),
            (90_500, "1m30.5s"),
            (600_000, "10m0s"),
        ] {
            assert_eq!(window(Rate { milli_cpu: 0, window: Duration::from_millis(millis) }), text);
        }
    }

    #[test]
    fn cells_of_tables() {
        for resource in RESOURCES {
            let app = stored(json!({}), Value::Null);
            let shown = document(resource, &app);
            let cells = crate::table::cells(resource.columns, &shown, Timestamp::UNIX_EPOCH);
            assert_eq!(cells[..4], [json!("web"), json!("200m"), json!("5Mi"), json!("15s")], "{resource:?}");
        }
    }
}
