//! What can go wrong with one connection, on demand.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use super::MemoryBackend;
use crate::backend::LogRow;
use crate::types::{Item, Revision};

/// How the connection breaks during a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// Committed, but the answer does not arrive.
    LoseAnswer,
    /// The request never arrives; the caller cannot tell.
    LoseRequest,
    /// The caller loses the connection while the request is on its way; it arrives when
    /// [`MemoryBackend::deliver_late`] is called.
    Late,
}

/// The faults of a connection at present.
#[derive(Default)]
pub struct Faults {
    pub(super) cut_off: bool,
    pub(super) deaf: bool,
    pub(super) latency: Duration,
    pub(super) poison: HashSet<String>,
    pub(super) commits: VecDeque<CommitFault>,
    pub(super) late: Vec<(Vec<Item>, Uuid)>,
    pub(super) skipped: Option<Revision>,
    pub(super) longest: Option<usize>,
    pub(super) commits_cut_off: usize,
    /// How many items arrive before the process at this end dies.
    pub(super) left: Option<usize>,
}

impl MemoryBackend {
    /// Cuts the connection (every call fails) or mends it.
    pub fn set_cut_off(&self, cut_off: bool) {
        let was = std::mem::replace(&mut self.listener.faults.write().cut_off, cut_off);
        self.listener.hint.send_modify(|hint| {
            hint.connected = !cut_off;
            hint.connections += u64::from(was && !cut_off);
        });
        if was && !cut_off {
            self.listener.leases.send_modify(|released| *released += 1);
        }
    }

    /// How many commits have failed because the connection was cut.
    pub fn commits_cut_off(&self) -> usize {
        self.listener.faults.read().commits_cut_off
    }

    /// Stops every call of this connection where it is, or lets them go on: a process that stands still.
    pub fn set_stalled(&self, stalled: bool) {
        self.listener.stalled.send_replace(stalled);
    }

    /// Holds every answer back after it was computed, or lets them go.
    pub fn set_answers_held(&self, held: bool) {
        self.listener.held.send_modify(|answers| answers.0 = held);
    }

    /// How many answers are held back.
    pub fn held_answers(&self) -> usize {
        self.listener.held.borrow().1
    }

    /// Leaves this row out of the next read that should have it, as a broken database would.
    pub fn skip_once(&self, revision: Revision) {
        self.listener.faults.write().skipped = Some(revision);
    }

    /// Reads of the log that ask for more rows than this fail, as they do when there is not enough time.
    pub fn set_longest_stretch(&self, rows: Option<usize>) {
        self.listener.faults.write().longest = rows;
    }

    /// Whether hints are lost.
    pub fn set_deaf(&self, deaf: bool) {
        self.listener.faults.write().deaf = deaf;
    }

    /// How long every call takes.
    pub fn set_latency(&self, latency: Duration) {
        self.listener.faults.write().latency = latency;
    }

    /// Makes the database raise an error on any batch that touches an object of this name.
    pub fn poison(&self, name: &str) {
        self.listener.faults.write().poison.insert(name.to_owned());
    }

    /// Breaks the next commits, one fault each.
    pub fn break_commits(&self, faults: impl IntoIterator<Item = CommitFault>) {
        self.listener.faults.write().commits.extend(faults);
    }

    /// A process that is killed once so many items (of transactions) have arrived: the next one does not, and
    /// nothing that was asked is answered any more.
    pub fn die_after(&self, items: usize) {
        self.listener.faults.write().left = Some(items);
    }

    /// Resolves when the process has died (or stands still for another reason).
    pub async fn died(&self) {
        let mut stalled = self.listener.stalled.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = stalled.wait_for(|stalled| *stalled).await;
    }

    /// How many of a batch of so many items arrive, if they are the last ones that do.
    pub(super) fn last_writes(&self, items: usize) -> Option<usize> {
        let mut faults = self.listener.faults.write();
        let left = faults.left.as_mut()?;
        match left.checked_sub(items) {
            Some(rest) => {
                *left = rest;
                None
            }
            None => Some(std::mem::take(left)),
        }
    }

    /// Lets commits that were [`CommitFault::Late`] arrive now. What becomes of them is nobody's to know.
    pub fn deliver_late(&self) {
        let late = std::mem::take(&mut self.listener.faults.write().late);
        for (batch, nonce) in late {
            let _ = self.apply(&batch, nonce);
        }
    }

    /// Waits while answers are held.
    pub(super) async fn leave(&self) {
        let mut held = self.listener.held.subscribe();
        if !held.borrow_and_update().0 {
            return;
        }
        self.listener.held.send_modify(|answers| answers.1 += 1);
        // The sender lives in `self`, so this cannot fail.
        let _ = held.wait_for(|answers| !answers.0).await.map(|_| ());
        self.listener.held.send_modify(|answers| answers.1 -= 1);
    }

    pub(super) fn skip(&self, rows: &mut Vec<LogRow>) {
        let mut faults = self.listener.faults.write();
        let before = rows.len();
        rows.retain(|row| Some(row.change.revision) != faults.skipped);
        if rows.len() < before {
            faults.skipped = None;
        }
    }

    pub(super) fn is_too_long(&self, rows: usize) -> bool {
        self.listener.faults.read().longest.is_some_and(|longest| rows > longest)
    }

    pub(super) fn next_fault(&self) -> Option<CommitFault> {
        self.listener.faults.write().commits.pop_front()
    }

    pub(super) fn poisoned(&self, batch: &[Item]) -> Option<String> {
        let faults = self.listener.faults.read();
        let mut keys = batch.iter().flat_map(|item| &item.ops).filter_map(|op| op.key());
        keys.find(|key| faults.poison.contains(&key.name)).map(|key| key.name.clone())
    }
}
