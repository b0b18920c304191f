//! What placing an Application, or taking its placement back, means for its status.
//!
//! The same whoever places it (the scheduler through its door, an author with `spec.placement.nodeName`): what
//! an earlier node or the scheduler said is about a placement that is no more, so it goes in the very change
//! that makes it untrue, and nobody ever sees the new node beside the old node's report.

use horchestra_core::object::Object;
use serde_json::{Map, Value};

use crate::conditions::{self, Condition};

/// The condition about placement.
pub(crate) const SCHEDULED: &str = "Scheduled";
/// The condition about the running workload.
pub(crate) const READY: &str = "Ready";

/// The condition about a freeze.
pub(crate) const FROZEN: &str = "Frozen";

/// What a node's report fills in.
const REPORTED: [&str; 6] =
    ["message", "observedGeneration", "address", "exitCode", "finishedAt", "attempts"];

/// The node that an Application is placed on; empty for none.
pub(crate) fn node_of(object: &Object) -> &str {
    object.str_at(&["spec", "placement", "nodeName"])
}

/// Whether a freeze was asked for.
pub(crate) fn is_frozen(object: &Object) -> bool {
    object.at(&["spec", "frozen"]).and_then(Value::as_bool).unwrap_or(false)
}

/// A freeze was asked for, and the node has not said that it holds the workload still.
pub(crate) fn await_freeze(object: &mut Object) {
    let generation = object.generation();
    let message = "the control plane leaves the workload alone; its node has not said that it holds it still";
    conditions::set(
        object,
        &Condition { kind: FROZEN, status: "Unknown", reason: "Requested", message, generation },
    );
}

/// What a report of this phase says about a freeze.
pub(crate) fn judge_freeze(object: &mut Object, phase: &str) {
    if !is_frozen(object) {
        conditions::clear(object, FROZEN);
    } else if phase == "Frozen" {
        let generation = object.generation();
        let message = "the node holds the workload still";
        conditions::set(
            object,
            &Condition { kind: FROZEN, status: "True", reason: "Held", message, generation },
        );
    } else {
        await_freeze(object);
    }
}

/// Puts the placement of `old` back, whatever else was written.
pub(crate) fn keep(old: &Object, object: &mut Object) {
    if node_of(old) == node_of(object) {
        return;
    }
    let stored = old.at(&["spec", "placement", "nodeName"]).cloned();
    let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let placement = spec.entry("placement").or_insert_with(|| Value::Object(Map::new()));
    if !placement.is_object() {
        *placement = Value::Object(Map::new());
    }
    if let Some(placement) = placement.as_object_mut() {
        match stored {
            Some(node) => placement.insert("nodeName".to_owned(), node),
            None => placement.remove("nodeName"),
        };
    }
}

/// Placed in this generation, nothing heard yet.
pub(crate) fn mark_placed(object: &mut Object, generation: i64) {
    forget(object);
    conditions::status_mut(object).insert("phase".to_owned(), "Pending".into());
    let placed = Condition { kind: SCHEDULED, status: "True", reason: "Bound", message: "", generation };
    conditions::set(object, &placed);
}

/// Not placed any more, and nobody has looked for a place yet.
pub(crate) fn mark_unplaced(object: &mut Object) {
    forget(object);
    conditions::status_mut(object).insert("phase".to_owned(), "Pending".into());
    conditions::clear(object, SCHEDULED);
}

fn forget(object: &mut Object) {
    let status = conditions::status_mut(object);
    for member in REPORTED {
        status.remove(member);
    }
    conditions::clear(object, READY);
    if is_frozen(object) {
        await_freeze(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_another_node_said_is_forgotten() {
        let mut object = Object::from_value(json!({"status": {
            "phase": "Running", "message": "m", "observedGeneration": 3, "attempts": 2, "exitCode": 0,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}],
        }}))
        .unwrap();
        mark_placed(&mut object, 4);
        let status = object.get("status").unwrap();
        assert_eq!(status["phase"], "Pending");
        assert_eq!(status.as_object().unwrap().len(), 2, "{status}");
        assert_eq!(status["conditions"][0]["type"], "Mine");
        assert_eq!(status["conditions"][1]["observedGeneration"], 4);
        mark_unplaced(&mut object);
        assert!(conditions::find(&object, SCHEDULED).is_none());
        assert!(conditions::find(&object, "Mine").is_some());
    }

    #[test]
    fn a_freeze_is_true_only_while_a_node_says_so() {
        let mut object =
            Object::from_value(json!({"spec": {"frozen": true}, "metadata": {"generation": 2}})).unwrap();
        let status = |object: &Object| conditions::find(object, FROZEN).map(|it| it["status"].clone());
        for (phase, expected) in
            [("Running", "Unknown"), ("Frozen", "True"), ("Failed", "Unknown"), ("Frozen", "True")]
        {
            judge_freeze(&mut object, phase);
            assert_eq!(status(&object), Some(json!(expected)), "{phase}");
        }
        mark_placed(&mut object, 3);
        assert_eq!(status(&object), Some(json!("Unknown")), "another node has said nothing yet");
        object.0["spec"]["frozen"] = json!(false);
        judge_freeze(&mut object, "Running");
        assert_eq!(status(&object), None);
    }
}
