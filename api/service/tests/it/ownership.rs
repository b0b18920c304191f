//! What belongs to a set, and whose word that is.

use horchestra_core::kind::{Key, Kind};
use horchestra_service::{Body, RequestContext, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::*;

const SET: &str = "horchestra.io/application-set";
const HASH: &str = "horchestra.io/appset-spec-hash";

fn controlled_by(set: &str) -> Value {
    json!({"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": set, "uid": "u", "controller": true})
}

/// An owner that is no set's controller.
fn other_owner() -> Value {
    json!({"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "v"})
}

fn service_key(name: &str) -> Key {
    Key::namespaced(Kind::Service, "default", name)
}

fn service(name: &str, metadata: Value) -> Value {
    let mut object =
        json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (member, value) in metadata.as_object().unwrap() {
        object["metadata"][member] = value.clone();
    }
    object
}

async fn put_as(world: &World, who: &RequestContext, key: &Key, object: &Value) -> Written {
    let body = Body::Json(object.to_string().into());
    world.service.update(who, key, body, &WriteOptions::default()).await.unwrap()
}

#[tokio::test]
async fn a_client_cannot_make_its_own_application_a_sets() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["ownerReferences"] = json!([other_owner()]);
    world.create(body.clone()).await.expect("other owners are the client's");
    body["metadata"] = json!({"name": "web", "ownerReferences": [controlled_by("s")],
        "labels": {SET: "s", "mine": "1"}, "annotations": {HASH: "x", "mine": "1"}});
    body["spec"]["image"] = json!("other");
    let written = tree(&world.put(&app("web"), &body).await.unwrap().entry);
    assert_eq!(written["metadata"]["ownerReferences"], json!([other_owner()]), "as they are stored");
    assert_eq!(written["metadata"]["labels"], json!({"mine": "1"}));
    assert_eq!(written["metadata"]["annotations"], json!({"mine": "1"}));
    assert_eq!(written["spec"]["image"], "other", "the spec of what nobody owns is the client's");
}

#[tokio::test]
async fn a_child_is_the_loops_to_write() {
    let world = World::new().await;
    let loop_ = world.lease("appset").await;
    let mut child = application("child");
    child["metadata"]["ownerReferences"] = json!([controlled_by("s")]);
    child["metadata"]["labels"] = json!({SET: "s"});
    world.create_as(&loop_, child.clone()).await.unwrap();
    child["metadata"]["labels"] = json!({SET: "s", "tier": "x"});
    child["metadata"]["annotations"] = json!({HASH: "1"});
    child["metadata"]["finalizers"] = json!(["horchestra.io/of-a-loop"]);
    child["spec"]["image"] = json!("two");
    let rewritten = tree(&put_as(&world, &loop_, &app("child"), &child).await.entry);
    for member in ["labels", "annotations", "finalizers", "ownerReferences"] {
        assert_eq!(
            rewritten["metadata"][member], child["metadata"][member],
            "{member}, as the loop wrote it"
        );
    }
    assert_eq!(rewritten["spec"]["image"], "two");

    let refused = world.merge(&app("child"), json!({"spec": {"image": "three"}})).await.unwrap_err();
    assert_eq!(refused.code(), 403);
    assert!(refused.message.contains("\"child\"") && refused.message.contains("\"s\""), "{refused}");
    let status = json!({"metadata": {"name": "child"}, "status": {"phase": "Running"}});
    world.put_status(&app("child"), &status).await.expect("a status is another matter");
    world.merge(&app("child"), json!({"metadata": {"labels": {"mine": "1"}}})).await.unwrap();

    let mut released = child.clone();
    released["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    released["metadata"]["finalizers"] = Value::Null;
    put_as(&world, &loop_, &app("child"), &released).await;
    world.merge(&app("child"), json!({"spec": {"image": "three"}})).await.expect("it is nobody's now");
    assert!(world.delete(&app("child")).await.unwrap().erased);
}

#[tokio::test]
async fn a_client_cannot_say_whose_a_service_is() {
    let world = World::new().await;
    let loop_ = world.lease("appset").await;
    let forged = json!({"ownerReferences": [controlled_by("s"), other_owner()]});
    let made = world.create(service("forged", forged)).await.unwrap();
    assert_eq!(tree(&made.entry)["metadata"]["ownerReferences"], json!([other_owner()]));
    assert_eq!(made.warnings.len(), 1, "{:?}", made.warnings);
    assert!(made.warnings[0].contains("ApplicationSet \"s\""), "{:?}", made.warnings);
    let claim = json!({"metadata": {"ownerReferences": [controlled_by("s")]}});
    let written = world.merge(&service_key("forged"), claim).await.unwrap();
    assert_eq!(tree(&written.entry)["metadata"].get("ownerReferences"), None, "nor later");

    let owned = json!({"ownerReferences": [controlled_by("s")], "labels": {SET: "s"}});
    world.create_as(&loop_, service("owned", owned)).await.unwrap();
    for (what, metadata, expected, warnings) in [
        ("nothing of it is said", json!({}), json!([controlled_by("s")]), 0),
        ("it is taken away", json!({"ownerReferences": [], "labels": {}}), json!([controlled_by("s")]), 0),
        (
            "another set is named",
            json!({"ownerReferences": [controlled_by("t")], "labels": {SET: "t"}}),
            json!([controlled_by("s")]),
            1,
        ),
        (
            "somebody else owns it too",
            json!({"ownerReferences": [other_owner(), controlled_by("s")]}),
            json!([other_owner(), controlled_by("s")]),
            0,
        ),
    ] {
        let mut object = service("owned", metadata);
        object["spec"]["clusterIP"] = json!("10.243.0.9");
        let written = world.put(&service_key("owned"), &object).await.unwrap();
        assert_eq!(written.warnings.len(), warnings, "{what}: {:?}", written.warnings);
        let stored = tree(&written.entry);
        assert_eq!(stored["metadata"]["ownerReferences"], expected, "{what}");
        assert_eq!(stored["metadata"]["labels"], json!({SET: "s"}), "{what}");
        assert_eq!(stored["spec"]["clusterIP"], "10.243.0.9", "the rest is the client's");
    }
    let released = service("owned", json!({}));
    let released = tree(&put_as(&world, &loop_, &service_key("owned"), &released).await.entry);
    assert_eq!(
        (released["metadata"].get("ownerReferences"), released["metadata"].get("labels")),
        (None, None)
    );
}

#[tokio::test]
async fn a_hold_that_was_let_go_does_not_come_back() {
    let world = World::new().await;
    let session = world.node("node-1", "4", "8Gi").await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a"]);
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    let uid = world.create(body).await.unwrap().entry.uid;
    world.delete(&app("web")).await.unwrap();
    world.service.release_teardown(&session, &app("web"), uid).await.unwrap();
    let stored = world.get(&app("web")).await.unwrap();
    let mut whole = stored.clone();
    whole["metadata"]["labels"] = json!({"a": "b"});
    for written in [
        world.put(&app("web"), &whole).await.unwrap(),
        world.merge(&app("web"), json!({"metadata": {"labels": {"a": "c"}}})).await.unwrap(),
    ] {
        let written = tree(&written.entry);
        assert_eq!(written["metadata"]["finalizers"], json!(["example.com/a"]), "though it is still placed");
        assert_eq!(written["metadata"]["deletionTimestamp"], stored["metadata"]["deletionTimestamp"]);
    }
}
