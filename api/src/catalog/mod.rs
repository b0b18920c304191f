//! The catalog of services, in the shape of Consul's: what can be reached where, and how it is doing.
//!
//! # What is listed
//!
//! Services with the Applications that join them, and nodes with what declares ports on them ([`instance`]). Nothing
//! of it is stored. Health comes from what nodes report of workloads and from the one verdict on each node, never
//! from the age of anything: a node that falls silent makes its instances `warning`, and the verdict that it is lost
//! makes them `critical`. Since that verdict is never given for an absence of ours, such an absence changes nothing.
//!
//! # Indexes
//!
//! Every answer has an index: the revision of the last change that could have made it another answer. A heartbeat, a
//! message in a status, another service or another namespace do not move it. A client that sends the index back is
//! answered when there is a higher one, or when its time is up, with the index that it sent. As revisions are those
//! of the one change log, an index means the same to every replica, and no client that sends one ever gets a lower
//! one back, whichever replica answers; only one that is above everything that has happened is taken for nonsense
//! and answered at once.
//!
//! # How it is kept
//!
//! One task follows the change log ([`follow`]) and keeps what is listed by name ([`index`]). It starts with the
//! first question, so a replica that nobody asks pays nothing. Why not compute answers from the watch cache: that is
//! ordered by namespace and name, so whatever joins a Service would have to be searched for among all Applications
//! of its namespace, and nothing would tell which parked questions a change concerns. Here a change costs what it
//! touches and an answer what it shows.
//!
//! A parked question is an entry in the list of those who wait for a topic ([`topics`]): no statement, no task of
//! ours, no look at anything until a change of that very topic. Questions that do not wait see every write that was
//! acknowledged before, as all reads of the API do, unless they say `stale`.
//!
//! # When we are at fault
//!
//! What cannot be known is a 503 and never an empty list, which clients would take for "nothing runs any more".

mod answers;
mod body;
mod facts;
pub mod filter;
mod follow;
mod index;
mod instance;
mod metrics;
pub mod query;
mod question;
mod topics;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use horchestra_core::status::Status;
use horchestra_store::{ReadError, Revision, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use answers::{DATACENTER, SELF};
use body::{Body, body};
use follow::Followed;
pub use metrics::CatalogMetrics;
use query::Asked;
pub use question::Question;

/// The longest that a question waits for the catalog to be as current as it has to be.
const PATIENCE: Duration = Duration::from_secs(10);

/// The catalog of this process.
pub struct Catalog {
    store: Store,
    followed: Arc<Followed>,
    started: AtomicBool,
}

/// An answer and its index.
#[derive(Debug)]
pub struct Answer {
    pub index: Revision,
    pub body: Body,
}

/// Why a question need not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Changed,
    /// Its time is up.
    Elapsed,
    /// This replica ends.
    Ended,
}

impl Woken {
    pub const fn word(self) -> &'static str {
        match self {
            Woken::Changed => "changed",
            Woken::Elapsed => "elapsed",
            Woken::Ended => "ended",
        }
    }
}

impl Catalog {
    pub fn new(store: Store) -> Catalog {
        Catalog { store, followed: Arc::default(), started: AtomicBool::new(false) }
    }

    /// Begins to follow the log, if that has not begun yet.
    pub fn start(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let (followed, store) = (Arc::clone(&self.followed), self.store.clone());
            tasks.spawn(follow::follow(followed, store, stop.clone()));
        }
    }

    /// How long the database has been away.
    pub fn last_contact(&self) -> Duration {
        self.store.health().disconnected_for
    }

    /// Waits until the catalog is as current as the question wants it. The answer is the index to wait from, zero
    /// where there is nothing to wait for.
    pub async fn catch_up(&self, asked: &Asked) -> Result<Revision, Status> {
        let away = || Status::unavailable("the database is not available, try again later", 2);
        let (at_least, index) = match asked.index {
            0 if asked.stale => (0, 0),
            0 => (self.store.fresh().await.map_err(|_| away())?.revision(), 0),
            index if index <= self.followed.revision() => (0, index),
            // Another replica is ahead, or there is no such revision.
            index => match self.store.not_older_than(index).await {
                Ok(_) => (index, index),
                Err(ReadError::TooLarge { .. }) => (0, 0),
                Err(_) => return Err(away()),
            },
        };
        let reached = tokio::time::timeout(PATIENCE, self.followed.reach(at_least)).await;
        reached.map_err(|_| Status::unavailable("the catalog is being loaded, try again later", 1))?;
        Ok(index)
    }

    /// Waits until the answer has a higher index than this.
    pub async fn changed(
        &self,
        question: &Question,
        namespace: &str,
        index: Revision,
        until: Instant,
        stop: &CancellationToken,
    ) -> Woken {
        let topics = question.topics(namespace);
        let waiter = self.followed.waiters.enter(topics.clone());
        let elapsed = tokio::time::sleep_until(until);
        tokio::pin!(elapsed);
        loop {
            // In this order: whatever changes after this look rings the bell.
            if self.followed.look(|state| state.changes.index(&topics)) > index {
                return Woken::Changed;
            }
            tokio::select! {
                () = waiter.woken() => {}
                () = &mut elapsed => return Woken::Elapsed,
                () = stop.cancelled() => return Woken::Ended,
            }
        }
    }

    /// The answer as things are now. A client that knows an index gets none below it.
    pub fn answer(&self, question: &Question, namespace: &str, asked: &Asked, known: Revision) -> Answer {
        let topics = question.topics(namespace);
        self.followed.look(|state| Answer {
            index: state.changes.index(&topics).max(known.min(state.revision)).max(1),
            body: body(state, question, namespace, asked),
        })
    }
}

#[cfg(test)]
mod tests;
