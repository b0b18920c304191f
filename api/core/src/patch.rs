//! The two patch languages: JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386).
//!
//! Guarantees: a patch is all or nothing; the number of operations ([`MAX_OPERATIONS`]) and what `copy` may
//! add ([`MAX_COPY_BYTES`]) are bounded, so a small patch cannot make a large object or keep a core busy;
//! array positions are never negative; a missing path or a failed `test` is a violation (422), an unreadable
//! patch a bad request (400).
//!
//! The result is a [`Document`], to be judged like any other body ([`crate::admit::complete`]): duplicate
//! members of the patch are carried in it. Who may change what is not known here.

use json_patch::{PatchErrorKind, PatchOperation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::admit::unreadable;
use crate::decode::{Document, Findings, MAX_DEPTH, json_value, type_name};
use crate::object::Object;
use crate::registry::KindSpec;
use crate::status::{Cause, Status};

pub const MAX_OPERATIONS: usize = 10_000;
pub const MAX_COPY_BYTES: usize = 3 << 20;
/// Values that the operations of one patch may touch beyond those that they name: shifted list items, and
/// the insides of what is moved.
const MAX_WORK: usize = 50_000_000;

/// Applies a merge patch to an object.
pub fn merge(spec: &KindSpec, object: &Object, patch: &[u8]) -> Result<Document, Status> {
    let (patch, findings) = read(spec, object, patch)?;
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request(format!("the patch is {}, not an object", type_name(&patch))));
    };
    let mut result = object.0.clone();
    merge_members(&mut result, patch);
    Ok(document(Object(result), findings))
}

/// RFC 7386: null removes, objects merge member by member, anything else replaces.
pub fn merge_members(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, change) in patch {
        match change {
            Value::Null => {
                target.remove(&name);
            }
            Value::Object(changes) => {
                let slot = target.entry(name).or_insert(Value::Null);
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(members) = slot {
                    merge_members(members, changes);
                }
            }
            other => {
                target.insert(name, other);
            }
        }
    }
}

/// Applies a JSON patch to an object.
pub fn json(spec: &KindSpec, object: &Object, patch: &[u8]) -> Result<Document, Status> {
    let (patch, findings) = read(spec, object, patch)?;
    let operations = operations(patch)?;
    let mut result = Value::Object(object.0.clone());
    let mut budget = Budget::default();
    for (index, operation) in operations.iter().enumerate() {
        budget.charge(&result, operation)?;
        apply(spec, object, &mut result, index, operation)?;
    }
    match result {
        Value::Object(map) => Ok(document(Object(map), findings)),
        other => Err(Status::bad_request(format!("the patched object is {}", type_name(&other)))),
    }
}

fn operations(patch: Value) -> Result<Vec<PatchOperation>, Status> {
    let Value::Array(list) = patch else {
        return Err(Status::bad_request(format!("the patch is {}, not an array", type_name(&patch))));
    };
    if list.len() > MAX_OPERATIONS {
        return Err(Status::too_large(format!(
            "the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            list.len()
        )));
    }
    list.into_iter()
        .enumerate()
        .map(|(index, operation)| {
            PatchOperation::deserialize(&operation).map_err(|_| {
                let fault = fault(&operation);
                Status::bad_request(format!("operation {index} of the patch is none: {fault}"))
            })
        })
        .collect()
}

/// Why an operation is none. What the parser has to say would quote what it met, and that may be a value.
fn fault(operation: &Value) -> String {
    const NAMES: [&str; 6] = ["add", "remove", "replace", "move", "copy", "test"];
    let Value::Object(members) = operation else {
        return format!("it is {}, not an object", type_name(operation));
    };
    let name = members.get("op").and_then(Value::as_str).unwrap_or_default();
    if !NAMES.contains(&name) {
        return format!("op has to be one of {}", NAMES.join(", "));
    }
    let is_pointer = |member: &str| {
        let text = members.get(member).and_then(Value::as_str);
        text.is_some_and(|text| text.is_empty() || text.starts_with('/'))
    };
    let pointers: &[&str] = if matches!(name, "move" | "copy") { &["path", "from"] } else { &["path"] };
    if let Some(member) = pointers.iter().find(|member| !is_pointer(member)) {
        return format!("{member} has to be a JSON pointer, such as /metadata/labels");
    }
    if matches!(name, "add" | "replace" | "test") && !members.contains_key("value") {
        return "value is missing".to_owned();
    }
    "its members are not those of such an operation".to_owned()
}

