//! What is pushed, and when.

use std::time::Duration;

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::kind::Kind;
use horchestra_proto::node::v1::AppStatus;
use horchestra_testkit::eventually;
use serde_json::json;

use crate::world::{
    A_WHILE, NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, named, names, report,
};

/// An admitted node with one Application, after its first push.
async fn served(world: &World, gateway: &TestGateway, spec: serde_json::Value) -> ScriptedNode {
    world.create_node("n1").await;
    world.create_app("web", "n1", spec).await;
    let mut node = world.connect(gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    node
}

async fn report_until(world: &World, node: &ScriptedNode, status: AppStatus) {
    let name = status.name.clone();
    let phase = status.phase.clone();
    eventually(SOON, async || {
        node.app_status(status.clone()).await.unwrap();
        world.app(&name).await["status"]["phase"] == phase
    })
    .await;
}

#[tokio::test]
async fn the_first_push_is_no_older_than_the_session() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    // The gateway hears of nothing by itself, and what was written last is nothing that nodes are told.
    gateway.backend().set_deaf(true);
    world.create_app("web", "n1", json!({})).await;
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "later"}})).await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
}

#[tokio::test]
async fn a_push_names_the_applications_of_the_node_and_nothing_else() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for node in ["n1", "n2"] {
        world.create_node(node).await;
    }
    world.create_app("mine", "n1", json!({})).await;
    world.create_app("theirs", "n2", json!({})).await;
    world.create_app("nobodys", "", json!({})).await;
    world
        .merge(
            &app_key("mine"),
            json!({"metadata": {"annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "x",
            }}}),
        )
        .await;
    let mut node = world.connect(&gateway, "n1").await;
    let desired =
        node.desired_where(SOON, |desired| named(desired)[0].1.to_string().contains("note")).await.unwrap();
    let apps = named(&desired);
    assert_eq!(apps.len(), 1);
    let (name, app) = &apps[0];
    assert_eq!((name.as_str(), &app["metadata"]["namespace"]), ("mine", &json!(NAMESPACE)));
    assert_eq!(app["metadata"]["annotations"], json!({"note": "x"}));
    assert_eq!(app["metadata"].get("managedFields"), None);
    assert_eq!(app["metadata"]["uid"], world.app("mine").await["metadata"]["uid"]);
    assert!(desired.persistent_volumes.is_empty() && desired.secrets.is_empty() && desired.routes.is_empty());
    assert!(desired.services.is_empty() && desired.workload_tokens.is_empty());
}

#[tokio::test]
async fn what_changes_nothing_for_the_node_is_not_pushed() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    let pushes = gateway.gateway.gate.metrics.pushes.get();
    for phase in ["Running", "Running", "Failed", "Running"] {
        report_until(&world, &node, report("web", phase, 1)).await;
    }
    world.merge(&app_key("web"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    world.merge(&app_key("web"), json!({"metadata": {"annotations": {"a": "b"}}})).await;
    assert_no_push(&mut node).await;
    assert_eq!(gateway.gateway.gate.metrics.pushes.get(), pushes);
}

#[tokio::test]
async fn an_edit_a_deletion_and_a_new_bearer_of_the_name_are_pushed() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    world.merge(&app_key("web"), json!({"spec": {"image": "registry.example/app:2"}})).await;
    let desired = node.desired(SOON).await.unwrap();
    let edited = &named(&desired)[0].1;
    assert_eq!(
        (&edited["spec"]["image"], &edited["metadata"]["generation"]),
        (&json!("registry.example/app:2"), &json!(2))
    );

    assert!(!world.delete(&app_key("web")).await, "the node has to let go of it first");
    let desired = node.desired(SOON).await.unwrap();
    let deleting = named(&desired)[0].1.clone();
    assert!(deleting["metadata"]["deletionTimestamp"].is_string());

    eventually(SOON, async || {
        node.app_status(report("web", "Terminated", 2)).await.unwrap();
        node.send(end_of_pass()).await.unwrap();
        world.app("web").await.is_null()
    })
    .await;
    world.create_app("web", "n1", json!({})).await;
    let again = node
        .desired_where(SOON, |desired| {
            named(desired)
                .first()
                .is_some_and(|(_, app)| app["metadata"]["uid"] != deleting["metadata"]["uid"])
        })
        .await
        .unwrap();
    assert_eq!(named(&again)[0].1["metadata"]["generation"], 1);
}

