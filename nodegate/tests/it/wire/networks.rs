//! Addresses of workloads, routes to them, and what leads to Services.

use std::collections::BTreeSet;
use std::time::Duration;

use horchestra_core::Object;
use horchestra_core::kind::{Key, Kind};
use horchestra_proto::node::v1::AppStatus;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use super::client::{Node, heartbeat, report};
use super::push::Push;
use super::stage::Stage;
use crate::world::{NAMESPACE, SOON, app_key};

fn isolated() -> Value {
    json!({"hostNetwork": false})
}

fn at(name: &str, address: &str) -> AppStatus {
    AppStatus { address: address.to_owned(), ..report(NAMESPACE, name, "Running", 1) }
}

async fn says_ip(stage: &Stage, node: &Node, ip: &str) {
    let mut said = heartbeat(&node.name);
    said["status"]["ip"] = json!(ip);
    node.say_of_itself(said.to_string()).await;
    stage.until_node(&node.name, |node| node["status"]["ip"] == ip).await;
}

/// Nodes at 10.0.0.1 and so on; nothing runs there.
async fn fleet(stage: &Stage, nodes: &[&str]) -> Vec<Node> {
    let mut fleet = Vec::new();
    for (number, name) in nodes.iter().enumerate() {
        let node = stage.serving(name, &[]).await;
        says_ip(stage, &node, &format!("10.0.0.{}", number + 1)).await;
        fleet.push(node);
    }
    fleet
}

async fn service(stage: &Stage, name: &str, address: &str, ports: Value) {
    let mut spec = json!({"ports": ports});
    if !address.is_empty() {
        spec["clusterIP"] = json!(address);
    }
    stage.world.create(Kind::Service, NAMESPACE, json!({"metadata": {"name": name}, "spec": spec})).await;
}

fn service_key(name: &str) -> Key {
    Key::namespaced(Kind::Service, NAMESPACE, name)
}

#[tokio::test]
async fn an_isolated_workload_has_an_address_from_its_first_push_on_and_no_other_has_one() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    for (name, spec) in [("a", isolated()), ("host", json!({"hostNetwork": true})), ("unsaid", json!({}))] {
        stage.world.create_app(name, "n1", spec).await;
    }
    let mut node = stage.dial("n1").await;
    let push = node.push().await;
    let addresses = ["a", "host", "unsaid"].map(|name| push.address(name));
    assert_eq!(addresses, [Some("10.244.0.1/32"), None, None]);
    stage.world.create_app("b", "n1", isolated()).await;
    assert_eq!(node.push().await.address("b"), Some("10.244.0.2/32"));

    let without = stage.world.gateway_with(|settings| settings.routed_range = None).await;
    stage.world.create_node("n2").await;
    stage.world.create_app("c", "n2", isolated()).await;
    let mut node = stage.dial_to(&without, "n2").await;
    assert_eq!(node.push().await.address("c"), None);
}

#[tokio::test]
async fn an_address_stays_whatever_becomes_of_the_workload_and_its_gateway() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    for name in ["a", "b"] {
        stage.world.create_app(name, "n1", isolated()).await;
    }
    let mut node = stage.dial("n1").await;
    let push = node.push().await;
    let given = |push: &Push| ["a", "b"].map(|name| push.address(name).unwrap().to_owned());
    let [a, b] = given(&push);
    node.pass([at("a", &a), at("b", &b)]).await;
    stage.until_app("b", |app| app["status"]["address"] == b.as_str()).await;
    // It ends, so that nobody reports the address any more, and its gateway does.
    let failed = AppStatus { exit_code: 1, ..report(NAMESPACE, "b", "Failed", 1) };
    node.pass([at("a", &a), failed]).await;
    stage.until_app("b", |app| app["status"].get("address").is_none()).await;
    stage.gateway.gateway.shutdown().await;
    node.end().await;
    let other = stage.world.gateway().await;
    let push = stage.dial_again(&other, "n1").await.push().await;
    assert_eq!(given(&push), [a, b]);
}

