//! Small fleets for scheduler tests.

use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::quantity::Quantity;
use horchestra_workers::scheduler::cluster::{Amounts, Cluster, Liveness, NodeInfo, Pending, Placed};
use horchestra_workers::scheduler::cycle::{self, Outcome};
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use serde_json::{Value, json};
use uuid::Uuid;

pub const GI: i64 = 1 << 30;

/// A ready node of four cores and 8 GiB.
pub fn node(name: &str) -> NodeInfo {
    NodeInfo {
        name: name.to_owned(),
        revision: 1,
        labels: [("horchestra.io/hostname".to_owned(), name.to_owned())].into(),
        unschedulable: false,
        admitted: true,
        held: false,
        liveness: Liveness::Ready,
        capacity: Amounts { cpu: 4_000_000_000, memory: 8 * GI },
        runtimes: Vec::new(),
        routed_network: false,
        used: Amounts::default(),
        placed: Vec::new(),
    }
}

pub fn labelled(name: &str, labels: &[(&str, &str)]) -> NodeInfo {
    let mut node = node(name);
    node.labels.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    node
}

pub fn application(namespace: &str, name: &str, labels: Value, spec: Value) -> Arc<Application> {
    let mut spec = spec;
    spec["image"] = json!("example");
    let object = json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// An Application of namespace `default` that waits for a place.
pub fn waiting(name: &str, spec: Value) -> Pending {
    pending(application("default", name, json!({}), spec))
}

pub fn pending(app: Arc<Application>) -> Pending {
    let request = app.spec.effective_request();
    Pending {
        key: Key::namespaced(Kind::Application, app.metadata.namespace.clone(), app.metadata.name.clone()),
        uid: Uuid::new_v4(),
        revision: 1,
        priority: app.spec.placement.as_ref().and_then(|placement| placement.priority).unwrap_or(0),
        created: "2026-01-01T00:00:00Z".to_owned(),
        requests: Amounts { cpu: request.cpu.nano(), memory: request.memory.int() },
        app,
    }
}

pub fn requests(cpu: &str, memory: &str) -> Value {
    json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}})
}

pub fn cores(text: &str) -> i64 {
    text.parse::<Quantity>().unwrap().nano()
}

/// Puts an Application on a node.
pub fn occupy(cluster: &mut Cluster, node: &str, app: &Pending) {
    let placed = Placed { key: app.key.clone(), requests: app.requests, app: app.app.clone() };
    cluster.place(node, placed);
}

/// What the shipped profile decides, by Application name in queue order.
pub fn decide(cluster: &mut Cluster, waiting: Vec<Pending>, strategy: Strategy) -> Vec<(String, Outcome)> {
    let profile = default_profile(strategy).unwrap();
    cycle::plan(&profile, cluster, waiting)
        .into_iter()
        .map(|decision| (decision.app.key.name, decision.outcome))
        .collect()
}

/// The node that one Application gets.
pub fn place(cluster: &mut Cluster, app: Pending) -> Result<String, String> {
    match decide(cluster, vec![app], Strategy::Spread).remove(0).1 {
        Outcome::Bind(node) => Ok(node),
        Outcome::Wait(message) => Err(message),
    }
}
