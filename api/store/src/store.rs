//! [`Store`]: everything that the rest of the product needs of storage, over either backend.
//!
//! Commits go through this process's committer; reads come from the watch cache, which one ordered tail of
//! the change log keeps current. See the crate's essay for what is guaranteed.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use uuid::Uuid;

use crate::types::*;

/// A read that could not be answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The database cannot be reached, so freshness cannot be shown.
    #[error("the database is not available")]
    Unavailable,
    /// The revision asked for did not come within three seconds.
    #[error("revision {asked} has not happened yet (now at {current})")]
    TooLarge { asked: Revision, current: Revision },
    /// The revision asked for is below the retained log (or the database was replaced).
    #[error("revision {asked} is no longer available (oldest is {oldest})")]
    Expired { asked: Revision, oldest: Revision },
    /// This process does not cache the kind.
    #[error("kind {0} is not cached in this process")]
    NotCached(Kind),
}

/// An immutable view of every cached kind at one revision. Cloning is cheap.
#[derive(Clone)]
pub struct Snapshot {
    inner: Arc<()>,
}

impl Snapshot {
    /// The revision this view is of.
    pub fn revision(&self) -> Revision {
        unimplemented!()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let _ = (key, &self.inner);
        unimplemented!()
    }

    /// Entries of a kind in list order (namespace, then name, bytewise); `namespace` `None` = all.
    pub fn list<'a>(
        &'a self,
        kind: Kind,
        namespace: Option<&'a str>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a> {
        let _ = (kind, namespace);
        unimplemented!()
    }

    /// As [`Snapshot::list`], starting behind `after` = (namespace, name).
    pub fn list_after<'a>(
        &'a self,
        kind: Kind,
        namespace: Option<&'a str>,
        after: (&str, &str),
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a> {
        let _ = (kind, namespace, after);
        unimplemented!()
    }

    /// How many objects of the kind there are (in the namespace).
    pub fn count(&self, kind: Kind, namespace: Option<&str>) -> usize {
        let _ = (kind, namespace);
        unimplemented!()
    }
}

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The watcher fell behind what the ring keeps, or asked for a revision outside the log, or the
    /// database was replaced: the client has to list again (410).
    Expired { asked: Revision, oldest: Revision },
    /// The store is shutting down.
    Closed,
}

/// A cursor on the change log of one kind. Changes come exactly once, in order.
pub struct Watcher {
    inner: (),
}

impl Watcher {
    /// The next changes (at least one; waits). Every change of the kind is delivered: filtering by
    /// namespace or selector is the caller's.
    pub async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        let () = self.inner;
        unimplemented!()
    }

    /// All changes up to and including this revision have been returned by [`Watcher::next`]; it moves on
    /// with changes of other kinds too, so it is what a bookmark may say.
    pub fn progress(&self) -> Revision {
        unimplemented!()
    }
}

/// A live object and the view it was read from.
pub struct Fetched {
    pub entry: Arc<Entry>,
    pub snapshot: Snapshot,
}

/// A page of a listing at a given revision.
pub struct PageRequest {
    pub kind: Kind,
    pub namespace: Option<String>,
    /// The revision that the listing is of.
    pub revision: Revision,
}

/// The view that a page request asked for.
pub type Page = Snapshot;

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<()>,
}

impl Store {
    /// Commits an item: queued with this process's other writes, committed in a shared batch.
    pub async fn commit(&self, item: Item) -> Result<Committed, CommitError> {
        let _ = (item, &self.inner);
        unimplemented!()
    }

    /// The cache as it is now; may lag behind what other processes committed.
    pub fn snapshot(&self) -> Snapshot {
        unimplemented!()
    }

    /// A view that holds every write acknowledged (by any process) before this call.
    pub async fn fresh(&self) -> Result<Snapshot, ReadError> {
        unimplemented!()
    }

    /// A view not older than `revision`; waits up to three seconds.
    pub async fn not_older_than(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let _ = revision;
        unimplemented!()
    }

    /// The kind exactly as it was at `revision`, rebuilt from the log if need be.
    pub async fn exactly_at(&self, kind: Kind, revision: Revision) -> Result<Snapshot, ReadError> {
        let _ = (kind, revision);
        unimplemented!()
    }

    /// A watcher of the changes of `kind` after `from`.
    pub fn watch(&self, kind: Kind, from: Revision) -> Result<Watcher, WatchEnd> {
        let _ = (kind, from);
        unimplemented!()
    }

    /// Resolves when this process's cache has moved on from `seen`; for loops that look at snapshots.
    pub async fn changed_since(&self, seen: Revision) -> Revision {
        let _ = seen;
        unimplemented!()
    }

    // ---- leases -------------------------------------------------------------------------------------

