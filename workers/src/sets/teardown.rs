//! The end of a set: its children go first, or are let go.
//!
//! Nothing is rendered and nothing created here. Since every child was created on the condition that the set was
//! as it had been read, a view in which the set is being deleted holds all children that it will ever have: once
//! there are none, there will be none.

use std::sync::Arc;

use horchestra_core::kinds::application_set::{
    CHILD_TEARDOWN_FINALIZER, COMPONENT_LABEL, HASH_ANNOTATION, SET_LABEL,
};
use horchestra_core::object::Object;
use horchestra_store::Entry;
use serde_json::Value;

use super::plan::{Action, Plan, Step, set_unchanged};
use super::situation::Situation;

/// What whoever deletes a set asks for, so that children stay.
pub const ORPHAN_FINALIZER: &str = "orphan";

pub fn plan(situation: &Situation) -> Plan {
    let orphans = situation.object.finalizers().contains(&ORPHAN_FINALIZER);
    let services = situation.own_services().map(|(_, service)| &service.entry);
    let children = situation.children.values().map(|child| &child.entry);
    let stages = if orphans {
        vec![
            services.filter_map(|entry| release(situation, entry)).collect(),
            children.filter_map(|entry| release(situation, entry)).collect(),
            finish(situation),
        ]
    } else if situation.children.is_empty() {
        let services = services.filter(|entry| !entry.deleting);
        vec![services.map(|entry| delete(situation, entry)).collect(), finish(situation)]
    } else {
        let children = children.filter(|entry| !entry.deleting);
        vec![children.map(|entry| delete(situation, entry)).collect()]
    };
    Plan { stages, strict: true, ..Plan::default() }
}

fn delete(situation: &Situation, entry: &Arc<Entry>) -> Step {
    let action = Action::Delete { entry: Arc::clone(entry), exact: false };
    Step { action, conditions: vec![set_unchanged(situation)] }
}

/// Takes the set's marks off; what was its own is an object like any other from then on.
fn release(situation: &Situation, entry: &Arc<Entry>) -> Option<Step> {
    let mut object = entry.object().ok()?;
    let uid = situation.entry.uid.to_string();
    let metadata = object.metadata_mut();
    if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
        owners.retain(|owner| owner["uid"] != uid.as_str());
        if owners.is_empty() {
            metadata.remove("ownerReferences");
        }
    }
    for (map, key) in [("labels", SET_LABEL), ("labels", COMPONENT_LABEL), ("annotations", HASH_ANNOTATION)] {
        if let Some(entries) = metadata.get_mut(map).and_then(Value::as_object_mut) {
            entries.remove(key);
            if entries.is_empty() {
                metadata.remove(map);
            }
        }
    }
    let action = Action::Update { entry: Arc::clone(entry), object };
    Some(Step { action, conditions: vec![set_unchanged(situation)] })
}

/// Takes the set's own holds off. Whoever takes the last one off erases it; others may still hold it.
fn finish(situation: &Situation) -> Vec<Step> {
    let own = |finalizer: &str| finalizer == CHILD_TEARDOWN_FINALIZER || finalizer == ORPHAN_FINALIZER;
    let mut object: Object = situation.object.clone();
    let finalizers = object.finalizers();
    let others: Vec<Value> =
        finalizers.iter().filter(|finalizer| !own(finalizer)).map(|it| Value::from(*it)).collect();
    if others.len() == finalizers.len() {
        return Vec::new();
    }
    if others.is_empty() {
        object.metadata_mut().remove("finalizers");
    } else {
        object.set_metadata("finalizers", Value::Array(others));
    }
    let action = Action::Finish { entry: Arc::clone(&situation.entry), object };
    vec![Step { action, conditions: Vec::new() }]
}
