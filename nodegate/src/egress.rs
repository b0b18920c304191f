//! How fast the gateway tells the fleet what concerns all of it.
//!
//! A route that comes or goes is sent to every node, so it costs as many messages as there are nodes, each with the
//! whole table. Those wait for a turn here: first come, first served, at a rate in bytes. What concerns one node does
//! not wait; it is counted, so that the others wait for it. Whoever waits sends what is so when its turn comes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// How much may be sent at once after a quiet time, in seconds of the rate.
const BURST: f64 = 1.0;

struct Account {
    /// Bytes that may be sent; negative: that were sent ahead of time.
    balance: f64,
    at: Instant,
}

/// The budget.
pub struct Egress {
    /// Bytes per second.
    rate: f64,
    account: Mutex<Account>,
    /// Held by whoever is next.
    turn: tokio::sync::Mutex<()>,
}

impl Egress {
    pub fn bytes_per_second(rate: u64) -> Egress {
        // Exact below 2^53, which is more than any network has.
        let rate = rate.max(1) as f64;
        Egress {
            rate,
            account: Mutex::new(Account { balance: rate * BURST, at: Instant::now() }),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Counts bytes that are sent without waiting.
    pub fn spend(&self, bytes: usize) {
        self.account.lock().balance -= bytes as f64;
    }

    /// Waits for a turn to send so many bytes. Giving up costs nothing.
    pub async fn turn(&self, bytes: usize) {
        let _next = self.turn.lock().await;
        loop {
            let wait = {
                let mut account = self.account.lock();
                let now = Instant::now();
                let refilled = (now - account.at).as_secs_f64() * self.rate;
                account.balance = (account.balance + refilled).min(self.rate * BURST);
                account.at = now;
                if account.balance > 0.0 {
                    account.balance -= bytes as f64;
                    return;
                }
                // At least a moment, lest rounding makes it none.
                Duration::from_secs_f64(-account.balance / self.rate).max(Duration::from_millis(1))
            };
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_come_at_the_rate_and_in_order() {
        let egress = Egress::bytes_per_second(1000);
        let start = Instant::now();
        egress.turn(1500).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "after a quiet time at once");
        let order = Mutex::new(Vec::new());
        let take = async |name| {
            egress.turn(1000).await;
            order.lock().push((name, start.elapsed().as_millis() / 100));
        };
        tokio::join!(take("a"), take("b"), take("c"));
        assert_eq!(*order.lock(), [("a", 5), ("b", 15), ("c", 25)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_wait_is_counted_and_who_gives_up_is_not() {
        let egress = Egress::bytes_per_second(1000);
        egress.spend(3000);
        let start = Instant::now();
        let given_up = tokio::time::timeout(Duration::from_millis(100), egress.turn(50_000)).await;
        assert!(given_up.is_err());
        egress.turn(1).await;
        assert_eq!(start.elapsed().as_millis() / 100, 20);
    }
}
