//! The ordered store: where everything that is acknowledged lives, and in which order it happened.
//!
//! # What it guarantees
//!
//! * **One order.** Every stored change (status writes, deletions and Events included) takes the next number
//!   of one sequence, the revision, and one row of one log. Revisions become visible in order and without
//!   holes; who reads the log behind the last row that he knows misses nothing. What was acknowledged is
//!   durable.
//! * **Small transactions.** An [`Item`] is up to 64 operations, all or none, under [`Guard`]s: conditions
//!   on other objects, references, capacity, sessions and leases that hold at the very place in the order
//!   where the item takes effect, whichever process checked them before, and also against other items of the
//!   same batch.
//! * **Shared commits.** A process's concurrent writes travel together; each caller gets what it would have
//!   got alone ([`batch`], and the committer's essay).
//! * **Current reads.** [`Store::fresh`] sees every write that any process was told of before the call.
//!   [`Store::exactly_at`] is the state of one revision, on any process, for as long as the log reaches back.
//! * **Whole watches.** [`Store::watch`] from a revision delivers every later change of a kind, once, in
//!   order, or says that it cannot and a new list is needed; never silence, never a gap.
//! * **Fencing.** Writes of a loop or of a gateway carry the epoch of a lease or session; once another holds
//!   it, they are refused, however late they arrive.
//! * **Nobody waits for the dead.** No lock is held across a round trip; a process that stops, dies or
//!   loses its connection in the middle of anything holds nobody up.
//!
//! # What it does not
//!
//! It knows nothing of the meaning of objects: bodies are bytes, and what selectors and guards look at comes
//! beside them ([`Index`], [`Columns`], [`Edge`]). It does not authorize, and it cannot read what is sealed
//! ([`sealing`]). Heartbeats, lease terms and "last
//! seen" are no changes: they have no revision and no watch.
//!
//! # When the database is away, or not what it was
//!
//! Away: commits and fresh reads fail ([`CommitError::Unavailable`], [`ReadError::Unavailable`]), snapshots
//! and watches go on from the cache, and everything catches up by itself. Restored, replaced, failed over
//! with loss: noticed by identity and by the row where the cache ends; a new epoch begins whose revisions
//! lie above all that were ever given out, caches are loaded anew, watches end. [`Health::losses`] tells, so
//! that those who could do harm with an old state can hold back.
//!
//! # The parts
//!
//! ```text
//!  commit ─▶ committer ─▶ Backend::commit ─▶ log ─▶ tail ─▶ watch cache ─▶ snapshots, rings ─▶ watchers
//!                │                                            ▲
//!                └───────── own commits, without read-back ───┘
//! ```
//!
//! [`Backend`] is the port: PostgreSQL ([`postgres`]) in production, [`memory`] in tests and as the oracle
//! that the first is compared with. Everything above it exists once.
//!
//! # What was refused
//!
//! One transaction per request (an order of magnitude slower once they have to be ordered), a sequence for
//! revisions (commits out of order and leaves holes: a tail either misses rows or has to guess), a counter
//! row (dead versions pile up behind any long snapshot elsewhere), serializable isolation (storms of
//! retries), logical replication as the tail (a slot pins the log when its reader dies), notifications as
//! anything but a hint.

pub mod addresses;
mod announce;
pub mod backend;
pub mod batch;
mod cache;
mod committer;
mod fresh;
mod health;
pub mod memory;
mod metrics;
pub mod postgres;
mod presence;
pub mod pushes;
mod readings;
pub mod schema;
pub mod sealing;
pub mod store;
pub mod survey;
mod tail;
pub mod types;

pub use addresses::{AddressDemand, AddressLease, KnownAddress, Leased, MOST_LEASES};
pub use announce::Announcement;
pub use backend::{
    Backend, BackendError, ClaimRow, HistoryOf, HistoryRow, OwnedClaim, Pruned, Retention, Settings,
    Unwritable, Upkeep,
};
pub use health::Health;
pub use horchestra_trace::Trace;
pub use memory::{MemoryBackend, MemoryDatabase};
pub use metrics::{Count, Histogram, StoreMetrics};
pub use pushes::{Hold, Holding, Holds, Loss, PushChange, PushRecord};
pub use readings::{PoolUse, StoreReadings};
pub use schema::{Schema, SchemaFault};
pub use store::*;
pub use survey::Survey;
pub use types::*;
