//! Holds on pushes, as this gateway knows them.
//!
//! A hold is a row in the database, engaged by whoever found history missing there, and released by an operator. It
//! is read together with what it protects: before the index of desired state is loaded from a database (anew), and
//! with the record of a node before the first push of a session. In between it is looked at every few seconds, and when
//! something changes on a Node (an operator may have admitted it). So
//! nothing is ever pushed from a state whose holds were not read after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use horchestra_store::{Hold, Holds, ReadError};
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::desired::index::Hurry;
use crate::gate::Gate;

/// Least time between two looks that nobody waits for.
const LOOK_GAP: Duration = Duration::from_millis(100);

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
    known: RwLock<Known>,
    readings: AtomicU64,
    nudged: Notify,
}

#[derive(Debug, Default)]
struct Known {
    holds: Option<Holds>,
    /// The reading that they come from.
    reading: u64,
}

/// A look at the holds, numbered when it begins.
#[derive(Debug)]
pub struct Reading(u64);

impl HoldsKnown {
    pub fn of(&self, node: &str) -> Standing {
        match &self.known.read().holds {
            None => Standing::Unknown,
            Some(holds) => holds.of(node).map_or(Standing::Free, |hold| Standing::Held(hold.clone())),
        }
    }

    /// To be called before the holds are asked for.
    pub fn reading(&self) -> Reading {
        Reading(self.readings.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Somebody may have been released.
    pub fn nudge(&self) {
        self.nudged.notify_one();
    }

    /// Whether that is anything new. What was asked for before what is known already is old, whenever it arrives.
    fn is_news(&self, Reading(reading): &Reading, read: &Holds) -> bool {
        let mut known = self.known.write();
        if *reading < known.reading {
            return false;
        }
        known.reading = *reading;
        known.holds.as_ref() != Some(read)
    }
}

impl Gate {
    /// Takes over the holds as they were just read; sessions that are held, or no longer so, look again.
    pub fn learn_holds(&self, reading: &Reading, read: Holds) {
        if !self.holds.is_news(reading, &read) {
            return;
        }
        let sessions = self.sessions.all();
        let before: Vec<Standing> = sessions.iter().map(|session| self.holds.of(&session.node)).collect();
        {
            let mut known = self.holds.known.write();
            if known.reading != reading.0 {
                // A later one has come in between.
                return;
            }
            known.holds = Some(read);
        }
        for (session, before) in sessions.iter().zip(before) {
            if self.holds.of(&session.node) != before {
                session.bell.ring(Hurry::Urgent);
            }
        }
    }

    /// Reads the holds.
    pub async fn read_holds(&self) -> Result<(), ReadError> {
        let reading = self.holds.reading();
        let read = self.store.holds().await?;
        self.learn_holds(&reading, read);
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
            _ = look.tick() => {}
            () = gate.holds.nudged.notified() => {}
        }
        if let Err(error) = gate.read_holds().await {
            tracing::debug!(%error, "the holds could not be read");
        }
        sleep(LOOK_GAP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_earlier_never_replaces_what_is_known() {
        let known = HoldsKnown::default();
        let hold = Hold { id: uuid::Uuid::nil(), since: 0, reason: "why".to_owned(), message: String::new() };
        let held = Holds { cluster: Some(hold), ..Holds::default() };
        let (early, late) = (known.reading(), known.reading());
        assert!(known.is_news(&late, &held));
        known.known.write().holds = Some(held.clone());
        assert!(!known.is_news(&early, &Holds::default()), "asked for before the hold was engaged");
        assert!(!known.is_news(&late, &held), "known already");
        assert!(known.is_news(&known.reading(), &Holds::default()), "released");
    }
}
