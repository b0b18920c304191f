//! SecretStore: where nodes fetch the values of Secrets that are kept elsewhere.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::bytes::ByteString;
use super::meta::ObjectMeta;
use super::null_as_default;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::KindSpec;
use crate::schema::{self, Schema};

/// A SecretStore is a server outside of the cluster that keeps values, and how nodes log in to it. Secrets
/// of the type `horchestra.io/vault` in the same namespace name it in the annotation
/// `secrets.horchestra.io/store`; the node that runs a workload then fetches the value itself, so it never
/// passes through the control plane. What is written here is only judged by nodes, when they use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretStore {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// The server, and how to log in to it.
    pub spec: SecretStoreSpec,
}

/// The server, and how to log in to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretStoreSpec {
    /// Which product the server is, such as `vault` or `openbao`. For people: both speak the same protocol.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Base URL of the server, such as `https://vault.example.net:8200`.
    pub server: String,
    /// Where the key-value engine is mounted. Absent: `secret`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub mount: String,
    /// Version of the key-value engine: `1`, or `2` for every other number. Absent: `2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_version: Option<i64>,
    /// Namespace on the server (nothing to do with Namespaces here). Absent: the root.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub vault_namespace: String,
    /// Certificates in PEM form, as base64, one of which has to have issued that of the server. Absent: those
    /// that the node trusts anyway.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ByteString::is_empty")]
    pub ca_bundle: ByteString,
    /// How nodes log in.
    #[serde(default, deserialize_with = "null_as_default")]
    pub auth: SecretStoreAuth,
}

/// How nodes log in to the server of a SecretStore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStoreAuth {
    /// `cert`: with the certificate of the node. `kubernetes`: with a token that proves the identity of the
    /// workload. Absent: `cert`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Where the login method is mounted on the server. Absent: the name of the method.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Role to log in as.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub role: String,
}

/// Readers find `auth` in every store, even an empty one.
fn defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("auth").or_insert_with(|| Value::Object(Map::new()));
    }
}

/// A way to log in that nodes do not know.
fn oddities(object: &Object) -> Vec<String> {
    let method = object.str_at(&["spec", "auth", "method"]);
    let told = || format!("spec.auth.method: nodes know \"cert\" and \"kubernetes\", not {method:?}");
    if matches!(method, "" | "cert" | "kubernetes") { Vec::new() } else { vec![told()] }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<SecretStore>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["ss"],
    defaults,
    oddities,
    ..KindSpec::base(Kind::SecretStore, "secretstore", "SecretStoreList", schema)
};
