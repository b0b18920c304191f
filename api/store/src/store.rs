//! [`Store`]: everything that the rest of the product needs of storage, over either backend.
//!
//! Commits go through this process's committer; reads come from the watch cache, which one ordered tail of
//! the change log keeps current. See the crate's essay for what is guaranteed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use horchestra_core::kind::Kind;
use horchestra_trace::Trace;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::announce::{self, Announcement};
use crate::backend::{
    Backend, BackendError, ClaimRow, HistoryOf, HistoryRow, OwnedClaim, Pruned, Retention, Settings, Upkeep,
};
use crate::cache::{Cache, PATIENCE};
use crate::committer;
use crate::fresh;
use crate::health::{Health, TailLag};
use crate::memory::MemoryBackend;
use crate::metrics::StoreMetrics;
use crate::pushes::{Holds, PushChange, PushRecord};
use crate::schema::Schema;
use crate::sealing::KeyUse;
use crate::survey::Survey;
use crate::tail::{self, Tail};
use crate::types::{Change, CommitError, Committed, Entry, Item, Revision};

pub use crate::cache::{Snapshot, WatchEnd, Watcher};
pub use crate::presence::*;

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
    /// The input makes the database raise an error.
    #[error("the request was rejected: {0}")]
    Rejected(String),
}

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The kinds that the cache holds. Kinds outside can be written but neither read nor watched.
    pub kinds: Vec<Kind>,
    /// Changes that a kind's ring keeps.
    pub ring_events: usize,
    /// Bytes that a kind's ring keeps.
    pub ring_bytes: usize,
    /// Rows of the log read at the start to fill the rings.
    pub prefill: usize,
    /// Writes that may wait for the committer.
    pub queue: usize,
    /// How long the outcome of a write is asked for after its answer was lost.
    pub settle: Duration,
    /// The time between looks at the log for which there was no notification.
    pub poll: Duration,
    /// How long a process that starts waits for one that was there before, to vouch for a server that is on another
    /// timeline now.
    pub vouch: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            kinds: Kind::ALL.to_vec(),
            ring_events: 50_000,
            ring_bytes: 32 << 20,
            prefill: 20_000,
            queue: 2_048,
            settle: Duration::from_secs(15),
            poll: Duration::from_secs(1),
            vouch: Duration::from_secs(10),
        }
    }
}

