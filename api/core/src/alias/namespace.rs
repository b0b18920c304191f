//! Namespaces in their core shape.

use serde_json::json;

use super::{Alias, metadata, object};
use crate::kind::Kind;
use crate::object::Object;
use crate::table::{AGE, Column, NAME, text_at};

pub static NAMESPACES: Alias = Alias {
    kind: Kind::Namespace,
    group: "",
    api_version: "v1",
    written: None,
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    name: "Namespace",
    list_kind: "NamespaceList",
    advertised: false,
    columns: &[
        NAME,
        Column::text("Status", "Active, or Terminating while it is being deleted.", |stored, _| {
            text_at(&project(stored), &["status", "phase"])
        }),
        AGE,
    ],
    fields: &[("metadata.name", "metadata.name")],
    phases: &[],
    project,
};

fn project(stored: &Object) -> Object {
    let phase = if stored.is_deleting() { "Terminating" } else { "Active" };
    object(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata(stored),
        "spec": {"finalizers": []},
        "status": {"phase": phase},
    }))
}
