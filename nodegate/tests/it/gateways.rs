//! Several gateways, and gateways in trouble.

use std::time::Duration;

use horchestra_nodegate::settings::Settings;
use horchestra_testkit::eventually;
use serde_json::json;
use tonic::Code;

use crate::world::{A_WHILE, SOON, World, app_key, assert_no_push, named, names, report};

#[tokio::test]
async fn a_gateway_that_dies_costs_its_nodes_one_term() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.connect(&one, "n1").await;
    node.desired(SOON).await.unwrap();
    one.crash().await;
    node.ended(SOON).await.unwrap();
    // Refused as long as the dead gateway's term lasts, then let in: the row is still there.
    let mut node = eventually(SOON, async || {
        let mut node = world.connect(&two, "n1").await;
        node.desired(A_WHILE).await.ok().map(|desired| (names(&desired), node))
    })
    .await;
    assert_eq!(node.0, ["web"]);
    node.1.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
    assert!(node.1.arrived().is_empty());
}

#[tokio::test]
async fn a_gateway_that_comes_back_under_its_name_has_its_nodes_back_at_once() {
    let world = World::on_postgres().await;
    let named = |settings: &mut Settings| {
        settings.name = Some("gate-1".to_owned());
        // Nobody waits for this to run out.
        settings.term = Duration::from_secs(600);
    };
    let first = world.gateway_with(named).await;
    let mut node = world.join(&first, "n1").await;
    // The same name for another one that runs is a mistake, of which neither suffers.
    let double = world.gateway_with(named).await;
    let other = world.join(&double, "n2").await;
    assert!(node.is_open() && first.has_session("n1"));
    let mut refused = world.connect(&double, "n1").await;
    assert_eq!(refused.ended(SOON).await.unwrap().unwrap().code(), Code::AlreadyExists);

    first.crash().await;
    node.ended(SOON).await.unwrap();
    let second = world.gateway_with(named).await;
    let node = eventually(SOON, async || {
        let mut node = world.connect(&second, "n1").await;
        node.ended(A_WHILE).await.is_err().then_some(node)
    })
    .await;
    assert!(node.is_open() && second.has_session("n1"));
    assert!(other.is_open() && double.has_session("n2"), "the other one goes on");
}

#[tokio::test]
async fn a_gateway_that_leaves_sends_its_nodes_away_and_they_are_let_in_elsewhere_at_once() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    let mut nodes = Vec::new();
    for number in 0..5 {
        nodes.push(world.join(&one, &format!("n{number}")).await);
    }
    let mut latecomer = world.join(&one, "n9").await;
    let leaving = one.gateway.shutdown();
    let arriving = async {
        for node in &mut nodes {
            let status = node.ended(SOON).await.unwrap().unwrap();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
        latecomer.ended(SOON).await.unwrap();
    };
    tokio::join!(leaving, arriving);
    for number in 0..5 {
        let node = world.join(&two, &format!("n{number}")).await;
        assert!(node.is_open(), "on the first try");
    }
    let rows = world.operator.store().sessions().await.unwrap();
    assert!(rows.iter().all(|row| row.gateway == two.gateway.gate.id), "{rows:?}");
}

#[tokio::test]
async fn a_short_outage_of_the_database_costs_no_stream_and_no_report() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();

    gateway.backend().set_cut_off(true);
    eventually(SOON, async || gateway.gateway.gate.readiness().is_err()).await;
    world.merge(&app_key("web"), json!({"spec": {"args": ["meanwhile"]}})).await;
    for phase in ["Failed", "Running"] {
        node.app_status(report("web", phase, 1)).await.unwrap();
    }
    let mut newcomer = world.connect(&gateway, "n2").await;
    let refused = newcomer.ended(SOON).await.unwrap().unwrap();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_no_push(&mut node).await;
    assert!(node.is_open());

    gateway.backend().set_cut_off(false);
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(named(&desired)[0].1["spec"]["args"], json!(["meanwhile"]));
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
    eventually(SOON, async || gateway.gateway.gate.readiness()).await;
    assert!(node.is_open());
    let newcomer = world.join(&gateway, "n2").await;
    assert!(newcomer.is_open());
}

