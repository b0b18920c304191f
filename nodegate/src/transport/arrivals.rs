//! Connections that have not said yet what they are.
//!
//! Anybody may open one, so their number is bounded, and whoever says nothing must not keep others out: when
//! there are too many, the one that has been silent for longest goes. A client that means it has said what it
//! wants after a round trip, so it takes a flood of more than the limit within that time to hit one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The connections that have just arrived.
#[derive(Clone, Debug)]
pub struct Arrivals {
    limit: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// In the order of their arrival.
    by_number: BTreeMap<u64, CancellationToken>,
}

/// A place among them, until it is dropped.
#[derive(Debug)]
pub struct Place {
    arrivals: Arrivals,
    number: u64,
    displaced: CancellationToken,
}

impl Arrivals {
    pub fn new(limit: usize) -> Arrivals {
        Arrivals { limit: limit.max(1), waiting: Arc::default() }
    }

    /// A place for one more; the oldest loses its own if there is none left.
    pub fn enter(&self) -> Place {
        let displaced = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.by_number.insert(number, displaced.clone());
        if waiting.by_number.len() > self.limit
            && let Some((_, oldest)) = waiting.by_number.pop_first()
        {
            oldest.cancel();
        }
        Place { arrivals: self.clone(), number, displaced }
    }
}

impl Place {
    /// Returns when another connection has taken the place.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.arrivals.waiting.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let arrivals = Arrivals::new(2);
        let is_displaced = |place: &Place| place.displaced().now_or_never().is_some();
        let (first, second) = (arrivals.enter(), arrivals.enter());
        assert!(!is_displaced(&first) && !is_displaced(&second));
        let third = arrivals.enter();
        assert!(is_displaced(&first) && !is_displaced(&second) && !is_displaced(&third));
        drop(third);
        let _fourth = arrivals.enter();
        assert!(!is_displaced(&second), "there was room again");
        drop((first, second));
        assert_eq!(arrivals.waiting.lock().by_number.len(), 1);
    }
}
