//! Many writers at once, through one process and through two.

use futures::future::join_all;
use horchestra_core::kind::Kind;
use horchestra_service::{Body, DeleteOptions, Part, Patch, PatchType, Service, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

fn codes<T>(results: Vec<Result<T, horchestra_core::status::Status>>) -> Vec<u16> {
    let mut codes: Vec<u16> =
        results.into_iter().map(|result| result.map_or_else(|status| status.code(), |_| 200)).collect();
    codes.sort_unstable();
    codes
}

async fn create(
    service: &Service,
    object: Value,
) -> Result<horchestra_service::Written, horchestra_core::status::Status> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    let body = Body::Json(object.to_string().into());
    service.create(&admin(), Kind::Application, &namespace, body, &WriteOptions::default()).await
}

async fn merge(
    service: &Service,
    name: &str,
    patch: Value,
) -> Result<horchestra_service::Written, horchestra_core::status::Status> {
    let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
    service.patch(&admin(), &app(name), Part::Main, patch, &WriteOptions::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_creators_of_one_name_one_succeeds() {
    let world = World::new().await;
    let replicas = [world.service.clone(), world.replica().await];
    let results = join_all((0..20).map(|at| create(&replicas[at % 2], application("web")))).await;
    let mut expected = vec![200];
    expected.extend([409; 19]);
    assert_eq!(codes(results), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_writers_of_one_revision_one_succeeds() {
    let world = World::new().await;
    let replicas = [world.service.clone(), world.replica().await];
    let revision = world.create(application("web")).await.unwrap().entry.revision;
    let results = join_all((0..20).map(|at| {
        let service = replicas[at % 2].clone();
        async move {
            let mut body = application("web");
            body["metadata"]["resourceVersion"] = json!(revision.to_string());
            body["spec"]["image"] = json!(format!("i{at}"));
            let body = Body::Json(body.to_string().into());
            service.update(&admin(), &app("web"), body, &WriteOptions::default()).await
        }
    }))
    .await;
    let mut expected = vec![200];
    expected.extend([409; 19]);
    assert_eq!(codes(results), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patches_without_a_revision_never_conflict_and_none_is_lost() {
    let world = World::new().await;
    let replicas = [world.service.clone(), world.replica().await];
    world.create(application("web")).await.unwrap();
    let results = join_all((0..40).map(|at| {
        let service = &replicas[at % 2];
        merge(service, "web", json!({"metadata": {"labels": {format!("l{at}"): "x"}}}))
    }))
    .await;
    assert_eq!(codes(results), vec![200; 40]);
    let stored = world.get(&app("web")).await.unwrap();
    assert_eq!(stored["metadata"]["labels"].as_object().unwrap().len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_never_deleted_around_an_object() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..20 {
        let name = format!("ns{round}");
        world.create(json!({"kind": "Namespace", "metadata": {"name": name}})).await.unwrap();
        let object = json!({"metadata": {"name": "x", "namespace": name}, "spec": {"image": "x"}});
        let key = namespace(&name);
        let options = DeleteOptions::default();
        let context = admin();
        let (created, deleted) =
            tokio::join!(create(&other, object), world.service.delete(&context, &key, &options));
        match (created, deleted) {
            (Ok(_), Err(status)) => assert_eq!(status.code(), 403, "{status}"),
            (Err(status), Ok(deleted)) => {
                assert!(deleted.erased);
                assert!(status.code() == 404, "{status}");
            }
            (created, deleted) => panic!("round {round}: {created:?} {deleted:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pins_that_are_too_much_together_do_not_both_land() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..10 {
        let node = format!("node-{round}");
        world.node(&node, "4", "8Gi").await;
        let pin = |name: &str| {
            let mut object = sized(&format!("{name}{round}"), "3", "1Gi");
            object["spec"]["placement"] = json!({ "nodeName": node });
            object
        };
        let (left, right) = tokio::join!(create(&world.service, pin("a")), create(&other, pin("b")));
        assert_eq!(codes(vec![left, right]), [200, 403], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_is_never_pinned_to_a_node_that_is_deleted_meanwhile() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..10 {
        let name = format!("node-{round}");
        world.node(&name, "4", "8Gi").await;
        let mut object = application(&format!("a{round}"));
        object["spec"]["placement"] = json!({ "nodeName": name });
        let (key, options, context) = (node(&name), DeleteOptions::default(), admin());
        let (created, deleted) =
            tokio::join!(create(&other, object), world.service.delete(&context, &key, &options));
        let deleted = deleted.unwrap().entry.revision;
        match created {
            // Deleting a node with placed applications is allowed; then the application came first.
            Ok(written) => assert!(written.entry.revision < deleted, "round {round}"),
            Err(status) => assert_eq!(status.code(), 422, "{status}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_races_a_bind_never_erases_a_placed_application() {
    let world = World::new().await;
    world.node("node-1", "400", "800Gi").await;
    let scheduler = world.lease("scheduler").await;
    let other = world.replica().await;
    for round in 0..20 {
        let name = format!("a{round}");
        let entry = world.create(application(&name)).await.unwrap().entry;
        other.store().not_older_than(entry.revision).await.unwrap();
        let binding = horchestra_service::Binding {
            key: entry.key.clone(),
            uid: entry.uid,
            revision: entry.revision,
            node: "node-1".into(),
            node_revision: None,
        };
        let (options, context) = (DeleteOptions::default(), admin());
        let (bound, deleted) = tokio::join!(
            other.bind(&scheduler, vec![binding]),
            world.service.delete(&context, &entry.key, &options)
        );
        let deleted = deleted.unwrap();
        assert_eq!(bound[0].is_ok(), !deleted.erased, "round {round}: {bound:?} {deleted:?}");
        if !deleted.erased {
            let stored = world.get(&entry.key).await.unwrap();
            assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
        }
    }
}
