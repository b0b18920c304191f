//! A document of every kind that is accepted as it is, whatever its name.

use horchestra_core::kind::Kind;
use horchestra_core::registry::KindSpec;
use serde_json::{Value, json};

use super::case::NAMESPACE;
use super::tree::Tree;
use crate::kinds::example;

/// The document; it speaks of itself as `@name`.
pub fn document(spec: &KindSpec) -> Tree {
    let mut object = match spec.kind {
        Kind::Event if spec.form.is_none() => json!({
            "reason": "Odd", "message": "something", "type": "Warning", "count": 2,
            "involvedObject": {"kind": "Application", "namespace": NAMESPACE, "name": "cart"},
            "source": {"component": "tester"}, "lastTimestamp": "2026-01-01T00:00:00Z",
        }),
        Kind::Event => json!({
            "note": "seen", "reason": "Odd", "type": "Normal", "action": "Look",
            "regarding": {"kind": "Application", "namespace": NAMESPACE, "name": "cart"},
            "eventTime": "2026-01-01T00:00:00Z", "reportingController": "tester", "reportingInstance": "t-1",
        }),
        kind => example(kind),
    };
    object["apiVersion"] = json!(spec.api_version());
    object["kind"] = json!(spec.kind.name());
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"]["name"] = json!("@name");
    if spec.namespaced() {
        object["metadata"]["namespace"] = json!(NAMESPACE);
    }
    // Two objects cannot have these.
    if let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.remove("clusterIP");
    }
    let volumes = object.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        if volume["volume"]["type"] == "pv" {
            volume["volume"]["name"] = Value::from("@name");
        }
    }
    Tree::of(&object)
}
