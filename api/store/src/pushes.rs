//! What nodes were last sent, and the holds on sending them anything.
//!
//! A push replaces everything that a node was told before, and the node destroys what it does not name. Two things
//! keep a database that forgot something from destroying what it forgot:
//!
//! * **The record**: what each node may hold. A gateway adds to it before it sends something new, and takes off only
//!   what a push was sent without, for a recorded reason. So it may name too much, never too little, and a writer
//!   that lost its session a moment ago does no harm with what it adds. Tombstones of what is on record are
//!   kept, however old.
//! * **Holds**: of all nodes, engaged by whoever has known more than the database has ([`Loss`]) in the same
//!   transaction in which the new epoch begins, or by an operator; or of one node. They are rows of the database, so
//!   they outlive every process. Only an operator releases them.
//! * **Home**: where the data was last known to be complete. A process that starts cannot have known more. It finds
//!   out whether the data came from another database, or is on another timeline of the server (a standby was promoted,
//!   a backup was brought forward to some moment) and no process that has seen it before vouches for it; then it
//!   engages the hold, and begins a new epoch: what may be lost had revisions that others still know. A copy of the files that is put back while nothing runs looks like a server that was merely
//!   stopped: then it is for the operator to engage the hold.

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kind::Key;
use uuid::Uuid;

use crate::backend::Identity;
use crate::presence::SessionGrant;
use crate::types::Revision;

/// Why nothing is sent, as the reason of a condition says it.
pub mod reason {
    /// Part of the history that somebody had seen is gone.
    pub const HISTORY_LOST: &str = "HistoryLost";
    /// Another database stands where one was known.
    pub const DATABASE_REPLACED: &str = "DatabaseReplaced";
    /// The server is on another timeline than before, and nobody vouches for it.
    pub const HISTORY_UNPROVEN: &str = "HistoryUnproven";
    /// What a node was sent is newer than anything that the database has.
    pub const RECORD_AHEAD: &str = "RecordAhead";
    /// A node holds what the database can neither name nor explain.
    pub const UNEXPLAINED: &str = "Unexplained";
    /// A node's certificate is older than the database, which has never sent it anything.
    pub const OLDER_THAN_DATABASE: &str = "OlderThanDatabase";
    /// An operator asked for it.
    pub const REQUESTED: &str = "Requested";

    /// Those that processes find by themselves, and those that operators give.
    pub const ALL: [&str; 7] = [
        HISTORY_LOST,
        DATABASE_REPLACED,
        HISTORY_UNPROVEN,
        RECORD_AHEAD,
        UNEXPLAINED,
        OLDER_THAN_DATABASE,
        REQUESTED,
    ];
}

/// Something that a node may hold: an Application, or a volume of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    pub key: Key,
    pub uid: Uuid,
}

/// What a node was last sent, as far as it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushRecord {
    /// Of the state that was sent when the record last changed; `None`: this database has never sent it anything, and no
    /// operator has released it.
    pub revision: Option<Revision>,
    /// In any order.
    pub holdings: Vec<Holding>,
}

/// A change of a node's record, by the session that sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushChange {
    pub node: String,
    pub grant: SessionGrant,
    pub revision: Revision,
    pub add: Vec<Holding>,
    pub remove: Vec<Holding>,
}

/// Nothing is sent until an operator says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Of the hold of all nodes: another one whenever it is engaged.
    pub id: Uuid,
    /// Microseconds since the epoch, database clock.
    pub since: i64,
    /// See [`reason`]; other versions may have others.
    pub reason: String,
    pub message: String,
}

/// Every hold in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Of all nodes.
    pub cluster: Option<Hold>,
    /// Released from that one.
    pub released: BTreeSet<String>,
    /// Of single nodes.
    pub nodes: BTreeMap<String, Hold>,
}

impl Holds {
    /// The hold that a node is under.
    pub fn of(&self, node: &str) -> Option<&Hold> {
        let own = self.nodes.get(node);
        own.or_else(|| self.cluster.as_ref().filter(|_| !self.released.contains(node)))
    }
}

/// A revision above all that can have been given out by now, by whatever history: `head` is that of the one which there
/// is, `now` microseconds since the epoch. (As the function `beyond_all` of the database.)
pub fn beyond_all(head: Revision, now: i64) -> Revision {
    /// 2026-01-01, in seconds since the epoch.
    const BEGINNING: i64 = 1_767_225_600;
    head.max((now.div_euclid(1_000_000) - BEGINNING).saturating_mul(1 << 16))
}

/// What a process knew, and what it finds instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub known: Identity,
    pub revision: Revision,
    pub found: Identity,
    /// A new epoch is needed, since nobody has begun one yet as far as can be seen.
    pub begins: bool,
}

impl Loss {
    pub(crate) fn other_database(&self) -> bool {
        (&self.known.system, &self.known.database) != (&self.found.system, &self.found.database)
    }

    pub fn reason(&self) -> &'static str {
        if self.other_database() { reason::DATABASE_REPLACED } else { reason::HISTORY_LOST }
    }

    pub fn message(&self) -> String {
        if self.other_database() {
            format!("another database stands where one was known up to revision {}", self.revision)
        } else {
            format!("the database no longer has all that was known up to revision {}", self.revision)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(reason: &str) -> Hold {
        Hold { id: Uuid::nil(), since: 0, reason: reason.to_owned(), message: String::new() }
    }

    #[test]
    fn two_moments_are_above_each_others_revisions() {
        let monday = 1_795_996_800_000_000;
        assert!(beyond_all(7, monday) > 1 << 40);
        assert!(beyond_all(7, monday + 4_000_000) >= beyond_all(7, monday) + (1 << 18));
        assert_eq!(beyond_all(i64::MAX, monday), i64::MAX);
        assert_eq!(beyond_all(7, 0), 7, "a clock that was never set");
    }

    #[test]
    fn a_node_is_under_its_own_hold_or_under_that_of_all() {
        let mut holds = Holds::default();
        let of = |holds: &Holds, node: &str| holds.of(node).map(|hold| hold.reason.clone());
        assert_eq!(of(&holds, "n1"), None);
        holds.cluster = Some(hold("all"));
        holds.nodes.insert("n1".to_owned(), hold("own"));
        holds.released.extend(["n1".to_owned(), "n2".to_owned()]);
        let found = ["n1", "n2", "n3"].map(|node| of(&holds, node));
        assert_eq!(found, [Some("own".to_owned()), None, Some("all".to_owned())]);
    }
}
