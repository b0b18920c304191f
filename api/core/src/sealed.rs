//! The stored form of objects whose contents are sealed.
//!
//! Such an object is stored in two parts. The *clear part* is what the system works with and people look for:
//! address, uid, times, generation, labels, owners, finalizers, `type`, and the annotations under
//! [`CLEAR_ANNOTATIONS`]. Everything else is the *contents*: one JSON tree that only holders of the keys can
//! read. What is clear stands in a list; a member that nobody has thought of is sealed.
//!
//! The stored body is the clear part with one member more, [`MEMBER`], which holds the sealed contents, the id
//! of the key and a keyed digest of the contents. It is a canonical body like any other: a revision can be
//! spliced in, SQL can look at it, and who holds no key can still read the clear part, select by it, and
//! rewrite it (set a deletion mark, take a finalizer away) with the sealed member carried along unread. That
//! is why the seal does not cover the clear part: it only ties the contents to the one object that they are of.
//!
//! Nothing here encrypts: keys are the business of who holds them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::object::Object;

/// The member of a stored body that holds the [`Seal`].
pub const MEMBER: &str = "sealed";

/// Annotations whose keys begin like this stay in the clear: they say where a value comes from, and are no
/// value.
pub const CLEAR_ANNOTATIONS: &str = "secrets.horchestra.io/";

/// The annotation of an object that is shown without its contents, with the reason. It is never stored.
pub const UNREADABLE: &str = "secrets.horchestra.io/unreadable";

const CLEAR_MEMBERS: [&str; 3] = ["apiVersion", "kind", "type"];

const CLEAR_METADATA: [&str; 12] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// What stands in the place of the contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Id of the key.
    pub key: String,
    /// Equal for equal contents of one object, whatever the key; tells nothing without the digest key.
    pub digest: [u8; 32],
    /// The sealed contents.
    pub payload: Vec<u8>,
}

#[derive(Deserialize)]
struct Parts {
    key: String,
    digest: String,
    payload: String,
}

impl Seal {
    /// The seal of a stored body; `None` when it has none that can be read.
    pub fn of(body: &[u8]) -> Option<Seal> {
        #[derive(Deserialize)]
        struct Stored {
            sealed: Parts,
        }
        let stored: Stored = serde_json::from_slice(body).ok()?;
        Seal::read(&stored.sealed)
    }

    fn read(parts: &Parts) -> Option<Seal> {
        let digest = STANDARD.decode(&parts.digest).ok()?.try_into().ok()?;
        let payload = STANDARD.decode(&parts.payload).ok()?;
        (!parts.key.is_empty()).then(|| Seal { key: parts.key.clone(), digest, payload })
    }

    /// Puts the seal on a clear part.
    pub fn put(&self, clear: &mut Object) {
        let parts = json!({
            "key": self.key,
            "digest": STANDARD.encode(self.digest),
            "payload": STANDARD.encode(&self.payload),
        });
        clear.0.insert(MEMBER.to_owned(), parts);
    }

    /// Takes the seal off a stored object, which leaves its clear part; `None` when there is none that can be
    /// read, and the object is then as it was.
    pub fn take(object: &mut Object) -> Option<Seal> {
        let parts = Parts::deserialize(object.get(MEMBER)?).ok()?;
        let seal = Seal::read(&parts)?;
        object.0.remove(MEMBER);
        Some(seal)
    }
}

/// Cuts an object into its clear part and its contents. `metadata.managedFields` belongs to neither: the store
/// keeps it apart.
pub fn split(object: Object) -> (Object, Object) {
    let (mut clear, mut contents) = (Map::new(), Map::new());
    for (member, value) in object.0 {
        match value {
            Value::Object(metadata) if member == "metadata" => {
                let (open, kept) = split_metadata(metadata);
                clear.insert(member.clone(), open.into());
                if !kept.is_empty() {
                    contents.insert(member, kept.into());
                }
            }
            value if CLEAR_MEMBERS.contains(&member.as_str()) && value.is_string() => {
                clear.insert(member, value);
            }
            value => {
                contents.insert(member, value);
            }
        }
    }
    (Object(clear), Object(contents))
}

fn split_metadata(metadata: Map<String, Value>) -> (Map<String, Value>, Map<String, Value>) {
    let (mut clear, mut contents) = (Map::new(), Map::new());
    for (member, value) in metadata {
        match value {
            Value::Object(annotations) if member == "annotations" => {
                let (open, kept): (Map<_, _>, Map<_, _>) =
                    annotations.into_iter().partition(|(key, _)| key.starts_with(CLEAR_ANNOTATIONS));
                if kept.is_empty() || !open.is_empty() {
                    clear.insert(member.clone(), open.into());
                }
                if !kept.is_empty() {
                    contents.insert(member, kept.into());
                }
            }
            value if CLEAR_METADATA.contains(&member.as_str()) => {
                clear.insert(member, value);
            }
            _ if member == "managedFields" => {}
            value => {
                contents.insert(member, value);
            }
        }
    }
    (clear, contents)
}

