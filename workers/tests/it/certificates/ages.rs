//! Requests go when they have had their time.

use horchestra_workers::certificates::policy::kept_until;
use jiff::{Span, Timestamp};
use serde_json::{Value, json};

use super::support::{World, agent, object, request, typed};

/// Now, as the tests have it.
const NOW: &str = "2026-06-01T12:00:00Z";

fn ago(minutes: i64) -> String {
    let now: Timestamp = NOW.parse().unwrap();
    (now - Span::new().minutes(minutes)).to_string()
}

/// A condition that is true since so many minutes ago.
fn since(kind: &str, minutes: i64) -> Value {
    json!({"type": kind, "status": "True", "lastTransitionTime": ago(minutes)})
}

fn aged(made: Option<i64>, phase: &str, conditions: &[Value]) -> Value {
    let mut object = object("r", &request("node-1"));
    if let Some(minutes) = made {
        object["metadata"]["creationTimestamp"] = json!(ago(minutes));
    }
    object["status"] = json!({"phase": phase, "conditions": conditions});
    object
}

#[test]
fn how_long_a_request_is_kept() {
    let used = json!({"type": "StandingApproval", "status": "False", "lastTransitionTime": ago(5)});
    let failed = json!({"type": "Issued", "status": "False", "lastTransitionTime": ago(5)});
    let (hour, day) = (60, 24 * 60);
    for (what, object, gone) in [
        ("decided 59 minutes ago", aged(Some(hour - 1), "Approved", &[]), false),
        ("decided 61 minutes ago", aged(Some(hour + 1), "Approved", &[]), true),
        ("denied 61 minutes ago", aged(Some(hour + 1), "Denied", &[since("Denied", hour + 1)]), true),
        ("open for 23 hours", aged(Some(day - hour), "Pending", &[]), false),
        ("open for 25 hours", aged(Some(day + hour), "Pending", &[]), true),
        ("without a phase for 25 hours", aged(Some(day + hour), "", &[]), true),
        ("of an unknown age", aged(None, "Approved", &[]), false),
        ("of an unknown age, open", aged(None, "Pending", &[]), false),
        ("made long ago, signed just now", aged(Some(5 * hour), "Approved", &[since("Issued", 5)]), false),
        ("made long ago, denied just now", aged(Some(5 * hour), "Denied", &[since("Denied", 5)]), false),
        ("approved just now after a day", aged(Some(day + hour), "Pending", &[since("Approved", 5)]), false),
        ("it fails to be signed for a day", aged(Some(day + hour), "Pending", &[failed]), true),
        (
            "an approval stands on it",
            aged(Some(5 * hour), "Approved", &[since("StandingApproval", 5 * hour)]),
            false,
        ),
        (
            "an approval stood on it for a day",
            aged(Some(25 * hour), "Approved", &[since("StandingApproval", 25 * hour)]),
            true,
        ),
        ("the approval on it was used", aged(Some(5 * hour), "Approved", &[used]), true),
        (
            "an approval stands on a superseded one",
            aged(Some(5 * hour), "Denied", &[since("StandingApproval", 5 * hour)]),
            false,
        ),
    ] {
        let until = kept_until(&typed(object));
        assert_eq!(until.is_some_and(|until| until <= NOW.parse().unwrap()), gone, "{what}: {until:?}");
    }
}

fn in_two_hours() -> Timestamp {
    Timestamp::now() + Span::new().hours(2)
}

fn in_two_days() -> Timestamp {
    Timestamp::now() + Span::new().hours(48)
}

/// A flood of requests: those of a node supersede each other, and all of them go with their time.
#[tokio::test]
async fn a_flood_of_requests_passes() {
    let world = World::new(false).await;
    let pem = request("node-1");
    for number in 0..60 {
        world.create(&agent("node-1", "aa"), &format!("r{number:02}"), &pem).await;
    }
    world.pass(None).await;
    assert_eq!(world.names().await.len(), 60);
    let report = world.pass_of(&mut world.reconciler(None).with_clock(in_two_hours)).await;
    assert_eq!((report.writes, report.refused), (59, 0));
    assert_eq!(world.names().await, ["r59"], "the one that is open");
    let report = world.pass_of(&mut world.reconciler(None).with_clock(in_two_days)).await;
    assert_eq!((report.writes, world.names().await.len()), (1, 0));
}

#[tokio::test]
async fn what_somebody_else_holds_is_marked_and_stays() {
    let world = World::new(false).await;
    let mut held = object("held", &request("node-1"));
    held["metadata"]["finalizers"] = json!(["example.org/archive"]);
    held["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    world.plant(held).await;
    assert_eq!(world.pass(None).await.writes, 1);
    let marked = world.get("held").await.unwrap();
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(world.pass(None).await.writes, 0, "once");
}
