use std::collections::BTreeMap;

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::{Amounts, Application, over};
use horchestra_core::kinds::meta::{Condition, ConditionStatus, set_condition};
use horchestra_core::kinds::node::{Node, Platform, derived_labels};
use horchestra_core::quantity::Quantity;
use horchestra_core::registry::{self, Facts, Reference};
use horchestra_core::time::Time;
use serde_json::{Value, json};

use crate::object;

fn application(spec: Value, status: Value) -> Application {
    let mut spec = spec;
    spec["image"] = json!("x");
    object(json!({"metadata": {"name": "web", "generation": 3}, "spec": spec, "status": status}))
        .read()
        .unwrap()
}

fn job(backoff_limit: Value, status: Value) -> Application {
    application(json!({"lifecycle": {"restartPolicy": "Never", "backoffLimit": backoff_limit}}), status)
}

#[test]
fn jobs_end_when_they_succeed_or_have_no_retry_left() {
    let failed = |attempts: i64| json!({"phase": "Failed", "attempts": attempts});
    assert!(!application(json!({"lifecycle": {"restartPolicy": "Always"}}), failed(3)).is_terminal());
    assert!(!application(json!({}), failed(3)).is_terminal());
    assert!(job(Value::Null, failed(1)).is_terminal());
    assert!(job(Value::Null, failed(0)).is_terminal());
    assert!(!job(json!(2), failed(2)).is_terminal());
    assert!(job(json!(2), failed(3)).is_terminal());
    assert!(job(json!(-5), failed(1)).is_terminal());
    assert!(job(json!(9), json!({"phase": "Succeeded"})).is_terminal());
    assert!(application(json!({}), json!({"phase": "Succeeded"})).is_terminal());
    assert!(!job(Value::Null, json!({"phase": "Running", "attempts": 9})).is_terminal());
    assert!(!job(Value::Null, json!({})).is_terminal());
}

#[test]
fn an_edit_makes_a_finished_job_run_again() {
    let at = |attempts: i64, observed: i64| {
        job(json!(1), json!({"phase": "Failed", "attempts": attempts, "observedGeneration": observed}))
    };
    assert!(!at(1, 3).is_finished());
    assert!(at(2, 3).is_finished());
    assert!(!at(2, 2).is_finished());
}

#[test]
fn what_counts_on_a_node_is_the_request_or_else_the_limit() {
    let counted = |resources: Value, status: Value| {
        let Amounts { cpu, memory } = application(json!({"resources": resources}), status).counted_request();
        (cpu.to_string(), memory.to_string())
    };
    let both = json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    assert_eq!(counted(both.clone(), json!({})), ("250m".into(), "1Gi".into()));
    assert_eq!(
        counted(json!({"requests": {"cpu": "0"}, "limits": {"cpu": "2"}}), json!({})),
        ("2".into(), "0".into())
    );
    assert_eq!(counted(json!({}), json!({})), ("0".into(), "0".into()));
    assert_eq!(
        counted(both, json!({"phase": "Succeeded", "observedGeneration": 3})),
        ("0".into(), "0".into())
    );
}

#[test]
fn capacity_of_zero_means_boundless_or_nothing() {
    let quantity = |text: &str| text.parse::<Quantity>().unwrap();
    assert!(!over(&quantity("4"), &quantity("4"), false));
    assert!(over(&quantity("4001m"), &quantity("4"), true));
    assert!(over(&quantity("1"), &Quantity::ZERO, false));
    assert!(!over(&quantity("1"), &Quantity::ZERO, true));
    assert!(!over(&Quantity::ZERO, &Quantity::ZERO, false));
    let sum = Amounts { cpu: quantity("3"), memory: quantity("1Gi") }
        .plus(&Amounts { cpu: quantity("1500m"), memory: quantity("1Mi") });
    assert!(over(&sum.cpu, &quantity("4"), true));
    assert_eq!(sum.memory.to_string(), "1025Mi");
}

#[test]
fn what_an_application_refers_to() {
    let spec = registry::spec(Kind::Application).unwrap();
    let stored = object(
        json!({"metadata": {"name": "web"}, "spec": {"image": "x", "serviceName": "svc", "placement": {"nodeName": "n1"},
        "env": [{"name": "A", "secretRef": {"name": "keys", "key": "a", "optional": true}}, {"secretRef": {"name": "db", "key": "*", "optional": true}}],
        "volumes": [
            {"mountPath": "/a", "volume": {"type": "pv"}}, {"mountPath": "/b", "volume": {"type": "pv", "name": "data"}},
            {"mountPath": "/c", "volume": {"type": "pv", "name": "data"}}, {"mountPath": "/d", "volume": {"type": "tmpfs", "name": "no"}},
            {"mountPath": "/e", "volume": {"type": "secret", "name": "db"}}, {"mountPath": "/f", "volume": {"type": "token"}},
        ]}}),
    );
    let text = str::to_owned;
    assert_eq!(
        (spec.references)(&stored),
        [
            Reference::Node(text("n1")),
            Reference::Service(text("svc")),
            Reference::Secret(text("db")),
            Reference::SecretOptional(text("keys")),
            Reference::Volume(text("data")),
            Reference::Volume(text("web")),
        ]
    );
    assert_eq!(Reference::Volume(text("data")).target(), (Kind::PersistentVolume, "data"));
    assert_eq!((spec.references)(&object(json!({"spec": 3}))), []);
}

