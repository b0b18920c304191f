//! Finalizers that nobody comes back for.

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{At, Order, RequestContext, WriteOptions, Written};
use serde_json::json;

use crate::support::*;

async fn finalize(
    world: &World,
    context: &RequestContext,
    key: &Key,
    names: Option<&[&str]>,
    dry_run: bool,
) -> Result<Written, Status> {
    let finalizers = names.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let order = Order { finalizers, ..Order::default() };
    let options = WriteOptions { dry_run, ..WriteOptions::default() };
    world.service.act(context, key, Door::Finalize, &order, &options).await
}

#[tokio::test]
async fn masters_let_go_what_is_stuck_and_nobody_else_does() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    let created = world.create(body).await.unwrap().entry;
    let key = app("web");
    let live = finalize(&world, &admin(), &key, None, false).await.unwrap_err();
    assert_eq!(live.code(), 409, "{live}");
    world.delete(&key).await.unwrap();

    for context in
        [somebody(), identity("n", &["system:nodes"]), identity("n", &["system:masters", "system:nodes"])]
    {
        let refused = finalize(&world, &context, &key, None, false).await.unwrap_err();
        assert_eq!(refused.code(), 403, "{refused}");
    }
    let trial = finalize(&world, &admin(), &key, None, true).await.unwrap();
    assert!(trial.erased);
    assert_eq!(world.get(&key).await.unwrap()["metadata"]["finalizers"].as_array().unwrap().len(), 2);

    let one =
        finalize(&world, &admin(), &key, Some(&["example.com/a", "example.com/ghost"]), false).await.unwrap();
    assert_eq!(tree(&one.entry)["metadata"]["finalizers"], json!(["example.com/b"]));
    assert!(one.warnings[0].contains("example.com/ghost"), "{:?}", one.warnings);
    let again = finalize(&world, &admin(), &key, Some(&["example.com/a"]), false).await.unwrap();
    assert_eq!(again.entry.revision, one.entry.revision, "what is gone already changes nothing");

    let mut watch = watch_after(&world.service, Kind::Application, one.entry.revision).await;
    let gone = finalize(&world, &admin(), &key, None, false).await.unwrap();
    assert!(gone.erased && gone.entry.uid == created.uid && gone.warnings.is_empty());
    assert_eq!(next_short(&mut watch).await, format!("DELETED web {}", gone.entry.revision));
    assert_eq!(finalize(&world, &admin(), &key, None, false).await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn what_is_the_systems_goes_only_by_name_and_with_a_warning() {
    let world = World::new().await;
    world.node("n1", "4", "8Gi").await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a"]);
    body["spec"]["placement"] = json!({"nodeName": "n1"});
    world.create(body).await.unwrap();
    let key = app("web");
    world.delete(&key).await.unwrap();
    let foreign = finalize(&world, &admin(), &key, None, false).await.unwrap();
    assert_eq!(tree(&foreign.entry)["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    assert!(foreign.warnings[0].contains("stays"), "{:?}", foreign.warnings);
    let gone = finalize(&world, &admin(), &key, Some(&["horchestra.io/node-teardown"]), false).await.unwrap();
    assert!(gone.erased);
    assert!(gone.warnings[0].contains("\"n1\" has not said"), "{:?}", gone.warnings);
}

#[tokio::test]
async fn a_namespace_goes_with_its_last_finalizer_and_its_events() {
    let world = World::new().await;
    let key = namespace("held");
    let body = json!({"kind": "Namespace", "metadata": {"name": "held", "finalizers": ["example.com/a"]}});
    world.create(body).await.unwrap();
    let event = Key::namespaced(Kind::Event, "held", "e");
    world
        .create(json!({
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "held"},
            "involvedObject": {"kind": "Namespace", "name": "held", "namespace": "held"},
        }))
        .await
        .unwrap();
    world.delete(&key).await.unwrap();
    assert!(finalize(&world, &admin(), &key, None, false).await.unwrap().erased);
    assert_eq!(world.get(&key).await.unwrap_err().code(), 404);
    assert_eq!(world.get(&event).await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_secret_is_let_go_without_its_keys() {
    let world = World::new().await;
    let key = Key::namespaced(Kind::Secret, "default", "db");
    let body = json!({
        "kind": "Secret",
        "metadata": {"name": "db", "finalizers": ["example.com/a", "example.com/b"]},
        "data": {"password": "c2VjcmV0"},
    });
    world.create(body).await.unwrap();
    world.delete(&key).await.unwrap();
    let keyless = served_with(world.database.connect(), None).await;
    let order = Order { finalizers: Some(vec!["example.com/a".to_owned()]), ..Order::default() };
    let options = WriteOptions::default();
    let one = keyless.act(&admin(), &key, Door::Finalize, &order, &options).await.unwrap();
    assert!(!one.erased);
    let opened = world.service.get(&key, At::Fresh).await.unwrap();
    assert_eq!(tree(&opened)["data"]["password"], "c2VjcmV0");
    assert!(keyless.act(&admin(), &key, Door::Finalize, &Order::default(), &options).await.unwrap().erased);
}
