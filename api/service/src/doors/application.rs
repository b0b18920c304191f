//! What nodes say about Applications.
//!
//! A report counts only from the node that the Application is placed on, through that node's live session,
//! and for the very object that was sent there. It replaces what nodes own of the status and nothing else;
//! a report that says what is stored already writes nothing.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Class, Entry};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Edit;
use crate::admission::{self, NODE_TEARDOWN};
use crate::caller::{Caller, RequestContext};
use crate::clock;
use crate::conditions::{self, Condition};
use crate::placement::{self, READY};
use crate::request::{ApplicationReport, DoorError, Outcome};
use crate::service::Service;

/// Longest message that is kept, in bytes.
const MESSAGE_LIMIT: usize = 1024;
/// Says that a node's reports carry no evidence, so that they are not believed.
const NODE_DEGRADED: &str = "NodeDegraded";

impl Service {
    pub(crate) async fn store_report(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        report: &ApplicationReport,
    ) -> Result<Outcome, DoorError> {
        let node = reporting_node(context, key)?;
        self.edit(context, "status", key, |entry, object| {
            check_placed(entry, object, uid, node)?;
            take_over(key, object, report)?;
            Ok(Edit::Write(Class::Status))
        })
        .await
    }

    pub(crate) async fn release(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
    ) -> Result<Outcome, DoorError> {
        let node = reporting_node(context, key)?;
        self.edit(context, "release", key, |entry, object| {
            check_placed(entry, object, uid, node)?;
            if !entry.deleting {
                return Err(refused(key, "the application is not being deleted"));
            }
            admission::set_finalizer(object, NODE_TEARDOWN, false);
            if object.finalizers().is_empty() {
                return Ok(Edit::Erase);
            }
            conditions::status_mut(object).insert("phase".to_owned(), "Terminated".into());
            Ok(Edit::Write(Class::Core))
        })
        .await
    }
}

fn refused(key: &Key, why: &str) -> DoorError {
    DoorError::Refused(Status::forbidden(key.kind, &key.name, why))
}

/// The node whose session makes the call.
fn reporting_node<'a>(context: &'a RequestContext, key: &Key) -> Result<&'a str, DoorError> {
    match &context.caller {
        Caller::Node { name, .. } if key.kind == Kind::Application => Ok(name),
        _ => Err(refused(key, "only the node of an application reports about it")),
    }
}

fn check_placed(entry: &Entry, object: &Object, uid: Uuid, node: &str) -> Result<(), DoorError> {
    if entry.uid != uid {
        return Err(DoorError::Gone);
    }
    if placement::node_of(object) != node {
        return Err(refused(&entry.key, "the application is not placed on this node"));
    }
    Ok(())
}

