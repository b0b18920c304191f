//! May this be sent?
//!
//! A push destroys what it does not name. So what a node may hold (its record) is compared with what is about to be
//! sent, and everything that would go has to have a reason that is recorded: it was deleted, moved, taken off its
//! node, or has run to its end. Anything else that would go is a sign that the database forgot something, or that
//! this process is wrong about it, and then nothing is sent and a person has to look.
//!
//! While a hold is in force (history was shown to be missing, say) reasons count for nothing, since they are the
//! forgetful database's. A session that was sent something before the hold is sent that again and what is new,
//! without volumes (an empty list is the one that agents destroy none by); a session that was not is sent nothing at
//! all, since a node does not say what it runs before it is told anything.
//!
//! Pure: what is known goes in, what may be done comes out.

use horchestra_store::{Hold, Holding, PushRecord, Revision};

/// What became of something that a node may hold and is not to be sent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// There is a tombstone, or its deletion was seen.
    Deleted,
    /// A job that ran to its end.
    Finished,
    /// It is on another node now.
    Moved,
    /// It is on no node now.
    Unplaced,
    /// It is still there, and cannot be sent.
    Unsendable,
    /// Nothing tells.
    Unknown,
}

impl Fate {
    /// Whether it may go for that.
    pub fn is_reason(self) -> bool {
        match self {
            Fate::Deleted | Fate::Finished | Fate::Moved | Fate::Unplaced => true,
            Fate::Unsendable | Fate::Unknown => false,
        }
    }
}

/// Everything that the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub hold: Option<&'a Hold>,
    /// This session was sent something already.
    pub sent_before: bool,
    pub record: &'a PushRecord,
    /// The node's certificate is so much older than the database that another one may have told it what to run.
    pub older: bool,
    /// The newest revision that the database has.
    pub head: Revision,
    /// What is on record and not in what is to be sent.
    pub missing: &'a [(Holding, Fate)],
}

/// What may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The state as it is.
    Push,
    /// What the session was sent last, and what has come since; no volumes.
    Superset,
    Nothing(Why),
}

/// Why nothing may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A hold is in force.
    Held(Hold),
    /// The record is of a state that the database has not reached: it has lost some.
    RecordAhead(Revision),
    /// Nothing was ever sent to it from here, and it is older than the database.
    Older,
    /// These would go, and nothing tells why.
    Unexplained(Vec<Holding>),
    /// This would go because it cannot be sent.
    Unsendable(Holding),
}

pub fn decide(situation: &Situation<'_>) -> Decision {
    let Situation { hold, sent_before, record, older, head, missing } = *situation;
    if let Some(hold) = hold {
        return if sent_before { Decision::Superset } else { Decision::Nothing(Why::Held(hold.clone())) };
    }
    if let Some(revision) = record.revision.filter(|revision| *revision > head) {
        return Decision::Nothing(Why::RecordAhead(revision));
    }
    if record.revision.is_none() && older {
        return Decision::Nothing(Why::Older);
    }
    let of = |fate| missing.iter().filter(move |(_, found)| *found == fate).map(|(held, _)| held.clone());
    let unknown: Vec<Holding> = of(Fate::Unknown).collect();
    if !unknown.is_empty() {
        return Decision::Nothing(Why::Unexplained(unknown));
    }
    match of(Fate::Unsendable).next() {
        Some(held) => Decision::Nothing(Why::Unsendable(held)),
        None => Decision::Push,
    }
}

#[cfg(test)]
#[path = "decision/tests.rs"]
mod tests;
