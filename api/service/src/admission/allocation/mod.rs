//! What the server chooses so that no two objects have it: blocks of user ids for namespaces, user ids for
//! workloads, addresses for Services.
//!
//! Every choice is the lowest value that is free, so it follows from what is stored. What is free is read from
//! the view, which may be behind; what makes the choice safe is a claim that is stored with the object and judged
//! at that very moment. A choice that turns out to be taken makes the write be planned again on a fresh view,
//! and only if it fails time and again does its author hear of it.
//!
//! Creators at the same time would all choose the same value and all but one lose. So values that writes under
//! way in this process have chosen are set aside ([`Pending`]) until these are through, one way or the other.
//! That spares them the second round and decides nothing: writers in other processes know nothing of it.
//!
//! * **Blocks** of ids never overlap, those that authors bring along included.
//! * **Ids** that the server chose are nobody else's when they are chosen. Authors may name the id of another
//!   workload of their namespace, for two that are to share files, and are warned.
//! * **Addresses** are one Service's alone, whoever chose them.
//!
//! What was given stays with its object until that is gone; an update that does not mention it keeps it. What
//! is free again is given out again at once: a node lets go of a workload before its Application is erased.
//!
//! What a choice costs: it reads all objects whose values it must avoid, the Applications of the namespace for an
//! id, for every object that is created. That is felt from some thousands on, and is to become a set that is
//! kept up to date from one view to the next.
//!
//! Refused: a table of what is free (it would have to agree with the objects, and they are the truth), and
//! random choices (they never meet, until they do, and nobody can tell from them whose they are).

mod addresses;
mod blocks;
mod ids;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::ranges::Network;
use parking_lot::Mutex;

pub(super) use addresses::choose_address;
pub(super) use blocks::{assign_block, check_block};
pub(super) use ids::{choose_ids, confine_ids};

/// What allocation needs beside the view.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    pending: Arc<Pending>,
    /// Where Services get their addresses from.
    services: Option<Network>,
    /// Whether workloads can have a network of their own.
    pub routed: bool,
}

impl Allocator {
    pub(crate) fn new(services: Option<Network>, routed: bool) -> Allocator {
        Allocator { pending: Arc::default(), services, routed }
    }
}

/// Values that writes under way in this process have chosen, by space.
#[derive(Debug, Default)]
struct Pending {
    chosen: Mutex<HashMap<String, HashSet<u128>>>,
}

impl Pending {
    /// The first candidate that is neither in use nor set aside, set aside now.
    fn choose(
        self: &Arc<Self>,
        space: &str,
        mut candidates: impl Iterator<Item = u128>,
        in_use: impl Fn(u128) -> bool,
    ) -> Option<(u128, Reserved)> {
        let mut chosen = self.chosen.lock();
        let values = chosen.entry(space.to_owned()).or_default();
        let found = candidates.find(|value| !in_use(*value) && !values.contains(value));
        if let Some(value) = found {
            values.insert(value);
            return Some((value, Reserved { pending: Arc::clone(self), space: space.to_owned(), value }));
        }
        if values.is_empty() {
            chosen.remove(space);
        }
        None
    }
}

/// Keeps a chosen value set aside.
#[derive(Debug)]
pub(crate) struct Reserved {
    pending: Arc<Pending>,
    space: String,
    value: u128,
}

impl Reserved {
    pub(super) fn is_of(&self, space: &str) -> bool {
        self.space == space
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut chosen = self.pending.chosen.lock();
        if let Some(values) = chosen.get_mut(&self.space) {
            values.remove(&self.value);
            if values.is_empty() {
                chosen.remove(&self.space);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_set_aside_until_it_is_dropped() {
        let pending = Arc::new(Pending::default());
        let choose = || pending.choose("ids", 1..=4, |value| value == 2);
        let (one, first) = choose().unwrap();
        let (three, _second) = choose().unwrap();
        let (four, _third) = choose().unwrap();
        assert_eq!((one, three, four), (1, 3, 4));
        assert!(choose().is_none());
        assert_eq!(pending.choose("others", 1..=4, |_| false).unwrap().0, 1);
        drop(first);
        assert_eq!(choose().unwrap().0, 1);
        drop((_second, _third));
        assert!(pending.chosen.lock().is_empty(), "nothing is left behind");
    }
}
