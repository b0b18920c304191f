//! Nodes that are given up.

use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{Order, RequestContext, WriteOptions, Written};
use horchestra_store::{Heartbeat, HistoryOf};
use horchestra_testkit::eventually;
use serde_json::json;

use crate::support::*;

async fn forget(
    world: &World,
    context: &RequestContext,
    name: &str,
    order: Order,
) -> Result<Written, Status> {
    world.service.act(context, &node(name), Door::Forget, &order, &WriteOptions::default()).await
}

async fn forgotten(world: &World, name: &str) -> Result<Written, Status> {
    forget(world, &admin(), name, Order::default()).await
}

async fn placed(world: &World, name: &str, on: &str, finalizers: &[&str]) -> Key {
    let mut body = application(name);
    body["spec"]["placement"] = json!({"nodeName": on});
    body["metadata"]["finalizers"] = json!(finalizers);
    world.create(body).await.unwrap();
    app(name)
}

async fn lost(name: &str) -> World {
    let world = World::new().await;
    world.node(name, "4", "8Gi").await;
    world.database.advance(Duration::from_secs(600));
    world
}

#[tokio::test]
async fn what_is_deleted_on_a_lost_node_goes_with_it_and_the_rest_stays() {
    let world = lost("n1").await;
    world.node("n2", "4", "8Gi").await;
    for n in 0..40 {
        world.delete(&placed(&world, &format!("gone-{n}"), "n1", &[]).await).await.unwrap();
    }
    let held = placed(&world, "held", "n1", &["example.com/hold"]).await;
    world.delete(&held).await.unwrap();
    let stays = placed(&world, "stays", "n1", &[]).await;
    let elsewhere = placed(&world, "elsewhere", "n2", &[]).await;
    world.delete(&elsewhere).await.unwrap();
    let uid = world.get(&node("n1")).await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();

    let done = forgotten(&world, "n1").await.unwrap();
    assert!(done.erased && done.entry.uid.to_string() == uid);
    assert!(done.warnings[0].contains("1 applications are placed on it"), "{:?}", done.warnings);
    assert!(done.warnings[0].contains("default/stays"), "{:?}", done.warnings);
    assert!(done.warnings[1].contains("41 applications were being deleted"), "{:?}", done.warnings);
    assert_eq!(world.get(&node("n1")).await.unwrap_err().code(), 404);
    for n in 0..40 {
        assert_eq!(world.get(&app(&format!("gone-{n}"))).await.unwrap_err().code(), 404);
    }
    let held = world.get(&held).await.unwrap();
    assert_eq!(held["metadata"]["finalizers"], json!(["example.com/hold"]), "others are still waited for");
    let stays = world.get(&stays).await.unwrap();
    assert_eq!(stays["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    assert_eq!(stays["spec"]["placement"]["nodeName"], "n1");
    assert!(world.get(&elsewhere).await.is_ok(), "another node is still asked");

    let history = world.service.store().history(HistoryOf::Key(node("n1"))).await.unwrap();
    assert_eq!((history[0].who.verb.as_str(), history[0].deleted), ("forget", true));
    assert_eq!(history[0].who.user, "admin");
    assert!(world.service.store().sessions().await.unwrap().iter().all(|session| session.node != "n1"));
    assert_eq!(forgotten(&world, "n1").await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_node_that_is_alive_is_not_forgotten() {
    let world = World::new().await;
    world.node("n1", "4", "8Gi").await;
    let key = placed(&world, "web", "n1", &[]).await;
    world.delete(&key).await.unwrap();
    let refused = forgotten(&world, "n1").await.unwrap_err();
    assert_eq!(refused.code(), 409);
    assert!(refused.message.contains("live session"), "{refused}");

    // Its gateway is gone and no other has taken it over yet, but it was heard of a moment ago.
    let beat = Heartbeat { node: "n1".to_owned(), allocated_cpu: 0, allocated_memory: 0 };
    world.database.advance(Duration::from_secs(600));
    world.service.store().record_heartbeats(&[beat]).await.unwrap();
    let refused = forgotten(&world, "n1").await.unwrap_err();
    assert_eq!(refused.code(), 409);
    assert!(refused.message.contains("heard of"), "{refused}");
    assert!(world.get(&key).await.is_ok() && world.get(&node("n1")).await.is_ok());

    world.database.advance(Duration::from_secs(46));
    assert!(forgotten(&world, "n1").await.unwrap().erased);
    assert_eq!(world.get(&key).await.unwrap_err().code(), 404);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_connects_meanwhile_fences_what_is_under_way() {
    let world = lost("n1").await;
    let key = placed(&world, "web", "n1", &[]).await;
    world.delete(&key).await.unwrap();
    // Another replica, which stands still when it has claimed the session, until the node is back.
    let backend = world.database.connect();
    let service = served(backend.clone()).await;
    let (order, options, who, n1) = (Order::default(), WriteOptions::default(), admin(), node("n1"));
    backend.set_latency(Duration::from_millis(300));
    let forgetting = service.act(&who, &n1, Door::Forget, &order, &options);
    let coming_back = async {
        let store = world.service.store();
        eventually(DEADLINE, async || {
            let sessions = store.sessions().await.unwrap();
            sessions.iter().any(|session| session.node == "n1" && session.peer == "forget")
        })
        .await;
        backend.set_stalled(true);
        world.session("n1").await;
        backend.set_stalled(false);
    };
    let (outcome, ()) = tokio::join!(forgetting, coming_back);
    let refused = outcome.unwrap_err();
    assert_eq!(refused.code(), 409, "{refused}");
    assert!(world.get(&key).await.is_ok() && world.get(&n1).await.is_ok());
}

#[tokio::test]
async fn who_may_and_what_is_meant() {
    let world = lost("n1").await;
    let n1 = world.get(&node("n1")).await.unwrap();
    for context in [identity("n1", &["system:nodes"]), identity("x", &["system:masters", "system:nodes"])] {
        assert_eq!(forget(&world, &context, "n1", Order::default()).await.unwrap_err().code(), 403);
    }
    let meant = |uid: Option<&str>, version: Option<&str>| Order {
        uid: uid.map(str::to_owned),
        resource_version: version.map(str::to_owned),
        ..Order::default()
    };
    let other = uuid::Uuid::new_v4().to_string();
    assert_eq!(forget(&world, &admin(), "n1", meant(Some(&other), None)).await.unwrap_err().code(), 409);
    assert_eq!(forget(&world, &admin(), "n1", meant(None, Some("1"))).await.unwrap_err().code(), 409);
    let application = Key::namespaced(Kind::Application, "default", "web");
    let (order, options) = (Order::default(), WriteOptions::default());
    let wrong = world.service.act(&admin(), &application, Door::Forget, &order, &options).await;
    assert_eq!(wrong.unwrap_err().code(), 404);

    let trial = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let tried = world.service.act(&admin(), &node("n1"), Door::Forget, &Order::default(), &trial).await;
    assert!(tried.unwrap().erased);
    assert!(world.get(&node("n1")).await.is_ok());
    assert!(world.service.store().sessions().await.unwrap()[0].peer != "forget", "a trial claims nothing");

    let uid = n1["metadata"]["uid"].as_str();
    let version = n1["metadata"]["resourceVersion"].as_str();
    // Somebody who was given the door, and nothing else, can go through it.
    assert!(forget(&world, &somebody(), "n1", meant(uid, version)).await.unwrap().erased);
}

#[tokio::test]
async fn a_node_that_others_hold_is_marked_and_goes_with_the_last_of_them() {
    let world = lost("n1").await;
    world.merge(&node("n1"), json!({"metadata": {"finalizers": ["example.com/hold"]}})).await.unwrap();
    let marked = forgotten(&world, "n1").await.unwrap();
    assert!(!marked.erased && marked.entry.deleting);
    let again = forgotten(&world, "n1").await.unwrap();
    assert_eq!(again.entry.revision, marked.entry.revision);
    assert!(world.merge(&node("n1"), json!({"metadata": {"finalizers": null}})).await.unwrap().erased);
}
