//! The kinds that this server serves, and what the rest of the product needs to know of each.
//!
//! Adding a kind is one module under [`crate::kinds`] and one line in the list of this module. Everything generic
//! (routes, discovery, OpenAPI, tables, watch cache) walks this list and knows no kind by name.

use serde_json::{Map, Value};

use crate::kind::Kind;
use crate::kinds;
use crate::object::Object;
use crate::schema::Schema;
use crate::status::Cause;
use crate::table::{Column, PLAIN};

/// What the generic code needs to know of one kind.
pub struct KindSpec {
    pub kind: Kind,
    pub list_kind: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// Names under which `kubectl get <category>` finds the kind beside others.
    pub categories: &'static [&'static str],
    /// How many past versions of an object are kept; `None` keeps no bodies.
    pub history: Option<u32>,
    pub(crate) schema: fn() -> &'static Schema,
    /// Runs on the raw document before the declared defaults. May meet any JSON.
    pub defaults: fn(&mut Map<String, Value>),
    /// Rules of one object alone that the schema cannot say: every violation, in the order of the fields.
    /// Runs on an object that satisfies the schema.
    pub validate: fn(&Object) -> Vec<Cause>,
    /// What tables show, name and age included.
    pub columns: &'static [Column],
    /// Fields beyond `metadata.name` and `metadata.namespace` that field selectors may name.
    pub selectable: &'static [Selectable],
    /// What the store keeps beside the body.
    pub facts: fn(&Object) -> Facts,
    /// The other objects that one object speaks of.
    pub references: fn(&Object) -> Vec<Reference>,
}

/// A field that field selectors may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selectable {
    /// As written in selectors.
    pub field: &'static str,
    /// Where the value lies. Strings, booleans and numbers are compared by their text.
    pub path: &'static [&'static str],
    /// The value of an object that does not say.
    pub absent: &'static str,
}

/// What the store keeps of an object beside its body, to sum and search by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Node that the object is bound to; empty for none.
    pub node: String,
    /// Phase as reported; empty for none.
    pub phase: String,
    /// Billionths of a core: what an Application counts with on its node (0 once finished), what a Node
    /// has.
    pub cpu_nano: i64,
    /// Bytes, likewise.
    pub memory_bytes: i64,
}

/// Another object that an object speaks of. Names of namespaced kinds are of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// Runs on this Node, which must exist.
    Node(String),
    /// Reads this Secret and does not start without it.
    Secret(String),
    /// Reads this Secret if there is one.
    SecretOptional(String),
    /// Mounts this PersistentVolume, which is made when it is missing.
    Volume(String),
    /// Is a member of this Service, which must exist.
    Service(String),
    /// Grants this Role, which need not exist.
    Role(String),
    /// Grants this ClusterRole, which need not exist.
    ClusterRole(String),
}

impl Reference {
    /// Kind and name of the target.
    pub fn target(&self) -> (Kind, &str) {
        match self {
            Reference::Node(name) => (Kind::Node, name),
            Reference::Secret(name) | Reference::SecretOptional(name) => (Kind::Secret, name),
            Reference::Volume(name) => (Kind::PersistentVolume, name),
            Reference::Service(name) => (Kind::Service, name),
            Reference::Role(name) => (Kind::Role, name),
            Reference::ClusterRole(name) => (Kind::ClusterRole, name),
        }
    }
}

/// History of kinds that say nothing else.
const DEFAULT_HISTORY: u32 = 10;

impl KindSpec {
    /// An entry with nothing special about it.
    pub(crate) const fn base(
        kind: Kind,
        singular: &'static str,
        list_kind: &'static str,
        schema: fn() -> &'static Schema,
    ) -> KindSpec {
        KindSpec {
            kind,
            list_kind,
            singular,
            schema,
            short_names: &[],
            categories: &[],
            history: Some(DEFAULT_HISTORY),
            defaults: |_| {},
            validate: |_| Vec::new(),
            columns: PLAIN,
            selectable: &[],
            facts: |_| Facts::default(),
            references: |_| Vec::new(),
        }
    }

    /// What documents of the kind may look like.
    pub fn schema(&self) -> &'static Schema {
        (self.schema)()
    }

    /// One or two sentences about the kind.
    pub fn description(&self) -> &'static str {
        &self.schema().description
    }

    pub fn plural(&self) -> &'static str {
        self.kind.plural()
    }

    pub fn namespaced(&self) -> bool {
        self.kind.namespaced()
    }

    pub fn has_status(&self) -> bool {
        self.kind.has_status()
    }

    /// Values of all selectable fields, `metadata.name` and `metadata.namespace` included, in byte order of
    /// the field.
    pub fn selectable_fields(&self, object: &Object) -> Vec<(String, String)> {
        let mut fields = vec![("metadata.name".to_owned(), object.name().to_owned())];
        if self.namespaced() {
            fields.push(("metadata.namespace".to_owned(), object.namespace().to_owned()));
        }
        fields.extend(self.selectable.iter().map(|field| (field.field.to_owned(), field.value(object))));
        fields.sort();
        fields
    }

    /// Whether a field selector may name this field.
    pub fn is_selectable(&self, field: &str) -> bool {
        field == "metadata.name"
            || (field == "metadata.namespace" && self.namespaced())
            || self.selectable.iter().any(|selectable| selectable.field == field)
    }
}

impl Selectable {
    /// The field of this object, as text.
    pub fn value(&self, object: &Object) -> String {
        match object.at(self.path) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ => self.absent.to_owned(),
        }
    }
}

/// Every served kind, in the order of discovery.
static SERVED: &[&KindSpec] = &[
    &kinds::certificate_signing_request::SPEC,
    &kinds::application::SPEC,
    &kinds::application_set::SPEC,
    &kinds::namespace::SPEC,
    &kinds::node::SPEC,
    &kinds::persistent_volume::SPEC,
    &kinds::secret::SPEC,
    &kinds::service::SPEC,
    &kinds::rbac::CLUSTER_ROLE_BINDING,
    &kinds::rbac::CLUSTER_ROLE,
    &kinds::rbac::ROLE_BINDING,
    &kinds::rbac::ROLE,
    &kinds::secret_store::SPEC,
];

/// Every served kind, ordered by group and plural.
pub fn served() -> &'static [&'static KindSpec] {
    SERVED
}

/// The entry of a kind; `None` for kinds that are not served.
pub fn spec(kind: Kind) -> Option<&'static KindSpec> {
    SERVED.iter().copied().find(|spec| spec.kind == kind)
}

/// The kind that URLs name this way.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static KindSpec> {
    SERVED
        .iter()
        .copied()
        .find(|spec| spec.kind.group() == group && spec.kind.version() == version && spec.plural() == plural)
}
