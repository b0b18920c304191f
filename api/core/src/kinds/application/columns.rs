//! The table of Applications.

use serde_json::Value;

use crate::object::Object;
use crate::table::{AGE, Column, NAME, text_at};

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column::text("IMAGE", "Container image that is run.", |object, _| text_at(object, &["spec", "image"])),
    Column::text(
        "Status",
        "Phase of the workload; Updating while the node runs an older generation, Terminating while it is being deleted.",
        |object, _| Value::from(status(object)),
    ),
    Column::wide("NODE", "Node that the workload is bound to.", |object, _| {
        match object.str_at(&["spec", "placement", "nodeName"]) {
            "" => Value::from("-"),
            node => Value::from(node),
        }
    }),
    Column::wide("IP", "Address of a running workload with a network of its own.", |object, _| {
        Value::from(address(object))
    }),
    AGE,
];

/// The phase as people should see it.
pub fn status(object: &Object) -> &str {
    let observed = object.at(&["status", "observedGeneration"]).and_then(Value::as_i64).unwrap_or(0);
    match object.str_at(&["status", "phase"]) {
        // Whatever its node has said so far.
        _ if object.is_deleting() => "Terminating",
        "" => "Pending",
        "Running" if observed > 0 && observed != object.generation() => "Updating",
        phase => phase,
    }
}

/// The workload's address without the prefix length; empty when it has none.
pub fn address(object: &Object) -> &str {
    let address = object.str_at(&["status", "address"]);
    address.split_once('/').map_or(address, |(address, _)| address)
}
