//! A server that answers and takes no writes: a standby, one that is set to read only, one whose disk is full. Reading
//! goes on, so nothing else would say so. It is said once, with what to do, and again when it is over.
//!
//! A full disk refuses one write and finds room for another. So it counts as over only once a write has gone through and
//! none was refused for a while.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{PostgresBackend, errors};
use crate::backend::{BackendError, Unwritable};

/// For how long no write may have been refused.
const CALM: Duration = Duration::from_secs(10);

/// Whether writes are refused.
#[derive(Default)]
pub(super) struct Writes(Mutex<Option<Refused>>);

#[derive(Clone, Copy)]
struct Refused {
    why: Unwritable,
    since: Instant,
    last: Instant,
}

impl Writes {
    /// Why, while they are.
    pub fn refused(&self) -> Option<Unwritable> {
        self.0.lock().map(|refused| refused.why)
    }

    fn refuse(&self, why: Unwritable, now: Instant) {
        let mut state = self.0.lock();
        let before = state.filter(|refused| refused.why == why);
        *state = Some(Refused { why, since: before.map_or(now, |refused| refused.since), last: now });
        drop(state);
        if before.is_none() {
            match why {
                Unwritable::ReadOnly => tracing::error!(
                    "the database answers and takes no writes, since it is read only: it is a standby, or \
                     default_transaction_read_only is on. Promote it, set that off, or name the primary with \
                     --database-url. Reading goes on, and nothing has to be restarted"
                ),
                Unwritable::Full => tracing::error!(
                    "the database answers and takes no writes, since its disk is full: make room (what takes it: \
                     replication slots that nobody reads, archives of the write-ahead log, logs, other databases). \
                     Reading goes on, and nothing has to be restarted"
                ),
            }
        }
    }

    fn took(&self, now: Instant) {
        let mut state = self.0.lock();
        let Some(refused) = state.take_if(|refused| now.duration_since(refused.last) >= CALM) else { return };
        drop(state);
        tracing::info!(
            refused_s = now.duration_since(refused.since).as_secs(),
            "the database takes writes again"
        );
    }
}

impl PostgresBackend {
    /// What came of a statement that changes something.
    pub(super) fn written<T>(&self, outcome: Result<T, sqlx::Error>) -> Result<T, BackendError> {
        match &outcome {
            Ok(_) => self.writes.took(Instant::now()),
            Err(error) => {
                if let Some(why) = errors::unwritable(error) {
                    self.writes.refuse(why, Instant::now());
                }
            }
        }
        outcome.map_err(errors::of_change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_nothing_was_refused_for_a_while_and_something_was_written() {
        let (writes, start) = (Writes::default(), Instant::now());
        writes.took(start);
        assert_eq!(writes.refused(), None);
        writes.refuse(Unwritable::Full, start);
        writes.took(start);
        assert_eq!(writes.refused(), Some(Unwritable::Full), "another write found room");
        writes.refuse(Unwritable::Full, start + CALM);
        writes.took(start + CALM);
        assert_eq!(writes.refused(), Some(Unwritable::Full));
        writes.took(start + 2 * CALM);
        assert_eq!(writes.refused(), None);
        writes.refuse(Unwritable::ReadOnly, start);
        writes.refuse(Unwritable::Full, start);
        assert_eq!(writes.refused(), Some(Unwritable::Full), "the last word counts");
    }
}
