//! The watch cache: the current objects of some kinds, and their recent changes.
//!
//! # What it guarantees
//!
//! * One writer at a time puts whole log rows on it, in order, without holes ([`Cache::apply`],
//!   [`Cache::apply_own`]): a view at revision *r* is exactly what the log says up to *r*.
//! * Views are immutable and cheap to take; whoever holds one keeps that state for as long as it likes.
//! * A watcher from revision *r* gets every change of its kind after *r*, once, in order, or is told that it
//!   cannot ([`Watcher`]). What a watcher got is never newer than the view that a reader gets afterwards: a
//!   change is in the view before it is in the ring.
//! * A slow watcher costs nothing: there is no queue per watcher, only a cursor on the ring of its kind. A
//!   ring is bounded by count and bytes; a cursor that falls off it ends its watcher.
//! * Dispatching costs the same whatever the number of watchers, save for waking those that wait: one
//!   notification channel per kind.
//!
//! # Eras
//!
//! When the database turns out to be another one (or to have lost what was seen here), revisions from
//! before mean nothing any more. The cache then begins a new era: everything is loaded anew, and watchers of
//! the era before end. Until the load is done the old views stay, marked as not current: loops that look
//! at views must not take "everything is gone" for the state of the world.
//!
//! # What was refused
//!
//! Decoded objects (several times the memory; entries memoise their typed form only where somebody asks), a
//! queue per watcher (a stalled client would hold memory or lose changes silently), filling holes by
//! waiting (a hole is a bug: it is counted and everything is loaded anew).

mod past;
mod ring;
mod traces;
mod view;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use horchestra_core::kind::Kind;
use horchestra_trace::Trace;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::backend::{Fingerprint, Head, Identity, Loaded, LogRow};
use crate::metrics::StoreMetrics;
use crate::types::{Change, ChangeKind, Class, Committed, Entry, Item, Op, Revision};
use past::Past;
use ring::{Limits, Ring};
use traces::Traces;
use view::{SLOTS, View, slot};

pub use view::Snapshot;
pub use watcher::{WatchEnd, Watcher};

/// Watchers that may read the log at the same time because the ring does not reach back to their start.
const LOG_READERS: usize = 4;

/// How far the cache is; what waiters look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Everything up to here is in the view and in the rings.
    pub revision: Revision,
    pub era: u64,
    /// The view belongs to the current era (false before the first load, and after a loss until the next).
    pub loaded: bool,
}

/// What a watcher waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signal {
    newest: Revision,
    era: u64,
}

struct KindRing {
    ring: RwLock<Ring>,
    signal: watch::Sender<Signal>,
}

/// The row that the cache ends with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub revision: Revision,
    /// `None`: the log does not have that row.
    pub fingerprint: Option<Fingerprint>,
}

/// Rows did not continue where the cache ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole;

pub(crate) struct Cache {
    kinds: Vec<Kind>,
    limits: Limits,
    view: ArcSwap<View>,
    rings: Vec<Option<KindRing>>,
    /// Everything up to here is in the rings, too.
    dispatched: AtomicI64,
    /// The oldest revision of the log, as last heard.
    oldest: AtomicI64,
    progress: watch::Sender<Progress>,
    writer: Mutex<Position>,
    past: Past,
    traces: Traces,
    log_readers: Semaphore,
    stop: CancellationToken,
    pub metrics: Arc<StoreMetrics>,
}

