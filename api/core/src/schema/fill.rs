//! Changes that a schema makes to a document: dropping nulls, filling in defaults, taking out what is not
//! known, and writing quantities and times in their canonical form.

use serde_json::{Map, Value};

use super::{ObjectShape, Schema, Shape, StringCheck};
use crate::decode::MAX_FAULTS;
use crate::path::Path;
use crate::quantity::Quantity;
use crate::time::{MicroTime, Time};
use crate::values::{decode_base64, encode_base64};

/// Takes out members that are null: an explicit null means absent. Null as a list item stays (and is a
/// violation), and so does everything inside free-form objects.
pub fn drop_nulls(schema: &Schema, value: &mut Value) {
    match (&schema.shape, value) {
        (Shape::Object(shape), Value::Object(map)) => {
            map.retain(|name, member| !member.is_null() || shape.property(name).is_none());
            for property in &shape.properties {
                if let Some(member) = map.get_mut(&property.name) {
                    drop_nulls(&property.schema, member);
                }
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(|member| drop_nulls(values, member));
        }
        (Shape::Array { items, .. }, Value::Array(list)) => {
            list.iter_mut().for_each(|item| drop_nulls(items, item));
        }
        _ => {}
    }
}

/// Fills in defaults of absent members, in objects that are there: no object is made for the sake of a
/// default within it.
pub fn fill_defaults(schema: &Schema, value: &mut Value) {
    match (&schema.shape, value) {
        (Shape::Object(shape), Value::Object(map)) => {
            for property in &shape.properties {
                match map.get_mut(&property.name) {
                    Some(member) => fill_defaults(&property.schema, member),
                    None => {
                        if let Some(default) = &property.schema.default {
                            map.insert(property.name.clone(), default.clone());
                        }
                    }
                }
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            map.values_mut().for_each(|member| fill_defaults(values, member));
        }
        (Shape::Array { items, .. }, Value::Array(list)) => {
            list.iter_mut().for_each(|item| fill_defaults(items, item));
        }
        _ => {}
    }
}

/// Writes quantities, times and base64 in their canonical form. What does not parse is left for [`super::check()`].
pub fn normalize(schema: &Schema, value: &mut Value) {
    match (&schema.shape, value) {
        (Shape::Object(shape), Value::Object(map)) => {
            for property in &shape.properties {
                if let Some(member) = map.get_mut(&property.name) {
                    normalize(&property.schema, member);
                }
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            map.values_mut().for_each(|member| normalize(values, member));
        }
        (Shape::Array { items, .. }, Value::Array(list)) => {
            list.iter_mut().for_each(|item| normalize(items, item));
        }
        (Shape::String(shape), Value::String(text)) => {
            let canonical = match shape.check {
                Some(StringCheck::Quantity) => text.parse::<Quantity>().ok().map(|it| it.to_string()),
                Some(StringCheck::Time) => text.parse::<Time>().ok().map(|it| it.to_string()),
                Some(StringCheck::MicroTime) => text.parse::<MicroTime>().ok().map(|it| it.to_string()),
                Some(StringCheck::Base64) => decode_base64(text).map(|bytes| encode_base64(&bytes)),
                None => None,
            };
            if let Some(canonical) = canonical {
                *text = canonical;
            }
        }
        _ => {}
    }
}

/// A member that the schema does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub path: String,
    /// In metadata, where unknown members are never refused.
    pub lenient: bool,
}

/// Unknown members that were taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The first of them, up to a limit.
    pub unknown: Vec<Unknown>,
    /// How many more there were.
    pub unlisted: usize,
}

/// Takes unknown members out and lists them. A member that the stored object has at the same place with the
/// same value stays and is not listed: it was written by somebody who knew it. List items are compared with
/// every stored item of the list, since positions move (up to a limit, beyond which members are unknown).
pub fn prune(schema: &Schema, value: &mut Value, stored: Option<&Map<String, Value>>) -> Pruned {
    let mut pruner = Pruner { pruned: Pruned::default(), comparisons: MAX_COMPARISONS };
    if let (Shape::Object(shape), Value::Object(map)) = (&schema.shape, value) {
        let stored = Stored { value: Candidates::Root(stored) };
        pruner.object(shape, map, &stored, &Path::ROOT);
    }
    pruner.pruned
}

/// Most stored values that one document is compared with.
const MAX_COMPARISONS: usize = 1_000_000;

/// What the stored object has at the place that is looked at: a chain on the stack, followed only when there
/// is an unknown member, which is seldom.
struct Stored<'a> {
    value: Candidates<'a>,
}

