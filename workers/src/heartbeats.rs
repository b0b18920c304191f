//! When each node was last heard of, and since when the control plane has been there to hear.
//!
//! Heartbeats are recorded by gateways with the database's clock, and ages are computed by the database, so
//! no clock of ours takes part. What *does* need care is our own absence: a heartbeat that is old because
//! nobody recorded it says nothing about its node. So the time since which recording has been observable
//! ("back") is kept beside them. It starts anew with a term, after a read that failed, and after a pause of
//! this process.

use std::collections::HashMap;
use std::time::Duration;

use horchestra_store::{ReadError, Store};
use tokio::time::Instant;

/// A copy of the heartbeats, refreshed at most once a second.
pub struct Heartbeats {
    /// Silence for longer than this counts.
    timeout: Duration,
    copy: Option<(Instant, Heard)>,
    /// Microseconds since the epoch, database clock.
    back: Option<i64>,
}

/// What was known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The moment, in microseconds since the epoch, database clock.
    pub now: i64,
    /// Since when heartbeats have been observable without a break.
    pub back: i64,
    /// The last heartbeat of each node, same unit and clock.
    pub last: HashMap<String, i64>,
    /// Microseconds of silence that count.
    pub timeout: i64,
}

impl Heard {
    /// Whether the node was heard of lately, and since the control plane is back.
    pub fn is_fresh(&self, node: &str) -> bool {
        self.last.get(node).is_some_and(|at| *at >= self.back && self.now - at <= self.timeout)
    }
}

impl Heartbeats {
    pub fn new(timeout: Duration) -> Heartbeats {
        Heartbeats { timeout, copy: None, back: None }
    }

    /// Starts over: what was observed before does not count.
    pub fn forget(&mut self) {
        self.copy = None;
        self.back = None;
    }

    /// The heartbeats, not older than a second.
    pub async fn refresh(&mut self, store: &Store) -> Result<Heard, ReadError> {
        if let Some((at, heard)) = &self.copy {
            if at.elapsed() < Duration::from_secs(1) {
                return Ok(heard.clone());
            }
            if at.elapsed() > self.timeout {
                // This process itself was stopped or starved: it was away.
                self.back = None;
            }
        }
        let rows = match store.heartbeats().await {
            Ok(rows) => rows,
            Err(error) => {
                self.forget();
                return Err(error);
            }
        };
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        let now = rows.iter().map(|row| row.at.saturating_add(micros(row.age))).max().unwrap_or(0);
        // The first look after an absence: heartbeats up to here were not watched. Without any row there is
        // no moment to count from yet.
        if self.back.is_none() && !rows.is_empty() {
            self.back = Some(now);
        }
        let back = self.back.unwrap_or(now);
        let heard = Heard {
            now,
            back,
            last: rows.into_iter().map(|row| (row.heartbeat.node, row.at)).collect(),
            timeout: micros(self.timeout),
        };
        self.copy = Some((Instant::now(), heard.clone()));
        Ok(heard)
    }
}
