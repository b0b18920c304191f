//! The kinds that this server serves, and what the rest of the product needs to know of each.
//!
//! Adding a kind is one module under [`crate::kinds`] and one line in the list of this module. Everything generic
//! (routes, discovery, OpenAPI, tables, watch cache) walks this list and knows no kind by name.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::kind::Kind;
use crate::kinds;
use crate::object::Object;
use crate::schema::Schema;
use crate::status::{Cause, Reason, Status};
use crate::table::{Column, PLAIN};

/// What the generic code needs to know of one kind.
pub struct KindSpec {
    pub kind: Kind,
    /// Set where the entry describes a kind in another shape than it is stored in.
    pub form: Option<&'static Form>,
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
    /// Puts members that are but another way of writing others into the place of those. Runs on documents that
    /// say only a part of an object, where nothing is filled in. May meet any JSON.
    pub(crate) fold: fn(&mut Map<String, Value>),
    /// Rules of one object alone that the schema cannot say: every violation, in the order of the fields.
    /// Runs on an object that satisfies the schema.
    pub validate: fn(&Object) -> Vec<Cause>,
    /// What is stored as it is, though it will not do what its author may think: a text for each, in the order of
    /// the fields. Runs on an object that satisfies the schema.
    pub oddities: fn(&Object) -> Vec<String>,
    /// What tables show, name and age included.
    pub columns: &'static [Column],
    /// Fields beyond `metadata.name` and `metadata.namespace` that field selectors may name.
    pub selectable: &'static [Selectable],
    /// What the store keeps beside the body.
    pub facts: fn(&Object) -> Facts,
    /// The other objects that one object speaks of.
    pub references: fn(&Object) -> Vec<Reference>,
}

/// Another shape of a kind, served under a group of its own.
///
/// It calls some members of the object by other names and differs in nothing else. The names are exchanged: a
/// member that one shape does not know stays one that the other does not know. So going over and back gives the
/// very same object, whatever it holds.
#[derive(Debug)]
pub struct Form {
    pub group: &'static str,
    /// `group/version`.
    pub api_version: &'static str,
    /// Names of members in the stored shape, each with its name in this one.
    pub members: &'static [(&'static str, &'static str)],
}

impl Form {
    /// The name in the other shape, from either.
    pub fn other<'a>(&self, member: &'a str) -> &'a str {
        for (stored, shown) in self.members {
            if *stored == member {
                return shown;
            }
            if *shown == member {
                return stored;
            }
        }
        member
    }

    /// A path such as `involvedObject.name` in the other shape, from either.
    pub fn other_path(&self, path: &str) -> String {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        format!("{}{}", self.other(&path[..end]), &path[end..])
    }

    fn exchanged(&self, object: &Object, api_version: &str) -> Object {
        let members = object.0.iter().map(|(name, value)| (self.other(name).to_owned(), value.clone()));
        let mut other = Object(members.collect());
        other.0.insert("apiVersion".to_owned(), api_version.into());
        other
    }
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

impl std::fmt::Debug for KindSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KindSpec")
            .field("kind", &self.kind)
            .field("group", &self.group())
            .finish_non_exhaustive()
    }
}

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
            form: None,
            list_kind,
            singular,
            schema,
            short_names: &[],
            categories: &[],
            history: Some(DEFAULT_HISTORY),
            defaults: |_| {},
            fold: |_| {},
            validate: |_| Vec::new(),
            oddities: |_| Vec::new(),
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

    /// The group that this shape of the kind is served under.
    pub fn group(&self) -> &'static str {
        self.form.map_or(self.kind.group(), |form| form.group)
    }

    pub fn version(&self) -> &'static str {
        self.kind.version()
    }

    /// `group/version` of this shape.
    pub fn api_version(&self) -> &'static str {
        self.form.map_or(self.kind.api_version(), |form| form.api_version)
    }

    /// The stored object in this shape.
    pub fn shown<'a>(&self, stored: &'a Object) -> Cow<'a, Object> {
        match self.form {
            Some(form) => Cow::Owned(form.exchanged(stored, form.api_version)),
            None => Cow::Borrowed(stored),
        }
    }

    /// An object of this shape as it is stored.
    pub fn stored(&self, shown: Object) -> Object {
        match self.form {
            Some(form) => form.exchanged(&shown, self.kind.api_version()),
            None => shown,
        }
    }

    /// A refusal by the rules of the kind, in the words of this shape.
    pub fn reworded(&self, status: Status) -> Status {
        let Some(form) = self.form.filter(|_| status.reason == Reason::Invalid) else { return status };
        let mut causes = status.details.causes;
        for cause in &mut causes {
            cause.field = form.other_path(&cause.field);
        }
        Status::invalid(self.kind, &status.details.name, causes)
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
    &kinds::event::SPEC,
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

/// The other shapes in which kinds are served.
static FORMS: &[&KindSpec] = &[&kinds::event::EVENTS_K8S_IO];

/// Every served kind, ordered by group and plural.
pub fn served() -> &'static [&'static KindSpec] {
    SERVED
}

/// Every entry that clients are told of: the served kinds, and the other shapes of some.
pub fn described() -> impl Iterator<Item = &'static KindSpec> {
    SERVED.iter().chain(FORMS).copied()
}

/// The entry of a kind; `None` for kinds that are not served.
pub fn spec(kind: Kind) -> Option<&'static KindSpec> {
    SERVED.iter().copied().find(|spec| spec.kind == kind)
}

/// The kind that URLs name this way.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static KindSpec> {
    described().find(|spec| spec.group() == group && spec.version() == version && spec.plural() == plural)
}
