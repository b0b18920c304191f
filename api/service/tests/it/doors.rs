use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_service::{ApplicationReport, Binding, Caller, DoorError, RequestContext, WriteOptions};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::*;

fn binding(entry: &horchestra_store::Entry, node: &str) -> Binding {
    Binding {
        key: entry.key.clone(),
        uid: entry.uid,
        revision: entry.revision,
        node: node.to_owned(),
        node_revision: None,
    }
}

fn report(phase: &str, generation: i64) -> ApplicationReport {
    ApplicationReport {
        phase: phase.to_owned(),
        observed_generation: generation,
        ..ApplicationReport::default()
    }
}

fn kind_of_error(error: &DoorError) -> &'static str {
    match error {
        DoorError::Gone => "gone",
        DoorError::Changed => "changed",
        DoorError::NoNode => "no node",
        DoorError::NoCapacity => "no capacity",
        DoorError::Fenced => "fenced",
        DoorError::Refused(_) => "refused",
        DoorError::Unavailable(_) => "unavailable",
    }
}

fn short_of<T>(result: &Result<T, DoorError>) -> &'static str {
    result.as_ref().map_or_else(kind_of_error, |_| "ok")
}

#[tokio::test]
async fn a_bind_changes_all_that_belongs_to_it_in_one_revision() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let scheduler = world.lease("scheduler").await;
    let created = world.create(application("web")).await.unwrap().entry;
    let told = world
        .service
        .set_unschedulable(&scheduler, &app("web"), created.revision, "no node is registered")
        .await
        .unwrap();
    assert!(told.changed);
    let stored = tree(&told.entry);
    assert_eq!(stored["status"]["phase"], "Pending");
    assert_eq!(stored["status"]["message"], "no node is registered");
    assert_eq!(stored["status"]["conditions"][0]["reason"], "Unschedulable");
    assert_eq!(told.entry.generation, 1);
    let again = world
        .service
        .set_unschedulable(&scheduler, &app("web"), told.entry.revision, "no node is registered")
        .await
        .unwrap();
    assert!(!again.changed, "the same words are not written again");

    let mut watch = watch_after(&world.service, Kind::Application, told.entry.revision).await;
    let results = world.service.bind(&scheduler, vec![binding(&told.entry, "node-1")]).await;
    let bound = results.into_iter().next().unwrap().unwrap().entry;
    let stored = world.get(&app("web")).await.unwrap();
    assert_eq!(stored, tree(&bound));
    assert_eq!(stored["spec"]["placement"]["nodeName"], "node-1");
    assert_eq!(stored["metadata"]["generation"], 2);
    assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    assert!(stored["status"].get("message").is_none());
    let condition = &stored["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Scheduled"), &json!("True"), &json!("Bound"))
    );
    assert_eq!(next_short(&mut watch).await, format!("MODIFIED web {}", bound.revision), "one change");
    assert!(watch.ready().is_none());
}

#[tokio::test]
async fn what_makes_a_bind_fail() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    world.create(json!({"kind": "Node", "metadata": {"name": "silent"}, "spec": {}})).await.unwrap();
    let scheduler = world.lease("scheduler").await;
    let bind = |binding: Binding| {
        let (service, scheduler) = (world.service.clone(), scheduler.clone());
        async move { short_of(&service.bind(&scheduler, vec![binding]).await[0]) }
    };
    let web = world.create(sized("web", "1", "1Gi")).await.unwrap().entry;
    assert_eq!(bind(binding(&web, "nope")).await, "no node");
    assert_eq!(
        bind(binding(&web, "silent")).await,
        "no capacity",
        "a node that reports nothing takes nothing"
    );
    assert_eq!(bind(Binding { uid: Uuid::new_v4(), ..binding(&web, "node-1") }).await, "gone");
    let edited = world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap().entry;
    assert_eq!(bind(binding(&web, "node-1")).await, "changed");
    assert_eq!(bind(binding(&edited, "node-1")).await, "ok");
    assert_eq!(bind(binding(&edited, "node-1")).await, "changed", "bound already");
    let large = world.create(sized("large", "3500m", "1Gi")).await.unwrap().entry;
    assert_eq!(bind(binding(&large, "node-1")).await, "no capacity");
    let gone = world.create(application("gone")).await.unwrap().entry;
    world.delete(&app("gone")).await.unwrap();
    assert_eq!(bind(binding(&gone, "node-1")).await, "gone");
    let mut body = application("dying");
    body["metadata"]["finalizers"] = json!(["example.com/a"]);
    world.create(body).await.unwrap();
    let dying = world.delete(&app("dying")).await.unwrap().entry;
    assert_eq!(bind(binding(&dying, "node-1")).await, "gone");
}

