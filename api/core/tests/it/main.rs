//! Documents that clients depend on, held against files.

mod aliases;
mod discovery;
mod documents;
mod events;
mod kinds;
mod openapi;
mod tables;

use horchestra_core::Object;
use serde_json::Value;

/// Pretty JSON, for readable snapshots.
fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

/// 2026-03-01T12:00:00Z, the "now" of all tests.
fn now() -> jiff::Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}
