//! What the loop that keeps ApplicationSets writes: children and Services as ordinary writes, and its report.
//!
//! Children are judged by everything that an author's write of them is judged by; what differs is that the
//! loop decided from a view that may be old by the time of the commit. So it says what its decision rests on,
//! as guards: the set that has not changed, siblings that are still there to take over. When one of them does
//! not hold, nothing is written and nothing is tried again: the loop has to look anew.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application_set::ChildStatus;
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::object::Object;
use horchestra_core::status::Reason;
use horchestra_core::time::Time;
use horchestra_store::{Class, Entry, Guard, Revision};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Edit;
use crate::caller::RequestContext;
use crate::conditions::{self, Condition};
use crate::errors::{door_status, guard_error};
use crate::request::{
    Body, DeleteOptions, DoorError, FieldValidation, Outcome, Part, Preconditions, SetReport, WriteOptions,
};
use crate::service::Service;
use crate::write::Unwritten;

/// The conditions of a set that its loop owns; those that a report leaves out do not apply.
const OWN: [&str; 6] = ["Rendered", "Applied", "Converged", "Initialized", "Available", "Progressing"];

impl Service {
    pub(crate) async fn create_from_loop(
        &self,
        context: &RequestContext,
        kind: Kind,
        object: Object,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        let namespace = object.namespace().to_owned();
        let body = Body::Object(object);
        let written = self.create_while(context, kind, &namespace, body, &options(), conditions).await;
        let written = written.map_err(|unwritten| match unwritten {
            // For a new object, the thing that is not found is its namespace.
            Unwritten::Status(status) if status.reason == Reason::NotFound => DoorError::Refused(status),
            unwritten => error(unwritten),
        })?;
        Ok(Outcome { entry: written.entry, changed: true, erased: false })
    }

    pub(crate) async fn update_from_loop(
        &self,
        context: &RequestContext,
        entry: &Entry,
        mut object: Object,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        object.set_metadata("uid", entry.uid.to_string());
        object.set_metadata("resourceVersion", entry.revision.to_string());
        let options = WriteOptions { exact_resource_version: true, ..options() };
        let body = Body::Object(object);
        let written = self.update_while(context, &entry.key, Part::Main, body, &options, conditions).await;
        let written = written.map_err(error)?;
        let changed = written.entry.revision != entry.revision;
        Ok(Outcome { entry: written.entry, changed, erased: written.erased })
    }

    pub(crate) async fn delete_from_loop(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        revision: Option<Revision>,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        let preconditions = Preconditions {
            uid: Some(uid.to_string()),
            resource_version: revision.map(|revision| revision.to_string()),
        };
        let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
        let deleted = self.delete_while(context, key, &options, conditions).await.map_err(error)?;
        Ok(Outcome { entry: deleted.entry, changed: true, erased: deleted.erased })
    }

    pub(crate) async fn store_set_report(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        core_revision: Revision,
        report: &SetReport,
    ) -> Result<Outcome, DoorError> {
        self.edit(context, "status", key, |entry, object| {
            if entry.uid != uid {
                return Err(DoorError::Gone);
            }
            // What was found out about an older version need not hold for this one.
            if entry.core_revision != core_revision {
                return Err(DoorError::Changed);
            }
            write_report(object, report);
            Ok(Edit::Write(Class::Status))
        })
        .await
    }
}

/// What a component says may be newer than this process.
fn options() -> WriteOptions {
    WriteOptions { field_validation: FieldValidation::Ignore, ..WriteOptions::default() }
}

fn error(unwritten: Unwritten) -> DoorError {
    match unwritten {
        Unwritten::Fenced(_, guard) => guard_error(&guard),
        Unwritten::Status(status) if status.reason == Reason::Conflict => DoorError::Changed,
        Unwritten::Status(status) => door_status(status),
    }
}

fn write_report(object: &mut Object, report: &SetReport) {
    let status = conditions::status_mut(object);
    status.insert("phase".to_owned(), report.phase.as_str().into());
    let counts = [
        ("desired", report.desired),
        ("current", Some(report.current)),
        ("scheduled", Some(report.scheduled)),
        ("running", Some(report.running)),
        ("updated", Some(report.updated)),
        ("available", Some(report.available)),
    ];
    for (member, count) in counts {
        if let Some(count) = count {
            status.insert(member.to_owned(), json!(count));
        }
    }
    if report.children.is_empty() {
        status.remove("children");
    } else {
        let children: Vec<Value> = report.children.iter().map(child).collect();
        status.insert("children".to_owned(), Value::Array(children));
    }
    match report.last_progress {
        Some(at) => status.insert("lastProgressTime".to_owned(), Time::new(at).to_string().into()),
        None => status.remove("lastProgressTime"),
    };
    for verdict in &report.conditions {
        let wanted = Condition {
            kind: verdict.kind,
            status: match verdict.status {
                ConditionStatus::True => "True",
                ConditionStatus::False => "False",
                ConditionStatus::Unknown => "Unknown",
            },
            reason: verdict.reason,
            message: &verdict.message,
            generation: report.generation,
        };
        conditions::set(object, &wanted);
    }
    for kind in OWN {
        if !report.conditions.iter().any(|verdict| verdict.kind == kind) {
            conditions::clear(object, kind);
        }
    }
}

fn child(child: &ChildStatus) -> Value {
    let mut value = json!({"name": child.name});
    for (member, text) in [("node", &child.node), ("phase", &child.phase)] {
        if !text.is_empty() {
            value[member] = text.as_str().into();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SetVerdict;

    fn verdict(kind: &'static str) -> SetVerdict {
        let message = String::new();
        SetVerdict { kind, status: ConditionStatus::True, reason: "Because", message }
    }

    #[test]
    fn a_report_leaves_what_others_said_and_takes_back_what_no_longer_applies() {
        let mut object = Object::from_value(json!({"status": {
            "desired": 7, "lastProgressTime": "2026-01-01T00:00:00Z", "theirs": 1,
            "conditions": [{"type": "Theirs", "status": "True"}, {"type": "Initialized", "status": "False"}],
        }}))
        .unwrap();
        let report = SetReport {
            phase: "RenderError".to_owned(),
            conditions: vec![verdict("Rendered")],
            ..SetReport::default()
        };
        write_report(&mut object, &report);
        let status = object.get("status").unwrap();
        assert_eq!(status["desired"], 7, "kept while nobody knows");
        assert_eq!(status["theirs"], 1);
        assert!(status.get("lastProgressTime").is_none());
        let kinds: Vec<&Value> =
            status["conditions"].as_array().unwrap().iter().map(|condition| &condition["type"]).collect();
        assert_eq!(kinds, ["Theirs", "Rendered"]);
        let once = object.clone();
        write_report(&mut object, &report);
        assert_eq!(object, once, "the same again changes nothing");
    }
}
