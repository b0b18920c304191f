//! What differs between two versions of an object.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::extract::{every_field, is_owned_metadata, is_owned_root, of_tree};
use super::fields::{FieldSet, member};
use super::parts::{Items, KEYLESS, Parts, member_schema, parts};
use crate::object::Object;
use crate::schema::Schema;

/// What differs, from the first version to the second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields of the second only, containers included.
    pub added: FieldSet,
    /// Fields of the first only, likewise.
    pub removed: FieldSet,
    /// Fields with another value.
    pub modified: FieldSet,
    /// Fields of the first that vanished because something above them became a value of another make, such
    /// as a list that cannot be told apart any more. They are removed as well; but this is something that was
    /// done to their owners.
    pub displaced: FieldSet,
}

impl Comparison {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.modified.is_empty()
    }

    /// What somebody has set, and therefore owns: all that was added or has another value.
    pub fn touched(&self) -> FieldSet {
        let mut touched = self.added.clone();
        touched.add(&self.modified);
        touched
    }

    fn attach(&mut self, step: impl Into<String>, below: Comparison) {
        let step = step.into();
        self.added.attach(step.as_str(), below.added);
        self.removed.attach(step.as_str(), below.removed);
        self.modified.attach(step.as_str(), below.modified);
        self.displaced.attach(step, below.displaced);
    }
}

/// Compares two versions of an object of this schema; `None` is an object that is not there yet. Metadata that
/// only the server writes is left out.
pub fn compare(schema: &Schema, old: Option<&Object>, new: &Object) -> Comparison {
    let Some(old) = old else {
        return Comparison { added: every_field(schema, new), ..Comparison::default() };
    };
    let mut all = Comparison::default();
    each_member(&old.0, &new.0, &mut |name, old, new| {
        if !is_owned_root(name) {
            return;
        }
        let below = member_schema(schema, name).0;
        match (old, new) {
            (Some(Value::Object(old)), Some(Value::Object(new))) if name == "metadata" => {
                let mut metadata = Comparison::default();
                each_member(old, new, &mut |name, old, new| {
                    if is_owned_metadata(name) {
                        metadata.attach(member(name), optional(member_schema(below, name).0, old, new));
                    }
                });
                all.attach(member(name), metadata);
            }
            _ => all.attach(member(name), optional(below, old, new)),
        }
    });
    all
}

type Visit<'a> = dyn FnMut(&str, Option<&Value>, Option<&Value>) + 'a;

fn each_member(old: &Map<String, Value>, new: &Map<String, Value>, visit: &mut Visit<'_>) {
    for (name, value) in old {
        visit(name, Some(value), new.get(name));
    }
    for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        visit(name, None, Some(value));
    }
}

fn optional(schema: &Schema, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    match (old, new) {
        (Some(old), Some(new)) => values(schema, old, new),
        (None, Some(new)) => Comparison { added: of_tree(schema, new), ..Comparison::default() },
        (Some(old), None) => Comparison { removed: of_tree(schema, old), ..Comparison::default() },
        (None, None) => Comparison::default(),
    }
}

fn values(schema: &Schema, old: &Value, new: &Value) -> Comparison {
    let mut all = Comparison::default();
    if old == new {
        return all;
    }
    match (parts(schema, old), parts(schema, new)) {
        (Parts::Members(old), Parts::Members(new)) => {
            each_member(old, new, &mut |name, old, new| {
                all.attach(member(name), optional(member_schema(schema, name).0, old, new));
            });
        }
        (Parts::Items(old, below), Parts::Items(new, _)) => items(below, &old, &new, &mut all),
        (before, now) => {
            all.modified.here = true;
            if !matches!(before, Parts::Whole) {
                all.displaced = below_only(of_tree(schema, old));
                all.removed = all.displaced.clone();
            }
            if !matches!(now, Parts::Whole) {
                all.added = below_only(of_tree(schema, new));
            }
        }
    }
    all
}

fn below_only(set: FieldSet) -> FieldSet {
    FieldSet { here: false, ..set }
}

fn items<'a>(schema: &Schema, old: &'a Items<'_>, new: &'a Items<'_>, all: &mut Comparison) {
    let (old_keyless, old) = split_keyless(old);
    let (new_keyless, new) = split_keyless(new);
    let keyless = match (old_keyless.is_empty(), new_keyless.is_empty()) {
        (true, false) => Comparison { added: FieldSet::leaf(), ..Comparison::default() },
        (false, true) => Comparison { removed: FieldSet::leaf(), ..Comparison::default() },
        _ if old_keyless != new_keyless => Comparison { modified: FieldSet::leaf(), ..Comparison::default() },
        _ => Comparison::default(),
    };
    all.attach(KEYLESS, keyless);
    // By step, since lists can be long.
    let by_step = |keyed: &Keyed<'a>| keyed.iter().copied().collect::<HashMap<&'a str, &'a Value>>();
    let (before, now) = (by_step(&old), by_step(&new));
    for (step, value) in old {
        all.attach(step, optional(schema, Some(value), now.get(step).copied()));
    }
    for (step, value) in new.into_iter().filter(|(step, _)| !before.contains_key(step)) {
        all.attach(step, optional(schema, None, Some(value)));
    }
}

type Keyed<'a> = Vec<(&'a str, &'a Value)>;

fn split_keyless<'a>(items: &'a Items<'_>) -> (Vec<&'a Value>, Keyed<'a>) {
    let keyless = items.iter().filter(|(step, _)| step == KEYLESS).map(|(_, value)| *value).collect();
    let keyed = items.iter().filter(|(step, _)| step != KEYLESS).map(|(step, value)| (step.as_str(), *value));
    (keyless, keyed.collect())
}
