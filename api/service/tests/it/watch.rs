use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_service::{Service, ServiceConfig, Watch, WatchEvent, WatchRequest};
use serde_json::{Value, json};

use crate::support::*;

fn all() -> WatchRequest {
    WatchRequest::of(Kind::Application)
}

async fn label(world: &World, name: &str, value: Value) -> i64 {
    world.merge(&app(name), json!({"metadata": {"labels": {"a": value}}})).await.unwrap().entry.revision
}

#[tokio::test]
async fn without_a_revision_the_state_comes_first() {
    let world = World::new().await;
    let mut web = world.create(application("web")).await.unwrap().entry.revision;
    let db = world.create(application("db")).await.unwrap().entry.revision;
    for revision in [None, Some(""), Some("0")] {
        let request = WatchRequest { resource_version: revision.map(str::to_owned), ..all() };
        let mut watch = world.service.watch(request).await.unwrap();
        assert_eq!(next_short(&mut watch).await, format!("ADDED db {db}"), "{revision:?}");
        assert_eq!(next_short(&mut watch).await, format!("ADDED web {web}"), "{revision:?}");
        web = label(&world, "web", json!(web.to_string())).await;
        assert_eq!(next_short(&mut watch).await, format!("MODIFIED web {web}"), "{revision:?}");
    }
}

#[tokio::test]
async fn from_a_listing_exactly_the_later_changes_come_in_order() {
    let world = World::new().await;
    world.create(application("old")).await.unwrap();
    let listing = world.list(horchestra_service::ListRequest::of(Kind::Application)).await.unwrap();
    let created = world.create(application("web")).await.unwrap().entry.revision;
    let updated = world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap().entry.revision;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let reported = world.put_status(&app("web"), &status).await.unwrap().entry.revision;
    let deleted = world.delete(&app("web")).await.unwrap().entry.revision;
    let expected = [
        format!("ADDED web {created}"),
        format!("MODIFIED web {updated}"),
        format!("MODIFIED web {reported}"),
        format!("DELETED web {deleted}"),
    ];
    let replica = world.replica().await;
    for service in [&world.service, &replica] {
        let mut watch = watch_after(service, Kind::Application, listing.revision).await;
        for event in &expected {
            assert_eq!(&next_short(&mut watch).await, event);
        }
        // Reopened at any event, the rest comes and nothing else.
        let mut watch = watch_after(service, Kind::Application, updated).await;
        for event in &expected[2..] {
            assert_eq!(&next_short(&mut watch).await, event);
        }
    }
}

#[tokio::test]
async fn selectors_turn_changes_into_additions_and_deletions() {
    let world = World::new().await;
    let start = world.create(application("web")).await.unwrap().entry.revision;
    let select = |selector: &str| {
        let request = WatchRequest {
            label_selector: selector.to_owned(),
            resource_version: Some(start.to_string()),
            ..all()
        };
        let service = world.service.clone();
        async move { service.watch(request).await.unwrap() }
    };
    let mut ones = select("a=1").await;
    let mut twos = select("a=2").await;
    let mut both = select("a in (1,2)").await;
    let mut absent = select("!a").await;
    let one = label(&world, "web", json!("1")).await;
    let two = label(&world, "web", json!("2")).await;
    let three = label(&world, "web", json!("3")).await;
    let deleted = world.delete(&app("web")).await.unwrap().entry.revision;
    let marker = world
        .create(json!({"metadata": {"name": "z", "labels": {"a": "1"}}, "spec": {"image": "x"}}))
        .await
        .unwrap()
        .entry
        .revision;
    let events = |watch: Watch, count: usize| async move {
        let mut watch = watch;
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(next_short(&mut watch).await);
        }
        events
    };
    assert_eq!(
        events(std::mem::replace(&mut ones, select("x=x").await), 3).await,
        [format!("ADDED web {one}"), format!("DELETED web {two}"), format!("ADDED z {marker}")]
    );
    assert_eq!(next_short(&mut twos).await, format!("ADDED web {two}"));
    assert_eq!(next_short(&mut twos).await, format!("DELETED web {three}"));
    assert_eq!(
        events(std::mem::replace(&mut both, select("x=x").await), 4).await,
        [
            format!("ADDED web {one}"),
            format!("MODIFIED web {two}"),
            format!("DELETED web {three}"),
            format!("ADDED z {marker}"),
        ]
    );
    assert_eq!(next_short(&mut absent).await, format!("DELETED web {one}"));
    assert!(deleted > three, "deleted while not selected: nobody of these is told");
}

