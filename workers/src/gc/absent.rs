//! What is known of owners and nodes that are not there: whether they were deleted here, and how.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::object;
use horchestra_core::owners::{self, Owner};
use horchestra_store::{HistoryOf, HistoryRow, Store};
use tokio::time::Instant;
use uuid::Uuid;

use crate::substrate::PassError;

/// How long it is believed that nobody has ever seen a uid. Such a thing only changes when objects are brought
/// in from elsewhere.
const BELIEVED: Duration = Duration::from_secs(600);
/// The verb of the door by which nodes are given up.
const FORGET: &str = "forget";

/// What became of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was deleted here.
    Deleted {
        key: Key,
        /// Its dependents were to outlive it.
        leaves_orphans: bool,
    },
    /// Nobody here has ever seen it.
    NeverSeen(Instant),
}

/// Owners that are not there.
#[derive(Debug, Default)]
pub(super) struct Absent {
    fates: HashMap<Uuid, Fate>,
}

impl Absent {
    /// Finds out about these owners, `limit` of those that are not known at most; whether some are left. All
    /// others are forgotten.
    pub async fn learn(
        &mut self,
        store: &Store,
        absent: HashSet<Uuid>,
        limit: usize,
    ) -> Result<bool, PassError> {
        self.fates.retain(|uid, fate| match fate {
            Fate::NeverSeen(since) => absent.contains(uid) && since.elapsed() < BELIEVED,
            Fate::Deleted { .. } => absent.contains(uid),
        });
        let mut unknown: Vec<Uuid> = absent.into_iter().filter(|uid| !self.fates.contains_key(uid)).collect();
        let more = unknown.len() > limit;
        unknown.sort_unstable();
        unknown.truncate(limit);
        if unknown.is_empty() {
            return Ok(more);
        }
        let rows = store.tombstones(&unknown).await.map_err(PassError::Read)?;
        let now = Instant::now();
        self.fates.extend(unknown.into_iter().map(|uid| (uid, Fate::NeverSeen(now))));
        self.fates.extend(rows.into_iter().map(|row| (row.uid, fate(row))));
        Ok(more)
    }

    /// Whether the owner was deleted here; if so, whether its dependents were to outlive it.
    pub fn deleted(&self, owner: &Owner) -> Option<bool> {
        match self.fates.get(&owner.uid.parse().ok()?)? {
            Fate::Deleted { key, leaves_orphans } if *key == owner.key => Some(*leaves_orphans),
            _ => None,
        }
    }
}

/// Those of these nodes that were forgotten when they were there last; of `limit` of them at most. Asked anew
/// every time: a node can come back and go again from one pass to the next.
pub(super) async fn forgotten_nodes(
    store: &Store,
    missing: BTreeSet<String>,
    limit: usize,
) -> Result<HashSet<String>, PassError> {
    let mut forgotten = HashSet::new();
    for node in missing.into_iter().take(limit) {
        let key = Key::cluster(Kind::Node, node.as_str());
        let history = store.history(HistoryOf::Key(key)).await.map_err(PassError::Read)?;
        let last = history.iter().max_by_key(|row| row.revision);
        if last.is_some_and(|row| row.deleted && row.who.verb == FORGET) {
            forgotten.insert(node);
        }
    }
    Ok(forgotten)
}

fn fate(row: HistoryRow) -> Fate {
    let leaves_orphans = object::decode(&row.body, row.revision)
        .is_ok_and(|object| object.is_deleting() && owners::leaves_orphans(&object));
    Fate::Deleted { key: row.key, leaves_orphans }
}