fn take_over(key: &Key, object: &mut Object, report: &ApplicationReport) -> Result<(), DoorError> {
    let generation = object.generation();
    let frozen = placement::is_frozen(object);
    match report.phase.as_str() {
        "Pending" | "Running" | "Succeeded" | "Failed" | "Terminating" | "Terminated" => {}
        "Frozen" if frozen => {}
        other => return Err(refused(key, &format!("phase {other:?} means nothing here"))),
    }
    if is_without_evidence(object, report) {
        let message = "the node reports a failed job without any trace of a run";
        let wanted =
            Condition { kind: NODE_DEGRADED, status: "True", reason: "NoEvidence", message, generation: 0 };
        conditions::set(object, &wanted);
        return Ok(());
    }
    let observed = report.observed_generation.clamp(0, generation);
    let attempts = attempts(object, report, observed);
    let terminal = is_terminal(object, &report.phase, attempts);
    let message = cut(&report.message);
    // Only a workload with a network of its own has an address of its own.
    let routed = object.at(&["spec", "hostNetwork"]) == Some(&Value::Bool(false));
    let address = report
        .address
        .clone()
        .filter(|text| routed && report.phase == "Running" && text.split('/').next().is_some_and(is_address));
    // "Ready since" speaks of one generation: a newer one that is ready has become so just now.
    if object.at(&["status", "observedGeneration"]).and_then(Value::as_i64).unwrap_or(0) < observed {
        conditions::clear(object, READY);
    }
    // A release keeps the last state in front of readers; the phase alone says how far the removal is.
    let status = conditions::status_mut(object);
    status.insert("phase".to_owned(), report.phase.as_str().into());
    put(status, "message", (!message.is_empty()).then(|| message.into()));
    put(status, "observedGeneration", (observed > 0).then(|| observed.into()));
    put(status, "attempts", (attempts > 0).then(|| attempts.into()));
    put(status, "address", address.map(Value::from));
    put(status, "exitCode", report.exit_code.filter(|_| terminal).map(Value::from));
    let finished = report.finished_at.filter(|at| terminal && at.as_second() > 0);
    put(status, "finishedAt", finished.map(|at| clock::stamp(at).into()));
    conditions::clear(object, NODE_DEGRADED);
    placement::judge_freeze(object, &report.phase);
    let (ready, reason) = readiness(&report.phase, terminal);
    conditions::set(
        object,
        &Condition { kind: READY, status: ready, reason, message: "", generation: observed },
    );
    Ok(())
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

fn put(status: &mut Map<String, Value>, member: &str, value: Option<Value>) {
    match value {
        Some(value) => status.insert(member.to_owned(), value),
        None => status.remove(member),
    };
}

fn readiness(phase: &str, terminal: bool) -> (&'static str, &'static str) {
    match phase {
        "Running" => ("True", "Running"),
        "Succeeded" => ("False", "Finished"),
        "Failed" if terminal => ("False", "Finished"),
        "Failed" => ("False", "Failed"),
        "Terminating" | "Terminated" => ("False", "Terminating"),
        "Frozen" => ("False", "Frozen"),
        _ => ("False", "Starting"),
    }
}

fn is_job(object: &Object) -> bool {
    object.str_at(&["spec", "lifecycle", "restartPolicy"]) == "Never"
}

/// A node that cannot reach its init system calls everything failed. A job that really failed has at least
/// a time, a count or an exit code to show.
fn is_without_evidence(object: &Object, report: &ApplicationReport) -> bool {
    is_job(object)
        && report.phase == "Failed"
        && report.finished_at.is_none_or(|at| at.as_second() <= 0)
        && report.attempts <= 0
        && report.exit_code.unwrap_or(0) == 0
}

/// Runs so far: never fewer than stored for the same generation.
fn attempts(object: &Object, report: &ApplicationReport, observed: i64) -> i64 {
    let number = |path: &[&str]| object.at(path).and_then(Value::as_i64).unwrap_or(0);
    let reported = i64::from(report.attempts.max(0));
    if number(&["status", "observedGeneration"]) == observed {
        reported.max(number(&["status", "attempts"]))
    } else {
        reported
    }
}

fn is_terminal(object: &Object, phase: &str, attempts: i64) -> bool {
    let retries = object.at(&["spec", "lifecycle", "backoffLimit"]).and_then(Value::as_i64).unwrap_or(0);
    phase == "Succeeded" || (phase == "Failed" && is_job(object) && attempts.max(1) > retries.max(0))
}

/// A message of bounded length without characters that terminals act on or the database cannot keep.
fn cut(message: &str) -> String {
    let mut end = message.len().min(MESSAGE_LIMIT);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(backoff: i64, status: Value) -> Object {
        Object::from_value(json!({
            "metadata": {"generation": 3},
            "spec": {"lifecycle": {"restartPolicy": "Never", "backoffLimit": backoff}},
            "status": status,
        }))
        .unwrap()
    }

    fn report(phase: &str, attempts: i32, exit_code: Option<i32>) -> ApplicationReport {
        ApplicationReport {
            phase: phase.to_owned(),
            attempts,
            exit_code,
            observed_generation: 9,
            finished_at: "2026-01-02T03:04:05.6Z".parse().ok(),
            ..ApplicationReport::default()
        }
    }

    fn key() -> Key {
        Key::namespaced(Kind::Application, "default", "job")
    }

    #[test]
    fn exit_codes_are_kept_of_terminal_phases_only() {
        for (backoff, attempts, phase, kept) in [
            (2, 1, "Failed", false),
            (2, 3, "Failed", true),
            (0, 0, "Failed", true),
            (2, 1, "Running", false),
            (2, 1, "Succeeded", true),
        ] {
            let mut object = job(backoff, json!({}));
            take_over(&key(), &mut object, &report(phase, attempts, Some(7))).unwrap();
            let status = object.get("status").unwrap();
            assert_eq!(status.get("exitCode").is_some(), kept, "{phase} {attempts}/{backoff}");
            assert_eq!(status.get("finishedAt").is_some(), kept, "{phase} {attempts}/{backoff}");
            assert_eq!(status["observedGeneration"], 3, "never ahead of what is stored");
        }
    }

    #[test]
    fn attempts_do_not_go_back_within_a_generation() {
        let mut object = job(5, json!({"observedGeneration": 3, "attempts": 4}));
        take_over(&key(), &mut object, &report("Running", 2, None)).unwrap();
        assert_eq!(object.at(&["status", "attempts"]), Some(&json!(4)));
        let mut object = job(5, json!({"observedGeneration": 2, "attempts": 4}));
        take_over(&key(), &mut object, &report("Running", 1, None)).unwrap();
        assert_eq!(object.at(&["status", "attempts"]), Some(&json!(1)));
    }

    #[test]
    fn a_failure_without_evidence_is_not_believed_until_there_is_some() {
        let mut object = job(0, json!({"phase": "Running"}));
        let hollow = ApplicationReport { finished_at: None, ..report("Failed", 0, Some(0)) };
        take_over(&key(), &mut object, &hollow).unwrap();
        assert_eq!(object.str_at(&["status", "phase"]), "Running");
        assert!(conditions::is_true(&object, NODE_DEGRADED));
        take_over(&key(), &mut object, &report("Failed", 1, Some(1))).unwrap();
        assert_eq!(object.str_at(&["status", "phase"]), "Failed");
        assert!(conditions::find(&object, NODE_DEGRADED).is_none());
    }

    #[test]
    fn unknown_phases_are_refused_and_frozen_needs_a_freeze() {
        let mut object = job(0, json!({}));
        for phase in ["", "running", "Frozen", "Odd"] {
            assert!(take_over(&key(), &mut object, &report(phase, 1, None)).is_err(), "{phase:?}");
        }
        object.0["spec"]["frozen"] = json!(true);
        assert!(take_over(&key(), &mut object, &report("Frozen", 1, None)).is_ok());
    }

    #[test]
    fn the_same_report_twice_changes_nothing() {
        let mut object = job(0, json!({}));
        take_over(&key(), &mut object, &report("Running", 1, None)).unwrap();
        let once = object.clone();
        take_over(&key(), &mut object, &report("Running", 1, None)).unwrap();
        assert_eq!(object, once);
    }

    #[test]
    fn ready_since_speaks_of_one_generation() {
        let mut object = job(
            0,
            json!({"observedGeneration": 2, "phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "reason": "Running", "message": "", "observedGeneration": 2,
                 "lastTransitionTime": "2020-01-01T00:00:00Z"},
            ]}),
        );
        let since = |object: &Object| conditions::find(object, READY).unwrap()["lastTransitionTime"].clone();
        let of_before = ApplicationReport { observed_generation: 2, ..report("Running", 1, None) };
        take_over(&key(), &mut object, &of_before).unwrap();
        assert_eq!(since(&object), "2020-01-01T00:00:00Z", "still the same one");
        take_over(&key(), &mut object, &report("Running", 1, None)).unwrap();
        assert_ne!(since(&object), "2020-01-01T00:00:00Z", "the new one is ready since now");
    }

    #[test]
    fn messages_are_cut_between_characters() {
        let long = "é".repeat(MESSAGE_LIMIT);
        assert_eq!(cut(&long).len(), MESSAGE_LIMIT);
        assert_eq!(cut(&format!("x{long}")).len(), MESSAGE_LIMIT - 1);
        assert_eq!(cut("a\0b"), "a\u{fffd}b");
    }
}
