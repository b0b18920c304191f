//! [`Backend`]: what a database has to offer so that a [`Store`](crate::Store) can be built on it.
//!
//! Two implementations exist: PostgreSQL, and an in-memory one which is at the same time the oracle that
//! the first is compared with. Everything above this trait (committer, tail, watch cache) is shared, so
//! whatever a backend answers differently is a bug in one of the two.
//!
//! # What every backend guarantees
//!
//! * Items of a batch take effect one after the other, in the order of the batch: item *n* sees what items
//!   before it did. A refused item leaves nothing behind and does not touch its neighbours.
//! * Only object operations that succeed take a revision, each the next one: the log has no holes, and a
//!   row is never visible before all rows below it are.
//! * An answer to a commit means that it is durable.
//! * Which refusal is reported is fixed, so that both backends agree: guards in their order (except
//!   capacity), then operations in their order, then capacity guards in their order; the first that does
//!   not hold is the answer.
//!
//! Items that reach a backend have passed [`Item::check`]: sizes and "one operation per key" hold.
//!
//! # What a backend may rely on
//!
//! The items of a batch are independent ([`crate::batch`]): no two write the same object, and nothing that
//! one writes is read by another's guards, **except** through claims and capacity. Those a backend has to
//! carry along within the batch: a claim sees claims taken by items before it, and values given back by
//! releases and deletions before it; a capacity guard sees every effect that items before it have on the
//! node's sums, whether those items carry such a guard or not. A batch of one item is always independent.
//!
//! # Semantics that SQL and memory have to share, where a reader might wonder
//!
//! * Claims: a claim is refused while another owner holds the value, unless both are shared. Claiming again
//!   what one holds sets its `shared` flag anew (still refused if others hold it and the new one is
//!   exclusive). Deleting an object releases every claim whose owner is its uid.
//! * Numbers: of the claims of a space that are a number or a range, and that another owner holds, the one with
//!   the lowest last number that is not below the first one asked for decides: all are unclaimed if it begins
//!   above the last one asked for. Where held ranges do not overlap that is exact.
//! * Capacity: fits if for both cpu and memory the sum over Applications whose `columns.node` is the node is
//!   at most the Node object's column; a column of 0 is without bound if the guard says so. A Node that does
//!   not exist fails the guard.
//! * A lease is held in an epoch from its acquisition until it is released or another holder acquires it;
//!   the end of its term alone changes nothing (nobody else has it yet).
//! * A status update keeps the core revision and writes no history; everything else sets the core revision
//!   to the new revision and adds to the history. A deletion adds a tombstone. Events have neither. Of sealed
//!   kinds ([`Kind::is_sealed`]) both are kept without their bodies.
//! * The deletion of an Application gives its address back, in the same moment.
//! * The entry of a `Deleted` change is the last state with both revisions set to the deletion's.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use tokio::sync::watch;
use uuid::Uuid;

use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::announce::Announcement;
use crate::presence::{
    DeniedCertificates, Heartbeat, HeartbeatRow, Lease, Samples, SamplesRow, SeenSession, SessionClaim,
    SessionGrant, SessionRow, TokenForm,
};
use crate::pushes::{Holds, Loss, PushChange, PushRecord};
use crate::readings::PoolUse;
use crate::schema::Schema;
use crate::sealing::{KeyUse, Resealed, SealedBody, SealedStretch};
use crate::survey::Survey;
use crate::types::{Attribution, Change, Committed, Entry, Item, Refusal, Revision};

/// A call that the backend could not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// Not reachable; certainly nothing was changed.
    #[error("the database cannot be reached: {0}")]
    Unavailable(String),
    /// The connection was lost after the request may have been sent: a change may or may not have
    /// happened, or may yet happen. Only for calls that change something.
    #[error("the connection was lost with a change under way: {0}")]
    Unknown(String),
    /// The database raised an error on this very input; nothing was changed, and again would not help.
    #[error("the database refused the input: {0}")]
    Rejected(String),
}

/// Why a database that answers takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    #[error("the database is read only")]
    ReadOnly,
    #[error("the disk of the database is full")]
    Full,
}

