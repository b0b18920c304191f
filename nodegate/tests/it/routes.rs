//! What all nodes are told of workloads elsewhere.

use std::time::Duration;

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::kind::Kind;
use horchestra_proto::node::v1::DesiredState;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::world::{
    SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, names, node_key, report, report_ip,
    running_at,
};

fn isolated() -> Value {
    json!({"hostNetwork": false})
}

fn routes(desired: &DesiredState) -> Vec<String> {
    desired.routes.iter().map(|route| format!("{} via {}", route.cidr, route.node_ip)).collect()
}

/// Two nodes at 10.0.0.1 and 10.0.0.2, on the gateway, and a workload on the second that is told its address.
async fn fleet(world: &World, gateway: &TestGateway) -> [ScriptedNode; 2] {
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    for node in ["n1", "n2"] {
        world.create_node(node).await;
    }
    world.create_app("web", "n2", isolated()).await;
    let mut nodes = [world.join(gateway, "n1").await, world.join(gateway, "n2").await];
    for (node, ip) in nodes.iter_mut().zip(["10.0.0.1", "10.0.0.2"]) {
        report_ip(node, ip).await;
        node.desired(SOON).await.unwrap();
    }
    for (node, ip) in ["n1", "n2"].into_iter().zip(["10.0.0.1", "10.0.0.2"]) {
        eventually(SOON, async || world.node(node).await["status"]["ip"] == ip).await;
    }
    nodes
}

async fn until(node: &mut ScriptedNode, expected: &[&str]) -> DesiredState {
    node.desired_where(SOON, |desired| routes(desired) == expected).await.unwrap()
}

#[tokio::test]
async fn a_reported_address_is_a_route_on_every_node() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, mut two] = fleet(&world, &gateway).await;
    two.app_status(running_at("web", "10.244.0.1/32")).await.unwrap();
    let desired = until(&mut one, &["10.244.0.1/32 via 10.0.0.2"]).await;
    assert_eq!(names(&desired), Vec::<String>::new(), "and no Application of another node");
    let own = until(&mut two, &["10.244.0.1/32 via 10.0.0.2"]).await;
    assert_eq!(names(&own), ["web"]);
    // A node that comes later is told at once, one on another gateway as well.
    let other = world.gateway().await;
    world.create_node("n3").await;
    let mut third = world.join(&other, "n3").await;
    until(&mut third, &["10.244.0.1/32 via 10.0.0.2"]).await;
    // It is the address of a workload that runs.
    two.app_status(report("web", "Failed", 1)).await.unwrap();
    two.send(end_of_pass()).await.unwrap();
    until(&mut one, &[]).await;
    until(&mut third, &[]).await;
}

#[tokio::test]
async fn a_report_that_changes_no_address_is_nothing_to_other_nodes() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, mut two] = fleet(&world, &gateway).await;
    two.app_status(running_at("web", "10.244.0.1/32")).await.unwrap();
    for node in [&mut one, &mut two] {
        until(node, &["10.244.0.1/32 via 10.0.0.2"]).await;
    }
    let published = gateway.gateway.gate.metrics.fleet_published.get();
    for message in ["a", "b", "c"] {
        let mut status = running_at("web", "10.244.0.1/32");
        status.message = message.to_owned();
        two.app_status(status).await.unwrap();
        eventually(SOON, async || world.app("web").await["status"]["message"] == message).await;
    }
    world.create_app("host", "n2", json!({})).await;
    two.desired_where(SOON, |desired| names(desired) == ["host", "web"]).await.unwrap();
    assert_no_push(&mut one).await;
    assert_eq!(gateway.gateway.gate.metrics.fleet_published.get(), published);
}

