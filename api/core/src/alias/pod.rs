//! Applications as Pods: one container of the Application's name.

use serde_json::{Map, Value, json};

use super::{Alias, condition, metadata, object};
use crate::kind::Kind;
use crate::kinds::application::{CONDITION_READY, CONDITION_SCHEDULED, address};
use crate::object::Object;
use crate::table::{AGE, Column, NAME, text_at};

pub static PODS: Alias = Alias {
    kind: Kind::Application,
    group: "",
    api_version: "v1",
    written: None,
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    name: "Pod",
    list_kind: "PodList",
    advertised: true,
    columns: &[
        NAME,
        Column::text("Ready", "Containers that are ready, of all.", |stored, _| {
            Value::from(if is_ready(stored) { "1/1" } else { "0/1" })
        }),
        Column::text("Status", "State of the workload.", |stored, _| Value::from(status(stored))),
        Column::text("Restarts", "How often the workload has been started again.", |stored, _| {
            Value::from(restarts(stored).to_string())
        }),
        AGE,
        Column::wide("IP", "Address of the workload, when it has one of its own.", |stored, _| {
            Value::from(or_none(address(stored)))
        }),
        Column::wide("Node", "Node that the workload is bound to.", |stored, _| {
            Value::from(or_none(node(stored)))
        }),
    ],
    fields: &[
        ("metadata.name", "metadata.name"),
        ("metadata.namespace", "metadata.namespace"),
        ("spec.nodeName", "spec.placement.nodeName"),
        ("status.phase", "status.phase"),
    ],
    phases: &PHASES,
    project,
};

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

fn node(stored: &Object) -> &str {
    stored.str_at(&["spec", "placement", "nodeName"])
}

/// Phases of Applications, and those that Pods have.
const PHASES: [(&str, &str); 8] = [
    ("", "Pending"),
    ("Pending", "Pending"),
    ("Running", "Running"),
    ("Terminating", "Running"),
    ("Frozen", "Running"),
    ("Succeeded", "Succeeded"),
    ("Terminated", "Succeeded"),
    ("Failed", "Failed"),
];

/// One of the phases that Pods have.
fn phase(stored: &Object) -> &'static str {
    let phase = stored.str_at(&["status", "phase"]);
    PHASES.iter().find(|(stored, _)| *stored == phase).map_or("Pending", |(_, shown)| *shown)
}

/// Running, and not judged otherwise.
fn is_ready(stored: &Object) -> bool {
    stored.str_at(&["status", "phase"]) == "Running"
        && condition(stored, CONDITION_READY).is_none_or(|verdict| verdict["status"] == "True")
}

fn restarts(stored: &Object) -> i64 {
    let attempts = stored.at(&["status", "attempts"]).and_then(Value::as_i64).unwrap_or(0);
    (attempts - 1).max(0)
}

/// Why a job failed, when the node says so at the start of its message.
fn failure(stored: &Object) -> &str {
    let message = stored.str_at(&["status", "message"]);
    ["DeadlineExceeded", "BackoffLimitExceeded"]
        .into_iter()
        .find(|reason| message.starts_with(reason))
        .unwrap_or("Error")
}

fn status(stored: &Object) -> &str {
    match stored.str_at(&["status", "phase"]) {
        _ if stored.is_deleting() => "Terminating",
        "Succeeded" | "Terminated" => "Completed",
        "Failed" => failure(stored),
        "" => "Pending",
        phase => phase,
    }
}