#[tokio::test]
async fn what_leaves_a_selection_is_shown_as_it_was() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["labels"] = json!({"a": "1"});
    let start = world.create(body).await.unwrap().entry.revision;
    let patch = json!({"metadata": {"labels": {"a": "2"}}, "spec": {"image": "private"}});
    let left = world.merge(&app("web"), patch).await.unwrap().entry.revision;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    world.put_status(&app("web"), &status).await.unwrap();
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Failed"}});
    let failed = world.put_status(&app("web"), &status).await.unwrap().entry.revision;
    // The other process has read all of it from the log, so the earlier state is not at hand there.
    for service in [&world.service, &world.replica().await] {
        for (labels, fields, revision, image, phase) in [
            ("a=1", "", left, "nginx", Value::Null),
            ("", "status.phase=Running", failed, "private", json!("Running")),
        ] {
            let request = WatchRequest {
                label_selector: labels.into(),
                field_selector: fields.into(),
                resource_version: Some(start.to_string()),
                ..all()
            };
            let mut watch = service.watch(request).await.unwrap();
            let WatchEvent::Deleted(entry) = next_deleted(&mut watch).await else {
                panic!("{labels}{fields}")
            };
            let object = tree(&entry);
            assert_eq!(object["metadata"]["resourceVersion"], revision.to_string());
            assert_eq!((&object["spec"]["image"], &object["status"]["phase"]), (&json!(image), &phase));
        }
    }
}

/// Passes over what is selected.
async fn next_deleted(watch: &mut Watch) -> WatchEvent {
    loop {
        let event = next(watch).await;
        if !matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_)) {
            return event;
        }
    }
}

#[tokio::test]
async fn fields_and_namespaces_narrow_a_watch() {
    let world = World::new().await;
    let start = world.create(application("web")).await.unwrap().entry.revision;
    let from = Some(start.to_string());
    let request =
        WatchRequest { field_selector: "metadata.name=db".into(), resource_version: from.clone(), ..all() };
    let mut by_name = world.service.watch(request).await.unwrap();
    let request = WatchRequest {
        field_selector: "status.phase=Running".into(),
        resource_version: from.clone(),
        ..all()
    };
    let mut by_phase = world.service.watch(request).await.unwrap();
    let request = WatchRequest { namespace: Some("other".into()), resource_version: from, ..all() };
    let mut elsewhere = world.service.watch(request).await.unwrap();
    label(&world, "web", json!("1")).await;
    let db = world.create(application("db")).await.unwrap().entry.revision;
    let status = |phase: &str| json!({"metadata": {"name": "web"}, "status": {"phase": phase}});
    let running = world.put_status(&app("web"), &status("Running")).await.unwrap().entry.revision;
    let failed = world.put_status(&app("web"), &status("Failed")).await.unwrap().entry.revision;
    let object = json!({"metadata": {"name": "x", "namespace": "other"}, "spec": {"image": "x"}});
    let other = world.create(object).await.unwrap().entry.revision;
    assert_eq!(next_short(&mut by_name).await, format!("ADDED db {db}"));
    assert_eq!(next_short(&mut by_phase).await, format!("ADDED web {running}"));
    assert_eq!(next_short(&mut by_phase).await, format!("DELETED web {failed}"));
    assert_eq!(next_short(&mut elsewhere).await, format!("ADDED x {other}"));
}

