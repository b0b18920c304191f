//! Nodes that show up, and what is believed of what they say of themselves.

use std::time::Duration;

use horchestra_nodegate::strict::ReverseNames;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use super::client::heartbeat;
use super::stage::{Case, Stage, together};
use crate::world::{A_WHILE, SOON};

/// A heartbeat with this put into it, by path.
fn saying(name: &str, members: &[(&str, Value)]) -> Value {
    let mut said = heartbeat(name);
    for (path, value) in members {
        let (parent, member) = path.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { &mut said } else { said.pointer_mut(parent).unwrap() };
        parent[member] = value.clone();
    }
    said
}

#[tokio::test]
async fn a_stranger_gets_a_node_of_its_own_name_that_takes_no_part() {
    let stage = Stage::new().await;
    let node = stage.dial("n1").await;
    let said = saying(
        "n1",
        &[
            ("/metadata/labels", json!({"tier": "secure", "horchestra.io/arch": "gpu"})),
            ("/metadata/annotations", json!({"a": "b"})),
            ("/metadata/finalizers", json!(["example.com/mine"])),
            (
                "/metadata/ownerReferences",
                json!([{"kind": "Node", "name": "n2", "uid": "x", "apiVersion": "v1"}]),
            ),
            ("/metadata/resourceVersion", json!("1")),
            ("/metadata/uid", json!("7b0c8a52-94ad-4f0e-8a3f-0d9f6f0c1a11")),
            ("/spec", json!({"unschedulable": false})),
        ],
    );
    node.say_of_itself(said.to_string()).await;
    let stored = stage.until_node("n1", |node| !node.is_null()).await;
    assert_eq!(stored["spec"], json!({"unschedulable": true}));
    assert_eq!(stored["status"]["ready"], true);
    let metadata = stored["metadata"].as_object().unwrap();
    for member in ["labels", "annotations", "finalizers", "ownerReferences"] {
        assert!(!metadata.contains_key(member), "{member}: {stored}");
    }
    assert_ne!(stored["metadata"]["uid"], said["metadata"]["uid"]);
    let admitted = |condition: &Value| condition["type"] == "Admitted" && condition["status"] != "True";
    assert!(stored["status"]["conditions"].as_array().unwrap().iter().any(admitted), "{stored}");
}

