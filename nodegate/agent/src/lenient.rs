//! Reads JSON the way deployed agents do: unknown members are ignored, the case of
//! names does not matter, null means absent; a member of the wrong type, or a number
//! that is absurdly written, makes the whole element unreadable.

use horchestra_core::quantity::{Quantity, literal_out_of_range};
use serde_json::{Map, Value};

/// An element that does not decode.
#[derive(Debug)]
pub(crate) struct Unreadable;

pub(crate) type Read<T> = Result<T, Unreadable>;
pub(crate) type Object = Map<String, Value>;

pub(crate) fn parse(body: &[u8]) -> Read<Object> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Unreadable),
    }
}

/// The member of that name: spelled exactly, or else in any case, the last one.
fn member<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    let folded =
        || object.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    object.get(name).or_else(folded).filter(|value| !value.is_null())
}

pub(crate) fn object<'a>(parent: &'a Object, name: &str) -> Read<Option<&'a Object>> {
    match member(parent, name) {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(Unreadable),
    }
}

/// Like [`object`], with an empty one in place of none.
pub(crate) fn section<'a>(parent: &'a Object, name: &str) -> Read<&'a Object> {
    static EMPTY: std::sync::OnceLock<Object> = std::sync::OnceLock::new();
    Ok(object(parent, name)?.unwrap_or_else(|| EMPTY.get_or_init(Object::new)))
}

pub(crate) fn text(parent: &Object, name: &str) -> Read<String> {
    match member(parent, name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(Unreadable),
    }
}

pub(crate) fn flag(parent: &Object, name: &str) -> Read<Option<bool>> {
    match member(parent, name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Unreadable),
    }
}

pub(crate) fn whole(parent: &Object, name: &str) -> Read<Option<i64>> {
    member(parent, name).map(|value| value.as_i64().ok_or(Unreadable)).transpose()
}

pub(crate) fn small(parent: &Object, name: &str) -> Read<Option<i32>> {
    whole(parent, name)?.map(|value| i32::try_from(value).map_err(|_| Unreadable)).transpose()
}

pub(crate) fn id(parent: &Object, name: &str) -> Read<Option<u32>> {
    whole(parent, name)?.map(|value| u32::try_from(value).map_err(|_| Unreadable)).transpose()
}

fn list<'a>(parent: &'a Object, name: &str) -> Read<&'a [Value]> {
    match member(parent, name) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(Unreadable),
    }
}

pub(crate) fn texts(parent: &Object, name: &str) -> Read<Vec<String>> {
    list(parent, name)?.iter().map(|item| item.as_str().map(str::to_owned).ok_or(Unreadable)).collect()
}

pub(crate) fn objects<'a>(parent: &'a Object, name: &str) -> Read<Vec<&'a Object>> {
    list(parent, name)?.iter().map(|item| item.as_object().ok_or(Unreadable)).collect()
}

pub(crate) fn quantity(parent: &Object, name: &str) -> Read<Quantity> {
    match member(parent, name) {
        None => Ok(Quantity::ZERO),
        Some(Value::String(text)) => text.parse().map_err(|_| Unreadable),
        Some(Value::Number(number)) => number.to_string().parse().map_err(|_| Unreadable),
        Some(_) => Err(Unreadable),
    }
}

/// Refuses an object in which any scalar, whatever its name, is written like a
/// number of absurd length or size.
pub(crate) fn guard(object: &Object) -> Read<()> {
    let absurd = object.values().any(|value| match value {
        Value::String(text) => literal_out_of_range(text),
        Value::Number(number) => literal_out_of_range(&number.to_string()),
        _ => false,
    });
    if absurd { Err(Unreadable) } else { Ok(()) }
}
