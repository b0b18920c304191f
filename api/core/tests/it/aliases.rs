use horchestra_core::alias::{self, Alias};
use horchestra_core::selector::FieldSelector;
use horchestra_core::table;
use serde_json::{Value, json};

use crate::{now, object, pretty};

fn application(spec: Value, status: Value) -> Value {
    json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": "web", "namespace": "team-a",
        "uid": "0b1c", "resourceVersion": "41", "generation": 1, "creationTimestamp": "2026-03-01T11:00:00Z",
        "labels": {"app": "web"}, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret"},
        "finalizers": ["horchestra.io/node-teardown"]}, "spec": spec, "status": status})
}

fn running() -> Value {
    application(
        json!({"image": "nginx:1", "args": ["-x"], "ports": [{"name": "http", "port": 80}, {"port": 81}], "hostNetwork": false,
            "lifecycle": {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 7}, "placement": {"nodeName": "n1"}}),
        json!({"phase": "Running", "observedGeneration": 1, "address": "10.1.0.2/32", "attempts": 3,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T11:01:00Z", "reason": "Running", "message": ""}]}),
    )
}

fn pod(stored: Value) -> Value {
    (alias::PODS.project)(&object(stored)).into_value()
}

fn cells(alias: &Alias, stored: Value) -> Vec<String> {
    table::cells(alias.columns, &object(stored), now())
        .iter()
        .map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned))
        .collect()
}

#[test]
fn a_running_pod() {
    insta::assert_snapshot!("pod_running", pretty(&pod(running())));
    assert_eq!(cells(&alias::PODS, running()), ["web", "1/1", "Running", "2", "60m", "10.1.0.2", "n1"]);
}

#[test]
fn a_pod_that_waits_for_a_node() {
    let waiting =
        application(json!({"image": "x"}), json!({"phase": "Pending", "message": "no node is registered"}));
    insta::assert_snapshot!("pod_pending", pretty(&pod(waiting.clone())));
    assert_eq!(cells(&alias::PODS, waiting), ["web", "0/1", "Pending", "0", "60m", "<none>", "<none>"]);
}

#[test]
fn phases_and_states_of_pods() {
    let with = |phase: &str, message: &str| {
        application(
            json!({"image": "x", "placement": {"nodeName": "n"}}),
            json!({"phase": phase, "message": message, "exitCode": 3}),
        )
    };
    for (phase, message, shown, cell) in [
        ("", "", "Pending", "Pending"),
        ("Pending", "", "Pending", "Pending"),
        ("Running", "", "Running", "Running"),
        ("Frozen", "", "Running", "Frozen"),
        ("Terminating", "", "Running", "Terminating"),
        ("Succeeded", "", "Succeeded", "Completed"),
        ("Failed", "", "Failed", "Error"),
        ("Failed", "DeadlineExceeded: took too long", "Failed", "DeadlineExceeded"),
    ] {
        let stored = with(phase, message);
        assert_eq!(pod(stored.clone())["status"]["phase"], shown, "{phase}");
        assert_eq!(cells(&alias::PODS, stored)[2], cell, "{phase}");
    }
    let failed = pod(with("Failed", ""));
    assert_eq!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    let mut deleting = with("Running", "");
    deleting["metadata"]["deletionTimestamp"] = json!("2026-03-01T11:59:00Z");
    deleting["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    assert_eq!(
        pod(deleting.clone())["metadata"]["deletionGracePeriodSeconds"],
        30,
        "which kubectl relies on"
    );
    assert_eq!(cells(&alias::PODS, deleting)[2], "Terminating");
}

#[test]
fn a_pod_is_ready_unless_judged_otherwise() {
    let ready = |condition: Value| {
        let mut stored = running();
        stored["status"]["conditions"] = condition;
        pod(stored)["status"]["containerStatuses"][0]["ready"].clone()
    };
    assert_eq!(ready(json!([])), true);
    assert_eq!(ready(json!([{"type": "Ready", "status": "False"}])), false);
}

fn selector(alias: &Alias, text: &str) -> Option<FieldSelector> {
    FieldSelector::parse_reworded(text, &|term| alias.stored_terms(term)).ok()
}

