//! Which nodes are held, as people see it.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_service::{
    At, Body, Caller, Observer, Recorder, RequestContext, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::Store;
use horchestra_store::pushes::reason;
use horchestra_testkit::eventually;
use horchestra_workers::holds::{HoldMetrics, PushHolds, ReasonLabels};
use horchestra_workers::substrate::{PassError, Reconciler, Term};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(20);
const TERM: Duration = Duration::from_secs(600);

fn operator() -> RequestContext {
    let identity = Identity {
        name: "operator".to_owned(),
        groups: vec!["system:masters".to_owned()],
        credential: Credential::Certificate { fingerprint: String::new(), not_after: Timestamp::MAX },
    };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

async fn create(service: &Service, kind: Kind, object: Value) {
    let body = Body::Json(object.to_string().into());
    service.create(&operator(), kind, "", body, &WriteOptions::default()).await.unwrap();
}

/// The condition `Held` of a node; `Null` without one.
async fn condition(service: &Service, node: &str) -> Value {
    let entry = service.get(&Key::cluster(Kind::Node, node), At::Fresh).await.unwrap();
    let node = entry.object().unwrap().into_value();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Held").unwrap_or(Value::Null)
}

#[tokio::test]
async fn nodes_show_that_they_are_held_why_and_what_to_do_and_when_it_is_over() {
    let store = Store::memory();
    store.ready().await;
    let service = Service::new(store.clone(), ServiceConfig::default());
    create(&service, Kind::Namespace, json!({"metadata": {"name": "default"}})).await;
    for name in ["n1", "n2"] {
        create(&service, Kind::Node, json!({"metadata": {"name": name}, "spec": {}})).await;
    }
    let observer: Observer = Arc::new(|_, _| ());
    let (recorder, writing) = Recorder::new(service.clone(), "test", observer, CancellationToken::new());
    let writing = tokio::spawn(writing);
    let lease = store.acquire_lease("push-holds", Uuid::new_v4(), TERM).await.unwrap().unwrap();
    let term = Term { lease };
    let metrics = HoldMetrics::new(&Metrics::new("test", "0", None));
    let mut holds = PushHolds::new(service.clone(), recorder, metrics.clone());
    let counted = |reason: &str| {
        metrics.held.get(&ReasonLabels { reason: reason.to_owned() }).map_or(0, |gauge| gauge.get())
    };

    assert_eq!(holds.pass(&term).await.unwrap().writes, 0, "nothing is held");
    store.engage_hold(None, reason::HISTORY_LOST, "some is gone").await.unwrap();
    store.engage_hold(Some("n2"), reason::UNEXPLAINED, "it has what nobody knows").await.unwrap();
    assert_eq!(holds.pass(&term).await.unwrap().writes, 2);
    let (one, two) = (condition(&service, "n1").await, condition(&service, "n2").await);
    assert_eq!((&one["status"], &one["reason"]), (&json!("True"), &json!(reason::HISTORY_LOST)));
    assert_eq!(two["reason"], reason::UNEXPLAINED);
    let message = one["message"].as_str().unwrap();
    for part in ["some is gone", "nodes/n1/admit", "horchestra-api hold release"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!((counted(reason::HISTORY_LOST), counted(reason::UNEXPLAINED)), (1, 1));
    assert_eq!(holds.pass(&term).await.unwrap().writes, 0, "it is said once");

    service.admit(&operator(), "n2").await.unwrap();
    store.engage_hold(Some("n2"), reason::UNEXPLAINED, "again").await.unwrap();
    assert_eq!(holds.pass(&term).await.unwrap().writes, 1);
    store.release_hold(None).await.unwrap();
    assert_eq!(holds.pass(&term).await.unwrap().writes, 2);
    for node in ["n1", "n2"] {
        assert_eq!(condition(&service, node).await, Value::Null);
    }
    assert_eq!(counted(reason::HISTORY_LOST) + counted(reason::UNEXPLAINED), 0);

    let told = async || {
        let snapshot = store.fresh().await.unwrap();
        let events =
            snapshot.list(Kind::Event, Some("default")).map(|entry| entry.object().unwrap().into_value());
        let mut told: Vec<(String, String)> = events
            .map(|event| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                (text(&event["involvedObject"]["name"]), text(&event["reason"]))
            })
            .collect();
        told.sort();
        told.dedup();
        told
    };
    let expected = [("n1", "PushHeld"), ("n1", "PushReleased"), ("n2", "PushHeld"), ("n2", "PushReleased")];
    let expected = expected.map(|(node, reason)| (node.to_owned(), reason.to_owned()));
    eventually(SOON, async || told().await == expected).await;

    // Another one leads by now.
    store.release_lease(&term.lease).await.unwrap();
    store.engage_hold(None, reason::REQUESTED, "once more").await.unwrap();
    assert!(matches!(holds.pass(&term).await, Err(PassError::Deposed)));
    drop(holds);
    tokio::time::timeout(SOON, writing).await.expect("it ends with the last recorder").unwrap();
}