/// Which database this is. Any difference means that revisions known from before mean nothing here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster's own identifier (PostgreSQL: system identifier).
    pub system: String,
    /// The database within it.
    pub database: String,
    /// Changed by [`Backend::begin_epoch`]; part of the data, so a restored backup brings its own.
    pub epoch: Uuid,
}

/// The state of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The revision of the last change (0: none yet).
    pub revision: Revision,
    /// Every change after this revision is still in the log. 0 while nothing was compacted.
    pub oldest: Revision,
    pub identity: Identity,
}

/// What tells one log row from any other that could stand at the same revision of another history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The audit id is random per request, so it makes rows of diverging histories differ.
    pub fn of(revision: Revision, key: &Key, uid: Uuid, audit_id: Uuid) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        (revision, key, uid, audit_id).hash(&mut hasher);
        Fingerprint(hasher.finish())
    }
}

/// A row of the change log.
#[derive(Clone, Debug)]
pub struct LogRow {
    pub change: Change,
    /// The object's revision before the change; 0 for `Added`.
    pub previous_revision: Revision,
    pub who: Attribution,
    /// Microseconds since the epoch, database clock.
    pub at: i64,
}

impl LogRow {
    pub fn fingerprint(&self) -> Fingerprint {
        let entry = &self.change.entry;
        Fingerprint::of(self.change.revision, &entry.key, entry.uid, self.who.audit_id)
    }
}

/// A stretch of the log.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The row **at** the revision that was asked to read after, if the log has it: shows whether the log
    /// is still the one that the reader knows.
    pub anchor: Option<Fingerprint>,
    /// Rows after it, contiguous and ascending; empty when there are none, at most as many as asked for.
    /// Where the log's oldest revision is above the one asked for, rows start behind the oldest.
    pub rows: Vec<LogRow>,
    /// As of this very read (one snapshot with the rows).
    pub head: Head,
}

/// All objects of some kinds, at one revision.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub head: Head,
    /// The row at `head.revision`, if the log has it.
    pub anchor: Option<Fingerprint>,
    /// In any order.
    pub entries: Vec<Arc<Entry>>,
}

/// What a backend has heard, without being asked, of the progress of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The newest revision heard of; a reader that is below it has something to read. May repeat, may be
    /// missing, is never relied on.
    pub latest: Revision,
    /// The notification channel stands.
    pub connected: bool,
    /// Grows with every (re)connection: whatever happened in between went unheard.
    pub connections: u64,
    /// The channel stands, but nothing comes through it, as behind a pooler that lends connections for one
    /// transaction at a time.
    pub deaf: bool,
}

/// Which history is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryOf {
    /// Of this very object, tombstone included.
    Uid(Uuid),
    /// Of every object that had this name, tombstones included.
    Key(Key),
}

/// A version of an object that the history keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    pub key: Key,
    pub uid: Uuid,
    pub revision: Revision,
    pub generation: i64,
    /// The object was deleted at this revision; `body` is its last state.
    pub deleted: bool,
    /// Empty for sealed kinds.
    pub body: Bytes,
    pub who: Attribution,
    /// Microseconds since the epoch, database clock.
    pub at: i64,
}

/// A held claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRow {
    pub space: String,
    pub value: String,
    pub owner: Uuid,
    pub shared: bool,
}

/// A held claim as upkeep looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedClaim {
    pub claim: ClaimRow,
    /// There is a tombstone of the owner.
    pub owner_deleted: bool,
}

/// What [`Backend::prune_presence`] has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Sessions that no gateway serves any more.
    pub sessions: usize,
    /// Gateways whose term ended long ago.
    pub gateways: usize,
    /// Heartbeats of nodes that have no Node.
    pub heartbeats: usize,
    /// Samples of nodes that send none any more.
    pub samples: usize,
}

/// The cluster-wide settings row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Grows by one with every write; the first is 1.
    pub version: i64,
    /// JSON.
    pub body: Bytes,
}

