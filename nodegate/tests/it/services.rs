//! What all nodes are told of the addresses of Services.

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::kind::{Key, Kind};
use horchestra_proto::node::v1::DesiredState;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::world::{
    NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, names, report, report_ip,
    running_at,
};

fn rules(desired: &DesiredState) -> Vec<String> {
    desired
        .services
        .iter()
        .map(|rule| {
            let backends: Vec<String> =
                rule.backends.iter().map(|backend| format!("{}:{}", backend.address, backend.port)).collect();
            format!("{}:{}/{} -> {}", rule.cluster_ip, rule.port, rule.protocol, backends.join(" "))
        })
        .collect()
}

fn service_key(name: &str) -> Key {
    Key::namespaced(Kind::Service, NAMESPACE, name)
}

async fn create_service(world: &World, name: &str, address: &str, ports: Value) {
    let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": ports}});
    world.create(Kind::Service, NAMESPACE, service).await;
}

/// Two nodes at 10.0.0.1 and 10.0.0.2 and a Service with a member on each: one with a network of its own, one with
/// that of its node.
async fn fleet(world: &World, gateway: &TestGateway) -> [ScriptedNode; 2] {
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    create_service(world, "web", "10.96.0.10", json!([{"port": 80, "targetName": "http"}])).await;
    for node in ["n1", "n2"] {
        world.create_node(node).await;
    }
    let port = |number: i64| json!([{"name": "http", "port": number}]);
    world
        .create_app("own", "n1", json!({"serviceName": "web", "hostNetwork": false, "ports": port(8080)}))
        .await;
    world.create_app("host", "n2", json!({"serviceName": "web", "ports": port(9000)})).await;
    let nodes = [world.join(gateway, "n1").await, world.join(gateway, "n2").await];
    for (node, ip) in nodes.iter().zip(["10.0.0.1", "10.0.0.2"]) {
        report_ip(node, ip).await;
    }
    nodes
}

async fn until(node: &mut ScriptedNode, expected: &[&str]) {
    node.desired_where(SOON, |desired| rules(desired) == expected).await.unwrap();
}

#[tokio::test]
async fn a_service_leads_to_its_members() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, mut two] = fleet(&world, &gateway).await;
    until(&mut two, &["10.96.0.10:80/TCP -> 10.0.0.2:9000"]).await;
    one.desired_where(SOON, |desired| names(desired) == ["own"]).await.unwrap();
    one.app_status(running_at("own", "10.244.0.1/32")).await.unwrap();
    for node in [&mut one, &mut two] {
        until(node, &["10.96.0.10:80/TCP -> 10.0.0.2:9000 10.244.0.1:8080"]).await;
    }
    // A member that is to end serves nobody any more.
    world.delete(&app_key("host")).await;
    until(&mut one, &["10.96.0.10:80/TCP -> 10.244.0.1:8080"]).await;
}

#[tokio::test]
async fn rules_follow_services_and_nodes() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, two] = fleet(&world, &gateway).await;
    until(&mut one, &["10.96.0.10:80/TCP -> 10.0.0.2:9000"]).await;
    let ports = json!({"spec": {"ports": [{"port": 81, "targetPort": 5000, "protocol": "UDP"}]}});
    world.merge(&service_key("web"), ports).await;
    until(&mut one, &["10.96.0.10:81/UDP -> 10.0.0.2:5000"]).await;
    report_ip(&two, "10.0.0.7").await;
    until(&mut one, &["10.96.0.10:81/UDP -> 10.0.0.7:5000"]).await;
    world.merge(&service_key("web"), json!({"spec": {"clusterIP": "10.96.0.11"}})).await;
    until(&mut one, &["10.96.0.11:81/UDP -> 10.0.0.7:5000"]).await;
    create_service(&world, "lonely", "10.96.0.12", json!([{"port": 80}])).await;
    world.merge(&service_key("web"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_no_push(&mut one).await;
    world.merge(&service_key("web"), json!({"spec": {"clusterIP": ""}})).await;
    until(&mut one, &[]).await;
}

#[tokio::test]
async fn a_service_that_no_helper_would_take_is_left_out_and_told_of() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, _two] = fleet(&world, &gateway).await;
    until(&mut one, &["10.96.0.10:80/TCP -> 10.0.0.2:9000"]).await;
    for (name, address) in
        [("v6", "fd00::1"), ("mapped", "::ffff:10.96.0.99"), ("local", "127.64.0.1"), ("link", "169.254.9.9")]
    {
        create_service(&world, name, address, json!([{"port": 80}])).await;
        world.create_app(name, "n2", json!({"serviceName": name, "ports": []})).await;
        eventually(SOON, async || {
            let told = world.told("ServiceLeftOut", name).await;
            told.len() == 1 && told[0].starts_with(&format!("{address} is no address that nodes route to"))
        })
        .await;
    }
    create_service(&world, "good", "10.96.0.20", json!([{"port": 443}])).await;
    world.create_app("good", "n2", json!({"serviceName": "good"})).await;
    until(&mut one, &["10.96.0.10:80/TCP -> 10.0.0.2:9000", "10.96.0.20:443/TCP -> 10.0.0.2:443"]).await;
}

#[tokio::test]
async fn a_job_that_is_done_is_behind_no_service() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let [mut one, mut two] = fleet(&world, &gateway).await;
    let job = json!({"serviceName": "web", "lifecycle": {"restartPolicy": "Never"}, "ports": [{"name": "http", "port": 7000}]});
    world.create_app("job", "n2", job).await;
    until(&mut one, &["10.96.0.10:80/TCP -> 10.0.0.2:7000 10.0.0.2:9000"]).await;
    two.desired_where(SOON, |desired| names(desired).contains(&"job".to_owned())).await.unwrap();
    two.app_status(report("job", "Succeeded", 1)).await.unwrap();
    two.send(end_of_pass()).await.unwrap();
    until(&mut one, &["10.96.0.10:80/TCP -> 10.0.0.2:9000"]).await;
}
