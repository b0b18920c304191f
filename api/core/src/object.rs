//! Objects as JSON trees, and the canonical bytes that the store keeps.
//!
//! The store keeps an object as canonical JSON **without** `metadata.resourceVersion` (known only once the
//! change has its place in the log) and without `metadata.managedFields` (kept apart, since most readers
//! never want it). The bytes always begin with `{"apiVersion":…,"kind":…,"metadata":{`, so a reader splices
//! the revision in at a position that depends on the kind alone ([`splice_revision`]). Canonical means:
//! those three members first, every other member in byte order, no white space. Equal trees have equal bytes.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value};

use crate::kind::{Key, Kind};

/// A JSON object with the accessors that Kubernetes metadata calls for.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Object(pub Map<String, Value>);

impl Object {
    /// `None` when the value is not a JSON object.
    pub fn from_value(value: Value) -> Option<Object> {
        match value {
            Value::Object(map) => Some(Object(map)),
            _ => None,
        }
    }

    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    pub fn get(&self, member: &str) -> Option<&Value> {
        self.0.get(member)
    }

    /// The value below a chain of members, e.g. `["spec", "placement", "nodeName"]`.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        let mut value = self.0.get(*first)?;
        for member in rest {
            value = value.as_object()?.get(*member)?;
        }
        Some(value)
    }

    /// The string below a chain of members; empty when absent or of another type.
    pub fn str_at(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or("")
    }

    /// The object as one of the structs of [`crate::kinds`], for reading.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(serde::de::value::MapAccessDeserializer::new(serde::de::value::MapDeserializer::new(
            self.0.iter().map(|(member, value)| (member.as_str(), value)),
        )))
    }

    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata").and_then(Value::as_object)
    }

    /// The metadata map, created (or replaced, when it is not an object) if need be.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        let slot = self.0.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        slot.as_object_mut().expect("just made an object")
    }

    pub fn name(&self) -> &str {
        self.str_at(&["metadata", "name"])
    }

    pub fn namespace(&self) -> &str {
        self.str_at(&["metadata", "namespace"])
    }

    pub fn uid(&self) -> &str {
        self.str_at(&["metadata", "uid"])
    }

    pub fn resource_version(&self) -> &str {
        self.str_at(&["metadata", "resourceVersion"])
    }

    pub fn generation(&self) -> i64 {
        self.at(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0)
    }

    pub fn is_deleting(&self) -> bool {
        !self.str_at(&["metadata", "deletionTimestamp"]).is_empty()
    }

    pub fn finalizers(&self) -> Vec<&str> {
        self.at(&["metadata", "finalizers"])
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.at(&["metadata", "labels"])?.as_object()?.get(key)?.as_str()
    }

    /// Labels in byte order; members that are not strings are left out.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.at(&["metadata", "labels"])
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|map| map.iter())
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    pub fn key(&self, kind: Kind) -> Key {
        Key {
            kind,
            namespace: if kind.namespaced() { self.namespace().to_owned() } else { String::new() },
            name: self.name().to_owned(),
        }
    }

    pub fn set_metadata(&mut self, member: &str, value: impl Into<Value>) {
        self.metadata_mut().insert(member.to_owned(), value.into());
    }
}

/// The canonical bytes of an object of this kind, as the store keeps them.
pub fn encode(kind: Kind, object: &Object) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(prefix(kind).as_bytes());
    let mut first = true;
    if let Some(metadata) = object.metadata() {
        for (member, value) in metadata {
            if member == "resourceVersion" || member == "managedFields" {
                continue;
            }
            write_member(&mut out, &mut first, member, value);
        }
    }
    out.push(b'}');
    let mut first = false;
    for (member, value) in &object.0 {
        if matches!(member.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        write_member(&mut out, &mut first, member, value);
    }
    out.push(b'}');
    Bytes::from(out)
}

fn write_member(out: &mut Vec<u8>, first: &mut bool, member: &str, value: &Value) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, member).expect("writing JSON to memory");
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect("writing JSON to memory");
}

fn prefix(kind: Kind) -> String {
    format!(r#"{{"apiVersion":"{}","kind":"{}","metadata":{{"#, kind.api_version(), kind.name())
}

/// Canonical bytes with `resourceVersion` put in as the first metadata member. An object that was never
/// stored (revision 0: what a dry run would have created) has none.
pub fn splice_revision(kind: Kind, body: &[u8], revision: i64) -> Bytes {
    splice(kind, body, revision, None)
}

/// The bytes a client sees: canonical bytes with `managedFields` (JSON, if there are any) and
/// `resourceVersion` put in.
pub fn splice(kind: Kind, body: &[u8], revision: i64, managed: Option<&[u8]>) -> Bytes {
    let at = prefix_len(kind);
    let managed = managed.filter(|managed| managed.len() > b"[]".len());
    let mut out = BytesMut::with_capacity(body.len() + managed.map_or(0, <[u8]>::len) + 80);
    out.extend_from_slice(&body[..at]);
    if let Some(managed) = managed {
        out.extend_from_slice(br#""managedFields":"#);
        out.extend_from_slice(managed);
        out.extend_from_slice(b",");
    }
    if revision != 0 {
        out.extend_from_slice(format!(r#""resourceVersion":"{revision}","#).as_bytes());
    }
    if body.get(at) == Some(&b'}') && out.last() == Some(&b',') {
        out.truncate(out.len() - 1);
    }
    out.extend_from_slice(&body[at..]);
    out.freeze()
}

fn prefix_len(kind: Kind) -> usize {
    r#"{"apiVersion":"","kind":"","metadata":{"#.len() + kind.api_version().len() + kind.name().len()
}

/// Reads canonical bytes back and puts the revision in, if there is one.
pub fn decode(body: &[u8], revision: i64) -> Result<Object, serde_json::Error> {
    let mut object = Object(serde_json::from_slice(body)?);
    if revision != 0 {
        object.set_metadata("resourceVersion", revision.to_string());
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bytes_round_trip_and_take_the_revision_in() {
        let object = Object::from_value(json!({
            "spec": {"image": "nginx"}, "kind": "Application", "apiVersion": "horchestra.io/v1", "data": 1,
            "metadata": {"name": "web", "resourceVersion": "3", "managedFields": [], "labels": {"a": "b"}},
        }))
        .unwrap();
        let body = encode(Kind::Application, &object);
        assert_eq!(
            body,
            r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"labels":{"a":"b"},"name":"web"},"data":1,"spec":{"image":"nginx"}}"#
        );
        let spliced = splice_revision(Kind::Application, &body, 42);
        let read: Value = serde_json::from_slice(&spliced).unwrap();
        assert_eq!(read, decode(&body, 42).unwrap().into_value());
        assert_eq!(read["metadata"]["resourceVersion"], "42");
    }

    #[test]
    fn empty_metadata_splices_without_a_stray_comma() {
        for kind in Kind::ALL {
            let body = encode(kind, &Object::default());
            for (revision, managed) in
                [(0, None), (1, None), (0, Some(&b"[{}]"[..])), (1, Some(&b"[{}]"[..]))]
            {
                let spliced = splice(kind, &body, revision, managed);
                let value: Value = serde_json::from_slice(&spliced).unwrap();
                assert_eq!(value["metadata"].get("managedFields").is_some(), managed.is_some());
                assert_eq!(value["metadata"].get("resourceVersion").is_some(), revision != 0);
            }
        }
    }
}