/// How much of the past to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Log rows younger than this stay.
    pub log: Duration,
    /// Versions kept per object in the history.
    pub versions: usize,
    /// Tombstones and the history of deleted objects younger than this stay.
    pub tombstones: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            log: Duration::from_secs(45 * 60),
            versions: 10,
            tombstones: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// What a round of upkeep did. A round is bounded: what it leaves is for the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// What is older than this revision is gone.
    pub oldest: Revision,
    /// Revisions that the log has room for without another partition.
    pub headroom: Revision,
    /// Partitions of the log that were taken out of it.
    pub partitions: usize,
    /// Versions of objects that the history no longer has.
    pub versions: usize,
    /// Deleted objects that are forgotten.
    pub tombstones: usize,
    /// Outcomes of commits that nobody asks for any more.
    pub outcomes: usize,
    /// There is more to do than one round does.
    pub unfinished: bool,
}

/// The batch's answer.
#[derive(Clone, Debug)]
pub struct Done {
    /// One result per item, in order.
    pub items: Vec<Result<Committed, Refusal>>,
    /// The row just before the first that this batch added to the log: lets a process put its own commits
    /// on its cache without reading them back, and notice that the log underneath is another one. `None`
    /// if the log has no such row (or nothing was added).
    pub anchor: Option<Fingerprint>,
}

/// What [`Backend::undo`] answers: objects as they were, `None` for those that did not exist.
pub type Undone = Vec<(Key, Option<Arc<Entry>>)>;

/// An asynchronous answer of a backend.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

