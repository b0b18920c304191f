//! Finalizers: which are the system's, which are the client's, and when the system adds its own.

use horchestra_core::kind::Kind;
use horchestra_core::metadata::is_system_finalizer;
pub(crate) use horchestra_core::metadata::{CHILD_TEARDOWN, NODE_TEARDOWN};
use horchestra_core::object::Object;
use horchestra_core::status::{Cause, Status};
use serde_json::json;

use super::{Attributes, Denial, Operation, Verdict};

fn set(object: &mut Object, finalizers: Vec<String>) {
    if finalizers.is_empty() {
        object.metadata_mut().remove("finalizers");
    } else {
        object.set_metadata("finalizers", json!(finalizers));
    }
}

/// The system's finalizers stay as they are stored (none on a create), the others are the client's. The
/// stored order is kept, so that a client which only repeats what it read changes nothing. What is being
/// deleted gets no further ones: whoever deleted it has seen what it still waits for. Nobody sets a deletion
/// mark by writing an object: a new one is refused, a stored one stays.
pub(super) fn keep_system(
    attributes: &Attributes<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let stored: Vec<String> = attributes
        .old
        .map(|old| old.finalizers().into_iter().map(str::to_owned).collect())
        .unwrap_or_default();
    let asked: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    let mut kept: Vec<String> = stored
        .iter()
        .filter(|finalizer| is_system_finalizer(finalizer) || asked.contains(finalizer))
        .cloned()
        .collect();
    let mut late = Vec::new();
    for finalizer in &asked {
        if kept.contains(finalizer) {
            continue;
        }
        if is_system_finalizer(finalizer) {
            verdict.warn(format!(
                "metadata.finalizers: \"{finalizer}\" belongs to the system and was not added"
            ));
        } else if attributes.is_deleting() {
            late.push(finalizer.as_str());
        } else {
            if !finalizer.contains('/') {
                verdict.warn(format!("metadata.finalizers: \"{finalizer}\" should be a qualified name"));
            }
            kept.push(finalizer.clone());
        }
    }
    if !late.is_empty() {
        return Err(Denial::Status(too_late(attributes, &late)));
    }
    // Holds that follow from the spec are derived right after this; leaving one out is no attempt on it.
    let dropped =
        stored.iter().filter(|finalizer| is_system_finalizer(finalizer) && !asked.contains(finalizer));
    if object.metadata().is_some_and(|metadata| metadata.contains_key("finalizers")) {
        for finalizer in dropped {
            verdict.warn(format!(
                "metadata.finalizers: \"{finalizer}\" belongs to the system and was not removed"
            ));
        }
    }
    set(object, kept);
    Ok(())
}

fn too_late(attributes: &Attributes<'_>, finalizers: &[&str]) -> Status {
    let why = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
         {}",
        finalizers.join(", ")
    );
    let cause = Cause::new("FieldValueForbidden", "metadata.finalizers", why);
    Status::invalid(attributes.key.kind, &attributes.key.name, vec![cause])
}

/// A client that writes a deletion mark on a live object is told to delete it instead.
pub(crate) fn refuse_deletion_mark(old: Option<&Object>, incoming: &Object) -> Result<(), Denial> {
    let stored = old.is_some_and(Object::is_deleting);
    let asked = incoming.at(&["metadata", "deletionTimestamp"]).is_some_and(|value| !value.is_null());
    if asked && !stored {
        return Err(Denial::Forbidden(
            "metadata.deletionTimestamp may not be set by a write; delete the object instead".to_owned(),
        ));
    }
    Ok(())
}

/// Adds and removes the holds that follow from the state of a live object. A deleting object is left
/// alone: adding a hold again would keep it for ever.
pub(super) fn derive_holds(attributes: &Attributes<'_>, object: &mut Object) {
    if attributes.is_deleting() {
        return;
    }
    debug_assert!(attributes.operation != Operation::Delete);
    let (hold, wanted) = match attributes.key.kind {
        Kind::Application => (NODE_TEARDOWN, !object.str_at(&["spec", "placement", "nodeName"]).is_empty()),
        Kind::ApplicationSet => (CHILD_TEARDOWN, true),
        _ => return,
    };
    set_hold(object, hold, wanted);
}

/// Puts a finalizer on or takes it off.
pub(crate) fn set_hold(object: &mut Object, hold: &str, wanted: bool) {
    let present = object.finalizers().contains(&hold);
    if present == wanted {
        return;
    }
    let mut finalizers: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    if wanted {
        finalizers.push(hold.to_owned());
    } else {
        finalizers.retain(|finalizer| finalizer != hold);
    }
    set(object, finalizers);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_put_on_once_and_taken_off() {
        let mut object = Object::from_value(json!({"metadata": {"finalizers": ["a.b/c"]}})).unwrap();
        set_hold(&mut object, NODE_TEARDOWN, true);
        set_hold(&mut object, NODE_TEARDOWN, true);
        assert_eq!(object.finalizers(), ["a.b/c", NODE_TEARDOWN]);
        set_hold(&mut object, "a.b/c", false);
        set_hold(&mut object, NODE_TEARDOWN, false);
        assert!(object.metadata().unwrap().get("finalizers").is_none());
    }
}
