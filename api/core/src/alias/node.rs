//! Nodes in their core shape.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Alias, condition, metadata, object};
use crate::kind::Kind;
use crate::kinds::node::{CONDITION_READY, held_suffix};
use crate::object::Object;
use crate::table::{AGE, Column, NAME};

pub static NODES: Alias = Alias {
    kind: Kind::Node,
    group: "",
    api_version: "v1",
    written: None,
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    name: "Node",
    list_kind: "NodeList",
    advertised: false,
    columns: &[
        NAME,
        Column::text("Status", "Ready or NotReady, and whether the node takes new workloads.", status),
        AGE,
    ],
    fields: &[("metadata.name", "metadata.name"), ("spec.unschedulable", "spec.unschedulable")],
    phases: &[],
    project,
};

fn is_cordoned(stored: &Object) -> bool {
    stored.at(&["spec", "unschedulable"]) == Some(&Value::Bool(true))
}

fn status(stored: &Object, _: Timestamp) -> Value {
    let ready = if ready(stored) == "True" { "Ready" } else { "NotReady" };
    let cordoned = if is_cordoned(stored) { ",SchedulingDisabled" } else { "" };
    Value::from(format!("{ready}{}{cordoned}", held_suffix(stored)))
}

/// The verdict; of a node that nobody has judged, what it says of itself.
fn ready(stored: &Object) -> &str {
    match condition(stored, CONDITION_READY) {
        Some(verdict) => verdict["status"].as_str().unwrap_or("Unknown"),
        None if stored.at(&["status", "ready"]) == Some(&Value::Bool(true)) => "True",
        None => "False",
    }
}

fn project(stored: &Object) -> Object {
    let mut metadata = metadata(stored);
    let mut labels: Map<String, Value> =
        metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let derived = stored.at(&["status", "labels"]).and_then(Value::as_object);
    labels.extend(derived.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    metadata.insert("labels".to_owned(), Value::Object(labels));

    let mut verdict = condition(stored, CONDITION_READY).cloned().unwrap_or_else(|| json!({}));
    verdict["type"] = Value::from(CONDITION_READY);
    verdict["status"] = Value::from(ready(stored));
    if let Some(verdict) = verdict.as_object_mut() {
        verdict.remove("observedGeneration");
    }

    let capacity = stored.at(&["status", "capacity"]).cloned().unwrap_or_else(|| json!({}));
    let mut addresses = vec![json!({"type": "Hostname", "address": stored.name()})];
    let ip = stored.str_at(&["status", "ip"]);
    if !ip.is_empty() {
        addresses.insert(0, json!({"type": "InternalIP", "address": ip}));
    }
    let mut spec = Map::new();
    if is_cordoned(stored) {
        spec.insert("unschedulable".to_owned(), Value::Bool(true));
    }
    object(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": addresses,
            "conditions": [verdict],
            "nodeInfo": {
                "operatingSystem": stored.str_at(&["status", "platform", "os"]),
                "architecture": stored.str_at(&["status", "platform", "arch"]),
                "osImage": stored.str_at(&["status", "os"]),
            },
        },
    }))
}
