//! A token bucket, so that a fleet that comes back all at once is taken in at a rate that handshakes and
//! claims can be served at. Refusing early and cheaply is kinder than accepting late: agents dial again
//! after a fixed wait whatever they are told.
//!
//! Whoever waits is told at once for how long: permits are promised in the order in which they are asked for,
//! and each waiter wakes once, however many there are.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Up to `burst` at once, `rate` a second in the long run.
#[derive(Debug)]
pub struct Pace {
    rate: f64,
    burst: f64,
    /// Permits that are there (less than none: promised), and when that was so.
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
        self.promise(Duration::ZERO).is_some()
    }

    /// Waits for a permit; `false`, at once, if that would take longer than this.
    pub async fn take_within(&self, longest: Duration) -> bool {
        match self.promise(longest) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                true
            }
            None => false,
        }
    }

    /// A permit, and for how long to wait for it.
    fn promise(&self, longest: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let gained = now.saturating_duration_since(state.1).as_secs_f64() * self.rate;
        let there = (state.0 + gained).min(self.burst);
        let wait = Duration::from_secs_f64(((1.0 - there) / self.rate).max(0.0));
        let granted = wait <= longest;
        *state = (if granted { there - 1.0 } else { there }, now);
        granted.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_served_and_what_follows_is_paced() {
        let pace = Pace::per_second(10);
        assert_eq!((0..20).filter(|_| pace.try_take()).count(), 10);
        let before = Instant::now();
        let long = Duration::from_secs(60);
        assert!(join_all((0..10).map(|_| pace.take_within(long))).await.into_iter().all(|taken| taken));
        assert!(before.elapsed() >= Duration::from_millis(990), "ten more take a second");
        assert!(before.elapsed() < Duration::from_millis(1100), "and no longer");
    }

    #[tokio::test(start_paused = true)]
    async fn who_would_wait_for_too_long_is_told_at_once_and_takes_nothing() {
        let pace = Pace::per_second(10);
        let before = Instant::now();
        let second = Duration::from_secs(1);
        let taken = join_all((0..100).map(|_| pace.take_within(second))).await;
        assert_eq!(
            taken.into_iter().filter(|taken| *taken).count(),
            20,
            "the bucket, and what a second brings"
        );
        assert!(before.elapsed() < second + Duration::from_millis(100));
        tokio::time::sleep(second).await;
        assert_eq!((0..20).filter(|_| pace.try_take()).count(), 10);
    }
}
