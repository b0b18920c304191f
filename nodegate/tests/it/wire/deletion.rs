//! Deletion in two steps: an operator asks, the node lets go.

use horchestra_service::DeleteOptions;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use super::client::{Node, report};
use super::stage::Stage;
use crate::world::{A_WHILE, NAMESPACE, SOON, app_key};

/// A node that was told to end `web` and runs `other`.
async fn ending(stage: &Stage) -> Node {
    let mut node = stage.serving("n1", &[("web", json!({})), ("other", json!({}))]).await;
    node.pass(["web", "other"].map(|name| report(NAMESPACE, name, "Running", 1))).await;
    stage.until_phase("web", "Running").await;
    assert!(!stage.delete_app("web").await);
    assert!(node.push().await.is_deleting("web"));
    node
}

async fn says(node: &Node, web: &str) {
    node.pass([report(NAMESPACE, "web", web, 1), report(NAMESPACE, "other", "Running", 1)]).await;
}

#[tokio::test]
async fn an_object_is_erased_when_its_node_says_that_nothing_is_left() {
    let stage = Stage::new().await;
    let mut node = ending(&stage).await;
    assert_eq!(
        stage.world.app("web").await["metadata"]["finalizers"],
        json!(["horchestra.io/node-teardown"])
    );
    says(&node, "Terminating").await;
    stage.until_phase("web", "Terminating").await;
    let before = stage.world.revision().await;
    says(&node, "Terminated").await;
    stage.until_app("web", Value::is_null).await;
    assert_eq!(stage.world.revision().await, before + 1, "in one step, so that no crash comes between");
    assert_eq!(node.push().await.names(), ["other"]);
    // An agent repeats it until it is told otherwise.
    says(&node, "Terminated").await;
    stage.heard(&node).await;
    assert!(stage.world.app("web").await.is_null());
}

#[tokio::test]
async fn the_time_to_end_in_is_that_of_the_deletion() {
    let stage = Stage::new().await;
    let own = json!({"lifecycle": {"terminationGracePeriodSeconds": 60}});
    let mut node = stage.serving("n1", &[("own", own.clone()), ("said", own)]).await;
    let grace = |push: &super::push::Push, name: &str| {
        push.app(name).unwrap()["spec"]["lifecycle"]["terminationGracePeriodSeconds"].clone()
    };
    stage.delete_app("own").await;
    assert_eq!(grace(&node.push_where(|push| push.is_deleting("own")).await, "own"), 60);
    let options = DeleteOptions { grace_period_seconds: Some(5), ..DeleteOptions::default() };
    stage.world.operator.delete(&stage.world.who(), &app_key("said"), &options).await.unwrap();
    let push = node.push_where(|push| push.is_deleting("said")).await;
    assert_eq!((grace(&push, "said"), grace(&push, "own")), (json!(5), json!(60)));
}

#[tokio::test]
async fn what_others_hold_stays_until_they_let_go() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    for name in ["web", "other"] {
        stage.world.create_app(name, "n1", json!({})).await;
    }
    stage.world.merge(&app_key("web"), json!({"metadata": {"finalizers": ["example.com/mine"]}})).await;
    let mut node = stage.dial("n1").await;
    stage.delete_app("web").await;
    node.push_where(|push| push.is_deleting("web")).await;
    says(&node, "Terminated").await;
    let held = json!(["example.com/mine"]);
    let app = stage.until_app("web", |app| app["metadata"]["finalizers"] == held).await;
    assert_eq!(app["status"]["phase"], "Terminated");
    stage.world.merge(&app_key("web"), json!({"metadata": {"finalizers": null}})).await;
    assert!(stage.world.app("web").await.is_null());
}

#[tokio::test]
async fn the_hold_comes_with_a_node_and_goes_without_one() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    let finalizers = async || stage.world.app("web").await["metadata"]["finalizers"].clone();
    stage.world.create_app("web", "", json!({})).await;
    assert_eq!(finalizers().await, Value::Null);
    stage.edit("web", json!({"placement": {"nodeName": "n1"}})).await;
    assert_eq!(finalizers().await, json!(["horchestra.io/node-teardown"]));
    stage.edit("web", json!({"placement": null})).await;
    assert_eq!(finalizers().await, Value::Null);
    assert!(stage.delete_app("web").await, "nobody has to be asked");
}

#[tokio::test]
async fn a_node_that_sees_nothing_at_all_has_to_say_so_twice() {
    let stage = Stage::new().await;
    let mut node = ending(&stage).await;
    let blind = || [report(NAMESPACE, "web", "Terminated", 1), report(NAMESPACE, "other", "Failed", 1)];
    node.pass(blind()).await;
    // It is asked to look again, by the same state.
    assert_eq!(node.push().await.names(), ["other", "web"]);
    assert!(!stage.world.app("web").await.is_null());
    // It sees again: the workload was there all the time.
    says(&node, "Terminating").await;
    stage.until_phase("web", "Terminating").await;
    node.pass(blind()).await;
    node.push().await;
    assert!(!stage.world.app("web").await.is_null());
    node.pass(blind()).await;
    stage.until_app("web", Value::is_null).await;
}

#[tokio::test]
async fn a_release_that_is_lost_on_its_way_is_made_by_the_next_report() {
    let stage = Stage::new().await;
    let node = ending(&stage).await;
    stage.gateway.backend().set_cut_off(true);
    says(&node, "Terminated").await;
    tokio::time::sleep(A_WHILE).await;
    assert!(!stage.world.app("web").await.is_null());
    stage.gateway.backend().set_cut_off(false);
    eventually(SOON, async || {
        says(&node, "Terminated").await;
        stage.world.app("web").await.is_null()
    })
    .await;
}
