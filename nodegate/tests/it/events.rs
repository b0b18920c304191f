//! What people are told of nodes and workloads: each transition, once.

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::kind::{Key, Kind};
use horchestra_proto::node::v1::{AppMetrics, AppStatus, node_message};
use horchestra_service::ListRequest;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::world::{NAMESPACE, SOON, TestGateway, World, app_key, end_of_pass, report};

/// The Events of a reason, as stored.
pub async fn told(world: &World, reason: &str) -> Vec<Value> {
    let request = ListRequest { field_selector: format!("reason={reason}"), ..ListRequest::of(Kind::Event) };
    let listing = world.operator.list(request).await.unwrap();
    listing.entries.iter().map(|entry| entry.object().unwrap().into_value()).collect()
}

/// Waits for the one Event of a reason to have been observed so often.
async fn told_times(world: &World, reason: &str, count: i64) -> Value {
    eventually(SOON, async || {
        let mut events = told(world, reason).await;
        assert!(events.len() <= 1, "{events:?}");
        events.pop().filter(|event| event["count"] == count)
    })
    .await
}

async fn phase(world: &World, expected: &str) {
    eventually(SOON, async || world.app("web").await["status"]["phase"] == expected).await;
}

async fn served(world: &World, gateway: &TestGateway, spec: Value) -> ScriptedNode {
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    world.create_node("n1").await;
    world.create_app("web", "n1", spec).await;
    let mut node = world.connect(gateway, "n1").await;
    node.desired_where(SOON, |desired| !desired.applications.is_empty()).await.unwrap();
    node
}

#[tokio::test]
async fn the_life_of_a_workload_is_told() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({})).await;
    for _ in 0..5 {
        node.app_status(report("web", "Running", 1)).await.unwrap();
    }
    phase(&world, "Running").await;
    let started = told_times(&world, "Started", 1).await;
    assert_eq!(started["involvedObject"]["name"], "web");
    assert_eq!(started["metadata"]["namespace"], NAMESPACE);
    assert_eq!(started["message"], "runs on node n1");

    let failed = AppStatus { message: "exit status 3".to_owned(), ..report("web", "Failed", 1) };
    node.app_status(failed.clone()).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    phase(&world, "Failed").await;
    let told_of = told_times(&world, "Failed", 1).await;
    assert_eq!(
        (&told_of["type"], &told_of["message"]),
        (&json!("Warning"), &json!("failed on node n1: exit status 3"))
    );
    node.app_status(report("web", "Running", 1)).await.unwrap();
    told_times(&world, "Restarted", 1).await;

    // The same again is the same Event.
    node.app_status(failed).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    phase(&world, "Failed").await;
    told_times(&world, "Failed", 2).await;
    assert_eq!(told(&world, "Started").await.len(), 1);
}

#[tokio::test]
async fn the_end_of_a_workload_is_told() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    node.app_status(report("web", "Running", 1)).await.unwrap();
    phase(&world, "Running").await;
    assert!(!world.delete(&app_key("web")).await);
    node.desired_where(SOON, |desired| {
        crate::world::named(desired).iter().any(|(_, app)| app["metadata"]["deletionTimestamp"].is_string())
    })
    .await
    .unwrap();
    node.app_status(report("web", "Terminated", 1)).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    told_times(&world, "TornDown", 1).await;
    assert_eq!(world.app("web").await, Value::Null);
}

#[tokio::test]
async fn a_new_node_is_told_of_and_so_is_what_it_says_wrongly() {
    let world = World::new().await;
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    let gateway = world.gateway().await;
    let node = world.join(&gateway, "n9").await;
    let status = |name: &str| {
        let report = json!({"metadata": {"name": name}, "status": {"ready": true}});
        let node = report.to_string().into();
        node_message::Body::Status(horchestra_proto::node::v1::NodeStatus { node })
    };
    node.send(status("n9")).await.unwrap();
    let registered = told_times(&world, "NodeRegistered", 1).await;
    assert_eq!(registered["metadata"]["namespace"], "default", "a Node has no namespace");
    let uid = world.get(&Key::cluster(Kind::Node, "n9")).await["metadata"]["uid"].clone();
    assert_eq!(registered["involvedObject"]["uid"], uid);
    for _ in 0..5 {
        node.send(status("n8")).await.unwrap();
    }
    let refused = told_times(&world, "ReportRefused", 1).await;
    assert!(refused["message"].as_str().unwrap().contains("n8"), "{refused}");
    // Right for once, and wrong again.
    node.send(status("n9")).await.unwrap();
    node.send(status("n8")).await.unwrap();
    told_times(&world, "ReportRefused", 2).await;
}

#[tokio::test]
async fn processes_that_were_killed_for_their_memory_are_told_of() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({})).await;
    let sample = |kills: i64| {
        node_message::Body::AppMetrics(AppMetrics {
            namespace: NAMESPACE.to_owned(),
            name: "web".to_owned(),
            oom_kills: kills,
            ..AppMetrics::default()
        })
    };
    for kills in [7, 7, 8, 8, 0, i64::MIN, i64::MAX, 3] {
        node.send(sample(kills)).await.unwrap();
    }
    let events =
        eventually(SOON, async || Some(told(&world, "OOMKilled").await).filter(|events| events.len() == 2))
            .await;
    assert!(events.iter().any(|event| event["message"] == "a process was killed on node n1: out of memory"));
}
