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
use crate::selector::Term;
use crate::table::Column;

const PHASE: &str = "status.phase";
/// A phase that nothing is in.
const NO_PHASE: &str = "Unknown";

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
    /// Stored values of `status.phase` with what each is shown as; empty: they are the same.
    pub phases: &'static [(&'static str, &'static str)],
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
    /// What a term of a field selector of the alias demands of the stored kind; `None`: the alias has no such field.
    pub fn stored_terms(&self, term: &Term) -> Option<Vec<Term>> {
        let (_, stored) = self.fields.iter().find(|(alias, _)| *alias == term.field)?;
        if term.field != PHASE || self.phases.is_empty() {
            return Some(vec![Term { field: (*stored).to_owned(), ..term.clone() }]);
        }
        let is =
            |equal: bool, value: &str| Term { field: (*stored).to_owned(), equal, value: value.to_owned() };
        let asked = |shown: &str| shown == term.value;
        if term.equal && !self.phases.iter().any(|(_, shown)| asked(shown)) {
            return Some(vec![is(true, NO_PHASE)]);
        }
        // All terms have to hold, so it is said what it must not be.
        let others = self.phases.iter().filter(|(_, shown)| asked(shown) != term.equal);
        Some(others.map(|(stored, _)| is(false, stored)).collect())
    }
}

/// The metadata that aliases show: identity and labels.
fn metadata(object: &Object) -> Map<String, Value> {
    const SHOWN: [&str; 9] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        // kubectl describes nothing that is being deleted without it.
        "deletionGracePeriodSeconds",
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