/// The store. Cheap to clone; its tasks end with the last clone, or with [`Store::shutdown`].
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    tail: Arc<Tail>,
    queue: committer::Queue,
    asker: fresh::Asker,
    metrics: Arc<StoreMetrics>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Store {
    /// A store on this backend. It loads in the background, and goes on trying while the backend cannot be
    /// reached: see [`Store::ready`]. Has to be called within a tokio runtime.
    pub fn open(backend: Arc<dyn Backend>, options: StoreOptions) -> Store {
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let metrics = Arc::new(StoreMetrics::default());
        let StoreOptions { kinds, ring_events, ring_bytes, prefill, queue, settle, poll, vouch } = options;
        let cache = Arc::new(Cache::new(kinds, ring_events, ring_bytes, stop.clone(), Arc::clone(&metrics)));
        let tail = Arc::new(Tail::new());
        let following = tail::run(
            Arc::clone(&tail),
            Arc::clone(&cache),
            Arc::clone(&backend),
            tail::Settings { poll, prefill, vouch },
            stop.clone(),
        );
        tracker.spawn(following);
        let sender = committer::Sender {
            backend: Arc::clone(&backend),
            cache: Arc::clone(&cache),
            tail: Arc::clone(&tail),
            metrics: Arc::clone(&metrics),
            settle_limit: settle,
        };
        let (queue, committer) = committer::channel(queue, sender, tracker.clone());
        tracker.spawn(committer.run(stop.clone()));
        let (asker, readers) = fresh::channel();
        let asking = fresh::run(readers, Arc::clone(&backend), PATIENCE, Arc::clone(&metrics), stop.clone());
        tracker.spawn(asking);
        Store { inner: Arc::new(Inner { backend, cache, tail, queue, asker, metrics, tracker, stop }) }
    }

    /// An empty store in memory, for tests.
    pub fn memory() -> Store {
        Store::open(MemoryBackend::new(), StoreOptions::default())
    }

    /// The backend below, for what this facade does not cover.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Resolves when the cache is loaded. Until then [`Store::snapshot`] is empty, which must not be taken
    /// for the state of the world.
    pub async fn ready(&self) {
        self.inner.cache.until(|now| now.loaded).await;
    }

    /// Commits an item: queued with this process's other writes, committed in a shared batch.
    pub async fn commit(&self, item: Item) -> Result<Committed, CommitError> {
        self.inner.queue.commit(item).await
    }

    /// The cache as it is now; may lag behind what other processes committed.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.cache.snapshot()
    }

    /// A view that holds every write acknowledged (by any process) before this call.
    pub async fn fresh(&self) -> Result<Snapshot, ReadError> {
        let read = timeout(PATIENCE, self.ask_and_reach()).await;
        read.ok().flatten().ok_or(ReadError::Unavailable)
    }

    async fn ask_and_reach(&self) -> Option<Snapshot> {
        let Inner { cache, tail, asker, .. } = &*self.inner;
        loop {
            let known = cache.progress();
            let head = asker.ask().await?;
            // What this process has seen is gone from the database: the view is not to be trusted.
            let shrunk = known.loaded && head.revision < known.revision;
            let lagging = head.revision > cache.progress().revision || *cache.identity() != head.identity;
            if shrunk || lagging {
                tail.nudge();
            }
            tokio::select! {
                snapshot = cache.reach(&head), if !shrunk => return Some(snapshot),
                // In a new era that head means nothing.
                _ = cache.until(|now| now.era != known.era) => {}
            }
        }
    }

    /// A view not older than `revision`; waits up to three seconds.
    pub async fn not_older_than(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let Inner { cache, tail, .. } = &*self.inner;
        if revision > cache.progress().revision {
            tail.nudge();
        }
        let reached = timeout(PATIENCE, cache.reach_revision(revision)).await;
        reached.map_err(|_| {
            let now = cache.progress();
            if now.loaded && tail.disconnected_for().is_zero() {
                ReadError::TooLarge { asked: revision, current: now.revision }
            } else {
                ReadError::Unavailable
            }
        })
    }

    /// The kind exactly as it was at `revision`, rebuilt from the log if need be. The view holds that kind
    /// alone.
    pub async fn exactly_at(&self, kind: Kind, revision: Revision) -> Result<Snapshot, ReadError> {
        let Inner { cache, backend, .. } = &*self.inner;
        if revision > cache.progress().revision || !cache.progress().loaded {
            self.not_older_than(revision).await?;
        }
        cache.exactly_at(&**backend, kind, revision).await
    }

    /// Makes [`Store::exactly_at`] cheap for this view's revision for some time; for whoever hands out a
    /// token to continue a listing with.
    pub fn keep_for_pages(&self, kind: Kind, snapshot: &Snapshot) {
        self.inner.cache.keep(kind, snapshot);
    }

    /// A watcher of the changes of `kind` after `from`.
    pub fn watch(&self, kind: Kind, from: Revision) -> Result<Watcher, WatchEnd> {
        let Inner { cache, backend, tail, .. } = &*self.inner;
        if from > cache.progress().revision {
            tail.nudge();
        }
        Watcher::new(Arc::clone(cache), Arc::clone(backend), kind, from)
            .ok_or(WatchEnd::Expired { asked: from, oldest: cache.oldest() })
    }

    /// The object as it was before a modification; `None` when the log does not reach back to it.
    pub async fn before(&self, change: &Change) -> Result<Option<Arc<Entry>>, ReadError> {
        if let Some(before) = &change.before {
            return Ok(Some(Arc::clone(before)));
        }
        let (kind, at) = (change.object_kind(), change.revision);
        let undone = read(self.inner.backend.undo(kind, at, at - 1)).await?;
        let of_key = undone.and_then(|undone| undone.into_iter().find(|(key, _)| key == change.key()));
        Ok(of_key.and_then(|(_, entry)| entry))
    }

    /// The trace that the change at `revision` was made in, if it was made in one and is among the recent ones. Who
    /// acts because of a change goes on with that.
    pub fn trace_of(&self, revision: Revision) -> Option<Trace> {
        self.inner.cache.trace_of(revision)
    }

    /// Resolves when this process's cache has moved on from `seen`; for loops that look at snapshots.
    pub async fn changed_since(&self, seen: Revision) -> Revision {
        self.inner.cache.until(|now| now.loaded && now.revision > seen).await.revision
    }

    // ---- leases -------------------------------------------------------------------------------------

    /// Tries to become (or to stay) the holder of a lease; `None`: another holder's term has not ended.
    /// The epoch grows with every change of holder.
    pub async fn acquire_lease(
        &self,
        name: &str,
        holder: Uuid,
        ttl: Duration,
    ) -> Result<Option<Lease>, ReadError> {
        read(self.inner.backend.acquire_lease(name, holder, ttl)).await
    }

    /// How much longer the term of a lease's holder lasts if it is not prolonged, by the database's clock; `None`:
    /// nobody holds it.
    pub async fn lease_left(&self, name: &str) -> Result<Option<Duration>, ReadError> {
        read(self.inner.backend.lease_left(name)).await
    }

    /// Prolongs a held lease outside the ordering lock; false: it was lost.
    pub async fn renew_lease(&self, lease: &Lease, ttl: Duration) -> Result<bool, ReadError> {
        read(self.inner.backend.renew_lease(lease, ttl)).await
    }

    /// Gives a lease up, so that another process can take it at once.
    pub async fn release_lease(&self, lease: &Lease) -> Result<(), ReadError> {
        read(self.inner.backend.release_lease(lease)).await
    }

    /// Tells, as far as it is heard, when any process has given a lease up or may have done so unheard: counts up
    /// then.
    pub fn lease_hints(&self) -> watch::Receiver<u64> {
        self.inner.backend.lease_hints()
    }

    /// Whether what is told is heard at present, as far as this process knows.
    pub fn hears(&self) -> bool {
        let hint = *self.inner.backend.hints().borrow();
        hint.connected && !hint.deaf
    }

    // ---- gateways, sessions, heartbeats, samples ----------------------------------------------------

    /// Registers this gateway or prolongs its term (database clock). False: the term had ended and its
    /// sessions may have been taken over.
    pub async fn renew_gateway(
        &self,
        gateway: Uuid,
        internal_address: &str,
        ttl: Duration,
    ) -> Result<bool, ReadError> {
        read(self.inner.backend.renew_gateway(gateway, internal_address, ttl)).await
    }

    /// Gives a gateway whose term runs a name of its own; if a process bore it that is gone, that one's term
    /// ends. False: a process bears it that is alive, or may be.
    pub async fn name_gateway(&self, gateway: Uuid, name: &str) -> Result<bool, ReadError> {
        read(self.inner.backend.name_gateway(gateway, name)).await
    }

    /// Ends this gateway's term; its sessions can be claimed by others at once.
    pub async fn retire_gateway(&self, gateway: Uuid) -> Result<(), ReadError> {
        read(self.inner.backend.retire_gateway(gateway)).await
    }

    /// Claims the one live session of a node. `None`: another live session exists (it was heard of within
    /// `stale_after` and its gateway's term has not ended).
    pub async fn claim_session(
        &self,
        claim: SessionClaim,
        stale_after: Duration,
    ) -> Result<Option<SessionGrant>, ReadError> {
        Ok(self.claim_sessions(vec![claim], stale_after).await?.into_iter().next().flatten())
    }

    /// As [`Store::claim_session`], for many: each is answered as if they had come one after the other, and all are
    /// durable together.
    pub async fn claim_sessions(
        &self,
        claims: Vec<SessionClaim>,
        stale_after: Duration,
    ) -> Result<Vec<Option<SessionGrant>>, ReadError> {
        read(self.inner.backend.claim_sessions(claims, stale_after)).await
    }

    /// Ends a session if it is still this one.
    pub async fn release_session(&self, node: &str, grant: &SessionGrant) -> Result<(), ReadError> {
        self.release_sessions(&[(node.to_owned(), grant.clone())]).await
    }

    /// As [`Store::release_session`], for many.
    pub async fn release_sessions(&self, sessions: &[(String, SessionGrant)]) -> Result<(), ReadError> {
        read(self.inner.backend.release_sessions(sessions)).await
    }

    /// Marks sessions as alive, one statement for all; returns the nodes whose session is no longer ours.
    pub async fn touch_sessions(
        &self,
        gateway: Uuid,
        sessions: &[SeenSession],
    ) -> Result<Vec<String>, ReadError> {
        read(self.inner.backend.touch_sessions(gateway, sessions)).await
    }

    /// The live session of a node and where its gateway listens.
    pub async fn session_of(&self, node: &str) -> Result<Option<SessionRow>, ReadError> {
        read(self.inner.backend.session_of(node)).await
    }

    /// Which client certificates are not believed though their authority is.
    pub async fn denied_certificates(&self) -> Result<Vec<DeniedCertificates>, ReadError> {
        read(self.inner.backend.denied_certificates()).await
    }

    /// Denies certificates from now on; those of a name until the later of two moments.
    pub async fn deny_certificates(
        &self,
        denied: &DeniedCertificates,
        reason: &str,
    ) -> Result<(), ReadError> {
        read(self.inner.backend.deny_certificates(denied, reason)).await
    }

    /// Takes back what was denied for this name or fingerprint; false: nothing was.
    pub async fn allow_certificates(&self, of: &str) -> Result<bool, ReadError> {
        read(self.inner.backend.allow_certificates(of)).await
    }

    /// All sessions.
    pub async fn sessions(&self) -> Result<Vec<SessionRow>, ReadError> {
        read(self.inner.backend.sessions()).await
    }

    /// Removes sessions that no gateway serves, gateways whose term has ended, heartbeats of nodes that have no
    /// Node and samples: of each at most `limit` that were last heard of longer ago than `age`. A gateway that comes
    /// back all the same finds its sessions lost, as if another had taken them over.
    pub async fn prune_presence(&self, age: Duration, limit: usize) -> Result<Pruned, ReadError> {
        read(self.inner.backend.prune_presence(age, limit)).await
    }

    /// Records heartbeats that came in sessions (database clock), which are touched by it; one statement for all.
    /// Answers the nodes whose session is another by now: of them nothing was recorded.
    pub async fn record_beats(&self, beats: &[(SessionGrant, Heartbeat)]) -> Result<Vec<String>, ReadError> {
        read(self.inner.backend.record_beats(beats)).await
    }

    /// Records heartbeats of nodes, whoever serves them: for those who stand in for a gateway.
    pub async fn record_heartbeats(&self, beats: &[Heartbeat]) -> Result<(), ReadError> {
        read(self.inner.backend.record_heartbeats(beats)).await
    }

    /// How a node is sent volumes with tokens, if that was chosen.
    pub async fn token_form(&self, node: &str) -> Result<Option<TokenForm>, ReadError> {
        read(self.inner.backend.token_form(node)).await
    }

    /// Chooses how a node is sent volumes with tokens, unless that was chosen before; `overrule`: also then. Answers
    /// what is chosen now.
    pub async fn choose_token_form(
        &self,
        node: &str,
        as_secrets: bool,
        overrule: bool,
    ) -> Result<TokenForm, ReadError> {
        read(self.inner.backend.choose_token_form(node, as_secrets, overrule)).await
    }

    /// Heartbeats as the database has them: node → (what was reported, microseconds since the epoch, age).
    pub async fn heartbeats(&self) -> Result<Vec<HeartbeatRow>, ReadError> {
        read(self.inner.backend.heartbeats()).await
    }

    // ---- records of pushes, holds -------------------------------------------------------------------

    /// What these nodes were last sent, in the order of the question, and every hold at a moment not before.
    pub async fn push_records(&self, nodes: &[String]) -> Result<(Vec<PushRecord>, Holds), ReadError> {
        read(self.inner.backend.push_records(nodes)).await
    }

    /// Changes records, each only if the session is still the node's, one statement for all; returns the nodes
    /// of which it is not. Must be given each node once, and not the same thing to add and to remove.
    pub async fn record_pushes(&self, changes: &[PushChange]) -> Result<Vec<String>, ReadError> {
        read(self.inner.backend.record_pushes(changes)).await
    }

    /// When the database was made, in microseconds since the epoch; 0 where that is not known.
    pub async fn born(&self) -> Result<i64, ReadError> {
        read(self.inner.backend.born()).await
    }

    /// The holds on pushes.
    pub async fn holds(&self) -> Result<Holds, ReadError> {
        read(self.inner.backend.holds()).await
    }

    /// Lets nothing be sent to a node, or (with `None`) to any, until that is released. The hold of all nodes is a
    /// new one every time, so nodes that were released before are held again.
    pub async fn engage_hold(
        &self,
        node: Option<&str>,
        reason: &str,
        message: &str,
    ) -> Result<(), ReadError> {
        read(self.inner.backend.engage_hold(node, reason, message)).await
    }

    /// Releases a node, or with `None` all of them; whether that was held. What is on record and can neither be named
    /// nor explained is taken off it.
    pub async fn release_hold(&self, node: Option<&str>) -> Result<bool, ReadError> {
        read(self.inner.backend.release_hold(node)).await
    }

    /// Keeps what was measured on nodes (database clock), one statement for all. Of a node whose session is
    /// another by now nothing is kept. Samples are lost when the database crashes.
    pub async fn record_samples(&self, samples: &[Samples]) -> Result<(), ReadError> {
        read(self.inner.backend.record_samples(samples)).await
    }

    /// The samples of these nodes that were kept `within` this time; in any order.
    pub async fn samples(&self, nodes: &[String], within: Duration) -> Result<Vec<SamplesRow>, ReadError> {
        read(self.inner.backend.samples(nodes, within)).await
    }

    // ---- the past, claims, settings, upkeep ---------------------------------------------------------

    /// Kept versions of an object, newest first.
    pub async fn history(&self, of: HistoryOf) -> Result<Vec<HistoryRow>, ReadError> {
        read(self.inner.backend.history(of)).await
    }

    /// The tombstones of these objects, as far as they are kept; in any order.
    pub async fn tombstones(&self, uids: &[Uuid]) -> Result<Vec<HistoryRow>, ReadError> {
        read(self.inner.backend.tombstones(uids)).await
    }

    /// Held claims of all spaces by space, value and owner, behind `after`.
    pub async fn all_claims(
        &self,
        after: Option<&ClaimRow>,
        limit: usize,
    ) -> Result<Vec<OwnedClaim>, ReadError> {
        read(self.inner.backend.all_claims(after, limit)).await
    }

    /// Held claims of a space, by value.
    pub async fn claims(&self, space: &str) -> Result<Vec<ClaimRow>, ReadError> {
        read(self.inner.backend.claims(space)).await
    }

    /// Gives each Application of the demand (at most [`MOST_LEASES`](crate::MOST_LEASES)) an address, or the one
    /// that it has.
    pub async fn lease_addresses(&self, demand: &AddressDemand) -> Result<Vec<Leased>, ReadError> {
        read(self.inner.backend.lease_addresses(demand)).await
    }

    /// Leases known addresses to those that have them already, as an import has them; answers who cannot have
    /// theirs.
    pub async fn adopt_addresses(&self, known: &[KnownAddress]) -> Result<Vec<Uuid>, ReadError> {
        let mut refused = Vec::new();
        for some in known.chunks(crate::MOST_LEASES * 4) {
            refused.extend(read(self.inner.backend.adopt_addresses(some)).await?);
        }
        Ok(refused)
    }

    /// All held addresses, lowest first.
    pub async fn address_leases(&self) -> Result<Vec<AddressLease>, ReadError> {
        read(self.inner.backend.address_leases()).await
    }

    /// Values of the space of Services' addresses that were given back within this time.
    pub async fn released_claims(&self, space: &str, within: Duration) -> Result<Vec<String>, ReadError> {
        read(self.inner.backend.released_claims(space, within)).await
    }

    /// The keys that sealed objects need.
    pub async fn key_use(&self) -> Result<Vec<KeyUse>, ReadError> {
        read(self.inner.backend.key_use()).await
    }

    /// The cluster-wide settings, if there are any yet.
    pub async fn settings(&self) -> Result<Option<Settings>, ReadError> {
        read(self.inner.backend.settings()).await
    }

    /// Writes the cluster-wide settings if their version is still `expect` (0: there are none yet).
    pub async fn write_settings(&self, body: Bytes, expect: i64) -> Result<bool, ReadError> {
        read(self.inner.backend.write_settings(body, expect)).await
    }

    /// Makes room ahead and drops what is older than `retention`; for the compaction loop. Answers the
    /// oldest revision kept.
    pub async fn maintain(&self, retention: Retention) -> Result<Upkeep, ReadError> {
        read(self.inner.backend.maintain(retention)).await
    }

    // ---- health -------------------------------------------------------------------------------------

    /// Whether the cache is loaded and follows the log, and since when it does not.
    pub fn health(&self) -> Health {
        let progress = self.inner.cache.progress();
        Health {
            loaded: progress.loaded,
            revision: progress.revision,
            disconnected_for: self.inner.tail.disconnected_for(),
            connected_for: self.inner.tail.connected_for(),
            losses: self.inner.metrics.losses.get(),
        }
    }

    /// Counts the histories that the cache has shown: what was known of one means nothing in the next.
    pub fn era(&self) -> u64 {
        self.inner.cache.progress().era
    }

    /// How far the cache is behind what was committed.
    pub(crate) fn tail_lag(&self) -> TailLag {
        let Inner { backend, cache, tail, .. } = &*self.inner;
        let hint = *backend.hints().borrow();
        TailLag {
            revisions: hint.latest.saturating_sub(cache.progress().revision).max(0),
            since: tail.incomplete_for(),
            listening: hint.connected && !hint.deaf,
        }
    }

    /// Writes that wait for the committer, and how many may.
    pub(crate) fn queue_length(&self) -> (usize, usize) {
        self.inner.queue.length()
    }

    /// The kinds that the cache holds.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.inner.cache.kinds().iter().copied()
    }

    /// What the database says of itself.
    pub async fn survey(&self) -> Result<Survey, ReadError> {
        read(self.inner.backend.survey()).await
    }

    /// Whether the way to the database mixes up what different processes send, so that nothing may go there.
    pub async fn mixes_statements(&self) -> Result<bool, ReadError> {
        read(self.inner.backend.mixes_statements()).await
    }

    /// Which migrations the database has, and whether this program can do with them.
    pub async fn schema(&self) -> Result<Schema, ReadError> {
        read(self.inner.backend.schema()).await
    }

    /// Says now and then that this process is there, until the store is shut down.
    pub fn announce(&self, announcement: Announcement) {
        let Inner { backend, cache, tracker, stop, .. } = &*self.inner;
        tracker.spawn(announce::run(announcement, Arc::clone(backend), Arc::clone(cache), stop.clone()));
    }

    /// Counters, for whoever exports them.
    pub fn metrics(&self) -> Arc<StoreMetrics> {
        Arc::clone(&self.inner.metrics)
    }

    /// Ends watches, commits what waits, and ends the store's tasks.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }
}

async fn read<T>(answer: impl Future<Output = Result<T, BackendError>>) -> Result<T, ReadError> {
    answer.await.map_err(|error| {
        tracing::debug!(error = %error, "store.backend.failed");
        match error {
            BackendError::Rejected(reason) => ReadError::Rejected(reason),
            BackendError::Unavailable(_) | BackendError::Unknown(_) => ReadError::Unavailable,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_core::kind::Key;

    fn sendable<T: Send>(value: T) -> T {
        value
    }

    /// Callers spawn tasks around these futures.
    #[tokio::test]
    async fn futures_can_be_sent_between_threads() {
        let store = Store::memory();
        sendable(store.ready()).await;
        let snapshot = sendable(store.fresh()).await.expect("fresh");
        assert!(snapshot.get(&Key::cluster(Kind::Node, "none")).is_none());
        sendable(store.not_older_than(0)).await.expect("there");
        sendable(store.exactly_at(Kind::Node, 0)).await.expect("there");
        let mut watcher = sendable(store.watch(Kind::Node, 0)).expect("a watch");
        drop(sendable(store.changed_since(0)));
        drop(sendable(watcher.next()));
        sendable(store.shutdown()).await;
    }
}
