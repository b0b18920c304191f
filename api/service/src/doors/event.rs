//! The door of recorders: one Event for all observations of one thing; and the one by which Events, and other objects
//! with a time of their own, go.
//!
//! A record is either the first of its thing, then the Event is created, or it is counted in the Event that is
//! there. Whoever loses a race (two processes that see the same, a client that deletes the Event) looks again.
//! Nothing is decided by what the recorder remembers.

use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::event::{MESSAGE_LIMIT, ObjectReference};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_core::time::{MicroTime, Time};
use horchestra_store::{Class, CommitError, Entry, Guard, MAX_OPS, Op, Refusal, Snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::caller::{Caller, RequestContext};
use crate::clock;
use crate::errors::{door_error, door_status, read_status};
use crate::events::EventRecord;
use crate::request::{DoorError, Outcome};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{Stored, stored_object, tracking};

/// How often a record is tried anew after losing to another write.
const ATTEMPTS: usize = 8;

/// What is put before the message of an Event that stands for several similar ones.
const COMBINED: &str = "(combined from similar events): ";

impl Service {
    pub(crate) async fn store_event(&self, record: &EventRecord) -> Result<Outcome, DoorError> {
        let context = RequestContext::new(record.caller());
        let key = record.key();
        let mut view = self.inner.store.snapshot();
        for _ in 0..ATTEMPTS {
            let (op, stored, guards) = plan(&context, &view, &key, record)?;
            match self.commit_door(&context, "record", &key, op, guards).await {
                Ok(revision) => {
                    let (entry, erased) = stored.at(revision);
                    return Ok(Outcome { entry, changed: true, erased });
                }
                Err(CommitError::Refused(
                    Refusal::AlreadyExists(_) | Refusal::Conflict { .. } | Refusal::NotFound(_),
                )) => {
                    view = self.inner.store.fresh().await.map_err(|e| door_status(read_status(&e)))?;
                }
                Err(error) => return Err(door_error(&key, &error)),
            }
        }
        Err(DoorError::Changed)
    }

    /// Deletes these objects, each unless it has changed since. Answers how many are gone by it.
    pub(crate) async fn drop_events(
        &self,
        context: &RequestContext,
        verb: &str,
        events: &[Arc<Entry>],
        guards: &[Guard],
    ) -> Result<usize, CommitError> {
        let mut gone = 0;
        for chunk in events.chunks(MAX_OPS) {
            let mut left: Vec<&Arc<Entry>> = chunk.iter().collect();
            while let Some(first) = left.first() {
                let ops = left.iter().map(|entry| deletion(entry)).collect();
                match self.commit_all(context, verb, &first.key, ops, guards.to_vec()).await {
                    Ok(_) => {
                        gone += left.len();
                        break;
                    }
                    // Observed again, or gone already: the others can still go.
                    Err(CommitError::Refused(Refusal::Conflict { key, .. } | Refusal::NotFound(key))) => {
                        left.retain(|entry| entry.key != key);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(gone)
    }

    pub(crate) async fn expire(
        &self,
        context: &RequestContext,
        kind: Kind,
        events: &[Arc<Entry>],
    ) -> Result<usize, DoorError> {
        let Some(first) = events.first() else { return Ok(0) };
        let key = &first.key;
        if !matches!(context.caller, Caller::Loop { .. }) || events.iter().any(|e| e.key.kind != kind) {
            let why = "only loops let objects expire, and of one kind at a time";
            return Err(DoorError::Refused(Status::forbidden(key.kind, &key.name, why)));
        }
        self.drop_events(context, "expire", events, &[]).await.map_err(|error| door_error(key, &error))
    }
}

pub(crate) fn deletion(entry: &Entry) -> Op {
    Op::Delete { key: entry.key.clone(), expect: entry.revision }
}

/// What to commit for a record, as things are in this view.
fn plan(
    context: &RequestContext,
    view: &Snapshot,
    key: &Key,
    record: &EventRecord,
) -> Result<(Op, Stored, Vec<Guard>), DoorError> {
    let spec = spec_of(Kind::Event).map_err(DoorError::Refused)?;
    let old = view.get(key);
    let before = old.as_deref().map(stored_object).transpose().map_err(DoorError::Refused)?;
    let object = match &before {
        Some(stored) => {
            let mut object = stored.clone();
            if object.str_at(&["involvedObject", "uid"]) != record.subject.0.uid {
                let why = "the Event of this name is about another object";
                return Err(DoorError::Refused(Status::forbidden(key.kind, &key.name, why)));
            }
            count_in(&mut object, record);
            object
        }
        None => new_event(key, record),
    };
    let columns = columns(spec, &object);
    let managed = tracking::of_component(spec, context, old.as_deref().zip(before.as_ref()), &object);
    let draft = draft(spec, key, &object, columns, managed).map_err(DoorError::Refused)?;
    Ok(match old {
        Some(entry) => {
            let (op, stored) = Stored::update(draft, &entry, Class::Core);
            (op, stored, Vec::new())
        }
        None => {
            let namespace = Guard::Exists(Key::cluster(Kind::Namespace, key.namespace.clone()));
            let stored = Stored::Object { draft: Box::new(draft.clone()), core: None };
            (Op::Create(draft), stored, vec![namespace])
        }
    })
}

fn message(record: &EventRecord) -> String {
    let mut message = String::new();
    if record.combined {
        message.push_str(COMBINED);
    }
    message.push_str(&record.message.replace('\0', "\u{fffd}"));
    message.truncate(message.floor_char_boundary(MESSAGE_LIMIT));
    message
}

fn new_event(key: &Key, record: &EventRecord) -> Object {
    let reason = record.reason;
    let mut object = Object::default();
    for (member, value) in [
        ("apiVersion", json!(Kind::Event.api_version())),
        ("kind", json!(Kind::Event.name())),
        ("involvedObject", reference(&record.subject.0)),
        ("reason", json!(reason.word)),
        ("message", json!(message(record))),
        ("type", json!(reason.event_type())),
        ("action", json!(reason.action)),
        ("reportingComponent", json!(reason.by)),
        ("reportingInstance", json!(&*record.instance)),
        ("source", json!({"component": reason.by})),
        ("eventTime", json!(MicroTime::new(record.first))),
        ("firstTimestamp", json!(Time::new(record.first))),
    ] {
        object.0.insert(member.to_owned(), value);
    }
    object.set_metadata("name", key.name.clone());
    object.set_metadata("namespace", key.namespace.clone());
    object.set_metadata("uid", Uuid::new_v4().to_string());
    object.set_metadata("generation", json!(1));
    object.set_metadata("creationTimestamp", clock::now());
    observe(&mut object, i64::from(record.count), record);
    object
}

fn reference(to: &ObjectReference) -> Value {
    serde_json::to_value(to).unwrap_or_else(|_| json!({}))
}

/// Counts more observations in.
fn count_in(object: &mut Object, record: &EventRecord) {
    let number = |path: &[&str]| object.at(path).and_then(Value::as_i64);
    let before = number(&["series", "count"]).or_else(|| number(&["count"])).unwrap_or(1).max(1);
    object.0.insert("message".to_owned(), json!(message(record)));
    observe(object, before.saturating_add(i64::from(record.count)), record);
}

/// Writes how often it was observed, and when last, in both ways of writing.
fn observe(object: &mut Object, count: i64, record: &EventRecord) {
    let count = count.min(i64::from(i32::MAX));
    let before = object.str_at(&["series", "lastObservedTime"]).parse::<MicroTime>().ok();
    let last = before.map_or(record.last, |before| before.timestamp().max(record.last));
    object.0.insert("count".to_owned(), json!(count));
    object.0.insert("lastTimestamp".to_owned(), json!(Time::new(last)));
    if count > 1 {
        let series = json!({"count": count, "lastObservedTime": MicroTime::new(last)});
        object.0.insert("series".to_owned(), series);
    }
}
