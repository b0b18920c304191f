//! Nodes that were forgotten, claims, presence.

use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_service::Propagation::Background;
use horchestra_service::{Caller, Order, RequestContext, WriteOptions};
use horchestra_store::{Attribution, Heartbeat, Item, MemoryDatabase, Op, SessionClaim};
use serde_json::json;
use uuid::Uuid;

use super::world::{TERM, World, on_both, operator};

async fn placed(world: &World, name: &str) -> Key {
    let app = json!({"metadata": {"name": name}, "spec": {"image": "x", "placement": {"nodeName": "n1"}}});
    world.create(Kind::Application, "default", app).await.key.clone()
}

async fn node(world: &World) -> Key {
    world.create(Kind::Node, "", json!({"metadata": {"name": "n1"}, "spec": {}})).await.key.clone()
}

#[tokio::test]
async fn what_is_deleted_later_does_not_wait_for_a_node_that_was_forgotten() {
    on_both(async |world| {
        world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
        let node_key = node(world).await;
        let (one, two, three) =
            (placed(world, "one").await, placed(world, "two").await, placed(world, "three").await);

        // Merely deleted: the node may come back and say what became of it.
        world.delete(&node_key, Background).await;
        world.delete(&one, Background).await;
        world.settle().await;
        assert!(world.get(&one).await.is_some(), "its node was not given up");

        node(world).await;
        let (order, options) = (Order::default(), WriteOptions::default());
        let forgotten =
            world.service.act(&operator(), &node_key, Door::Forget, &order, &options).await.unwrap();
        assert!(forgotten.erased);
        assert!(world.get(&one).await.is_none(), "the door itself lets go what is being deleted");
        assert!(world.get(&two).await.is_some(), "and nothing else");

        world.delete(&two, Background).await;
        assert!(world.get(&two).await.is_some(), "as for any node");
        world.settle().await;
        assert!(world.get(&two).await.is_none());
        assert_eq!(world.counted("node_given_up"), 1);

        // It is back, so it is asked again.
        node(world).await;
        world.delete(&three, Background).await;
        world.settle().await;
        assert!(world.get(&three).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn claims_are_given_back_when_their_owner_was_deleted() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        world.make(&namespaces, &[("dead", &[]), ("alive", &[])]).await;
        let owner = async |name: &str| world.entry(&namespaces.key(name)).await.unwrap().uid;
        let (dead, alive, stranger) = (owner("dead").await, owner("alive").await, Uuid::new_v4());
        world.delete(&namespaces.key("dead"), Background).await;
        let store = world.service.store();
        for (value, owner) in [("1", dead), ("2", dead), ("1", alive), ("3", stranger)] {
            let (space, value) = ("address".to_owned(), value.to_owned());
            let ops = vec![Op::Claim { space, value, owner, shared: true }];
            let who = Attribution {
                user: "t".to_owned(),
                verb: "t".to_owned(),
                audit_id: Uuid::new_v4(),
                trace: None,
            };
            store.commit(Item { ops, guards: Vec::new(), who }).await.unwrap();
        }
        assert!(world.settle().await > 0);
        let held = store.claims("address").await.unwrap();
        let held: Vec<(&str, Uuid)> = held.iter().map(|claim| (claim.value.as_str(), claim.owner)).collect();
        assert_eq!(held, [("1", alive), ("3", stranger)]);
        assert_eq!(world.counted("claims_released"), 1, "all that one owner holds of a space goes at once");
    })
    .await;
}

#[tokio::test]
async fn presence_that_stands_for_nothing_is_removed() {
    let database = MemoryDatabase::new();
    let world = World::on(database.connect(), ()).await;
    let store = world.service.store();
    let gateway = Uuid::new_v4();
    assert!(store.renew_gateway(gateway, "127.0.0.1:1", TERM).await.unwrap());
    let claim = SessionClaim {
        node: "n1".to_owned(),
        gateway,
        peer: "127.0.0.1:2".to_owned(),
        certificate: "00".to_owned(),
    };
    let grant = store.claim_session(claim, TERM).await.unwrap().unwrap();
    let beat = |node: &str| Heartbeat { node: node.to_owned(), allocated_cpu: 0, allocated_memory: 0 };
    store.record_heartbeats(&[beat("n1"), beat("n2")]).await.unwrap();
    let session = RequestContext::new(Caller::Node { name: "n1".to_owned(), grant, gateway });
    world.service.register_node(&session, "n1", &json!({"ready": true})).await.unwrap();
    assert_eq!(world.settle().await, 0);

    database.advance(Duration::from_secs(24 * 3600));
    world.take_over(Default::default()).await;
    assert_eq!(world.settle().await, 3, "a session, a gateway and a heartbeat");
    assert!(store.sessions().await.unwrap().is_empty());
    let nodes: Vec<String> =
        store.heartbeats().await.unwrap().into_iter().map(|row| row.heartbeat.node).collect();
    assert_eq!(nodes, ["n1"], "that of a Node that is there stays");
}
