//! Answers to questions that do not wait.

use horchestra_service::ServiceConfig;
use horchestra_store::{MemoryDatabase, Store, StoreOptions};
use http::Method;
use serde_json::{Value, json};

use super::{PREFIX, Site, index};
use crate::client::{BOTH, Client};
use crate::stack::{Setup, Stack, Who};

fn texts<'a>(list: &'a Value, member: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[member].as_str().unwrap()).collect()
}

#[tokio::test]
async fn services_and_nodes_are_listed_under_both_prefixes() {
    let site = Site::usual().await;
    let unplaced = json!({"metadata": {"name": "cache-2"}, "spec": {"image": "i", "serviceName": "cache"}});
    site.post("namespaces/default/applications", unplaced).await;
    let node = site.operator.get("/apis/horchestra.io/v1/nodes/node-1").await.json();
    for protocol in BOTH {
        let client = site.stack.client(Who::Master, protocol);
        for prefix in [PREFIX, "/v1"] {
            let get = async |path: &str| {
                let reply = client.get(&format!("{prefix}/{path}")).await;
                assert_eq!(reply.status, 200, "{path}: {reply:?}");
                assert_eq!(reply.header("content-type"), "application/json");
                reply
            };
            let entries = get("catalog/service/cache").await.json();
            assert_eq!(texts(&entries, "ServiceID"), ["cache-0-tcp", "cache-1-tcp"]);
            for entry in entries.as_array().unwrap() {
                assert_eq!(entry["ServiceName"], "cache");
                assert_eq!(entry["ServiceAddress"], "10.0.0.7");
                assert_eq!(entry["ServicePort"], 6379);
                assert_eq!(entry["ServiceMeta"]["clusterIP"], "10.243.0.1");
                assert_eq!(entry["ServiceMeta"]["team"], "storage");
                assert_eq!(
                    entry["ServiceTags"],
                    json!(["namespace=default", "protocol=tcp", "service=cache"])
                );
                assert_eq!(entry["ID"], node["metadata"]["uid"]);
            }
            let entries = get("catalog/service/node-1").await.json();
            let ids = ["cache-0-redis", "cache-1-redis", "node-exporter-9100"];
            assert_eq!(texts(&entries, "ServiceID"), ids);
            for entry in entries.as_array().unwrap() {
                assert_eq!(entry["ServiceName"], "node-1");
                assert_eq!(entry["ServiceAddress"], "10.0.0.7");
                assert_eq!(entry["ServiceMeta"]["clusterIP"], "10.0.0.7");
            }
            assert_eq!(entries[2]["ServicePort"], 9100);
            assert!(
                entries[2]["ServiceTags"].as_array().unwrap().contains(&json!("application=node-exporter"))
            );

            let services = get("catalog/services").await;
            assert_eq!(
                services.json()["cache"],
                json!(["namespace=default", "protocol=tcp", "service=cache"])
            );
            assert!(index(&services) > 1);
            assert_eq!(services.header("x-consul-knownleader"), "true");
            assert_eq!(services.header("x-consul-lastcontact"), "0");

            let health = get("health/service/cache").await.json();
            let ids: Vec<&Value> = health.as_array().unwrap().iter().map(|it| &it["Service"]["ID"]).collect();
            assert_eq!(ids, ["cache-0-tcp", "cache-1-tcp"], "in the order of the entries");
            assert_eq!(health[0]["Checks"][0]["Status"], "passing");
            assert_eq!(health[0]["Node"]["ID"], node["metadata"]["uid"]);
            assert_eq!(get("health/state/any").await.json().as_array().unwrap().len(), 5);
            assert_eq!(get("health/state/critical").await.json(), json!([]));

            assert_eq!(texts(&get("catalog/nodes").await.json(), "Node"), ["node-1"]);
            let on_node = get("catalog/node/node-1").await.json();
            assert_eq!(on_node["Node"]["Address"], "10.0.0.7");
            assert_eq!(on_node["Services"]["cache-0-tcp"]["Service"], "cache");
            assert_eq!(get("catalog/node/ghost").await.json(), Value::Null);
            for path in ["catalog/service/ghost", "health/service/ghost"] {
                assert_eq!(get(path).await.json(), json!([]), "{path}");
            }
            for (raw, count) in [("tag=service%3Dcache", 2), ("tag=nope", 0)] {
                let entries = get(&format!("catalog/service/cache?{raw}")).await.json();
                assert_eq!(entries.as_array().unwrap().len(), count, "{raw}");
            }

            let datacenters = get("catalog/datacenters").await;
            assert_eq!(datacenters.json(), json!(["horchestra"]));
            assert!(datacenters.header("x-consul-index").is_empty());
            let shown = get("agent/self").await.json();
            assert_eq!(
                shown["Config"],
                json!({"Datacenter": "horchestra", "NodeName": "horchestra-controller"})
            );
            assert_eq!(get("status/leader").await.json(), json!(site.stack.address.to_string()));
        }
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused() {
    let site = Site::usual().await;
    for prefix in [PREFIX, "/v1"] {
        let path = format!("{prefix}/catalog/services");
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let reply = site.operator.send(method.clone(), &path, &[], "").await;
            assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{method} {prefix}");
        }
        for rest in [
            "catalog",
            "catalog/",
            "catalog/services/",
            "catalog/service/",
            "catalog/connect/cache",
            "agent/services",
            "kv/a",
            "health/service/cache/x",
            "health/node/node-1",
            "status/peers",
            "",
        ] {
            let reply = site.operator.get(&format!("{prefix}/{rest}")).await;
            assert_eq!((reply.status, reply.reason().as_str()), (404, "NotFound"), "{prefix}/{rest}");
        }
        for (rest, words) in [
            ("catalog/service/cache?filter=Nonsense+%3D%3D+x", "there is no Nonsense"),
            ("health/service/cache?filter=Service.Tags+contains", "ends too early"),
            ("health/service/cache?passing=perhaps", "neither true nor false"),
            ("health/state/fine", "no state of a check"),
        ] {
            let reply = site.operator.get(&format!("{prefix}/{rest}")).await;
            assert_eq!((reply.status, reply.reason().as_str()), (400, "BadRequest"), "{rest}");
            assert!(reply.message().contains(words), "{rest}: {}", reply.message());
        }
    }
}

#[tokio::test]
async fn the_namespace_is_the_one_that_is_named_or_the_clusters() {
    let routed_range = Some("10.244.0.0/16".parse().unwrap());
    let catalog_namespace = "team-a".to_owned();
    let service = ServiceConfig { catalog_namespace, routed_range, ..ServiceConfig::default() };
    let site = Site::with(Setup { service, ..Setup::default() }).await;
    site.node("node-1", "10.0.0.7").await;
    site.run("default", "web", "node-1", json!({"ports": [{"port": 80}]})).await;
    // What has a network of its own is nothing of its node's.
    site.run("default", "own", "node-1", json!({"hostNetwork": false, "ports": [{"port": 81}]})).await;
    assert_eq!(site.answer("catalog/services").await, json!({}));
    assert!(site.answer("catalog/services?ns=default").await["node-1"].is_array());
    assert_eq!(site.answer("catalog/services?ns=*").await, json!({}), "no namespace has that name");
    // Parameters of Consul that mean nothing here, as clients send them.
    let ignored = "dc=elsewhere&node-meta=a%3Ab&partition=p&peer=q&stale=&cached=&pretty&token=x";
    let found = site.answer(&format!("catalog/service/node-1?ns=default&{ignored}")).await;
    assert_eq!(found.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn health_follows_what_is_known_at_once() {
    let site = Site::usual().await;
    let status = async |id: &str| {
        let health = site.answer("health/service/cache").await;
        let found = health.as_array().unwrap().iter().find(|item| item["Service"]["ID"] == id).cloned();
        found.map(|item| item["Checks"][0]["Status"].as_str().unwrap().to_owned())
    };
    let both = async || (status("cache-0-tcp").await.unwrap(), status("cache-1-tcp").await.unwrap());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    site.report("default", "cache-0", "Failed").await;
    assert_eq!(both().await, pair("critical", "passing"));
    site.report("default", "cache-0", "Running").await;
    site.judge("node-1", "Unknown", "NodeSilent").await;
    assert_eq!(both().await, pair("warning", "warning"));
    site.judge("node-1", "Unknown", "NodeLost").await;
    assert_eq!(both().await, pair("critical", "critical"));
    assert_eq!(site.answer("health/service/cache?passing").await, json!([]));
    assert_eq!(
        site.answer("catalog/service/cache").await.as_array().unwrap().len(),
        2,
        "listed all the same"
    );
    site.judge("node-1", "True", "NodeReports").await;
    assert_eq!(both().await, pair("passing", "passing"));
    let deleted =
        site.operator.delete("/apis/horchestra.io/v1/namespaces/default/applications/cache-1").await;
    assert_eq!(deleted.status, 200);
    assert_eq!(both().await, pair("passing", "critical"));
    site.remove("default", "cache-0").await;
    assert_eq!(status("cache-0-tcp").await, None);
}

#[tokio::test]
async fn without_a_database_nothing_is_passed_off_as_current() {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    let store = Store::open(backend.clone(), StoreOptions::default());
    let site = Site::with(Setup { store: Some(store), ..Setup::default() }).await;
    site.node("node-1", "10.0.0.7").await;
    site.run("default", "web", "node-1", json!({"ports": [{"port": 80}]})).await;
    let before = site.ask("health/service/node-1").await;
    backend.set_cut_off(true);
    let away = async || !site.stack.store.health().disconnected_for.is_zero();
    horchestra_testkit::eventually(crate::client::DEADLINE, away).await;
    let ahead = format!("catalog/services?index={}", index(&before) + 1000);
    for path in
        ["catalog/services", "catalog/service/node-1", "health/service/node-1", "catalog/nodes", &ahead]
    {
        let reply = site.ask(path).await;
        assert_eq!((reply.status, reply.header("retry-after").is_empty()), (503, false), "{path}: {reply:?}");
    }
    let stale = site.ask("health/service/node-1?stale=").await;
    assert_eq!(
        (stale.status, stale.json()),
        (200, before.json()),
        "what was known is said to whoever wants it"
    );
    assert_eq!(stale.header("x-consul-knownleader"), "false");
    assert_ne!(stale.header("x-consul-lastcontact"), "0");
    assert_eq!(site.answer("status/leader").await, json!(""));
    backend.set_cut_off(false);
    let again = async || site.ask("health/service/node-1").await.status == 200;
    horchestra_testkit::eventually(crate::client::DEADLINE, again).await;
}

/// A replica that has not loaded anything yet.
#[tokio::test]
async fn nothing_is_not_an_answer_of_a_replica_that_knows_nothing() {
    let database = MemoryDatabase::new();
    let first = Store::open(database.connect(), StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(first), ..Setup::default() }).await;
    let client: Client = stack.master();
    let reply = client.get("/v1/catalog/services?stale").await;
    assert_eq!((reply.status, reply.json()), (200, json!({})));
    assert_eq!(index(&reply), stack.store.snapshot().revision().max(1));
}