#[tokio::test]
async fn a_gateway_that_stays_cut_off_sends_its_nodes_away() {
    let world = World::new().await;
    let cut_off_soon = |settings: &mut Settings| {
        settings.give_up_after = Duration::from_secs(1);
        settings.give_up_over = Duration::from_millis(200);
    };
    let (one, two) = (world.gateway_with(cut_off_soon).await, world.gateway().await);
    let mut node = world.join(&one, "n1").await;
    one.backend().set_cut_off(true);
    let status = node.ended(SOON).await.unwrap().unwrap();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let node = eventually(SOON, async || {
        let mut node = world.connect(&two, "n1").await;
        node.ended(A_WHILE).await.is_err().then_some(node)
    })
    .await;
    // What the first gateway still wants to give up is no longer its own.
    one.backend().set_cut_off(false);
    eventually(SOON, async || one.gateway.gate.readiness()).await;
    tokio::time::sleep(A_WHILE).await;
    let row = world.operator.store().session_of("n1").await.unwrap().unwrap();
    assert_eq!(row.gateway, two.gateway.gate.id);
    assert!(node.is_open());
}

#[tokio::test]
async fn a_gateway_that_stood_still_writes_nothing_for_a_node_that_was_taken_over() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut old = world.connect(&one, "n1").await;
    old.desired(SOON).await.unwrap();
    old.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;

    // Stopped in the middle of a write, for longer than its term.
    one.backend().set_stalled(true);
    old.app_status(report("web", "Failed", 1)).await.unwrap();
    old.heartbeat().await.unwrap();
    let mut new = eventually(SOON, async || {
        let mut node = world.connect(&two, "n1").await;
        node.desired(A_WHILE).await.is_ok().then_some(node)
    })
    .await;
    new.app_status(report("web", "Pending", 1)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Pending").await;
    let before = world.app("web").await;

    one.backend().set_stalled(false);
    old.app_status(report("web", "Failed", 1)).await.ok();
    let end = old.ended(SOON).await.unwrap().unwrap();
    assert_eq!(end.code(), Code::Aborted, "{end}");
    eventually(SOON, async || !one.has_session("n1")).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.app("web").await["status"]["phase"], before["status"]["phase"]);
    let row = world.operator.store().session_of("n1").await.unwrap().unwrap();
    assert_eq!(row.gateway, two.gateway.gate.id);
    assert!(new.is_open());
    assert!(new.arrived().is_empty());
}

#[tokio::test]
async fn a_claim_that_ends_after_the_sessions_were_sent_away_opens_none() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    gateway.backend().set_stalled(true);
    let shutting_down = async {
        // So that the claim is under way.
        tokio::time::sleep(A_WHILE).await;
        gateway.gateway.gate.drain().await;
        gateway.backend().set_stalled(false);
    };
    let (mut node, ()) = tokio::join!(world.connect(&gateway, "n1"), shutting_down);
    let end = node.ended(SOON).await.unwrap().unwrap();
    assert_eq!(end.code(), Code::Unavailable, "{end}");
    eventually(SOON, async || !gateway.has_session("n1")).await;
    eventually(SOON, async || world.operator.store().session_of("n1").await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_hundred_nodes_report_through_one_gateway() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut nodes = Vec::new();
    for number in 0..100 {
        nodes.push(world.connect(&gateway, &format!("n{number}")).await);
    }
    for node in &nodes {
        node.heartbeat().await.unwrap();
    }
    eventually(SOON, async || world.operator.store().heartbeats().await.unwrap().len() == 100).await;
    eventually(SOON, async || {
        world.operator.store().fresh().await.unwrap().count(horchestra_core::kind::Kind::Node, None) == 100
    })
    .await;
    assert!(nodes.iter().all(|node| node.is_open()));
}
