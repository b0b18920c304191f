//! Violations of a schema: all of them, each with its path.

use serde_json::Value;

use super::{ObjectShape, Schema, Shape, StringCheck, StringShape};
use crate::decode::{MAX_FAULTS, type_name};
use crate::path::Path;
use crate::quantity::{Quantity, literal_out_of_range};
use crate::status::Cause;
use crate::time::Time;
use crate::values::decode_base64;

/// Every violation (up to a limit), in the order of the document. Values are never shown (they may be secret) except where
/// only certain values are permitted. A value of the wrong type is not looked into any further. Unknown
/// members are not judged here.
pub fn check(schema: &Schema, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk(schema, value, &Path::ROOT, &mut causes);
    if causes.len() > MAX_FAULTS {
        causes.truncate(MAX_FAULTS);
        causes.push(invalid(&Path::ROOT, "there are more violations than can be listed".to_owned()));
    }
    causes
}

fn invalid(path: &Path<'_>, why: String) -> Cause {
    Cause::invalid(path.to_string(), "null", why)
}

fn wrong_type(path: &Path<'_>, value: &Value, want: &str) -> Cause {
    invalid(path, format!("got {}, want {want}", type_name(value)))
}

fn walk(schema: &Schema, value: &Value, path: &Path<'_>, causes: &mut Vec<Cause>) {
    if causes.len() > MAX_FAULTS {
        return;
    }
    match (&schema.shape, value) {
        (Shape::Anything, _)
        | (Shape::FreeForm, Value::Object(_))
        | (Shape::Number, Value::Number(_))
        | (Shape::Boolean, Value::Bool(_)) => {}
        (Shape::Object(shape), Value::Object(map)) => {
            for property in &shape.properties {
                let place = path.member(&property.name);
                match map.get(&property.name) {
                    Some(member) => walk(&property.schema, member, &place, causes),
                    None if property.required => causes.push(Cause::required(place.to_string())),
                    None => {}
                }
            }
            if shape.numeric_guard {
                guard(shape, map, path, causes);
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            for (name, member) in map {
                walk(values, member, &path.member(name), causes);
            }
        }
        (Shape::Array { items, max_items, .. }, Value::Array(list)) => {
            if let Some(most) = max_items.filter(|most| list.len() > *most) {
                causes.push(Cause::too_many(path.to_string(), list.len(), most));
                return;
            }
            for (index, item) in list.iter().enumerate() {
                walk(items, item, &path.index(index), causes);
            }
        }
        (Shape::String(shape), Value::String(text)) => check_text(shape, text, path, causes),
        (Shape::Integer { minimum, maximum, .. }, Value::Number(number)) => match number.as_i64() {
            Some(number) if number < *minimum => {
                causes.push(invalid(path, format!("minimum: got {number}, want {minimum}")));
            }
            Some(number) if number > *maximum => {
                causes.push(invalid(path, format!("maximum: got {number}, want {maximum}")));
            }
            Some(_) => {}
            None if number.is_u64() => {
                causes.push(invalid(path, format!("maximum: got {number}, want {maximum}")));
            }
            None => causes.push(invalid(
                path,
                "got a number with a fraction or beyond 64 bits, want an integer".to_owned(),
            )),
        },
        (shape, value) => causes.push(wrong_type(path, value, want(shape))),
    }
}

fn want(shape: &Shape) -> &'static str {
    match shape {
        Shape::Anything => "any value",
        Shape::FreeForm | Shape::Object(_) | Shape::Map(_) => "an object",
        Shape::Array { .. } => "an array",
        Shape::String(_) => "a string",
        Shape::Integer { .. } => "an integer",
        Shape::Number => "a number",
        Shape::Boolean => "a boolean",
    }
}

fn check_text(shape: &StringShape, text: &str, path: &Path<'_>, causes: &mut Vec<Cause>) {
    if !shape.values.is_empty() && !shape.values.iter().any(|value| value == text) {
        let supported: Vec<String> = shape.values.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {text:?}: supported values: {}", supported.join(", "));
        causes.push(Cause::new("FieldValueNotSupported", path.to_string(), message));
        return;
    }
    if shape.min_length.is_some() || shape.max_length.is_some() {
        let length = text.chars().count() as u64;
        if let Some(least) = shape.min_length.filter(|least| length < *least) {
            causes.push(invalid(path, format!("minLength: got {length}, want {least}")));
        }
        if let Some(most) = shape.max_length.filter(|most| length > *most) {
            causes.push(invalid(path, format!("maxLength: got {length}, want {most}")));
        }
    }
    let fault = match shape.check {
        Some(StringCheck::Quantity) => text.parse::<Quantity>().err().map(|error| error.to_string()),
        Some(StringCheck::Time | StringCheck::MicroTime) => {
            text.parse::<Time>().err().map(|_| "must be a point in time as RFC 3339 writes it".to_owned())
        }
        Some(StringCheck::Base64) => decode_base64(text).is_none().then(|| "must be base64".to_owned()),
        None => None,
    };
    causes.extend(fault.map(|fault| invalid(path, fault)));
}

/// The guard of quantities over every text of the object, declared or not. Members that are declared as
/// quantities have been judged already.
fn guard(
    shape: &ObjectShape,
    map: &serde_json::Map<String, Value>,
    path: &Path<'_>,
    causes: &mut Vec<Cause>,
) {
    for (name, value) in map {
        let Value::String(text) = value else { continue };
        let judged = shape.property(name).is_some_and(|property| {
            matches!(&property.schema.shape, Shape::String(text) if text.check == Some(StringCheck::Quantity))
        });
        if !judged && literal_out_of_range(text) {
            let why = "begins like a number, but is longer than 32 characters or has an exponent beyond 30";
            causes.push(invalid(&path.member(name), why.to_owned()));
        }
    }
}
