//! What belongs to an ApplicationSet is written by the set controller.
//!
//! * **Applications**: clients keep their hands off the marks of ownership and off the spec of what is owned.
//! * **Services**: whoever could write that a Service is a set's would have the set's controller rewrite it, and
//!   delete it with the set. So that an owner is a set is not the client's to say, neither to add nor to take away;
//!   what is said too much is left out, with a warning. The rest of an owned Service stays the client's (an address,
//!   for one); the controller puts its ports right.

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application_set::{COMPONENT_LABEL, HASH_ANNOTATION, SET_LABEL};
use horchestra_core::object::Object;
use serde_json::{Map, Value};

use super::{Attributes, Denial, Operation, Verdict};

const LABELS: [&str; 2] = [SET_LABEL, COMPONENT_LABEL];

fn references(object: &Object) -> impl Iterator<Item = &Value> {
    object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).into_iter().flatten()
}

/// Whether a reference says that a set controls the object.
fn is_to_set(reference: &Value) -> bool {
    reference["kind"] == "ApplicationSet"
        && reference["apiVersion"] == "horchestra.io/v1"
        && reference["controller"] == true
}

/// The name of the set that controls the object, if one does.
fn owner(object: &Object) -> Option<&str> {
    let reference = references(object).find(|reference| is_to_set(reference))?;
    Some(reference["name"].as_str().unwrap_or_default())
}

/// The marks of ownership are those that are stored.
pub(super) fn carry_over(attributes: &Attributes<'_>, object: &mut Object, verdict: &mut Verdict) {
    match (attributes.key.kind, attributes.old) {
        (Kind::Application, Some(old)) => {
            set_references(object, references(old).cloned().collect());
            restore_labels(object, old);
            let hash = old.at(&["metadata", "annotations", HASH_ANNOTATION]).cloned();
            restore(object, "annotations", HASH_ANNOTATION, hash);
        }
        (Kind::Service, old) => {
            if let Some(old) = old.filter(|old| owner(old).is_some()) {
                restore_labels(object, old);
            }
            keep_sets(old, object, verdict);
        }
        _ => {}
    }
}

/// Of the owners of a Service, those that are sets stay as they are stored.
fn keep_sets(old: Option<&Object>, object: &mut Object, verdict: &mut Verdict) {
    let of_sets = |object: &Object| -> Vec<Value> {
        references(object).filter(|reference| is_to_set(reference)).cloned().collect()
    };
    let (asked, stored) = (of_sets(object), old.map(of_sets).unwrap_or_default());
    if asked == stored {
        return;
    }
    for forged in asked.iter().filter(|reference| !stored.contains(reference)) {
        verdict.warn(format!(
            "metadata.ownerReferences: that ApplicationSet {} controls it is for the controller of sets to say, and \
             was left out",
            forged["name"]
        ));
    }
    let others = references(object).filter(|reference| !is_to_set(reference)).cloned();
    let kept = stored.into_iter().chain(others).collect();
    set_references(object, kept);
}

fn set_references(object: &mut Object, references: Vec<Value>) {
    if references.is_empty() {
        object.metadata_mut().remove("ownerReferences");
    } else {
        object.set_metadata("ownerReferences", Value::Array(references));
    }
}

fn restore_labels(object: &mut Object, old: &Object) {
    for label in LABELS {
        restore(object, "labels", label, old.at(&["metadata", "labels", label]).cloned());
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
    for (map, keys) in [("labels", &LABELS[..]), ("annotations", &[HASH_ANNOTATION][..])] {
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
    if object.at(&["metadata", "annotations", HASH_ANNOTATION]).is_some() {
        return reserved(&format!("annotation {HASH_ANNOTATION}"));
    }
    for label in LABELS {
        if object.label(label).is_some() {
            return reserved(&format!("label {label}"));
        }
    }
    Ok(())
}
