//! A loop that looks at what was: the database does not let it act on it.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_service::{Service, ServiceConfig};
use horchestra_store::store::StoreOptions;
use horchestra_store::{MemoryBackend, Store};
use horchestra_workers::sets::{SetMetrics, Sets};
use horchestra_workers::substrate::Reconciler as _;
use serde_json::json;

use super::world::*;

/// A leader that hears of nothing from now on.
struct Deaf {
    backend: Arc<MemoryBackend>,
    sets: Sets,
}

impl Deaf {
    async fn beside(world: &World) -> Deaf {
        let backend = world.database.in_memory();
        let poll = Duration::from_secs(3600);
        let store = Store::open(backend.clone(), StoreOptions { poll, ..StoreOptions::default() });
        store.ready().await;
        store.fresh().await.unwrap();
        backend.set_deaf(true);
        let service = Service::new(store, ServiceConfig::default());
        let sets = Sets::new(service.clone(), recorder(&service), SetMetrics::default());
        Deaf { backend, sets }
    }

    async fn pass(&mut self, world: &World) -> usize {
        let refused = self.sets.pass(&world.term).await.unwrap().refused;
        self.backend.set_deaf(false);
        refused
    }
}

async fn running(count: usize) -> World {
    let mut world = World::new(&["n1", "n2", "n3"]).await;
    let spec = |image: &str| json!({"applications": [replicas("a", image, count)], "rollout": {"maxUnavailable": 1}});
    world.put_set("web", spec("x")).await;
    world.converge().await;
    world.put_set("web", spec("y")).await;
    world
}

async fn changed(world: &World) -> usize {
    world.images().await.values().filter(|image| *image == "y").count()
}

#[tokio::test]
async fn no_child_is_taken_down_on_the_strength_of_one_that_is_down_by_now() {
    for (what, expected) in [("nothing", 1), ("a child", 0), ("a node", 0), ("another leader", 1)] {
        let mut world = running(3).await;
        let mut deaf = Deaf::beside(&world).await;
        match what {
            "a child" => world.report("web-a-2", "Failed", None).await,
            "a node" => {
                let node = world.tree(&app("web-a-2")).await["spec"]["placement"]["nodeName"].clone();
                world.judge(node.as_str().unwrap(), false).await;
            }
            "another leader" => drop(world.pass().await),
            _ => {}
        }
        let refused = deaf.pass(&world).await;
        assert_eq!(changed(&world).await, expected, "meanwhile {what} went down");
        assert_eq!(refused > 0, what != "nothing", "meanwhile {what} went down");
    }
}

#[tokio::test]
async fn a_child_that_was_down_with_its_node_is_not_changed_once_it_is_back() {
    let world = running(3).await;
    world.report("web-a-1", "Failed", None).await;
    let node = world.tree(&app("web-a-2")).await["spec"]["placement"]["nodeName"].clone();
    world.judge(node.as_str().unwrap(), false).await;
    let mut deaf = Deaf::beside(&world).await;
    world.judge(node.as_str().unwrap(), true).await;
    deaf.pass(&world).await;
    let images = world.images().await;
    assert_eq!(images["web-a-1"], "y", "that one is down by itself");
    assert_eq!(images["web-a-2"], "x");
}

#[tokio::test]
async fn a_plan_for_a_set_that_is_another_one_by_now_comes_to_nothing() {
    for what in ["deleted", "frozen", "edited"] {
        let mut world = World::new(&["n1"]).await;
        world.put_set("web", json!({"applications": [component("a", "x"), component("b", "x")]})).await;
        world.converge().await;
        // To make, to change and to delete.
        world.put_set("web", json!({"applications": [component("a", "y"), component("c", "x")]})).await;
        let mut deaf = Deaf::beside(&world).await;
        match what {
            "deleted" => world.delete(&set("web"), None).await,
            "frozen" => world.act(&set("web"), Door::Freeze).await,
            _ => {
                let before = json!({"applications": [component("a", "x"), component("b", "x")]});
                world.put_set("web", before).await;
            }
        }
        let head = world.head().await;
        assert!(deaf.pass(&world).await >= 3, "{what}");
        assert_eq!(world.written(head).await, Vec::<String>::new(), "{what}");
    }
}

#[tokio::test]
async fn nothing_is_made_for_a_set_that_has_a_successor_of_its_name() {
    let mut world = World::new(&["n1"]).await;
    let spec = json!({"applications": [component("a", "x")]});
    world.put_set("web", spec.clone()).await;
    let mut deaf = Deaf::beside(&world).await;
    world.delete(&set("web"), None).await;
    world.settle().await;
    world.put_set("web", spec).await;
    assert!(deaf.pass(&world).await > 0);
    assert_eq!(world.apps().await, Vec::<String>::new());
    world.settle().await;
    let uid = world.entry(&set("web")).await.unwrap().uid.to_string();
    assert_eq!(world.tree(&app("web-a")).await["metadata"]["ownerReferences"][0]["uid"], uid);
}

#[tokio::test]
async fn a_deposed_leader_stops() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.service.store().release_lease(&world.term.lease).await.unwrap();
    let successor = lease(&world.service, "applicationset").await;
    world.service.store().fresh().await.unwrap();
    assert!(world.sets.pass(&world.term).await.is_err());
    assert_eq!(world.apps().await, Vec::<String>::new());
    world.term = successor;
    world.settle().await;
    assert_eq!(world.names(Kind::Application).await, ["web-a"]);
    assert!(world.entry(&Key::cluster(Kind::Node, "n1")).await.is_some());
}
