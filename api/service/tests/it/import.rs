//! Objects of another control plane come in as they are, and what they hold stays theirs.

use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use horchestra_core::kind::{Key, Kind};
use horchestra_service::import::{Dump, Fault, ImportError, Imported, LOOPS, import};
use horchestra_service::{At, ServiceConfig};
use horchestra_store::{Backend, MemoryDatabase, SessionClaim};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::*;

const HIGHEST: i64 = 41_000;

fn uid(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

fn object(kind: Kind, namespace: &str, name: &str, n: u128, rest: Value) -> Value {
    let mut metadata = json!({"name": name, "uid": uid(n), "generation": 3, "resourceVersion": "40999",
        "creationTimestamp": "2024-05-01T10:00:00Z"});
    if kind.namespaced() {
        metadata["namespace"] = namespace.into();
    }
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": metadata});
    for (member, value) in rest.as_object().unwrap() {
        match (member.as_str(), value.as_object()) {
            ("metadata", Some(more)) => {
                more.iter().for_each(|(name, value)| object["metadata"][name] = value.clone());
            }
            _ => object[member] = value.clone(),
        }
    }
    object
}

/// What another control plane held, in no helpful order.
fn fleet() -> Vec<Value> {
    let block = |block: &str| json!({"metadata": {"annotations": {"horchestra.io/uid-range": block}}});
    let owner = json!([{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "shop", "uid": uid(20),
        "controller": true, "blockOwnerDeletion": true}]);
    vec![
        object(
            Kind::Application,
            "team",
            "shop-web",
            30,
            json!({
                "metadata": {"ownerReferences": owner, "resourceVersion": HIGHEST.to_string(),
                    "finalizers": ["horchestra.io/node-teardown"], "managedFields": [{"manager": "x"}]},
                "spec": {"image": "web:1", "hostNetwork": true, "unheardOf": {"kept": [1]},
                    "securityContext": {"runAsUser": 1_000_065_536, "runAsGroup": 1_000_065_536},
                    "placement": {"nodeName": "n1"}, "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
                "status": {"phase": "Running", "observedGeneration": 3, "attempts": 2},
            }),
        ),
        object(
            Kind::Application,
            "team",
            "leaving",
            31,
            json!({
                "metadata": {"deletionTimestamp": "2024-05-02T10:00:00Z", "finalizers": ["horchestra.io/node-teardown"]},
                "spec": {"image": "old:1", "placement": {"nodeName": "n1"}},
            }),
        ),
        object(
            Kind::Service,
            "team",
            "web",
            40,
            json!({"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}),
        ),
        object(Kind::Secret, "team", "db", 50, json!({"type": "Opaque", "data": {"password": "czNjcjN0"}})),
        object(Kind::ApplicationSet, "team", "shop", 20, json!({"spec": {"components": []}})),
        object(
            Kind::Node,
            "",
            "n1",
            10,
            json!({"spec": {}, "status": {"ready": true, "ip": "10.0.0.9",
            "capacity": {"cpu": "4", "memory": "8Gi"}}}),
        ),
        object(Kind::Namespace, "", "team", 2, block("1000065536/65536")),
        object(Kind::Namespace, "", "default", 1, block("1000000000/65536")),
    ]
}

fn dump(objects: &[Value]) -> Dump {
    let mut dump = Dump::default();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    dump.read(list.to_string().as_bytes()).unwrap();
    dump
}

/// A database as it comes: with the Namespace `default` and nothing else.
async fn fresh_database() -> MemoryDatabase {
    let database = MemoryDatabase::new();
    let service = replica(&database).await;
    let default = json!({"kind": "Namespace", "metadata": {"name": "default"}});
    let created = horchestra_service::Body::Json(default.to_string().into());
    service.create(&admin(), Kind::Namespace, "", created, &Default::default()).await.unwrap();
    service.store().shutdown().await;
    database
}

async fn faults(database: &MemoryDatabase, objects: &[Value]) -> Vec<String> {
    match import(&*database.connect(), None, &dump(objects)).await {
        Err(ImportError::Faults(faults)) => faults.iter().map(Fault::to_string).collect(),
        other => panic!("not refused as it should be: {other:?}"),
    }
}

#[tokio::test]
async fn everything_comes_in_as_it_was() {
    let database = fresh_database().await;
    let keys = keys().ring();
    let fleet = fleet();
    let Imported { written, present, revision, .. } =
        import(&*database.connect(), Some(&keys), &dump(&fleet)).await.unwrap();
    assert_eq!((written, present), (fleet.len(), 0));
    assert!(revision > HIGHEST, "revisions go on above those of the other control plane");

    let config =
        ServiceConfig { service_range: Some("10.96.0.0/24".parse().unwrap()), ..ServiceConfig::default() };
    let service = configured(database.connect(), config).await;
    for mut wanted in fleet.clone() {
        let kind = kind_of(&wanted);
        let metadata = wanted["metadata"].as_object_mut().unwrap();
        for left_out in ["resourceVersion", "managedFields"] {
            metadata.remove(left_out);
        }
        let namespace = wanted["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let name = wanted["metadata"]["name"].as_str().unwrap().to_owned();
        let key = Key { kind, namespace, name };
        let entry = service.get(&key, At::Fresh).await.unwrap();
        assert!(entry.revision > HIGHEST, "{key}");
        let found: Value = serde_json::from_slice(&service.open(entry).unwrap().body).unwrap();
        assert_eq!(found, wanted, "{key}");
    }
    // What the server would have chosen stays chosen: the next ones get something else.
    let world = World { service, database };
    let app = json!({"kind": "Application", "metadata": {"name": "new", "namespace": "team"}, "spec": {"image": "x"}});
    let new = world.create(app).await.unwrap().entry.object().unwrap();
    assert_eq!(new.at(&["spec", "securityContext", "runAsUser"]), Some(&json!(1_000_065_537)));
    let web = json!({"kind": "Service", "metadata": {"name": "new", "namespace": "team"}, "spec": {"ports": [{"port": 1}]}});
    let new = world.create(web).await.unwrap().entry.object().unwrap();
    assert_eq!(new.str_at(&["spec", "clusterIP"]), "10.96.0.2");
    let block = json!({"kind": "Namespace", "metadata": {"name": "third"}});
    let new = world.create(block).await.unwrap().entry.object().unwrap();
    assert_eq!(
        new.at(&["metadata", "annotations", "horchestra.io/uid-range"]),
        Some(&json!("1000131072/65536"))
    );
    let node = world.service.get(&Key::cluster(Kind::Node, "n1"), At::Fresh).await.unwrap();
    let node = node.typed::<horchestra_core::kinds::node::Node>().unwrap();
    assert!(!node.admitted(), "nothing is sent to it before somebody says so");
    let web = Key::namespaced(Kind::Application, "team", "shop-web");
    assert_eq!(world.service.revisions(&web).await.unwrap().versions.len(), 1);
}

#[tokio::test]
async fn workloads_keep_their_addresses() {
    let database = fresh_database().await;
    let isolated = |name: &str, n: u128, status: Value| {
        object(
            Kind::Application,
            "team",
            name,
            n,
            json!({"spec": {"image": "x", "hostNetwork": false,
            "placement": {"nodeName": "n1"}}, "status": status}),
        )
    };
    let objects = [
        object(Kind::Namespace, "", "team", 2, json!({})),
        isolated("idle", 31, json!({"phase": "Failed", "address": "10.244.0.7"})),
        isolated("runs", 32, json!({"phase": "Running", "address": "10.244.0.7/32"})),
        isolated("other", 33, json!({"phase": "Running", "address": "10.244.0.3/32"})),
        isolated("odd", 34, json!({"phase": "Running", "address": "10.244.0.0/16"})),
        isolated("none", 35, json!({"phase": "Pending"})),
    ];
    let done = import(&*database.connect(), None, &dump(&objects)).await.unwrap();
    assert_eq!((done.written, done.addresses), (6, 2));
    let leases = database.connect().address_leases().await.unwrap();
    let leases: Vec<(String, u128)> =
        leases.iter().map(|lease| (lease.address.to_string(), lease.holder.as_u128())).collect();
    assert_eq!(leases, [("10.244.0.3".to_owned(), 33), ("10.244.0.7".to_owned(), 32)], "who runs keeps it");
    let again = import(&*database.connect(), None, &dump(&objects)).await.unwrap();
    assert_eq!((again.written, again.addresses), (0, 2));
}

#[tokio::test]
async fn an_import_can_be_run_again_and_goes_on_where_it_stopped() {
    let database = fresh_database().await;
    let mut fleet = fleet();
    fleet.retain(|object| object["kind"] != "Secret");
    let some: Vec<Value> = fleet.iter().filter(|object| object["kind"] != "Application").cloned().collect();
    let first = import(&*database.connect(), None, &dump(&some)).await.unwrap();
    assert_eq!((first.written, first.present), (some.len(), 0));
    let second = import(&*database.connect(), None, &dump(&fleet)).await.unwrap();
    assert_eq!((second.written, second.present), (fleet.len() - some.len(), some.len()));
    let third = import(&*database.connect(), None, &dump(&fleet)).await.unwrap();
    assert_eq!((third.written, third.present, third.revision), (0, fleet.len(), second.revision));
}

/// What is wrong, how it comes about, and what is said of it.
type Case = (&'static str, fn(&mut Vec<Value>), &'static str);

#[tokio::test]
async fn what_could_not_be_kept_apart_is_refused_as_a_whole() {
    let database = fresh_database().await;
    let with = |change: fn(&mut Vec<Value>)| {
        let mut objects = fleet();
        objects.retain(|object| object["kind"] != "Secret");
        change(&mut objects);
        objects
    };
    let cases: [Case; 8] = [
        ("no uid", |it| it[0]["metadata"]["uid"] = json!("7"), "has no uid"),
        ("one uid twice", |it| it[0]["metadata"]["uid"] = json!(uid(31)), "same uid"),
        ("one name twice", |it| it.push(it[0].clone()), "read twice"),
        ("no namespace of that name", |it| it[0]["metadata"]["namespace"] = json!("nowhere"), "no namespace"),
        ("in no namespace", |it| it[0]["metadata"]["namespace"] = json!(""), "has none of the namespaces"),
        ("no name", |it| it[0]["metadata"]["name"] = json!(""), "no name"),
        (
            "an address twice",
            |it| {
                it.push(object(
                    Kind::Service,
                    "team",
                    "other",
                    41,
                    json!({"spec": {"clusterIP": "10.96.0.1"}}),
                ));
            },
            "as well",
        ),
        (
            "blocks that overlap",
            |it| {
                let block =
                    json!({"metadata": {"annotations": {"horchestra.io/uid-range": "1000131000/100"}}});
                it.push(object(Kind::Namespace, "", "third", 3, block));
            },
            "overlaps",
        ),
    ];
    for (what, change, why) in cases {
        let found = faults(&database, &with(change)).await;
        assert!(found.len() == 1 && found[0].contains(why), "{what}: {found:?}");
    }
    let loaded = database.connect().load(&Kind::ALL).await.unwrap();
    assert_eq!(loaded.entries.len(), 1, "nothing was written");

    let service = replica(&database).await;
    let stranger = json!({"kind": "Namespace", "metadata": {"name": "mine"}});
    let world = World { service, database };
    world.create(stranger).await.unwrap();
    let found = faults(&world.database, &with(|_| ())).await;
    assert!(found.len() == 1 && found[0].contains("database of its own"), "{found:?}");
}

#[tokio::test]
async fn nobody_acts_while_it_goes_on() {
    let database = fresh_database().await;
    let backend = database.connect();
    let lease =
        backend.acquire_lease("scheduler", Uuid::new_v4(), Duration::from_secs(60)).await.unwrap().unwrap();
    let refused = import(&*backend, None, &dump(&fleet())).await;
    assert!(matches!(refused, Err(ImportError::Running("scheduler"))), "{refused:?}");
    backend.release_lease(&lease).await.unwrap();

    let gateway = Uuid::new_v4();
    backend.renew_gateway(gateway, "h:1", Duration::from_secs(60)).await.unwrap();
    let claim = SessionClaim { node: "n1".into(), gateway, peer: "p:1".into(), certificate: "00".into() };
    let granted = backend.claim_sessions(vec![claim], Duration::from_secs(60)).await.unwrap();
    let grant = granted.into_iter().next().flatten().expect("the session");
    assert!(matches!(import(&*backend, None, &dump(&fleet())).await, Err(ImportError::Sessions(1))));
    backend.release_sessions(&[("n1".to_owned(), grant)]).await.unwrap();

    // A Secret needs a key, and the loops are free again afterwards, whatever came of it.
    let refused = import(&*backend, None, &dump(&fleet())).await;
    assert!(matches!(refused, Err(ImportError::Seal(..))), "{refused:?}");
    assert!(backend.holds().await.unwrap().cluster.is_none(), "nothing was written");
    for name in LOOPS {
        let lease = backend.acquire_lease(name, Uuid::new_v4(), Duration::from_secs(60)).await.unwrap();
        assert!(lease.is_some(), "{name}");
    }
}

#[tokio::test]
async fn once_a_loop_has_begun_nothing_more_is_stored() {
    // More than are committed together.
    let objects: Vec<Value> =
        (1..150_u128).map(|n| object(Kind::Namespace, "", &format!("namespace-{n}"), n, json!({}))).collect();
    let objects = dump(&objects);
    let (mut kept_out, mut before, mut between) = (0, 0, 0);
    // The import stands still before each of its calls in turn, for longer than its term.
    for steps in 1.. {
        let database = MemoryDatabase::new();
        let (backend, other) = (database.connect(), database.connect());
        let mut importing = pin!(import(&*backend, None, &objects));
        // Each call gives way once before it is made.
        if (0..steps).any(|_| importing.as_mut().now_or_never().is_some()) {
            break;
        }
        database.advance(Duration::from_secs(3600));
        let begun =
            other.acquire_lease("scheduler", Uuid::new_v4(), Duration::from_secs(3600)).await.unwrap();
        assert!(begun.is_some());
        let stored = other.load(&Kind::ALL).await.unwrap().entries.len();
        let outcome = importing.await;
        let then = other.load(&Kind::ALL).await.unwrap().entries.len();
        assert_eq!(then, stored, "at step {steps}");
        match outcome {
            Err(ImportError::Running("scheduler")) => kept_out += 1,
            Err(ImportError::LeaseLost) if stored == 0 => before += 1,
            Err(ImportError::LeaseLost) => between += 1,
            Ok(_) => assert_eq!(stored, 149, "at step {steps}"),
            Err(other) => panic!("at step {steps}: {other}"),
        }
    }
    assert!(kept_out > 0 && before > 0 && between > 0, "{kept_out}, {before}, {between}");
}
