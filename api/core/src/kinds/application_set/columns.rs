//! The table of ApplicationSets.

use serde_json::Value;

use crate::object::Object;
use crate::table::{AGE, Column, NAME};

/// A number of the status; 0 when there is none.
fn count(object: &Object, member: &str) -> Value {
    let count = object.at(&["status", member]).and_then(Value::as_i64).unwrap_or(0);
    Value::from(count.to_string())
}

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column::text("DESIRED", "Children that there should be.", |object, _| count(object, "desired")),
    Column::text("CURRENT", "Children that there are.", |object, _| count(object, "current")),
    Column::text("RUNNING", "Children that run what the set says now.", |object, _| count(object, "running")),
    Column::text("Status", "How far the set has come, or why it does not go on.", |object, _| {
        let phase = object.str_at(&["status", "phase"]);
        Value::from(if phase.is_empty() { "Progressing" } else { phase })
    }),
    AGE,
];
