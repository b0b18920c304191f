//! Who is told anything: Nodes that exist and that an operator has admitted.

use horchestra_core::doors::Door;
use serde_json::json;

use super::client::{heartbeat, report};
use super::stage::Stage;
use crate::world::{A_WHILE, NAMESPACE, app_key};

#[tokio::test]
async fn without_a_node_nothing_is_sent_and_once_there_is_one_everything_is_once() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    stage.world.create_app("web", "n1", json!({})).await;
    stage.delete_node("n1").await;
    let mut node = stage.dial("n1").await;
    node.hears_nothing().await;
    stage.world.create_node("n1").await;
    assert_eq!(node.push().await.names(), ["web"]);
    node.hears_nothing().await;
}

#[tokio::test]
async fn who_registered_itself_is_sent_nothing_until_an_operator_says_so() {
    let stage = Stage::new().await;
    let mut nodes = Vec::new();
    for (name, word) in [("uncordoned", Door::Uncordon), ("admitted", Door::Admit)] {
        let node = stage.dial(name).await;
        node.beat().await;
        stage.until_node(name, |node| !node.is_null()).await;
        stage.world.create_app(&format!("on-{name}"), name, json!({})).await;
        nodes.push((name, word, node));
    }
    tokio::time::sleep(A_WHILE).await;
    for (name, word, mut node) in nodes {
        node.hears_nothing().await;
        match word {
            Door::Uncordon => stage.world.uncordon(name).await,
            _ => _ = stage.world.operator.admit(&stage.world.who(), name).await.unwrap(),
        }
        assert_eq!(node.push().await.names(), [format!("on-{name}")]);
        node.hears_nothing().await;
    }
    // Admitted and cordoned: that concerns the scheduler alone.
    assert_eq!(stage.world.node("admitted").await["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn a_node_that_is_deleted_hears_nothing_and_comes_back_as_a_stranger() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    stage.heard(&node).await;
    stage.delete_node("n1").await;
    // Also not what changes after that, and not when its next heartbeat makes it anew.
    stage.world.merge(&app_key("web"), json!({"spec": {"args": ["x"]}})).await;
    node.hears_nothing().await;
    node.beat().await;
    let back = stage.until_node("n1", |node| !node.is_null()).await;
    assert_eq!(back["spec"]["unschedulable"], true);
    node.hears_nothing().await;
    stage.world.uncordon("n1").await;
    assert_eq!(node.push().await.app("web").unwrap()["spec"]["args"], json!(["x"]));
    node.hears_nothing().await;
}

#[tokio::test]
async fn a_node_that_comes_back_is_sent_its_state_although_nothing_has_changed() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    stage.heard(&node).await;
    stage.delete_node("n1").await;
    node.hears_nothing().await;
    stage.world.create_node("n1").await;
    assert_eq!(node.push().await.names(), ["web"]);
}

#[tokio::test]
async fn what_others_say_of_themselves_is_no_reason_to_push() {
    let stage = Stage::new().await;
    let (mut node, other) =
        (stage.serving("n1", &[]).await, stage.serving("n2", &[("web", json!({}))]).await);
    let mut said = heartbeat("n2");
    for cpu in ["1", "2", "3"] {
        said["status"]["capacity"]["cpu"] = json!(cpu);
        said["status"]["allocated"]["cpu"] = json!(cpu);
        other.say_of_itself(said.to_string()).await;
        other.pass([report(NAMESPACE, "web", if cpu == "2" { "Failed" } else { "Running" }, 1)]).await;
        stage.until_node("n2", |node| node["status"]["capacity"]["cpu"] == cpu).await;
    }
    node.hears_nothing().await;
}

#[tokio::test]
async fn the_end_of_a_stream_writes_nothing() {
    let stage = Stage::new().await;
    let (killed, mut polite) = (stage.serving("n1", &[]).await, stage.serving("n2", &[]).await);
    for node in [&killed, &polite] {
        stage.heard(node).await;
    }
    let before = stage.world.revision().await;
    killed.vanish();
    polite.finish();
    polite.end().await;
    horchestra_testkit::eventually(crate::world::SOON, async || {
        !stage.gateway.has_session("n1") && !stage.gateway.has_session("n2")
    })
    .await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.world.revision().await, before);
    assert_eq!(stage.world.node("n1").await["status"]["ready"], true, "that is for the judge to say");
}
