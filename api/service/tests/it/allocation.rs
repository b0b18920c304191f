//! What the server gives out: blocks of user ids, user ids, addresses of Services; and networks of workloads, which it
//! has or has not.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{Body, Service, ServiceConfig, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

const RANGE: &str = "horchestra.io/uid-range";
const BLOCK: i64 = 65_536;

fn room(name: &str, range: Option<&str>) -> Value {
    let mut object = json!({"kind": "Namespace", "metadata": {"name": name}});
    if let Some(range) = range {
        object["metadata"]["annotations"] = json!({ RANGE: range });
    }
    object
}

fn range_of(object: &Value) -> &str {
    object["metadata"]["annotations"][RANGE].as_str().unwrap_or("")
}

fn first_of(object: &Value) -> i64 {
    range_of(object).split_once('/').unwrap().0.parse().unwrap()
}

fn in_room(name: &str, namespace: &str, context: Value) -> Value {
    let mut object = application(name);
    object["metadata"]["namespace"] = json!(namespace);
    if !context.is_null() {
        object["spec"]["securityContext"] = context;
    }
    object
}

fn ids(object: &Value) -> (i64, i64) {
    let context = &object["spec"]["securityContext"];
    (context["runAsUser"].as_i64().unwrap(), context["runAsGroup"].as_i64().unwrap())
}

fn refused(result: Result<horchestra_service::Written, Status>, code: u16, text: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message.contains(text), "{text:?} in {status}");
}

#[tokio::test]
async fn every_namespace_gets_the_lowest_free_block() {
    let world = World::new().await;
    let (first, second) = (namespace("default"), namespace("other"));
    assert_eq!(range_of(&world.get(&first).await.unwrap()), "1000000000/65536");
    assert_eq!(range_of(&world.get(&second).await.unwrap()), "1000065536/65536");
    for (name, given, expected) in [
        ("a", None, "1000131072/65536"),
        ("given", Some("2000000000/1000"), "2000000000/1000"),
        ("beside-it", Some("2000001000/1000"), "2000001000/1000"),
        ("astride", Some("1000262143/2"), "1000262143/2"),
        ("b", None, "1000327680/65536"),
        ("low", Some("5/10"), "5/10"),
    ] {
        let made = tree(&world.create(room(name, given)).await.unwrap().entry);
        assert_eq!(range_of(&made), expected, "{name}");
    }
    world.delete(&namespace("a")).await.unwrap();
    let again = tree(&world.create(room("c", None)).await.unwrap().entry);
    assert_eq!(range_of(&again), "1000131072/65536", "what is free is given again");
}

#[tokio::test]
async fn a_block_that_an_author_brings_along_is_judged() {
    let world = World::new().await;
    for (range, text) in [
        ("1000000000/65536", "overlaps"),
        ("1000000001/1", "overlaps"),
        ("999999999/2", "overlaps"),
        ("1/4294967294", "overlaps"),
        ("1000000000/9223372036854775807", "between 1 and"),
        ("4294967295/1", "between 1 and"),
        ("0/10", "between 1 and"),
        ("10/0", "at least one"),
        ("10", "<first>/<count>"),
        ("ten/10", "whole numbers"),
    ] {
        refused(world.create(room("x", Some(range))).await, 403, text);
    }
    world.create(room("x", Some(""))).await.unwrap();
    let key = namespace("x");
    let given = world.get(&key).await.unwrap();
    assert_eq!(range_of(&given), "1000131072/65536", "nothing is no wish");
    let annotate =
        |value: Value| world.merge_owned(key.clone(), json!({"metadata": {"annotations": {RANGE: value}}}));
    refused(annotate(json!("5/5")).await, 403, "does not change");
    for absent in [Value::Null, json!("")] {
        let kept = tree(&annotate(absent).await.unwrap().entry);
        assert_eq!(range_of(&kept), range_of(&given));
    }
    let body = room("x", None);
    let replaced = tree(&world.put(&key, &body).await.unwrap().entry);
    assert_eq!(range_of(&replaced), range_of(&given));
    let server = fields_of(&replaced, "Update horchestra-api");
    assert!(server["f:metadata"]["f:annotations"].get(format!("f:{RANGE}")).is_some(), "{server}");
}

