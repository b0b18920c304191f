//! Changes that a schema makes to a document: dropping nulls, filling in defaults, taking out what is not
//! known, and writing quantities and times in their canonical form.

use serde_json::{Map, Value};

use super::{ObjectShape, Schema, Shape, StringCheck};
use crate::path::Path;
use crate::quantity::Quantity;
use crate::time::Time;

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

/// Writes quantities and times in their canonical form. What does not parse is left for [`super::check`].
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
                _ => None,
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

/// Takes unknown members out and lists them. A member that the stored object has at the same place with the
/// same value stays and is not listed: it was written by somebody who knew it. List items are compared with
/// every stored item of the list, since positions move.
pub fn prune(schema: &Schema, value: &mut Value, stored: Option<&Map<String, Value>>) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    if let (Shape::Object(shape), Value::Object(map)) = (&schema.shape, value) {
        let stored: Vec<_> = stored.into_iter().collect();
        walk_object(shape, map, &stored, &Path::ROOT, &mut unknown);
    }
    unknown
}

fn walk(schema: &Schema, value: &mut Value, stored: &[&Value], path: &Path<'_>, unknown: &mut Vec<Unknown>) {
    match (&schema.shape, value) {
        (Shape::Object(shape), Value::Object(map)) => {
            let stored: Vec<_> = stored.iter().filter_map(|stored| stored.as_object()).collect();
            walk_object(shape, map, &stored, path, unknown);
        }
        // Most maps hold texts: nothing to look into.
        (Shape::Map(values), Value::Object(map)) if values.has_members() => {
            let stored: Vec<_> = stored.iter().filter_map(|stored| stored.as_object()).collect();
            for (name, member) in map {
                walk(values, member, &below(&stored, name), &path.member(name), unknown);
            }
        }
        (Shape::Array { items, .. }, Value::Array(list)) if items.has_members() => {
            let candidates: Vec<&Value> =
                stored.iter().filter_map(|stored| stored.as_array()).flatten().collect();
            for (index, item) in list.iter_mut().enumerate() {
                walk(items, item, &candidates, &path.index(index), unknown);
            }
        }
        _ => {}
    }
}

fn walk_object(
    shape: &ObjectShape,
    map: &mut Map<String, Value>,
    stored: &[&Map<String, Value>],
    path: &Path<'_>,
    unknown: &mut Vec<Unknown>,
) {
    map.retain(|name, member| {
        let known =
            shape.property(name).is_some() || stored.iter().any(|stored| stored.get(name) == Some(&*member));
        if !known {
            unknown.push(Unknown { path: path.member(name).to_string(), lenient: shape.lenient });
        }
        known
    });
    for property in shape.properties.iter().filter(|property| property.schema.has_members()) {
        if let Some(member) = map.get_mut(&property.name) {
            let place = path.member(&property.name);
            walk(&property.schema, member, &below(stored, &property.name), &place, unknown);
        }
    }
}

fn below<'v>(stored: &[&'v Map<String, Value>], name: &str) -> Vec<&'v Value> {
    stored.iter().filter_map(|stored| stored.get(name)).collect()
}
