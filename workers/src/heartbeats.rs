//! When each node was last heard of, and since when the control plane has been there to hear.
//!
//! Heartbeats are recorded by gateways with the database's clock, and ages are computed by the database, so
//! no clock of ours takes part. What *does* need care is our own absence: a heartbeat that is old because
//! nobody recorded it says nothing about its node. So the time since which recording has been observable
//! ("back") is kept beside them. It starts anew with a term, after a read that failed, after a pause of
//! this process, and when the database's clock was set: ages across such a moment say nothing. A leader that gives its
//! lease up leaves a [`Watch`] to the next one, for whom "back" then stays where it was: somebody has been watching.
//!
//! Gateways are the ones who hear. While not a single one of them is within its term, nobody is silent: what counts
//! as silence begins when one is back ("listening").
//!
//! A heartbeat that lies in the future was recorded before the clock was set back. It shows that the node was
//! heard of once, and not when.

use std::collections::HashMap;
use std::time::Duration;

use horchestra_store::store::HeartbeatRow;
use horchestra_store::{ReadError, Store};
use serde_json::Value;
use tokio::time::Instant;

/// Microseconds by which a heartbeat may be ahead of the query that finds it.
const AHEAD: i64 = 1_000_000;
/// When a heartbeat counts as recorded that may have been at any time.
const LONG_AGO: i64 = 0;

/// A copy of the heartbeats, refreshed at most once a second.
pub struct Heartbeats {
    /// Silence for longer than this counts.
    timeout: Duration,
    copy: Option<(Instant, Heard)>,
    /// Microseconds since the epoch, database clock.
    back: Option<i64>,
    /// The last moment at which no gateway was there; same unit and clock.
    unserved: Option<i64>,
    /// What a leader before has seen, until the first look of our own.
    inherited: Option<Watch>,
}

/// What somebody saw who watched heartbeats without a break, as it is left to the next leader; all in microseconds since
/// the epoch, database clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Watch {
    /// Until when.
    pub seen: i64,
    /// Since when.
    pub back: i64,
    /// The last moment at which no gateway was there.
    pub unserved: Option<i64>,
}

/// What was known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The moment, in microseconds since the epoch, database clock.
    pub now: i64,
    /// Since when heartbeats have been observable without a break.
    pub back: i64,
    /// Since when, not before `back`, a gateway has been there to hear of nodes.
    pub listening: i64,
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
        Heartbeats { timeout, copy: None, back: None, unserved: None, inherited: None }
    }

    /// Starts over: what was observed before does not count.
    pub fn forget(&mut self) {
        *self = Heartbeats::new(self.timeout);
    }

    /// What was seen up to the last look; `None`: nothing, or a look failed since.
    pub fn hand_over(&self) -> Option<Value> {
        let watch = match &self.copy {
            Some((at, _)) if at.elapsed() > self.timeout => return None,
            Some((at, heard)) => Watch {
                seen: heard.now.saturating_add(micros(at.elapsed())),
                back: self.back?,
                unserved: self.unserved,
            },
            // There was no time for a look.
            None => self.inherited?,
        };
        serde_json::to_value(watch).ok()
    }

    /// Goes on where the leader before has stopped, if the next look comes soon enough after that one's last.
    pub fn take_over(&mut self, handover: Value) {
        self.inherited = serde_json::from_value(handover).ok();
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
        // Without any row there is no moment to count from yet.
        let now = rows.iter().map(|row| row.now).max().unwrap_or(0);
        if self.was_clock_set(now) {
            tracing::warn!(
                "the clock of the database was set; every node gets the full ready timeout from now"
            );
            self.back = None;
            self.unserved = None;
        }
        if rows.iter().any(|row| !row.served) {
            self.unserved = Some(now);
        }
        // What happened in between is unknown, so no more may lie there than would be noticed of a clock.
        if let Some(watch) = self.inherited.take()
            && now.abs_diff(watch.seen) <= micros(self.timeout / 3).unsigned_abs()
        {
            self.back = Some(watch.back);
            self.unserved = self.unserved.max(watch.unserved);
        }
        // The first look after an absence: heartbeats up to here were not watched.
        if self.back.is_none() && !rows.is_empty() {
            self.back = Some(now);
        }
        let back = self.back.unwrap_or(now);
        let at = |row: &HeartbeatRow| if row.at > now + AHEAD { LONG_AGO } else { row.at };
        let heard = Heard {
            now,
            back,
            listening: self.unserved.map_or(back, |unserved| unserved.max(back)),
            last: rows.iter().map(|row| (row.heartbeat.node.clone(), at(row))).collect(),
            timeout: micros(self.timeout),
        };
        self.copy = Some((Instant::now(), heard.clone()));
        Ok(heard)
    }

    /// Whether the database's clock has moved otherwise than time has, by more than could be taken for silence.
    fn was_clock_set(&self, now: i64) -> bool {
        let Some((at, heard)) = self.copy.as_ref().filter(|(_, heard)| heard.now > 0) else { return false };
        let expected = heard.now.saturating_add(micros(at.elapsed()));
        now.abs_diff(expected) > micros(self.timeout / 3).unsigned_abs()
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