#[tokio::test]
async fn workloads_run_under_ids_of_their_own() {
    let world = World::new().await;
    let block = first_of(&world.get(&namespace("default")).await.unwrap());
    let other = first_of(&world.get(&namespace("other")).await.unwrap());
    let create = async |object| tree(&world.create(object).await.unwrap().entry);
    assert_eq!(ids(&create(in_room("a", "default", Value::Null)).await), (block, block));
    assert_eq!(ids(&create(in_room("b", "default", Value::Null)).await), (block + 1, block));
    assert_eq!(ids(&create(in_room("a", "other", Value::Null)).await), (other, other));
    let group = json!({"runAsGroup": block + 7});
    assert_eq!(ids(&create(in_room("c", "default", group)).await), (block + 2, block + 7));
    let user = json!({"runAsUser": block + 3});
    assert_eq!(ids(&create(in_room("d", "default", user)).await), (block + 3, block));
    assert_eq!(ids(&create(in_room("e", "default", json!({}))).await), (block + 4, block));

    world.delete(&app("b")).await.unwrap();
    assert_eq!(ids(&create(in_room("f", "default", Value::Null)).await), (block + 1, block), "free again");
}

#[tokio::test]
async fn ids_stay_with_their_application() {
    let world = World::new().await;
    let created = tree(&world.create(application("web")).await.unwrap().entry);
    world.create(application("before")).await.unwrap();
    world.delete(&app("before")).await.unwrap();
    let (user, group) = ids(&created);
    for body in [
        json!({"metadata": {"name": "web"}, "spec": {"image": "b"}}),
        json!({"metadata": {"name": "web"}, "spec": {"image": "c", "securityContext": {"runAsUser": user}}}),
        json!({"metadata": {"name": "web"}, "spec": {"image": "d", "securityContext": {}}}),
    ] {
        let written = tree(&world.put(&app("web"), &body).await.unwrap().entry);
        assert_eq!(ids(&written), (user, group), "{body}");
    }
    let patch = json!({"spec": {"securityContext": {"runAsUser": null}}});
    assert_eq!(ids(&tree(&world.merge(&app("web"), patch).await.unwrap().entry)), (user, group));

    // Applied without them, they are the server's, and another apply neither removes them nor conflicts.
    let wanted = |image: &str| json!({"metadata": {"name": "applied"}, "spec": {"image": image}});
    let made = tree(&world.apply(&app("applied"), "m", wanted("a")).await.unwrap().entry);
    let again = tree(&world.apply(&app("applied"), "m", wanted("b")).await.unwrap().entry);
    assert_eq!(ids(&made), ids(&again));
    let server = fields_of(&again, "Update horchestra-api");
    assert!(server["f:spec"]["f:securityContext"].get("f:runAsUser").is_some(), "{server}");
}

#[tokio::test]
async fn an_author_may_choose_within_the_block() {
    let world = World::new().await;
    let block = first_of(&world.get(&namespace("default")).await.unwrap());
    let other = first_of(&world.get(&namespace("other")).await.unwrap());
    for (member, id) in [
        ("runAsUser", other),
        ("runAsGroup", other),
        ("runAsUser", block + BLOCK),
        ("runAsUser", block - 1),
        ("runAsUser", 65_532),
    ] {
        let object = in_room("x", "default", json!({ member: id }));
        refused(world.create(object).await, 403, "outside namespace \"default\"");
    }
    world.create(in_room("chosen", "default", Value::Null)).await.unwrap();
    let explicit = |name: &str, id: i64| in_room(name, "default", json!({"runAsUser": id}));
    for (name, id, warned) in [
        ("one", block + 9, false),
        ("two", block + 9, true),
        ("three", block, true),
        ("four", block + 1, false),
    ] {
        let written = world.create(explicit(name, id)).await.unwrap();
        assert_eq!(ids(&tree(&written.entry)).0, id);
        assert_eq!(written.warnings.iter().any(|text| text.contains("not kept apart")), warned, "{name}");
    }
    let moved = json!({"spec": {"securityContext": {"runAsUser": block + 2}}});
    assert_eq!(ids(&tree(&world.merge(&app("one"), moved).await.unwrap().entry)).0, block + 2);
    let next = tree(&world.create(application("next")).await.unwrap().entry);
    assert_eq!(ids(&next).0, block + 3, "nobody's, chosen or named");
    let away = json!({"spec": {"securityContext": {"runAsUser": other}}});
    refused(world.merge(&app("one"), away).await, 403, "outside namespace");
}

#[tokio::test]
async fn a_small_block_runs_out() {
    let world = World::new().await;
    world.create(room("small", Some("3000000000/2"))).await.unwrap();
    for name in ["a", "b"] {
        world.create(in_room(name, "small", Value::Null)).await.unwrap();
    }
    refused(world.create(in_room("c", "small", Value::Null)).await, 403, "are taken");
    let shared = in_room("c", "small", json!({"runAsUser": 3_000_000_001_i64}));
    world.create(shared).await.unwrap();
}