#[tokio::test]
async fn two_binds_that_are_too_much_together_do_not_both_land() {
    for batches in ["one batch", "two batches", "two processes"] {
        let world = World::new().await;
        world.node("node-1", "4", "8Gi").await;
        let scheduler = world.lease("scheduler").await;
        let first = world.create(sized("first", "3", "1Gi")).await.unwrap().entry;
        let second = world.create(sized("second", "3", "1Gi")).await.unwrap().entry;
        let (first, second) = (binding(&first, "node-1"), binding(&second, "node-1"));
        let mut results = if batches == "one batch" {
            world.service.bind(&scheduler, vec![first, second]).await
        } else {
            let other =
                if batches == "two processes" { world.replica().await } else { world.service.clone() };
            let (mut left, right) = tokio::join!(
                world.service.bind(&scheduler, vec![first]),
                other.bind(&scheduler, vec![second])
            );
            left.extend(right);
            left
        }
        .iter()
        .map(short_of)
        .collect::<Vec<_>>();
        results.sort_unstable();
        assert_eq!(results, ["no capacity", "ok"], "{batches}");
    }
}

#[tokio::test]
async fn a_loop_that_lost_its_lease_writes_nothing() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let store = world.service.store();
    let ttl = Duration::from_secs(10);
    let lease = store.acquire_lease("scheduler", Uuid::new_v4(), ttl).await.unwrap().unwrap();
    let old = RequestContext::new(Caller::Loop { name: "scheduler".into(), epoch: lease.epoch });
    world.database.advance(Duration::from_secs(60));
    let new = world.lease("scheduler").await;
    let web = world.create(application("web")).await.unwrap().entry;
    let before = store.fresh().await.unwrap().revision();
    assert_eq!(short_of(&world.service.bind(&old, vec![binding(&web, "node-1")]).await[0]), "fenced");
    let told = world.service.set_unschedulable(&old, &app("web"), web.revision, "x").await;
    assert_eq!(short_of(&told), "fenced");
    let verdict = horchestra_service::ReadyVerdict {
        ready: horchestra_service::Ready::True,
        reason: "Heard".into(),
        message: String::new(),
    };
    assert_eq!(short_of(&world.service.set_node_ready(&old, "node-1", verdict).await), "fenced");
    let body = horchestra_service::Body::Json(application("more").to_string().into());
    let status = world
        .service
        .create(&old, Kind::Application, "default", body, &WriteOptions::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), 409, "ordinary verbs are fenced as well: {status}");
    assert_eq!(store.fresh().await.unwrap().revision(), before);
    assert_eq!(short_of(&world.service.bind(&new, vec![binding(&web, "node-1")]).await[0]), "ok");
}

/// An Application placed on node-1, and the session of that node.
async fn placed(world: &World, spec: Value) -> (horchestra_service::Written, RequestContext) {
    let session = world.node("node-1", "4", "8Gi").await;
    let mut body = json!({"metadata": {"name": "web"}, "spec": spec});
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    (world.create(body).await.unwrap(), session)
}

#[tokio::test]
async fn reports_of_the_right_node_are_stored_once() {
    let world = World::new().await;
    let (web, session) = placed(&world, json!({"image": "x"})).await;
    let uid = web.entry.uid;
    let key = app("web");
    let running = world.service.report_application(&session, &key, uid, report("Running", 1)).await.unwrap();
    assert!(running.changed);
    let stored = world.get(&key).await.unwrap();
    assert_eq!(stored["status"]["phase"], "Running");
    assert_eq!(stored["status"]["observedGeneration"], 1);
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    let found: Vec<_> = conditions.iter().map(|one| (&one["type"], &one["status"])).collect();
    assert_eq!(found, [(&json!("Scheduled"), &json!("True")), (&json!("Ready"), &json!("True"))]);
    assert_eq!(stored["metadata"]["generation"], 1);
    for _ in 0..3 {
        let again =
            world.service.report_application(&session, &key, uid, report("Running", 1)).await.unwrap();
        assert!(!again.changed);
        assert_eq!(again.entry.revision, running.entry.revision);
    }
    // A person who read before the report can still write.
    let mut edit = tree(&web.entry);
    edit["spec"]["image"] = json!("y");
    let edited = world.put(&key, &edit).await.unwrap();
    assert_eq!(tree(&edited.entry)["status"]["phase"], "Running");

    let other = world.session("node-2").await;
    let results = [
        ("another node", world.service.report_application(&other, &key, uid, report("Running", 1)).await),
        (
            "another object",
            world.service.report_application(&session, &key, Uuid::new_v4(), report("Running", 1)).await,
        ),
        (
            "no object",
            world.service.report_application(&session, &app("nope"), uid, report("Running", 1)).await,
        ),
        ("no node at all", world.service.report_application(&admin(), &key, uid, report("Running", 1)).await),
        ("an odd phase", world.service.report_application(&session, &key, uid, report("Odd", 1)).await),
    ];
    let found: Vec<(&str, &str)> = results.iter().map(|(what, result)| (*what, short_of(result))).collect();
    assert_eq!(
        found,
        [
            ("another node", "refused"),
            ("another object", "gone"),
            ("no object", "gone"),
            ("no node at all", "refused"),
            ("an odd phase", "refused"),
        ]
    );
}