#[test]
fn facts_for_the_store() {
    let application = registry::spec(Kind::Application).unwrap();
    let mut stored = json!({"metadata": {"name": "web", "generation": 1}, "spec": {"image": "x", "placement": {"nodeName": "n1"},
        "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}}}, "status": {"phase": "Succeeded", "observedGeneration": 0}});
    let facts = |cpu_nano, memory_bytes| Facts {
        node: "n1".into(),
        phase: "Succeeded".into(),
        cpu_nano,
        memory_bytes,
    };
    assert_eq!((application.facts)(&object(stored.clone())), facts(100_000_000, 1 << 20));
    stored["status"]["observedGeneration"] = json!(1);
    assert_eq!((application.facts)(&object(stored)), facts(0, 0));
    let node = registry::spec(Kind::Node).unwrap();
    let stored = object(
        json!({"metadata": {"name": "n"}, "spec": {}, "status": {"capacity": {"cpu": "4", "memory": "8Gi"}}}),
    );
    assert_eq!(
        (node.facts)(&stored),
        Facts { cpu_nano: 4_000_000_000, memory_bytes: 8 << 30, ..Facts::default() }
    );
    assert_eq!(
        node.selectable_fields(&stored),
        [("metadata.name".to_owned(), "n".to_owned()), ("spec.unschedulable".to_owned(), "false".to_owned())]
    );
}

#[test]
fn labels_of_nodes_for_placement() {
    let platform = Platform { os: "linux".into(), arch: "amd64".into() };
    let full = derived_labels("n1", Some(&platform));
    assert_eq!(
        full.keys().collect::<Vec<_>>(),
        ["horchestra.io/arch", "horchestra.io/hostname", "horchestra.io/os"]
    );
    assert_eq!(
        derived_labels("n1", None),
        BTreeMap::from([("horchestra.io/hostname".to_owned(), "n1".to_owned())])
    );
    assert_eq!(derived_labels("n1", Some(&Platform::default())).len(), 1);
    let node: Node = object(
        json!({"metadata": {"name": "n", "labels": {"zone": "z", "horchestra.io/arch": "shadow"}}, "spec": {},
        "status": {"labels": {"horchestra.io/arch": "arm64"}}}),
    )
    .read()
    .unwrap();
    assert_eq!(node.scheduling_labels()["horchestra.io/arch"], "arm64");
    assert_eq!(node.scheduling_labels()["zone"], "z");
    assert_eq!((node.ready(), node.admitted()), (None, false));
}

#[test]
fn node_selectors() {
    let labels = BTreeMap::from([("zone".to_owned(), "z1".to_owned()), ("disk".to_owned(), String::new())]);
    let matches = |selector: Value| {
        let selector: horchestra_core::kinds::application::NodeSelector =
            serde_json::from_value(selector).unwrap();
        selector.matches(&labels)
    };
    let expression = |key: &str, operator: &str, values: Value| {
        matches(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
    };
    assert!(matches(json!({})));
    assert!(matches(json!({"matchLabels": {"zone": "z1"}})));
    assert!(!matches(json!({"matchLabels": {"zone": "z1", "x": "y"}})));
    assert!(expression("zone", "In", json!(["z1", "z2"])));
    assert!(!expression("pool", "In", json!(["a"])));
    assert!(expression("pool", "NotIn", json!(["a"])));
    assert!(!expression("zone", "NotIn", json!(["z1"])));
    assert!(expression("disk", "Exists", json!(null)));
    assert!(expression("pool", "DoesNotExist", json!([])));
    assert!(!expression("disk", "DoesNotExist", json!([])));
}

#[test]
fn a_condition_moves_its_time_only_with_its_status() {
    let verdict = |status, reason: &str| Condition {
        type_: "Ready".into(),
        status,
        reason: reason.into(),
        ..Condition::default()
    };
    let (early, late) = (Time::from_seconds(100).unwrap(), Time::from_seconds(200).unwrap());
    let mut conditions = Vec::new();
    assert!(set_condition(&mut conditions, verdict(ConditionStatus::True, "A"), early));
    assert!(!set_condition(&mut conditions, verdict(ConditionStatus::True, "A"), late));
    assert!(set_condition(&mut conditions, verdict(ConditionStatus::True, "B"), late));
    assert_eq!(conditions[0].last_transition_time, Some(early));
    assert!(set_condition(&mut conditions, verdict(ConditionStatus::False, "B"), late));
    assert_eq!(conditions[0].last_transition_time, Some(late));
    assert_eq!(conditions.len(), 1);
}

#[test]
fn empty_environment_entries_are_written_without_members() {
    let application = application(
        json!({"env": [{}, {"name": "A", "value": ""}, {"secretRef": {"name": "s", "key": "*", "prefix": "P_"}}]}),
        json!({}),
    );
    let env = serde_json::to_value(&application.spec.env).unwrap();
    assert_eq!(env, json!([{}, {"name": "A"}, {"secretRef": {"name": "s", "key": "*", "prefix": "P_"}}]));
}
