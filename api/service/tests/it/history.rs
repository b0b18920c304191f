//! Versions of an object: listing them and going back.

use horchestra_core::doors::Door;
use horchestra_core::kind::Key;
use horchestra_core::status::Status;
use horchestra_service::{Order, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::*;

/// The revisions of an object, newest first, each with its verb.
async fn versions(world: &World, key: &Key) -> Vec<(i64, String)> {
    let list = world.service.revisions(key).await.unwrap();
    list.versions.into_iter().map(|version| (version.revision, version.verb)).collect()
}

async fn roll_back(world: &World, key: &Key, revision: i64) -> Result<Written, Status> {
    let order = Order { revision: Some(revision), ..Order::default() };
    world.service.act(&admin(), key, Door::Rollback, &order, &WriteOptions::default()).await
}

#[tokio::test]
async fn every_core_change_is_a_version_and_a_report_is_none() {
    let world = World::new().await;
    let key = app("web");
    let created = world.create(application("web")).await.unwrap().entry;
    let edited = world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap().entry;
    world
        .patch(
            &key,
            horchestra_service::Part::Status,
            horchestra_service::PatchType::Merge,
            json!({"status": {"phase": "Running"}}),
        )
        .await
        .unwrap();
    let labelled = world.merge(&key, json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap().entry;
    let list = world.service.revisions(&key).await.unwrap();
    let short: Vec<(i64, i64, &str, &str)> = list
        .versions
        .iter()
        .map(|it| (it.revision, it.generation, it.user.as_str(), it.verb.as_str()))
        .collect();
    assert_eq!(
        short,
        [
            (labelled.revision, 2, "admin", "patch"),
            (edited.revision, 2, "admin", "patch"),
            (created.revision, 1, "admin", "create"),
        ]
    );
    assert_eq!(list.revision, labelled.revision);
    assert_eq!(world.service.revisions(&app("ghost")).await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn the_history_is_as_long_as_the_kind_says() {
    let world = World::new().await;
    let key = app("web");
    let first = world.create(application("web")).await.unwrap().entry.revision;
    for number in 0..15 {
        world.merge(&key, json!({"spec": {"image": format!("image:{number}")}})).await.unwrap();
    }
    assert_eq!(versions(&world, &key).await.len(), 10);
    let status = roll_back(&world, &key, first).await.unwrap_err();
    assert_eq!(status.code(), 404, "{status}");
    assert!(status.message.contains(&format!("revision {first}")), "{status}");
}

#[tokio::test]
async fn a_rollback_restores_what_was_written_and_is_itself_a_change() {
    let world = World::new().await;
    let key = app("web");
    let mut body = application("web");
    body["metadata"]["labels"] = json!({"tier": "one"});
    body["metadata"]["annotations"] = json!({"note": "first"});
    body["metadata"]["finalizers"] = json!(["example.com/old"]);
    let first = world.create(body).await.unwrap().entry;
    let mut second = tree(&first);
    second["metadata"]["labels"] = json!({"tier": "two", "more": "x"});
    second["metadata"]["annotations"] = Value::Null;
    second["metadata"]["finalizers"] = json!(["example.com/new"]);
    second["spec"]["image"] = json!("two");
    let second = world.put(&key, &second).await.unwrap().entry;

    let back = roll_back(&world, &key, first.revision).await.unwrap();
    let now = tree(&back.entry);
    assert_eq!(now["spec"], tree(&first)["spec"]);
    assert_eq!(now["metadata"]["labels"], json!({"tier": "one"}));
    assert_eq!(now["metadata"]["annotations"], json!({"note": "first"}));
    assert_eq!(now["metadata"]["finalizers"], json!(["example.com/new"]), "not the author's to roll back");
    assert_eq!(now["metadata"]["uid"], tree(&first)["metadata"]["uid"]);
    assert_eq!(back.entry.generation, 3);
    assert!(back.entry.revision > second.revision);
    assert_eq!(versions(&world, &key).await[0], (back.entry.revision, "rollback".to_owned()));

    // Equal: nothing is written.
    let again = roll_back(&world, &key, back.entry.revision).await.unwrap();
    assert_eq!(again.entry.revision, back.entry.revision);
    let forth = roll_back(&world, &key, second.revision).await.unwrap();
    assert_eq!(tree(&forth.entry)["spec"]["image"], "two");
    for unknown in [0, -1, second.revision + 1_000_000] {
        assert_eq!(roll_back(&world, &key, unknown).await.unwrap_err().code(), 404, "{unknown}");
    }
}

#[tokio::test]
async fn a_rollback_moves_no_workload_that_the_scheduler_placed() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    world.node("node-2", "4", "8Gi").await;
    let key = app("web");
    let created = world.create(application("web")).await.unwrap().entry;
    let scheduler = world.lease("scheduler").await;
    let binding = horchestra_service::Binding {
        key: key.clone(),
        uid: created.uid,
        revision: created.revision,
        node: "node-1".into(),
        node_revision: None,
    };
    let bound = world.service.bind(&scheduler, vec![binding]).await.remove(0).unwrap().entry;
    let node = |written: &Written| tree(&written.entry)["spec"]["placement"]["nodeName"].clone();
    let edited = world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap();
    let back = roll_back(&world, &key, created.revision).await.unwrap();
    assert_eq!(tree(&back.entry)["spec"]["image"], "nginx");
    assert_eq!(node(&back), "node-1", "a version from before the bind");
    assert_eq!(tree(&back.entry)["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    let pinned = world.merge(&key, json!({"spec": {"placement": {"nodeName": "node-2"}}})).await.unwrap();
    for (version, expected, why) in [
        (bound.revision, "node-2", "the scheduler's choice does not come back"),
        (edited.entry.revision, "node-2", "nor does it out of a later edit"),
        (pinned.entry.revision, "node-2", "the author's does"),
    ] {
        assert_eq!(node(&roll_back(&world, &key, version).await.unwrap()), expected, "{why}");
    }
    world.merge(&key, json!({"spec": {"placement": {"nodeName": "node-1"}}})).await.unwrap();
    assert_eq!(node(&roll_back(&world, &key, pinned.entry.revision).await.unwrap()), "node-2");
}

#[tokio::test]
async fn what_todays_rules_refuse_is_not_restored() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let key = app("web");
    let mut body = application("web");
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    let pinned = world.create(body).await.unwrap().entry;
    let freed = world.merge(&key, json!({"spec": {"placement": null}})).await.unwrap().entry;
    world.delete(&node("node-1")).await.unwrap();
    let before = world.get(&key).await.unwrap();
    let status = roll_back(&world, &key, pinned.revision).await.unwrap_err();
    assert_eq!(status.code(), 422, "{status}");
    assert_eq!(world.get(&key).await.unwrap(), before);
    assert!(roll_back(&world, &key, freed.revision).await.is_ok());
}

#[tokio::test]
async fn the_floor_is_under_earlier_versions_too() {
    let world = World::new().await;
    for (name, spec, code) in [
        ("unit-option", json!({"image": "x", "command": ["+sh"]}), 403),
        // Ids are not rolled back, so the version does no harm.
        ("root", json!({"image": "x", "securityContext": {"runAsUser": 0, "runAsGroup": 0}}), 200),
    ] {
        let key = app(name);
        let first = world.plant(json!({"metadata": {"name": name}, "spec": spec})).await;
        let ids = json!({"runAsUser": 1_000_000_009, "runAsGroup": 1_000_000_009});
        let good = json!({"metadata": {"name": name}, "spec": {"image": "y", "securityContext": ids}});
        let now = tree(&world.put(&key, &good).await.unwrap().entry);
        let back = roll_back(&world, &key, first).await;
        assert_eq!(back.as_ref().map_or_else(Status::code, |_| 200), code, "{name}: {back:?}");
        let stored = world.get(&key).await.unwrap();
        assert_eq!(stored["spec"]["securityContext"], ids, "{name}");
        assert_eq!(stored == now, code == 403, "{name}: what is refused changes nothing");
    }
}

#[tokio::test]
async fn reports_push_no_version_out_and_a_rollback_leaves_them() {
    let world = World::new().await;
    let key = app("web");
    let first = world.create(application("web")).await.unwrap().entry.revision;
    world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap();
    for number in 0..20 {
        let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running", "message": number.to_string()}});
        world.put_status(&key, &status).await.unwrap();
    }
    assert_eq!(versions(&world, &key).await.len(), 2);
    let back = tree(&roll_back(&world, &key, first).await.unwrap().entry);
    assert_eq!(back["spec"]["image"], "nginx");
    assert_eq!(back["status"], json!({"phase": "Running", "message": "19"}));
}

#[tokio::test]
async fn preconditions_dry_runs_and_replaced_objects() {
    let world = World::new().await;
    let key = app("web");
    let first = world.create(application("web")).await.unwrap().entry;
    let second = world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap().entry;
    let third = world.merge(&key, json!({"spec": {"image": "three"}})).await.unwrap().entry;
    let to_first = Order { revision: Some(first.revision), ..Order::default() };
    let act = async |order: Order, options: WriteOptions| {
        let done = world.service.act(&admin(), &key, Door::Rollback, &order, &options).await;
        done.map_err(|status| status.code())
    };
    let stale = Order { resource_version: Some(second.revision.to_string()), ..to_first.clone() };
    assert_eq!(act(stale, WriteOptions::default()).await.unwrap_err(), 409);
    let foreign = Order { uid: Some(uuid::Uuid::nil().to_string()), ..to_first.clone() };
    assert_eq!(act(foreign, WriteOptions::default()).await.unwrap_err(), 409);
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let shown = act(to_first.clone(), dry).await.unwrap();
    assert_eq!(tree(&shown.entry)["spec"]["image"], "nginx");
    assert_eq!(world.get(&key).await.unwrap(), tree(&third));
    let exact = Order { resource_version: Some(third.revision.to_string()), ..to_first.clone() };
    assert!(act(exact, WriteOptions::default()).await.is_ok());

    world.delete(&key).await.unwrap();
    world.create(application("web")).await.unwrap();
    assert_eq!(act(to_first, WriteOptions::default()).await.unwrap_err(), 404, "another object's version");
}

#[tokio::test]
async fn every_kind_can_be_rolled_back() {
    let world = World::new().await;
    world.create(json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": {}})).await.unwrap();
    for key in [namespace("other"), node("n1")] {
        let before = world.get(&key).await.unwrap();
        world.merge(&key, json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
        let oldest = versions(&world, &key).await.last().unwrap().0;
        let back = roll_back(&world, &key, oldest).await.unwrap();
        assert_eq!(tree(&back.entry)["metadata"]["labels"], before["metadata"]["labels"], "{key}");
    }
    world.service.cordon(&admin(), "n1", true).await.unwrap();
    let oldest = versions(&world, &node("n1")).await.last().unwrap().0;
    let back = roll_back(&world, &node("n1"), oldest).await.unwrap();
    assert!(tree(&back.entry)["spec"].get("unschedulable").is_none());
}
