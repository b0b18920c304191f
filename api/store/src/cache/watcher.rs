//! Watchers: cursors on the ring of one kind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use horchestra_core::kind::Kind;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ring::Found;
use super::{Cache, KindRing, PATIENCE, Signal, slot};
use crate::backend::Backend;
use crate::types::{Change, Revision};

/// The most changes that one call of [`Watcher::next`] returns.
const BATCH: usize = 256;

/// The pause before the log is asked again after it could not be read.
const RETRY: Duration = Duration::from_millis(300);

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The watcher fell behind what the ring keeps, or asked for a revision outside the log, or the
    /// database was replaced: the client has to list again (410).
    Expired { asked: Revision, oldest: Revision },
    /// The store is shutting down.
    Closed,
}

/// Where a watcher gets its changes from.
enum Stage {
    /// It started at a revision that this cache has not reached; it will soon, or never.
    Ahead {
        until: Instant,
    },
    /// It started before what the ring keeps and reads the log itself, until the ring takes over.
    Log,
    Ring,
}

/// A cursor on the change log of one kind. Changes come exactly once, in order.
pub struct Watcher {
    cache: Arc<Cache>,
    backend: Arc<dyn Backend>,
    kind: Kind,
    era: u64,
    /// Every change up to here was returned.
    cursor: Revision,
    stage: Stage,
    signal: watch::Receiver<Signal>,
}

impl Watcher {
    /// `None`: the kind is not cached.
    pub(crate) fn new(
        cache: Arc<Cache>,
        backend: Arc<dyn Backend>,
        kind: Kind,
        from: Revision,
    ) -> Option<Watcher> {
        let signal = ring(&cache, kind)?.signal.subscribe();
        let era = signal.borrow().era;
        let stage = if from > cache.dispatched.load(Ordering::Acquire) {
            Stage::Ahead { until: Instant::now() + PATIENCE }
        } else {
            Stage::Log
        };
        cache.metrics.watchers.add(1);
        Some(Watcher { cache, backend, kind, era, cursor: from, stage, signal })
    }

    /// The next changes (at least one; waits). Every change of the kind is delivered: filtering by
    /// namespace or selector is the caller's. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        let stop = self.cache.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(WatchEnd::Closed),
            changes = self.advance() => changes,
        }
    }

    /// All changes up to and including this revision have been returned by [`Watcher::next`]; it moves on
    /// with changes of other kinds too, so it is what a bookmark may say.
    pub fn progress(&self) -> Revision {
        let Some(kind) = ring(&self.cache, self.kind) else { return self.cursor };
        if !matches!(self.stage, Stage::Ring) || self.signal.borrow().era != self.era {
            return self.cursor;
        }
        // In this order: what is dispatched by now is in the ring by now.
        let dispatched = self.cache.dispatched.load(Ordering::Acquire);
        if kind.ring.read().newest() <= self.cursor { dispatched.max(self.cursor) } else { self.cursor }
    }

    async fn advance(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            let signal = *self.signal.borrow_and_update();
            if signal.era != self.era {
                return Err(self.expired());
            }
            if let Stage::Ahead { until } = self.stage {
                let cursor = self.cursor;
                let reached = self.cache.until(|now| now.loaded && now.revision >= cursor);
                if timeout_at(until, reached).await.is_err() {
                    return Err(self.expired());
                }
                self.stage = Stage::Log;
                continue;
            }
            let cache = Arc::clone(&self.cache);
            let Some(kind) = ring(&cache, self.kind) else { return Err(WatchEnd::Closed) };
            let found = kind.ring.read().after(self.era, self.cursor, BATCH);
            match found {
                Found::Changes(changes) => {
                    self.stage = Stage::Ring;
                    if let Some(last) = changes.last() {
                        self.cursor = last.revision;
                        return Ok(changes);
                    }
                }
                Found::Gone if matches!(self.stage, Stage::Log) => {
                    let changes = self.read_log().await?;
                    if !changes.is_empty() {
                        return Ok(changes);
                    }
                    continue;
                }
                Found::Gone => {
                    self.cache.metrics.watchers_expired.add(1);
                    return Err(self.expired());
                }
                Found::OtherEra => return Err(self.expired()),
            }
            if self.signal.changed().await.is_err() {
                return Err(WatchEnd::Closed);
            }
        }
    }

    /// The next stretch of the log, as far as the cache has it. Waits while the database is away: the changes
    /// are not lost, so there is no reason to make the client start over.
    async fn read_log(&mut self) -> Result<Vec<Change>, WatchEnd> {
        let dispatched = self.cache.dispatched.load(Ordering::Acquire);
        let read = async {
            let permit = self.cache.log_readers.acquire().await.ok()?;
            let read = timeout(PATIENCE, self.backend.changes(self.cursor, BATCH)).await;
            drop(permit);
            read.ok()?.ok()
        };
        let Some(read) = read.await else {
            sleep(RETRY).await;
            return Ok(Vec::new());
        };
        if read.head.oldest > self.cursor || read.head.identity != *self.cache.identity() {
            return Err(self.expired());
        }
        if read.rows.iter().zip(self.cursor + 1..).any(|(row, next)| row.change.revision != next) {
            self.cache.metrics.holes.add(1);
            return Err(self.expired());
        }
        let rows = read.rows.into_iter().map(|row| row.change);
        let rows: Vec<Change> = rows.take_while(|change| change.revision <= dispatched).collect();
        // Nothing new cannot be, since the ring begins above the cursor; but then the log is not to be trusted.
        let Some(last) = rows.last() else { return Err(self.expired()) };
        self.cursor = last.revision;
        Ok(rows.into_iter().filter(|change| change.object_kind() == self.kind).collect())
    }

    fn expired(&self) -> WatchEnd {
        WatchEnd::Expired { asked: self.cursor, oldest: self.cache.oldest() }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.cache.metrics.watchers.sub(1);
    }
}

fn ring(cache: &Cache, kind: Kind) -> Option<&KindRing> {
    cache.rings.get(slot(kind))?.as_ref()
}
