//! Secret: values that only those workloads see which name them.
//!
//! No text that is made here ever holds a value, neither a violation nor debug output. What a change may do
//! to a stored Secret (an immutable one stays) is judged where both are at hand; [`Secret::frozen_changes`]
//! says what is wrong.

mod source;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use source::{
    DYNAMIC_ROLE_ANNOTATION, KEYS_ANNOTATION, PATH_ANNOTATION, STATIC_ROLE_ANNOTATION, STORE_ANNOTATION,
    Source, role_endpoint,
};

use super::bytes::ByteString;
use super::meta::ObjectMeta;
use super::null_as_default;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{KindSpec, Selectable};
use crate::schema::{self, Schema};
use crate::sealed::UNREADABLE;
use crate::status::Cause;
use crate::values::{base_name_fault, encode_base64};

/// Type of a Secret that says nothing.
pub const TYPE_OPAQUE: &str = "Opaque";
/// Type of a Secret whose values nodes fetch from a SecretStore.
pub const TYPE_VAULT: &str = "horchestra.io/vault";
/// Most bytes that keys and values of one Secret may have together.
pub const MAX_DATA: usize = 1 << 20;

/// A Secret holds values for workloads of its namespace: as environment variables or as files in memory, on
/// the node of a workload that names it and nowhere else. It cannot be deleted while an Application of its
/// namespace names it. With the type `horchestra.io/vault` it holds no values but says, in annotations, where
/// the node fetches them: `secrets.horchestra.io/store` names the SecretStore,
/// `secrets.horchestra.io/path` the entry in its key-value engine (or
/// `secrets.horchestra.io/static-role`, `secrets.horchestra.io/dynamic-role` the role whose credentials are
/// wanted), and `secrets.horchestra.io/keys` the keys to take, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What sort of Secret it is. Only `horchestra.io/vault` has a meaning here; anything else is for people
    /// and tools.
    #[serde(rename = "type", default, deserialize_with = "null_as_default")]
    #[schemars(extend("x-default" = TYPE_OPAQUE))]
    pub type_: String,
    /// Values as base64, by key. A key can be the name of a file: no white space, `/`, `:` or `\`. Keys and
    /// values have at most 1 MiB together.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, ByteString>,
    /// Values as plain text, for writing only: they are put into `data`, where they win over values of the
    /// same key.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub string_data: BTreeMap<String, String>,
    /// Whether `data` stays as it is for good. Once set it cannot be taken back; metadata can still be
    /// changed, and the Secret deleted.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub immutable: bool,
}

impl Secret {
    /// Whether nodes fetch the values.
    pub fn is_vault(&self) -> bool {
        self.type_ == TYPE_VAULT
    }

    /// What is wrong with `new` in the place of this Secret.
    pub fn frozen_changes(&self, new: &Secret) -> Vec<Cause> {
        let mut causes = Vec::new();
        if !self.immutable {
            return causes;
        }
        let mut refuse = |field: &str, why: &str| {
            causes.push(Cause::new("FieldValueForbidden", field, format!("Forbidden: {why}")));
        };
        if self.data != new.data {
            refuse("data", "the Secret is immutable; delete it and create another one to change its values");
        }
        if !new.immutable {
            refuse("immutable", "a Secret that is immutable stays so");
        }
        causes
    }
}

/// Every violation of a Secret, in the order of its fields.
fn violations(object: &Object) -> Vec<Cause> {
    let Ok(secret) = object.read::<Secret>() else {
        // The schema lets nothing through that does not read; a reader's error might show a value.
        return vec![Cause::invalid("data", "null", "cannot be read")];
    };
    let mut causes = Vec::new();
    if secret.is_vault() && !secret.data.is_empty() {
        // Of both members, since a write may change either.
        let why = format!("Forbidden: a Secret of type {TYPE_VAULT} holds no values");
        causes.extend(["data", "type"].map(|field| Cause::new("FieldValueForbidden", field, why.as_str())));
    }
    for key in secret.data.keys() {
        if let Some(fault) = base_name_fault(key) {
            causes.push(Cause::invalid("data", &format!("{key:?}"), format!("a key {fault}")));
        }
    }
    let size: usize = secret.data.iter().map(|(key, value)| key.len() + value.0.len()).sum();
    if size > MAX_DATA {
        let why = format!("Too long: {size} bytes of keys and values, may not be more than {MAX_DATA}");
        causes.push(Cause::new("FieldValueTooLong", "data", why));
    }
    if secret.is_vault() {
        causes.extend(Source::of(&secret.metadata.annotations).err());
    }
    if secret.metadata.annotations.contains_key(UNREADABLE) {
        let why = format!(
            "Forbidden: {UNREADABLE} marks what is shown of a Secret whose contents do not open; its values are not in \
             it"
        );
        causes.push(Cause::new("FieldValueForbidden", "metadata.annotations", why));
    }
    causes
}

