//! Reads every change of the log, in order, and says which rules were broken.
//!
//! Samples prove nothing: a node that is over-committed for two commits looks well in every list. So the checker
//! goes through the log row by row, keeps what is stored as of the last row, and judges each row by what it met.
//! It asks nobody and waits for nothing, so that its own tests can break every rule, one by one, and see it noticed:
//! a checker that cannot fail proves nothing either.
//!
//! What is judged:
//!
//! * the log: no revision is left out, and every change was made of the version that stood ([`log`]);
//! * placement: an Application is bound once and for good, to a node that takes work at that moment, and what is
//!   placed on a node fits at every revision ([`placement`]);
//! * sets: nothing is made for a set that is going or gone, nothing wanted is deleted, steps come before what
//!   waits for them, and no change takes down an available child beyond the budget ([`sets`]);
//! * promises: what was acknowledged is in the log, what an author wrote is not undone by anybody, and in the end
//!   the store has what the log says ([`promises`]).
//!
//! What happens to children from outside (a node that fails, a child that crashes) is no violation; that the loop
//! takes down another one although the budget is spent by then is.

mod log;
mod past;
mod placement;
mod promises;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::Revision;
use horchestra_store::backend::LogRow;
use uuid::Uuid;

use past::Past;
pub use promises::{Acknowledged, Promise, TURN};

/// The scheduler, as the log names it.
pub const SCHEDULER: &str = "system:loop:scheduler";
/// The loop of sets, as the log names it.
pub const SETS: &str = "system:loop:applicationset";

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// A revision is missing in the log.
    Hole,
    /// A change was made of a version that no longer stood.
    Stale,
    BoundTwice,
    /// A node that was chosen was changed.
    Moved,
    /// Placed on a node that takes nothing at that moment.
    ClosedNode,
    Overcommitted,
    /// Made or changed for a set that is deleted, frozen, paused, or not there.
    SetGone,
    /// Made or changed although no set says so.
    Unwanted,
    /// Deleted although the set says that there should be one.
    Wanted,
    /// Made or changed before the steps that come first.
    OutOfOrder,
    /// An available child was taken down beyond the budget.
    Budget,
    /// Acknowledged, and not in the log.
    Lost,
    /// What an author wrote was put back to what it was before.
    Undone,
    /// Acknowledged as deleted, and still there.
    Undead,
    /// Nobody placed it, to the very end.
    Unbound,
    /// The store has something else than the log.
    Different,
    /// An object cannot be read.
    Unreadable,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub revision: Revision,
    pub rule: Rule,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}: {:?}: {}", self.revision, self.rule, self.what)
    }
}

/// How much there was to judge. A storm in which nothing happened proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the log.
    pub changes: usize,
    pub binds: usize,
    /// Placements of which the room on the node was checked.
    pub fits: usize,
    /// How often a bind left a node with no room for another of its kind.
    pub filled: usize,
    /// Children that the loop of sets made.
    pub children: usize,
    /// Changes of available children under a budget.
    pub disruptions: usize,
    /// Children and sets that went.
    pub deletions: usize,
    pub acknowledged: usize,
}

/// See the module.
#[derive(Default)]
pub struct Checker {
    past: Past,
    last: Revision,
    binds: HashMap<Uuid, usize>,
    /// The newest turn of each author's object.
    turns: HashMap<Uuid, u64>,
    rows: HashMap<Revision, (Key, Uuid)>,
    counts: Counts,
    violations: Vec<Violation>,
}

impl Checker {
    /// Judges the next row.
    pub fn observe(&mut self, row: &LogRow) {
        self.counts.changes += 1;
        self.check_log(row);
        self.check_turn(row);
        if row.change.object_kind() == Kind::Application {
            self.check_placement(row);
            self.check_child(row);
        }
        if row.change.kind == horchestra_store::ChangeKind::Deleted
            && matches!(row.change.object_kind(), Kind::Application | Kind::ApplicationSet)
        {
            self.counts.deletions += 1;
        }
        self.last = row.change.revision;
        self.rows.insert(row.change.revision, (row.change.key().clone(), row.change.entry.uid));
        self.past.apply(row);
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The revision of the last row.
    pub fn seen(&self) -> Revision {
        self.last
    }

    fn broken(&mut self, revision: Revision, rule: Rule, what: impl Into<String>) {
        self.violations.push(Violation { revision, rule, what: what.into() });
    }
}
