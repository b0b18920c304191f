//! Applications that belong to an ApplicationSet are written by the set controller; clients keep their
//! hands off the marks of ownership and off the spec of what is owned.

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use serde_json::{Map, Value};

use super::{Attributes, Denial, Operation};

const LABELS: [&str; 2] = ["horchestra.io/application-set", "horchestra.io/component"];
const HASH: &str = "horchestra.io/appset-spec-hash";

/// The name of the set that controls the object, if one does.
fn owner(object: &Object) -> Option<&str> {
    object
        .at(&["metadata", "ownerReferences"])?
        .as_array()?
        .iter()
        .find(|reference| {
            reference["kind"] == "ApplicationSet"
                && reference["apiVersion"] == "horchestra.io/v1"
                && reference["controller"] == true
        })
        .map(|reference| reference["name"].as_str().unwrap_or_default())
}

/// On an update, the marks of ownership are those that are stored.
pub(super) fn carry_over(attributes: &Attributes<'_>, object: &mut Object) {
    let (Kind::Application, Some(old)) = (attributes.key.kind, attributes.old) else {
        return;
    };
    let stored = old.at(&["metadata", "ownerReferences"]).cloned();
    match stored {
        Some(references) => object.set_metadata("ownerReferences", references),
        None => {
            object.metadata_mut().remove("ownerReferences");
        }
    }
    for (map, keys) in [("labels", &LABELS[..]), ("annotations", &[HASH][..])] {
        for key in keys {
            restore(object, map, key, old.at(&["metadata", map, key]).cloned());
        }
    }
}

/// Sets one label or annotation (or takes it away), whatever the object says.
pub(super) fn restore(object: &mut Object, map: &str, key: &str, stored: Option<Value>) {
    let metadata = object.metadata_mut();
    match stored {
        Some(value) => {
            let slot = metadata.entry(map).or_insert_with(|| Value::Object(Map::new()));
            if let Some(entries) = slot.as_object_mut() {
                entries.insert(key.to_owned(), value);
            }
        }
        None => {
            if let Some(entries) = metadata.get_mut(map).and_then(Value::as_object_mut) {
                entries.remove(key);
                if entries.is_empty() {
                    metadata.remove(map);
                }
            }
        }
    }
}

/// Takes off the marks by which a set knows its children.
pub(crate) fn release_child(object: &mut Object) {
    for (map, keys) in [("labels", &LABELS[..]), ("annotations", &[HASH][..])] {
        for key in keys {
            restore(object, map, key, None);
        }
    }
}

pub(super) fn check(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    if attributes.key.kind != Kind::Application {
        return Ok(());
    }
    if attributes.operation == Operation::Create {
        return check_new(object);
    }
    let Some(old) = attributes.old else {
        return Ok(());
    };
    match owner(old) {
        Some(set) if old.get("spec") != object.get("spec") => Err(Denial::Forbidden(format!(
            "the spec of \"{}\" belongs to ApplicationSet \"{set}\"; change the set instead",
            attributes.key.name
        ))),
        _ => Ok(()),
    }
}

fn check_new(object: &Object) -> Result<(), Denial> {
    let reserved = |what: &str| {
        Err(Denial::Forbidden(format!("{what} is reserved to the controller of ApplicationSets")))
    };
    if owner(object).is_some() {
        return reserved("metadata.ownerReferences to an ApplicationSet as controller");
    }
    if object.at(&["metadata", "annotations", HASH]).is_some() {
        return reserved(&format!("annotation {HASH}"));
    }
    for label in LABELS {
        if object.label(label).is_some() {
            return reserved(&format!("label {label}"));
        }
    }
    Ok(())
}
