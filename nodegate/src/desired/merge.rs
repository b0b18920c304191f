//! The changes of several kinds as one sequence, in the order in which they were committed.
//!
//! The store has a watcher for each kind, and each knows how far it is. A change is handed out when every watcher
//! is at least as far, so whatever was committed before it, of whichever kind, has been handed out too. Who applies
//! the changes in this order passes through nothing but states that the database has been in: an Application never
//! comes before the Secret that was made for it, and a Secret never goes before the Application has let go of it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use horchestra_core::kind::Kind;
use horchestra_store::{Change, Revision, Store, WatchEnd, Watcher};
use tokio::time::timeout;

/// How long a change waits for watchers that get on without saying so, before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Watchers, and what they have said that others may still have something to put before.
pub struct Merged {
    watchers: Vec<Watcher>,
    waiting: BTreeMap<Revision, Change>,
}

impl Merged {
    /// Everything of these kinds that comes after `revision`.
    pub fn new(store: &Store, kinds: &[Kind], revision: Revision) -> Result<Merged, WatchEnd> {
        let watchers = kinds.iter().map(|kind| store.watch(*kind, revision)).collect::<Result<_, _>>()?;
        Ok(Merged { watchers, waiting: BTreeMap::new() })
    }

    /// The next changes (at least one; waits). Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            self.take_what_is_there()?;
            let due = self.due();
            if !due.is_empty() {
                return Ok(due);
            }
            let held_back = !self.waiting.is_empty();
            let waits = self.watchers.iter_mut().map(|watcher| Box::pin(watcher.next()));
            let next = select_all(waits).map(|(changes, ..)| changes);
            let changes = if held_back { timeout(LOOK_AGAIN, next).await.ok() } else { Some(next.await) };
            if let Some(changes) = changes {
                self.keep(changes?);
            }
        }
    }

    /// All changes up to and including this revision have been returned by [`Merged::next`]. Moves on with changes
    /// of other kinds, too, when `next` is polled.
    pub fn progress(&self) -> Revision {
        let reached = self.reached();
        match self.waiting.first_key_value() {
            Some((first, _)) => reached.min(first - 1),
            None => reached,
        }
    }

    /// How far the slowest watcher is.
    fn reached(&self) -> Revision {
        self.watchers.iter().map(Watcher::progress).min().unwrap_or(0)
    }

    fn take_what_is_there(&mut self) -> Result<(), WatchEnd> {
        for at in 0..self.watchers.len() {
            // One stretch of each: none may keep the others waiting.
            if let Some(changes) = self.watchers[at].next().now_or_never() {
                self.keep(changes?);
            }
        }
        Ok(())
    }

    fn keep(&mut self, changes: Vec<Change>) {
        self.waiting.extend(changes.into_iter().map(|change| (change.revision, change)));
    }

    fn due(&mut self) -> Vec<Change> {
        let later = self.waiting.split_off(&(self.reached() + 1));
        std::mem::replace(&mut self.waiting, later).into_values().collect()
    }
}
