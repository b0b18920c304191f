//! Which object a body speaks of, and the metadata that the server owns.

use horchestra_core::kind::Key;
use horchestra_core::names;
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::status::{Cause, Status};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::clock;

/// Checks a body against the route and fills in what it leaves to it. Afterwards apiVersion, kind and
/// namespace are those of the route, and metadata is an object.
pub(super) fn bind(spec: &KindSpec, namespace: &str, object: &mut Object) -> Result<(), Status> {
    let kind = spec.kind;
    for (member, expected) in [("apiVersion", spec.api_version()), ("kind", kind.name())] {
        match object.get(member) {
            None | Some(Value::Null) => {}
            Some(Value::String(given)) if given.is_empty() || given == expected => {}
            Some(given) => {
                return Err(Status::bad_request(format!(
                    "the {member} in the body ({given}) is not that of the request (\"{expected}\")"
                )));
            }
        }
        object.0.insert(member.to_owned(), expected.into());
    }
    match object.get("metadata") {
        None | Some(Value::Object(_)) => {}
        Some(Value::Null) => {
            object.0.remove("metadata");
        }
        Some(_) => {
            let cause = Cause::invalid("metadata", "null", "must be an object");
            return Err(Status::invalid(kind, "", vec![cause]));
        }
    }
    let metadata = object.metadata_mut();
    for member in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        match metadata.get(member) {
            None | Some(Value::String(_)) => {}
            Some(Value::Null) => {
                metadata.remove(member);
            }
            Some(_) => {
                let cause = Cause::invalid(format!("metadata.{member}"), "null", "must be a string");
                return Err(Status::invalid(kind, "", vec![cause]));
            }
        }
    }
    names::bind_namespace(spec, object, namespace)
}

/// The key of a new object, and whether its name was made up from `generateName`.
pub(super) fn new_key(spec: &KindSpec, object: &mut Object) -> Result<(Key, bool), Status> {
    let made_up = names::settle_name(spec, object, rand::random())?;
    Ok((object.key(spec.kind), made_up))
}

/// Metadata of a new object.
pub(crate) fn stamp_new(object: &mut Object, key: &Key) {
    let metadata = object.metadata_mut();
    for member in SERVER_OWNED {
        metadata.remove(member);
    }
    metadata.insert("name".to_owned(), key.name.clone().into());
    metadata.insert("uid".to_owned(), Uuid::new_v4().to_string().into());
    metadata.insert("generation".to_owned(), json!(1));
    metadata.insert("creationTimestamp".to_owned(), clock::now().into());
}

/// Metadata of a changed object: what the server owns is what is stored.
pub(super) fn carry_over(object: &mut Object, key: &Key, old: &Object) {
    let stored = old.metadata().cloned().unwrap_or_default();
    let metadata = object.metadata_mut();
    for member in SERVER_OWNED {
        metadata.remove(member);
        if let Some(value) = stored.get(member) {
            metadata.insert(member.to_owned(), value.clone());
        }
    }
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    metadata.insert("name".to_owned(), key.name.clone().into());
}

/// Members that no body can set.
const SERVER_OWNED: [&str; 8] = [
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
    "managedFields",
    "selfLink",
];

/// Whether what is wanted differs: everything but metadata and status, and `spec.frozen` left out (it
/// pauses the control plane, it is no other state to reach).
pub(super) fn wants_something_else(old: &Object, new: &Object) -> bool {
    fn wanted(object: &Object) -> Map<String, Value> {
        let mut wanted = object.0.clone();
        for member in ["apiVersion", "kind", "metadata", "status"] {
            wanted.remove(member);
        }
        if let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("frozen");
        }
        wanted
    }
    wanted(old) != wanted(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_core::kind::Kind;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn generation_looks_at_what_is_wanted() {
        let old =
            object(json!({"metadata": {"name": "a"}, "spec": {"image": "a"}, "status": {"phase": "x"}}));
        for (new, moves) in [
            (json!({"metadata": {"name": "b"}, "spec": {"image": "a"}}), false),
            (json!({"spec": {"image": "a", "frozen": true}, "kind": "Application"}), false),
            (json!({"spec": {"image": "b"}}), true),
            (json!({}), true),
            (json!({"spec": {"image": "a"}, "data": {}}), true),
        ] {
            assert_eq!(wants_something_else(&old, &object(new.clone())), moves, "{new}");
        }
    }

    #[test]
    fn a_body_cannot_set_what_the_server_owns() {
        let key = Key::cluster(Kind::Node, "n");
        let old = object(json!({"metadata": {"name": "n", "uid": "u", "creationTimestamp": "t",
            "generation": 4, "deletionTimestamp": "d"}}));
        let mut new = object(json!({"metadata": {"name": "n", "uid": "x", "creationTimestamp": "y",
            "generation": 9, "selfLink": "/", "managedFields": [{}], "deletionGracePeriodSeconds": 3,
            "labels": {}, "resourceVersion": "7"}}));
        carry_over(&mut new, &key, &old);
        horchestra_core::metadata::canonicalize(&mut new);
        assert_eq!(new, old);
    }
}
