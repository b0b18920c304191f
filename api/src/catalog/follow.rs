//! The one task that keeps the catalog of this process current.
//!
//! It follows the changes of Applications, Services and Nodes in the order of the log, one by one. A comparison of
//! snapshots would be less work, but would not see a change that is taken back between two of them, while another
//! replica may have shown it to a client, who would then wait here for a change that has already been.
//!
//! Where changes cannot be followed (the cache fell behind, the database is another one), everything is built anew
//! from a snapshot, all indexes rise, and everybody who waits looks again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use horchestra_core::kind::Kind;
use horchestra_store::{Change, ChangeKind, Revision, Snapshot, Store, WatchEnd, Watcher};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::index::{Index, Touched};
use super::topics::{Changes, Waiters};

/// The kinds that the catalog is made of.
const KINDS: [Kind; 3] = [Kind::Application, Kind::Service, Kind::Node];

/// Changes that are taken over before those who ask have a turn.
const AT_ONCE: usize = 256;

/// Before it begins again after something that should not have been.
const AGAIN: Duration = Duration::from_secs(1);

/// The catalog at one revision.
#[derive(Debug, Default)]
pub struct State {
    pub index: Index,
    pub changes: Changes,
    /// Zero: nothing is loaded.
    pub revision: Revision,
}

/// What the task keeps, and others read.
#[derive(Debug)]
pub struct Followed {
    state: RwLock<State>,
    revision: watch::Sender<Revision>,
    pub waiters: Waiters,
}

impl Default for Followed {
    fn default() -> Followed {
        Followed { state: RwLock::default(), revision: watch::Sender::new(0), waiters: Waiters::default() }
    }
}

impl Followed {
    /// Looks at the state as it is now. The look must be short.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read())
    }

    /// How far it is; zero while nothing is loaded.
    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    /// Resolves when it has come that far.
    pub async fn reach(&self, revision: Revision) {
        let mut seen = self.revision.subscribe();
        let reached = seen.wait_for(|now| *now > 0 && *now >= revision).await.is_ok();
        if !reached {
            // The sender lives in `self`, which outlives this call.
            std::future::pending::<()>().await;
        }
    }

    fn replace(&self, state: State) {
        let revision = state.revision;
        *self.state.write() = state;
        self.revision.send_replace(revision);
        self.waiters.wake_all();
    }

    /// Takes over changes, and with them everything up to `revision`.
    fn apply(&self, changes: &[Change], revision: Revision) {
        let mut woken: Touched = Touched::new();
        let mut state = self.state.write();
        for change in changes {
            let mut touched = Touched::new();
            match change.kind {
                ChangeKind::Added | ChangeKind::Modified => state.index.put(&change.entry, &mut touched),
                ChangeKind::Deleted => state.index.remove(change.key(), &mut touched),
            }
            for topic in touched {
                state.changes.note(topic.clone(), change.revision);
                woken.insert(topic);
            }
        }
        state.revision = revision;
        drop(state);
        self.revision.send_replace(revision);
        self.waiters.wake(&woken);
    }
}

/// The state that follows from a snapshot.
pub fn build(snapshot: &Snapshot) -> State {
    let mut index = Index::default();
    // What is touched on the way is covered by the floor. Nodes come first, so that nothing is listed twice.
    let mut touched = Touched::new();
    for kind in [Kind::Node, Kind::Service, Kind::Application] {
        for entry in snapshot.list(kind, None) {
            index.put(entry, &mut touched);
            touched.clear();
        }
    }
    // Even the state before everything has an index, since zero stands for none with clients.
    let revision = snapshot.revision().max(1);
    State { index, changes: Changes::since(revision), revision }
}

/// Why following came to an end.
enum End {
    Closed,
    /// The changes do not continue what is known.
    Behind,
    Broken,
}

impl From<WatchEnd> for End {
    fn from(end: WatchEnd) -> End {
        match end {
            WatchEnd::Closed => End::Closed,
            WatchEnd::Expired { .. } => End::Behind,
        }
    }
}

/// Follows until `stop`.
pub async fn follow(followed: Arc<Followed>, store: Store, stop: CancellationToken) {
    loop {
        let run = AssertUnwindSafe(run(&followed, &store)).catch_unwind();
        let end = tokio::select! {
            () = stop.cancelled() => return,
            end = run => end.unwrap_or(End::Broken),
        };
        match end {
            End::Closed => return,
            End::Behind => tracing::info!("the catalog is built anew"),
            End::Broken => {
                tracing::error!("the catalog could not be kept current and is built anew");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(AGAIN) => {}
                }
            }
        }
    }
}

async fn run(followed: &Arc<Followed>, store: &Store) -> End {
    store.ready().await;
    let snapshot = store.snapshot();
    let mut feed = match Feed::open(store, snapshot.revision()) {
        Ok(feed) => feed,
        Err(end) => return end.into(),
    };
    // A large fleet takes a while.
    let Ok(state) = tokio::task::spawn_blocking(move || build(&snapshot)).await else { return End::Broken };
    followed.replace(state);
    loop {
        match feed.next(store).await {
            Ok((changes, revision)) => {
                let mut rest = changes.as_slice();
                while rest.len() > AT_ONCE {
                    let (some, others) = rest.split_at(AT_ONCE);
                    followed.apply(some, some[AT_ONCE - 1].revision);
                    rest = others;
                    tokio::task::yield_now().await;
                }
                followed.apply(rest, revision);
            }
            Err(end) => return end.into(),
        }
    }
}

/// The changes of several kinds in the order of the log.
struct Feed {
    watchers: Vec<Watcher>,
    /// Everything up to here was returned.
    at: Revision,
    /// What came early.
    ahead: Vec<Change>,
}

impl Feed {
    fn open(store: &Store, at: Revision) -> Result<Feed, WatchEnd> {
        let watchers = KINDS.iter().map(|kind| store.watch(*kind, at)).collect::<Result<_, _>>()?;
        Ok(Feed { watchers, at, ahead: Vec::new() })
    }

    /// What changed since the last call, and up to which revision that is everything.
    async fn next(&mut self, store: &Store) -> Result<(Vec<Change>, Revision), WatchEnd> {
        let now = store.changed_since(self.at).await;
        let mut changes = std::mem::take(&mut self.ahead);
        for watcher in &mut self.watchers {
            while watcher.progress() < now {
                // What there is comes at once; where nothing comes the watcher moves on all the same.
                match watcher.next().now_or_never() {
                    Some(some) => changes.extend(some?),
                    None if watcher.progress() >= now => {}
                    // It reads the log, which takes a moment and may bring nothing.
                    None => {
                        if let Ok(some) = tokio::time::timeout(AGAIN, watcher.next()).await {
                            changes.extend(some?);
                        }
                    }
                }
            }
        }
        changes.sort_by_key(|change| change.revision);
        self.ahead = changes.split_off(changes.partition_point(|change| change.revision <= now));
        self.at = now;
        Ok((changes, now))
    }
}
