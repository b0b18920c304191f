//! Events: written by clients in two shapes, recorded by components, gone with their time and their namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::event::EVENTS_K8S_IO;
use horchestra_core::reasons;
use horchestra_service::{
    Body, DoorError, Fate, ListRequest, Observer, Part, Patch, PatchType, Recorder, Service, Subject,
    WriteOptions,
};
use horchestra_store::HistoryOf;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn event(name: &str) -> Value {
    json!({
        "kind": "Event", "metadata": {"name": name}, "reason": "Odd", "message": "m", "type": "Normal",
        "involvedObject": {"kind": "Application", "namespace": "default", "name": "web"},
    })
}

fn event_key(name: &str) -> Key {
    Key::namespaced(Kind::Event, "default", name)
}

fn in_the_other_shape() -> WriteOptions {
    WriteOptions { written_as: Some(&EVENTS_K8S_IO), ..WriteOptions::default() }
}

#[tokio::test]
async fn clients_write_events_in_both_shapes() {
    let world = World::new().await;
    let newer = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "web."}, "note": "m",
        "regarding": {"kind": "Application", "namespace": "default", "name": "web"}, "reason": "Odd",
    });
    let body = |value: &Value| Body::Json(value.to_string().into());
    let options = in_the_other_shape();
    let service = &world.service;
    let created = service.create(&admin(), Kind::Event, "default", body(&newer), &options).await.unwrap();
    let key = created.entry.key.clone();
    let stored = world.get(&key).await.unwrap();
    assert_eq!((&stored["apiVersion"], &stored["message"]), (&json!("v1"), &json!("m")));
    assert_eq!(stored["involvedObject"]["name"], "web");

    let merge = |patch: Value| Patch { kind: PatchType::Merge, document: patch.to_string().into() };
    let patch = merge(json!({"note": "n", "deprecatedCount": 4}));
    service.patch(&admin(), &key, Part::Main, patch, &options).await.unwrap();
    let patch = merge(json!({"type": "Warning"}));
    service.patch(&admin(), &key, Part::Main, patch, &WriteOptions::default()).await.unwrap();
    let stored = world.get(&key).await.unwrap();
    assert_eq!(
        (&stored["message"], &stored["count"], &stored["type"]),
        (&json!("n"), &json!(4), &json!("Warning"))
    );

    let mut replaced = newer.clone();
    replaced["metadata"] = json!({"name": key.name});
    let replaced = service.update(&admin(), &key, body(&replaced), &options).await.unwrap();
    assert_eq!(tree(&replaced.entry)["message"], "m");
    assert!(tree(&replaced.entry).get("count").is_none());

    // Strictness and rules speak in the words of the shape.
    let patch = merge(json!({"message": "x"}));
    let unknown = service.patch(&admin(), &key, Part::Main, patch, &options).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.details.causes[0].field.as_str()), (400, "message"));
    let patch = merge(json!({"eventTime": "2026-01-01T00:00:00Z", "reportingController": "no good"}));
    let invalid = service.patch(&admin(), &key, Part::Main, patch, &options).await.unwrap_err();
    assert_eq!(invalid.code(), 422);
    assert!(invalid.details.causes.iter().any(|cause| cause.field == "reportingController"), "{invalid:?}");
    let elsewhere = json!({"metadata": {"name": "x"}, "regarding": {"namespace": "other"}});
    let refused =
        service.create(&admin(), Kind::Event, "default", body(&elsewhere), &options).await.unwrap_err();
    assert_eq!((refused.code(), refused.details.causes[0].field.as_str()), (422, "regarding.namespace"));
}

#[tokio::test]
async fn events_have_no_history_and_no_tombstone() {
    let world = World::new().await;
    world.create(event("e")).await.unwrap();
    world.merge(&event_key("e"), json!({"message": "n"})).await.unwrap();
    assert!(world.delete(&event_key("e")).await.unwrap().erased);
    let kept = world.service.store().history(HistoryOf::Key(event_key("e"))).await.unwrap();
    assert!(kept.is_empty(), "{kept:?}");
}

async fn events(service: &Service, namespace: &str) -> Vec<Value> {
    let request = ListRequest { namespace: Some(namespace.to_owned()), ..ListRequest::of(Kind::Event) };
    service.list(request).await.unwrap().entries.iter().map(|entry| tree(entry)).collect()
}

// ---- namespaces -------------------------------------------------------------------------------------

