//! Telling all nodes what has changed in the fleet.
//!
//! What all nodes are sent follows the fleet at a distance: the first change after a quiet time goes out at once, and
//! what comes within a while after it goes out together, since each publication costs a message to every node. A node
//! that is pushed to meanwhile for its own sake gets what was published last, so that within one publication all
//! nodes are told the same.

use std::collections::HashSet;
use std::sync::Arc;

use horchestra_core::kind::Key;
use tokio_util::sync::CancellationToken;

use super::index::Hurry;
use crate::events;
use crate::gate::Gate;

/// Publishes until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = gate.index.fleet_moved() => {}
        }
        if gate.index.publish(gate.settings.fleet_limit) {
            gate.metrics.fleet_published.inc();
            for session in gate.sessions.all() {
                session.bell.ring(Hurry::Fleet);
            }
        }
        gate.tell_fleet_faults();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(gate.settings.fleet_gap) => {}
        }
    }
}

impl Gate {
    /// Tells people of what cannot be sent, where it is news. Every gateway finds the same; their Events are one.
    pub(super) fn tell_fleet_faults(&self) {
        let faults = self.index.fleet_faults();
        for (key, why) in &faults {
            if self.fleet_told.is_new(&key.to_string(), why) {
                events::left_out(self, key, why);
            }
        }
        let left_out = self.index.published().left_out;
        if left_out > 0 && self.fleet_told.is_new("size", "too large") {
            tracing::error!(
                left_out,
                "there are more routes and rules than nodes take; the last ones are left out"
            );
        }
        if left_out == 0 {
            self.fleet_told.forget("size");
        }
        let about: HashSet<String> = faults.keys().map(Key::to_string).collect();
        self.fleet_told.keep(|subject| subject == "size" || about.contains(subject));
    }
}
