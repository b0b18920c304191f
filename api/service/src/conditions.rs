//! `status.conditions`: a list that is a map by `type`.

use horchestra_core::object::Object;
use serde_json::{Map, Value, json};

use crate::clock;

/// A condition as it should be; when it last changed is found out on setting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition<'a> {
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
    /// Generation that it speaks of; 0 leaves it out.
    pub generation: i64,
}

/// The status member of an object, made if need be.
pub(crate) fn status_mut(object: &mut Object) -> &mut Map<String, Value> {
    let slot = object.0.entry("status").or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("just made an object")
}

/// The condition of a type.
pub(crate) fn find<'a>(object: &'a Object, kind: &str) -> Option<&'a Value> {
    object.at(&["status", "conditions"])?.as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub(crate) fn is_true(object: &Object, kind: &str) -> bool {
    find(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Sets a condition. `lastTransitionTime` moves only with the status; everything equal changes nothing.
pub(crate) fn set(object: &mut Object, wanted: &Condition<'_>) {
    let list = status_mut(object).entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().expect("just made a list");
    let at = list.iter().position(|condition| condition["type"] == wanted.kind);
    let since = at
        .map(|at| &list[at])
        .filter(|old| old["status"] == wanted.status)
        .and_then(|old| old["lastTransitionTime"].as_str())
        .map_or_else(clock::now, str::to_owned);
    let mut condition = json!({
        "type": wanted.kind,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": since,
    });
    if wanted.generation > 0 {
        condition["observedGeneration"] = json!(wanted.generation);
    }
    match at {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}

/// Removes a condition; no conditions are no list.
pub(crate) fn clear(object: &mut Object, kind: &str) {
    if find(object, kind).is_none() {
        return;
    }
    let status = status_mut(object);
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        list.retain(|condition| condition["type"] != kind);
        if list.is_empty() {
            status.remove("conditions");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(status: &'a str, message: &'a str) -> Condition<'a> {
        Condition { kind: "Ready", status, reason: "Because", message, generation: 3 }
    }

    fn object(since: &str) -> Object {
        Object::from_value(json!({"status": {"conditions": [
            {"type": "Other", "status": "True"},
            {"type": "Ready", "status": "True", "reason": "Because", "message": "", "lastTransitionTime": since,
             "observedGeneration": 3},
        ]}}))
        .unwrap()
    }

    #[test]
    fn the_time_of_transition_moves_with_the_status_only() {
        let since = "2020-01-01T00:00:00Z";
        let mut unchanged = object(since);
        set(&mut unchanged, &wanted("True", ""));
        assert_eq!(unchanged, object(since), "setting what is set changes nothing");

        let mut reworded = object(since);
        set(&mut reworded, &wanted("True", "still"));
        assert_eq!(find(&reworded, "Ready").unwrap()["lastTransitionTime"], since);

        let mut flipped = object(since);
        set(&mut flipped, &wanted("False", ""));
        assert_ne!(find(&flipped, "Ready").unwrap()["lastTransitionTime"], since);
        assert_eq!(flipped.at(&["status", "conditions"]).unwrap().as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_list_of_another_type_is_replaced() {
        let mut object = Object::from_value(json!({"status": {"conditions": "none"}})).unwrap();
        set(&mut object, &wanted("True", ""));
        assert!(is_true(&object, "Ready"));
        clear(&mut object, "Ready");
        assert!(find(&object, "Ready").is_none());
    }
}