#[tokio::test]
async fn a_dry_run_takes_nothing() {
    let world = World::new().await;
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let preview = async |object: Value| {
        let body = Body::Json(object.to_string().into());
        world.service.create(&admin(), Kind::Application, "default", body, &dry).await.unwrap()
    };
    let first = ids(&tree(&preview(application("a")).await.entry));
    assert_eq!(ids(&tree(&preview(application("b")).await.entry)), first);
    assert_eq!(ids(&tree(&world.create(application("c")).await.unwrap().entry)), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creators_at_the_same_time_get_values_of_their_own() {
    let config = || ServiceConfig {
        service_range: Some("10.243.0.0/16".parse().unwrap()),
        ..ServiceConfig::default()
    };
    let world = World::with(config()).await;
    let other = world.replica_with(config()).await;
    let value = |object: &Value| match object["kind"].as_str().unwrap() {
        "Application" => ids(object).0.to_string(),
        "Namespace" => range_of(object).to_owned(),
        _ => address(object).to_owned(),
    };
    for what in ["Application", "Namespace", "Service"] {
        let object = |name: &str| match what {
            "Application" => application(name),
            "Namespace" => room(name, None),
            _ => service(name, ""),
        };
        let results = join_all((0..40).map(|at| {
            let object = object(&format!("x{at}"));
            let service = if at % 2 == 0 { world.service.clone() } else { other.clone() };
            async move {
                let kind = kind_of(&object);
                let namespace = if kind.namespaced() { "default" } else { "" };
                let body = Body::Json(object.to_string().into());
                service.create(&admin(), kind, namespace, body, &WriteOptions::default()).await
            }
        }))
        .await;
        let values: BTreeSet<String> =
            results.into_iter().map(|result| value(&tree(&result.unwrap().entry))).collect();
        assert_eq!(values.len(), 40, "{what}: {values:?}");
    }
}

#[tokio::test]
async fn the_lowest_free_id_is_chosen_whatever_came_before() {
    let world = World::new().await;
    let block = first_of(&world.get(&namespace("default")).await.unwrap());
    let mut model: BTreeMap<String, i64> = BTreeMap::new();
    let mut random = 7_u64;
    for step in 0..300 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (choice, at) = ((random >> 33) % 10, (random >> 40) as usize);
        let some = (!model.is_empty()).then(|| model.keys().nth(at % model.len()).cloned()).flatten();
        let name = format!("x{step}");
        match (choice, some) {
            (0..=1, Some(name)) => {
                world.delete(&app(&name)).await.unwrap();
                model.remove(&name);
            }
            (2, Some(name)) => {
                let id = block + at as i64 % 40;
                let moved = json!({"spec": {"securityContext": {"runAsUser": id}}});
                world.merge(&app(&name), moved).await.unwrap();
                model.insert(name, id);
            }
            (3, _) => {
                let id = block + at as i64 % 40;
                world.create(in_room(&name, "default", json!({"runAsUser": id}))).await.unwrap();
                model.insert(name, id);
            }
            _ => {
                let lowest = (block..).find(|id| !model.values().any(|held| held == id)).unwrap();
                let made = tree(&world.create(application(&name)).await.unwrap().entry);
                assert_eq!(ids(&made).0, lowest, "step {step}");
                model.insert(name, lowest);
            }
        }
    }
}

fn service(name: &str, address: &str) -> Value {
    let mut object = json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
    if !address.is_empty() {
        object["spec"]["clusterIP"] = json!(address);
    }
    object
}

fn address(object: &Value) -> &str {
    object["spec"]["clusterIP"].as_str().unwrap_or("")
}

#[tokio::test]
async fn services_get_addresses_of_the_range() {
    let range = Some("10.243.0.0/29".parse().unwrap());
    let world = World::with(ServiceConfig { service_range: range, ..ServiceConfig::default() }).await;
    let node = world.node("n1", "4", "8Gi").await;
    let report = json!({"ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}, "ip": "10.243.0.1"});
    world.service.report_node(&node, "n1", &report).await.unwrap();
    for (name, given, expected) in [
        ("a", "", "10.243.0.2"),
        ("declared", "10.92.16.10", "10.92.16.10"),
        ("mapped", "::ffff:10.243.0.3", "::ffff:10.243.0.3"),
        ("b", "", "10.243.0.4"),
        ("c", "", "10.243.0.5"),
        ("d", "", "10.243.0.6"),
    ] {
        let made = tree(&world.create(service(name, given)).await.unwrap().entry);
        assert_eq!(address(&made), expected, "{name}");
    }
    refused(world.create(service("e", "")).await, 403, "10.243.0.0/29 has 6");

    let key = Key::namespaced(Kind::Service, "default", "b");
    let kept = tree(&world.put(&key, &service("b", "")).await.unwrap().entry);
    assert_eq!(address(&kept), "10.243.0.4", "an update that does not mention it keeps it");
    let server = fields_of(&kept, "Update horchestra-api");
    assert!(server["f:spec"].get("f:clusterIP").is_some(), "{server}");
    let moved = tree(&world.put(&key, &service("b", "10.92.16.11")).await.unwrap().entry);
    assert_eq!(address(&moved), "10.92.16.11");
    let next = tree(&world.create(service("e", "")).await.unwrap().entry);
    assert_eq!(address(&next), "10.243.0.4", "which is free now");
    world.delete(&Key::namespaced(Kind::Service, "default", "c")).await.unwrap();
    assert_eq!(address(&tree(&world.create(service("f", "")).await.unwrap().entry)), "10.243.0.5");
}

#[tokio::test]
async fn the_address_of_a_service_rests_before_it_is_another_ones() {
    let config = || ServiceConfig {
        service_range: Some("10.243.0.0/24".parse().unwrap()),
        ..ServiceConfig::default()
    };
    let world = World::with(config()).await;
    let given = async |from: &Service, name: &str, named: &str| {
        let body = Body::Json(service(name, named).to_string().into());
        let options = WriteOptions::default();
        let made = from.create(&admin(), Kind::Service, "default", body, &options).await.unwrap();
        address(&tree(&made.entry)).to_owned()
    };
    for (name, expected) in [("a", "10.243.0.1"), ("b", "10.243.0.2"), ("c", "10.243.0.3")] {
        assert_eq!(given(&world.service, name, "").await, expected);
    }
    world.delete(&Key::namespaced(Kind::Service, "default", "a")).await.unwrap();
    let key = Key::namespaced(Kind::Service, "default", "b");
    world.put(&key, &service("b", "10.92.16.11")).await.unwrap();
    assert_eq!(given(&world.service, "d", "").await, "10.243.0.4", "clients may have the others in mind");
    // A process that starts knows it from the database.
    let restarted = world.replica_with(config()).await;
    assert_eq!(given(&restarted, "e", "").await, "10.243.0.5");
    assert_eq!(given(&restarted, "f", "10.243.0.1").await, "10.243.0.1", "an author may know better");
}

#[tokio::test]
async fn without_a_range_services_get_no_addresses() {
    let world = World::new().await;
    assert_eq!(address(&tree(&world.create(service("a", "")).await.unwrap().entry)), "");
    world.create(service("b", "10.0.0.9")).await.unwrap();
    let key = Key::namespaced(Kind::Service, "default", "b");
    assert_eq!(address(&tree(&world.put(&key, &service("b", "")).await.unwrap().entry)), "");
}

#[tokio::test]
async fn a_network_of_its_own_is_for_clusters_that_have_one() {
    let with_network = |name: &str, host: Value| {
        let mut object = application(name);
        object["spec"]["hostNetwork"] = host;
        object
    };
    let set = |host: Value| {
        json!({"kind": "ApplicationSet", "metadata": {"name": "set"}, "spec": {"applications": [
            {"name": "a", "spec": {"image": "x"}}, {"name": "b", "spec": {"image": "x", "hostNetwork": host}}]}})
    };
    let world = World::new().await;
    for (object, code) in [
        (with_network("host", json!(true)), 201),
        (with_network("unsaid", Value::Null), 201),
        (with_network("own", json!(false)), 422),
        (set(json!(false)), 422),
        (set(json!(true)), 201),
    ] {
        match world.create(object.clone()).await {
            Ok(_) => assert_eq!(code, 201, "{object}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{object}: {status}");
                assert!(status.message.contains("--routed-cidr"), "{status}");
            }
        }
    }
    let change = world.merge(&app("host"), json!({"spec": {"hostNetwork": false}})).await;
    refused(change, 422, "--routed-cidr");

    let routed_range = Some("10.244.0.0/16".parse().unwrap());
    let world = World::with(ServiceConfig { routed_range, ..ServiceConfig::default() }).await;
    world.create(with_network("own", json!(false))).await.unwrap();
    world.create(set(json!(false))).await.unwrap();
}
