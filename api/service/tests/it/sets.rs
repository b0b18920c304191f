use horchestra_core::kind::{Key, Kind};
use horchestra_service::{DeleteOptions, Propagation};
use serde_json::{Value, json};

use crate::support::*;

fn set(name: &str) -> Key {
    Key::namespaced(Kind::ApplicationSet, "default", name)
}

fn of(components: Value) -> Value {
    json!({"kind": "ApplicationSet", "metadata": {"name": "s"}, "spec": {"applications": components}})
}

fn component(name: &str, members: Value) -> Value {
    let mut spec = json!({"image": "x"});
    for (member, value) in members.as_object().unwrap() {
        spec[member] = value.clone();
    }
    json!({"name": name, "spec": spec})
}

fn scaled(name: &str, scale: Value) -> Value {
    json!({"name": name, "spec": {"image": "x"}, "scale": scale})
}

async fn with_nodes(names: &[&str]) -> World {
    let world = World::new().await;
    for name in names {
        world.create(json!({"kind": "Node", "metadata": {"name": name}, "spec": {}})).await.unwrap();
    }
    world
}

#[tokio::test]
async fn a_set_is_stored_with_its_hold_and_without_progress() {
    let world = World::new().await;
    let mut body = of(json!([component("a", json!({}))]));
    body["status"] = json!({"desired": 9});
    let stored = tree(&world.create(body).await.unwrap().entry);
    assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/child-teardown"]));
    assert_eq!(stored["status"], json!({"desired": 0, "current": 0, "scheduled": 0, "running": 0}));
    let deleted = world.delete(&set("s")).await.unwrap();
    assert!(!deleted.erased, "its children must go first");
}

#[tokio::test]
async fn what_cannot_be_expanded_on_the_nodes_there_are_is_refused() {
    let api = scaled("api", json!({"replicas": 3}));
    let spread = scaled("api", json!({"nodeSpread": {}}));
    for (what, nodes, components, code, text) in [
        (
            "a child called like a replica",
            &[][..],
            json!([api, component("api-1", json!({}))]),
            422,
            "s-api-1",
        ),
        (
            "a child called like a spread one",
            &["n1"],
            json!([spread, component("api-n1", json!({}))]),
            422,
            "s-api-n1",
        ),
        ("the same without the node", &[], json!([spread, component("api-n1", json!({}))]), 201, ""),
        ("too many", &[], json!([scaled("api", json!({"replicas": 501}))]), 422, "501 children"),
        (
            "a service called like a node",
            &["s-api"],
            json!([component("api", json!({"ports": [{"port": 1}]}))]),
            403,
            "s-api",
        ),
        (
            "a port called like a node",
            &["s-api-http"],
            json!([component("api", json!({"ports": [{"name": "http", "port": 1}]}))]),
            403,
            "s-api-http",
        ),
        (
            "root",
            &[],
            json!([component("api", json!({"securityContext": {"runAsUser": 0}}))]),
            403,
            "spec.applications[0].spec.securityContext.runAsUser",
        ),
        (
            "a way out of a unit file",
            &[],
            json!([component("api", json!({"command": ["@x"]}))]),
            403,
            "spec.applications[0].spec.command[0]",
        ),
        (
            "a variable twice",
            &[],
            json!([component("api", json!({"env": [{"name": "A"}, {"name": "A"}]}))]),
            422,
            "spec.applications[0].spec.env[1]",
        ),
    ] {
        let world = with_nodes(nodes).await;
        match world.create(of(components)).await {
            Ok(_) => assert_eq!(code, 201, "{what}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{what}: {status}");
                assert!(status.message.contains(text), "{what}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn a_set_whose_nodes_changed_under_it_can_still_be_let_go() {
    let world = World::new().await;
    let spread = scaled("api", json!({"nodeSpread": {}}));
    world.create(of(json!([spread, component("api-n1", json!({}))]))).await.unwrap();
    world.create(json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": {}})).await.unwrap();
    world.merge(&set("s"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    let changed = world.merge(&set("s"), json!({"spec": {"rollout": {"maxUnavailable": 1}}})).await;
    assert_eq!(changed.unwrap_err().code(), 422, "a new spec is judged on the nodes of now");
}

#[tokio::test]
async fn a_service_that_is_not_the_sets_is_joined_with_a_warning() {
    let world = World::new().await;
    world
        .create(json!({"kind": "Service", "metadata": {"name": "s-api"}, "spec": {"ports": [{"port": 1}]}}))
        .await
        .unwrap();
    let written = world.create(of(json!([component("api", json!({"ports": [{"port": 1}]}))]))).await.unwrap();
    assert!(written.warnings[0].contains("\"s-api\""), "{:?}", written.warnings);
}

#[tokio::test]
async fn a_set_is_told_to_leave_its_children_behind_at_any_time() {
    let world = World::new().await;
    let orphan = DeleteOptions { propagation: Some(Propagation::Orphan), ..DeleteOptions::default() };
    let delete =
        async |options: &DeleteOptions| world.service.delete(&admin(), &set("s"), options).await.unwrap();
    let (hold, both) =
        (json!(["horchestra.io/child-teardown"]), json!(["horchestra.io/child-teardown", "orphan"]));
    world.create(of(json!([component("a", json!({}))]))).await.unwrap();
    let marked = delete(&DeleteOptions::default()).await;
    let first = tree(&marked.entry);
    assert_eq!(first["metadata"]["finalizers"], hold, "nobody said so");
    let again = delete(&DeleteOptions::default()).await;
    assert_eq!(again.entry.revision, marked.entry.revision, "asked again, nothing changes");
    let told = delete(&orphan).await;
    let second = tree(&told.entry);
    assert!(!told.erased && told.entry.revision > marked.entry.revision);
    assert_eq!(second["metadata"]["finalizers"], both);
    assert_eq!(second["metadata"]["deletionTimestamp"], first["metadata"]["deletionTimestamp"]);
    assert_eq!(delete(&orphan).await.entry.revision, told.entry.revision);

    let at_once = json!({"kind": "ApplicationSet", "metadata": {"name": "t"}, "spec": {"applications": [
        component("a", json!({}))]}});
    world.create(at_once).await.unwrap();
    let told = world.service.delete(&admin(), &set("t"), &orphan).await.unwrap();
    let told = tree(&told.entry);
    assert_eq!(told["metadata"]["finalizers"], both);
    assert!(told["metadata"]["deletionTimestamp"].is_string());
}
