use horchestra_core::kind::Kind;
use horchestra_service::{Body, Part, PatchType, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

#[tokio::test]
async fn put_replaces_all_but_status_and_what_the_server_owns() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["labels"] = json!({"a": "1"});
    let created = tree(&world.create(body).await.unwrap().entry);
    world.put_status(&app("web"), &merge(&created, json!({"status": {"phase": "Running"}}))).await.unwrap();
    let mut body = application("web");
    body["spec"]["image"] = json!("other");
    body["status"] = json!({"phase": "Failed"});
    body["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let written = world.put(&app("web"), &body).await.unwrap();
    let stored = tree(&written.entry);
    assert!(!written.created);
    assert_eq!(stored["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(stored["metadata"]["creationTimestamp"], created["metadata"]["creationTimestamp"]);
    assert_eq!(stored["metadata"]["generation"], 2);
    assert!(stored["metadata"].get("labels").is_none(), "left out is gone");
    assert_eq!(stored["status"]["phase"], "Running", "the status is not a PUT's to change");
    assert_eq!(stored["spec"]["securityContext"], created["spec"]["securityContext"], "ids do not move");
    assert_eq!(stored, world.get(&app("web")).await.unwrap());
}

fn merge(object: &Value, other: Value) -> Value {
    let mut object = object.clone();
    for (member, value) in other.as_object().unwrap() {
        object[member] = value.clone();
    }
    object
}

#[tokio::test]
async fn generation_moves_with_what_is_wanted_only() {
    let world = World::new().await;
    world.create(application("web")).await.unwrap();
    let mut expected = 1;
    for (what, patch, moves) in [
        ("a label", json!({"metadata": {"labels": {"a": "b"}}}), false),
        ("an annotation", json!({"metadata": {"annotations": {"a": "b"}}}), false),
        ("a finalizer", json!({"metadata": {"finalizers": ["example.com/x"]}}), false),
        ("the image", json!({"spec": {"image": "other"}}), true),
        ("the same image", json!({"spec": {"image": "other"}}), false),
        ("a new field", json!({"spec": {"args": ["x"]}}), true),
        ("a field less", json!({"spec": {"args": null}}), true),
        ("a status", json!({"status": {"phase": "Running"}}), false),
    ] {
        let written = world.merge(&app("web"), patch).await.unwrap();
        expected += i64::from(moves);
        assert_eq!(written.entry.generation, expected, "{what}");
        assert_eq!(tree(&written.entry)["metadata"]["generation"], expected, "{what}");
    }
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let written = world.put_status(&app("web"), &status).await.unwrap();
    assert_eq!(written.entry.generation, expected, "a status write");
}

#[tokio::test]
async fn a_write_that_changes_nothing_takes_no_revision_and_shows_in_no_watch() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let stored = tree(&created);
    let mut watch = watch_after(&world.service, Kind::Application, created.revision).await;
    let same = |written: horchestra_service::Written, what: &str| {
        assert_eq!(written.entry.revision, created.revision, "{what}");
    };
    same(world.put(&app("web"), &stored).await.unwrap(), "the stored object");
    same(world.put(&app("web"), &application("web")).await.unwrap(), "what was created");
    same(world.merge(&app("web"), json!({})).await.unwrap(), "an empty patch");
    same(world.merge(&app("web"), json!({"spec": {"image": "nginx"}})).await.unwrap(), "the same image");
    let patch = json!([{"op": "replace", "path": "/spec/image", "value": "nginx"}]);
    same(world.patch(&app("web"), Part::Main, PatchType::Json, patch).await.unwrap(), "a JSON patch");
    let empty = json!({"metadata": {"labels": {}, "annotations": {}}});
    same(world.merge(&app("web"), empty).await.unwrap(), "empty maps");
    let changed = world.merge(&app("web"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    assert_eq!(next_short(&mut watch).await, format!("MODIFIED web {}", changed.entry.revision));
}

#[tokio::test]
async fn which_resource_versions_a_put_may_name() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry.revision;
    let edited = world.merge(&app("web"), json!({"spec": {"image": "b"}})).await.unwrap().entry.revision;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let reported = world.put_status(&app("web"), &status).await.unwrap().entry.revision;
    assert!(created < edited && edited < reported);
    let mut image = 0;
    for (revision, exact, code) in [
        (created, false, 409),
        (reported + 100, false, 409),
        (edited, true, 409),
        // Reports do not collide with people: everything since the last change to the rest is good.
        (edited, false, 200),
    ] {
        image += 1;
        let mut body = application("web");
        body["spec"]["image"] = json!(format!("c{image}"));
        body["metadata"]["resourceVersion"] = json!(revision.to_string());
        let options = WriteOptions { exact_resource_version: exact, ..WriteOptions::default() };
        let body = Body::Json(body.to_string().into());
        let result = world.service.update(&admin(), &app("web"), body, &options).await;
        let found = result.as_ref().map_or_else(|status| status.code(), |_| 200);
        assert_eq!(found, code, "{revision} exact={exact}: {result:?}");
    }
    let head = world.get(&app("web")).await.unwrap();
    let mut body = application("web");
    body["metadata"]["resourceVersion"] = head["metadata"]["resourceVersion"].clone();
    body["spec"]["image"] = json!("d");
    world.put(&app("web"), &body).await.unwrap();
    let status = world.put(&app("web"), &body).await.unwrap_err();
    assert_eq!(status.code(), 409, "the same revision again");
    assert!(status.message.contains("the object has been modified"), "{status}");
    body["metadata"]["resourceVersion"] = json!("x");
    assert_eq!(world.put(&app("web"), &body).await.unwrap_err().code(), 400);
    body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    body["spec"]["image"] = json!("e");
    world.put(&app("web"), &body).await.unwrap();
}

#[tokio::test]
async fn an_invalid_body_is_told_before_a_stale_revision() {
    let world = World::new().await;
    world.create(application("web")).await.unwrap();
    let body = json!({"metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"image": ""}});
    assert_eq!(world.put(&app("web"), &body).await.unwrap_err().code(), 422);
}

#[tokio::test]
async fn a_put_is_about_the_object_in_its_url() {
    let world = World::new().await;
    world.create(application("web")).await.unwrap();
    world.create(application("db")).await.unwrap();
    let before = world.get(&app("db")).await.unwrap();
    let put = |key, body: Value| {
        let world = &world;
        async move { world.put(&key, &body).await.map_or_else(|status| status.code(), |_| 200) }
    };
    assert_eq!(put(app("web"), application("db")).await, 400, "another name");
    assert_eq!(put(app("web"), json!({"metadata": {}, "spec": {"image": "x"}})).await, 400, "no name");
    let elsewhere = json!({"metadata": {"name": "web", "namespace": "other"}, "spec": {"image": "x"}});
    assert_eq!(put(app("web"), elsewhere).await, 400, "another namespace");
    assert_eq!(put(app("nope"), application("nope")).await, 404, "PUT does not create");
    let stranger = json!({"metadata": {"name": "web", "uid": uuid::Uuid::new_v4()}, "spec": {"image": "x"}});
    assert_eq!(put(app("web"), stranger).await, 409, "another object of that name");
    assert_eq!(world.get(&app("db")).await.unwrap(), before);
}

#[tokio::test]
async fn finalizers_of_others_are_the_clients_and_those_of_the_system_are_not() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a", "horchestra.io/invented", "orphan"]);
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    let written = world.create(body).await.unwrap();
    let finalizers = |entry: &horchestra_store::Entry| tree(entry)["metadata"]["finalizers"].clone();
    assert_eq!(finalizers(&written.entry), json!(["example.com/a", "horchestra.io/node-teardown"]));
    assert_eq!(written.warnings.len(), 2, "{:?}", written.warnings);
    let written = world.merge(&app("web"), json!({"metadata": {"finalizers": []}})).await.unwrap();
    assert_eq!(finalizers(&written.entry), json!(["horchestra.io/node-teardown"]));
    assert_eq!(written.warnings.len(), 1, "{:?}", written.warnings);
    let patch = json!({"metadata": {"finalizers": ["horchestra.io/node-teardown", "example.com/b"]}});
    let written = world.merge(&app("web"), patch).await.unwrap();
    assert_eq!(finalizers(&written.entry), json!(["horchestra.io/node-teardown", "example.com/b"]));
    assert!(written.warnings.is_empty(), "{:?}", written.warnings);
    let written = world.merge(&app("web"), json!({"spec": {"placement": null}})).await.unwrap();
    assert_eq!(finalizers(&written.entry), json!(["example.com/b"]), "not placed, not held");
}

#[tokio::test]
async fn marks_of_sets_are_not_a_clients_to_write() {
    let world = World::new().await;
    let reference = json!([{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "s", "uid": "u", "controller": true}]);
    for metadata in [
        json!({"name": "x", "ownerReferences": reference}),
        json!({"name": "x", "labels": {"horchestra.io/application-set": "s"}}),
        json!({"name": "x", "labels": {"horchestra.io/component": "s"}}),
        json!({"name": "x", "annotations": {"horchestra.io/appset-spec-hash": "s"}}),
    ] {
        let body = json!({"metadata": metadata, "spec": {"image": "x"}});
        let status = world.create_as(&somebody(), body).await.unwrap_err();
        assert_eq!(status.code(), 403, "{metadata}: {status}");
    }
    let lease = world.lease("appset").await;
    let body = json!({"metadata": {"name": "child", "ownerReferences": reference,
        "labels": {"horchestra.io/component": "web"}}, "spec": {"image": "x"}});
    world.create_as(&lease, body).await.unwrap();
    let status = world.merge(&app("child"), json!({"spec": {"image": "y"}})).await.unwrap_err();
    assert_eq!(status.code(), 403, "{status}");
    let patch = json!({"metadata": {"labels": {"horchestra.io/component": null, "mine": "1"}, "ownerReferences": null}});
    let stored = tree(&world.merge(&app("child"), patch).await.unwrap().entry);
    assert_eq!(stored["metadata"]["labels"], json!({"horchestra.io/component": "web", "mine": "1"}));
    assert_eq!(stored["metadata"]["ownerReferences"][0]["name"], "s");
}

#[tokio::test]
async fn a_dry_run_of_a_put_shows_the_outcome_and_stores_nothing() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let mut body = application("web");
    body["spec"]["image"] = json!("other");
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let body = Body::Json(body.to_string().into());
    let written = world.service.update(&admin(), &app("web"), body, &options).await.unwrap();
    assert_eq!(tree(&written.entry)["spec"]["image"], "other");
    assert_eq!(written.entry.generation, 2);
    assert_eq!(world.get(&app("web")).await.unwrap(), tree(&created));
}
