use horchestra_service::{Part, PatchType};
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn a_status_write_changes_the_status_alone() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let body = json!({"metadata": {"name": "web", "labels": {"a": "b"}, "finalizers": ["example.com/a"]},
        "spec": {"image": "other"}, "status": {"phase": "Running", "message": "hello"}});
    let written = world.put_status(&app("web"), &body).await.unwrap();
    let stored = world.get(&app("web")).await.unwrap();
    assert_eq!(stored, tree(&written.entry));
    assert_eq!(stored["status"], json!({"phase": "Running", "message": "hello"}));
    assert_eq!(stored["spec"], tree(&created)["spec"]);
    assert!(stored["metadata"].get("labels").is_none() && stored["metadata"].get("finalizers").is_none());
    assert_eq!(written.entry.generation, 1);
    assert!(written.entry.revision > created.revision, "it is a change like any other");
    assert_eq!(written.entry.core_revision, created.core_revision);
    let again = world.put_status(&app("web"), &body).await.unwrap();
    assert_eq!(again.entry.revision, written.entry.revision, "the same status again is none");
}

#[tokio::test]
async fn a_status_write_that_names_a_revision_means_the_head() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let with = |revision: i64, phase: &str| json!({"metadata": {"name": "web", "resourceVersion": revision.to_string()}, "status": {"phase": phase}});
    let first = world.put_status(&app("web"), &with(created.revision, "Pending")).await.unwrap().entry;
    let status = world.put_status(&app("web"), &with(created.revision, "Running")).await.unwrap_err();
    assert_eq!(status.code(), 409);
    world.put_status(&app("web"), &with(first.revision, "Running")).await.unwrap();
    assert_eq!(
        world.put_status(&app("nope"), &json!({"metadata": {"name": "nope"}})).await.unwrap_err().code(),
        404
    );
    assert_eq!(
        world.put_status(&app("web"), &json!({"metadata": {"name": "other"}})).await.unwrap_err().code(),
        400
    );
}

#[tokio::test]
async fn patches_of_the_status() {
    let world = World::new().await;
    world.create(application("web")).await.unwrap();
    let patch = json!({"status": {"phase": "Running"}, "spec": {"image": "other"}, "metadata": {"labels": {"a": "b"}}});
    let written = world.patch(&app("web"), Part::Status, PatchType::Merge, patch).await.unwrap();
    let stored = tree(&written.entry);
    assert_eq!(stored["status"]["phase"], "Running");
    assert_eq!(stored["spec"]["image"], "nginx");
    assert!(stored["metadata"].get("labels").is_none());
    let patch = json!([{"op": "add", "path": "/status/message", "value": "x"}]);
    let stored = tree(&world.patch(&app("web"), Part::Status, PatchType::Json, patch).await.unwrap().entry);
    assert_eq!(stored["status"], json!({"phase": "Running", "message": "x"}));
    let patch = json!({"status": {"address": "10.0.0.1/32"}});
    let stored = tree(&world.patch(&app("web"), Part::Status, PatchType::Merge, patch).await.unwrap().entry);
    assert!(stored["status"].get("address").is_none(), "every node would route there");
    let bad = json!({"status": {"phase": 3}});
    let status = world.patch(&app("web"), Part::Status, PatchType::Merge, bad).await.unwrap_err();
    assert_eq!(status.code(), 422);
    let odd = json!({"status": {"odd": 3}});
    let status = world.patch(&app("web"), Part::Status, PatchType::Merge, odd).await.unwrap_err();
    assert_eq!(status.code(), 400);
    let patch = json!({"status": {"phase": "Failed"}});
    let stored = tree(&world.patch(&app("web"), Part::Main, PatchType::Merge, patch).await.unwrap().entry);
    assert_eq!(stored["status"]["phase"], "Running", "the main resource passes over the status");
}
