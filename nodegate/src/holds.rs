//! Holds on pushes, as this gateway knows them.
//!
//! A hold is a row in the database, engaged by whoever found history missing there, and released by an operator. It
//! is read together with what it protects: before the index of desired state is loaded from a database (anew), and
//! with the record of a node before the first push of a session. In between it is looked at every few seconds. So
//! nothing is ever pushed from a state whose holds were not read after it.

use std::sync::Arc;

use horchestra_store::{Hold, Holds, ReadError};
use parking_lot::RwLock;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::desired::index::Hurry;
use crate::gate::Gate;

/// Whether a node may be pushed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The holds have not been read yet.
    Unknown,
    Free,
    Held(Hold),
}

/// The holds that were read last.
#[derive(Debug, Default)]
pub struct HoldsKnown {
    known: RwLock<Option<Holds>>,
}

impl HoldsKnown {
    pub fn of(&self, node: &str) -> Standing {
        match &*self.known.read() {
            None => Standing::Unknown,
            Some(holds) => holds.of(node).map_or(Standing::Free, |hold| Standing::Held(hold.clone())),
        }
    }

    /// Takes over what was read; whether it is anything new.
    fn take(&self, read: Holds) -> bool {
        let mut known = self.known.write();
        let news = known.as_ref() != Some(&read);
        *known = Some(read);
        news
    }
}

impl Gate {
    /// Takes over the holds as they were just read; sessions that are held, or no longer so, look again.
    pub fn learn_holds(&self, read: Holds) {
        let sessions = self.sessions.all();
        let before: Vec<Standing> = sessions.iter().map(|session| self.holds.of(&session.node)).collect();
        if !self.holds.take(read) {
            return;
        }
        for (session, before) in sessions.iter().zip(before) {
            if self.holds.of(&session.node) != before {
                session.bell.ring(Hurry::Urgent);
            }
        }
    }

    /// Reads the holds.
    pub async fn read_holds(&self) -> Result<(), ReadError> {
        let read = self.store.holds().await?;
        self.learn_holds(read);
        Ok(())
    }

    /// How many of this gateway's nodes are held.
    pub fn held_sessions(&self) -> usize {
        let held = |node: &str| matches!(self.holds.of(node), Standing::Held(_));
        self.sessions.all().iter().filter(|session| held(&session.node)).count()
    }
}

/// Looks at the holds now and then, until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    let mut look = interval(gate.settings.holds_every);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {
                if let Err(error) = gate.read_holds().await {
                    tracing::debug!(%error, "the holds could not be read");
                }
            }
        }
    }
}
