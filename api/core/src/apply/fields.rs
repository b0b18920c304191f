//! Sets of fields, and the form in which `managedFields` carries them.
//!
//! A set is a tree: each step is one key of the FieldsV1 form, as it is written there. `f:` leads to a member
//! of an object, `k:` to the item of a list that has these keys (a JSON object), `v:` to the item of a set
//! that has this value, `i:` to a position. A node says whether the field that it stands for is in the set
//! itself; what is below it may be in the set without it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The step to a member of an object.
pub fn member(name: &str) -> String {
    let mut step = String::with_capacity(name.len() + 2);
    step.push_str("f:");
    step.push_str(name);
    step
}

/// A set of fields below some place of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Whether the place itself is in the set.
    pub(super) here: bool,
    pub(super) below: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// The set of the place alone.
    pub(super) fn leaf() -> FieldSet {
        FieldSet { here: true, below: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        !self.here && self.below.values().all(FieldSet::is_empty)
    }

    /// Whether the field at the end of these steps is in the set.
    pub fn contains(&self, steps: &[&str]) -> bool {
        match steps.split_first() {
            None => self.here,
            Some((first, rest)) => self.below.get(*first).is_some_and(|below| below.contains(rest)),
        }
    }

    /// Adds the field at the end of these steps.
    pub fn insert(&mut self, steps: &[&str]) {
        match steps.split_first() {
            None => self.here = true,
            Some((first, rest)) => self.below.entry((*first).to_owned()).or_default().insert(rest),
        }
    }

    /// Puts a set below a step; an empty one leaves no trace.
    pub(super) fn attach(&mut self, step: impl Into<String>, set: FieldSet) {
        if !set.is_empty() {
            self.below.insert(step.into(), set);
        }
    }

    /// Takes everything below a step out, and gives it.
    #[must_use]
    pub fn split_off(&mut self, step: &str) -> FieldSet {
        let mut split = FieldSet::default();
        if let Some(below) = self.below.remove(step) {
            split.below.insert(step.to_owned(), below);
        }
        split
    }

    pub fn add(&mut self, other: &FieldSet) {
        self.here |= other.here;
        for (step, theirs) in &other.below {
            match self.below.get_mut(step) {
                Some(ours) => ours.add(theirs),
                None => {
                    self.below.insert(step.clone(), theirs.clone());
                }
            }
        }
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let mut both = FieldSet { here: self.here && other.here, below: BTreeMap::new() };
        for (step, ours) in &self.below {
            if let Some(theirs) = other.below.get(step) {
                both.attach(step.as_str(), ours.intersection(theirs));
            }
        }
        both
    }

    /// Takes out the very fields of the other set.
    pub fn remove(&mut self, other: &FieldSet) {
        self.here &= !other.here;
        for (step, theirs) in &other.below {
            if let Some(ours) = self.below.get_mut(step) {
                ours.remove(theirs);
                if ours.is_empty() {
                    self.below.remove(step);
                }
            }
        }
    }

    /// Takes out the fields of the other set with everything below them: they are no more.
    pub fn remove_trees(&mut self, other: &FieldSet) {
        if other.here {
            *self = FieldSet::default();
            return;
        }
        for (step, theirs) in &other.below {
            if let Some(ours) = self.below.get_mut(step) {
                ours.remove_trees(theirs);
                if ours.is_empty() {
                    self.below.remove(step);
                }
            }
        }
    }

    /// The fields without another one below them, each as its steps, in order.
    pub fn leaves(&self) -> Vec<Vec<&str>> {
        fn walk<'a>(set: &'a FieldSet, steps: &mut Vec<&'a str>, leaves: &mut Vec<Vec<&'a str>>) {
            let before = leaves.len();
            for (step, below) in &set.below {
                steps.push(step);
                walk(below, steps, leaves);
                steps.pop();
            }
            if set.here && leaves.len() == before {
                leaves.push(steps.clone());
            }
        }
        let mut leaves = Vec::new();
        walk(self, &mut Vec::new(), &mut leaves);
        leaves
    }

    /// Reads the FieldsV1 form. `None` when it is none.
    pub fn from_json(fields: &Map<String, Value>) -> Option<FieldSet> {
        let mut set = FieldSet::default();
        for (step, below) in fields {
            let below = below.as_object()?;
            if step == "." {
                set.here = true;
                continue;
            }
            let below = if below.is_empty() { FieldSet::leaf() } else { FieldSet::from_json(below)? };
            let step = canonical(step)?;
            match set.below.get_mut(&step) {
                Some(known) => known.add(&below),
                None => set.attach(step, below),
            }
        }
        Some(set)
    }

    /// The FieldsV1 form.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        if self.here && !self.below.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, below) in &self.below {
            fields.insert(step.clone(), Value::Object(below.to_json()));
        }
        fields
    }

    /// Appends the FieldsV1 form as JSON text.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut first = true;
        if self.here && !self.below.is_empty() {
            out.extend_from_slice(br#"".":{}"#);
            first = false;
        }
        for (step, below) in &self.below {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write_text(out, step);
            out.push(b':');
            below.write(out);
        }
        out.push(b'}');
    }
}

/// Appends a JSON string.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    let plain = text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if plain {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(&mut *out, text).expect("writing JSON to memory");
    }
}

/// A step as we write it ourselves: tools order and escape what they copy in their own ways.
fn canonical(step: &str) -> Option<String> {
    let (kind, rest) = step.split_at_checked(2)?;
    match kind {
        "f:" => Some(step.to_owned()),
        "k:" => match serde_json::from_str(rest).ok()? {
            Value::Object(keys) => Some(format!("k:{}", Value::Object(keys))),
            _ => None,
        },
        "v:" => Some(format!("v:{}", serde_json::from_str::<Value>(rest).ok()?)),
        "i:" => Some(format!("i:{}", rest.parse::<i64>().ok()?)),
        _ => None,
    }
}

/// Steps as people read them: `.spec.env[name="A"].value`.
pub(super) fn path(steps: &[&str]) -> String {
    use std::fmt::Write as _;
    let mut path = String::new();
    for step in steps {
        let (kind, rest) = step.split_at_checked(2).unwrap_or((step, ""));
        // Writing to a String cannot fail.
        let _ = match kind {
            "f:" => write!(path, ".{rest}"),
            "v:" => write!(path, "[={rest}]"),
            "k:" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(path, "[{}]", keys.join(","))
            }
            _ => write!(path, "[{rest}]"),
        };
    }
    path
}
