//! Rules about two objects, each side written through another replica at the same moment: whichever comes
//! first, the rule holds.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{Body, DeleteOptions, Part, Patch, PatchType, Service, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::*;

const ROUNDS: usize = 12;

async fn create(service: &Service, object: Value) -> Result<Written, Status> {
    let kind = kind_of(&object);
    let namespace =
        if kind.namespaced() { object["metadata"]["namespace"].as_str().unwrap_or("default") } else { "" };
    let body = Body::Json(object.to_string().into());
    service.create(&admin(), kind, namespace, body, &WriteOptions::default()).await
}

async fn merge(service: &Service, key: &Key, patch: Value) -> Result<Written, Status> {
    let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
    service.patch(&admin(), key, Part::Main, patch, &WriteOptions::default()).await
}

fn mounting(name: &str, volume: &str) -> Value {
    let mount = json!({"mountPath": "/v", "volume": {"type": "pv", "name": volume}});
    json!({"metadata": {"name": name}, "spec": {"image": "x", "volumes": [mount]}})
}

fn key(kind: Kind, name: &str) -> Key {
    Key::namespaced(kind, "default", name)
}

fn code<T>(result: &Result<T, Status>) -> u16 {
    result.as_ref().map_or_else(Status::code, |_| 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unshared_volume_gets_one_user() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..ROUNDS {
        let volume = format!("v{round}");
        // There or not, it counts the same.
        if round % 2 == 0 {
            let object = json!({"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {}});
            world.create(object).await.unwrap();
        }
        let (left, right) = tokio::join!(
            create(&world.service, mounting(&format!("a{round}"), &volume)),
            create(&other, mounting(&format!("b{round}"), &volume)),
        );
        let mut codes = [code(&left), code(&right)];
        codes.sort_unstable();
        assert_eq!(codes, [200, 403], "round {round}: {left:?} {right:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharing_is_not_taken_back_from_under_a_second_user() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..ROUNDS {
        let volume = format!("v{round}");
        let object =
            json!({"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {"shared": true}});
        world.create(object).await.unwrap();
        world.create(mounting(&format!("a{round}"), &volume)).await.unwrap();
        let key = key(Kind::PersistentVolume, &volume);
        let (second, alone) = tokio::join!(
            create(&other, mounting(&format!("b{round}"), &volume)),
            merge(&world.service, &key, json!({"spec": {"shared": false}})),
        );
        let mut codes = [code(&second), code(&alone)];
        codes.sort_unstable();
        assert_eq!(codes, [200, 403], "round {round}: {second:?} {alone:?}");
    }
}

/// A node is never turned away, so only one side is: whoever is second knows of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_does_not_take_the_name_of_a_node_that_is_there() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..ROUNDS {
        let name = format!("n{round}");
        let service =
            json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
        let node = json!({"kind": "Node", "metadata": {"name": name}, "spec": {}});
        let (node, service) = tokio::join!(create(&world.service, node), create(&other, service));
        let node = node.unwrap().entry.revision;
        match service {
            Ok(written) => assert!(written.entry.revision < node, "round {round}"),
            Err(status) => assert_eq!(status.code(), 403, "round {round}: {status}"),
        }
    }
}

/// A referrer and the deletion of what it refers to: one of them is refused.
async fn contest(
    target: impl Fn(&str) -> Value,
    referrer: impl Fn(&str, &str) -> Value,
    late: &[u16],
    kept: u16,
) {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..ROUNDS {
        let name = format!("t{round}");
        let object = target(&name);
        let key = key(kind_of(&object), &name);
        world.create(object).await.unwrap();
        let (options, context) = (DeleteOptions::default(), admin());
        let (created, deleted) = tokio::join!(
            create(&other, referrer(&format!("a{round}"), &name)),
            world.service.delete(&context, &key, &options),
        );
        match (created, deleted) {
            (Ok(_), Err(status)) => assert_eq!(status.code(), kept, "round {round}: {status}"),
            (Err(status), Ok(_)) => assert!(late.contains(&status.code()), "round {round}: {status}"),
            // Where the target need not exist, the deletion came first.
            (Ok(written), Ok(deleted)) => {
                assert!(late.contains(&200), "round {round}");
                assert!(deleted.entry.revision < written.entry.revision, "round {round}");
            }
            (Err(created), Err(deleted)) => panic!("round {round}: {created} {deleted}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_not_deleted_under_a_new_user() {
    let volume = |name: &str| json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {}});
    contest(volume, mounting, &[200], 403).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_not_deleted_under_a_new_member() {
    let service =
        |name: &str| json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}});
    let member = |name: &str, service: &str| json!({"metadata": {"name": name}, "spec": {"image": "x", "serviceName": service}});
    contest(service, member, &[422], 422).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_not_deleted_under_a_new_reader() {
    let secret = |name: &str| json!({"kind": "Secret", "metadata": {"name": name}});
    for (optional, late) in [(false, &[422][..]), (true, &[200])] {
        let reader = |name: &str, secret: &str| {
            let source = json!({"name": secret, "key": "k", "optional": optional});
            json!({"metadata": {"name": name}, "spec": {"image": "x", "env": [{"name": "A", "secretRef": source}]}})
        };
        contest(secret, reader, late, 403).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_goes_to_one_service() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..ROUNDS {
        let service = |name: &str, namespace: &str| {
            json!({"kind": "Service", "metadata": {"name": format!("{name}{round}"), "namespace": namespace},
                "spec": {"clusterIP": format!("10.243.0.{}", round + 1), "ports": [{"port": 1}]}})
        };
        let (left, right) = tokio::join!(
            create(&world.service, service("a", "default")),
            create(&other, service("b", "other"))
        );
        let mut codes = [code(&left), code(&right)];
        codes.sort_unstable();
        assert_eq!(codes, [200, 403], "round {round}: {left:?} {right:?}");
        let refused = left.err().or(right.err()).unwrap();
        assert!(refused.message.contains("in use"), "{refused}");
    }
}