#[tokio::test]
async fn a_finished_job_is_taken_off_the_node_and_an_edit_brings_it_back() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let job = json!({"lifecycle": {"restartPolicy": "Never", "backoffLimit": 1}});
    let mut node = served(&world, &gateway, job).await;
    let failed =
        AppStatus { attempts: 1, exit_code: 7, finished_at_unix_nano: 1, ..report("web", "Failed", 1) };
    report_until(&world, &node, failed.clone()).await;
    assert_no_push(&mut node).await;
    node.app_status(AppStatus { attempts: 2, ..failed }).await.unwrap();
    let desired = node.desired(SOON).await.unwrap();
    assert!(desired.applications.is_empty(), "the budget of one retry is spent");
    let status = world.app("web").await["status"].clone();
    assert_eq!((&status["attempts"], &status["exitCode"]), (&json!(2), &json!(7)));

    world.merge(&app_key("web"), json!({"spec": {"args": ["again"]}})).await;
    let desired = node.desired(SOON).await.unwrap();
    let again = &named(&desired)[0].1;
    assert_eq!(again["metadata"]["generation"], 2);
    assert_eq!(again["status"]["attempts"], 0, "a new budget");
}

#[tokio::test]
async fn a_finished_job_that_is_deleted_is_sent_once_more() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({"lifecycle": {"restartPolicy": "Never"}})).await;
    node.app_status(AppStatus { attempts: 1, ..report("web", "Succeeded", 1) }).await.unwrap();
    assert!(node.desired(SOON).await.unwrap().applications.is_empty());
    world.delete(&app_key("web")).await;
    let desired = node.desired(SOON).await.unwrap();
    assert!(named(&desired)[0].1["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn the_state_is_sent_again_after_a_time_without_change() {
    let world = World::new().await;
    let gateway =
        world.gateway_with(|settings| settings.resend_every = Some(Duration::from_millis(700))).await;
    let mut node = served(&world, &gateway, json!({})).await;
    for _ in 0..2 {
        assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    }
}

#[tokio::test]
async fn a_state_that_agents_could_not_receive_is_held_back_until_it_fits() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.push_limit = 8 << 10).await;
    let mut node = served(&world, &gateway, json!({})).await;
    world.create_app("fat", "n1", json!({"args": ["x".repeat(9 << 10)]})).await;
    assert_no_push(&mut node).await;
    assert_eq!(gateway.gateway.gate.metrics.pushes_withheld.get(), 1);
    let beats = gateway.gateway.gate.metrics.heartbeats.get();
    node.heartbeat().await.unwrap();
    eventually(SOON, async || gateway.gateway.gate.metrics.heartbeats.get() > beats).await;
    world.merge(&app_key("fat"), json!({"spec": {"args": ["x"]}})).await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["fat", "web"]);
}

#[tokio::test]
async fn a_burst_of_edits_becomes_a_few_pushes_and_the_last_is_the_truth() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    let before = gateway.gateway.gate.metrics.pushes.get();
    let start = std::time::Instant::now();
    const EDITS: usize = 300;
    for number in 1..=EDITS {
        world.merge(&app_key("web"), json!({"spec": {"args": [format!("{number}")]}})).await;
    }
    let took = start.elapsed();
    node.desired_where(SOON, |desired| named(desired)[0].1["spec"]["args"] == json!([EDITS.to_string()]))
        .await
        .unwrap();
    assert_no_push(&mut node).await;
    let pushes = u128::from(gateway.gateway.gate.metrics.pushes.get() - before);
    assert!(pushes <= took.as_millis() / 200 + 2, "{pushes} pushes in {took:?}");
}

#[tokio::test]
async fn a_change_made_while_the_gateway_was_deaf_or_cut_off_is_delivered() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    gateway.backend().set_deaf(true);
    world.merge(&app_key("web"), json!({"spec": {"args": ["deaf"]}})).await;
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(named(&desired)[0].1["spec"]["args"], json!(["deaf"]));
    gateway.backend().set_deaf(false);

    gateway.backend().set_cut_off(true);
    world.merge(&app_key("web"), json!({"spec": {"args": ["cut off"]}})).await;
    assert_no_push(&mut node).await;
    gateway.backend().set_cut_off(false);
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(named(&desired)[0].1["spec"]["args"], json!(["cut off"]));
    assert!(node.is_open());
}

#[tokio::test]
async fn a_node_that_does_not_read_gets_the_newest_state_when_it_does() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    let mut node = world.join(&gateway, "n1").await;
    for number in 0..5 {
        world.create_app(&format!("app-{number}"), "n1", json!({})).await;
    }
    let all = node.desired_where(SOON, |desired| desired.applications.len() == 5).await.unwrap();
    assert_eq!(names(&all).len(), 5);
    tokio::time::sleep(A_WHILE).await;
    assert!(node.arrived().is_empty(), "nothing older comes after it");
}