#[tokio::test]
async fn a_session_that_was_taken_over_writes_nothing() {
    let world = World::new().await;
    let (web, old) = placed(&world, json!({"image": "x"})).await;
    world.database.advance(Duration::from_secs(300));
    let new = world.session("node-1").await;
    let key = app("web");
    let uid = web.entry.uid;
    assert_eq!(
        short_of(&world.service.report_application(&old, &key, uid, report("Failed", 1)).await),
        "fenced"
    );
    assert_eq!(
        short_of(&world.service.report_node(&old, "node-1", &json!({"ready": false})).await),
        "fenced"
    );
    assert_eq!(
        short_of(&world.service.report_application(&new, &key, uid, report("Running", 1)).await),
        "ok"
    );
    world.delete(&node("node-1")).await.unwrap();
    assert_eq!(
        short_of(&world.service.register_node(&old, "node-1", &json!({"ready": true})).await),
        "fenced"
    );
    assert_eq!(short_of(&world.service.register_node(&new, "node-1", &json!({"ready": true})).await), "ok");
    world.delete(&key).await.unwrap();
    assert_eq!(short_of(&world.service.release_teardown(&old, &key, uid).await), "fenced");
    assert!(world.get(&key).await.is_ok());
}

#[tokio::test]
async fn a_finished_job_gives_its_room_back_until_it_is_edited() {
    let world = World::new().await;
    let spec = json!({"image": "x", "lifecycle": {"restartPolicy": "Never"},
        "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}});
    let (web, session) = placed(&world, spec).await;
    let mut other = sized("other", "3", "1Gi");
    other["spec"]["placement"] = json!({"nodeName": "node-1"});
    let status = world.create(other.clone()).await.unwrap_err();
    assert_eq!(status.code(), 403, "{status}");
    assert!(status.message.contains("node-1") && status.message.contains("cpu 6 of 4"), "{status}");
    let done = ApplicationReport { exit_code: Some(0), attempts: 1, ..report("Succeeded", 1) };
    world.service.report_application(&session, &app("web"), web.entry.uid, done).await.unwrap();
    world.create(other).await.unwrap();
    let status = world
        .merge(&app("web"), json!({"spec": {"resources": {"requests": {"cpu": "2"}}}}))
        .await
        .unwrap_err();
    assert_eq!(status.code(), 403, "an edited job runs again: {status}");
}

#[tokio::test]
async fn terminated_releases_and_erases_in_one_change() {
    let world = World::new().await;
    let (web, session) = placed(&world, json!({"image": "x"})).await;
    let key = app("web");
    let uid = web.entry.uid;
    assert_eq!(short_of(&world.service.release_teardown(&session, &key, uid).await), "refused", "it lives");
    let live = world.service.report_application(&session, &key, uid, report("Terminated", 1)).await.unwrap();
    assert!(!live.erased, "a live object is not released by its phase");
    let marked = world.delete(&key).await.unwrap();
    let mut watch = watch_after(&world.service, Kind::Application, marked.entry.revision).await;
    let terminating =
        world.service.report_application(&session, &key, uid, report("Terminating", 1)).await.unwrap();
    assert_eq!(short_of(&world.service.release_teardown(&session, &key, Uuid::new_v4()).await), "gone");
    let released = world.service.release_teardown(&session, &key, uid).await.unwrap();
    assert!(released.erased);
    assert_eq!(world.get(&key).await.unwrap_err().code(), 404);
    assert_eq!(next_short(&mut watch).await, format!("MODIFIED web {}", terminating.entry.revision));
    assert_eq!(next_short(&mut watch).await, format!("DELETED web {}", released.entry.revision));
    assert!(watch.ready().is_none());
    assert_eq!(short_of(&world.service.release_teardown(&session, &key, uid).await), "gone");
}

#[tokio::test]
async fn a_released_object_stays_for_its_other_holders() {
    let world = World::new().await;
    let (web, session) = placed(&world, json!({"image": "x"})).await;
    let key = app("web");
    let finalizers = json!({"metadata": {"finalizers": ["horchestra.io/node-teardown", "example.com/a"]}});
    world.merge(&key, finalizers).await.unwrap();
    world.delete(&key).await.unwrap();
    let released = world.service.release_teardown(&session, &key, web.entry.uid).await.unwrap();
    assert!(released.changed && !released.erased);
    let stored = world.get(&key).await.unwrap();
    assert_eq!(stored["metadata"]["finalizers"], json!(["example.com/a"]));
    assert_eq!(stored["status"]["phase"], "Terminated");
    let again = world.service.release_teardown(&session, &key, web.entry.uid).await.unwrap();
    assert!(!again.changed);
    assert!(world.merge(&key, json!({"metadata": {"finalizers": []}})).await.unwrap().erased);
}