#[tokio::test]
async fn only_the_address_that_was_given_is_believed() {
    let stage = Stage::new().await;
    let mut nodes = fleet(&stage, &["n1", "n2"]).await;
    for name in ["a", "b"] {
        stage.world.create_app(name, "n1", isolated()).await;
        nodes[0].push_where(|push| push.has(name)).await;
    }
    // Spelled otherwise, another one's, nobody's, and none at all.
    for (said, stored) in [
        ("10.244.0.1/32", Some("10.244.0.1/32")),
        ("10.244.0.2/32", None),
        ("10.244.0.1", Some("10.244.0.1/32")),
        ("192.0.2.1/32", None),
        ("10.244.0.1/32/32", None),
        ("10.244.0.1/32", Some("10.244.0.1/32")),
        ("10.244.0.0/24", None),
        ("garbage", None),
        ("", None),
    ] {
        nodes[0].pass([AppStatus { message: format!("says {said}"), ..at("a", said) }]).await;
        let app = stage.until_app("a", |app| app["status"]["message"] == format!("says {said}")).await;
        assert_eq!(app["status"].get("address").and_then(Value::as_str), stored, "{said:?}");
    }
    let told = stage.world.told("ReportRefused", "n1").await;
    assert!(told.iter().any(|message| message.contains("192.0.2.1/32")), "{told:?}");
    // As many routes as addresses that are believed: the last word was none.
    nodes[1].push_where(|push| push.routes().is_empty()).await;
}

#[tokio::test]
async fn an_address_is_given_to_nobody_else_while_it_may_be_in_use() {
    let stage = Stage::new().await;
    let other = stage.world.gateway().await;
    stage.world.create_node("n1").await;
    stage.world.create_node("n2").await;
    for number in 0..20 {
        stage
            .world
            .create_app(&format!("app-{number}"), if number % 2 == 0 { "n1" } else { "n2" }, isolated())
            .await;
    }
    let (mut one, mut two) = (stage.dial("n1").await, stage.dial_to(&other, "n2").await);
    let (first, second) = tokio::join!(one.push(), two.push());
    let given = |push: &Push| -> Vec<String> {
        push.raw.workload_networks.iter().map(|network| network.address.clone()).collect()
    };
    let all: BTreeSet<String> = given(&first).into_iter().chain(given(&second)).collect();
    assert_eq!(all.len(), 20);
    // Erased: held back for some time by the database's clock, and then the lowest that is free.
    let freed = first.address("app-0").unwrap().to_owned();
    stage.delete_app("app-0").await;
    one.push_where(|push| push.is_deleting("app-0")).await;
    one.pass([report(NAMESPACE, "app-2", "Running", 1), report(NAMESPACE, "app-0", "Terminated", 1)]).await;
    stage.until_app("app-0", Value::is_null).await;
    stage.world.create_app("soon", "n1", isolated()).await;
    let push = one.push_where(|push| push.has("soon")).await;
    assert!(!all.contains(push.address("soon").unwrap()));
    stage.world.advance(Duration::from_secs(601));
    stage.world.create_app("later", "n1", isolated()).await;
    let push = one.push_where(|push| push.has("later")).await;
    assert_eq!(push.address("later"), Some(freed.as_str()));
}

#[tokio::test]
async fn who_gets_no_address_is_sent_without_and_others_go_on() {
    let stage = Stage::with(|settings| settings.routed_range = Some("10.244.0.0/30".parse().unwrap())).await;
    let mut node = stage.serving("n1", &[("a", isolated()), ("b", isolated()), ("host", json!({}))]).await;
    stage.world.create_app("c", "n1", isolated()).await;
    let push = node.push_where(|push| push.has("c")).await;
    let given: BTreeSet<_> = ["a", "b"].map(|name| push.address(name).unwrap()).into();
    assert_eq!((given.len(), push.address("c")), (2, None));
    eventually(SOON, async || stage.world.told("NoAddress", "c").await.len() == 1).await;
    node.pass([report(NAMESPACE, "c", "Failed", 0), report(NAMESPACE, "host", "Running", 1)]).await;
    let app = stage.until_phase("c", "Failed").await;
    assert!(app["status"]["message"].as_str().unwrap().contains("no address"), "{app}");
}

#[tokio::test]
async fn a_reported_address_is_a_route_on_every_node() {
    let stage = Stage::new().await;
    let mut nodes = fleet(&stage, &["n1", "n2", "n3"]).await;
    stage.world.create_app("web", "n2", isolated()).await;
    nodes[1].push_where(|push| push.has("web")).await;
    // Until it is reported there is none.
    nodes[1].pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
    nodes[0].hears_nothing().await;
    nodes[1].pass([at("web", "10.244.0.1/32")]).await;
    for node in &mut nodes {
        let push = node.push_where(|push| !push.routes().is_empty()).await;
        assert_eq!(push.routes(), ["10.244.0.1/32 via 10.0.0.2"]);
        assert_eq!(push.has("web"), node.name == "n2");
    }
    // Its node moves.
    says_ip(&stage, &nodes[1], "10.0.0.9").await;
    for node in &mut nodes {
        node.push_where(|push| push.routes() == ["10.244.0.1/32 via 10.0.0.9"]).await;
    }
    // Nobody routes over this.
    let mut said = heartbeat("n2");
    said["status"]["ip"] = json!("fd00::2");
    nodes[1].say_of_itself(said.to_string()).await;
    nodes[0].push_where(|push| push.routes().is_empty()).await;
}

