//! What an apply is answered when others own what it changes.

use super::fields::{FieldSet, path};
use super::managed::{Manager, Operation};
use crate::kind::Key;
use crate::status::{Cause, Status};
use crate::time::Time;

/// Fields of one other manager that an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Manager,
    /// When the manager last changed its fields.
    pub time: Option<Time>,
    pub fields: FieldSet,
}

/// Most conflicts that are listed: an object can have very many fields.
const MOST: usize = 500;

/// The 409 that names every conflict.
pub fn conflict_status(key: &Key, conflicts: &[Conflict]) -> Status {
    let all: Vec<(String, Vec<String>)> = conflicts
        .iter()
        .map(|conflict| {
            let leaves = conflict.fields.leaves();
            (described(conflict), leaves.iter().map(|steps| path(steps)).collect())
        })
        .collect();
    let count: usize = all.iter().map(|(_, paths)| paths.len()).sum();
    let mut causes = Vec::new();
    let mut listed = Vec::new();
    for (manager, paths) in &all {
        listed.push(format!("conflicts with {manager}:"));
        for path in paths.iter().take(MOST.saturating_sub(causes.len())) {
            listed.push(format!("- {path}"));
            causes.push(Cause::new(
                "FieldManagerConflict",
                path.as_str(),
                format!("conflict with {manager}"),
            ));
        }
    }
    let message = match causes.as_slice() {
        [only] if count == 1 => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
        _ => format!("Apply failed with {count} conflicts: {}", listed.join("\n")),
    };
    Status::apply_conflict(key.kind, &key.name, message, causes)
}

fn described(conflict: &Conflict) -> String {
    let manager = &conflict.manager;
    let mut text = format!("{:?}", manager.name);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", manager.subresource));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.api_version));
        if let Some(time) = conflict.time {
            text.push_str(&format!(" at {time}"));
        }
    }
    text
}
