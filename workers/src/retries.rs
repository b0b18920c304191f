//! When to try again what failed, one by one: nobody waits because another one fails.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// The first wait; doubles with every failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct Failing {
    times: u32,
    due: Instant,
}

/// What has failed lately.
#[derive(Debug)]
pub struct Retries<K> {
    failing: HashMap<K, Failing>,
}

impl<K> Default for Retries<K> {
    fn default() -> Retries<K> {
        Retries { failing: HashMap::new() }
    }
}

impl<K: Eq + Hash> Retries<K> {
    /// Whether it may be tried now.
    pub fn is_due(&self, key: &K, now: Instant) -> bool {
        self.failing.get(key).is_none_or(|failing| failing.due <= now)
    }

    pub fn succeeded(&mut self, key: &K) {
        self.failing.remove(key);
    }

    /// Answers how long to wait.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failing = self.failing.entry(key).or_insert(Failing { times: 0, due: now });
        let wait = FIRST.saturating_mul(1 << failing.times.min(16)).min(LONGEST);
        *failing = Failing { times: failing.times + 1, due: now + wait };
        wait
    }

    /// How long until the next one may be tried; `None`: nothing failed.
    pub fn next_due(&self, now: Instant) -> Option<Duration> {
        self.failing.values().map(|failing| failing.due.saturating_duration_since(now)).min()
    }

    pub fn forget_all_but(&mut self, known: impl Fn(&K) -> bool) {
        self.failing.retain(|key, _| known(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_end_with_a_success() {
        let mut retries = Retries::default();
        let now = Instant::now();
        assert!(retries.is_due(&"a", now) && retries.next_due(now).is_none());
        let waits: Vec<u64> = (0..12).map(|_| retries.failed("a", now).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        retries.failed("b", now);
        assert!(!retries.is_due(&"b", now) && retries.is_due(&"c", now));
        assert!(retries.is_due(&"b", now + FIRST) && !retries.is_due(&"a", now + FIRST));
        assert_eq!(retries.next_due(now), Some(FIRST));
        retries.succeeded(&"a");
        assert!(retries.is_due(&"a", now));
        retries.forget_all_but(|key| *key != "b");
        assert!(retries.is_due(&"b", now) && retries.next_due(now).is_none());
    }
}