enum Candidates<'a> {
    Root(Option<&'a Map<String, Value>>),
    Member(&'a Stored<'a>, &'a str),
    Items(&'a Stored<'a>),
}

impl Stored<'_> {
    /// Calls `visit` with every stored object at this place, until it answers true.
    fn any(&self, visit: &mut dyn FnMut(&Map<String, Value>) -> bool) -> bool {
        match &self.value {
            Candidates::Root(map) => map.is_some_and(visit),
            _ => self.any_value(&mut |value| value.as_object().is_some_and(&mut *visit)),
        }
    }

    fn any_value(&self, visit: &mut dyn FnMut(&Value) -> bool) -> bool {
        match &self.value {
            Candidates::Root(_) => false,
            Candidates::Member(parent, name) => {
                parent.any(&mut |map| map.get(*name).is_some_and(&mut *visit))
            }
            Candidates::Items(parent) => parent
                .any_value(&mut |value| value.as_array().is_some_and(|list| list.iter().any(&mut *visit))),
        }
    }
}

struct Pruner {
    pruned: Pruned,
    comparisons: usize,
}

impl Pruner {
    fn walk(&mut self, schema: &Schema, value: &mut Value, stored: &Stored<'_>, path: &Path<'_>) {
        match (&schema.shape, value) {
            (Shape::Object(shape), Value::Object(map)) => self.object(shape, map, stored, path),
            // Most maps hold texts: nothing to look into.
            (Shape::Map(values), Value::Object(map)) if values.has_members() => {
                for (name, member) in map {
                    let below = Stored { value: Candidates::Member(stored, name) };
                    self.walk(values, member, &below, &path.member(name));
                }
            }
            (Shape::Array { items, .. }, Value::Array(list)) if items.has_members() => {
                let below = Stored { value: Candidates::Items(stored) };
                for (index, item) in list.iter_mut().enumerate() {
                    self.walk(items, item, &below, &path.index(index));
                }
            }
            _ => {}
        }
    }

    fn object(
        &mut self,
        shape: &ObjectShape,
        map: &mut Map<String, Value>,
        stored: &Stored<'_>,
        path: &Path<'_>,
    ) {
        map.retain(|name, member| {
            let known = shape.property(name).is_some() || self.is_stored(name, member, stored);
            if !known {
                self.report(path.member(name), shape.lenient);
            }
            known
        });
        for property in shape.properties.iter().filter(|property| property.schema.has_members()) {
            if let Some(member) = map.get_mut(&property.name) {
                let below = Stored { value: Candidates::Member(stored, &property.name) };
                self.walk(&property.schema, member, &below, &path.member(&property.name));
            }
        }
    }

    fn is_stored(&mut self, name: &str, member: &Value, stored: &Stored<'_>) -> bool {
        let mut found = false;
        stored.any(&mut |map| {
            if self.comparisons == 0 {
                return true;
            }
            self.comparisons -= 1;
            found = map.get(name) == Some(member);
            found
        });
        found
    }

    fn report(&mut self, path: Path<'_>, lenient: bool) {
        if self.pruned.unknown.len() < MAX_FAULTS {
            self.pruned.unknown.push(Unknown { path: path.to_string(), lenient });
        } else {
            self.pruned.unlisted += 1;
        }
    }
}
