//! What clients are told while the database is away.

use horchestra_core::kind::Kind;
use horchestra_service::{
    At, Body, DoorError, ListRequest, Ready, ReadyVerdict, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::{Store, StoreOptions};

use crate::support::*;

#[tokio::test]
async fn who_has_read_nothing_yet_does_not_say_that_nothing_is_there() {
    let world = World::new().await;
    let web = world.create(application("web")).await.unwrap().entry;
    let backend = world.database.connect();
    backend.set_cut_off(true);
    let service =
        Service::new(Store::open(backend.clone(), StoreOptions::default()), ServiceConfig::default());
    let request = || ListRequest { resource_version: Some("0".into()), ..ListRequest::of(Kind::Application) };
    for (what, status) in [
        ("an object", service.get(&app("web"), At::Any).await.unwrap_err()),
        ("a listing", service.list(request()).await.unwrap_err()),
    ] {
        assert_eq!(status.code(), 503, "{what}: {status}");
    }
    backend.set_cut_off(false);
    assert_eq!(service.get(&app("web"), At::Any).await.unwrap().revision, web.revision);
    assert_eq!(names(&service.list(request()).await.unwrap()), ["web"]);
}

#[tokio::test]
async fn writes_and_fresh_reads_wait_and_the_cache_goes_on() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let judge = world.lease("node-lifecycle").await;
    let web = world.create(application("web")).await.unwrap().entry;
    let backend = world.database.connect();
    let service = served(backend.clone()).await;
    service.get(&app("web"), At::Fresh).await.unwrap();
    backend.set_cut_off(true);

    let body = Body::Json(application("more").to_string().into());
    let written =
        service.create(&admin(), Kind::Application, "default", body, &WriteOptions::default()).await;
    let verdict = ReadyVerdict { ready: Ready::True, reason: "Heard".into(), message: String::new() };
    let judged = service.set_node_ready(&judge, "node-1", verdict).await;
    let DoorError::Unavailable(judged) = judged.unwrap_err() else { panic!("a door says when to come back") };
    for (what, status) in [
        ("a write", written.unwrap_err()),
        ("a door", judged),
        ("a fresh read", service.get(&app("web"), At::Fresh).await.unwrap_err()),
        ("a fresh listing", service.list(ListRequest::of(Kind::Application)).await.unwrap_err()),
    ] {
        assert_eq!(status.code(), 503, "{what}: {status}");
        assert!(status.details.retry_after_seconds.is_some(), "{what}");
    }
    let cached = service.get(&app("web"), At::Any).await.unwrap();
    assert_eq!(cached.revision, web.revision);
    let request = ListRequest { resource_version: Some("0".into()), ..ListRequest::of(Kind::Application) };
    assert_eq!(names(&service.list(request).await.unwrap()), ["web"]);
    let nodes = ListRequest { resource_version: Some("0".into()), ..ListRequest::of(Kind::Node) };
    assert_eq!(names(&service.list(nodes).await.unwrap()), ["node-1"], "without heartbeats to show");

    backend.set_cut_off(false);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let body = Body::Json(application("more").to_string().into());
        let written =
            service.create(&admin(), Kind::Application, "default", body, &WriteOptions::default()).await;
        match written {
            Ok(_) => break,
            Err(status) => assert_eq!(status.code(), 503, "{status}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "it never comes back");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    service.get(&app("more"), At::Fresh).await.unwrap();
}