/// Puts contents back into the clear part that they were cut from.
pub fn join(mut clear: Object, contents: Object) -> Object {
    for (member, value) in contents.0 {
        match value {
            Value::Object(metadata) if member == "metadata" => {
                let into = clear.metadata_mut();
                for (member, value) in metadata {
                    match (into.get_mut(&member), value) {
                        (Some(Value::Object(open)), Value::Object(kept)) if member == "annotations" => {
                            open.extend(kept);
                        }
                        (_, value) => {
                            into.insert(member, value);
                        }
                    }
                }
            }
            value => {
                clear.0.insert(member, value);
            }
        }
    }
    clear
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::object;
    use proptest::prelude::*;

    fn secret(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn what_is_clear_stands_in_a_list() {
        let whole = secret(json!({
            "apiVersion": "horchestra.io/v1", "kind": "Secret", "type": "Opaque", "immutable": true,
            "metadata": {
                "name": "db", "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "finalizers": ["x/y"],
                "ownerReferences": [], "somethingNew": "v1", "generation": 2, "creationTimestamp": "t",
                "annotations": {"secrets.horchestra.io/path": "p", "note": "v2", "a/last-applied": "v3"},
            },
            "data": {"password": "djQ="}, "sealed": {"key": "v5"}, "stringData": {"k": "v6"},
        }));
        let (clear, contents) = split(whole.clone());
        assert_eq!(
            clear.clone().into_value(),
            json!({
                "apiVersion": "horchestra.io/v1", "kind": "Secret", "type": "Opaque",
                "metadata": {
                    "name": "db", "namespace": "shop", "uid": "u", "labels": {"a": "b"},
                    "finalizers": ["x/y"], "ownerReferences": [], "generation": 2, "creationTimestamp": "t",
                    "annotations": {"secrets.horchestra.io/path": "p"},
                },
            })
        );
        let kept = contents.clone().into_value().to_string();
        for value in ["v1", "v2", "v3", "djQ=", "v5", "v6", "immutable"] {
            assert!(kept.contains(value), "{value} is part of {kept}");
        }
        assert_eq!(join(clear, contents), whole);
    }

    #[test]
    fn odd_shapes_of_clear_members_are_sealed() {
        let whole = secret(json!({"type": {"a": 1}, "metadata": {"annotations": "text", "name": "n"}}));
        let (clear, contents) = split(whole.clone());
        assert_eq!(clear.clone().into_value(), json!({"metadata": {"name": "n"}}));
        assert_eq!(join(clear, contents), whole);
    }

    #[test]
    fn a_seal_comes_back_from_bytes_and_from_the_tree() {
        let seal = Seal { key: "k1".into(), digest: [7; 32], payload: b"opaque".to_vec() };
        let clear = secret(json!({"metadata": {"name": "db"}, "type": "Opaque"}));
        let mut stored = clear.clone();
        seal.put(&mut stored);
        let body = object::encode(Kind::Secret, &stored);
        assert_eq!(Seal::of(&body), Some(seal.clone()));
        let shown = object::decode(&object::splice_revision(Kind::Secret, &body, 3), 0).unwrap();
        assert_eq!(shown.resource_version(), "3");
        assert_eq!(Seal::take(&mut stored), Some(seal));
        assert_eq!(stored, clear);
    }

    #[test]
    fn what_is_no_seal_is_none() {
        let good = || json!({"key": "k", "digest": STANDARD.encode([1; 32]), "payload": ""});
        let with = |member: &str, value: Value| {
            let mut sealed = good();
            sealed[member] = value;
            json!({"sealed": sealed})
        };
        for body in [
            json!({}),
            json!({"sealed": null}),
            json!({"sealed": "k"}),
            with("key", json!("")),
            with("key", json!(1)),
            with("digest", json!(STANDARD.encode([1; 31]))),
            with("digest", json!("%")),
            with("payload", json!("=")),
        ] {
            assert_eq!(Seal::of(body.to_string().as_bytes()), None, "{body}");
            let mut object = secret(body.clone());
            assert_eq!(Seal::take(&mut object), None);
            assert_eq!(object, secret(body), "left as it was");
        }
        assert!(Seal::of(json!({"sealed": good()}).to_string().as_bytes()).is_some());
        assert_eq!(Seal::of(b"no JSON"), None);
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let member = prop_oneof![
                "[a-z]{1,6}",
                Just("annotations".to_owned()),
                Just("metadata".to_owned()),
                Just("secrets.horchestra.io/path".to_owned()),
                Just("type".to_owned()),
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(member, inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever an object looks like, its two parts make it again.
        #[test]
        fn parts_make_the_whole(
            metadata in json_value(), data in json_value(), kind in json_value(), other in json_value(),
        ) {
            let whole = secret(json!({"metadata": metadata, "data": data, "type": kind, "other": other}));
            let (clear, contents) = split(whole.clone());
            prop_assert_eq!(join(clear, contents), whole);
        }
    }
}
