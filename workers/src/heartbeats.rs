//! When each node was last heard of, and since when the control plane has been there to hear.
//!
//! Heartbeats are recorded by gateways with the database's clock, and ages are computed by the database, so
//! no clock of ours takes part. What *does* need care is our own absence: a heartbeat that is old because
//! nobody recorded it says nothing about its node. So the time since which recording has been observable
//! ("back") is kept beside them. It starts anew with a term, after a read that failed, after a pause of
//! this process, and when the database's clock was set: silence across such a moment says nothing.
//!
//! Gateways are the ones who hear. While not a single one of them is within its term, nobody is silent: what counts
//! as silence begins when one is back ("listening").
//!
//! Silence has to be watched; a voice has not. That a node was heard shows as well to who has only just begun to look,
//! provided that some gateway has been there without a break ever since ("since"). So a new leader places at once, and
//! gives every node the full timeout before it is called silent. Across a moment at which the clock was set nobody's word
//! counts: ages say nothing then.
//!
//! A heartbeat that lies in the future was recorded before the clock was set back. It shows that the node was
//! heard of once, and not when; nor does it once the clock has come to it.

use std::collections::HashMap;
use std::time::Duration;

use horchestra_store::store::HeartbeatRow;
use horchestra_store::{ReadError, Store};
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
    /// The last moment at which the clock was found to have been set; same unit and clock.
    set: Option<i64>,
    /// The moment of the last look, by this process's clock and by the database's.
    looked: Option<(Instant, i64)>,
    /// The heartbeats of nodes that lay in the future when they were first seen.
    ahead: HashMap<String, i64>,
}

/// What was known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The moment, in microseconds since the epoch, database clock.
    pub now: i64,
    /// Since when heartbeats have been observed without a break.
    pub back: i64,
    /// A heartbeat that is not older was heard by a control plane that has been there since: `back`, or since when a
    /// gateway has been in its term without a break, whichever is earlier.
    pub since: i64,
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
        self.last.get(node).is_some_and(|at| *at >= self.since && self.now - at <= self.timeout)
    }
}

impl Heartbeats {
    pub fn new(timeout: Duration) -> Heartbeats {
        Heartbeats {
            timeout,
            copy: None,
            back: None,
            unserved: None,
            set: None,
            looked: None,
            ahead: HashMap::new(),
        }
    }

    /// Starts over: what was observed before does not count.
    pub fn forget(&mut self) {
        *self = Heartbeats::new(self.timeout);
    }

    /// Nobody watched for a while. What is known of the clock stays.
    fn look_away(&mut self) {
        self.copy = None;
        self.back = None;
        self.unserved = None;
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
                self.look_away();
                return Err(error);
            }
        };
        // Without any row there is no moment to count from yet.
        let now = rows.iter().map(|row| row.now).max().unwrap_or(0);
        if self.was_clock_set(now) {
            tracing::warn!(
                "the clock of the database was set; every node gets the full ready timeout from now"
            );
            self.look_away();
            self.set = Some(now);
        }
        // They are of one moment, and say the same of gateways.
        let served_since = rows.first().and_then(|row| row.served_since);
        if served_since.is_none() && !rows.is_empty() {
            self.unserved = Some(now);
        }
        // The first look after an absence: heartbeats up to here were not watched.
        if self.back.is_none() && !rows.is_empty() {
            self.back = Some(now);
        }
        let back = self.back.unwrap_or(now);
        // What gateways know of the time before the clock was set says nothing.
        let served_since = served_since.map_or(back, |since| since.max(self.set.unwrap_or(since)));
        let is_ahead = |row: &HeartbeatRow| {
            row.at > now + AHEAD || self.ahead.get(&row.heartbeat.node).is_some_and(|at| *at == row.at)
        };
        let ahead = rows.iter().filter(|row| is_ahead(row));
        self.ahead = ahead.map(|row| (row.heartbeat.node.clone(), row.at)).collect();
        let at = |row: &HeartbeatRow| {
            if self.ahead.contains_key(&row.heartbeat.node) { LONG_AGO } else { row.at }
        };
        let heard = Heard {
            now,
            back,
            since: served_since.min(back),
            listening: self.unserved.map_or(back, |unserved| unserved.max(back)),
            last: rows.iter().map(|row| (row.heartbeat.node.clone(), at(row))).collect(),
            timeout: micros(self.timeout),
        };
        let looked = Instant::now();
        self.looked = (now > 0).then_some((looked, now)).or(self.looked);
        self.copy = Some((looked, heard.clone()));
        Ok(heard)
    }

    /// Whether the database's clock has moved otherwise than time has, by more than could be taken for silence.
    fn was_clock_set(&self, now: i64) -> bool {
        let Some((at, then)) = self.looked else { return false };
        let expected = then.saturating_add(micros(at.elapsed()));
        now > 0 && now.abs_diff(expected) > micros(self.timeout / 3).unsigned_abs()
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