#[tokio::test]
async fn bookmarks_move_on_with_other_kinds_and_end_the_initial_events() {
    let world = World::new().await;
    let config = ServiceConfig { bookmark_interval: Duration::from_millis(20), ..ServiceConfig::default() };
    let service = Service::new(world.service.store().clone(), config);
    let web = world.create(application("web")).await.unwrap().entry.revision;
    let request = WatchRequest {
        send_initial_events: Some(true),
        resource_version_match: Some("NotOlderThan".into()),
        allow_bookmarks: true,
        ..all()
    };
    let mut watch = service.watch(request.clone()).await.unwrap();
    assert_eq!(next_short(&mut watch).await, format!("ADDED web {web}"));
    assert_eq!(next_short(&mut watch).await, format!("BOOKMARK {web} true"));
    let elsewhere = world
        .create(json!({"kind": "Node", "metadata": {"name": "n"}, "spec": {}}))
        .await
        .unwrap()
        .entry
        .revision;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let event = next_short(&mut watch).await;
        if event == format!("BOOKMARK {elsewhere} false") {
            break;
        }
        assert!(event.starts_with("BOOKMARK"), "{event}");
        assert!(tokio::time::Instant::now() < deadline, "no bookmark at {elsewhere}");
    }
    // Nobody who did not ask gets one.
    let mut quiet = service.watch(WatchRequest { allow_bookmarks: false, ..request }).await.unwrap();
    assert_eq!(next_short(&mut quiet).await, format!("ADDED web {web}"));
    let edited = label(&world, "web", json!("1")).await;
    assert_eq!(next_short(&mut quiet).await, format!("MODIFIED web {edited}"));
    let empty = WatchRequest {
        label_selector: "no=one".into(),
        ..WatchRequest {
            send_initial_events: Some(true),
            resource_version_match: Some("NotOlderThan".into()),
            allow_bookmarks: true,
            ..all()
        }
    };
    let mut watch = service.watch(empty).await.unwrap();
    assert_eq!(
        next_short(&mut watch).await,
        format!("BOOKMARK {edited} true"),
        "an empty state ends at once"
    );
}

#[tokio::test]
async fn revisions_outside_of_the_log_end_the_stream_with_410() {
    let world = World::new().await;
    let first = world.create(application("web")).await.unwrap().entry.revision;
    for at in 0..20 {
        label(&world, "web", json!(at.to_string())).await;
    }
    let head = world.service.store().fresh().await.unwrap().revision();
    let mut future = watch_after(&world.service, Kind::Application, head + 1000).await;
    assert_eq!(next_short(&mut future).await, "FAILED 410");
    assert!(future.next().await.is_none(), "that was the end");
    world.database.compact(head);
    let fresh = world.replica().await;
    let mut old = watch_after(&fresh, Kind::Application, first).await;
    assert_eq!(next_short(&mut old).await, "FAILED 410");
    assert!(old.next().await.is_none());
}

#[tokio::test]
async fn a_watch_shows_no_heartbeats_and_ends_with_the_store() {
    let world = World::new().await;
    let session = world.node("node-1", "4", "8Gi").await;
    let head = world.service.store().fresh().await.unwrap().revision();
    let mut watch = watch_after(&world.service, Kind::Node, head).await;
    let beat = horchestra_store::Heartbeat { node: "node-1".into(), allocated_cpu: 1, allocated_memory: 1 };
    world.service.store().record_heartbeats(&[beat]).await.unwrap();
    let status = json!({"ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}, "heartbeat": "2026-01-01T00:00:00Z"});
    assert!(!world.service.report_node(&session, "node-1", &status).await.unwrap().changed);
    let edited = world.merge(&node("node-1"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    assert_eq!(next_short(&mut watch).await, format!("MODIFIED node-1 {}", edited.entry.revision));
    world.service.store().shutdown().await;
    assert_eq!(next_short(&mut watch).await, "FAILED 503");
    assert!(watch.next().await.is_none());
}
