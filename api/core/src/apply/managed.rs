//! The managers of an object: `metadata.managedFields`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::conflict::Conflict;
use super::extract::every_field;
use super::fields::{FieldSet, write_text};
use crate::object::Object;
use crate::schema::Schema;
use crate::time::Time;

/// Most managers that only update; the oldest beyond them are put together.
const MOST_UPDATERS: usize = 10;
/// The manager that old updates are put together under.
const ANCIENT: &str = "ancient-changes";
/// The manager of everything that was there before managers were kept of the object.
const BEFORE: &str = "before-first-apply";
/// The manager of a server-side `kubectl apply`.
const KUBECTL: &str = "kubectl";
const FIELDS_V1: &str = "FieldsV1";

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// It says all that it wants, each time.
    Apply,
    /// It changes this or that.
    Update,
}

impl Operation {
    pub const fn word(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// Whoever sets fields, in one way and through one door. One program can be several of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Manager {
    pub operation: Operation,
    pub name: String,
    pub api_version: String,
    /// The subresource through which it writes; empty for the object itself.
    pub subresource: String,
}

impl Manager {
    pub fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Manager {
        Manager {
            operation,
            name: name.to_owned(),
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The server-side apply of kubectl, which takes over from the client-side one.
    pub(super) fn is_kubectl(&self) -> bool {
        self.name == KUBECTL && self.subresource.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    manager: Manager,
    time: Option<Time>,
    fields: FieldSet,
}

/// The managers of an object and what each of them set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// Whether managers are kept of the object. Of one from before managers were kept, or that a client took
    /// them from, they are kept again from its next apply on: what was set earlier has no owner, and would
    /// look like it belonged to whoever comes first.
    tracked: bool,
    entries: Vec<Entry>,
}

impl Managed {
    /// The managers of an object that is about to be made.
    pub fn new() -> Managed {
        Managed { tracked: true, entries: Vec::new() }
    }

    /// The managers of an object of which none are kept.
    pub fn untracked() -> Managed {
        Managed::default()
    }

    pub fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// Reads stored managers. What cannot be read is passed over.
    pub fn from_stored(stored: Option<&[u8]>) -> Managed {
        let Some(Ok(Value::Array(list))) = stored.map(serde_json::from_slice) else {
            return Managed::untracked();
        };
        let mut managed = Managed { tracked: true, entries: list.iter().filter_map(Entry::read).collect() };
        managed.fold();
        managed
    }

    /// Reads the managers that a client sent: `None` when they say nothing (absent, or not all of them can be
    /// read), and then the stored ones stay. An empty list, or one with an empty entry, takes all away.
    pub fn from_client(sent: Option<&Value>) -> Option<Managed> {
        let list = sent?.as_array()?;
        let empty = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
        if list.iter().all(empty) {
            return Some(Managed::untracked());
        }
        let entries: Option<Vec<Entry>> = list.iter().map(Entry::read).collect();
        let mut managed = Managed { tracked: true, entries: entries? };
        managed.fold();
        managed.tidy();
        Some(managed)
    }

    /// Takes the managers that write through one subresource from elsewhere. Where none are kept, none are.
    pub fn replace_subresource(&mut self, subresource: &str, with: &Managed) {
        if self.tracked && with.tracked {
            self.entries.retain(|entry| entry.manager.subresource != subresource);
            let others = with.entries.iter().filter(|entry| entry.manager.subresource == subresource);
            self.entries.extend(others.cloned());
            self.tidy();
        }
    }

    /// As they are stored and shown; `None` when none are kept.
    pub fn to_stored(&self) -> Option<Vec<u8>> {
        if !self.tracked {
            return None;
        }
        let mut out = Vec::with_capacity(1024);
        out.push(b'[');
        for (at, entry) in self.entries.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            entry.write(&mut out);
        }
        out.push(b']');
        Some(out)
    }

    fn find(&self, manager: &Manager) -> Option<usize> {
        self.entries.iter().position(|entry| entry.manager == *manager)
    }

    /// The fields of one manager.
    pub fn fields(&self, manager: &Manager) -> Option<&FieldSet> {
        self.find(manager).map(|at| &self.entries[at].fields)
    }

    /// All managers with the time of their last change, in the order in which they are shown.
    pub fn managers(&self) -> impl Iterator<Item = (&Manager, Option<Time>)> {
        self.entries.iter().map(|entry| (&entry.manager, entry.time))
    }

    /// The fields of one manager, and those of all others together.
    pub(super) fn split(&self, manager: &Manager) -> (FieldSet, FieldSet) {
        let mut own = FieldSet::default();
        let mut others = FieldSet::default();
        for entry in &self.entries {
            if entry.manager == *manager { &mut own } else { &mut others }.add(&entry.fields);
        }
        (own, others)
    }

    /// Begins to keep managers of an object that is there already: everything in it belongs to nobody in
    /// particular.
    pub(super) fn begin(&mut self, schema: &Schema, live: &Object, api_version: &str, now: Time) {
        if std::mem::replace(&mut self.tracked, true) {
            return;
        }
        let mut main = every_field(schema, live);
        let status = main.split_off("f:status");
        self.entries.clear();
        for (fields, subresource) in [(main, ""), (status, "status")] {
            let manager = Manager::new(BEFORE, Operation::Update, api_version, subresource);
            self.entries.push(Entry { manager, time: Some(now), fields });
        }
        self.tidy();
    }

    /// Which other managers own any of these fields.
    pub(super) fn conflicts(&self, manager: &Manager, contested: &FieldSet) -> Vec<Conflict> {
        self.entries
            .iter()
            .filter(|entry| entry.manager != *manager)
            .map(|entry| Conflict {
                manager: entry.manager.clone(),
                time: entry.time,
                fields: entry.fields.intersection(contested),
            })
            .filter(|conflict| !conflict.fields.is_empty())
            .collect()
    }

    /// Fields that are no more have no owner.
    pub fn forget(&mut self, removed: &FieldSet) {
        if removed.is_empty() {
            return;
        }
        for entry in &mut self.entries {
            entry.fields.remove_trees(removed);
        }
        self.tidy();
    }

    /// A manager has set these fields, and owns them now alone. Nothing is kept of objects without managers.
    pub fn update(&mut self, manager: &Manager, touched: &FieldSet, now: Time) {
        if touched.is_empty() || !self.tracked {
            return;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.manager != *manager) {
            entry.fields.remove(touched);
        }
        match self.find(manager) {
            Some(at) => {
                self.entries[at].fields.add(touched);
                self.entries[at].time = Some(now);
            }
            None => {
                let (manager, fields) = (manager.clone(), touched.clone());
                self.entries.push(Entry { manager, time: Some(now), fields });
            }
        }
        self.tidy();
    }

    /// A manager has applied these fields. The contested ones are taken from others; those that have the same
    /// value for all are shared.
    pub(super) fn apply(
        &mut self,
        manager: &Manager,
        fields: FieldSet,
        contested: &FieldSet,
        removed: &FieldSet,
        now: Time,
    ) {
        for entry in self.entries.iter_mut().filter(|entry| entry.manager != *manager) {
            entry.fields.remove(contested);
            entry.fields.remove_trees(removed);
        }
        match self.find(manager) {
            Some(at) => {
                let entry = &mut self.entries[at];
                if entry.fields != fields || !contested.is_empty() || !removed.is_empty() {
                    entry.time = Some(now);
                }
                entry.fields = fields;
            }
            None => self.entries.push(Entry { manager: manager.clone(), time: Some(now), fields }),
        }
        self.tidy();
    }

    /// Whether the same managers own the same fields in both, whenever they came to.
    pub fn owns_the_same(&self, other: &Managed) -> bool {
        let all = |managed: &Managed| -> HashMap<Manager, FieldSet> {
            managed.entries.iter().map(|entry| (entry.manager.clone(), entry.fields.clone())).collect()
        };
        self.tracked == other.tracked && all(self) == all(other)
    }

    /// A manager keeps only those of its fields that are in a set: it may have named some that the object did
    /// not take.
    pub fn keep(&mut self, manager: &Manager, existing: &FieldSet) {
        if let Some(at) = self.find(manager) {
            let kept = self.entries[at].fields.intersection(existing);
            self.entries[at].fields = kept;
            self.entries.retain(|entry| !entry.fields.is_empty());
        }
    }

    /// Drops managers of nothing, puts old ones together, and sorts: appliers first, then by time.
    fn tidy(&mut self) {
        self.entries.retain(|entry| !entry.fields.is_empty());
        self.sort();
        if self.merge_old() {
            self.fold();
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.manager.operation, entry.time);
            key(a).cmp(&key(b)).then_with(|| a.manager.cmp(&b.manager))
        });
    }

