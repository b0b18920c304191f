//! Nodes, or whoever has a node's certificate, that say what they should not.
//!
//! The list of all threats, and of what comes of each, is at the head of `api/tests/it/threats/mod.rs`.

use std::time::Duration;

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::kind::{Key, Kind};
use horchestra_nodegate::strict::ReverseNames;
use horchestra_proto::node::v1::node_message::Body;
use horchestra_proto::node::v1::{AppStatus, NodeStatus};
use horchestra_testkit::eventually;
use serde_json::{Value, json};
use tonic::Code;

use crate::world::{A_WHILE, NAMESPACE, SOON, TestGateway, World, app_key, end_of_pass, names, report};

/// Sends this text as the heartbeat.
async fn say(node: &ScriptedNode, text: &str) {
    node.send(Body::Status(NodeStatus { node: text.as_bytes().to_vec().into() })).await.unwrap();
}

/// A report of the node of this name; `metadata` is put in as it stands.
fn about(metadata: &str) -> String {
    format!(
        r#"{{"kind":"Node","apiVersion":"horchestra.io/v1","metadata":{{{metadata}}},"spec":{{}},
            "status":{{"ready":true,"os":"forged","capacity":{{"cpu":"4","memory":"8Gi"}},"allocated":{{}},
            "platform":{{"os":"linux","arch":"amd64"}}}}}}"#
    )
}

/// Everything that is stored of Nodes, and their heartbeats.
async fn nodes(world: &World) -> Value {
    let store = world.operator.store();
    let view = store.fresh().await.unwrap();
    let mut all: Vec<Value> =
        view.list(Kind::Node, None).map(|entry| entry.object().unwrap().into_value()).collect();
    all.extend(store.heartbeats().await.unwrap().into_iter().map(|beat| json!(beat.heartbeat.node)));
    json!(all)
}

