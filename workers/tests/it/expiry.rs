//! Events go when they have had their time, and what the loops tell of.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_service::{
    At, Body, Caller, Observer, Ready, ReadyVerdict, Recorder, RequestContext, Service, ServiceConfig,
    WriteOptions,
};
use horchestra_store::{Retention, Store};
use horchestra_testkit::eventually;
use horchestra_workers::compaction::Compaction;
use horchestra_workers::expiry::EventRetention;
use horchestra_workers::scheduler::metrics::SchedulerMetrics;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::substrate::{PassError, Reconciler, Term};
use jiff::{Span, Timestamp};
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

async fn service() -> Service {
    let store = Store::memory();
    store.ready().await;
    let service = Service::new(store, ServiceConfig::default());
    for name in ["default", "other"] {
        create(&service, Kind::Namespace, "", json!({"metadata": {"name": name}})).await;
    }
    service
}

async fn create(service: &Service, kind: Kind, namespace: &str, object: Value) {
    let body = Body::Json(object.to_string().into());
    service.create(&operator(), kind, namespace, body, &WriteOptions::default()).await.unwrap();
}

async fn term(service: &Service, name: &str) -> Term {
    let lease = service.store().acquire_lease(name, Uuid::new_v4(), TERM).await.unwrap();
    Term { lease: lease.expect("nobody else asks") }
}

fn compaction(service: &Service, events: EventRetention) -> Compaction {
    let metrics = Metrics::new("test", "0", None);
    Compaction::new(service.clone(), Retention::default(), events, &metrics)
}

/// An Event that was last observed so many minutes ago.
async fn event(service: &Service, namespace: &str, name: &str, minutes: i64) {
    let last = Timestamp::now() - Span::new().minutes(minutes);
    let event = json!({
        "metadata": {"name": name}, "reason": "Odd", "lastTimestamp": last.to_string(),
        "involvedObject": {"kind": "Application", "namespace": namespace, "name": "web"},
    });
    create(service, Kind::Event, namespace, event).await;
}

