//! Our objects in the shape of Kubernetes kinds, for clients that know only those: Applications as Pods,
//! Nodes, Namespaces, and Events in their second group.
//!
//! Each alias is a pure function of one stored object, with its metadata and its resourceVersion; so lists
//! and watches of an alias are those of the stored kind, object by object. Only what can be turned back
//! ([`Alias::written`]) is written through its alias.

mod event;
mod namespace;
mod node;
mod pod;

use serde_json::{Map, Value};

use crate::kind::Kind;
use crate::object::Object;
use crate::registry::KindSpec;
use crate::table::Column;

/// How one stored kind is shown in another group.
pub struct Alias {
    /// What is stored.
    pub kind: Kind,
    /// The group that the alias is served under; empty for the core group. Its version is `v1`.
    pub group: &'static str,
    /// `apiVersion` of what is shown.
    pub api_version: &'static str,
    /// The entry of the shape, where objects are written in it as well.
    pub written: Option<&'static KindSpec>,
    /// The name in URLs.
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// The name in `kind:` fields.
    pub name: &'static str,
    pub list_kind: &'static str,
    /// Whether discovery lists the alias beside the kinds of its group. Nodes and Namespaces are served but not listed, so that their
    /// names resolve to our own kinds.
    pub advertised: bool,
    pub columns: &'static [Column],
    /// Field selectors, each with the field of the stored kind that it means.
    pub fields: &'static [(&'static str, &'static str)],
    /// The alias of one stored object.
    pub project: fn(&Object) -> Object,
}

pub use event::EVENTS;
pub use namespace::NAMESPACES;
pub use node::NODES;
pub use pod::PODS;

/// Every alias.
pub static ALIASES: [&Alias; 4] = [&PODS, &NODES, &NAMESPACES, &EVENTS];

/// The alias that URLs name this way.
pub fn by_resource(group: &str, plural: &str) -> Option<&'static Alias> {
    ALIASES.into_iter().find(|alias| alias.group == group && alias.plural == plural)
}

impl Alias {
    /// The field of the stored kind that a field selector of the alias means.
    pub fn stored_field(&self, field: &str) -> Option<&'static str> {
        self.fields.iter().find(|(alias, _)| *alias == field).map(|(_, stored)| *stored)
    }
}

/// The metadata that aliases show: identity and labels.
fn metadata(object: &Object) -> Map<String, Value> {
    const SHOWN: [&str; 8] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "labels",
    ];
    let metadata = object.metadata().into_iter().flatten();
    metadata
        .filter(|(member, _)| SHOWN.contains(&member.as_str()))
        .map(|(member, value)| (member.clone(), value.clone()))
        .collect()
}

/// The stored condition of a type.
fn condition<'a>(object: &'a Object, type_: &str) -> Option<&'a Value> {
    let conditions = object.at(&["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap_or_default()
}