/// Sends each of these reports, which are all dropped, and then a good one, which is not.
async fn all_are_dropped(world: &World, gateway: &TestGateway, node: &ScriptedNode, reports: &[String]) {
    let dropped = || gateway.gateway.gate.metrics.reports_dropped_for("node_status");
    let before = nodes(world).await;
    for text in reports {
        let count = dropped();
        say(node, text).await;
        eventually(SOON, async || dropped() > count).await;
        assert!(node.is_open(), "{text}");
    }
    assert_eq!(nodes(world).await, before);
    say(node, &about(&format!(r#""name":"{}""#, node.name()))).await;
    eventually(SOON, async || world.node(node.name()).await["status"]["os"] == "forged").await;
}

#[tokio::test]
async fn a_report_about_another_node_is_dropped_however_it_is_spelled() {
    let world = World::on_postgres().await;
    let gateway = world.gateway().await;
    for name in ["n1", "victim"] {
        world.create_node(name).await;
    }
    let node = world.join(&gateway, "n1").await;
    let reports: Vec<String> = [
        r#""name":"victim""#,
        r#""name":"stranger""#,
        r#""name":"N1""#,
        r#""name":"n1 ""#,
        r#""name":"n1\u0000""#,
        r#""name":["n1"]"#,
        r#""name":null"#,
        "",
        // Readers differ in which of two they take, and in whether they tell the case of letters apart.
        r#""name":"n1","name":"victim""#,
        r#""name":"victim","name":"n1""#,
        r#""name":"n1","n\u0061me":"victim""#,
        r#""Name":"n1""#,
        r#""NAME":"n1","name":"victim""#,
    ]
    .map(about)
    .into();
    let twice = about(r#""name":"n1""#).replacen('{', r#"{"metadata":{"name":"victim"},"#, 1);
    let cased = about(r#""name":"n1""#).replacen("metadata", "Metadata", 1);
    let broken = about(r#""name":"n1""#).replace("}}", "}");
    let more = [twice, cased, broken, String::new(), "null".to_owned(), "[]".to_owned()];
    all_are_dropped(&world, &gateway, &node, &[&reports[..], &more].concat()).await;
    // What another reader would take for the name beside the one that counts is not even read.
    say(&node, &about(r#""name":"n1","Name":"victim","NAME":"victim","nаme":"victim""#)).await;
    node.heartbeat().await.unwrap();
    eventually(SOON, async || world.node("n1").await["status"]["os"] == "scripted").await;
    assert_eq!(world.node("victim").await["status"].get("os"), None, "nothing was said of it");
    assert!(world.node("stranger").await.is_null());
}

#[tokio::test]
async fn a_namespace_on_a_node_makes_no_hidden_twin() {
    let world = World::on_postgres().await;
    let gateway = world.gateway().await;
    for registered in [true, false] {
        let name = if registered { "n1" } else { "n2" };
        if registered {
            world.create_node(name).await;
        }
        let node = world.join(&gateway, name).await;
        let reports: Vec<String> = [
            r#""namespace":"team""#,
            r#""namespace":"default""#,
            r#""namespace":" ""#,
            r#""namespace":"a","namespace":"""#,
            r#""namespace":"","namespace":"team""#,
            r#""n\u0061mespace":"team""#,
            r#""namespace":["team"]"#,
            r#""namespace":{}"#,
        ]
        .map(|namespace| about(&format!(r#""name":"{name}",{namespace}"#)))
        .into();
        all_are_dropped(&world, &gateway, &node, &reports).await;
        // Other spellings are other members; what is stored has no namespace either way.
        for other in [r#""Namespace":"team""#, r#""nameſpace":"team""#, r#""namespace":null"#] {
            let beats = gateway.gateway.gate.metrics.heartbeats.get();
            say(&node, &about(&format!(r#""name":"{name}",{other}"#))).await;
            eventually(SOON, async || gateway.gateway.gate.metrics.heartbeats.get() > beats).await;
        }
        let stored = world.node(name).await;
        assert_eq!(stored["metadata"].get("namespace"), None, "{stored}");
        for namespace in [NAMESPACE, "default"] {
            let twin = Key::namespaced(Kind::Node, namespace, name);
            assert!(world.operator.store().fresh().await.unwrap().get(&twin).is_none());
        }
    }
    // Of each there is one, in the table itself too.
    let all = world.operator.store().fresh().await.unwrap();
    let keys: Vec<String> = all.list(Kind::Node, None).map(|entry| entry.key.to_string()).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for namespace in [NAMESPACE, "default"] {
        assert_eq!(all.list(Kind::Node, Some(namespace)).count(), 0);
    }
}

#[tokio::test]
async fn a_node_is_not_believed_what_it_cannot_know() {
    let world = World::on_postgres().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    let forged = json!({
        "kind": "Node", "apiVersion": "horchestra.io/v1",
        "metadata": {
            "name": "n1", "uid": "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11", "generation": 99,
            "labels": {"tier": "secure", "horchestra.io/arch": "gpu"}, "finalizers": ["x.io/y"],
            "annotations": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}],
        },
        "spec": {"unschedulable": true},
        "status": {
            "heartbeat": "2099-01-01T00:00:00Z", "ready": true, "os": "x".repeat(100_000),
            "capacity": {"cpu": "1000000", "memory": "9Ei"}, "allocated": {"cpu": "1"},
            "labels": {"tier": "secure", "horchestra.io/arch": "gpu", "horchestra.io/hostname": "victim"},
            "platform": {"os": "linux", "arch": "amd64"}, "ip": "224.0.0.1",
            "runtimes": ["userns", "../x", "a b"],
            "conditions": [{"type": "Admitted", "status": "True", "reason": "Me", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "reason": "Me", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "secret": "member",
        },
    });
    for name in ["n1", "n2"] {
        // One that an operator made, and one that nobody knows.
        let node = world.join(&gateway, name).await;
        let mut forged = forged.clone();
        forged["metadata"]["name"] = json!(name);
        let before = world.node(name).await;
        node.node_status(&forged).await.unwrap();
        let stored = eventually(SOON, async || {
            Some(world.node(name).await).filter(|node| node["status"]["ready"] == true)
        })
        .await;
        let status = &stored["status"];
        assert_eq!(status["capacity"], json!({"cpu": "4096", "memory": "64Ti"}), "{name}");
        let derived = json!({"horchestra.io/hostname": name, "horchestra.io/os": "linux",
            "horchestra.io/arch": "amd64"});
        assert_eq!(status["labels"], derived, "{name}");
        assert!(status["os"].as_str().unwrap().len() <= 256, "{name}");
        assert_eq!(status["runtimes"], json!(["userns"]), "{name}");
        for member in ["secret", "ip"] {
            assert_eq!(status.get(member), None, "{name}: {member}");
        }
        assert_ne!(status["heartbeat"], forged["status"]["heartbeat"], "{name}");
        for member in ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"] {
            assert_eq!(stored["metadata"].get(member), None, "{name}: {member}");
        }
        assert_ne!(stored["metadata"]["uid"], forged["metadata"]["uid"], "{name}");
        let conditions = status["conditions"].as_array().unwrap();
        let of = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind);
        assert_eq!(of("Ready"), None, "{name}: that is judged by others");
        let admitted = of("Admitted").unwrap();
        if name == "n1" {
            assert_eq!(
                stored["spec"], before["spec"],
                "neither is an operator's word the node's to take back"
            );
            assert_eq!(stored["metadata"]["generation"], before["metadata"]["generation"]);
            assert_eq!(admitted["reason"], "CreatedByOperator");
        } else {
            assert_eq!(stored["spec"], json!({"unschedulable": true}));
            assert_eq!(admitted["status"], "False");
        }
        let beats = eventually(SOON, async || {
            let beats = world.operator.store().heartbeats().await.unwrap();
            Some(beats).filter(|beats| beats.iter().any(|beat| beat.heartbeat.node == name))
        })
        .await;
        let now = jiff::Timestamp::now().as_microsecond();
        assert!(beats.iter().all(|beat| beat.at < now + 60_000_000), "the database's clock: {beats:?}");
    }
}

#[tokio::test]
async fn a_report_about_a_workload_of_another_node_is_dropped() {
    let world = World::on_postgres().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
    }
    world.create_app("mine", "n1", json!({})).await;
    world.create_app("theirs", "n2", json!({})).await;
    world.create_app("nobodys", "", json!({})).await;
    let mut node = world.connect(&gateway, "n1").await;
    let pushed = node.desired_where(SOON, |desired| !desired.applications.is_empty()).await.unwrap();
    assert_eq!(names(&pushed), ["mine"], "of others it is not even told");
    let before = world.revision().await;
    for name in ["theirs", "nobodys", "missing"] {
        for phase in ["Running", "Failed", "Succeeded", "Terminated", "Frozen"] {
            node.app_status(report(name, phase, 1)).await.unwrap();
        }
    }
    for namespace in ["", "default", "Team", "team/../team", "team "] {
        let status = AppStatus { namespace: namespace.to_owned(), ..report("mine", "Failed", 1) };
        node.app_status(status).await.unwrap();
    }
    node.send(end_of_pass()).await.unwrap();
    let dropped = || gateway.gateway.gate.metrics.reports_dropped_for("not_sent");
    eventually(SOON, async || dropped() == 20).await;
    // A workload that moved away is another node's from then on, though this one was told of it.
    world.merge(&app_key("mine"), json!({"spec": {"placement": {"nodeName": "n2"}}})).await;
    node.desired_where(SOON, |desired| desired.applications.is_empty()).await.unwrap();
    node.app_status(report("mine", "Failed", 1)).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    let dropped = || gateway.gateway.gate.metrics.reports_dropped_for("not_pinned_here");
    eventually(SOON, async || dropped() == 1).await;
    assert_eq!(world.revision().await, before + 1, "the move, and nothing else");
    assert!(node.is_open());
    for name in ["mine", "theirs", "nobodys"] {
        let phase = world.app(name).await["status"]["phase"].clone();
        assert!(!matches!(phase.as_str(), Some("Running" | "Failed" | "Succeeded")), "{name}: {phase}");
    }
}

#[tokio::test]
async fn a_panic_costs_the_session_that_brought_it_and_no_other() {
    let world = World::on_postgres().await;
    // The names of an address are looked up when a node is new, in the task of its session.
    async fn panics() -> std::io::Result<Vec<String>> {
        std::panic::panic_any("a secret detail")
    }
    let panics = ReverseNames::by(Duration::from_secs(5), |_| Box::pin(panics()));
    let gateway = world.gateway_with(|settings| settings.strict_registration = Some(panics)).await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut bystander = world.connect(&gateway, "n1").await;
    assert_eq!(names(&bystander.desired(SOON).await.unwrap()), ["web"]);
    for _ in 0..2 {
        let mut clumsy = world.join(&gateway, "n2").await;
        clumsy.heartbeat().await.unwrap();
        let end = clumsy.ended(SOON).await.unwrap().unwrap();
        assert_eq!(end.code(), Code::Internal, "{end}");
        assert!(!end.message().contains("secret detail"), "{end}");
        // It is gone as any session that ends is: the node may come back at once.
        eventually(SOON, async || world.operator.store().session_of("n2").await.unwrap().is_none()).await;
    }
    assert!(bystander.is_open() && gateway.has_session("n1"));
    bystander.app_status(report("web", "Running", 1)).await.unwrap();
    bystander.send(end_of_pass()).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
    assert!(bystander.ended(A_WHILE).await.is_err(), "it goes on");
    assert!(world.node("n2").await.is_null());
}