#[tokio::test]
async fn routes_follow_a_node_that_moves() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, two] = fleet(&world, &gateway).await;
    two.app_status(running_at("web", "10.244.0.1/32")).await.unwrap();
    until(&mut one, &["10.244.0.1/32 via 10.0.0.2"]).await;
    report_ip(&two, "10.0.0.7").await;
    until(&mut one, &["10.244.0.1/32 via 10.0.0.7"]).await;
    // Nobody routes over IPv6; whoever looks at the node is told.
    report_ip(&two, "fd00::2").await;
    until(&mut one, &[]).await;
    eventually(SOON, async || {
        world.told("AddressClash", "n2").await
            == ["fd00::2 is no IPv4 address, so nobody routes to workloads there"]
    })
    .await;
    report_ip(&two, "10.0.0.2").await;
    until(&mut one, &["10.244.0.1/32 via 10.0.0.2"]).await;
    world.delete(&node_key("n2")).await;
    until(&mut one, &[]).await;
}

#[tokio::test]
async fn many_changes_cost_few_publications_and_the_last_one_counts() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.fleet_gap = Duration::from_millis(400)).await;
    let [mut one, mut two] = fleet(&world, &gateway).await;
    let count = 30;
    for n in 0..count {
        world.create_app(&format!("app{n}"), "n2", isolated()).await;
    }
    let all = two.desired_where(SOON, |desired| desired.workload_networks.len() == count + 1).await.unwrap();
    let before = gateway.gateway.gate.metrics.fleet_published.get();
    for (name, address) in crate::world::networks(&all) {
        two.app_status(running_at(&name, &address)).await.unwrap();
    }
    let pushes = std::cell::Cell::new(0);
    one.desired_where(SOON, |desired| {
        pushes.set(pushes.get() + 1);
        desired.routes.len() == count + 1
    })
    .await
    .unwrap();
    let published = gateway.gateway.gate.metrics.fleet_published.get() - before;
    assert!(
        published >= pushes.get() && published < count as u64 / 2,
        "{published} publications, {} pushes",
        pushes.get()
    );
}

#[tokio::test]
async fn what_concerns_one_node_does_not_wait_for_what_concerns_all() {
    let world = World::new().await;
    // A budget that is used up by the first publication for a long time.
    let gateway = world.gateway_with(|settings| settings.fleet_egress = 1).await;
    let [mut one, two] = fleet(&world, &gateway).await;
    two.app_status(running_at("web", "10.244.0.1/32")).await.unwrap();
    eventually(SOON, async || gateway.gateway.gate.index.published().routes == 1).await;
    world.create_app("mine", "n1", json!({})).await;
    let desired = one.desired_where(SOON, |desired| names(desired) == ["mine"]).await.unwrap();
    assert_eq!(routes(&desired), ["10.244.0.1/32 via 10.0.0.2"], "and takes it along");
    world.delete(&app_key("mine")).await;
    one.desired_where(SOON, |desired| {
        desired.applications.iter().any(|app| app.windows(17).any(|text| text == b"deletionTimestamp"))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_nodes_own_comes_before_what_all_are_sent() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [_, mut two] = fleet(&world, &gateway).await;
    for n in 0..30 {
        world.create_app(&format!("app{n}"), "n2", isolated()).await;
    }
    let all = two.desired_where(SOON, |desired| desired.workload_networks.len() == 31).await.unwrap();
    for (name, address) in crate::world::networks(&all) {
        two.app_status(running_at(&name, &address)).await.unwrap();
    }
    two.desired_where(SOON, |desired| desired.routes.len() == 31).await.unwrap();
    world.create_node("n3").await;
    world.create_app("mine", "n3", json!({"args": ["x".repeat(4000)]})).await;
    let tight = world.gateway_with(|settings| settings.push_limit = 5500).await;
    let mut third = world.connect(&tight, "n3").await;
    let desired = third.desired(SOON).await.unwrap();
    assert_eq!((names(&desired), desired.routes.len()), (vec!["mine".to_owned()], 0));
    eventually(SOON, async || {
        world.told("PushWithheld", "n3").await.iter().any(|message| message.contains("not all sent"))
    })
    .await;
    // As soon as there is room, they are there.
    world.merge(&app_key("mine"), json!({"spec": {"args": []}})).await;
    third.desired_where(SOON, |desired| desired.routes.len() == 31).await.unwrap();
}
