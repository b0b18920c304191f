//! Metadata that clients write: warnings about what is stored but looks wrong, and the canonical form.
//!
//! Nothing in metadata is refused for its syntax, since existing manifests may contain it; it is warned
//! about. Types are another matter: those the schema checks.

use serde_json::Value;

use crate::names::{label_fault, subdomain_fault};
use crate::object::Object;

/// Kubernetes' marker for "let the dependents go".
pub const ORPHAN: &str = "orphan";
/// Kubernetes' marker for "not before the dependents".
pub const FOREGROUND: &str = "foregroundDeletion";
/// Held by the node that an Application is placed on.
pub const NODE_TEARDOWN: &str = "horchestra.io/node-teardown";
/// Held by the children of an ApplicationSet.
pub const CHILD_TEARDOWN: &str = "horchestra.io/child-teardown";
/// Finalizers that only the server sets and removes.
pub const SYSTEM_FINALIZERS: [&str; 2] = [ORPHAN, FOREGROUND];
/// Finalizers under this prefix belong to the server as well.
pub const SYSTEM_FINALIZER_PREFIX: &str = "horchestra.io/";
/// Annotation in which `kubectl apply` keeps what it last applied.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Each warning is a header of the answer.
const MAX_WARNINGS: usize = 20;
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Whether only the server may set or remove the finalizer.
pub fn is_system_finalizer(finalizer: &str) -> bool {
    SYSTEM_FINALIZERS.contains(&finalizer) || finalizer.starts_with(SYSTEM_FINALIZER_PREFIX)
}

/// What looks wrong about labels, annotations and owner references, one text each.
pub fn warnings(object: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, value) in object.labels() {
        if let Some(fault) = qualified_name_fault(key) {
            warnings.push(format!("metadata.labels: key {key:?} {fault}"));
        }
        if let Some(fault) = label_value_fault(value) {
            warnings.push(format!("metadata.labels: value {value:?} of {key:?} {fault}"));
        }
    }
    let mut total = 0;
    let annotations = object.at(&["metadata", "annotations"]).and_then(Value::as_object);
    for (key, value) in annotations.into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        if let Some(fault) = qualified_name_fault(&key.to_ascii_lowercase()) {
            warnings.push(format!("metadata.annotations: key {key:?} {fault}"));
        }
    }
    if total > MAX_ANNOTATION_BYTES {
        warnings.push(format!(
            "metadata.annotations: {total} bytes in total are more than {MAX_ANNOTATION_BYTES}"
        ));
    }
    owner_warnings(object, &mut warnings);
    if warnings.len() > MAX_WARNINGS {
        let unlisted = warnings.len() - MAX_WARNINGS;
        warnings.truncate(MAX_WARNINGS);
        warnings.push(format!("metadata: {unlisted} more warnings"));
    }
    warnings
}

fn owner_warnings(object: &Object, warnings: &mut Vec<String>) {
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    let mut controllers = 0;
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        let missing: Vec<&str> = ["apiVersion", "kind", "name", "uid"]
            .into_iter()
            .filter(|member| owner.get(member).and_then(Value::as_str).unwrap_or("").is_empty())
            .collect();
        if !missing.is_empty() {
            warnings.push(format!(
                "metadata.ownerReferences[{index}]: incomplete ({} missing), never collected",
                missing.join(", ")
            ));
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        warnings.push("metadata.ownerReferences: more than one owner is marked as controller".to_owned());
    }
}

/// What is wrong with a label or annotation key.
pub fn qualified_name_fault(key: &str) -> Option<&'static str> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            if subdomain_fault(prefix).is_some() {
                return Some("has a prefix that is no DNS subdomain");
            }
            name
        }
        None => key,
    };
    if name.is_empty() {
        return Some("has an empty name");
    }
    label_value_fault(name)
}

/// What is wrong with a label value.
pub fn label_value_fault(value: &str) -> Option<&'static str> {
    if value.is_empty() {
        return None;
    }
    if value.len() > 63 {
        return Some("is longer than 63 characters");
    }
    let bytes = value.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let good = ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    (!good).then_some(
        "must consist of letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
    )
}

/// Whether objects can live in a namespace of this name.
pub fn is_usable_namespace(name: &str) -> bool {
    label_fault(name).is_none()
}

/// Takes empty members out of the metadata, so that "none" has one form: `labels: {}` and no labels are the
/// same object.
pub fn canonicalize(object: &mut Object) {
    object.metadata_mut().retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(metadata: Value) -> Object {
        Object::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn clean_metadata_draws_no_warning() {
        let clean = object(json!({
            "labels": {"app": "web", "example.com/tier": "a_b.C-1", "empty": ""},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "Note": "any text\n"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": true}],
        }));
        assert!(warnings(&clean).is_empty());
    }

    #[test]
    fn odd_metadata_is_warned_about_one_by_one() {
        let odd = object(json!({
            "labels": {"-a": "x", "ok": "white space", "a/b/c": "", "/x": ""},
            "annotations": {"bad key": "", "big": "x".repeat(300_000)},
            "ownerReferences": [{"kind": "X", "controller": true}, {"apiVersion": "v1", "kind": "X", "name": "x",
                "uid": "u", "controller": true}],
        }));
        let found = warnings(&odd);
        assert_eq!(found.len(), 8, "{found:#?}");
        assert!(found[0].starts_with("metadata.labels"));
        assert!(found.iter().any(|text| text.contains("apiVersion, name, uid missing")));
    }

    #[test]
    fn empty_metadata_members_have_one_form() {
        let mut empty =
            object(json!({"name": "x", "labels": {}, "finalizers": [], "generateName": "", "uid": null}));
        canonicalize(&mut empty);
        assert_eq!(empty, object(json!({"name": "x"})));
    }

    #[test]
    fn finalizers_of_the_system() {
        for system in ["orphan", "foregroundDeletion", "horchestra.io/node-teardown", "horchestra.io/x"] {
            assert!(is_system_finalizer(system));
        }
        assert!(!is_system_finalizer("example.com/mine"));
    }
}
