//! The first thing that a node says of itself in a session.
//!
//! Agents say it at once. What matters about it is which units the node holds, if its agent is one that says so: they
//! must not be destroyed by a first push of somebody who has never heard of them. So the first push waits for it, a
//! little.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

/// See the module's essay.
pub struct FirstReport {
    units: watch::Sender<Option<Vec<Uuid>>>,
}

impl Default for FirstReport {
    fn default() -> FirstReport {
        FirstReport { units: watch::Sender::new(None) }
    }
}

impl FirstReport {
    /// A report has come; only the first one counts.
    pub fn hear(&self, units: &[Uuid]) {
        self.units.send_if_modified(|heard| {
            let first = heard.is_none();
            if first {
                *heard = Some(units.to_vec());
            }
            first
        });
    }

    /// What the node holds as far as it has said by then.
    pub async fn units(&self, patience: Duration) -> Vec<Uuid> {
        let mut heard = self.units.subscribe();
        // The sender lives as long as `self`.
        let _ = timeout(patience, heard.wait_for(Option::is_some)).await.map(|_| ());
        heard.borrow().clone().unwrap_or_default()
    }
}
