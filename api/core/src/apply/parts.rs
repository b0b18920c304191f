//! How a value is taken apart for its owners.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::schema::{ListType, Schema, Shape};

/// What the schema says of something that it does not declare: nothing.
pub(super) static UNDECLARED: Schema =
    Schema { description: String::new(), default: None, shape: Shape::Anything, atomic: false };

/// The step to the items without any key, which count as one.
pub(super) const KEYLESS: &str = "k:{}";

/// A value and what owners can own of it.
pub(super) enum Parts<'a> {
    /// Nothing but the whole.
    Whole,
    /// Each member of an object.
    Members(&'a Map<String, Value>),
    /// Each item of a list, and the schema of all of them.
    Items(Items<'a>, &'a Schema),
}

/// The items of a list with the steps that lead to them, in the order of the list. A step occurs once, except
/// for [`KEYLESS`].
pub(super) type Items<'a> = Vec<(String, &'a Value)>;

pub(super) fn parts<'a>(schema: &'a Schema, value: &'a Value) -> Parts<'a> {
    if schema.atomic {
        return Parts::Whole;
    }
    match (&schema.shape, value) {
        (Shape::Array { items, list, .. }, Value::Array(values)) => {
            let steps = match list {
                ListType::Atomic => None,
                ListType::Set => set_steps(values),
                ListType::Map(keys) => map_steps(keys, items, values),
            };
            match steps {
                Some(steps) => Parts::Items(steps, items),
                None => Parts::Whole,
            }
        }
        (Shape::Object(_) | Shape::Map(_) | Shape::FreeForm | Shape::Anything, Value::Object(map)) => {
            Parts::Members(map)
        }
        _ => Parts::Whole,
    }
}

/// The schema of a member, and whether the kind declares it by name.
pub(super) fn member_schema<'a>(schema: &'a Schema, name: &str) -> (&'a Schema, bool) {
    match &schema.shape {
        Shape::Object(object) => {
            object.property(name).map_or((&UNDECLARED, false), |property| (&property.schema, true))
        }
        Shape::Map(values) => (values, false),
        _ => (&UNDECLARED, false),
    }
}

/// Whether an object of this schema is invalid without the member.
pub(super) fn is_required(schema: &Schema, name: &str) -> bool {
    match &schema.shape {
        Shape::Object(object) => object.property(name).is_some_and(|property| property.required),
        _ => false,
    }
}

/// The members by which the items of a list are told apart.
pub(super) fn list_keys(schema: &Schema) -> &[String] {
    match &schema.shape {
        Shape::Array { list: ListType::Map(keys), .. } => keys,
        _ => &[],
    }
}

/// `None` when values are not told apart.
fn set_steps(values: &[Value]) -> Option<Items<'_>> {
    let mut seen = HashSet::with_capacity(values.len());
    values
        .iter()
        .map(|value| {
            let scalar = !value.is_object() && !value.is_array() && !value.is_null();
            let step = format!("v:{value}");
            (scalar && seen.insert(step.clone())).then_some((step, value))
        })
        .collect()
}

/// `None` when items are not told apart.
fn map_steps<'a>(keys: &[String], items: &Schema, values: &'a [Value]) -> Option<Items<'a>> {
    let mut seen = HashSet::with_capacity(values.len());
    values
        .iter()
        .map(|value| {
            let step = item_step(keys, items, value.as_object()?)?;
            (step == KEYLESS || seen.insert(step.clone())).then_some((step, value))
        })
        .collect()
}

fn item_step(keys: &[String], items: &Schema, item: &Map<String, Value>) -> Option<String> {
    let mut named = Map::new();
    let mut given = false;
    for key in keys {
        let declared = match item.get(key) {
            Some(Value::Null) | None => member_schema(items, key).0.default.as_ref(),
            // An empty text is how some manifests write an absent one.
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::Object(_) | Value::Array(_)) => return None,
            value => {
                given = true;
                value
            }
        };
        if let Some(value) = declared {
            named.insert(key.clone(), value.clone());
        }
    }
    if given { Some(format!("k:{}", Value::Object(named))) } else { Some(KEYLESS.to_owned()) }
}