impl Cache {
    pub fn new(
        kinds: Vec<Kind>,
        events: usize,
        bytes: usize,
        stop: CancellationToken,
        metrics: Arc<StoreMetrics>,
    ) -> Cache {
        let nowhere = Identity { system: String::new(), database: String::new(), epoch: uuid::Uuid::nil() };
        let mut rings: Vec<Option<KindRing>> = (0..SLOTS).map(|_| None).collect();
        for kind in &kinds {
            rings[slot(*kind)] = Some(KindRing {
                ring: RwLock::new(Ring::new(0, 0)),
                signal: watch::Sender::new(Signal { newest: 0, era: 0 }),
            });
        }
        Cache {
            limits: Limits { events, bytes },
            view: ArcSwap::from_pointee(View::empty(&kinds, Arc::new(nowhere))),
            rings,
            dispatched: AtomicI64::new(0),
            oldest: AtomicI64::new(0),
            progress: watch::Sender::new(Progress { revision: 0, era: 0, loaded: false }),
            writer: Mutex::new(Position { revision: 0, fingerprint: None }),
            past: Past::default(),
            traces: Traces::default(),
            log_readers: Semaphore::new(LOG_READERS),
            stop,
            metrics,
            kinds,
        }
    }

    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot { view: self.view.load_full() }
    }

    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.view.load().identity)
    }

    pub fn oldest(&self) -> Revision {
        self.oldest.load(Ordering::Relaxed)
    }

    /// Where the next rows have to continue.
    pub fn position(&self) -> Position {
        *self.writer.lock()
    }

    /// The trace that a change was made in, if it was in one and is recent.
    pub fn trace_of(&self, revision: Revision) -> Option<Trace> {
        self.traces.of(revision)
    }

    pub fn heard_oldest(&self, oldest: Revision) {
        self.oldest.store(oldest, Ordering::Relaxed);
    }

    /// Resolves with the first progress that satisfies the condition.
    pub async fn until(&self, condition: impl Fn(&Progress) -> bool) -> Progress {
        let mut progress = self.progress.subscribe();
        // The guard that `wait_for` returns must not live across another await: futures have to be `Send`.
        let found = progress.wait_for(condition).await.map(|found| *found);
        match found {
            Ok(found) => found,
            // The sender lives in `self`, which outlives this call.
            Err(_) => std::future::pending().await,
        }
    }

    /// Resolves with a current view of this database that is not older than its head.
    pub async fn reach(&self, head: &Head) -> Snapshot {
        loop {
            let progress = self.until(|now| now.loaded && now.revision >= head.revision).await;
            let snapshot = self.snapshot();
            if *snapshot.view.identity == head.identity && snapshot.view.revision >= head.revision {
                return snapshot;
            }
            // The view is (or was, a moment ago) of another database: only a change can help.
            self.until(|now| *now != progress).await;
        }
    }

    /// As [`Cache::reach`] for a bare revision.
    pub async fn reach_revision(&self, revision: Revision) -> Snapshot {
        self.until(|now| now.loaded && now.revision >= revision).await;
        self.snapshot()
    }

    /// Puts rows on the cache. Those that it has already are skipped.
    pub fn apply(&self, rows: &[LogRow]) -> Result<(), Hole> {
        let mut writer = self.writer.lock();
        let known = rows.partition_point(|row| row.change.revision <= writer.revision);
        let rows = &rows[known..];
        let expected = writer.revision + 1..;
        if rows.iter().zip(expected).any(|(row, revision)| row.change.revision != revision) {
            return Err(Hole);
        }
        let Some(last) = rows.last() else { return Ok(()) };
        let position = Position { revision: last.change.revision, fingerprint: Some(last.fingerprint()) };
        let mut view = View::clone(&self.view.load());
        let mut changes: Vec<Change> = rows.iter().map(|row| row.change.clone()).collect();
        for change in &mut changes {
            change.before = before(change, view.get(change.key()));
            view.apply(change);
        }
        self.traces.note(rows.iter().map(|row| (row.change.revision, row.who.trace)));
        self.publish(&mut writer, view, changes, position);
        Ok(())
    }

    /// Puts this process's own commits on the cache without reading them back, if they continue it and
    /// `anchor` shows that they continue the same log. False: the tail has to read them.
    pub fn apply_own(
        &self,
        anchor: Option<Fingerprint>,
        items: &[Item],
        results: &[Option<&Committed>],
    ) -> bool {
        let mut writer = self.writer.lock();
        let mut ops: Vec<(Revision, &Op, &Item)> = Vec::new();
        for (item, committed) in items.iter().zip(results) {
            let Some(committed) = committed else { continue };
            let numbered = committed.revisions.iter().zip(&item.ops).filter(|(revision, _)| **revision > 0);
            ops.extend(numbered.map(|(revision, op)| (*revision, op, item)));
        }
        ops.sort_by_key(|(revision, _, _)| *revision);
        let continues = ops.iter().zip(writer.revision + 1..).all(|((found, _, _), next)| *found == next);
        if !continues || !self.progress.borrow().loaded {
            return false;
        }
        // Where the log has no row before, only the very beginning of a history is sure to be the same.
        if writer.fingerprint != anchor || (anchor.is_none() && writer.revision > 0) {
            return false;
        }
        let mut view = View::clone(&self.view.load());
        let mut changes = Vec::with_capacity(ops.len());
        let mut position = *writer;
        for (revision, op, item) in &ops {
            let (revision, item) = (*revision, *item);
            let Some(key) = op.key() else { continue };
            let previous = view.get(key).cloned();
            // Updates and deletions of kinds that are not cached need what only the log has.
            let Some(change) = own_change(op, revision, previous.as_ref()) else { return false };
            let audit_id = item.who.audit_id;
            let fingerprint = Some(Fingerprint::of(revision, key, change.entry.uid, audit_id));
            position = Position { revision, fingerprint };
            view.apply(&change);
            changes.push(change);
        }
        self.traces.note(ops.iter().map(|(revision, _, item)| (*revision, item.who.trace)));
        self.publish(&mut writer, view, changes, position);
        true
    }

    /// The order is what the essay promises: view, rings, then everybody who waits.
    fn publish(&self, writer: &mut Position, view: View, changes: Vec<Change>, position: Position) {
        self.view.store(Arc::new(view));
        *writer = position;

        let mut touched = [false; SLOTS];
        for change in changes {
            let at = slot(change.object_kind());
            if let Some(Some(kind)) = self.rings.get(at) {
                touched[at] = true;
                kind.ring.write().push(change, self.limits);
            }
        }
        self.dispatched.store(position.revision, Ordering::Release);
        for (kind, _) in self.rings.iter().zip(touched).filter(|(_, touched)| *touched) {
            if let Some(kind) = kind {
                let newest = kind.ring.read().newest();
                kind.signal.send_modify(|signal| signal.newest = newest);
            }
        }
        self.progress.send_modify(|progress| progress.revision = position.revision);
    }

    /// Replaces everything by what was loaded. `recent`: rows before the load, for the rings, that reach
    /// back to `floor`. `new_era`: revisions from before are void.
    pub fn replace(&self, loaded: Loaded, recent: Vec<LogRow>, floor: Revision, new_era: bool) {
        let Loaded { head, anchor, entries } = loaded;
        let mut writer = self.writer.lock();
        let mut view = View::empty(&self.kinds, Arc::new(head.identity));
        view.revision = head.revision;
        for entry in entries {
            if let Some(Some(kind)) = view.kinds.get_mut(slot(entry.key.kind)) {
                kind.changed = kind.changed.max(entry.revision);
                kind.put(entry);
            }
        }
        // A deletion may be the last change of a kind; where the log does not show, assume the worst.
        for kind in view.kinds.iter_mut().flatten() {
            kind.changed = kind.changed.max(floor);
        }
        for row in &recent {
            if let Some(Some(kind)) = view.kinds.get_mut(slot(row.change.object_kind())) {
                kind.changed = kind.changed.max(row.change.revision);
            }
        }
        let era = self.progress.borrow().era + u64::from(new_era);
        self.view.store(Arc::new(view));
        *writer = Position { revision: head.revision, fingerprint: anchor };

        self.traces.forget();
        self.traces.note(recent.iter().map(|row| (row.change.revision, row.who.trace)));
        let mut rings: Vec<Ring> = (0..SLOTS).map(|_| Ring::new(era, floor)).collect();
        for row in recent {
            rings[slot(row.change.object_kind())].push(row.change, self.limits);
        }
        for (kind, fresh) in self.rings.iter().zip(rings) {
            let Some(kind) = kind else { continue };
            *kind.ring.write() = fresh;
        }
        self.heard_oldest(head.oldest);
        self.dispatched.store(head.revision, Ordering::Release);
        for kind in self.rings.iter().flatten() {
            let newest = kind.ring.read().newest();
            kind.signal.send_replace(Signal { newest, era });
        }
        self.progress.send_replace(Progress { revision: head.revision, era, loaded: true });
        self.past.forget();
    }

    /// Marks the view as void: the database is not what it was.
    pub fn void(&self) {
        self.progress.send_modify(|progress| progress.loaded = false);
    }
}

