//! Asking a session to look whether its node needs a push.
//!
//! Rings are coalesced: however many come, the session looks once. A node that was left alone for a while
//! is served at once; after a push the next one waits a little, so that a burst of changes becomes a few
//! pushes (an agent works on one push at a time and throws away all but the newest anyway). A forced ring
//! makes the session send even if nothing changed.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::index::Hurry;

/// What a session found on its bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    pub hurry: Hurry,
    pub forced: bool,
}

/// The bell of one session.
#[derive(Default)]
pub struct Bell {
    state: Mutex<Option<Rung>>,
    rung: Notify,
}

impl Bell {
    pub fn ring(&self, hurry: Hurry) {
        self.add(Rung { hurry, forced: false });
    }

    /// Rings for a push whether anything changed or not.
    pub fn force(&self) {
        self.add(Rung { hurry: Hurry::Normal, forced: true });
    }

    /// Waits until there is more to say than what is new in the fleet; leaves the ring.
    pub async fn more_than_fleet(&self) {
        loop {
            let rung = self.rung.notified();
            if self.state.lock().is_some_and(|waiting| waiting.forced || waiting.hurry > Hurry::Fleet) {
                return;
            }
            rung.await;
        }
    }

    fn add(&self, ring: Rung) {
        let mut state = self.state.lock();
        *state = Some(match *state {
            None => ring,
            Some(other) => Rung { hurry: other.hurry.max(ring.hurry), forced: other.forced || ring.forced },
        });
        drop(state);
        self.rung.notify_one();
    }

    /// Waits until the bell was rung and the node may be pushed to again; takes the ring.
    pub async fn due(&self, last_push: Option<Instant>, gap: Duration, urgent_gap: Duration) -> Rung {
        loop {
            let rung = self.rung.notified();
            let Some(waiting) = *self.state.lock() else {
                rung.await;
                continue;
            };
            let gap = if waiting.hurry == Hurry::Urgent { urgent_gap } else { gap };
            let at = last_push.map(|last| last + gap);
            match at {
                Some(at) if Instant::now() < at => {
                    // Another ring may bring the moment forward.
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = rung => {}
                    }
                }
                _ => {
                    if let Some(taken) = self.state.lock().take() {
                        return taken;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(200);
    const URGENT: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn a_quiet_node_is_served_at_once_and_a_burst_is_gathered() {
        let bell = Bell::default();
        let start = Instant::now();
        bell.ring(Hurry::Normal);
        assert_eq!(bell.due(None, GAP, URGENT).await, Rung { hurry: Hurry::Normal, forced: false });
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..1000 {
            bell.ring(Hurry::Normal);
        }
        bell.due(Some(start), GAP, URGENT).await;
        assert_eq!(start.elapsed(), GAP);
        let next = tokio::time::timeout(GAP * 10, bell.due(Some(start), GAP, URGENT)).await;
        assert!(next.is_err(), "the burst was one ring");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_brings_a_waiting_push_forward() {
        let bell = std::sync::Arc::new(Bell::default());
        let start = Instant::now();
        bell.ring(Hurry::Normal);
        let waiting = {
            let bell = std::sync::Arc::clone(&bell);
            tokio::spawn(async move { bell.due(Some(start), GAP, URGENT).await })
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
        bell.ring(Hurry::Urgent);
        bell.force();
        assert_eq!(waiting.await.unwrap(), Rung { hurry: Hurry::Urgent, forced: true });
        assert_eq!(start.elapsed(), URGENT);
    }
}