async fn names(service: &Service) -> BTreeSet<String> {
    let snapshot = service.store().fresh().await.unwrap();
    snapshot.list(Kind::Event, None).map(|entry| entry.key.name.clone()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn in_an_hour() -> Timestamp {
    Timestamp::now() + Span::new().minutes(59)
}

fn in_two_hours() -> Timestamp {
    Timestamp::now() + Span::new().hours(2)
}

#[tokio::test]
async fn an_event_is_kept_for_an_hour_after_it_was_last_observed() {
    let service = service().await;
    // It was created a moment ago, which counts as seeing it.
    event(&service, "default", "old", 300).await;
    event(&service, "default", "new", 0).await;
    event(&service, "default", "future", -90).await;
    create(
        &service,
        Kind::Application,
        "default",
        json!({"metadata": {"name": "web"}, "spec": {"image": "x"}}),
    )
    .await;
    let term = term(&service, "compaction").await;
    let fresh = || compaction(&service, EventRetention::default());
    assert_eq!(fresh().pass(&term).await.unwrap().writes, 0);
    assert_eq!(fresh().with_clock(in_an_hour).pass(&term).await.unwrap().writes, 0);
    assert_eq!(names(&service).await, set(&["old", "new", "future"]));

    // The third claims to have been seen in an hour and a half, which by then is so.
    assert_eq!(fresh().with_clock(in_two_hours).pass(&term).await.unwrap().writes, 2);
    assert_eq!(names(&service).await, set(&["future"]));
    let web = Key::namespaced(Kind::Application, "default", "web");
    service.get(&web, At::Fresh).await.expect("nothing but Events expires");
}

#[tokio::test]
async fn a_namespace_holds_a_bounded_number_of_events() {
    let service = service().await;
    for n in 0..10 {
        event(&service, "default", &format!("d{n}"), 0).await;
    }
    for n in 0..3 {
        event(&service, "other", &format!("o{n}"), 0).await;
    }
    let term = term(&service, "compaction").await;
    let few = EventRetention { per_namespace: 4, ..EventRetention::default() };
    let mut compaction = compaction(&service, few);
    assert_eq!(compaction.pass(&term).await.unwrap().writes, 6);
    assert_eq!(names(&service).await, set(&["d6", "d7", "d8", "d9", "o0", "o1", "o2"]));
    assert_eq!(compaction.pass(&term).await.unwrap().writes, 0);
}

#[tokio::test]
async fn who_no_longer_leads_deletes_nothing() {
    let service = service().await;
    event(&service, "default", "e", 0).await;
    let old = term(&service, "compaction").await;
    service.store().release_lease(&old.lease).await.unwrap();
    term(&service, "compaction").await;
    let mut compaction = compaction(&service, EventRetention::default()).with_clock(in_two_hours);
    assert!(matches!(compaction.pass(&old).await, Err(PassError::Deposed)));
    assert_eq!(names(&service).await, set(&["e"]));
}

#[tokio::test]
async fn the_scheduler_tells_of_placements_and_once_of_what_cannot_be_placed() {
    let service = service().await;
    let observer: Observer = Arc::new(|_, _| ());
    let (recorder, task) = Recorder::new(service.clone(), "test", observer, CancellationToken::new());
    let writing = tokio::spawn(task);
    let term = term(&service, "scheduler").await;
    let profile = default_profile(Strategy::Spread).unwrap();
    let metrics = Metrics::new("test", "0", None);
    let counters = SchedulerMetrics::new(&metrics);
    let mut scheduler = Scheduler::new(service.clone(), profile, recorder, counters);
    let app = json!({"metadata": {"name": "web"}, "spec": {"image": "x"}});
    create(&service, Kind::Application, "default", app).await;
    for _ in 0..3 {
        scheduler.pass(&term).await.unwrap();
    }
    let told = async |reason: &str| {
        let snapshot = service.store().fresh().await.unwrap();
        let found: Vec<Value> = snapshot
            .list(Kind::Event, Some("default"))
            .map(|entry| entry.object().unwrap().into_value())
            .filter(|event| event["reason"] == reason)
            .collect();
        found
    };
    let failed = eventually(SOON, async || told("FailedScheduling").await.pop()).await;
    assert_eq!(failed["message"], "no node is registered");
    assert_eq!((&failed["type"], &failed["count"]), (&json!("Warning"), &json!(1)));

    let gateway = Uuid::new_v4();
    let store = service.store();
    store.renew_gateway(gateway, "127.0.0.1:1", TERM).await.unwrap();
    let claim = horchestra_store::SessionClaim {
        node: "n1".to_owned(),
        gateway,
        peer: "127.0.0.1:2".to_owned(),
        certificate: "00".to_owned(),
    };
    let grant = store.claim_session(claim, TERM).await.unwrap().expect("the session");
    let node = RequestContext::new(Caller::Node { name: "n1".to_owned(), grant, gateway });
    let status = json!({"ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}});
    service.register_node(&node, "n1", &status).await.unwrap();
    service.cordon(&operator(), "n1", false).await.unwrap();
    let beat = horchestra_store::Heartbeat { node: "n1".to_owned(), allocated_cpu: 0, allocated_memory: 0 };
    let verdict = ReadyVerdict { ready: Ready::True, reason: "NodeReports".into(), message: String::new() };
    let judge = term_context(&service).await;
    service.set_node_ready(&judge, "n1", verdict).await.unwrap();
    let scheduled = eventually(SOON, async || {
        store.record_heartbeats(std::slice::from_ref(&beat)).await.unwrap();
        scheduler.pass(&term).await.unwrap();
        told("Scheduled").await.pop()
    })
    .await;
    assert_eq!(scheduled["message"], "bound to node n1");
    assert_eq!(scheduled["involvedObject"]["name"], "web");
    drop(scheduler);
    tokio::time::timeout(SOON, writing).await.expect("it ends with the last recorder").unwrap();
    assert_eq!(told("Scheduled").await.len(), 1);
    let shown = metrics.encode().unwrap();
    for line in [
        r#"horchestra_scheduler_attempts_total{result="bind"} 1"#,
        "horchestra_scheduler_create_to_bound_seconds_count 1",
        "horchestra_scheduler_bind_batch_sum 1.0",
    ] {
        assert!(shown.contains(line), "{line} is missing:\n{shown}");
    }
}

async fn term_context(service: &Service) -> RequestContext {
    RequestContext::new(term(service, "node-lifecycle").await.caller())
}