#[tokio::test]
async fn a_namespace_takes_its_events_with_it() {
    let world = World::new().await;
    for (name, count) in [("none", 0), ("few", 3), ("an-item", 63), ("more", 64), ("many", 200)] {
        world.create(json!({"kind": "Namespace", "metadata": {"name": name}})).await.unwrap();
        let made = join_all((0..count).map(|n| {
            let mut event = event(&format!("e{n}"));
            event["metadata"]["namespace"] = json!(name);
            event["involvedObject"]["namespace"] = json!(name);
            world.create(event)
        }));
        assert!(made.await.iter().all(Result::is_ok));
        let created = world.service.store().snapshot().revision();
        let mut watch = watch_after(&world.service, Kind::Event, created).await;
        assert!(world.delete(&namespace(name)).await.unwrap().erased, "{name}");
        for _ in 0..count {
            assert!(next_short(&mut watch).await.starts_with("DELETED"), "{name}");
        }
        world.create(json!({"kind": "Namespace", "metadata": {"name": name}})).await.unwrap();
        assert!(events(&world.service, name).await.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn events_of_a_namespace_that_holds_more_stay() {
    let world = World::new().await;
    for n in 0..100 {
        let mut event = event(&format!("e{n}"));
        event["metadata"]["namespace"] = json!("other");
        event["involvedObject"]["namespace"] = json!("other");
        world.create(event).await.unwrap();
    }
    let mut app = application("web");
    app["metadata"]["namespace"] = json!("other");
    world.create(app).await.unwrap();
    let refused = world.delete(&namespace("other")).await.unwrap_err();
    assert_eq!(refused.code(), 403);
    assert!(refused.message.contains("application web") && !refused.message.contains("event"), "{refused}");
    assert_eq!(events(&world.service, "other").await.len(), 100);
}

#[tokio::test]
async fn a_namespace_that_waits_for_a_finalizer_keeps_its_events_until_then() {
    let world = World::new().await;
    let held = json!({"kind": "Namespace", "metadata": {"name": "held", "finalizers": ["example.com/x"]}});
    world.create(held).await.unwrap();
    let mut event = event("e");
    event["metadata"]["namespace"] = json!("held");
    event["involvedObject"]["namespace"] = json!("held");
    world.create(event).await.unwrap();
    assert!(!world.delete(&namespace("held")).await.unwrap().erased);
    assert_eq!(events(&world.service, "held").await.len(), 1);
    let gone = world.merge(&namespace("held"), json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert!(gone.erased);
    assert!(events(&world.service, "held").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_survives_its_namespace_however_it_races() {
    let world = World::new().await;
    let other = world.replica().await;
    for round in 0..20 {
        let name = format!("ns{round}");
        world.create(json!({"kind": "Namespace", "metadata": {"name": name}})).await.unwrap();
        let writers = join_all((0..10).map(|n| {
            let mut event = event(&format!("e{n}"));
            event["metadata"]["namespace"] = json!(name);
            event["involvedObject"]["namespace"] = json!(name);
            let body = Body::Json(event.to_string().into());
            let (other, name) = (other.clone(), name.clone());
            async move { other.create(&admin(), Kind::Event, &name, body, &WriteOptions::default()).await }
        }));
        let (deleted, _) = tokio::join!(async { world.delete(&namespace(&name)).await }, writers);
        assert!(deleted.is_ok_and(|deleted| deleted.erased), "round {round}");
        assert!(events(&world.service, &name).await.is_empty(), "round {round}");
    }
}

// ---- the recorder -----------------------------------------------------------------------------------

/// A recorder, what became of observations, and the task behind it.
struct Recording {
    recorder: Recorder,
    fates: Arc<Mutex<HashMap<&'static str, u64>>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Recording {
    fn start(service: &Service) -> Recording {
        let fates: Arc<Mutex<HashMap<&'static str, u64>>> = Arc::default();
        let counted = Arc::clone(&fates);
        let observer: Observer = Arc::new(move |fate: Fate, count| {
            *counted.lock().unwrap().entry(fate.word()).or_default() += count;
        });
        let stop = CancellationToken::new();
        let (recorder, task) = Recorder::new(service.clone(), "test-1", observer, stop.clone());
        Recording { recorder, fates, stop, task: tokio::spawn(task) }
    }

    fn count(&self, fate: Fate) -> u64 {
        self.fates.lock().unwrap().get(fate.word()).copied().unwrap_or_default()
    }

    /// Waits until this many observations have met their fate.
    async fn settled(&self, observations: u64) {
        let settled = async {
            while self.fates.lock().unwrap().values().sum::<u64>() < observations {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, settled).await.expect("all observations meet their fate");
    }

    async fn end(self) -> HashMap<&'static str, u64> {
        drop(self.recorder);
        tokio::time::timeout(DEADLINE, self.task).await.expect("the task ends").unwrap();
        self.fates.lock().unwrap().clone()
    }
}

async fn subject(world: &World, name: &str) -> Subject {
    Subject::of(&world.create(application(name)).await.unwrap().entry)
}

#[tokio::test]
async fn observations_of_one_thing_are_one_event_with_a_count() {
    let world = World::new().await;
    let web = subject(&world, "web").await;
    let recording = Recording::start(&world.service);
    recording.recorder.record(web.clone(), &reasons::STARTED, "runs on node n1");
    recording.settled(1).await;
    let first = events(&world.service, "default").await.remove(0);
    assert_eq!(first["involvedObject"]["uid"], world.get(&app("web")).await.unwrap()["metadata"]["uid"]);
    for (member, value) in [
        ("reason", "Started"),
        ("type", "Normal"),
        ("action", "Running"),
        ("message", "runs on node n1"),
        ("reportingComponent", "horchestra-nodegate"),
        ("reportingInstance", "test-1"),
    ] {
        assert_eq!(first[member], value, "{member}");
    }
    assert_eq!((&first["count"], first.get("series")), (&json!(1), None));

    for _ in 0..3 {
        recording.recorder.record(web.clone(), &reasons::STARTED, "runs on node n1");
    }
    recording.recorder.record(web.clone(), &reasons::STARTED, "runs on node n2");
    recording.settled(5).await;
    let listed = events(&world.service, "default").await;
    assert_eq!(listed.len(), 2, "another message is another thing");
    let same = listed.iter().find(|event| event["metadata"]["name"] == first["metadata"]["name"]).unwrap();
    assert_eq!((&same["count"], &same["series"]["count"]), (&json!(4), &json!(4)));
    assert_eq!(same["eventTime"], first["eventTime"]);
    assert!(same["series"]["lastObservedTime"].as_str() > first["eventTime"].as_str());

    // What a client would be held to, and who wrote it.
    let rewritten = world.put(&event_key(first["metadata"]["name"].as_str().unwrap()), same).await.unwrap();
    assert!(rewritten.warnings.is_empty());
    let changes = world.service.store().backend().changes(0, 1000).await.unwrap();
    let writers: Vec<&str> = changes
        .rows
        .iter()
        .filter(|row| row.change.object_kind() == Kind::Event)
        .map(|row| row.who.user.as_str())
        .collect();
    assert!(writers.iter().all(|user| *user == "system:recorder:horchestra-nodegate"), "{writers:?}");
    assert_eq!(recording.end().await, HashMap::from([("written", 5)]));
}

#[tokio::test]
async fn a_recorder_that_starts_anew_goes_on_counting_and_so_does_another_process() {
    let world = World::new().await;
    let web = subject(&world, "web").await;
    let other = world.replica().await;
    for service in [&world.service, &other, &world.service] {
        let recording = Recording::start(service);
        recording.recorder.record(web.clone(), &reasons::FAILED, "m");
        assert_eq!(recording.end().await, HashMap::from([("written", 1)]));
    }
    let (one, two) = (Recording::start(&world.service), Recording::start(&other));
    for _ in 0..10 {
        one.recorder.record(web.clone(), &reasons::FAILED, "m");
        two.recorder.record(web.clone(), &reasons::FAILED, "m");
        tokio::task::yield_now().await;
    }
    assert_eq!((one.end().await["written"], two.end().await["written"]), (10, 10));
    let listed = events(&world.service, "default").await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["count"], 23);
    // Deleted by somebody, it begins again.
    world.delete(&event_key(listed[0]["metadata"]["name"].as_str().unwrap())).await.unwrap();
    let recording = Recording::start(&world.service);
    recording.recorder.record(web, &reasons::FAILED, "m");
    recording.end().await;
    assert_eq!(events(&world.service, "default").await[0]["count"], 1);
}

#[tokio::test]
async fn a_flood_is_held_to_a_budget_and_similar_messages_are_taken_together() {
    let world = World::new().await;
    let (web, db) = (subject(&world, "web").await, subject(&world, "db").await);
    let recording = Recording::start(&world.service);
    for n in 0..1000 {
        recording.recorder.record(web.clone(), &reasons::FAILED, format!("failed after {n} ms"));
    }
    recording.settled(1000).await;
    recording.recorder.record(db, &reasons::FAILED, "failed");
    recording.settled(1001).await;
    let fates = recording.end().await;
    assert_eq!((fates["written"], fates["over_budget"]), (26, 975));
    let listed = events(&world.service, "default").await;
    assert_eq!(listed.len(), 12, "ten, the rest together, and the other one's");
    let combined: Vec<&Value> =
        listed.iter().filter(|event| event["message"].as_str().unwrap().starts_with("(combined")).collect();
    assert_eq!(combined.len(), 1);
    assert_eq!(combined[0]["count"], 15);
    assert!(combined[0]["message"].as_str().unwrap().ends_with("failed after 24 ms"));
}

#[tokio::test]
async fn recording_never_waits_and_what_does_not_fit_is_counted() {
    let world = World::new().await;
    let web = subject(&world, "web").await;
    let (recorder, never_run) = {
        let fates: Arc<Mutex<u64>> = Arc::default();
        let counted = Arc::clone(&fates);
        let observer: Observer = Arc::new(move |fate, count| {
            assert_eq!(fate, Fate::QueueFull);
            *counted.lock().unwrap() += count;
        });
        let (recorder, task) =
            Recorder::new(world.service.clone(), "test", observer, CancellationToken::new());
        // Nobody takes anything out: every call still returns at once.
        for _ in 0..10_000 {
            recorder.record(web.clone(), &reasons::FAILED, "m");
        }
        assert_eq!(*fates.lock().unwrap(), 10_000 - 4096);
        (recorder, task)
    };
    drop(never_run);
    recorder.record(web, &reasons::FAILED, "m");
}

#[tokio::test]
async fn what_nobody_takes_is_dropped_and_what_is_about_nodes_lives_in_default() {
    let world = World::new().await;
    let recording = Recording::start(&world.service);
    let nowhere = Subject::named(&Key::namespaced(Kind::Application, "nowhere", "x"));
    recording.recorder.record(nowhere, &reasons::FAILED, "m");
    recording.settled(1).await;
    assert_eq!(recording.count(Fate::Refused), 1);
    recording.recorder.record(Subject::named(&node("n1")), &reasons::NODE_READY, "x".repeat(5000) + "\0");
    recording.settled(2).await;
    let listed = events(&world.service, "default").await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["involvedObject"]["kind"], "Node");
    assert_eq!(listed[0]["message"].as_str().unwrap().len(), 1024);
    recording.stop.cancel();
    recording.end().await;
}

#[tokio::test]
async fn the_database_may_be_away_for_a_while() {
    let world = World::new().await;
    let web = subject(&world, "web").await;
    let backend = world.database.connect();
    let service = served(backend.clone()).await;
    let recording = Recording::start(&service);
    backend.set_cut_off(true);
    for _ in 0..5 {
        recording.recorder.record(web.clone(), &reasons::STARTED, "m");
    }
    horchestra_testkit::eventually(DEADLINE, async || backend.commits_cut_off() > 1).await;
    assert_eq!(recording.count(Fate::Written), 0, "tried, and tried again");
    backend.set_cut_off(false);
    recording.settled(5).await;
    assert_eq!(recording.count(Fate::Written), 5);
    assert_eq!(events(&world.service, "default").await[0]["count"], 5);
    recording.end().await;
}

// ---- the end of Events ------------------------------------------------------------------------------

#[tokio::test]
async fn events_expire_in_batches_unless_they_were_observed_again() {
    let world = World::new().await;
    let made = join_all((0..150).map(|n| world.create(event(&format!("e{n:03}"))))).await;
    let entries: Vec<_> = made.into_iter().map(|written| written.unwrap().entry).collect();
    world.merge(&event_key("e007"), json!({"count": 2})).await.unwrap();
    world.delete(&event_key("e100")).await.unwrap();
    let lease = world.lease("compaction").await;
    assert_eq!(world.service.expire_events(&lease, &entries).await.unwrap(), 148);
    let left = events(&world.service, "default").await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["metadata"]["name"], "e007");
    assert_eq!(world.service.expire_events(&lease, &[]).await.unwrap(), 0);

    let wrong = world.create(application("web")).await.unwrap().entry;
    let refused = world.service.expire_events(&lease, &[wrong]).await.unwrap_err();
    assert!(matches!(refused, DoorError::Refused(_)));
    let head = world.service.get(&event_key("e007"), horchestra_service::At::Fresh).await.unwrap();
    let refused = world.service.expire_events(&admin(), std::slice::from_ref(&head)).await.unwrap_err();
    assert!(matches!(refused, DoorError::Refused(_)));
    let lost = horchestra_service::RequestContext::new(horchestra_service::Caller::Loop {
        name: "compaction".to_owned(),
        epoch: 99,
    });
    assert!(matches!(world.service.expire_events(&lost, &[head]).await.unwrap_err(), DoorError::Fenced));
}
