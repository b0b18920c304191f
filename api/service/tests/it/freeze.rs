//! Doors for people: freeze and thaw, cordon, uncordon and admit.

use horchestra_core::doors::Door;
use horchestra_core::kind::Key;
use horchestra_core::status::Status;
use horchestra_service::{ApplicationReport, Binding, DoorError, Order, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::*;

async fn act(world: &World, key: &Key, door: Door) -> Result<Written, Status> {
    world.service.act(&admin(), key, door, &Order::default(), &WriteOptions::default()).await
}

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

#[tokio::test]
async fn a_freeze_moves_no_generation_and_ordinary_writes_keep_it() {
    let world = World::new().await;
    let key = app("web");
    let created = world.create(application("web")).await.unwrap().entry;
    let frozen = act(&world, &key, Door::Freeze).await.unwrap();
    let object = tree(&frozen.entry);
    assert_eq!(object["spec"]["frozen"], true);
    assert_eq!(frozen.entry.generation, created.generation);
    assert!(frozen.entry.revision > created.revision);
    assert!(frozen.warnings.iter().any(|text| text.contains("0.9")), "{:?}", frozen.warnings);
    let told = condition(&object, "Frozen");
    assert_eq!((&told["status"], &told["reason"]), (&json!("Unknown"), &json!("Requested")));

    let again = act(&world, &key, Door::Freeze).await.unwrap();
    assert_eq!(again.entry.revision, frozen.entry.revision, "frozen already");
    let edited = world.put(&key, &application("web")).await.unwrap().entry;
    assert_eq!(tree(&edited)["spec"]["frozen"], true, "an update keeps it");
    let edited = world.merge(&key, json!({"spec": {"frozen": false, "image": "two"}})).await.unwrap().entry;
    assert_eq!((&tree(&edited)["spec"]["frozen"], edited.generation), (&json!(true), 2));

    let thawed = act(&world, &key, Door::Thaw).await.unwrap();
    let object = tree(&thawed.entry);
    assert!(object["spec"].get("frozen").is_none());
    assert_eq!((condition(&object, "Frozen"), thawed.entry.generation), (Value::Null, 2));
    assert!(thawed.warnings.is_empty());
    assert_eq!(act(&world, &key, Door::Thaw).await.unwrap().entry.revision, thawed.entry.revision);

    let verbs: Vec<String> =
        world.service.revisions(&key).await.unwrap().versions.into_iter().map(|it| it.verb).collect();
    assert_eq!(verbs[0], "thaw");
    assert!(verbs.contains(&"freeze".to_owned()), "{verbs:?}");
}

#[tokio::test]
async fn a_frozen_application_is_not_placed() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let scheduler = world.lease("scheduler").await;
    world.create(application("web")).await.unwrap();
    let bind = async |entry: &horchestra_store::Entry| {
        let binding = Binding {
            key: entry.key.clone(),
            uid: entry.uid,
            revision: entry.revision,
            node: "node-1".into(),
            node_revision: None,
        };
        world.service.bind(&scheduler, vec![binding]).await.remove(0)
    };
    let frozen = act(&world, &app("web"), Door::Freeze).await.unwrap().entry;
    assert!(matches!(bind(&frozen).await, Err(DoorError::Changed)));
    let thawed = act(&world, &app("web"), Door::Thaw).await.unwrap().entry;
    assert!(bind(&thawed).await.is_ok());
}

#[tokio::test]
async fn a_freeze_is_true_once_the_node_says_so() {
    let world = World::new().await;
    let session = world.node("node-1", "4", "8Gi").await;
    let key = app("web");
    let mut body = application("web");
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    let uid = world.create(body).await.unwrap().entry.uid;
    let report = async |phase: &str| {
        let report = ApplicationReport {
            phase: phase.to_owned(),
            observed_generation: 1,
            ..ApplicationReport::default()
        };
        world.service.report_application(&session, &key, uid, report).await
    };
    report("Running").await.unwrap();
    assert!(report("Frozen").await.is_err(), "nobody asked for it");
    act(&world, &key, Door::Freeze).await.unwrap();
    for (phase, status, reason) in
        [("Running", "Unknown", "Requested"), ("Frozen", "True", "Held"), ("Running", "Unknown", "Requested")]
    {
        report(phase).await.unwrap();
        let object = world.get(&key).await.unwrap();
        let told = condition(&object, "Frozen");
        assert_eq!((&told["status"], &told["reason"]), (&json!(status), &json!(reason)), "{phase}");
        assert_eq!(object["status"]["phase"], phase);
    }
    act(&world, &key, Door::Thaw).await.unwrap();
    assert!(report("Frozen").await.is_err());
    report("Running").await.unwrap();
    assert_eq!(condition(&world.get(&key).await.unwrap(), "Frozen"), Value::Null);
}

