use horchestra_service::{Part, Patch, PatchType, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

async fn json_patch(world: &World, operations: Value) -> Result<Value, u16> {
    let result = world.patch(&app("web"), Part::Main, PatchType::Json, operations).await;
    result.map(|written| tree(&written.entry)).map_err(|status| status.code())
}

#[tokio::test]
async fn merge_patches() {
    let world = World::new().await;
    let mut body = application("web");
    body["spec"]["args"] = json!(["a", "b"]);
    body["metadata"]["labels"] = json!({"a": "1", "b": "2"});
    world.create(body).await.unwrap();
    let patch = json!({"metadata": {"labels": {"a": null, "c": "3"}}, "spec": {"args": ["z"], "env": null}});
    let stored = tree(&world.merge(&app("web"), patch).await.unwrap().entry);
    assert_eq!(stored["metadata"]["labels"], json!({"b": "2", "c": "3"}));
    assert_eq!(stored["spec"]["args"], json!(["z"]));
    assert_eq!(stored["spec"]["image"], "nginx");
    for (what, document, code) in [
        ("an unknown field", r#"{"spec":{"odd":1}}"#, 400),
        ("a field twice", r#"{"spec":{"image":"a","image":"b"}}"#, 400),
        ("a wrong type", r#"{"spec":{"image":1}}"#, 422),
        ("a required field away", r#"{"spec":null}"#, 422),
        ("half a document", r#"{"#, 400),
        ("a list", r#"[]"#, 400),
        ("a NUL", "{\"spec\":{\"image\":\"a\\u0000\"}}", 422),
        ("another kind", r#"{"kind":"Node"}"#, 400),
    ] {
        let patch = Patch { kind: PatchType::Merge, document: document.to_owned().into() };
        let options = WriteOptions::default();
        let status =
            world.service.patch(&admin(), &app("web"), Part::Main, patch, &options).await.unwrap_err();
        assert_eq!(status.code(), code, "{what}: {status}");
    }
    assert_eq!(world.merge(&app("nope"), json!({})).await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn json_patches() {
    let world = World::new().await;
    let mut body = application("web");
    body["spec"]["args"] = json!(["a"]);
    body["metadata"]["annotations"] = json!({"a/b~c": "1"});
    world.create(body).await.unwrap();
    let op = |op: &str, path: &str, value: Value| json!([{"op": op, "path": path, "value": value}]);
    assert_eq!(
        json_patch(&world, op("add", "/spec/args/-", json!("b"))).await.unwrap()["spec"]["args"],
        json!(["a", "b"])
    );
    let stored =
        json_patch(&world, op("replace", "/metadata/annotations/a~1b~0c", json!("2"))).await.unwrap();
    assert_eq!(stored["metadata"]["annotations"]["a/b~c"], "2");
    json_patch(&world, op("test", "/spec/image", json!("nginx"))).await.unwrap();
    for (what, operations, code) in [
        ("a failed test", op("test", "/spec/image", json!("x")), 422),
        ("a missing path", json!([{"op": "remove", "path": "/spec/nope"}]), 422),
        ("a missing parent", op("add", "/spec/nope/x", json!(1)), 422),
        ("a negative index", json!([{"op": "remove", "path": "/spec/args/-1"}]), 422),
        ("no list", json!({"op": "remove"}), 400),
        ("an unknown operation", json!([{"op": "frob", "path": "/spec"}]), 400),
        ("an unknown field", op("add", "/spec/odd", json!(1)), 400),
        ("a bad value", op("replace", "/spec/image", json!("")), 422),
    ] {
        assert_eq!(json_patch(&world, operations).await.unwrap_err(), code, "{what}");
    }
    let many: Vec<Value> =
        (0..10_001).map(|_| json!({"op": "test", "path": "/kind", "value": "Application"})).collect();
    assert_eq!(json_patch(&world, json!(many)).await.unwrap_err(), 413);
    let before = world.get(&app("web")).await.unwrap();
    let mut bomb = vec![json!({"op": "add", "path": "/spec/args", "value": ["x".repeat(1024)]})];
    bomb.extend((0..30).map(|_| json!({"op": "copy", "from": "/spec/args", "path": "/spec/args/-"})));
    let code = json_patch(&world, json!(bomb)).await.unwrap_err();
    assert!((400..500).contains(&code), "{code}");
    assert_eq!(world.get(&app("web")).await.unwrap(), before);
}

#[tokio::test]
async fn a_patch_cannot_change_which_object_it_is_about() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    world.create(application("victim")).await.unwrap();
    let victim = world.get(&app("victim")).await.unwrap();
    let patch = json!({"metadata": {"name": "victim", "namespace": "other", "uid": "x",
        "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9, "resourceVersion": null, "labels": {"a": "b"}}});
    let stored = tree(&world.merge(&app("web"), patch).await.unwrap().entry);
    let before = tree(&created);
    for member in ["name", "namespace", "uid", "creationTimestamp", "generation"] {
        assert_eq!(stored["metadata"][member], before["metadata"][member], "{member}");
    }
    assert_eq!(stored["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(world.get(&app("victim")).await.unwrap(), victim);
}

#[tokio::test]
async fn a_resource_version_in_a_patch_counts() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry.revision;
    let edited = world.merge(&app("web"), json!({"spec": {"image": "b"}})).await.unwrap().entry.revision;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    world.put_status(&app("web"), &status).await.unwrap();
    let with = |revision: i64, image: &str| json!({"metadata": {"resourceVersion": revision.to_string()}, "spec": {"image": image}});
    assert_eq!(world.merge(&app("web"), with(created, "c")).await.unwrap_err().code(), 409);
    world.merge(&app("web"), with(edited, "c")).await.unwrap();
    let test = |revision: i64| {
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": revision.to_string()},
               {"op": "replace", "path": "/spec/image", "value": "d"}])
    };
    assert_eq!(json_patch(&world, test(edited)).await.unwrap_err(), 422, "a test is exact");
    let head = world.get(&app("web")).await.unwrap()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    json_patch(&world, test(head)).await.unwrap();
}

#[tokio::test]
async fn a_deletion_mark_cannot_be_patched_away() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a"]);
    world.create(body).await.unwrap();
    world.delete(&app("web")).await.unwrap();
    let marked = world.get(&app("web")).await.unwrap()["metadata"]["deletionTimestamp"].clone();
    for patch in [
        json!({"metadata": {"deletionTimestamp": null}}),
        json!({"metadata": {"deletionTimestamp": "2040-01-01T00:00:00Z"}}),
    ] {
        let stored = tree(&world.merge(&app("web"), patch).await.unwrap().entry);
        assert_eq!(stored["metadata"]["deletionTimestamp"], marked);
    }
}