/// Puts `stringData` into `data`. What is of the wrong type stays where it is, for the schema to report. An
/// empty type means none.
fn defaults(object: &mut Map<String, Value>) {
    if object.get("type").and_then(Value::as_str) == Some("") {
        object.remove("type");
    }
    let foldable = object
        .get("stringData")
        .and_then(Value::as_object)
        .is_some_and(|texts| texts.values().all(Value::is_string))
        && object.get("data").is_none_or(Value::is_object);
    if !foldable {
        return;
    }
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = object.entry("data").or_insert_with(|| Value::Object(Map::new()));
    if let Some(data) = data.as_object_mut() {
        for (key, text) in texts {
            let encoded = encode_base64(text.as_str().unwrap_or_default().as_bytes());
            data.insert(key, Value::from(encoded));
        }
    }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Secret>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["sec"],
    history: None,
    selectable: &[Selectable { field: "type", path: &["type"], absent: TYPE_OPAQUE }],
    defaults,
    fold: defaults,
    validate: violations,
    ..KindSpec::base(Kind::Secret, "secret", "SecretList", schema)
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folded(mut secret: Value) -> Value {
        defaults(secret.as_object_mut().unwrap());
        secret
    }

    #[test]
    fn texts_are_folded_into_data_and_win() {
        let cases = [
            (
                json!({"stringData": {"user": "ledger"}, "data": {"user": "eA==", "pw": "eQ=="}}),
                json!({"data": {"user": "bGVkZ2Vy", "pw": "eQ=="}}),
            ),
            (json!({"stringData": {"a": ""}}), json!({"data": {"a": ""}})),
            (json!({"stringData": {}}), json!({})),
            (json!({"type": ""}), json!({})),
        ];
        for (given, expected) in cases {
            assert_eq!(folded(given.clone()), expected, "{given}");
        }
        for wrong in [
            json!({"stringData": {"a": 1}, "data": {}}),
            json!({"stringData": "a"}),
            json!({"stringData": {"a": "b"}, "data": [1]}),
            json!({"type": 3}),
        ] {
            assert_eq!(folded(wrong.clone()), wrong, "left for the schema to report");
        }
    }

    fn fields(mut secret: Value) -> Vec<String> {
        if secret.get("metadata").is_none() {
            secret["metadata"] = json!({"name": "s"});
        }
        let object = Object::from_value(secret).unwrap();
        violations(&object).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn keys_can_be_names_of_files() {
        for good in ["tls.key", "ca_bundle.pem", "user-1"] {
            assert!(fields(json!({"data": {good: ""}})).is_empty(), "{good}");
        }
        for bad in ["a/b", "tls key", "a:b", "a\\b", "a\tb", ".", "..", ""] {
            assert_eq!(fields(json!({"data": {bad: ""}})), ["data"], "{bad:?}");
        }
    }

    #[test]
    fn size_counts_keys_and_values() {
        let of = |bytes: usize| json!({"data": {"key": encode_base64(&vec![7; bytes])}});
        assert!(fields(of(MAX_DATA - 3)).is_empty());
        assert_eq!(fields(of(MAX_DATA - 2)), ["data"]);
    }

    #[test]
    fn values_that_nodes_fetch() {
        let vault = |annotations: Value, data: Value| {
            fields(json!({"type": TYPE_VAULT, "metadata": {"annotations": annotations}, "data": data}))
        };
        assert!(vault(json!({PATH_ANNOTATION: "apps/x", STORE_ANNOTATION: "v"}), json!({})).is_empty());
        assert_eq!(vault(json!({PATH_ANNOTATION: "apps/x"}), json!({"a": ""})), ["data", "type"]);
        let source = "metadata.annotations";
        assert_eq!(vault(json!({STORE_ANNOTATION: "v"}), json!({})), [source]);
        assert_eq!(
            vault(json!({PATH_ANNOTATION: "  "}), json!({"a/b": ""})),
            ["data", "type", "data", source]
        );
        assert!(fields(json!({"type": "other", "metadata": {"annotations": {}}})).is_empty());
    }

    #[test]
    fn what_was_shown_without_contents_is_no_secret() {
        let marked = |annotation: &str| {
            fields(json!({"metadata": {"name": "s", "annotations": {annotation: "they do not open"}}}))
        };
        assert_eq!(marked(UNREADABLE), ["metadata.annotations"]);
        assert!(marked("example.org/unreadable").is_empty());
    }

    #[test]
    fn immutable_secrets_stay() {
        let secret = |value: Value| serde_json::from_value::<Secret>(value).unwrap();
        let of = |data: &str, immutable: bool| {
            secret(json!({"metadata": {"name": "s"}, "data": {"a": data}, "immutable": immutable}))
        };
        let fields = |old: &Secret, new: &Secret| {
            old.frozen_changes(new).into_iter().map(|cause| cause.field).collect::<Vec<_>>()
        };
        let frozen = of("eA==", true);
        assert!(fields(&frozen, &of("eA==", true)).is_empty());
        assert_eq!(fields(&frozen, &of("eQ==", true)), ["data"]);
        assert_eq!(fields(&frozen, &of("eA==", false)), ["immutable"]);
        assert_eq!(fields(&frozen, &of("eQ==", false)), ["data", "immutable"]);
        assert!(fields(&of("eA==", false), &of("eQ==", true)).is_empty());
    }

    #[test]
    fn nothing_shows_a_value() {
        let secret = json!({"metadata": {"name": "s"}, "data": {"a": "aHVudGVyMg==", "b/c": "aHVudGVyMg=="}, "type": TYPE_VAULT});
        let object = Object::from_value(secret).unwrap();
        let texts: Vec<String> = violations(&object).into_iter().map(|cause| cause.message).collect();
        let shown = format!("{texts:?} {:?}", object.read::<Secret>().unwrap());
        assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyMg"), "{shown}");
    }
}