    /// Tries to become (or to stay) the holder of a lease; `None`: another holder's term has not ended.
    /// The epoch grows by one with every change of holder.
    pub async fn acquire_lease(
        &self,
        name: &str,
        holder: Uuid,
        ttl: Duration,
    ) -> Result<Option<Lease>, ReadError> {
        let _ = (name, holder, ttl);
        unimplemented!()
    }

    /// Prolongs a held lease outside the ordering lock; false: it was lost.
    pub async fn renew_lease(&self, lease: &Lease, ttl: Duration) -> Result<bool, ReadError> {
        let _ = (lease, ttl);
        unimplemented!()
    }

    /// Gives a lease up, so that another process can take it at once.
    pub async fn release_lease(&self, lease: &Lease) -> Result<(), ReadError> {
        let _ = lease;
        unimplemented!()
    }

    // ---- gateways, sessions, heartbeats -------------------------------------------------------------

    /// Registers this gateway or prolongs its term (database clock). False: the term had ended and its
    /// sessions may have been taken over.
    pub async fn renew_gateway(
        &self,
        gateway: Uuid,
        internal_address: &str,
        ttl: Duration,
    ) -> Result<bool, ReadError> {
        let _ = (gateway, internal_address, ttl);
        unimplemented!()
    }

    /// Ends this gateway's term; its sessions can be claimed by others at once.
    pub async fn retire_gateway(&self, gateway: Uuid) -> Result<(), ReadError> {
        let _ = gateway;
        unimplemented!()
    }

    /// Claims the one live session of a node. `None`: another live session exists (it was heard of within
    /// `stale_after` and its gateway's term has not ended).
    pub async fn claim_session(
        &self,
        claim: SessionClaim,
        stale_after: Duration,
    ) -> Result<Option<SessionGrant>, ReadError> {
        let _ = (claim, stale_after);
        unimplemented!()
    }

    /// Ends a session if it is still this one.
    pub async fn release_session(&self, node: &str, grant: &SessionGrant) -> Result<(), ReadError> {
        let _ = (node, grant);
        unimplemented!()
    }

    /// Marks sessions as alive, one statement for all; returns the nodes whose session is no longer ours.
    pub async fn touch_sessions(
        &self,
        gateway: Uuid,
        sessions: &[(String, SessionGrant)],
    ) -> Result<Vec<String>, ReadError> {
        let _ = (gateway, sessions);
        unimplemented!()
    }

    /// The live session of a node and where its gateway listens.
    pub async fn session_of(&self, node: &str) -> Result<Option<SessionRow>, ReadError> {
        let _ = node;
        unimplemented!()
    }

    /// All sessions.
    pub async fn sessions(&self) -> Result<Vec<SessionRow>, ReadError> {
        unimplemented!()
    }

    /// Records heartbeats of nodes (database clock), one statement for all.
    pub async fn record_heartbeats(&self, beats: &[Heartbeat]) -> Result<(), ReadError> {
        let _ = beats;
        unimplemented!()
    }

    /// Heartbeats as the database has them: node → (what was reported, microseconds since the epoch, age).
    pub async fn heartbeats(&self) -> Result<Vec<HeartbeatRow>, ReadError> {
        unimplemented!()
    }

    // ---- health -------------------------------------------------------------------------------------

    /// Whether the cache is loaded and follows the log, and since when it does not.
    pub fn health(&self) -> Health {
        unimplemented!()
    }
}

/// A held lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    pub holder: Uuid,
    pub epoch: i64,
}

/// What a gateway claims for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClaim {
    pub node: String,
    pub gateway: Uuid,
    pub peer: String,
    /// SHA-256 of the client certificate, lower-case hex.
    pub certificate: String,
}

/// Proof of a claimed session; both parts are fenced on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    pub epoch: i64,
    pub session: Uuid,
}

/// A row of the session table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub node: String,
    pub grant: SessionGrant,
    pub gateway: Uuid,
    /// `host:port` of the gateway's internal listener.
    pub internal_address: String,
    pub peer: String,
    /// Microseconds since the epoch, database clock.
    pub opened_at: i64,
    pub last_seen: i64,
}

/// One heartbeat to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub node: String,
    /// CPU allocated as the node reports it (nano-cores), shown only.
    pub allocated_cpu: i64,
    /// Memory allocated as the node reports it (bytes), shown only.
    pub allocated_memory: i64,
}

/// A recorded heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatRow {
    pub heartbeat: Heartbeat,
    /// Microseconds since the epoch, database clock.
    pub at: i64,
    /// By the database clock, at the time of the query.
    pub age: Duration,
}

/// How the store of this process is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The cache was loaded once.
    pub loaded: bool,
    /// The revision of the cache.
    pub revision: Revision,
    /// How long the tail has been without the database; zero while connected.
    pub disconnected_for: Duration,
}
