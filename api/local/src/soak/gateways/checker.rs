//! Judges what became of the nodes by what was stored.
//!
//! Two sources, each complete: the change log, row by row, and what the nodes themselves wrote down. Both go by the
//! clock of one machine, and a row is stamped before its commit, so a node acts after the row that made it act.
//!
//! * Nothing is torn down without a reason on record: a unit that a node stopped was being deleted, was gone, had been
//!   placed elsewhere or had run to its end by then; a volume whose data went had been deleted.
//! * No two workloads report the same address at any revision, and what is reported is what is leased.
//! * In the end the store says of every Application what its node said last.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry, Revision};
use uuid::Uuid;

use super::super::recorder::Watcher;
use crate::journal::{Event, Line};

/// Moments are in microseconds since the epoch.
type Moment = i64;

/// What is on record of an Application.
#[derive(Clone, Debug, Default)]
struct Life {
    key: Option<Key>,
    /// When it was asked to be deleted, or was erased without that.
    deleted: Option<Moment>,
    /// When a job was found to have run to its end.
    finished: Option<Moment>,
    /// The nodes that it was placed on, from when.
    placed: Vec<(Moment, String)>,
}

impl Life {
    /// Whether there was a reason by then to stop it on this node.
    fn explains(&self, at: Moment, node: &str) -> bool {
        let by_then = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= at);
        let there = self.placed.iter().rfind(|(moment, _)| *moment <= at);
        by_then(self.deleted) || by_then(self.finished) || there.is_some_and(|(_, placed)| placed != node)
    }
}

/// How much there was to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes of Applications that nodes reported.
    pub reports: usize,
    pub stopped: usize,
    pub volumes_gone: usize,
    /// Revisions at which an Application reported an address.
    pub addresses: usize,
    /// Applications whose state in the end was compared.
    pub compared: usize,
    /// Times that a node was judged not ready.
    pub unready: usize,
}

/// See the module.
#[derive(Default)]
pub struct Judge {
    lives: HashMap<Uuid, Life>,
    /// When volumes were deleted, by the names that nodes have for them.
    volumes: HashMap<String, Vec<Moment>>,
    /// Who reports an address at present.
    addresses: BTreeMap<String, Uuid>,
    reported_by: HashMap<Uuid, String>,
    ready: HashMap<Key, bool>,
    counts: Counts,
    violations: Vec<String>,
}

impl Watcher for Judge {
    fn observe(&mut self, row: &LogRow) {
        match row.change.object_kind() {
            Kind::Application => self.application(row),
            Kind::PersistentVolume if row.change.kind == ChangeKind::Deleted => {
                let key = row.change.key();
                let id = format!("{}_{}", key.namespace, key.name);
                self.volumes.entry(id).or_default().push(row.at);
            }
            Kind::Node => self.node(row),
            _ => {}
        }
    }

    fn violations(&self) -> usize {
        self.violations.len()
    }
}

impl Judge {
    fn application(&mut self, row: &LogRow) {
        let (key, entry) = (row.change.key(), &row.change.entry);
        let gone = row.change.kind == ChangeKind::Deleted;
        if row.who.user.starts_with("system:node:") {
            self.counts.reports += 1;
        }
        let Ok(app) = entry.typed::<Application>() else {
            return self.broken(row.change.revision, format!("{key} cannot be read"));
        };
        let life = self.lives.entry(entry.uid).or_default();
        life.key = Some(key.clone());
        if (gone || entry.deleting) && life.deleted.is_none() {
            life.deleted = Some(row.at);
        }
        if app.is_job() && app.is_finished() && life.finished.is_none() {
            life.finished = Some(row.at);
        }
        let node = app.node_name();
        if !node.is_empty() && life.placed.last().is_none_or(|(_, last)| last != node) {
            life.placed.push((row.at, node.to_owned()));
        }
        let address = if gone { "" } else { app.status.address.as_str() };
        self.address(row.change.revision, entry.uid, key, address);
    }

