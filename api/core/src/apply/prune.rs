//! Taking away what a manager applies no longer.

use serde_json::{Map, Value};

use super::extract::{is_owned_metadata, is_owned_root};
use super::fields::{FieldSet, member};
use super::parts::{KEYLESS, Parts, is_required, list_keys, member_schema, parts};
use crate::object::Object;
use crate::schema::Schema;

/// What decides about the fields below one place.
#[derive(Clone, Copy)]
struct Claims<'a> {
    /// What the manager applied the last time.
    last: &'a FieldSet,
    /// What anybody owns now, the manager included.
    owned: &'a FieldSet,
    /// What the manager applies now.
    applied: &'a FieldSet,
}

static NOTHING: FieldSet = FieldSet { here: false, below: std::collections::BTreeMap::new() };

impl<'a> Claims<'a> {
    fn below(self, step: &str) -> Claims<'a> {
        let of = |set: &'a FieldSet| set.below.get(step).unwrap_or(&NOTHING);
        Claims { last: of(self.last), owned: of(self.owned), applied: of(self.applied) }
    }

    /// Whether the manager applied the field, or something in it, the last time.
    fn was_applied(self, step: &str) -> bool {
        self.last.below.contains_key(step)
    }

    /// Whether the field, or something in it, has an owner.
    fn has_owner(self, step: &str) -> bool {
        self.owned.below.contains_key(step)
    }
}

/// Takes away the fields of `last` that are not `owned`, with the containers that were there for them.
pub(super) fn prune(
    schema: &Schema,
    mut object: Object,
    last: &FieldSet,
    owned: &FieldSet,
    applied: &FieldSet,
) -> Object {
    if last.is_empty() {
        return object;
    }
    let claims = Claims { last, owned, applied };
    members(schema, &mut object.0, claims, &|name| !is_owned_root(name) || name == "metadata");
    if let Some(Value::Object(metadata)) = object.0.get_mut("metadata") {
        let below = member_schema(schema, "metadata").0;
        members(below, metadata, claims.below("f:metadata"), &|name| !is_owned_metadata(name));
    }
    object
}

fn members(schema: &Schema, map: &mut Map<String, Value>, claims: Claims<'_>, exempt: &dyn Fn(&str) -> bool) {
    map.retain(|name, value| {
        let step = member(name);
        if exempt(name) || !claims.was_applied(&step) {
            return true;
        }
        let below = member_schema(schema, name).0;
        let keeps_its_place = is_required(schema, name) && value.is_object();
        if !claims.has_owner(&step) {
            if keeps_its_place {
                *value = Value::Object(Map::new());
            }
            return keeps_its_place;
        }
        let emptied = within(below, value, claims.below(&step), &[]);
        !emptied || keeps_its_place
    });
}

/// Prunes inside a value that stays. Whether nothing is left of it, so that it goes as well.
fn within(schema: &Schema, value: &mut Value, claims: Claims<'_>, keys: &[String]) -> bool {
    let full = |value: &Value| match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    };
    let was_full = full(value);
    match parts(schema, value) {
        Parts::Whole => return false,
        Parts::Members(_) => {
            let Value::Object(map) = &mut *value else { return false };
            members(schema, map, claims, &|name| keys.iter().any(|key| key == name));
        }
        Parts::Items(items, below) => {
            let mut kept = Vec::with_capacity(items.len());
            for (step, item) in items {
                if !claims.was_applied(&step) {
                    kept.push(item.clone());
                } else if claims.has_owner(&step) {
                    let mut item = item.clone();
                    if step != KEYLESS {
                        within(below, &mut item, claims.below(&step), list_keys(schema));
                    }
                    kept.push(item);
                }
            }
            *value = Value::Array(kept);
        }
    }
    was_full && !full(value) && !claims.applied.here
}
