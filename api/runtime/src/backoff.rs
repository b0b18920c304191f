//! Growing, jittered, capped pauses between attempts.

use std::time::Duration;

use rand::Rng;

/// Each pause is drawn between half of the current step and the whole of it; the step doubles up to the
/// cap. Half of it is certain, so that a failing peer gets air; the other half is random, so that many
/// clients that failed together do not return together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    step: Duration,
}

impl Backoff {
    pub fn new(first: Duration, cap: Duration) -> Backoff {
        let first = first.min(cap);
        Backoff { first, cap, step: first }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let step = self.step;
        self.step = step.saturating_mul(2).min(self.cap);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// After a success: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.step = self.first;
    }

    /// The longest pause.
    pub fn cap(&self) -> Duration {
        self.cap
    }
}

impl Default for Backoff {
    /// From 100 ms to 10 s.
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(100), Duration::from_secs(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_within_their_bounds_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        for step in [100, 200, 400, 500, 500] {
            let pause = backoff.pause();
            let step = Duration::from_millis(step);
            assert!(pause >= step / 2 && pause <= step, "{pause:?} for a step of {step:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(100));
    }

    #[test]
    fn a_first_step_above_the_cap_is_the_cap() {
        let mut backoff = Backoff::new(Duration::from_secs(9), Duration::from_secs(1));
        assert!(backoff.pause() <= Duration::from_secs(1));
    }
}