    /// Merges the oldest updaters, those of one version and subresource with each other, until there are few
    /// enough. Whether there were too many.
    fn merge_old(&mut self) -> bool {
        let updates = |entry: &&Entry| entry.manager.operation == Operation::Update;
        let mut excess = self.entries.iter().filter(updates).count().saturating_sub(MOST_UPDATERS);
        if excess == 0 {
            return false;
        }
        let mut merged: Vec<Entry> = Vec::with_capacity(self.entries.len());
        let mut buckets: HashMap<(String, String), usize> = HashMap::new();
        for entry in std::mem::take(&mut self.entries) {
            if excess == 0 || entry.manager.operation != Operation::Update {
                merged.push(entry);
                continue;
            }
            let bucket = (entry.manager.api_version.clone(), entry.manager.subresource.clone());
            match buckets.get(&bucket) {
                Some(at) => {
                    let first = &mut merged[*at];
                    first.fields.add(&entry.fields);
                    first.time = entry.time;
                    first.manager = Manager { name: ANCIENT.to_owned(), ..entry.manager };
                    excess -= 1;
                }
                None => {
                    buckets.insert(bucket, merged.len());
                    merged.push(entry);
                }
            }
        }
        self.entries = merged;
        true
    }

    /// Makes one entry of those of the same manager.
    fn fold(&mut self) {
        let mut known: HashMap<Manager, usize> = HashMap::new();
        let mut folded: Vec<Entry> = Vec::with_capacity(self.entries.len());
        for entry in std::mem::take(&mut self.entries) {
            match known.get(&entry.manager) {
                Some(at) => {
                    folded[*at].fields.add(&entry.fields);
                    folded[*at].time = folded[*at].time.max(entry.time);
                }
                None => {
                    known.insert(entry.manager.clone(), folded.len());
                    folded.push(entry);
                }
            }
        }
        self.entries = folded;
    }
}