/// What is said, by path, and what is stored then, by path; `Null`: nothing.
type Said =
    (&'static str, &'static [(&'static str, fn() -> Value)], &'static [(&'static str, fn() -> Value)]);

const SAID: &[Said] = &[
    (
        "as ever",
        &[],
        &[
            ("/status/os", || json!("Debian (6.1, amd64)")),
            ("/status/capacity", || json!({"cpu": "4", "memory": "8Gi"})),
            ("/status/runtimes", || json!(["userns"])),
            ("/status/platform", || json!({"os": "linux", "arch": "amd64"})),
        ],
    ),
    (
        "labels",
        &[("/status/labels", || json!({"arch": "gpu", "tier": "secure"}))],
        &[
            ("/status/labels/horchestra.io~1arch", || json!("amd64")),
            ("/status/labels/horchestra.io~1os", || json!("linux")),
            ("/status/labels/arch", || Value::Null),
            ("/status/labels/tier", || Value::Null),
        ],
    ),
    (
        "another platform",
        &[("/status/platform", || json!({"os": "linux", "arch": "arm64"}))],
        &[("/status/labels/horchestra.io~1arch", || json!("arm64"))],
    ),
    (
        "no platform",
        &[("/status/platform", || Value::Null)],
        &[
            ("/status/labels/horchestra.io~1arch", || Value::Null),
            ("/status/labels/horchestra.io~1os", || Value::Null),
        ],
    ),
    (
        "an empty platform",
        &[("/status/platform", || json!({"os": "", "arch": ""}))],
        &[
            ("/status/labels/horchestra.io~1arch", || Value::Null),
            ("/status/labels/horchestra.io~1os", || Value::Null),
        ],
    ),
    (
        "a giant",
        &[("/status/capacity", || json!({"cpu": "100000", "memory": "1Pi"}))],
        &[("/status/capacity", || json!({"cpu": "4096", "memory": "64Ti"}))],
    ),
    (
        "half a machine",
        &[("/status/capacity", || json!({"cpu": "2"}))],
        &[("/status/capacity", || json!({"cpu": "2"}))],
    ),
    (
        "what is newer than we are",
        &[("/status/newer", || json!({"member": 1})), ("/status/os", || json!("next"))],
        &[("/status/newer", || Value::Null), ("/status/os", || json!("next"))],
    ),
    ("no address", &[("/status/ip", || json!(""))], &[("/status/ip", || Value::Null)]),
    ("nobody's address", &[("/status/ip", || json!("0.0.0.0"))], &[("/status/ip", || Value::Null)]),
    ("an address", &[("/status/ip", || json!("10.0.0.9"))], &[("/status/ip", || json!("10.0.0.9"))]),
    ("not ready", &[("/status/ready", || json!(false))], &[("/status/ready", || Value::Null)]),
    ("a network", &[("/status/routedNetwork", || json!(true))], &[("/status/routedNetwork", || json!(true))]),
    (
        "conditions",
        &[("/status/conditions", || json!([{"type": "Ready", "status": "True"}]))],
        &[("/status/conditions/1", || Value::Null)],
    ),
];

#[tokio::test]
async fn of_a_report_is_stored_what_a_machine_knows_of_itself() {
    let stage = Stage::new().await;
    let stage = &stage;
    together(SAID.iter().enumerate().map(|(number, (what, said, expected))| -> Case<'_> {
        Box::pin(async move {
            let name = format!("n{number}");
            stage.world.create_node(&name).await;
            let node = stage.dial(&name).await;
            let members: Vec<_> = said.iter().map(|(path, value)| (*path, value())).collect();
            node.say_of_itself(saying(&name, &members).to_string()).await;
            let stored = stage.until_node(&name, |node| node["status"]["labels"].is_object()).await;
            assert_eq!(stored["status"]["labels"]["horchestra.io/hostname"], name.as_str(), "{what}");
            for (path, value) in *expected {
                let found = stored.pointer(path).cloned().unwrap_or_default();
                let absent = *path == "/status/ready" && found == json!(false);
                assert!(absent || found == value(), "{what}: {path} is {found}");
            }
        })
    }))
    .await;
}

#[tokio::test]
async fn a_heartbeat_is_the_time_at_which_it_came() {
    let stage = Stage::new().await;
    let node = stage.dial("n1").await;
    node.say_of_itself(saying("n1", &[("/status/heartbeat", json!("2099-01-01T00:00:00Z"))]).to_string())
        .await;
    let stored = stage.until_node("n1", |node| !node.is_null()).await;
    assert!(stored["status"].get("heartbeat").is_none_or(|at| !at.to_string().contains("2099")), "{stored}");
    let beats = eventually(SOON, async || {
        Some(stage.world.operator.store().heartbeats().await.unwrap()).filter(|beats| !beats.is_empty())
    })
    .await;
    let now = jiff::Timestamp::now().as_microsecond();
    assert!((beats[0].at - now).abs() < 60_000_000, "{beats:?}");
}

/// Reports that are dropped as they are.
const DROPPED: &[(&str, &str)] = &[
    ("another node's", r#"{"metadata":{"name":"n2"},"status":{"os":"bad"}}"#),
    ("nobody's", r#"{"metadata":{},"status":{"os":"bad"}}"#),
    ("in a namespace", r#"{"metadata":{"name":"n1","namespace":"team"},"status":{"os":"bad"}}"#),
    ("cut off", r#"{"metadata":{"name":"n1"},"status":{"os":"bad""#),
    ("nothing", ""),
    ("a list", "[]"),
    ("an empty amount", r#"{"metadata":{"name":"n1"},"status":{"os":"bad","capacity":{"cpu":""}}}"#),
    ("less than nothing", r#"{"metadata":{"name":"n1"},"status":{"os":"bad","capacity":{"cpu":"-1"}}}"#),
    ("two names", r#"{"metadata":{"name":"n1","name":"n2"},"status":{"os":"bad"}}"#),
];

#[tokio::test]
async fn a_report_that_cannot_be_is_dropped_and_the_next_one_counts() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    let mut node = stage.dial("n1").await;
    for (what, dropped) in DROPPED {
        node.say_of_itself(*dropped).await;
        stage.heard(&node).await;
        assert!(stage.world.node("n2").await.is_null(), "{what}");
        assert_eq!(
            stage.gateway.gateway.gate.metrics.reports_dropped_for("node_status"),
            1 + nth(what),
            "{what}"
        );
    }
    assert!(node.is_open().await);
}

fn nth(what: &str) -> u64 {
    DROPPED.iter().position(|(name, _)| name == &what).unwrap() as u64
}

#[tokio::test]
async fn what_a_node_says_is_seen_within_three_seconds_and_leaves_a_cordon_alone() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    stage.world.operator.cordon(&stage.world.who(), "n1", true).await.unwrap();
    let node = stage.dial("n1").await;
    let said = saying("n1", &[("/status/os", json!("test-os")), ("/spec", json!({"unschedulable": false}))]);
    node.say_of_itself(said.to_string()).await;
    let stored = stage.until_node("n1", |node| node["status"]["os"] == "test-os").await;
    assert_eq!((&stored["status"]["ready"], &stored["spec"]["unschedulable"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn two_gateways_that_register_a_node_at_once_make_one_of_it() {
    let stage = Stage::new().await;
    let other = stage.world.gateway().await;
    // The first one is in the middle of it when the node comes to the second one.
    let mut old = stage.dial("n1").await;
    stage.gateway.backend().set_stalled(true);
    old.beat().await;
    let mut new = stage.dial_again(&other, "n1").await;
    stage.gateway.backend().set_stalled(false);
    new.beat().await;
    let stored = stage.until_node("n1", |node| !node.is_null()).await;
    old.end().await;
    tokio::time::sleep(A_WHILE).await;
    let then = stage.world.node("n1").await;
    assert_eq!(then["metadata"]["uid"], stored["metadata"]["uid"]);
    assert_eq!(stage.world.told("NodeRegistered", "n1").await.len(), 1);
    for told in ["ReportRefused", "RegistrationRefused"] {
        assert!(stage.world.told(told, "n1").await.is_empty(), "{told}");
    }
    assert!(new.is_open().await);
}

#[tokio::test]
async fn a_node_that_is_made_while_it_registers_is_one_node() {
    let stage = Stage::new().await;
    let stage = &stage;
    together((0..20).map(|number| -> Case<'_> {
        Box::pin(async move {
            let name = format!("n{number}");
            let mut node = stage.dial(&name).await;
            let object = horchestra_core::Object::from_value(json!({"metadata": {"name": name}, "spec": {}}));
            let body = horchestra_service::Body::Object(object.unwrap());
            let (who, options) = (stage.world.who(), Default::default());
            let making = stage.world.operator.create(&who, horchestra_core::Kind::Node, "", body, &options);
            let (made, ()) = tokio::join!(making, node.beat());
            // Whoever comes first makes it; the other finds it there.
            assert!(made.as_ref().is_ok_and(|_| true) || made.as_ref().is_err_and(|why| why.code() == 409));
            let stored = stage.until_node(&name, |node| node["status"]["ready"] == true).await;
            assert_eq!(made.is_err(), stored["spec"]["unschedulable"] == true, "{stored}");
            assert!(node.is_open().await);
            assert!(stage.world.told("ReportRefused", &name).await.is_empty());
        })
    }))
    .await;
}

/// Names of addresses as the test says: these, none, or never an answer.
fn reverse_names(names: Option<&'static str>) -> ReverseNames {
    ReverseNames::by(Duration::from_millis(300), move |_| {
        Box::pin(async move {
            match names {
                Some("hangs") => std::future::pending().await,
                names => Ok(names.map(str::to_owned).into_iter().collect()),
            }
        })
    })
}

#[tokio::test]
async fn under_strict_registration_the_address_bears_the_name() {
    let cases = [
        (Some("node-1.example.org."), "node-1", Ok(())),
        (Some("node-1.example.org."), "node-1.example.org", Ok(())),
        (Some("node-1.example.org."), "node-2", Err("node-1.example.org")),
        (None, "node-1", Err("name")),
        (Some("hangs"), "node-1", Err("no answer in time")),
    ];
    for (names, name, registers) in cases {
        let stage = Stage::with(|settings| settings.strict_registration = Some(reverse_names(names))).await;
        let mut node = stage.dial(name).await;
        node.beat().await;
        let dropped = || stage.gateway.gateway.gate.metrics.reports_dropped_for("refused");
        match registers {
            Ok(()) => _ = stage.until_node(name, |node| !node.is_null()).await,
            Err(why) => {
                let told =
                    eventually(SOON, async || stage.world.told("RegistrationRefused", name).await.pop())
                        .await;
                assert!(told.contains(why), "{told}");
                // Tried again with the next heartbeat, and nothing is pushed meanwhile.
                node.beat().await;
                eventually(SOON, async || dropped() == 2).await;
                assert!(stage.world.node(name).await.is_null());
                node.hears_nothing().await;
            }
        }
        assert!(node.is_open().await);
    }
}

#[tokio::test]
async fn a_node_that_exists_is_never_looked_up() {
    let stage = Stage::with(|settings| {
        settings.strict_registration = Some(ReverseNames::by(SOON, |_| panic!("it is not asked for")));
    })
    .await;
    stage.world.create_node("n1").await;
    let mut node = stage.dial("n1").await;
    stage.heard(&node).await;
    assert!(node.is_open().await);
}
