//! What every loop stands on: leadership, wakes, resync and supervision.
//!
//! A loop is a [`Reconciler`]: it says which kinds and which changes concern it, and does one level-driven
//! pass over what is stored. It is given no event and keeps nothing that the next pass could not rebuild.
//! The substrate owns the rest:
//!
//! * **One leader.** Each loop campaigns for the lease of its name. While it leads, a term lasts: passes run
//!   one after the other, never two at once. Every write of a pass carries the epoch of the term, and the
//!   database refuses it once another process has taken over, however long this one slept in between. So
//!   leadership is an optimisation, and safety does not rest on anybody's clock.
//! * **Wakes.** A change of a watched kind that the loop's predicate accepts leads to a pass. Changes that
//!   arrive during a pass collapse into one. A watch that ends is opened again from a fresh snapshot.
//! * **Traces.** Where traces are recorded, a pass that changes woke has a span, in the trace of the first of them and
//!   with links to the others. What it writes because of a change goes on with the trace of that change.
//! * **Resync.** A pass runs at the start of a term and then at least every resync interval, jittered, so
//!   that whatever a wake missed is healed.
//! * **Supervision.** A pass that fails is logged and tried again after a growing, jittered wait, that is short while
//!   the database is away. A pass that
//!   panics counts as failed; it cannot take its process or other loops down, and the loop forgets what it
//!   remembered, as for a new term. After several panics in a row the term is given up: another process may
//!   fare better.
//! * **Hand-over.** On shutdown the pass in flight has half a second to finish and is dropped otherwise; what it
//!   has not committed by then is fenced off. Then the lease is given up, and those who wait for it are told, so
//!   that another process takes over at once. A lease whose holder died runs out.
//!
//! Who leads what stands in the database (`leases` and `lease_epochs`; the query is in `migrations/README.md`) and
//! in the metrics of each process (`loop_leading`, `loop_epoch`).

mod leader;
mod metrics;
mod runner;
mod verdicts;

use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::Kind;
use horchestra_service::Caller;
use horchestra_store::Change;
use horchestra_store::store::Lease;

pub use metrics::{LeaderGauge, LoopMetrics};
pub use runner::{Runner, RunnerOptions};
pub use verdicts::store_verdicts;

/// One loop. See the module for the contract.
pub trait Reconciler: Send + Sync + 'static {
    /// The name of the loop and of its lease.
    fn name(&self) -> &'static str;

    /// The kinds whose changes may wake it.
    fn kinds(&self) -> &'static [Kind];

    /// Whether this change can make a difference to it.
    fn wakes(&self, change: &Change) -> bool;

    /// How long the loop may rest when nothing wakes it.
    fn resync(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Called once when a term begins, before its first pass: forget what an earlier term assumed.
    fn begin_term(&mut self) {}

    /// Called once when a term is over, however it ended: what it showed of the world is for others to show now.
    fn end_term(&mut self) {}

    /// One pass. An error means that the pass as a whole failed and should be tried again soon.
    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>>;
}

/// A loop of whichever sort.
impl<R: Reconciler + ?Sized> Reconciler for Box<R> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn kinds(&self) -> &'static [Kind] {
        (**self).kinds()
    }

    fn wakes(&self, change: &Change) -> bool {
        (**self).wakes(change)
    }

    fn resync(&self) -> Duration {
        (**self).resync()
    }

    fn begin_term(&mut self) {
        (**self).begin_term();
    }

    fn end_term(&mut self) {
        (**self).end_term();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        (**self).pass(term)
    }
}

/// One term of leadership.
#[derive(Clone, Debug)]
pub struct Term {
    pub lease: Lease,
}

impl Term {
    /// Who the writes of this term are made by.
    pub fn caller(&self) -> Caller {
        Caller::Loop { name: self.lease.name.clone(), epoch: self.lease.epoch }
    }
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Writes that were committed.
    pub writes: usize,
    /// Writes that were refused; their objects are looked at again in the next pass.
    pub refused: usize,
    /// When the loop wants to look again although nothing changed.
    pub again_in: Option<Duration>,
}

/// Why a pass failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The store could not be read.
    #[error("the store could not be read")]
    Read(#[source] horchestra_store::ReadError),
    /// A part of the pass that ran on a thread of its own panicked.
    #[error("a part of the pass panicked")]
    Panicked,
    /// Another process leads now.
    #[error("another process leads")]
    Deposed,
}
