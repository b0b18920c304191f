//! From a finished object to what the store keeps of it.

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_core::owners;
use horchestra_core::registry::{KindSpec, Reference};
use horchestra_core::status::Status;
use horchestra_store::{Columns, Draft, Edge, Index, Relation};
use uuid::Uuid;

/// What SQL and guards need to know of the object.
pub(crate) fn columns(spec: &KindSpec, object: &Object) -> Columns {
    let facts = (spec.facts)(object);
    let some = |text: String| (!text.is_empty()).then_some(text);
    Columns {
        node: some(facts.node),
        phase: some(facts.phase),
        cpu: facts.cpu_nano,
        memory: facts.memory_bytes,
    }
}

/// The draft of an object whose metadata is complete. `managed` are its managers after the change (see
/// [`super::tracking`]).
pub(crate) fn draft(
    spec: &KindSpec,
    key: &Key,
    object: &Object,
    columns: Columns,
    managed: Option<Bytes>,
) -> Result<Draft, Status> {
    let uid = Uuid::parse_str(object.uid()).map_err(|_| Status::internal("the object has no proper uid"))?;
    Ok(Draft {
        key: key.clone(),
        uid,
        generation: object.generation(),
        deleting: object.is_deleting(),
        body: object::encode(key.kind, object),
        managed,
        index: index(spec, object),
        columns,
        edges: edges(spec, key, object),
    })
}

fn index(spec: &KindSpec, object: &Object) -> Index {
    let mut labels: Vec<(String, String)> =
        object.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    labels.sort();
    Index { labels, fields: spec.selectable_fields(object) }
}

fn edges(spec: &KindSpec, key: &Key, object: &Object) -> Vec<Edge> {
    let mut edges: Vec<Edge> = (spec.references)(object)
        .iter()
        .map(|reference| Edge { relation: relation(reference), target: target(key, reference) })
        .collect();
    // Nobody waits for Events, which expire whoever owns them.
    let owned = if key.kind == Kind::Event { Vec::new() } else { owners::owners(key, object) };
    let owned = owned.into_iter().flatten();
    edges.extend(
        owned.map(|owner| Edge { relation: Relation::Owner, target: as_owner(&owner.key, &owner.uid) }),
    );
    edges.sort();
    edges.dedup();
    edges
}

/// What references to an owner point to: not whatever has its name, but this very object.
pub(crate) fn as_owner(owner: &Key, uid: &str) -> Key {
    Key { name: format!("{}/{uid}", owner.name), ..owner.clone() }
}

/// The address that a reference of `from` points to.
pub(crate) fn target(from: &Key, reference: &Reference) -> Key {
    let (kind, name) = reference.target();
    if kind.namespaced() {
        Key::namespaced(kind, from.namespace.clone(), name)
    } else {
        Key::cluster(kind, name)
    }
}

fn relation(reference: &Reference) -> Relation {
    match reference {
        Reference::Node(_) => Relation::Node,
        Reference::Secret(_) => Relation::Secret,
        Reference::SecretOptional(_) => Relation::SecretOptional,
        Reference::Volume(_) => Relation::Mounts,
        Reference::Service(_) => Relation::Service,
        Reference::Role(_) | Reference::ClusterRole(_) => Relation::Role,
    }
}

/// The registry's entry of a kind; a kind that is not served has no route either.
pub(crate) fn spec_of(kind: Kind) -> Result<&'static KindSpec, Status> {
    horchestra_core::registry::spec(kind).ok_or_else(Status::no_such_route)
}
