//! Volumes that come with a placement.

use horchestra_core::kind::{Key, Kind};
use horchestra_service::{Binding, DoorError};
use serde_json::{Value, json};

use crate::support::*;

fn volume(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, "default", name)
}

fn mounting(name: &str, volumes: &[Value]) -> Value {
    let mut object = application(name);
    let mount = |volume: &Value| json!({"mountPath": format!("/{}", volume["name"]), "volume": volume});
    object["spec"]["volumes"] = volumes.iter().map(mount).collect();
    object
}

fn pv(name: &str, spec: Value) -> Value {
    json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
}

fn binding(entry: &horchestra_store::Entry, node: &str) -> Binding {
    let key = entry.key.clone();
    Binding { key, uid: entry.uid, revision: entry.revision, node: node.to_owned(), node_revision: None }
}

fn node_of(object: &Value) -> &str {
    object["spec"]["node"].as_str().unwrap_or("")
}

#[tokio::test]
async fn volumes_come_with_the_binding_or_not_at_all() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let scheduler = world.lease("scheduler").await;
    world.create(pv("free", json!({"size": "2Gi"}))).await.unwrap();
    let wanted = [
        json!({"type": "pv", "name": "free"}),
        json!({"type": "pv", "name": "new", "size": "3Gi"}),
        json!({"type": "pv", "name": "plain"}),
    ];
    let mut large = mounting("web", &wanted);
    large["spec"]["resources"] = json!({"requests": {"cpu": "9"}});
    let entry = world.create(large).await.unwrap().entry;
    let refused = world.service.bind(&scheduler, vec![binding(&entry, "node-1")]).await.remove(0);
    assert!(matches!(refused, Err(DoorError::NoCapacity)), "{refused:?}");
    assert_eq!(world.get(&volume("new")).await.unwrap_err().code(), 404);
    assert_eq!(node_of(&world.get(&volume("free")).await.unwrap()), "");

    let fits = json!({"spec": {"resources": {"requests": {"cpu": "1"}}}});
    let entry = world.merge(&app("web"), fits).await.unwrap().entry;
    let bound = world.service.bind(&scheduler, vec![binding(&entry, "node-1")]).await.remove(0).unwrap();
    let mut revisions = Vec::new();
    for (name, size, generation) in [("free", "2Gi", 2), ("new", "3Gi", 1), ("plain", "", 1)] {
        let found = world.get(&volume(name)).await.unwrap();
        assert_eq!(node_of(&found), "node-1", "{name}");
        assert_eq!(found["spec"]["size"].as_str().unwrap_or(""), size, "{name}");
        assert_eq!(found["metadata"]["generation"], generation, "{name}");
        assert_eq!(found["metadata"]["namespace"], "default");
        revisions.push(found["metadata"]["resourceVersion"].as_str().unwrap().parse::<i64>().unwrap());
    }
    assert_eq!(bound.entry.revision, revisions[2] + 1, "the application is last, in the same commit");
    assert_eq!(tree(&bound.entry)["spec"]["placement"]["nodeName"], "node-1");
    let server = fields_of(&world.get(&volume("new")).await.unwrap(), "Update horchestra-scheduler");
    assert!(server["f:spec"].get("f:node").is_some(), "{server}");
}

#[tokio::test]
async fn a_binding_rests_on_its_volumes() {
    let world = World::new().await;
    for name in ["node-1", "node-2"] {
        world.node(name, "4", "8Gi").await;
    }
    let scheduler = world.lease("scheduler").await;
    world.create(pv("away", json!({"node": "node-2"}))).await.unwrap();
    world.create(pv("shared", json!({"shared": true}))).await.unwrap();
    let bind = async |entry: &horchestra_store::Entry, node: &str| {
        world.service.bind(&scheduler, vec![binding(entry, node)]).await.remove(0)
    };
    let away = world.create(mounting("away", &[json!({"type": "pv", "name": "away"})])).await.unwrap().entry;
    assert!(matches!(bind(&away, "node-1").await, Err(DoorError::Changed)));
    bind(&away, "node-2").await.unwrap();

    // Two that share a volume which lies nowhere, decided for different nodes at the same time: one wins.
    let shared = json!({"type": "pv", "name": "shared"});
    let first = world.create(mounting("first", std::slice::from_ref(&shared))).await.unwrap().entry;
    let second = world.create(mounting("second", &[shared])).await.unwrap().entry;
    let both = vec![binding(&first, "node-1"), binding(&second, "node-2")];
    let outcomes = world.service.bind(&scheduler, both).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    let home = world.get(&volume("shared")).await.unwrap();
    let placed = if outcomes[0].is_ok() { "node-1" } else { "node-2" };
    assert_eq!(node_of(&home), placed);
}

#[tokio::test]
async fn an_application_that_its_author_placed_gets_its_volumes() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let scheduler = world.lease("scheduler").await;
    let mut object = mounting("web", &[json!({"type": "pv"})]);
    object["spec"]["placement"] = json!({"nodeName": "node-1"});
    let entry = world.create(object).await.unwrap().entry;
    let provide = async |revision| world.service.provide_volumes(&scheduler, &app("web"), revision).await;
    assert!(matches!(provide(entry.revision - 1).await, Err(DoorError::Changed)));
    assert_eq!(provide(entry.revision).await.unwrap(), 1);
    assert_eq!(node_of(&world.get(&volume("web")).await.unwrap()), "node-1");
    assert_eq!(provide(entry.revision).await.unwrap(), 0, "once");
}
