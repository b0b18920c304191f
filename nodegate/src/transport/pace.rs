//! A token bucket, so that a fleet that comes back all at once is taken in at a rate that handshakes and
//! claims can be served at. Refusing early and cheaply is kinder than accepting late: agents dial again
//! after a fixed wait whatever they are told.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Up to `burst` at once, `rate` a second in the long run.
#[derive(Debug)]
pub struct Pace {
    rate: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl Pace {
    /// `rate` = permits per second, also the size of the bucket (at least one).
    pub fn per_second(rate: u32) -> Pace {
        let rate = f64::from(rate.max(1));
        Pace { rate, burst: rate, state: Mutex::new((rate, Instant::now())) }
    }

    /// Takes a permit if there is one.
    pub fn try_take(&self) -> bool {
        let mut state = self.state.lock();
        self.refill(&mut state);
        if state.0 >= 1.0 {
            state.0 -= 1.0;
            true
        } else {
            false
        }
    }

    /// Waits for a permit.
    pub async fn take(&self) {
        while !self.try_take() {
            let missing = {
                let mut state = self.state.lock();
                self.refill(&mut state);
                (1.0 - state.0).max(0.0)
            };
            tokio::time::sleep(Duration::from_secs_f64((missing / self.rate).max(0.001))).await;
        }
    }

    fn refill(&self, state: &mut (f64, Instant)) {
        let now = Instant::now();
        let gained = now.saturating_duration_since(state.1).as_secs_f64() * self.rate;
        *state = ((state.0 + gained).min(self.burst), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_served_and_what_follows_is_paced() {
        let pace = Pace::per_second(10);
        assert_eq!((0..20).filter(|_| pace.try_take()).count(), 10);
        let before = Instant::now();
        for _ in 0..10 {
            pace.take().await;
        }
        assert!(before.elapsed() >= Duration::from_millis(990), "ten more take a second");
    }
}
