//! What clients were told, and what the store has in the end.

use std::collections::HashMap;
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry, Revision};
use uuid::Uuid;

use super::{Checker, Rule};

/// Annotation with which an author counts the changes of an object. One author writes it, and it only grows.
pub const TURN: &str = "soak.example.com/turn";

/// What an answer promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The object is stored at this revision.
    Written(Revision),
    /// The object goes.
    Deleted,
}

/// A write that a client was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    pub key: Key,
    pub uid: Uuid,
    pub promise: Promise,
    /// What the author had counted up to.
    pub turn: Option<u64>,
}

impl Checker {
    /// Nobody puts back what an author wrote.
    pub(super) fn check_turn(&mut self, row: &LogRow) {
        let authored = [Kind::Application, Kind::ApplicationSet, Kind::Node];
        if !authored.contains(&row.change.object_kind()) || row.change.kind == ChangeKind::Deleted {
            return;
        }
        let turn = turn(&row.change.entry).unwrap_or(0);
        let known = self.turns.entry(row.change.entry.uid).or_default();
        let before = std::mem::replace(known, turn);
        if turn < before {
            let (key, by) = (row.change.key(), &row.who.user);
            let what = format!("{key} from turn {before} to {turn} by {by}");
            self.broken(row.change.revision, Rule::Undone, what);
        }
    }

    /// At the end, with everything at rest: `stored` is all that the store has.
    pub fn conclude(&mut self, stored: &[Arc<Entry>], acknowledged: &[Acknowledged]) {
        self.compare(stored);
        let last = self.last;
        let live: Vec<Arc<Entry>> = self.past.of_kind(Kind::Application).cloned().collect();
        for entry in live {
            let Ok(app) = entry.typed::<Application>() else { continue };
            if app.node_name().is_empty() && !entry.deleting && !app.spec.frozen {
                self.broken(last, Rule::Unbound, format!("{}: {}", entry.key, app.status.message));
            }
        }
        for told in acknowledged {
            self.counts.acknowledged += 1;
            self.check_promise(told);
        }
    }

    fn compare(&mut self, stored: &[Arc<Entry>]) {
        let mut found: HashMap<&Key, (Uuid, Revision)> =
            stored.iter().map(|entry| (&entry.key, (entry.uid, entry.revision))).collect();
        let mut different = Vec::new();
        for entry in self.past.objects() {
            let found = found.remove(&entry.key);
            if found != Some((entry.uid, entry.revision)) {
                let stands =
                    found.map_or("nothing".to_owned(), |(_, revision)| format!("revision {revision}"));
                different.push(format!(
                    "{} is at revision {} in the log, stored is {stands}",
                    entry.key, entry.revision
                ));
            }
        }
        different.extend(found.keys().map(|key| format!("{key} is stored, and not in the log")));
        for what in different {
            self.broken(self.last, Rule::Different, what);
        }
    }

    fn check_promise(&mut self, told: &Acknowledged) {
        let (key, last) = (&told.key, self.last);
        let stands = self.past.get(key).filter(|entry| entry.uid == told.uid).cloned();
        match told.promise {
            Promise::Deleted if stands.is_some() => {
                self.broken(last, Rule::Undead, format!("{key} was deleted, and is there"));
            }
            Promise::Deleted => {}
            Promise::Written(revision) => {
                let row = self.rows.get(&revision);
                if row.is_none_or(|(of, uid)| (of, *uid) != (key, told.uid)) {
                    let what = format!("{key} was written at revision {revision}, which is {row:?}");
                    self.broken(revision, Rule::Lost, what);
                }
                // What is sealed is read by its author in the end: the log does not show it.
                let stands = stands.filter(|_| !key.kind.is_sealed()).map(|entry| turn(&entry).unwrap_or(0));
                if let (Some(turn), Some(stands)) = (told.turn, stands)
                    && stands < turn
                {
                    let what = format!("{key}: turn {turn} was acknowledged, {stands} stands");
                    self.broken(last, Rule::Lost, what);
                }
            }
        }
    }
}

fn turn(entry: &Entry) -> Option<u64> {
    let object = entry.object().ok()?;
    object.str_at(&["metadata", "annotations", TURN]).parse().ok()
}
