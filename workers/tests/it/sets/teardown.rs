//! The end of a set.

use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::Propagation;
use serde_json::json;

use super::world::*;

async fn running(components: serde_json::Value) -> World {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": components})).await;
    world.converge().await;
    world
}

fn listening(name: &str) -> serde_json::Value {
    let mut it = component(name, "x");
    it["spec"]["ports"] = json!([{"port": 80}]);
    it
}

#[tokio::test]
async fn a_set_stays_until_its_children_are_gone_under_every_policy() {
    for policy in [None, Some(Propagation::Background), Some(Propagation::Foreground)] {
        let mut world = running(json!([listening("a"), component("b", "x")])).await;
        let head = world.head().await;
        world.delete(&set("web"), policy).await;
        world.settle().await;
        let mut deleted = world.written(head).await;
        deleted.sort();
        assert_eq!(deleted, ["delete Application web-a", "delete Application web-b"], "{policy:?}");
        assert_eq!(world.summary("web").await, "Terminating 2/2/0", "{policy:?}");
        assert_eq!(world.condition("web", "Converged").await, "", "{policy:?}");
        world.run_nodes().await;
        world.settle().await;
        let left = world.entry(&set("web")).await.map(|entry| entry.object().unwrap());
        // What else there may be to wait for is known to the garbage collection.
        let waits = matches!(policy, Some(Propagation::Foreground)).then(|| vec!["foregroundDeletion"]);
        assert_eq!(left.as_ref().map(|object| object.finalizers()), waits, "{policy:?}");
        assert_eq!(world.apps().await, Vec::<String>::new(), "{policy:?}");
        assert_eq!(world.names(Kind::Service).await, Vec::<String>::new(), "{policy:?}");
    }
}

#[tokio::test]
async fn a_set_without_children_goes_in_one_pass() {
    let mut world = World::new(&[]).await;
    let spread = json!({"name": "a", "spec": {"image": "x"}, "scale": {"nodeSpread": {}}});
    world.put_set("web", json!({"applications": [spread]})).await;
    world.settle().await;
    assert_eq!(world.summary("web").await, "Ready 0/0/0");
    world.delete(&set("web"), None).await;
    world.pass().await;
    assert!(world.entry(&set("web")).await.is_none());
}

#[tokio::test]
async fn a_deleting_set_creates_nothing() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [replicas("a", "x", 3)]})).await;
    world.delete(&set("web"), None).await;
    let head = world.head().await;
    world.settle().await;
    assert_eq!(world.apps().await, Vec::<String>::new());
    assert!(world.written(head).await.iter().all(|write| !write.starts_with("create")));
    assert!(world.entry(&set("web")).await.is_none());
}

#[tokio::test]
async fn children_that_are_let_go_of_are_ordinary_objects() {
    let mut world = running(json!([listening("a"), component("b", "x")])).await;
    let node = world.tree(&app("web-a")).await["spec"]["placement"]["nodeName"].clone();
    world.delete(&set("web"), Some(Propagation::Orphan)).await;
    world.pass().await;
    assert!(world.entry(&set("web")).await.is_none(), "released and gone in one pass");
    for (key, what) in [(app("web-a"), "child"), (service("web-a"), "service")] {
        let object = world.tree(&key).await;
        let metadata = &object["metadata"];
        for mark in ["ownerReferences", "labels", "deletionTimestamp"] {
            assert!(metadata.get(mark).is_none(), "{what} {mark}: {metadata}");
        }
        assert!(metadata["annotations"].get("horchestra.io/appset-spec-hash").is_none(), "{what}");
    }
    assert_eq!(world.tree(&app("web-a")).await["spec"]["placement"]["nodeName"], node);
    world.settle().await;
    assert_eq!(world.apps().await, ["web-a", "web-b"]);

    // A set of the same name does not take them in.
    world.put_set("web", json!({"applications": [component("b", "y")]})).await;
    world.converge().await;
    assert_eq!(world.images().await["web-b"], "x");
    assert_eq!(world.condition("web", "Applied").await, "False NameConflict");
}

#[tokio::test]
async fn a_release_that_is_refused_keeps_the_set() {
    let world = running(json!([component("a", "x"), component("b", "x")])).await;
    world.delete(&set("web"), Some(Propagation::Orphan)).await;
    let port = super::crash::Limited::refusing(world.service.clone(), "web-b");
    let mut sets = successor(&world.service, port).await;
    use horchestra_workers::substrate::Reconciler as _;
    sets.pass(&world.term).await.unwrap();
    world.service.store().fresh().await.unwrap();
    assert!(world.entry(&set("web")).await.is_some());
    assert!(!world.entry(&app("web-b")).await.unwrap().deleting);
    assert_eq!(world.status("web").await["phase"], "Terminating");
    assert_eq!(world.condition("web", "Applied").await, "False Refused");
    let mut world = world;
    world.settle().await;
    assert!(world.entry(&set("web")).await.is_none());
    assert_eq!(world.apps().await, ["web-a", "web-b"]);
}

#[tokio::test]
async fn who_changes_their_mind_keeps_what_is_left() {
    let mut world = running(json!([component("a", "x")])).await;
    world.delete(&set("web"), None).await;
    world.settle().await;
    world.delete(&set("web"), Some(Propagation::Orphan)).await;
    world.settle().await;
    assert!(world.entry(&set("web")).await.is_none());
    let child = world.tree(&app("web-a")).await;
    assert!(child["metadata"]["deletionTimestamp"].is_string(), "what was deleted stays so");
    assert!(child["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn a_guest_in_a_service_keeps_the_set_until_it_leaves() {
    let mut world = running(json!([listening("a")])).await;
    let guest = json!({"metadata": {"name": "guest"}, "spec": {"image": "x", "serviceName": "web-a"}});
    world.create(guest).await.unwrap();
    world.delete(&set("web"), None).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Terminating 1/0/0");
    assert!(world.message("web", "Applied").await.contains("guest"));
    world.delete(&app("guest"), None).await;
    world.converge().await;
    assert!(world.entry(&set("web")).await.is_none());
}

#[tokio::test]
async fn holds_of_others_keep_a_set_that_has_let_go() {
    let mut world = running(json!([component("a", "x")])).await;
    world
        .merge(&set("web"), json!({"metadata": {"finalizers": ["horchestra.io/child-teardown", "x.y/z"]}}))
        .await;
    world.delete(&set("web"), None).await;
    world.converge().await;
    let finalizers = world.tree(&set("web")).await["metadata"]["finalizers"].clone();
    assert_eq!(finalizers, json!(["x.y/z"]));
    world.merge(&set("web"), json!({"metadata": {"finalizers": []}})).await;
    world.settle().await;
    assert!(world.entry(&set("web")).await.is_none());
}

#[tokio::test]
async fn a_frozen_set_is_deleted_like_any_other() {
    let mut world = running(json!([component("a", "x")])).await;
    world.act(&set("web"), Door::Freeze).await;
    world.delete(&set("web"), None).await;
    world.converge().await;
    assert!(world.entry(&set("web")).await.is_none());
    assert_eq!(world.apps().await, Vec::<String>::new());
}
