use horchestra_core::kind::{Key, Kind};
use serde_json::{Value, json};

use crate::support::*;

fn service(name: &str) -> Key {
    Key::namespaced(Kind::Service, "default", name)
}

fn at(name: &str, namespace: &str, address: &str) -> Value {
    let mut object = json!({"kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"port": 80}]}});
    if !address.is_empty() {
        object["spec"]["clusterIP"] = json!(address);
    }
    object
}

#[tokio::test]
async fn addresses_are_addresses_and_nobody_elses() {
    let world = World::new().await;
    let node = world.node("n1", "4", "8Gi").await;
    let report = json!({"ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}, "ip": "10.0.0.7"});
    world.service.report_node(&node, "n1", &report).await.unwrap();
    world.create(at("first", "other", "10.243.0.1")).await.unwrap();
    for (address, text) in [
        ("cache.example.com", "not an IP address"),
        ("10.0.0.256", "not an IP address"),
        ("0.0.0.0", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("10.0.0.7", "node \"n1\""),
        ("::ffff:10.0.0.7", "node \"n1\""),
        ("10.243.0.1", "in use"),
        ("::ffff:10.243.0.1", "in use"),
    ] {
        let status = world.create(at("second", "default", address)).await.unwrap_err();
        assert_eq!(status.code(), 403, "{address}: {status}");
        assert!(status.message.contains(text) && status.message.contains(address), "{status}");
        assert!(!status.message.contains("other"), "whose it is stays untold: {status}");
    }
    let created = world.create(at("second", "default", "10.243.0.2")).await.unwrap();
    assert!(created.warnings.is_empty());
    let edited = world.merge(&service("second"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert!(edited.is_ok(), "its own address is no obstacle");
}

#[tokio::test]
async fn an_address_is_free_again_when_its_service_gives_it_up() {
    let world = World::new().await;
    let move_to = |address: Value| world.merge_owned(service("a"), json!({"spec": {"clusterIP": address}}));
    world.create(at("a", "default", "10.243.0.1")).await.unwrap();
    move_to(json!("10.243.0.2")).await.unwrap();
    world.create(at("b", "default", "10.243.0.1")).await.unwrap();
    assert_eq!(move_to(json!("10.243.0.1")).await.unwrap_err().code(), 403);
    move_to(Value::Null).await.unwrap();
    world.create(at("c", "default", "10.243.0.2")).await.unwrap();
    world.delete(&service("b")).await.unwrap();
    move_to(json!("10.243.0.1")).await.unwrap();
    let respelt = move_to(json!("::ffff:10.243.0.1")).await.unwrap();
    assert_eq!(respelt.warnings.len(), 1, "{:?}", respelt.warnings);
    assert_eq!(world.create(at("d", "default", "10.243.0.1")).await.unwrap_err().code(), 403);
}

#[tokio::test]
async fn addresses_that_nodes_cannot_route_to_are_stored_with_a_warning() {
    let world = World::new().await;
    for (name, address) in
        [("a", "fd00::1"), ("b", "127.0.0.1"), ("c", "169.254.1.9"), ("d", "::ffff:10.0.0.1")]
    {
        let written = world.create(at(name, "default", address)).await.unwrap();
        assert!(written.warnings[0].contains(address), "{:?}", written.warnings);
        assert_eq!(tree(&written.entry)["spec"]["clusterIP"], address, "as it was written");
    }
}

#[tokio::test]
async fn no_name_in_the_catalog_is_a_nodes() {
    let world = World::new().await;
    world.create(json!({"kind": "Node", "metadata": {"name": "db"}, "spec": {}})).await.unwrap();
    world.create(json!({"kind": "Node", "metadata": {"name": "web-http"}, "spec": {}})).await.unwrap();
    let of = |name: &str, ports: Value| json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": ports}});
    for (object, code) in [
        (of("db", json!([{"port": 1}])), 403),
        (of("db", json!([{"port": 1, "name": "pg"}])), 201),
        (of("web", json!([{"port": 1}])), 201),
    ] {
        match world.create(object.clone()).await {
            Ok(_) => assert_eq!(code, 201, "{object}"),
            Err(status) => assert_eq!(status.code(), code, "{object}: {status}"),
        }
    }
    let named = world.merge(&service("web"), json!({"spec": {"ports": [{"port": 1, "name": "http"}]}})).await;
    assert_eq!(named.unwrap_err().code(), 403);
    // A node that comes later is let in; the Service can still be edited.
    world.create(json!({"kind": "Node", "metadata": {"name": "web"}, "spec": {}})).await.unwrap();
    world.merge(&service("web"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
}

#[tokio::test]
async fn a_service_with_members_stays() {
    let world = World::new().await;
    world.create(at("cache", "default", "")).await.unwrap();
    let mut member = application("web");
    member["spec"]["serviceName"] = json!("nosuch");
    assert_eq!(world.create(member.clone()).await.unwrap_err().code(), 422);
    member["spec"]["serviceName"] = json!("cache");
    let mut elsewhere = member.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    assert_eq!(world.create(elsewhere).await.unwrap_err().code(), 422, "one of another namespace is none");
    world.create(member).await.unwrap();
    let status = world.delete(&service("cache")).await.unwrap_err();
    assert_eq!(status.code(), 422);
    assert!(status.message.contains("\"web\""), "{status}");
    world.merge(&app("web"), json!({"spec": {"serviceName": null}})).await.unwrap();
    assert!(world.delete(&service("cache")).await.unwrap().erased);
}
