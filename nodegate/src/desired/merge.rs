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

/// How long a change waits for watchers that get on without saying so, before it is looked at again: at first, and at
/// most. One that reads the log itself has to start over each time.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

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
        let mut pause = LOOK_AGAIN.0;
        loop {
            self.take_what_is_there()?;
            let due = self.due();
            if !due.is_empty() {
                return Ok(due);
            }
            let held_back = !self.waiting.is_empty();
            let waits = self.watchers.iter_mut().map(|watcher| Box::pin(watcher.next()));
            let next = select_all(waits).map(|(changes, ..)| changes);
            let changes = if held_back { timeout(pause, next).await.ok() } else { Some(next.await) };
            match changes {
                Some(changes) => self.keep(changes?),
                None => pause = LOOK_AGAIN.1.min(pause * 2),
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use horchestra_core::kind::Key;
    use horchestra_store::{Attribution, Columns, Draft, Index, Item, MemoryDatabase, Op, StoreOptions};
    use uuid::Uuid;

    use super::*;

    const KINDS: [Kind; 4] = [Kind::Node, Kind::PersistentVolume, Kind::SecretStore, Kind::Application];

    fn create(kind: Kind, name: String) -> Item {
        let key = if matches!(kind, Kind::Node | Kind::Namespace) {
            Key::cluster(kind, name)
        } else {
            Key::namespaced(kind, "shop", name)
        };
        let draft = Draft {
            body: Bytes::from(format!(r#"{{"metadata":{{"name":"{}"}}}}"#, key.name)),
            key,
            uid: Uuid::new_v4(),
            generation: 1,
            deleting: false,
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        let who = Attribution {
            user: "test".to_owned(),
            verb: "create".to_owned(),
            audit_id: Uuid::new_v4(),
            trace: None,
        };
        Item { ops: vec![Op::Create(draft)], guards: Vec::new(), who }
    }

    #[tokio::test]
    async fn changes_of_all_kinds_come_in_the_order_of_their_commits() {
        const EACH: usize = 100;
        let store = Store::open(MemoryDatabase::new().connect(), StoreOptions::default());
        store.ready().await;
        let start = store.fresh().await.unwrap().revision();
        let mut merged = Merged::new(&store, &KINDS, start).unwrap();
        let writers = KINDS.into_iter().chain([Kind::Namespace]).map(|kind| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    store.commit(create(kind, format!("o{number}"))).await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut seen: Vec<Revision> = Vec::new();
        while seen.len() < EACH * KINDS.len() {
            let changes = timeout(Duration::from_secs(20), merged.next()).await.unwrap().unwrap();
            seen.extend(changes.iter().map(|change| change.revision));
            assert!(merged.progress() >= *seen.last().unwrap());
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        for writer in writers {
            writer.await.unwrap();
        }
        // Nothing more comes, and how far it is moves on with kinds that it does not follow.
        let end = store.fresh().await.unwrap().revision();
        let more = timeout(Duration::from_millis(50), merged.next()).await;
        assert!(more.is_err());
        assert_eq!(merged.progress(), end);
    }
}
