//! Clocks that are wrong: the database's is set, a heartbeat lies in the future, a worker's own runs ahead.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_service::At;
use horchestra_store::Retention;
use horchestra_workers::certificates::metrics::CertificateMetrics;
use horchestra_workers::certificates::reconcile::NodeCertificates;
use horchestra_workers::compaction::Compaction;
use horchestra_workers::expiry::EventRetention;
use horchestra_workers::substrate::Reconciler as _;
use jiff::{Span, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::plane::{BEAT, Plane, operator, somebody};
use super::process::Process;
use crate::certificates::support::{object, request};

const HOUR: Duration = Duration::from_secs(3600);
/// Rounds that are shorter than the ready timeout together, and the rounds after which it is over for certain.
const WITHIN: usize = 8;
const AFTER: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Set {
    Ahead,
    Back,
}

/// Two nodes that are ready, and a leader.
async fn ready() -> (Plane, [Process; 1]) {
    let mut plane = Plane::new(&["n1", "n2"]).await;
    let mut processes = [Process::start(&plane).await];
    plane.settle(&mut processes).await;
    assert_eq!((plane.verdict("n1").await, plane.verdict("n2").await), ("True".into(), "True".into()));
    plane.has_news().await;
    (plane, processes)
}

fn turn(plane: &Plane, set: Set) {
    match set {
        Set::Ahead => plane.database.advance(HOUR),
        Set::Back => plane.database.set_back(HOUR),
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_clock_that_is_set_declares_nobody_dead_and_hides_nobody() {
    for set in [Set::Ahead, Set::Back] {
        for successor in [false, true] {
            let what = format!("{set:?}, by a successor: {successor}");
            let (mut plane, mut processes) = ready().await;
            turn(&plane, set);
            // It has fallen silent at that very moment, so its last heartbeat is an hour old, or in an hour.
            plane.silent.insert("n2".to_owned());
            if successor {
                processes[0].leave(&plane).await;
                processes = [Process::start(&plane).await];
            }
            for _ in 0..WITHIN {
                plane.round(&mut processes).await;
                assert!(!plane.has_news().await, "{what}: the full timeout from now on for everybody");
            }
            plane.run("late", "1").await;
            for _ in WITHIN..AFTER {
                plane.round(&mut processes).await;
            }
            let verdicts = (plane.verdict("n1").await, plane.verdict("n2").await);
            assert_eq!(verdicts, ("True".into(), "Unknown".into()), "{what}");
            assert_eq!(plane.placed_on("late").await.as_deref(), Some("n1"), "{what}: it was heard of since");
            plane.silent.clear();
            plane.round(&mut processes).await;
            assert_eq!(plane.verdict("n2").await, "True", "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_lies_in_the_future_draws_no_work() {
    let (mut plane, mut processes) = ready().await;
    plane.silent.insert("n2".to_owned());
    plane.database.set_back(HOUR);
    // Both were heard of last in an hour, one of them again since.
    plane.round(&mut processes).await;
    for number in 0..4 {
        plane.run(&format!("a{number}"), "1").await;
    }
    plane.round(&mut processes).await;
    for number in 0..4 {
        assert_eq!(plane.placed_on(&format!("a{number}")).await.as_deref(), Some("n1"), "a{number}");
    }
}

fn ahead() -> Timestamp {
    Timestamp::now() + Span::new().minutes(59)
}

fn behind() -> Timestamp {
    Timestamp::now() - Span::new().minutes(59)
}

/// An hour is what decided requests and Events are kept for at least: that much a worker may be ahead.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_clock_is_wrong_signs_and_deletes_nothing_too_soon() {
    for clock in [ahead as fn() -> Timestamp, behind] {
        let plane = Plane::new(&["n1"]).await;
        let process = Process::start(&plane).await;
        let agent = somebody("n1", &["system:nodes"]);
        plane.create_as(&agent, object("renewal", &request("n1"))).await.unwrap();
        plane.create_as(&operator(), object("stranger", &request("n9"))).await.unwrap();
        let event = json!({
            "kind": "Event", "metadata": {"name": "e"}, "reason": "Odd",
            "involvedObject": {"kind": "Application", "namespace": "default", "name": "web"},
        });
        plane.create(event).await.unwrap();

        let page = Metrics::new("test", "0", None);
        let metrics = CertificateMetrics::new(&page);
        let service = process.service.clone();
        let signer: Arc<_> = plane.signer.clone();
        let mut certificates =
            NodeCertificates::new(service.clone(), plane.recorder.clone(), Some(signer), metrics)
                .with_clock(clock);
        let mut compaction =
            Compaction::new(service.clone(), Retention::default(), EventRetention::default(), &page)
                .with_clock(clock);
        for _ in 0..3 {
            tokio::time::sleep(BEAT).await;
            service.store().fresh().await.unwrap();
            certificates.pass(process.term("node-csr")).await.unwrap();
            compaction.pass(process.term("compaction")).await.unwrap();
        }
        for (name, phase) in [("renewal", "Approved"), ("stranger", "Pending")] {
            let key = Key::cluster(Kind::CertificateSigningRequest, name);
            assert_eq!(plane.tree(&key).await["status"]["phase"], phase, "{name}");
        }
        let event = Key::namespaced(Kind::Event, "default", "e");
        plane.outside.get(&event, At::Fresh).await.expect("it is kept");
    }
}

/// Terms are measured by the database alone: who is asked at another time by its clock finds the term over, and the
/// one who led before writes nothing more.
#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_past_a_term_hands_over_once() {
    let plane = Plane::new(&["n1"]).await;
    let store = plane.store();
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    let ttl = Duration::from_secs(15);
    let old = store.acquire_lease("probe", first, ttl).await.unwrap().expect("free");
    plane.database.set_back(HOUR);
    assert!(store.acquire_lease("probe", second, ttl).await.unwrap().is_none(), "it is held");
    assert!(store.renew_lease(&old, ttl).await.unwrap(), "and goes on being held");
    plane.database.advance(HOUR);
    let new = store.acquire_lease("probe", second, ttl).await.unwrap().expect("its term is over");
    assert_eq!(new.epoch, old.epoch + 1);
    assert!(!store.renew_lease(&old, ttl).await.unwrap());
}
