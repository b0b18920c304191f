//! The fleets.

use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_workers::scheduler::cluster::{Amounts, Cluster, Liveness, NodeInfo, Pending, Placed};
use serde_json::{Value, json};
use uuid::Uuid;

const GI: i64 = 1 << 30;
const ZONES: usize = 10;
const HOST: &str = "horchestra.io/hostname";

pub struct Scenario {
    pub name: &'static str,
    pub nodes: usize,
    /// Those that wait.
    pub apps: usize,
    /// Those that are placed already, and what they look like.
    pub before: (usize, Value),
    /// What the waiting ones look like, in turn.
    pub templates: Vec<Value>,
    /// What Kubernetes demands of itself, Pods a second.
    pub floor: u32,
    /// How many find a place.
    pub placed: usize,
}

fn template(labels: Value, placement: Value) -> Value {
    json!({
        "metadata": {"namespace": "bench", "labels": labels},
        "spec": {"image": "x", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}, "placement": placement},
    })
}

fn required(kind: &str, labels: &Value, key: &str) -> Value {
    let term = json!({"labelSelector": labels, "topologyKey": key});
    json!({"affinity": {kind: {"requiredDuringScheduling": [term]}}})
}

fn preferred(kind: &str, labels: &Value, key: &str) -> Value {
    let term = json!({"labelSelector": labels, "topologyKey": key});
    json!({"affinity": {kind: {"preferredDuringScheduling": [{"weight": 1, "term": term}]}}})
}

pub fn scenarios() -> Vec<Scenario> {
    let plain = || template(json!({}), json!({}));
    let (blue, green) = (json!({"color": "blue"}), json!({"color": "green"}));
    let zones: Vec<String> = (0..5).map(|zone| format!("z{zone}")).collect();
    let in_zones = json!({"affinity": {"nodeAffinity": {"requiredDuringScheduling": {"matchExpressions": [
        {"key": "zone", "operator": "In", "values": zones}]}}}});
    let pinned = |node: usize| {
        let selector = json!({"matchLabels": {HOST: format!("node-{node:05}")}});
        template(json!({}), json!({"affinity": {"nodeAffinity": {"requiredDuringScheduling": selector}}}))
    };
    let huge = || {
        let mut huge = plain();
        huge["spec"]["resources"]["requests"]["cpu"] = json!("9");
        huge
    };
    let with_volume = |volume: usize| {
        let mut app = plain();
        let volume = json!({"type": "pv", "name": format!("volume-{volume}")});
        app["spec"]["volumes"] = json!([{"mountPath": "/data", "volume": volume}]);
        app
    };
    let scenario = |name, nodes, apps, before, template: Value, floor| Scenario {
        name,
        nodes,
        apps,
        before: (before, template.clone()),
        templates: vec![template],
        floor,
        placed: apps,
    };
    let near = template(blue.clone(), required("workloadAffinity", &blue, "zone"));
    let away = template(green.clone(), required("workloadAntiAffinity", &green, HOST));
    let fond = template(blue.clone(), preferred("workloadAffinity", &blue, HOST));
    let averse = template(blue.clone(), preferred("workloadAntiAffinity", &blue, HOST));
    let here = template(json!({}), in_zones);
    let all = vec![plain(), here.clone(), near.clone(), away.clone(), fond.clone(), averse.clone()];
    vec![
        scenario("basic", 5_000, 10_000, 1_000, plain(), 680),
        scenario("basic, many", 5_000, 50_000, 1_000, plain(), 810),
        Scenario {
            templates: (0..15_000).map(pinned).collect(),
            ..scenario("one node each", 15_000, 30_000, 0, plain(), 1_100)
        },
        scenario("node affinity, by zone", 5_000, 10_000, 5_000, here, 220),
        scenario("required affinity, by zone", 5_000, 5_000, 5_000, near, 35),
        scenario("required anti-affinity, by host", 5_000, 2_000, 1_000, away.clone(), 60),
        Scenario {
            templates: vec![template(green, json!({}))],
            ..scenario("labels that placed ones keep away", 5_000, 5_000, 1_000, away, 543)
        },
        scenario("preferred affinity, by host", 5_000, 5_000, 5_000, fond, 90),
        scenario("preferred anti-affinity, by host", 5_000, 5_000, 5_000, averse, 90),
        Scenario {
            templates: (0..10_000).map(with_volume).collect(),
            ..scenario("a volume each (floor of basic)", 5_000, 10_000, 1_000, plain(), 680)
        },
        Scenario { templates: all, ..scenario("mixed", 5_000, 5_000, 5_000, plain(), 140) },
        Scenario { placed: 0, ..scenario("nothing fits", 5_000, 10_000, 1_000, huge(), 590) },
    ]
}

impl Scenario {
    pub fn fleet(&self) -> (Cluster, Vec<Pending>) {
        let mut cluster = Cluster::new((0..self.nodes).map(node));
        let decoded = |template: &Value| -> Arc<Application> {
            Arc::new(serde_json::from_value(template.clone()).expect("an Application"))
        };
        let (count, template) = &self.before;
        let before = decoded(template);
        for at in 0..*count {
            let app = pending(&format!("before-{at:05}"), &before);
            let placed = Placed { key: app.key, requests: app.requests, app: app.app };
            cluster.place(&format!("node-{:05}", at * 7 % self.nodes), placed);
        }
        let apps: Vec<Arc<Application>> = self.templates.iter().map(decoded).collect();
        let waiting =
            (0..self.apps).map(|at| pending(&format!("app-{at:05}"), &apps[at % apps.len()])).collect();
        (cluster, waiting)
    }
}

fn node(at: usize) -> NodeInfo {
    let name = format!("node-{at:05}");
    NodeInfo {
        labels: [(HOST.to_owned(), name.clone()), ("zone".to_owned(), format!("z{}", at % ZONES))].into(),
        name,
        revision: 1,
        unschedulable: false,
        admitted: true,
        held: false,
        liveness: Liveness::Ready,
        capacity: Amounts { cpu: 4_000_000_000, memory: 32 * GI },
        runtimes: Vec::new(),
        routed_network: false,
        used: Amounts::default(),
        placed: Vec::new(),
    }
}

fn pending(name: &str, app: &Arc<Application>) -> Pending {
    let request = app.spec.effective_request();
    Pending {
        key: Key::namespaced(Kind::Application, "bench", name),
        uid: Uuid::nil(),
        revision: 1,
        priority: 0,
        created: "2026-01-01T00:00:00Z".to_owned(),
        requests: Amounts { cpu: request.cpu.nano(), memory: request.memory.int() },
        app: Arc::clone(app),
    }
}