#[tokio::test]
async fn what_an_import_brought_of_addresses_spoils_no_table() {
    let stage = Stage::new().await;
    let mut nodes = fleet(&stage, &["n1", "n2"]).await;
    for (name, address) in [
        ("whole", "10.244.0.7/32"),
        ("bare", "10.244.0.8"),
        ("twice", "10.244.0.9/32/32"),
        ("network", "10.244.9.0/24"),
        ("garbage", "x"),
        ("empty", ""),
        ("six", "fd00::1/128"),
    ] {
        stage.world.create_app(name, "n2", isolated()).await;
        super::store_as_it_is(&stage, &app_key(name), |app: &mut Object| {
            app.0.insert("status".to_owned(), json!({"phase": "Running", "address": address}));
        })
        .await;
    }
    // The tables are judged with every push.
    let push = nodes[0].push_where(|push| push.routes().len() >= 2).await;
    assert!(push.routes().iter().all(|route| route.starts_with("10.244.0.")), "{push:?}");
}

#[tokio::test]
async fn a_service_leads_to_the_members_of_its_namespace_by_their_ports() {
    let stage = Stage::new().await;
    let mut nodes = fleet(&stage, &["n1", "n2"]).await;
    stage.create_namespace("other").await;
    let member =
        |service: &str, port: i64| json!({"serviceName": service, "ports": [{"name": "http", "port": port}]});
    let mut own = member("web", 8080);
    own["hostNetwork"] = json!(false);
    service(&stage, "web", "10.96.0.10", json!([{"port": 80, "targetName": "http"}])).await;
    service(&stage, "lonely", "10.96.0.11", json!([{"port": 80}])).await;
    let unaddressed = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    stage.world.create(Kind::Service, "other", unaddressed).await;
    stage.world.create_app("own", "n1", own).await;
    stage.world.create_app("host", "n2", member("web", 9000)).await;
    stage.world.create_app("nowhere", "", member("web", 1)).await;
    let mut foreign = member("web", 2);
    foreign["image"] = json!("x");
    foreign["placement"] = json!({"nodeName": "n2"});
    stage
        .world
        .create(Kind::Application, "other", json!({"metadata": {"name": "foreign"}, "spec": foreign}))
        .await;
    nodes[0].push_where(|push| push.has("own")).await;
    nodes[0].pass([at("own", "10.244.0.1/32")]).await;
    let by_name = ["10.96.0.10:80/TCP -> 10.0.0.2:9000 10.244.0.1:8080"];
    for node in &mut nodes {
        node.push_where(|push| push.rules() == by_name).await;
    }
    for (ports, expected) in [
        (json!([{"port": 80, "targetPort": 5000}]), "10.96.0.10:80/TCP -> 10.0.0.2:5000 10.244.0.1:5000"),
        (json!([{"port": 81, "protocol": "UDP"}]), "10.96.0.10:81/UDP -> 10.0.0.2:81 10.244.0.1:81"),
        (json!([{"port": 80, "targetName": "nobody's"}]), "10.96.0.10:80/TCP -> 10.0.0.2:80 10.244.0.1:80"),
    ] {
        stage.world.merge(&service_key("web"), json!({"spec": {"ports": ports}})).await;
        nodes[0].push_where(|push| push.rules() == [expected]).await;
    }
    stage.world.merge(&service_key("web"), json!({"spec": {"clusterIP": ""}})).await;
    nodes[0].push_where(|push| push.rules().is_empty()).await;
}

#[tokio::test]
async fn a_rule_that_no_helper_would_take_is_left_out_alone() {
    let stage = Stage::new().await;
    let mut nodes = fleet(&stage, &["n1", "n2"]).await;
    let bad = [
        ("v6", "fd00::1"),
        ("mapped", "::ffff:10.96.0.99"),
        ("local", "127.64.0.1"),
        ("link", "169.254.9.9"),
    ];
    for (name, address) in bad.into_iter().chain([("good", "10.96.0.20")]) {
        service(&stage, name, address, json!([{"port": 443}])).await;
        stage.world.create_app(name, "n2", json!({"serviceName": name})).await;
    }
    nodes[0].push_where(|push| push.rules() == ["10.96.0.20:443/TCP -> 10.0.0.2:443"]).await;
    for (name, _) in bad {
        eventually(SOON, async || stage.world.told("ServiceLeftOut", name).await.len() == 1).await;
    }
}
