//! Event: something that happened to another object, told to people.
//!
//! One stored object, two shapes: `v1` Event under `/api/v1`, which is also how it is stored, and Event of
//! the group `events.k8s.io` ([`EVENTS_K8S_IO`]). The second one calls some members by other names and says
//! nothing else, so each shape is a function of the other; see [`crate::registry::Form`].
//!
//! Events are a courtesy to people, not a record: they are kept for an hour after they were last observed,
//! without history, do not keep a namespace from being deleted and go with it. What speaks of a
//! cluster-scoped object lives in the namespace `default`. They are judged as Kubernetes judges them, that is
//! leniently, so that any recorder can write here: an Event without `eventTime` (the older way) only has to be
//! in the namespace of the object that it speaks of.

mod columns;
mod rules;

pub(crate) use columns::COLUMNS;

use std::fmt::Write as _;
use std::sync::LazyLock;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::meta::ObjectMeta;
use super::null_as_default;
use crate::kind::Kind;
use crate::registry::{Form, KindSpec, Selectable};
use crate::schema::{self, Schema, Shape};
use crate::time::{MicroTime, Time};

/// Where Events about cluster-scoped objects live.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Longest message of an Event with an `eventTime`, in bytes.
pub const MESSAGE_LIMIT: usize = 1024;

/// Something that happened to another object, as the component that saw it tells people. Events are kept for
/// an hour after they were last observed and are not meant for programs to rely on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// The object that the Event is about.
    #[serde(deserialize_with = "null_as_default")]
    pub involved_object: ObjectReference,
    /// Why, as one word for machines.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reason: String,
    /// What happened, as a sentence for people.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub message: String,
    /// `Normal`, or `Warning` when somebody should look at it.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub type_: String,
    /// When it was first observed, to the microsecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// Repetitions, when there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<EventSeries>,
    /// What was done, or failed to be done, to the object.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub action: String,
    /// Another object that had a part in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<ObjectReference>,
    /// Name of the component that reports it, such as `horchestra.io/scheduler`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reporting_component: String,
    /// Which of several such components.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub reporting_instance: String,
    /// The component that reports it, in the older way of writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<EventSource>,
    /// When it was first observed, in the older way of writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<Time>,
    /// When it was last observed, in the older way of writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_timestamp: Option<Time>,
    /// How often it was observed, in the older way of writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
}

/// Points to an object, or to a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// Kind of the object.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub kind: String,
    /// Namespace of the object; empty for cluster-scoped ones.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub namespace: String,
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub name: String,
    /// Identity of the object: a later one of the same name is another.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub uid: String,
    /// Group and version of the object.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub api_version: String,
    /// Revision of the object that is spoken of.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub resource_version: String,
    /// The part that is spoken of, such as `spec.containers{web}`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub field_path: String,
}

/// Who reports an Event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSource {
    /// Name of the component.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub component: String,
    /// Node on which it runs.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub host: String,
}

/// Repetitions of an Event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventSeries {
    /// How often it was observed, the first time included.
    #[serde(deserialize_with = "null_as_default")]
    pub count: i32,
    /// When it was last observed, to the microsecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<MicroTime>,
}

/// The name of the Event about a subject of this name that `identity` tells apart from others: the same whoever
/// asks, so that all who see the same thing write to one Event.
pub fn name_of(subject: &str, identity: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in identity {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = hasher.finalize();
    let mut name = subject[..subject.floor_char_boundary(LONGEST_SUBJECT)].to_owned();
    // Cut in the middle, it may end in what no name ends in.
    name.truncate(name.trim_end_matches(['.', '-']).len());
    name.push('.');
    for byte in &digest[..8] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// What is kept of the name of a subject in the name of its Event, in bytes.
const LONGEST_SUBJECT: usize = 230;

/// The times of an Event and nothing else of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Observations {
    metadata: Created,
    event_time: Option<MicroTime>,
    series: Option<EventSeries>,
    first_timestamp: Option<Time>,
    last_timestamp: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Created {
    creation_timestamp: Option<Time>,
}

impl Observations {
    /// When the Event was last observed, as far as that can be before `now`: what claims to come from the
    /// future does not count, or it would be kept until then. When it was made is no claim: the clock that said so is
    /// ahead of this one, and it was made just now.
    pub fn last(&self, now: Timestamp) -> Timestamp {
        let claimed = [
            self.series.as_ref().and_then(|series| series.last_observed_time).map(MicroTime::timestamp),
            self.last_timestamp.map(Time::timestamp),
            self.event_time.map(MicroTime::timestamp),
            self.first_timestamp.map(Time::timestamp),
        ];
        let made = self.metadata.creation_timestamp.map(|at| at.timestamp().min(now));
        claimed.into_iter().flatten().filter(|at| *at <= now).chain(made).max().unwrap_or(Timestamp::MIN)
    }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Event>);
    &SCHEMA
}

/// The same, with the names of the other shape.
fn renamed_schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let mut renamed = schema().clone();
        if let Shape::Object(object) = &mut renamed.shape {
            for property in &mut object.properties {
                property.name = FORM.other(&property.name).to_owned();
            }
            object.properties.sort_by(|a, b| a.name.cmp(&b.name));
        }
        renamed
    });
    &SCHEMA
}

const fn selectable(field: &'static str, path: &'static [&'static str]) -> Selectable {
    Selectable { field, path, absent: "" }
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["ev"],
    history: None,
    validate: rules::validate,
    columns: COLUMNS,
    selectable: &[
        selectable("involvedObject.apiVersion", &["involvedObject", "apiVersion"]),
        selectable("involvedObject.fieldPath", &["involvedObject", "fieldPath"]),
        selectable("involvedObject.kind", &["involvedObject", "kind"]),
        selectable("involvedObject.name", &["involvedObject", "name"]),
        selectable("involvedObject.namespace", &["involvedObject", "namespace"]),
        selectable("involvedObject.resourceVersion", &["involvedObject", "resourceVersion"]),
        selectable("involvedObject.uid", &["involvedObject", "uid"]),
        selectable("reason", &["reason"]),
        selectable("reportingComponent", &["reportingComponent"]),
        selectable("source", &["source", "component"]),
        selectable("type", &["type"]),
    ],
    ..KindSpec::base(Kind::Event, "event", "EventList", schema)
};

static FORM: Form = Form {
    group: "events.k8s.io",
    api_version: "events.k8s.io/v1",
    members: &[
        ("involvedObject", "regarding"),
        ("message", "note"),
        ("reportingComponent", "reportingController"),
        ("source", "deprecatedSource"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
    ],
};

/// Events in the shape of the group `events.k8s.io`.
pub static EVENTS_K8S_IO: KindSpec = KindSpec {
    form: Some(&FORM),
    short_names: &["ev"],
    history: None,
    columns: COLUMNS,
    ..KindSpec::base(Kind::Event, "event", "EventList", renamed_schema)
};
