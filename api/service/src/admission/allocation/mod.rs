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
//! What was given stays with its object until that is gone; an update that does not mention it keeps it. An id that
//! is free again is given out again at once: a node lets go of a workload before its Application is erased. The
//! address of a Service rests for ten minutes first, since there are clients that have it in mind, unless no other is
//! left. The database remembers when addresses became free, so that a process that starts knows it, too; authors may
//! name one that rests.
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
use std::time::Duration;

use horchestra_core::ranges::Network;
use horchestra_store::Store;
use tokio::sync::OnceCell;

use super::services::ADDRESSES;
use held::Held;

pub(super) use addresses::choose_address;
pub(super) use blocks::{SPACE as BLOCK_SPACE, assign_block, check_block};
pub(crate) use held::Reserved;
pub(super) use ids::{choose_ids, confine_ids, space as id_space};

/// How long the address of a Service rests before it is another one's.
const REST: Duration = Duration::from_secs(600);

/// What allocation needs beside the view.
#[derive(Debug)]
pub(crate) struct Allocator {
    held: Arc<Held>,
    /// Where Services get their addresses from.
    services: Option<Network>,
    /// Whether workloads can have a network of their own.
    pub routed: bool,
    /// What was given back before this process saw it is known.
    remembered: OnceCell<()>,
}

impl Allocator {
    pub(crate) fn new(services: Option<Network>, routed: bool) -> Allocator {
        Allocator { held: Arc::new(Held::new(services)), services, routed, remembered: OnceCell::new() }
    }

    /// Learns which addresses of Services became free before this process could see it; asked before the first choice.
    /// A database that cannot be asked is asked again the next time.
    pub(crate) async fn remember(&self, store: &Store) {
        if self.services.is_none() {
            return;
        }
        let asked = self.remembered.get_or_try_init(|| async {
            // In this order: what is given back in between shows in both.
            self.held.see(&store.snapshot());
            store.released_claims(ADDRESSES, REST).await.map(|released| self.held.rest(&released))
        });
        if let Err(error) = asked.await {
            tracing::debug!(%error, "which addresses became free lately is not known yet");
        }
    }
}
