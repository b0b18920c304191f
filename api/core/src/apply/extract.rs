//! The fields of an object as a set.

use serde_json::{Map, Value};

use super::fields::{FieldSet, member};
use super::parts::{KEYLESS, Parts, member_schema, parts};
use crate::object::Object;
use crate::schema::Schema;

/// Metadata that the server alone writes: nobody owns it. Sorted.
const SERVER_OWNED: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Whether a member of the object itself has owners.
pub(super) fn is_owned_root(name: &str) -> bool {
    !matches!(name, "apiVersion" | "kind")
}

/// Whether a member of the metadata has owners.
pub(super) fn is_owned_metadata(name: &str) -> bool {
    SERVER_OWNED.binary_search(&name).is_err()
}

/// The fields that an applied configuration names: values, items of lists, entries of maps, and containers
/// that are empty. A container with something in it is there because of what is in it.
pub fn applied_fields(schema: &Schema, configuration: &Object) -> FieldSet {
    of_object(schema, &configuration.0, Containers::WhenEmpty)
}

/// Every field of an object, containers included.
pub fn every_field(schema: &Schema, object: &Object) -> FieldSet {
    of_object(schema, &object.0, Containers::Always)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Containers {
    Always,
    WhenEmpty,
}

fn of_object(schema: &Schema, object: &Map<String, Value>, containers: Containers) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in object.iter().filter(|(name, _)| is_owned_root(name)) {
        let below = member_schema(schema, name).0;
        let mut fields = FieldSet::default();
        match value {
            Value::Object(metadata) if name == "metadata" => {
                for (name, value) in metadata.iter().filter(|(name, _)| is_owned_metadata(name)) {
                    fields.attach(member(name), of_member(below, name, value, containers));
                }
            }
            value => fields = of_member(schema, name, value, containers),
        }
        set.attach(member(name), fields);
    }
    set
}

fn of_member(schema: &Schema, name: &str, value: &Value, containers: Containers) -> FieldSet {
    let (below, declared) = member_schema(schema, name);
    let mut fields = of_value(below, value, containers);
    // The entries of a map are chosen by its writers, so an entry is a field also when it holds others.
    fields.here |= !declared;
    fields
}

fn of_value(schema: &Schema, value: &Value, containers: Containers) -> FieldSet {
    let mut set = FieldSet { here: containers == Containers::Always, ..FieldSet::default() };
    match parts(schema, value) {
        Parts::Whole => set.here = true,
        Parts::Members(map) => {
            set.here |= map.is_empty();
            for (name, value) in map {
                set.attach(member(name), of_member(schema, name, value, containers));
            }
        }
        Parts::Items(items, below) => {
            set.here |= items.is_empty();
            for (step, item) in items {
                let mut fields =
                    if step == KEYLESS { FieldSet::leaf() } else { of_value(below, item, containers) };
                fields.here = true;
                set.attach(step, fields);
            }
        }
    }
    set
}

/// A value that came into being, with everything in it.
pub(super) fn of_tree(schema: &Schema, value: &Value) -> FieldSet {
    of_value(schema, value, Containers::Always)
}