#[test]
fn fields_of_pods_are_fields_of_applications() {
    let reworded = |text| selector(&alias::PODS, text).map(|selector| selector.to_string());
    assert_eq!(reworded("spec.nodeName!=n1").as_deref(), Some("spec.placement.nodeName!=n1"));
    assert_eq!(reworded("metadata.name=a\\,b").as_deref(), Some("metadata.name=a\\,b"));
    assert_eq!(reworded("spec.placement.nodeName=n1"), None);
    for alias in alias::ALIASES {
        let spec = horchestra_core::registry::spec(alias.kind).unwrap();
        for (_, stored) in alias.fields {
            assert!(spec.is_selectable(stored), "{stored}");
        }
        assert!(std::ptr::eq(alias::by_resource(alias.group, alias.plural).unwrap(), alias));
    }
    assert!(alias::by_resource("", "applications").is_none());
}

#[test]
fn phases_select_those_that_are_shown_with_them() {
    let stored = ["", "Pending", "Running", "Frozen", "Terminating", "Succeeded", "Terminated", "Failed"];
    let spec = horchestra_core::registry::spec(alias::PODS.kind).unwrap();
    for phase in stored {
        let object = application(json!({"image": "x"}), json!({"phase": phase}));
        let shown = pod(object.clone())["status"]["phase"].as_str().unwrap().to_owned();
        let fields = spec.selectable_fields(&self::object(object));
        for asked in ["Pending", "Running", "Succeeded", "Failed", "Unknown", "Frozen", "Terminating", ""] {
            let matches = |text: String| selector(&alias::PODS, &text).unwrap().matches(&fields);
            assert_eq!(matches(format!("status.phase={asked}")), shown == asked, "{phase} as {asked}");
            assert_eq!(matches(format!("status.phase!={asked}")), shown != asked, "{phase} not as {asked}");
        }
    }
}

#[test]
fn a_core_node() {
    let stored = json!({"metadata": {"name": "n1", "uid": "u", "creationTimestamp": "2026-03-01T11:00:00Z", "labels": {"zone": "z1", "horchestra.io/arch": "odd"}},
        "spec": {"unschedulable": true}, "status": {"ready": true, "ip": "10.0.0.7", "os": "Debian 13",
            "capacity": {"cpu": "4", "memory": "8Gi"}, "platform": {"os": "linux", "arch": "arm64"}, "labels": {"horchestra.io/arch": "arm64"},
            "conditions": [{"type": "Ready", "status": "False", "reason": "Silent", "message": "m", "lastTransitionTime": "2026-03-01T11:30:00Z"}]}});
    insta::assert_snapshot!(
        "core_node",
        pretty(&(alias::NODES.project)(&object(stored.clone())).into_value())
    );
    assert_eq!(cells(&alias::NODES, stored), ["n1", "NotReady,SchedulingDisabled", "60m"]);
    let bare = (alias::NODES.project)(&object(json!({"metadata": {"name": "n"}, "spec": {}}))).into_value();
    assert_eq!(bare["metadata"]["labels"], json!({}));
    assert_eq!(bare["status"]["conditions"][0]["status"], "False");
}

#[test]
fn a_core_namespace() {
    let stored = json!({"metadata": {"name": "team-a", "uid": "u"}});
    let core = (alias::NAMESPACES.project)(&object(stored.clone())).into_value();
    assert_eq!(core["kind"], "Namespace");
    assert_eq!(core["status"]["phase"], "Active");
    assert_eq!(cells(&alias::NAMESPACES, stored), ["team-a", "Active", "<unknown>"]);
}

#[test]
fn aliases_survive_any_stored_object() {
    for stored in [
        json!({}),
        json!({"metadata": 3, "spec": [], "status": "x"}),
        json!({"spec": {"ports": [1, {}], "image": 4}, "status": {"conditions": [1, {}]}}),
    ] {
        for alias in alias::ALIASES {
            let _ = (alias.project)(&object(stored.clone()));
            let _ = cells(alias, stored.clone());
        }
    }
}