    fn address(&mut self, revision: Revision, uid: Uuid, key: &Key, address: &str) {
        let before = match address {
            "" => self.reported_by.remove(&uid),
            _ => self.reported_by.insert(uid, address.to_owned()),
        };
        if let Some(before) = before.filter(|before| before != address)
            && self.addresses.get(&before) == Some(&uid)
        {
            self.addresses.remove(&before);
        }
        if address.is_empty() {
            return;
        }
        self.counts.addresses += 1;
        let holder = self.addresses.insert(address.to_owned(), uid);
        if let Some(other) = holder.filter(|other| *other != uid) {
            self.broken(revision, format!("{key} reports the address {address}, as {other} does"));
        }
    }

    fn node(&mut self, row: &LogRow) {
        let Ok(node) = row.change.entry.typed::<Node>() else { return };
        let ready = node.ready() == Some(ConditionStatus::True);
        let before = self.ready.insert(row.change.key().clone(), ready);
        if before == Some(true) && !ready {
            self.counts.unready += 1;
        }
    }

    /// Judges what nodes have written down, with all rows seen. `stored` is all that the store has, `leases` the
    /// addresses in the database.
    pub fn conclude(&mut self, journal: &[Line], stored: &[Arc<Entry>], leases: &HashMap<Uuid, String>) {
        let mut said: HashMap<Uuid, &Line> = HashMap::new();
        for line in journal {
            let (at, node) = (line.at, &line.node);
            match &line.event {
                Event::Beat | Event::Received { .. } => {}
                Event::Reported { uid, .. } => {
                    said.insert(*uid, line);
                }
                Event::Stopped { uid, why } => {
                    self.counts.stopped += 1;
                    let life = self.lives.get(uid);
                    if !life.is_some_and(|life| life.explains(at, node)) {
                        self.broken(
                            0,
                            format!("{node} stopped {uid} at {at} ({why:?}) without a reason: {life:?}"),
                        );
                    }
                }
                Event::VolumeGone { volume, kept } => {
                    self.counts.volumes_gone += 1;
                    let deleted = self.volumes.get(volume).into_iter().flatten().any(|moment| *moment <= at);
                    if !deleted {
                        let data = if *kept { "forgot" } else { "removed the data of" };
                        self.broken(
                            0,
                            format!("{node} {data} the volume {volume} at {at}, which was not deleted"),
                        );
                    }
                }
            }
        }
        for entry in stored.iter().filter(|entry| entry.key.kind == Kind::Application) {
            let Ok(app) = entry.typed::<Application>() else { continue };
            self.compare(&app, entry, said.get(&entry.uid).copied(), leases);
        }
    }

    fn compare(
        &mut self,
        app: &Application,
        entry: &Entry,
        said: Option<&Line>,
        leases: &HashMap<Uuid, String>,
    ) {
        self.counts.compared += 1;
        let (key, status) = (&entry.key, &app.status);
        let Some(Line { node, event: Event::Reported { phase, generation, address, .. }, .. }) = said else {
            return self.broken(
                entry.revision,
                format!("{key} is stored as {:?}, and no node said so", status.phase),
            );
        };
        if node != app.node_name()
            || (phase, generation, address) != (&status.phase, &status.observed_generation, &status.address)
        {
            self.broken(
                entry.revision,
                format!(
                    "{key} is stored as {:?} at generation {} with address {:?}; {node} said {phase:?}, {generation}, {address:?}",
                    status.phase, status.observed_generation, status.address
                ),
            );
        }
        let bare = status.address.split('/').next().unwrap_or_default();
        if !bare.is_empty() && leases.get(&entry.uid).map(String::as_str) != Some(bare) {
            self.broken(
                entry.revision,
                format!("{key} reports {bare}, leased is {:?}", leases.get(&entry.uid)),
            );
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn into_violations(self) -> Vec<String> {
        self.violations
    }

    fn broken(&mut self, revision: Revision, what: String) {
        self.violations.push(format!("revision {revision}: {what}"));
    }
}