impl Entry {
    fn read(value: &Value) -> Option<Entry> {
        let entry = value.as_object()?;
        let text = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(value) => value.as_str(),
        };
        let operation = match text("operation")? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let manager = Manager::new(text("manager")?, operation, text("apiVersion")?, text("subresource")?);
        if !matches!(text("fieldsType")?, "" | FIELDS_V1) {
            return None;
        }
        let time = match text("time")? {
            "" => None,
            time => Some(time.parse().ok()?),
        };
        let fields = FieldSet::from_json(entry.get("fieldsV1")?.as_object()?)?;
        Some(Entry { manager, time, fields })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut first = true;
        let mut text = |out: &mut Vec<u8>, name: &str, value: &str| {
            if !value.is_empty() {
                out.push(if std::mem::take(&mut first) { b'{' } else { b',' });
                write_text(out, name);
                out.push(b':');
                write_text(out, value);
            }
        };
        text(out, "manager", &self.manager.name);
        text(out, "operation", self.manager.operation.word());
        text(out, "apiVersion", &self.manager.api_version);
        if let Some(time) = self.time {
            text(out, "time", &time.to_string());
        }
        text(out, "fieldsType", FIELDS_V1);
        out.extend_from_slice(br#","fieldsV1":"#);
        self.fields.write(out);
        text(out, "subresource", &self.manager.subresource);
        out.push(b'}');
    }
}
