//! What the server chooses so that no two objects have it: blocks of user ids for namespaces, user ids for
//! workloads, addresses for Services.
//!
//! Every choice is the lowest value that is free, so it follows from what is stored. What is free is read from
//! the view, which may be behind; what makes the choice safe is a claim that is stored with the object and judged
//! at that very moment. A choice that turns out to be taken makes the write be planned again on a fresh view,
//! and only if it fails time and again does its author hear of it.
//!
//! Creators at the same time would all choose the same value and all but one lose. So values that writes under
//! way in this process have chosen are set aside ([`Reserved`]) until these are through, one way or the other.
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
//! What a choice costs: the numbers that objects hold are kept up to date from one view to the next ([`held`]), so
//! it costs what has changed since the choice before, whatever the namespace holds already.
//!
//! Refused: a table of what is free (it would have to agree with the objects, and they are the truth), and
//! random choices (they never meet, until they do, and nobody can tell from them whose they are).

mod addresses;
mod blocks;
mod held;
mod ids;
mod pool;

use std::sync::Arc;

use horchestra_core::ranges::Network;

use held::Held;

pub(super) use addresses::choose_address;
pub(super) use blocks::{SPACE as BLOCK_SPACE, assign_block, check_block};
pub(crate) use held::Reserved;
pub(super) use ids::{choose_ids, confine_ids, space as id_space};

/// What allocation needs beside the view.
#[derive(Debug)]
pub(crate) struct Allocator {
    held: Arc<Held>,
    /// Where Services get their addresses from.
    services: Option<Network>,
    /// Whether workloads can have a network of their own.
    pub routed: bool,
}

impl Allocator {
    pub(crate) fn new(services: Option<Network>, routed: bool) -> Allocator {
        Allocator { held: Arc::new(Held::new(services)), services, routed }
    }
}
