//! How much may be in flight.
//!
//! Reads, writes, watches (with them: log streams) and parked queries of the catalog are counted apart, each against two limits: one of the
//! whole server and one of the caller's name. Above either the answer is 429 with `Retry-After`, at once:
//! nothing queues here, since a queue only hides overload until clients time out. Node identities draw on
//! counters of their own, so users cannot lock a fleet out. A slot is a value; dropping it gives it back,
//! whichever way the request ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use horchestra_core::status::Status;

/// What a request occupies while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Read,
    Write,
    Watch,
    /// It waits for a change, and most likely there is none for minutes.
    Parked,
}

impl Class {
    pub const ALL: [Class; 4] = [Class::Read, Class::Write, Class::Watch, Class::Parked];

    pub const fn word(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Watch => "watch",
            Class::Parked => "parked",
        }
    }

    const fn index(self) -> usize {
        match self {
            Class::Read => 0,
            Class::Write => 1,
            Class::Watch => 2,
            Class::Parked => 3,
        }
    }
}

/// Limits of one class.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub server: usize,
    pub caller: usize,
}

/// Limits by class.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub reads: Limit,
    pub writes: Limit,
    pub watches: Limit,
    pub parked: Limit,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            reads: Limit { server: 1024, caller: 512 },
            writes: Limit { server: 1024, caller: 512 },
            watches: Limit { server: 20_000, caller: 5_000 },
            parked: Limit { server: 8_192, caller: 4_096 },
        }
    }
}

impl Limits {
    fn of(&self, class: Class) -> Limit {
        match class {
            Class::Read => self.reads,
            Class::Write => self.writes,
            Class::Watch => self.watches,
            Class::Parked => self.parked,
        }
    }
}

#[derive(Default)]
struct Counts {
    /// `[users, nodes]`, each by class.
    server: [[usize; Class::ALL.len()]; 2],
    callers: HashMap<Arc<str>, [usize; Class::ALL.len()]>,
}

/// The counters.
pub struct InFlight {
    limits: Limits,
    counts: Mutex<Counts>,
}

/// A place among the running requests.
pub struct Slot {
    owner: Arc<InFlight>,
    class: Class,
    node: bool,
    caller: Arc<str>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("class", &self.class)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}

impl InFlight {
    pub fn new(limits: Limits) -> Arc<InFlight> {
        Arc::new(InFlight { limits, counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or says 429.
    pub fn enter(self: &Arc<Self>, class: Class, caller: &str, node: bool) -> Result<Slot, Status> {
        let limit = self.limits.of(class);
        let mut counts = self.counts();
        let pool = usize::from(node);
        if counts.server[pool][class.index()] >= limit.server {
            return Err(Status::too_many_requests(
                format!(
                    "the server has too many {} requests in flight, please try again later",
                    class.word()
                ),
                1,
            ));
        }
        let caller: Arc<str> = match counts.callers.get_key_value(caller) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(caller),
        };
        let mine = counts.callers.entry(Arc::clone(&caller)).or_default();
        if mine[class.index()] >= limit.caller {
            return Err(Status::too_many_requests(
                format!("you have too many {} requests in flight, please try again later", class.word()),
                1,
            ));
        }
        mine[class.index()] += 1;
        counts.server[pool][class.index()] += 1;
        drop(counts);
        Ok(Slot { owner: Arc::clone(self), class, node, caller })
    }

    /// How many requests of the class are running.
    pub fn running(&self, class: Class) -> usize {
        let counts = self.counts();
        counts.server.iter().map(|pool| pool[class.index()]).sum()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.owner.counts();
        let index = self.class.index();
        counts.server[usize::from(self.node)][index] -= 1;
        if let Some(mine) = counts.callers.get_mut(&self.caller) {
            mine[index] -= 1;
            if mine.iter().all(|running| *running == 0) {
                counts.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_callers_and_nodes_are_counted_apart_and_slots_come_back() {
        let limit = Limit { server: 3, caller: 2 };
        let limits = InFlight::new(Limits { reads: limit, writes: limit, watches: limit, parked: limit });
        let enter = |class, caller, node| limits.enter(class, caller, node);
        let first = enter(Class::Read, "alice", false).unwrap();
        let _second = enter(Class::Read, "alice", false).unwrap();
        let refused = enter(Class::Read, "alice", false).unwrap_err();
        assert_eq!((refused.code(), refused.details.retry_after_seconds), (429, Some(1)));
        let _write = enter(Class::Write, "alice", false).unwrap();
        let _parked = enter(Class::Parked, "alice", false).unwrap();
        let _bob = enter(Class::Read, "bob", false).unwrap();
        assert!(enter(Class::Read, "carol", false).is_err(), "the server is full");
        let _node = enter(Class::Read, "node-1", true).unwrap();
        assert_eq!(limits.running(Class::Read), 4);
        drop(first);
        let again = enter(Class::Read, "alice", false).unwrap();
        drop((again, _second, _write, _parked, _bob, _node));
        assert_eq!(Class::ALL.map(|class| limits.running(class)), [0; 4]);
        assert!(limits.counts().callers.is_empty());
    }
}