fn container(stored: &Object) -> Value {
    let mut container = Map::new();
    container.insert("name".to_owned(), Value::from(stored.name()));
    for member in ["image", "command", "args", "resources"] {
        if let Some(value) = stored.at(&["spec", member]) {
            container.insert(member.to_owned(), value.clone());
        }
    }
    let ports: Vec<Value> = stored
        .at(&["spec", "ports"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|port| {
            let mut shown = json!({"containerPort": port["port"], "protocol": "TCP"});
            if let Some(name) = port["name"].as_str() {
                shown["name"] = Value::from(name);
            }
            shown
        })
        .collect();
    if !ports.is_empty() {
        container.insert("ports".to_owned(), Value::Array(ports));
    }
    Value::Object(container)
}

fn state(stored: &Object) -> Value {
    match phase(stored) {
        "Running" => json!({"running": {}}),
        "Pending" => {
            let reason = if node(stored).is_empty() { "Unschedulable" } else { "ContainerCreating" };
            json!({"waiting": {"reason": reason, "message": stored.str_at(&["status", "message"])}})
        }
        ended => {
            let mut terminated = json!({
                "exitCode": stored.at(&["status", "exitCode"]).and_then(Value::as_i64).unwrap_or(0),
                "reason": if ended == "Succeeded" { "Completed" } else { failure(stored) },
            });
            let finished = stored.str_at(&["status", "finishedAt"]);
            if !finished.is_empty() {
                terminated["finishedAt"] = Value::from(finished);
            }
            json!({ "terminated": terminated })
        }
    }
}

/// A condition of the Pod, with time, reason and message of the verdict that it comes from.
fn pod_condition(stored: &Object, type_: &str, holds: bool, from: &str) -> Value {
    let verdict = condition(stored, from);
    let since = verdict
        .and_then(|verdict| verdict["lastTransitionTime"].as_str())
        .unwrap_or_else(|| stored.str_at(&["metadata", "creationTimestamp"]));
    let mut shown = json!({
        "type": type_,
        "status": if holds { "True" } else { "False" },
        "lastProbeTime": null,
        "lastTransitionTime": if since.is_empty() { Value::Null } else { Value::from(since) },
    });
    for member in ["reason", "message"] {
        let text = verdict.and_then(|verdict| verdict[member].as_str()).unwrap_or("");
        if !holds && !text.is_empty() {
            shown[member] = Value::from(text);
        }
    }
    shown
}

fn project(stored: &Object) -> Object {
    let ready = is_ready(stored);
    let scheduled = !node(stored).is_empty();
    let mut spec = json!({
        "containers": [container(stored)],
        "restartPolicy": match stored.str_at(&["spec", "lifecycle", "restartPolicy"]) {
            "" => "Always",
            policy => policy,
        },
        "hostNetwork": stored.at(&["spec", "hostNetwork"]) != Some(&Value::Bool(false)),
    });
    if scheduled {
        spec["nodeName"] = Value::from(node(stored));
    }
    if let Some(grace) = stored.at(&["spec", "lifecycle", "terminationGracePeriodSeconds"]) {
        spec["terminationGracePeriodSeconds"] = grace.clone();
    }

    let mut scheduled_condition = pod_condition(stored, "PodScheduled", scheduled, CONDITION_SCHEDULED);
    let message = stored.str_at(&["status", "message"]);
    if !scheduled && scheduled_condition.get("reason").is_none() {
        scheduled_condition["reason"] = Value::from("Unschedulable");
        if !message.is_empty() {
            scheduled_condition["message"] = Value::from(message);
        }
    }
    let mut status = json!({
        "phase": phase(stored),
        "conditions": [
            scheduled_condition,
            pod_condition(stored, "Initialized", scheduled, CONDITION_SCHEDULED),
            pod_condition(stored, "ContainersReady", ready, CONDITION_READY),
            pod_condition(stored, "Ready", ready, CONDITION_READY),
        ],
        "containerStatuses": [{
            "name": stored.name(),
            "image": text_at(stored, &["spec", "image"]),
            "imageID": "",
            "ready": ready,
            "started": phase(stored) == "Running",
            "restartCount": restarts(stored),
            "state": state(stored),
            "lastState": {},
        }],
    });
    if !message.is_empty() {
        status["message"] = Value::from(message);
    }
    let address = address(stored);
    if !address.is_empty() {
        status["podIP"] = Value::from(address);
        status["podIPs"] = json!([{ "ip": address }]);
    }
    object(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(stored),
        "spec": spec,
        "status": status,
    }))
}
