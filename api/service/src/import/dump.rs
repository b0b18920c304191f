//! What `kubectl get … -o json` printed.

use std::collections::BTreeMap;

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use horchestra_core::registry::{self, KindSpec};
use horchestra_store::Revision;
use serde_json::Value;

/// Objects as they were printed, of any number of files.
#[derive(Debug, Default)]
pub struct Dump {
    pub(super) objects: Vec<(Kind, Object)>,
    highest: Revision,
    events: usize,
}

/// A file that is no dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("it is not JSON; print objects with `kubectl get … -o json`")]
    Json(#[from] serde_json::Error),
    #[error("it holds something that is neither an object nor a list of objects")]
    Shape,
    #[error("it holds kinds that are not served here: {}", .0.join(", "))]
    Kinds(Vec<String>),
}

impl Dump {
    /// Adds what a file holds: one or several documents, each an object or a list of objects.
    pub fn read(&mut self, text: &[u8]) -> Result<(), DumpError> {
        let mut unknown: BTreeMap<String, ()> = BTreeMap::new();
        for document in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
            self.take(document?, &mut unknown)?;
        }
        if unknown.is_empty() { Ok(()) } else { Err(DumpError::Kinds(unknown.into_keys().collect())) }
    }

    fn take(&mut self, value: Value, unknown: &mut BTreeMap<String, ()>) -> Result<(), DumpError> {
        let mut object = Object::from_value(value).ok_or(DumpError::Shape)?;
        if let Ok(revision) = object.resource_version().parse::<Revision>() {
            self.highest = self.highest.max(revision);
        }
        let (group_version, kind) = (object.str_at(&["apiVersion"]), object.str_at(&["kind"]));
        if let Some(spec) = spec_of(group_version, kind) {
            if spec.kind == Kind::Event {
                self.events += 1;
            } else {
                self.objects.push((spec.kind, spec.stored(object)));
            }
            return Ok(());
        }
        // `List` of kubectl, or the list of one kind, whose items may leave their kind out.
        let listed = spec_of(group_version, kind.strip_suffix("List").unwrap_or_default());
        if !kind.ends_with("List") || !object.get("items").is_some_and(Value::is_array) {
            if kind.is_empty() {
                return Err(DumpError::Shape);
            }
            unknown.insert(format!("{group_version} {kind}"), ());
            return Ok(());
        }
        let Some(Value::Array(items)) = object.0.remove("items") else { return Err(DumpError::Shape) };
        for mut item in items {
            if let (Some(spec), Some(members)) = (listed, item.as_object_mut()) {
                members.entry("apiVersion").or_insert_with(|| spec.api_version().into());
                members.entry("kind").or_insert_with(|| spec.kind.name().into());
            }
            self.take(item, unknown)?;
        }
        Ok(())
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Events that were left out.
    pub fn events(&self) -> usize {
        self.events
    }

    /// The highest revision that it speaks of.
    pub fn highest(&self) -> Revision {
        self.highest
    }
}

/// What is served as this kind, in any of its shapes.
fn spec_of(api_version: &str, kind: &str) -> Option<&'static KindSpec> {
    let named = |spec: &&'static KindSpec| spec.api_version() == api_version && spec.kind.name() == kind;
    registry::described().find(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(values: &[Value]) -> Result<Dump, DumpError> {
        let text: String = values.iter().map(Value::to_string).collect();
        let mut dump = Dump::default();
        dump.read(text.as_bytes()).map(|()| dump)
    }

    fn object(api_version: &str, kind: &str, name: &str, revision: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "resourceVersion": revision}})
    }

    #[test]
    fn lists_and_objects_in_any_nesting_are_read() {
        let node = object("horchestra.io/v1", "Node", "n1", "7");
        let bare = json!({"metadata": {"name": "n2", "resourceVersion": "19"}});
        let event = object("v1", "Event", "e", "3");
        let nodes = json!({"apiVersion": "horchestra.io/v1", "kind": "NodeList", "items": [bare]});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""},
            "items": [node, event, nodes]});
        let dump = read(&[list, object("horchestra.io/v1", "Namespace", "team", "not a number")]).unwrap();
        let names: Vec<(Kind, &str)> = dump.objects.iter().map(|(kind, it)| (*kind, it.name())).collect();
        assert_eq!(names, [(Kind::Node, "n1"), (Kind::Node, "n2"), (Kind::Namespace, "team")]);
        assert_eq!((dump.highest(), dump.events(), dump.len()), (19, 1, 3));
        assert!(!dump.is_empty());
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        let refused = |text: &str| Dump::default().read(text.as_bytes()).unwrap_err().to_string();
        assert!(refused("apiVersion: v1").contains("not JSON"));
        assert!(refused("{\"kind\": \"List\"").contains("not JSON"));
        for text in ["[]", "7", "{}", r#"{"kind":"List","apiVersion":"v1","items":[3]}"#] {
            assert!(refused(text).contains("neither"), "{text}");
        }
        let pod = object("v1", "Pod", "p", "1");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, pod]});
        assert!(matches!(read(&[list]), Err(DumpError::Kinds(kinds)) if kinds == ["v1 Pod"]));
    }
}
