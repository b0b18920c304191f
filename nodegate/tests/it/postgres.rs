//! The whole path once more, on PostgreSQL.

use horchestra_testkit::eventually;
use serde_json::json;
use tonic::Code;

use crate::world::{A_WHILE, SOON, World, app_key, end_of_pass, named, names, report};

#[tokio::test]
async fn from_registration_to_a_confirmed_deletion() {
    let world = World::on_postgres().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    let mut node = world.join(&one, "n1").await;
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    eventually(SOON, async || world.operator.store().heartbeats().await.unwrap().len() == 1).await;
    for name in ["web", "other"] {
        world.create_app(name, "n1", json!({})).await;
    }
    assert!(node.desired(A_WHILE).await.is_err(), "not admitted yet");
    world.uncordon("n1").await;
    node.desired_where(SOON, |desired| names(desired) == ["other", "web"]).await.unwrap();

    let mut second = world.connect(&two, "n1").await;
    let refused = second.ended(SOON).await.unwrap().unwrap();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");

    for name in ["web", "other"] {
        node.app_status(report(name, "Running", 1)).await.unwrap();
        eventually(SOON, async || world.app(name).await["status"]["phase"] == "Running").await;
    }
    world.delete(&app_key("web")).await;
    node.desired_where(SOON, |desired| {
        named(desired).iter().any(|(_, app)| app["metadata"]["deletionTimestamp"].is_string())
    })
    .await
    .unwrap();
    let before = world.revision().await;
    for status in [report("web", "Terminated", 1), report("other", "Running", 1)] {
        node.app_status(status).await.unwrap();
    }
    node.send(end_of_pass()).await.unwrap();
    eventually(SOON, async || world.app("web").await.is_null()).await;
    assert_eq!(world.revision().await, before + 1);

    // The gateway leaves; the other one takes the node at once.
    let leaving = one.gateway.shutdown();
    let (ended, ()) = tokio::join!(node.ended(SOON), leaving);
    assert_eq!(ended.unwrap().unwrap().code(), Code::Unavailable);
    let mut node = world.join(&two, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["other"]);
}

#[tokio::test]
async fn a_gateway_that_dies_leaves_its_node_to_another_and_can_no_longer_speak_for_it() {
    let world = World::on_postgres().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.connect(&one, "n1").await;
    node.desired(SOON).await.unwrap();
    let grant = one.gateway.gate.sessions.get("n1").unwrap().grant.clone();
    let gateway = one.gateway.gate.id;
    one.crash().await;
    let node = eventually(SOON, async || {
        let mut node = world.connect(&two, "n1").await;
        node.desired(A_WHILE).await.is_ok().then_some(node)
    })
    .await;
    let caller = horchestra_service::Caller::Node { name: "n1".to_owned(), grant, gateway };
    let context = horchestra_service::RequestContext::new(caller);
    let app = world.operator.get(&app_key("web"), horchestra_service::At::Fresh).await.unwrap();
    let late = horchestra_service::ApplicationReport { phase: "Failed".to_owned(), ..Default::default() };
    let refused = world.operator.report_application(&context, &app_key("web"), app.uid, late).await;
    assert!(matches!(refused, Err(horchestra_service::DoorError::Fenced)), "{refused:?}");
    node.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
}
