//! The kinds: one module each, with the typed structs (for reading; their doc comments are what
//! `kubectl explain` prints), defaults, rules, table columns and the entry for the registry.
//!
//! Writes never go through the structs: they work on the JSON tree, so that members which this version does
//! not know survive.

pub mod application;
pub mod application_set;
pub mod bytes;
pub mod certificate_signing_request;
pub mod event;
pub mod meta;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod rbac;
pub mod secret;
pub mod secret_store;
pub mod service;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

/// Reads `null` as the default of the type.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The schema of an object that may hold anything.
pub(crate) fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
