use serde_json::{Value, json};

use crate::support::*;

fn pinned(name: &str, node: &str, cpu: &str, memory: &str) -> Value {
    let mut object = sized(name, cpu, memory);
    object["spec"]["placement"] = json!({ "nodeName": node });
    object
}

#[tokio::test]
async fn what_an_author_pins_must_fit() {
    let world = World::new().await;
    world.node("big", "8", "16Gi").await;
    world.node("small", "4", "8Gi").await;
    world.create(json!({"kind": "Node", "metadata": {"name": "silent"}, "spec": {}})).await.unwrap();
    world.create(pinned("first", "small", "3", "1Gi")).await.unwrap();
    for (what, object, code, text) in [
        ("too much cpu", pinned("a", "small", "2", "1Gi"), 403, "cpu 5 of 4"),
        ("too much memory", pinned("b", "big", "1", "20Gi"), 403, "memory"),
        ("the rest", pinned("c", "small", "1", "1Gi"), 201, ""),
        ("another node", pinned("d", "big", "5", "1Gi"), 201, ""),
        ("a node that reports nothing", pinned("e", "silent", "100", "1Ti"), 201, ""),
        ("nothing asked for", pinned("f", "small", "0", "0"), 201, ""),
    ] {
        match world.create(object).await {
            Ok(_) => assert_eq!(code, 201, "{what}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{what}: {status}");
                assert!(status.message.contains(text), "{what}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn limits_count_where_no_request_is_and_other_namespaces_count_too() {
    let world = World::new().await;
    world.node("small", "4", "8Gi").await;
    let mut elsewhere = pinned("web", "small", "3", "1Gi");
    elsewhere["metadata"]["namespace"] = json!("other");
    world.create(elsewhere).await.unwrap();
    let limited = json!({"metadata": {"name": "web"}, "spec": {"image": "x",
        "placement": {"nodeName": "small"}, "resources": {"limits": {"cpu": "2"}}}});
    assert_eq!(world.create(limited).await.unwrap_err().code(), 403);
    world.create(pinned("db", "small", "500m", "1Gi")).await.unwrap();
    let grown = world.merge(&app("db"), json!({"spec": {"resources": {"requests": {"cpu": "1"}}}})).await;
    assert!(grown.is_ok(), "what it had is not counted twice");
    let too_much =
        world.merge(&app("db"), json!({"spec": {"resources": {"requests": {"cpu": "1100m"}}}})).await;
    assert_eq!(too_much.unwrap_err().code(), 403);
}

#[tokio::test]
async fn a_node_that_shrank_does_not_block_edits_that_ask_for_nothing() {
    let world = World::new().await;
    let session = world.node("small", "4", "8Gi").await;
    world.create(pinned("web", "small", "3", "1Gi")).await.unwrap();
    let report = json!({"ready": true, "capacity": {"cpu": "2", "memory": "8Gi"}});
    world.service.report_node(&session, "small", &report).await.unwrap();
    world.merge(&app("web"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap();
    let less = world.merge(&app("web"), json!({"spec": {"resources": {"requests": {"cpu": "1"}}}})).await;
    assert!(less.is_ok(), "what fits now is fine");
    let more = world.merge(&app("web"), json!({"spec": {"resources": {"requests": {"cpu": "3"}}}})).await;
    assert_eq!(more.unwrap_err().code(), 403);
}

#[tokio::test]
async fn a_pin_can_be_set_moved_and_cleared() {
    let world = World::new().await;
    world.node("one", "4", "8Gi").await;
    world.node("two", "4", "8Gi").await;
    world.create(application("web")).await.unwrap();
    let pin =
        |value: Value| world.merge_owned(app("web"), json!({"spec": {"placement": {"nodeName": value}}}));
    let stored = tree(&pin(json!("one")).await.unwrap().entry);
    assert_eq!(stored["metadata"]["generation"], 2);
    assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    pin(json!("two")).await.unwrap();
    assert_eq!(pin(json!("three")).await.unwrap_err().code(), 422);
    let stored = tree(&pin(Value::Null).await.unwrap().entry);
    assert!(stored["metadata"].get("finalizers").is_none());
    assert!(world.delete(&app("web")).await.unwrap().erased);
}

#[tokio::test]
async fn a_new_placement_starts_from_nothing() {
    let world = World::new().await;
    let one = world.node("one", "4", "8Gi").await;
    world.node("two", "4", "8Gi").await;
    let created = world.create(pinned("web", "one", "1", "1Gi")).await.unwrap().entry;
    let scheduled = |object: &Value| object["status"]["conditions"][0].clone();
    let stored = tree(&created);
    assert_eq!(stored["status"]["phase"], "Pending");
    assert_eq!(
        (&scheduled(&stored)["type"], &scheduled(&stored)["status"]),
        (&json!("Scheduled"), &json!("True"))
    );
    let report = horchestra_service::ApplicationReport {
        phase: "Running".into(),
        observed_generation: 1,
        ..horchestra_service::ApplicationReport::default()
    };
    world.service.report_application(&one, &app("web"), created.uid, report.clone()).await.unwrap();
    let moved = world.merge(&app("web"), json!({"spec": {"placement": {"nodeName": "two"}}})).await.unwrap();
    let stored = tree(&moved.entry);
    assert_eq!(stored["status"]["phase"], "Pending", "what the old node said is void");
    assert!(stored["status"].get("observedGeneration").is_none());
    assert_eq!(stored["status"]["conditions"].as_array().unwrap().len(), 1);
    let late = world.service.report_application(&one, &app("web"), created.uid, report).await;
    assert!(late.is_err(), "and it is not heard any more");
    let unpinned = tree(&world.merge(&app("web"), json!({"spec": {"placement": null}})).await.unwrap().entry);
    assert_eq!(unpinned["status"], json!({"phase": "Pending"}));
}

#[tokio::test]
async fn odd_metadata_is_stored_with_a_warning() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["labels"] = json!({"not a key": "x", "good": "-bad-"});
    body["metadata"]["ownerReferences"] = json!([{"kind": "Thing", "name": "x"}]);
    let written = world.create(body).await.unwrap();
    assert_eq!(written.warnings.len(), 3, "{:?}", written.warnings);
    assert_eq!(tree(&written.entry)["metadata"]["labels"]["not a key"], "x");
    let again = world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap();
    assert!(again.warnings.is_empty(), "not about what is there already: {:?}", again.warnings);
}

#[tokio::test]
async fn only_a_door_freezes() {
    let world = World::new().await;
    let mut body = application("web");
    body["spec"]["frozen"] = json!(true);
    let created = tree(&world.create(body).await.unwrap().entry);
    assert!(created["spec"].get("frozen").is_none());
    let written = world.merge(&app("web"), json!({"spec": {"frozen": true}})).await.unwrap();
    assert_eq!(tree(&written.entry), created, "a write of it is none");
}