fn apply(
    spec: &KindSpec,
    object: &Object,
    result: &mut Value,
    index: usize,
    operation: &PatchOperation,
) -> Result<(), Status> {
    if is_test_of_absence(result, operation) {
        return Ok(());
    }
    // On failure the half-patched copy is thrown away, so nothing needs to be undone.
    json_patch::patch_unsafe(result, std::slice::from_ref(operation)).map_err(|error| {
        let why = match error.kind {
            PatchErrorKind::TestFailed => "the test failed",
            PatchErrorKind::InvalidFromPointer => "there is nothing at the path given as from",
            PatchErrorKind::InvalidPointer => "there is no such path",
            PatchErrorKind::CannotMoveInsideItself => "a value cannot be moved into itself",
            _ => "the operation is not possible",
        };
        let path = operation.path().as_str();
        let shown = serde_json::to_string(path).unwrap_or_default();
        let why = format!("operation {index} of the patch ({}): {why}", name_of(operation));
        Status::invalid(spec.kind, object.name(), vec![Cause::invalid("patch", &shown, why)])
    })
}

/// Whether the operation tests for null a member that is not there. The standard lets that fail; Kubernetes
/// lets it pass, and clients add their finalizer to the absent list with it.
fn is_test_of_absence(document: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let Some((parent, token)) = test.path.split_back() else { return false };
    let parent = document.pointer(parent.as_str()).and_then(Value::as_object);
    test.value.is_null() && parent.is_some_and(|members| !members.contains_key(token.decoded().as_ref()))
}

fn name_of(operation: &PatchOperation) -> &'static str {
    match operation {
        PatchOperation::Add(_) => "add",
        PatchOperation::Remove(_) => "remove",
        PatchOperation::Replace(_) => "replace",
        PatchOperation::Move(_) => "move",
        PatchOperation::Copy(_) => "copy",
        PatchOperation::Test(_) => "test",
    }
}

/// What a patch may still cost.
#[derive(Default)]
struct Budget {
    copied: usize,
    work: usize,
}

impl Budget {
    /// Judges an operation before it is applied: 400 when the patch grows the object, nests it or works on it
    /// beyond all measure.
    fn charge(&mut self, document: &Value, operation: &PatchOperation) -> Result<(), Status> {
        let path = operation.path().as_str();
        let mut inner = Measure::default();
        match operation {
            PatchOperation::Copy(copy) => {
                inner = document.pointer(copy.from.as_str()).map(measure).unwrap_or_default();
                self.copied += inner.bytes;
            }
            PatchOperation::Move(moved) => {
                inner = document.pointer(moved.from.as_str()).map(measure).unwrap_or_default();
                self.work += inner.bytes + shifted(document, moved.from.as_str());
            }
            PatchOperation::Add(add) => inner = measure(&add.value),
            PatchOperation::Replace(replace) => inner = measure(&replace.value),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => {}
        }
        self.work += shifted(document, path);
        if self.copied > MAX_COPY_BYTES {
            let why = format!("the copy operations of the patch add more than {MAX_COPY_BYTES} bytes");
            return Err(Status::bad_request(why));
        }
        if self.work > MAX_WORK {
            return Err(Status::bad_request("the patch moves too much about"));
        }
        if inner.depth + path.matches('/').count() > MAX_DEPTH {
            return Err(Status::bad_request("the patched object would be nested too deeply"));
        }
        Ok(())
    }
}

/// List items that may have to make room for (or close up after) what is at the path.
fn shifted(document: &Value, path: &str) -> usize {
    let parent = path.rsplit_once('/').and_then(|(parent, _)| document.pointer(parent));
    parent.and_then(Value::as_array).map_or(0, Vec::len)
}

#[derive(Clone, Copy, Default)]
struct Measure {
    /// As compact JSON, about.
    bytes: usize,
    depth: usize,
}

fn measure(value: &Value) -> Measure {
    let within = |overhead: usize, inner: &mut dyn Iterator<Item = Measure>| {
        inner.fold(Measure { bytes: 2, depth: 1 }, |sum, one| Measure {
            bytes: sum.bytes + one.bytes + overhead,
            depth: sum.depth.max(one.depth + 1),
        })
    };
    match value {
        Value::Null | Value::Bool(_) => Measure { bytes: 4, depth: 0 },
        Value::Number(_) => Measure { bytes: 8, depth: 0 },
        Value::String(text) => Measure { bytes: text.len() + 2, depth: 0 },
        Value::Array(list) => within(1, &mut list.iter().map(measure)),
        Value::Object(map) => within(
            4,
            &mut map.iter().map(|(name, member)| {
                let inner = measure(member);
                Measure { bytes: inner.bytes + name.len(), ..inner }
            }),
        ),
    }
}

fn read(spec: &KindSpec, object: &Object, patch: &[u8]) -> Result<(Value, Findings), Status> {
    let (value, findings) = json_value(patch).map_err(|error| unreadable(&error))?;
    if findings.nul.is_empty() {
        return Ok((value, findings));
    }
    let causes = findings
        .nul
        .iter()
        .map(|path| Cause::invalid(path.clone(), "null", "must not contain the character U+0000"))
        .collect();
    Err(Status::invalid(spec.kind, object.name(), causes))
}