#[tokio::test]
async fn a_version_from_a_freeze_does_not_freeze_again() {
    let world = World::new().await;
    let key = app("web");
    world.create(application("web")).await.unwrap();
    let frozen = act(&world, &key, Door::Freeze).await.unwrap().entry;
    act(&world, &key, Door::Thaw).await.unwrap();
    world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap();
    let order = Order { revision: Some(frozen.revision), ..Order::default() };
    let options = WriteOptions::default();
    let back = world.service.act(&admin(), &key, Door::Rollback, &order, &options).await.unwrap();
    let object = tree(&back.entry);
    assert_eq!((&object["spec"]["image"], object["spec"].get("frozen")), (&json!("nginx"), None));
}

#[tokio::test]
async fn doors_check_what_the_caller_has_in_mind() {
    let world = World::new().await;
    let key = app("web");
    let first = world.create(application("web")).await.unwrap().entry;
    world.merge(&key, json!({"spec": {"image": "two"}})).await.unwrap();
    let act = async |key: &Key, door: Door, order: Order, options: WriteOptions| {
        let done = world.service.act(&admin(), key, door, &order, &options).await;
        done.map_err(|status| status.code()).map(|written| written.entry)
    };
    let stale = Order { resource_version: Some(first.revision.to_string()), ..Order::default() };
    let foreign = Order { uid: Some(uuid::Uuid::nil().to_string()), ..Order::default() };
    let odd = Order { resource_version: Some("x".into()), ..Order::default() };
    for (order, code) in [(stale, 409), (foreign, 409), (odd, 400)] {
        assert_eq!(act(&key, Door::Freeze, order, WriteOptions::default()).await.unwrap_err(), code);
    }
    let before = world.get(&key).await.unwrap();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let shown = act(&key, Door::Freeze, Order::default(), dry.clone()).await.unwrap();
    assert_eq!(tree(&shown)["spec"]["frozen"], true);
    assert_eq!(world.get(&key).await.unwrap(), before);
    world.create(json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": {}})).await.unwrap();
    let shown = act(&node("n1"), Door::Cordon, Order::default(), dry).await.unwrap();
    assert_eq!(tree(&shown)["spec"]["unschedulable"], true);
    assert!(world.get(&node("n1")).await.unwrap()["spec"].get("unschedulable").is_none());
    for (key, door) in
        [(app("ghost"), Door::Freeze), (node("ghost"), Door::Cordon), (node("ghost"), Door::Admit)]
    {
        assert_eq!(act(&key, door, Order::default(), WriteOptions::default()).await.unwrap_err(), 404);
    }
}

#[tokio::test]
async fn nodes_are_cordoned_uncordoned_and_admitted_by_people_only() {
    let world = World::new().await;
    let session = world.session("n1").await;
    world.service.register_node(&session, "n1", &json!({"ready": true})).await.unwrap();
    let key = node("n1");
    let itself = identity("n1", &["system:nodes", "system:masters"]);
    for door in [Door::Admit, Door::Uncordon, Door::Cordon, Door::Rollback] {
        let order = Order { revision: Some(1), ..Order::default() };
        let done = world.service.act(&itself, &key, door, &order, &WriteOptions::default()).await;
        assert_eq!(done.unwrap_err().code(), 403, "{door:?}");
    }
    let admitted = tree(&act(&world, &key, Door::Admit).await.unwrap().entry);
    assert_eq!(condition(&admitted, "Admitted")["status"], "True");
    assert_eq!(admitted["spec"]["unschedulable"], true, "admitting is not uncordoning");
    let open = tree(&act(&world, &key, Door::Uncordon).await.unwrap().entry);
    assert!(open["spec"].get("unschedulable").is_none());
    let closed = tree(&act(&world, &key, Door::Cordon).await.unwrap().entry);
    assert_eq!(closed["spec"]["unschedulable"], true);
    let verbs: Vec<String> =
        world.service.revisions(&key).await.unwrap().versions.into_iter().map(|it| it.verb).collect();
    assert_eq!(verbs[..2], ["cordon", "uncordon"]);
}