/// See the module's essay.
pub trait Backend: Send + Sync + 'static {
    // ---- the log --------------------------------------------------------------------------------------

    /// Applies the items in order. `nonce` names this attempt for [`Backend::settle`]; it is recorded with
    /// the commit, and a nonce that was settled before can never commit.
    fn commit<'a>(&'a self, batch: &'a [Item], nonce: Uuid) -> Answer<'a, Done>;

    /// Settles an attempt whose answer was lost. `Some`: it did commit, with these items (`None` = refused,
    /// nothing of that item was stored, so it may be tried again). `None`: it did not, **and never will**:
    /// the nonce is spent from here on, even if the attempt is still on its way. (A batch of which every
    /// item was refused may be answered either way.)
    fn settle(&self, nonce: Uuid) -> Answer<'_, Option<Vec<Option<Committed>>>>;

    /// The state of the log at a moment after this call began.
    fn head(&self) -> Answer<'_, Head>;

    /// Up to `limit` rows after `after`.
    fn changes(&self, after: Revision, limit: usize) -> Answer<'_, Changes>;

    /// Every object of these kinds, of one consistent moment.
    fn load<'a>(&'a self, kinds: &'a [Kind]) -> Answer<'a, Loaded>;

    /// For each object of the kind that changed after `to` up to and including `from`: what it was at `to`
    /// (`None`: it did not exist). `Ok(None)`: the log does not reach back to `to`.
    fn undo(&self, kind: Kind, from: Revision, to: Revision) -> Answer<'_, Option<Undone>>;

    /// What is heard of the log's progress. The sender lives as long as the backend.
    fn hints(&self) -> watch::Receiver<Hint>;

    /// Starts a new epoch because a reader has shown that `known` (a revision that it has seen) is no longer
    /// part of this log: from now on revisions are above both `known` and the head by a wide margin, and the
    /// log begins there (`oldest` = the new head). Does nothing if the identity is no longer `seen`
    /// **and** the head is above `known`. Answers the head after it.
    fn begin_epoch<'a>(&'a self, seen: &'a Identity, known: Revision) -> Answer<'a, Head>;

    /// Tells the database that more was known, or another one: engages the hold on pushes, once per history that
    /// was known, and begins a new epoch in the same transaction if `begins` says so.
    fn show_loss<'a>(&'a self, loss: &'a Loss) -> Answer<'a, ()>;

    /// When the database was made, in microseconds since the epoch, as far as it is known.
    fn born(&self) -> Answer<'_, i64>;

    /// Looks whether the data is where it was last known to be complete. `vouches`: this process has seen it there and
    /// nothing is missing. False: it is on another timeline of the server, and with `patient` somebody may yet vouch for
    /// it; otherwise the hold on pushes is engaged where it has to be, and a new epoch begins with it.
    fn settle_home(&self, vouches: bool, patient: bool) -> Answer<'_, bool>;

    // ---- the past -------------------------------------------------------------------------------------

    /// Newest first.
    fn history(&self, of: HistoryOf) -> Answer<'_, Vec<HistoryRow>>;

    /// The tombstones of these objects, as far as they are kept; in any order.
    fn tombstones<'a>(&'a self, uids: &'a [Uuid]) -> Answer<'a, Vec<HistoryRow>>;

    /// Held claims of a space, by value.
    fn claims<'a>(&'a self, space: &'a str) -> Answer<'a, Vec<ClaimRow>>;

    /// Held claims of all spaces by space, value and owner, behind `after`.
    fn all_claims<'a>(&'a self, after: Option<&'a ClaimRow>, limit: usize) -> Answer<'a, Vec<OwnedClaim>>;

    /// Makes room ahead and drops what is older than `retention`; to be called now and then by one process.
    /// Answers the oldest revision kept.
    fn maintain(&self, retention: Retention) -> Answer<'_, Upkeep>;

    // ---- sealed bodies: see the module `sealing` --------------------------------------------------------

    /// Heads of a sealed kind in the order of their keys, behind `after` = (namespace, name).
    fn sealed_heads<'a>(
        &'a self,
        kind: Kind,
        after: (&'a str, &'a str),
        limit: usize,
    ) -> Answer<'a, Vec<SealedBody>>;

    /// Bodies of a sealed kind in the log's rows after `after`: of at most `limit` rows, and not beyond the
    /// head.
    fn sealed_log(&self, kind: Kind, after: Revision, limit: usize) -> Answer<'_, SealedStretch>;

    /// Replaces bodies by what says the same under another seal, where they still are what they were. Answers
    /// how many were.
    fn reseal<'a>(&'a self, bodies: &'a [Resealed]) -> Answer<'a, usize>;

    /// The keys that heads are sealed with.
    fn key_use(&self) -> Answer<'_, Vec<KeyUse>>;

    // ---- settings -------------------------------------------------------------------------------------

    fn settings(&self) -> Answer<'_, Option<Settings>>;

    /// Writes the settings if their version is still `expect` (0: there are none yet); false: it is not.
    fn write_settings(&self, body: Bytes, expect: i64) -> Answer<'_, bool>;

    // ---- leases, gateways, sessions, heartbeats, samples: see the methods of `Store` with these names ---

    fn acquire_lease<'a>(&'a self, name: &'a str, holder: Uuid, ttl: Duration) -> Answer<'a, Option<Lease>>;
    fn lease_left<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Duration>>;
    fn renew_lease<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, bool>;
    fn release_lease<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()>;
    /// Counts the releases of leases that were heard of, by whatever process, and the times that some may have gone
    /// unheard. Like [`Hint`]: never relied on.
    fn lease_hints(&self) -> watch::Receiver<u64>;

    fn renew_gateway<'a>(
        &'a self,
        gateway: Uuid,
        internal_address: &'a str,
        ttl: Duration,
    ) -> Answer<'a, bool>;
    fn name_gateway<'a>(&'a self, gateway: Uuid, name: &'a str) -> Answer<'a, bool>;
    fn retire_gateway(&self, gateway: Uuid) -> Answer<'_, ()>;

    fn claim_sessions(
        &self,
        claims: Vec<SessionClaim>,
        stale_after: Duration,
    ) -> Answer<'_, Vec<Option<SessionGrant>>>;
    fn release_sessions<'a>(&'a self, sessions: &'a [(String, SessionGrant)]) -> Answer<'a, ()>;
    fn touch_sessions<'a>(&'a self, gateway: Uuid, sessions: &'a [SeenSession]) -> Answer<'a, Vec<String>>;
    fn session_of<'a>(&'a self, node: &'a str) -> Answer<'a, Option<SessionRow>>;
    fn sessions(&self) -> Answer<'_, Vec<SessionRow>>;

    fn denied_certificates(&self) -> Answer<'_, Vec<DeniedCertificates>>;
    /// What is denied already for the same name is denied until the later moment.
    fn deny_certificates<'a>(&'a self, denied: &'a DeniedCertificates, reason: &'a str) -> Answer<'a, ()>;
    /// Whether anything was denied for this name or fingerprint.
    fn allow_certificates<'a>(&'a self, of: &'a str) -> Answer<'a, bool>;

    /// Says that a process is there, and how far it has read the log.
    fn announce<'a>(&'a self, announcement: &'a Announcement, revision: Revision) -> Answer<'a, ()>;
    /// Says that it is there no more.
    fn withdraw(&self, id: Uuid) -> Answer<'_, ()>;

    /// Removes, of each sort at most `limit`, what was last heard of longer ago than `age` and stands for
    /// nothing any more.
    fn prune_presence(&self, age: Duration, limit: usize) -> Answer<'_, Pruned>;

    fn record_heartbeats<'a>(&'a self, beats: &'a [Heartbeat]) -> Answer<'a, ()>;
    /// Of sessions, which are touched by it; answers the nodes whose session is another by now.
    fn record_beats<'a>(&'a self, beats: &'a [(SessionGrant, Heartbeat)]) -> Answer<'a, Vec<String>>;
    fn heartbeats(&self) -> Answer<'_, Vec<HeartbeatRow>>;

    fn record_samples<'a>(&'a self, samples: &'a [Samples]) -> Answer<'a, ()>;
    fn samples<'a>(&'a self, nodes: &'a [String], within: Duration) -> Answer<'a, Vec<SamplesRow>>;

    // ---- records of pushes, holds: see the module `pushes` ------------------------------------------------

    /// The records of these nodes, in the order of the question, and every hold at a moment not before.
    fn push_records<'a>(&'a self, nodes: &'a [String]) -> Answer<'a, (Vec<PushRecord>, Holds)>;
    fn record_pushes<'a>(&'a self, changes: &'a [PushChange]) -> Answer<'a, Vec<String>>;
    fn holds(&self) -> Answer<'_, Holds>;
    fn engage_hold<'a>(&'a self, node: Option<&'a str>, reason: &'a str, message: &'a str) -> Answer<'a, ()>;
    fn release_hold<'a>(&'a self, node: Option<&'a str>) -> Answer<'a, bool>;

    // ---- how nodes are sent tokens: see the methods of `Store` with these names ---------------------------

    fn token_form<'a>(&'a self, node: &'a str) -> Answer<'a, Option<TokenForm>>;
    fn choose_token_form<'a>(
        &'a self,
        node: &'a str,
        as_secrets: bool,
        overrule: bool,
    ) -> Answer<'a, TokenForm>;

    // ---- addresses: see the module `addresses` ----------------------------------------------------------

    /// Gives each Application of the demand an address, or the one that it has. Preferred is the one that has
    /// been free for longest, then the lowest that never was anybody's.
    fn lease_addresses<'a>(&'a self, demand: &'a AddressDemand) -> Answer<'a, Vec<Leased>>;

    /// Leases known addresses to those that have them already. Answers who cannot have theirs, since another one
    /// has it or they have another one.
    fn adopt_addresses<'a>(&'a self, known: &'a [KnownAddress]) -> Answer<'a, Vec<Uuid>>;

    /// All held addresses, lowest first.
    fn address_leases(&self) -> Answer<'_, Vec<AddressLease>>;

    /// Values of the space of Services' addresses that were given back within this time, by value.
    fn released_claims<'a>(&'a self, space: &'a str, within: Duration) -> Answer<'a, Vec<String>>;

    // ---- what a backend shows of itself -------------------------------------------------------------------

    /// The connections of this process at this moment.
    fn pools(&self) -> Vec<PoolUse> {
        Vec::new()
    }

    /// See the module `schema`. A backend without a schema is what this program knows.
    fn schema(&self) -> Answer<'_, Schema> {
        Box::pin(std::future::ready(Ok(Schema { newest: Some(0), needed: 0, known: 0 })))
    }

    /// Whether the way to the database mixes up what different processes send, so that nothing may go there.
    fn mixes_statements(&self) -> Answer<'_, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Why writes are refused, while they are.
    fn unwritable(&self) -> Option<Unwritable> {
        None
    }

    /// See the module `survey`. A backend with nothing to say answers nothing.
    fn survey(&self) -> Answer<'_, Survey> {
        Box::pin(std::future::ready(Ok(Survey::default())))
    }
}
