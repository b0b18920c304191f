//! Deletion in two phases: the author asks, the node lets go.

use horchestra_agent::scripted::ScriptedNode;
use horchestra_proto::node::v1::AppStatus;
use horchestra_testkit::eventually;
use serde_json::json;

use crate::world::{A_WHILE, SOON, TestGateway, World, app_key, end_of_pass, named, report};

/// A node that runs `web` (which is being deleted, as it was told) and `other`.
async fn deleting(world: &World, gateway: &TestGateway) -> ScriptedNode {
    world.create_node("n1").await;
    for name in ["web", "other"] {
        world.create_app(name, "n1", json!({})).await;
    }
    let mut node = world.connect(gateway, "n1").await;
    node.desired_where(SOON, |desired| desired.applications.len() == 2).await.unwrap();
    pass(&node, [report("web", "Running", 1), report("other", "Running", 1)]).await;
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
    assert!(!world.delete(&app_key("web")).await);
    node.desired_where(SOON, |desired| {
        named(desired).iter().any(|(_, app)| app["metadata"]["deletionTimestamp"].is_string())
    })
    .await
    .unwrap();
    node
}

async fn pass(node: &ScriptedNode, reports: impl IntoIterator<Item = AppStatus>) {
    for report in reports {
        node.app_status(report).await.unwrap();
    }
    node.send(end_of_pass()).await.unwrap();
}

#[tokio::test]
async fn the_nodes_word_erases_the_object_in_one_revision() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = deleting(&world, &gateway).await;
    pass(&node, [report("web", "Terminating", 1), report("other", "Running", 1)]).await;
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Terminating").await;
    let app = world.app("web").await;
    assert_eq!(app["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    let before = world.revision().await;
    pass(&node, [report("web", "Terminated", 1), report("other", "Running", 1)]).await;
    eventually(SOON, async || world.app("web").await.is_null()).await;
    assert_eq!(world.revision().await, before + 1);
    node.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    // Said again it means nothing.
    pass(&node, [report("web", "Terminated", 1), report("other", "Running", 1)]).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.revision().await, before + 1);
}

#[tokio::test]
async fn what_others_hold_stays_when_the_node_lets_go() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    world.create_app("other", "n1", json!({})).await;
    world.merge(&app_key("web"), json!({"metadata": {"finalizers": ["example.com/mine"]}})).await;
    let mut node = world.connect(&gateway, "n1").await;
    world.delete(&app_key("web")).await;
    node.desired_where(SOON, |desired| {
        desired.applications.len() == 2
            && named(desired).iter().any(|(_, app)| app["metadata"]["deletionTimestamp"].is_string())
    })
    .await
    .unwrap();
    pass(&node, [report("web", "Terminated", 1), report("other", "Running", 1)]).await;
    eventually(SOON, async || {
        world.app("web").await["metadata"]["finalizers"] == json!(["example.com/mine"])
    })
    .await;
    assert_eq!(world.app("web").await["status"]["phase"], "Terminated");
    world.merge(&app_key("web"), json!({"metadata": {"finalizers": null}})).await;
    assert!(world.app("web").await.is_null());
}

#[tokio::test]
async fn a_node_that_sees_nothing_at_all_has_to_say_so_twice() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = deleting(&world, &gateway).await;
    let blind = || [report("web", "Terminated", 1), report("other", "Failed", 1)];
    pass(&node, blind()).await;
    // It is asked to look again by a push of the same state.
    let again = node.desired(SOON).await.unwrap();
    assert_eq!(again.applications.len(), 2);
    tokio::time::sleep(A_WHILE).await;
    assert!(!world.app("web").await.is_null(), "one pass is not enough");
    // It sees again: the workload was there all the time.
    pass(&node, [report("web", "Terminating", 1), report("other", "Running", 1)]).await;
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Terminating").await;
    pass(&node, blind()).await;
    node.desired(SOON).await.unwrap();
    assert!(!world.app("web").await.is_null());
    pass(&node, blind()).await;
    eventually(SOON, async || world.app("web").await.is_null()).await;
}

#[tokio::test]
async fn a_heartbeat_or_a_pause_closes_a_pass_as_well() {
    for by_heartbeat in [true, false] {
        let world = World::new().await;
        let gateway = world.gateway().await;
        let node = deleting(&world, &gateway).await;
        for _ in 0..2 {
            node.app_status(report("web", "Terminated", 1)).await.unwrap();
            if by_heartbeat {
                node.heartbeat().await.unwrap();
            } else {
                // Longer than what the gateway takes for the end of a pass.
                tokio::time::sleep(A_WHILE).await;
            }
        }
        eventually(SOON, async || world.app("web").await.is_null()).await;
    }
}

#[tokio::test]
async fn an_object_that_was_never_on_a_node_is_erased_at_once() {
    let world = World::new().await;
    world.create_app("web", "", json!({})).await;
    assert!(world.delete(&app_key("web")).await);
    assert!(world.app("web").await.is_null());
}
