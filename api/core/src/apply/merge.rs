//! Putting an applied configuration into an object.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::compare::compare;
use super::conflict::Conflict;
use super::extract::{applied_fields, is_owned_metadata, is_owned_root};
use super::last_applied;
use super::managed::{Managed, Manager};
use super::parts::{Items, KEYLESS, Parts, member_schema, parts};
use super::prune::prune;
use crate::object::Object;
use crate::schema::Schema;
use crate::time::Time;

/// What a manager applies.
#[derive(Clone, Copy, Debug)]
pub struct Configuration<'a> {
    pub manager: &'a Manager,
    /// The fields that the manager wants, in their stored form (amounts and times are compared as texts), cut
    /// down to what this request may write.
    pub fields: &'a Object,
    /// The document as it was sent, for the annotation of client-side apply.
    pub document: &'a Object,
    /// Whether fields of others are taken over.
    pub force: bool,
}

/// The object with a configuration in it. Its defaults are not filled in, its rules not judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub object: Object,
    pub managed: Managed,
}

/// Applies a configuration to an object, or to nothing when there is none yet.
pub fn apply(
    schema: &Schema,
    live: Option<&Object>,
    configuration: Configuration<'_>,
    managed: &Managed,
    now: Time,
) -> Result<Applied, Vec<Conflict>> {
    let mut managed = managed.clone();
    if let Some(live) = live {
        managed.begin(schema, live, &configuration.manager.api_version, now);
    }
    let mut force = configuration.force;
    let fields = applied_fields(schema, configuration.fields);
    let merged = merge_objects(schema, live, configuration.fields);
    let (last, mut owned) = managed.split(configuration.manager);
    owned.add(&fields);
    let mut object = prune(schema, merged, &last, &owned, &fields);
    let change = compare(schema, live, &object);

    let mut contested = change.touched();
    contested.add(&change.displaced);
    let mut conflicts = managed.conflicts(configuration.manager, &contested);
    if !conflicts.is_empty() && !force {
        // What a client-side apply wrote is its user's to write again.
        if let Some(live) = live
            && configuration.manager.is_kubectl()
        {
            let own = last_applied::written_and_untouched(schema, live);
            for conflict in &mut conflicts {
                conflict.fields.remove(&own);
            }
            conflicts.retain(|conflict| !conflict.fields.is_empty());
            force = conflicts.is_empty();
        }
        if !force {
            return Err(conflicts);
        }
    }
    managed.apply(configuration.manager, fields, &contested, &change.removed, now);
    if configuration.manager.is_kubectl() {
        last_applied::keep_up(&mut object, configuration.document);
    }
    Ok(Applied { object, managed })
}

fn merge_objects(schema: &Schema, live: Option<&Object>, configuration: &Object) -> Object {
    let mut merged = live.map(|live| live.0.clone()).unwrap_or_default();
    for (name, value) in &configuration.0 {
        if !is_owned_root(name) {
            merged.entry(name.as_str()).or_insert_with(|| value.clone());
            continue;
        }
        let below = member_schema(schema, name).0;
        match (merged.get_mut(name), value) {
            (Some(Value::Object(stored)), Value::Object(metadata)) if name == "metadata" => {
                for (name, value) in metadata.iter().filter(|(name, _)| is_owned_metadata(name)) {
                    merge_member(member_schema(below, name).0, stored, name, value);
                }
            }
            _ => merge_member(below, &mut merged, name, value),
        }
    }
    Object(merged)
}

fn merge_member(schema: &Schema, into: &mut Map<String, Value>, name: &str, value: &Value) {
    match into.get_mut(name) {
        Some(stored) => merge(schema, stored, value),
        None => {
            into.insert(name.to_owned(), value.clone());
        }
    }
}

fn merge(schema: &Schema, into: &mut Value, value: &Value) {
    match (parts(schema, into), parts(schema, value)) {
        (Parts::Members(_), Parts::Members(members)) => {
            let Value::Object(into) = into else { return };
            for (name, value) in members {
                merge_member(member_schema(schema, name).0, into, name, value);
            }
        }
        (Parts::Items(stored, below), Parts::Items(items, _)) => {
            *into = Value::Array(merge_items(below, &stored, &items));
        }
        _ => *into = value.clone(),
    }
}

/// The items of both lists. Those of the second are in its order; between them, those that only the first has
/// stay where they were. Items without a key are one item: those of the second take the place of those of the
/// first.
fn merge_items(schema: &Schema, stored: &Items<'_>, items: &Items<'_>) -> Vec<Value> {
    let before: HashMap<&str, &Value> = stored.iter().map(|(step, value)| (step.as_str(), *value)).collect();
    let named: HashSet<&str> = items.iter().map(|(step, _)| step.as_str()).collect();
    // The items without a key are told apart by their number here, or they could not stay in their places.
    let numbered = |items: &Items<'_>| -> Vec<(String, usize)> {
        let mut keyless = 0;
        items
            .iter()
            .map(|(step, _)| {
                keyless += usize::from(step == KEYLESS);
                (step.clone(), if step == KEYLESS { keyless } else { 0 })
            })
            .collect()
    };
    let identities = numbered(items);
    let wanted: HashSet<&(String, usize)> = identities.iter().collect();
    let mut merged = Vec::with_capacity(stored.len() + items.len());
    let mut next = 0;
    let mut placed: HashSet<&(String, usize)> = HashSet::new();
    let place = |next: usize, merged: &mut Vec<Value>| {
        let (step, value) = &items[next];
        let mut value = (*value).clone();
        if step != KEYLESS
            && let Some(stored) = before.get(step.as_str())
        {
            let applied = std::mem::replace(&mut value, (*stored).clone());
            merge(schema, &mut value, &applied);
        }
        merged.push(value);
    };
    for ((_, value), identity) in stored.iter().zip(numbered(stored)) {
        if !named.contains(identity.0.as_str()) {
            merged.push((*value).clone());
        } else if wanted.contains(&identity) && !placed.contains(&identity) {
            while next < items.len() {
                place(next, &mut merged);
                placed.insert(&identities[next]);
                next += 1;
                if identities[next - 1] == identity {
                    break;
                }
            }
        }
    }
    while next < items.len() {
        place(next, &mut merged);
        next += 1;
    }
    merged
}
