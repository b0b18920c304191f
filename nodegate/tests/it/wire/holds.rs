//! A push can destroy: when the database may have forgotten something, nodes keep what they have.

use horchestra_testkit::eventually;
use serde_json::json;

use super::client::Node;
use super::pki::Credentials;
use super::stage::Stage;
use crate::world::SOON;

/// A node that runs `old` and `lost`; the database is put back to before it knew of `lost`.
async fn put_back() -> (Stage, Node) {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("old", json!({}))]).await;
    stage.create_volume("old", "n1").await;
    node.push().await;
    let backup = stage.world.memory().backup();
    stage.world.create_app("lost", "n1", json!({})).await;
    node.push().await;
    stage.create_volume("lost", "n1").await;
    node.push_where(|push| push.volumes.len() == 2).await;
    stage.world.memory().restore(&backup);
    eventually(SOON, async || stage.gateway.gateway.gate.store.health().losses > 0).await;
    (stage, node)
}

#[tokio::test]
async fn a_session_that_goes_on_hears_what_comes_beside_what_it_has_and_of_no_volume() {
    let (stage, mut node) = put_back().await;
    node.hears_nothing().await;
    stage.world.create_app("new", "n1", json!({})).await;
    let push = node.push().await;
    assert_eq!((push.names(), push.volumes.len()), (vec!["lost", "new", "old"], 0));
    // What would change or end something has to wait.
    stage.edit("old", json!({"args": ["x"]})).await;
    stage.delete_app("old").await;
    node.hears_nothing().await;
    stage.world.operator.admit(&stage.world.who(), "n1").await.unwrap();
    let push = node.push().await;
    assert_eq!((push.names(), push.volumes.len(), push.is_deleting("old")), (vec!["new", "old"], 1, true));
}

#[tokio::test]
async fn a_new_session_hears_nothing_until_an_operator_has_looked() {
    let (stage, mut node) = put_back().await;
    node.finish();
    node.end().await;
    let mut node = stage.dial_again(&stage.gateway, "n1").await;
    node.beat().await;
    node.hears_nothing().await;
    stage.world.create_app("new", "n1", json!({})).await;
    node.hears_nothing().await;
    stage.world.operator.store().release_hold(None).await.unwrap();
    assert_eq!(node.push().await.names(), ["new", "old"]);
}

#[tokio::test]
async fn a_node_that_is_much_older_than_the_database_hears_nothing_at_first() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    stage.world.create_app("web", "n1", json!({})).await;
    let old = Credentials::old_node(&stage.world.authority, "n1");
    let mut node = stage.try_dial_as(Some(&old), "n1").await.unwrap();
    node.beat().await;
    node.hears_nothing().await;
    stage.world.operator.admit(&stage.world.who(), "n1").await.unwrap();
    assert_eq!(node.push().await.names(), ["web"]);
}
