//! Which Events have had their time.
//!
//! An Event is kept for an hour after it was last observed. Nothing is remembered from pass to pass: every pass
//! looks at the Events that there are, so whatever was missed (no leader for a day, a deletion that lost to
//! another observation) is made up for by the next one. How long the change log is makes no difference; the
//! Events themselves are looked at in memory.
//!
//! A namespace holds a bounded number of them. Beyond it those go first that were observed longest ago: an
//! unruly client can crowd out the Events of its own namespace and nobody else's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_core::kinds::event::Observations;
use horchestra_store::{Entry, Snapshot};
use jiff::{SignedDuration, Timestamp};

/// How long Events are kept, and how many of them.
#[derive(Clone, Copy, Debug)]
pub struct EventRetention {
    /// Since they were last observed.
    pub age: Duration,
    /// In one namespace.
    pub per_namespace: usize,
}

impl Default for EventRetention {
    fn default() -> EventRetention {
        EventRetention { age: Duration::from_secs(3600), per_namespace: 10_000 }
    }
}

impl EventRetention {
    /// The Events that are to go at `now`, whatever finalizers they have.
    pub fn due(&self, snapshot: &Snapshot, now: Timestamp) -> Vec<Arc<Entry>> {
        let age = SignedDuration::try_from(self.age).unwrap_or(SignedDuration::MAX);
        let oldest = now.checked_sub(age).unwrap_or(Timestamp::MIN);
        let mut due = Vec::new();
        let mut kept: HashMap<&str, Vec<(Timestamp, &Arc<Entry>)>> = HashMap::new();
        for entry in snapshot.list(Kind::Event, None) {
            let last = last_observed(entry, now);
            if last < oldest {
                due.push(Arc::clone(entry));
            } else {
                kept.entry(&entry.key.namespace).or_default().push((last, entry));
            }
        }
        for mut events in kept.into_values() {
            let excess = events.len().saturating_sub(self.per_namespace);
            if excess > 0 {
                events.sort_unstable_by_key(|(last, entry)| (*last, entry.revision));
                due.extend(events.into_iter().take(excess).map(|(_, entry)| Arc::clone(entry)));
            }
        }
        due
    }
}

/// An Event that cannot be read was observed in the beginning of time.
fn last_observed(entry: &Entry, now: Timestamp) -> Timestamp {
    serde_json::from_slice::<Observations>(&entry.body).map_or(Timestamp::MIN, |times| times.last(now))
}