/// The change that an own operation made; `None` if that cannot be told without reading it back.
fn own_change(op: &Op, revision: Revision, previous: Option<&Arc<Entry>>) -> Option<Change> {
    let (kind, entry) = match op {
        Op::Create(draft) => (ChangeKind::Added, Entry::new(draft.clone(), revision, revision)),
        Op::Update { draft, class, .. } => {
            let core_revision = match class {
                Class::Core => revision,
                Class::Status => previous?.core_revision,
            };
            previous?;
            (ChangeKind::Modified, Entry::new(draft.clone(), revision, core_revision))
        }
        Op::Delete { .. } => (ChangeKind::Deleted, previous?.deleted_at(revision)),
        Op::Claim { .. } | Op::Release { .. } => return None,
    };
    let previous = previous.filter(|_| kind != ChangeKind::Added);
    let mut change = Change {
        kind,
        revision,
        entry: Arc::new(entry),
        previous: previous.map(|entry| Arc::clone(&entry.index)),
        previous_columns: previous.map(|entry| Arc::clone(&entry.columns)),
        before: None,
    };
    change.before = before(&change, previous);
    Some(change)
}

/// What a change keeps of the state before it: all of it, if a selection can have been left by it.
fn before(change: &Change, previous: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
    let moved = change.kind == ChangeKind::Modified
        && change.previous.as_ref().is_some_and(|index| **index != *change.entry.index);
    previous.filter(|_| moved).cloned()
}

/// The longest that a reader waits for the cache to catch up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