fn document(object: Object, findings: Findings) -> Document {
    Document { object, duplicates: findings.duplicates, nul: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::registry;
    use proptest::prelude::*;
    use serde_json::json;

    fn spec() -> &'static KindSpec {
        registry::spec(Kind::Application).unwrap()
    }

    fn object() -> Object {
        Object::from_value(
            json!({"metadata": {"name": "web"}, "spec": {"image": "a", "env": [{"name": "A"}], "a/b~c": 1}}),
        )
        .unwrap()
    }

    fn patched(patch: Value) -> Result<Value, Status> {
        json(spec(), &object(), patch.to_string().as_bytes()).map(|document| document.object.into_value())
    }

    #[test]
    fn operations_are_applied_in_order() {
        let result = patched(json!([
            {"op": "test", "path": "/spec/image", "value": "a"},
            {"op": "add", "path": "/spec/env/-", "value": {"name": "B"}},
            {"op": "add", "path": "/spec/env/0", "value": {"name": "C"}},
            {"op": "replace", "path": "/spec/a~1b~0c", "value": 2},
            {"op": "copy", "from": "/spec/env", "path": "/spec/copy"},
            {"op": "move", "from": "/spec/copy/0", "path": "/spec/first"},
            {"op": "remove", "path": "/spec/copy"},
        ]))
        .unwrap();
        assert_eq!(
            result["spec"],
            json!({"image": "a", "env": [{"name": "C"}, {"name": "A"}, {"name": "B"}], "a/b~c": 2, "first": {"name": "C"}})
        );
    }

    #[test]
    fn what_cannot_be_applied_is_a_violation() {
        for operation in [
            json!({"op": "test", "path": "/spec/image", "value": "b"}),
            json!({"op": "test", "path": "/spec/nothing", "value": 1}),
            json!({"op": "remove", "path": "/spec/nothing"}),
            json!({"op": "replace", "path": "/spec/nothing", "value": 1}),
            json!({"op": "add", "path": "/spec/nothing/below", "value": 1}),
            json!({"op": "add", "path": "/spec/env/-1", "value": 1}),
            json!({"op": "add", "path": "/spec/env/7", "value": 1}),
            json!({"op": "remove", "path": "/spec/env/01"}),
            json!({"op": "copy", "from": "/nothing", "path": "/spec/x"}),
            json!({"op": "move", "from": "/spec", "path": "/spec/x"}),
        ] {
            let status = patched(json!([operation])).unwrap_err();
            assert_eq!(status.code(), 422, "{operation}");
            assert!(status.message.contains("operation 0"), "{}", status.message);
        }
    }

    #[test]
    fn a_test_for_null_passes_where_there_is_no_member() {
        let add = json!({"op": "add", "path": "/metadata/finalizers", "value": ["example.com/hold"]});
        let absent = json!({"op": "test", "path": "/metadata/finalizers", "value": null});
        assert!(patched(json!([absent, add])).is_ok());
        for (test, passes) in [
            (json!({"op": "test", "path": "/metadata/a~1b", "value": null}), true),
            (json!({"op": "test", "path": "/metadata/finalizers", "value": []}), false),
            (json!({"op": "test", "path": "/metadata/name", "value": null}), false),
            (json!({"op": "test", "path": "/nothing/below", "value": null}), false),
            (json!({"op": "test", "path": "/spec/env/7", "value": null}), false),
        ] {
            assert_eq!(patched(json!([test])).is_ok(), passes, "{test}");
        }
        assert!(patched(json!([add, absent])).is_err(), "now there is one");
    }

    #[test]
    fn what_is_no_operation_is_told_without_its_values() {
        for (operation, says) in [
            (json!("hunter2"), "not an object"),
            (json!({"path": "/a", "value": "hunter2"}), "op has to be one of add"),
            (json!({"op": "hunter2", "path": "/a"}), "op has to be one of add"),
            (json!({"op": ["hunter2"], "path": "/a"}), "op has to be one of add"),
            (json!({"op": "add", "path": "hunter2", "value": 1}), "path has to be"),
            (json!({"op": "add", "path": {"hunter2": 1}, "value": 1}), "path has to be"),
            (json!({"op": "move", "path": "/a", "from": ["hunter2"]}), "from has to be"),
            (json!({"op": "test", "path": "/a", "values": "hunter2"}), "value is missing"),
            (json!({"op": "remove", "path": "/a~hunter2"}), "members"),
        ] {
            let status = patched(json!([operation])).unwrap_err();
            assert_eq!(status.code(), 400, "{operation}");
            assert!(status.message.contains(says), "{operation}: {}", status.message);
            assert!(!status.message.contains("hunter2"), "{}", status.message);
        }
    }

    #[test]
    fn what_is_no_patch_is_a_bad_request() {
        for patch in [
            "",
            "{",
            "{}",
            "null",
            "[1]",
            "[{}]",
            r#"[{"op":"add"}]"#,
            r#"[{"op":"x","path":"/a"}]"#,
            r#"[{"op":"add","path":"a","value":1}]"#,
            "[] x",
        ] {
            assert_eq!(json(spec(), &object(), patch.as_bytes()).unwrap_err().code(), 400, "{patch}");
        }
        for patch in ["", "[", "[]", "null", "3", "{} {}"] {
            assert_eq!(merge(spec(), &object(), patch.as_bytes()).unwrap_err().code(), 400, "{patch}");
        }
        assert_eq!(patched(json!([{"op": "replace", "path": "", "value": 1}])).unwrap_err().code(), 400);
        assert_eq!(merge(spec(), &object(), br#"{"spec":{"image":"\u0000"}}"#).unwrap_err().code(), 422);
    }

    #[test]
    fn patches_are_bounded() {
        let many = vec![json!({"op": "test", "path": "/spec/image", "value": "a"}); MAX_OPERATIONS + 1];
        assert!(patched(json!(&many[1..])).is_ok());
        assert_eq!(patched(json!(many)).unwrap_err().code(), 413);
        let mut doublings = vec![json!({"op": "add", "path": "/spec/x", "value": ["x"]})];
        doublings.extend(vec![json!({"op": "copy", "from": "/spec/x", "path": "/spec/x/-"}); 60]);
        assert_eq!(patched(json!(doublings)).unwrap_err().code(), 400);

        let mut nested = json!(1);
        for _ in 0..100 {
            nested = json!({ "x": nested });
        }
        let deep = "/x".repeat(100);
        let towers = json!([{"op": "add", "path": "/spec/x", "value": nested["x"]}, {"op": "add", "path": format!("/spec{deep}"), "value": nested}]);
        assert_eq!(patched(towers).unwrap_err().code(), 400);
        let stacked = json!([{"op": "add", "path": "/spec/x", "value": nested["x"]}, {"op": "copy", "from": "/spec/x", "path": format!("/spec{deep}")}]);
        assert_eq!(patched(stacked).unwrap_err().code(), 400);

        let mut shifting = vec![json!({"op": "add", "path": "/spec/list", "value": vec![0; 20_000]})];
        shifting.extend(vec![json!({"op": "add", "path": "/spec/list/0", "value": 1}); 9_000]);
        assert_eq!(patched(json!(shifting)).unwrap_err().code(), 400);
    }

    #[test]
    fn duplicates_in_a_patch_are_reported() {
        let document = merge(spec(), &object(), br#"{"spec":{"image":"b","image":"c"}}"#).unwrap();
        assert_eq!(document.duplicates, ["spec.image"]);
        assert_eq!(document.object.str_at(&["spec", "image"]), "c");
    }

    #[test]
    fn the_examples_of_the_standard() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (mut target, patch, want) in cases {
            let (Value::Object(members), Value::Object(changes)) = (&mut target, patch) else {
                unreachable!()
            };
            merge_members(members, changes);
            assert_eq!(target, want);
        }
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("x")), Just(json!([1, {"a": null}]))];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop::collection::btree_map("[abc]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        })
    }

    fn members(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => Map::from_iter([("v".to_owned(), other)]),
        }
    }

    proptest! {
        #[test]
        fn a_merge_patch_applied_twice_is_applied_once(target in tree(), patch in tree()) {
            let (mut target, patch) = (members(target), members(patch));
            merge_members(&mut target, patch.clone());
            let once = target.clone();
            merge_members(&mut target, patch);
            prop_assert_eq!(target, once);
        }

        #[test]
        fn merging_agrees_with_another_implementation(target in tree(), patch in tree()) {
            let (mut ours, patch) = (members(target), members(patch));
            let mut theirs = Value::Object(ours.clone());
            json_patch::merge(&mut theirs, &Value::Object(patch.clone()));
            merge_members(&mut ours, patch);
            prop_assert_eq!(Value::Object(ours), theirs);
        }

        #[test]
        fn never_panics(
            operations in prop::collection::vec((
                prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]),
                "(/(spec|env|-|0|1|x|~0|~2)){0,4}", "(/(spec|env|0|x)){0,3}",
            ), 0..6),
        ) {
            let list: Vec<Value> = operations.into_iter()
                .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"y": 1}})).collect();
            let _ = patched(json!(list));
        }
    }
}
