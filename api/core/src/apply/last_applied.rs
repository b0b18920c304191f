//! Moving from client-side to server-side apply.
//!
//! A client-side `kubectl apply` keeps what it applied in an annotation. When its user turns to server-side
//! apply, the first one would conflict with everything that the client-side one set. So for the manager of
//! kubectl, and for no other, what the annotation says and the object still has is not held against it. And
//! as long as the annotation is there it is kept up, so that the way back works as well.

use serde_json::{Map, Value};

use super::compare::compare;
use super::extract::applied_fields;
use super::fields::FieldSet;
use crate::metadata::LAST_APPLIED_ANNOTATION;
use crate::object::Object;
use crate::schema::{Schema, normalize};

/// Longest annotation that is kept; a longer one is taken away instead.
const LONGEST: usize = 256 * 1024;

fn annotations(object: &mut Object) -> Option<&mut Map<String, Value>> {
    object.0.get_mut("metadata")?.as_object_mut()?.get_mut("annotations")?.as_object_mut()
}

/// The fields that the annotation of an object names and that still have the value that it says.
pub(super) fn written_and_untouched(schema: &Schema, live: &Object) -> FieldSet {
    let text = live.str_at(&["metadata", "annotations", LAST_APPLIED_ANNOTATION]);
    let Ok(Value::Object(written)) = serde_json::from_str(text) else { return FieldSet::default() };
    if written.get("apiVersion") != live.get("apiVersion") {
        return FieldSet::default();
    }
    let mut written = Value::Object(written);
    // Amounts and times are stored in one way of writing them.
    normalize(schema, &mut written);
    let written = Object::from_value(written).unwrap_or_default();
    let mut fields = applied_fields(schema, &written);
    let change = compare(schema, Some(&written), live);
    for other in [&change.modified, &change.added, &change.removed] {
        fields.remove(other);
    }
    fields
}

/// Writes the document into the annotation of an object that has one.
pub(super) fn keep_up(object: &mut Object, document: &Object) {
    let Some(annotations) = annotations(object) else { return };
    let Some(slot) = annotations.get_mut(LAST_APPLIED_ANNOTATION) else { return };
    let mut document = document.clone();
    document.metadata_mut().remove("managedFields");
    if let Some(own) = self::annotations(&mut document) {
        own.remove(LAST_APPLIED_ANNOTATION);
    }
    let text = format!("{}\n", Value::Object(document.0));
    if text.len() <= LONGEST {
        *slot = text.into();
    } else {
        annotations.remove(LAST_APPLIED_ANNOTATION);
    }
}
