//! Keeps the index current, one feed for all sessions of this process.
//!
//! The store's watchers deliver every change exactly once and in order, those of all kinds together ([`Merged`]),
//! and say when they cannot; then the index is loaded anew and every session looks at its node again. Until an index
//! is loaded, also after one that missed something, nothing is pushed to anybody. How far the index is, is told to
//! sessions that ask.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::{Change, ReadError, WatchEnd};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::merge::Merged;
use crate::addresses;
use crate::gate::Gate;

/// What desired state is made of.
pub const KINDS: [Kind; 6] =
    [Kind::Node, Kind::PersistentVolume, Kind::Secret, Kind::SecretStore, Kind::Service, Kind::Application];

/// Pause before a feed that broke is started again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Least time between two looks at how far the watchers are, so that many askers do not keep them from
/// their work.
const LOOK_GAP: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("loading: {0}")]
    Load(#[from] ReadError),
    #[error("the change log is no longer followed")]
    Expired,
    #[error("the store was shut down")]
    Closed,
}

impl From<WatchEnd> for Broken {
    fn from(end: WatchEnd) -> Broken {
        match end {
            WatchEnd::Expired { .. } => Broken::Expired,
            WatchEnd::Closed => Broken::Closed,
        }
    }
}

/// Follows the change log until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    loop {
        let broken = tokio::select! {
            () = stop.cancelled() => return,
            broken = follow(&gate) => broken,
        };
        gate.index.unload();
        match broken {
            Broken::Closed => return,
            broken => tracing::warn!(%broken, "the feed of desired state starts again"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN_AFTER) => {}
        }
    }
}

async fn follow(gate: &Gate) -> Broken {
    let Err(broken) = try_follow(gate).await;
    broken
}

async fn try_follow(gate: &Gate) -> Result<std::convert::Infallible, Broken> {
    let snapshot = gate.store.fresh().await?;
    let mut feed = Merged::new(&gate.store, &KINDS, snapshot.revision())?;
    // Before anything can be pushed from it: it may be of a database that has lost something.
    gate.read_holds().await?;
    let leases = addresses::known(gate, &snapshot).await?;
    gate.index.load(&snapshot, leases, gate.settings.fleet_limit);
    gate.tell_fleet_faults();
    tracing::info!(revision = snapshot.revision(), "desired state loaded");
    drop(snapshot);
    gate.look_again();
    let mut looked_at: Option<Instant> = None;
    loop {
        let changes = tokio::select! {
            // The feed first: only one that was polled knows how far it is.
            biased;
            changes = feed.next() => changes?,
            () = asked(gate, looked_at) => {
                looked_at = Some(Instant::now());
                Vec::new()
            }
        };
        for change in &changes {
            gate.addresses.consider(change);
            if change.object_kind() == Kind::Secret {
                gate.opened.forget(change.key());
            }
        }
        let rings = gate.index.apply(&changes);
        let of_node = |change: &Change| {
            change.object_kind() == Kind::Node && rings.iter().any(|ring| ring.node == change.key().name)
        };
        if changes.iter().any(of_node) {
            // It may have been released, or held.
            gate.holds.nudge();
        }
        for ring in rings {
            if let Some(session) = gate.sessions.get(&ring.node) {
                session.bell.ring(ring.hurry);
            }
        }
        gate.index.note_reached(feed.progress());
    }
}

async fn asked(gate: &Gate, looked_at: Option<Instant>) {
    gate.index.asked().await;
    if let Some(at) = looked_at {
        sleep_until(at + LOOK_GAP).await;
    }
}
