//! The recent changes of one kind.

use std::collections::VecDeque;

use crate::types::{Change, Entry, Revision};

/// What a change costs beside its body, roughly.
const OVERHEAD: usize = 512;

/// Bounds of one kind's ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub events: usize,
    pub bytes: usize,
}

/// What a ring has for a cursor.
pub(super) enum Found {
    /// Possibly none.
    Changes(Vec<Change>),
    /// Some of the changes after the cursor are gone.
    Gone,
    /// The cursor belongs to another era.
    OtherEra,
}

pub(super) struct Ring {
    /// The era that the revisions in here belong to.
    era: u64,
    changes: VecDeque<Change>,
    bytes: usize,
    /// Every change of the kind after this revision is here.
    floor: Revision,
}

impl Ring {
    pub fn new(era: u64, floor: Revision) -> Ring {
        Ring { era, changes: VecDeque::new(), bytes: 0, floor }
    }

    pub fn push(&mut self, change: Change, limits: Limits) {
        self.bytes += cost(&change);
        self.changes.push_back(change);
        while self.changes.len() > limits.events || self.bytes > limits.bytes {
            let Some(dropped) = self.changes.pop_front() else { break };
            self.bytes -= cost(&dropped);
            self.floor = dropped.revision;
        }
    }

    /// Up to `limit` changes after `cursor`.
    pub fn after(&self, era: u64, cursor: Revision, limit: usize) -> Found {
        if era != self.era {
            return Found::OtherEra;
        }
        if cursor < self.floor {
            return Found::Gone;
        }
        let start = self.changes.partition_point(|change| change.revision <= cursor);
        Found::Changes(self.changes.iter().skip(start).take(limit).cloned().collect())
    }

    /// The newest change, or the floor.
    pub fn newest(&self) -> Revision {
        self.changes.back().map_or(self.floor, |change| change.revision)
    }
}

/// The state before counts although an earlier change may hold it too: that one leaves the ring first.
fn cost(change: &Change) -> usize {
    let of = |entry: &Entry| entry.body.len() + entry.managed.as_ref().map_or(0, |managed| managed.len());
    of(&change.entry) + change.before.as_deref().map_or(0, of) + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ChangeKind, Columns, Draft, Index};
    use bytes::Bytes;
    use horchestra_core::kind::{Key, Kind};
    use std::sync::Arc;

    fn change(revision: Revision, body: usize) -> Change {
        let draft = Draft {
            key: Key::namespaced(Kind::Application, "shop", "web"),
            uid: uuid::Uuid::nil(),
            generation: 1,
            deleting: false,
            body: Bytes::from(vec![b' '; body]),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        Change {
            kind: ChangeKind::Modified,
            revision,
            entry: Arc::new(Entry::new(draft, revision, revision)),
            previous: None,
            previous_columns: None,
            before: None,
        }
    }

    fn after(ring: &Ring, cursor: Revision) -> Option<Vec<Revision>> {
        match ring.after(0, cursor, 100) {
            Found::Changes(changes) => Some(changes.iter().map(|change| change.revision).collect()),
            Found::Gone | Found::OtherEra => None,
        }
    }

    #[test]
    fn a_cursor_gets_what_is_after_it_or_learns_that_it_is_gone() {
        let mut ring = Ring::new(0, 10);
        assert_eq!(ring.newest(), 10);
        let limits = Limits { events: 3, bytes: usize::MAX };
        for revision in [12, 15, 16] {
            ring.push(change(revision, 1), limits);
        }
        assert_eq!(after(&ring, 9), None);
        assert_eq!(after(&ring, 10), Some(vec![12, 15, 16]));
        assert_eq!(after(&ring, 13), Some(vec![15, 16]));
        assert_eq!(after(&ring, 99), Some(vec![]));
        ring.push(change(20, 1), limits);
        assert_eq!(after(&ring, 11), None, "12 was dropped");
        assert_eq!(after(&ring, 12), Some(vec![15, 16, 20]));
        assert!(matches!(ring.after(1, 12, 100), Found::OtherEra));
    }

    #[test]
    fn bytes_bound_a_ring_too() {
        let mut ring = Ring::new(0, 0);
        let limits = Limits { events: 100, bytes: 10_000 };
        for revision in 1..=10 {
            ring.push(change(revision, 4_000), limits);
        }
        assert_eq!(after(&ring, 8), Some(vec![9, 10]));
        assert_eq!(after(&ring, 7), None);
        ring.push(change(11, 20_000), limits);
        assert_eq!(after(&ring, 11), Some(vec![]), "what is too large for the ring passes through it");
    }
}
