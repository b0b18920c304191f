//! A set that was imported with its children, from another control plane, is found to be as it should be.

use horchestra_core::kind::Kind;
use horchestra_service::import::{Dump, import};
use horchestra_store::MemoryDatabase;
use serde_json::{Value, json};

use super::world::*;
use crate::faults::process::LOOPS;

/// What `kubectl get -A -o json` prints.
async fn printed(world: &World) -> String {
    let snapshot = world.service.store().fresh().await.unwrap();
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Event);
    let objects: Vec<Value> = kinds
        .flat_map(|kind| snapshot.list(kind, None).map(|entry| entry.encoded()).collect::<Vec<_>>())
        .map(|object| serde_json::from_slice(&object).unwrap())
        .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

#[test]
fn an_import_keeps_every_loop_out() {
    let mut loops = LOOPS;
    loops.sort_unstable();
    assert_eq!(loops, horchestra_service::import::LOOPS);
}

#[tokio::test]
async fn children_are_neither_made_again_nor_changed() {
    let mut before = World::new(&["n1", "n2"]).await;
    let components = json!([step("migrate", "db:1"), replicas("web", "web:1", 3), component("api", "api:1")]);
    before.put_set("shop", json!({"applications": components, "rollout": {"maxUnavailable": 1}})).await;
    before.settle().await;
    before.schedule().await;
    before.report("shop-migrate", "Succeeded", Some(0)).await;
    before.settle().await;
    before.schedule().await;
    for name in before.apps().await.iter().filter(|name| *name != "shop-migrate") {
        before.report(name, "Running", None).await;
    }
    before.settle().await;
    let (apps, images) = (before.apps().await, before.images().await);
    assert_eq!(apps.len(), 5);

    let database = MemoryDatabase::new();
    let mut dump = Dump::default();
    dump.read(printed(&before).await.as_bytes()).unwrap();
    let done = import(&*database.connect(), None, &dump).await.unwrap();
    assert_eq!(done.written, dump.len());
    let mut after = World::on(Database::Memory(database), &[]).await;
    assert_eq!(after.pass().await.writes, 0, "{}", after.status("shop").await);
    assert_eq!((after.apps().await, after.images().await), (apps.clone(), images));
    for name in &apps {
        let (old, new) = (before.entry(&app(name)).await.unwrap(), after.entry(&app(name)).await.unwrap());
        assert_eq!((old.uid, old.generation, &old.body), (new.uid, new.generation, &new.body), "{name}");
    }
    // It is the set's to change from then on.
    after.put_set("shop", json!({"applications": [component("api", "api:2")]})).await;
    after.pass().await;
    assert_eq!(after.images().await["shop-api"], "api:2");
}
