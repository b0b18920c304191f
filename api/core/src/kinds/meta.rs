//! Metadata as typed structs, for reading.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::null_as_default;
use crate::time::Time;

/// Standard metadata that every object carries: its name, its identity and what others wrote on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name of the object, unique within its kind and namespace. Lower-case letters, digits, `-` and `.`,
    /// beginning and ending with a letter or digit, at most 253 characters. Cannot be changed.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub name: String,
    /// Prefix from which the server makes a name, by adding five random characters, when no name is given.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub generate_name: String,
    /// Namespace of the object. Must match the one in the request's path; taken from there when absent.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub namespace: String,
    /// Identifier that no other object has ever had or will have, not even one of the same name later.
    /// Assigned by the server.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub uid: String,
    /// Revision of the last change to the object, as an opaque text. Send it back to make a write
    /// conditional, or watch from it. Assigned by the server.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub resource_version: String,
    /// Counts the changes to what is wanted (everything but metadata and status). Assigned by the server.
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// When the object was created. Assigned by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// When deletion was asked for. While it is set the object only waits for its finalizers. Assigned by
    /// the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Seconds that were granted when deletion was asked for. Assigned by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Key and value pairs by which objects are selected.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Key and value pairs for tools; nothing selects by them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
    /// Objects that this one belongs to. When all of them are gone it is deleted as well.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub owner_references: Vec<OwnerReference>,
    /// What has to happen before the object may vanish. Each writer removes its own entry when done.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub finalizers: Vec<String>,
    /// Which manager set which field. Kept by the server.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

impl ObjectMeta {
    /// The owner that runs this object, if one does.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }
}

/// An object that another one belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version of the owner.
    #[serde(deserialize_with = "null_as_default")]
    pub api_version: String,
    /// Kind of the owner.
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
    /// Name of the owner, in the same namespace or cluster-scoped.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Identity of the owner: a later object of the same name is not the owner.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: String,
    /// Whether the owner is the one that runs this object. At most one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// The fields that one manager set with one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedFieldsEntry {
    /// Name of the manager.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub manager: String,
    /// `Apply` or `Update`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub operation: String,
    /// Version in which the fields are named.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub api_version: String,
    /// When the entry last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// How `fieldsV1` is written.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub fields_type: String,
    /// The set of fields.
    #[serde(skip_serializing_if = "Option::is_none", rename = "fieldsV1")]
    #[schemars(schema_with = "super::free_form")]
    pub fields_v1: Option<serde_json::Map<String, serde_json::Value>>,
    /// The subresource through which the fields were set; empty for the object itself.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub subresource: String,
}

/// One aspect of the state of an object, as somebody last judged it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// The `metadata.generation` that was judged.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    #[serde(default)]
    pub last_transition_time: Option<Time>,
    /// Why, as one word for machines.
    #[serde(default, deserialize_with = "null_as_default")]
    pub reason: String,
    /// Why, as a sentence for people.
    #[serde(default, deserialize_with = "null_as_default")]
    pub message: String,
}

/// Verdict of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ConditionStatus {
    True,
    False,
    #[default]
    Unknown,
}

impl ConditionStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> ConditionStatus {
        if holds { ConditionStatus::True } else { ConditionStatus::False }
    }
}

/// The condition of this type, if somebody has judged it.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Puts a verdict in. `lastTransitionTime` moves to `now` only when the status does; the answer says
/// whether anything changed at all.
pub fn set_condition(conditions: &mut Vec<Condition>, mut verdict: Condition, now: Time) -> bool {
    match conditions.iter_mut().find(|condition| condition.type_ == verdict.type_) {
        Some(stored) => {
            verdict.last_transition_time =
                if stored.status == verdict.status { stored.last_transition_time } else { Some(now) };
            let changed = *stored != verdict;
            *stored = verdict;
            changed
        }
        None => {
            verdict.last_transition_time = Some(now);
            conditions.push(verdict);
            true
        }
    }
}
