//! The session of one node: its stream, what came up and waits, what goes down, and its end.
//!
//! Four tasks serve a session and none waits for another: [`receive`] reads the stream into slots,
//! [`write`](mod@write) takes reports from the slots to the database, [`crate::desired::push`] offers desired
//! states, and the transport polls the [`outbound`] half. A slow database thus delays writes, never
//! heartbeats; a node that does not read delays pushes, never reports. Whoever ends the session first
//! decides with which code; the end is then the same for all: slots and log streams are dropped, the place in
//! the registry and the row in the database are given up, each only if it is still this session's.

pub mod first_report;
pub mod inbox;
pub mod open;
pub mod outbound;
pub mod outgoing;
pub mod pass;
pub mod receive;
pub mod registry;
pub mod rows;
pub mod sent;
pub mod told;
pub mod traced;
pub mod write;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use horchestra_store::store::SessionGrant;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::desired::account::InFlight;
use crate::desired::bell::Bell;
use crate::logs::SessionLogs;
use crate::samples::SessionSamples;
use first_report::FirstReport;
use inbox::Inbox;
use outbound::Outbound;
use sent::Sent;
use traced::Pushed;

/// An open session. Shared by its tasks.
pub struct Session {
    pub node: String,
    pub grant: SessionGrant,
    pub peer: SocketAddr,
    /// Since when the certificate is valid that the session was opened with, in microseconds since the epoch.
    pub valid_since: Option<i64>,
    /// And until when.
    pub valid_until: Option<i64>,
    pub inbox: Inbox,
    pub outbound: Arc<Outbound>,
    pub sent: Sent,
    pub pushed: Pushed,
    pub in_flight: InFlight,
    pub first_report: FirstReport,
    pub bell: Bell,
    pub logs: SessionLogs,
    pub samples: SessionSamples,
    opened: Instant,
    /// When the node was last heard of, in milliseconds since `opened`.
    heard: AtomicU64,
    /// The same, as the database was last told.
    touched: AtomicU64,
    /// The database was told all that it is told of a session.
    introduced: AtomicBool,
    ended: CancellationToken,
}

impl Session {
    pub fn new(node: String, grant: SessionGrant, peer: SocketAddr) -> Session {
        Session {
            node,
            grant,
            peer,
            valid_since: None,
            valid_until: None,
            inbox: Inbox::default(),
            outbound: Arc::default(),
            sent: Sent::default(),
            pushed: Pushed::default(),
            in_flight: InFlight::default(),
            first_report: FirstReport::default(),
            bell: Bell::default(),
            logs: SessionLogs::default(),
            samples: SessionSamples::default(),
            opened: Instant::now(),
            heard: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            introduced: AtomicBool::new(false),
            ended: CancellationToken::new(),
        }
    }

    /// Ends the session with this outcome, unless it has ended.
    pub fn end(&self, outcome: Result<(), Status>) {
        if self.outbound.end(outcome) {
            self.ended.cancel();
        }
    }

    /// Ends the session because it is another one's by now.
    pub fn lost(&self) {
        self.end(Err(Status::aborted("the session was taken over")));
    }

    /// The database was told of the session more than that it lives.
    pub fn introduced(&self) {
        self.introduced.store(true, Ordering::Relaxed);
    }

    /// Whether that is still to be done. To be told of counts as a sign of life, so one that has said nothing is not.
    pub fn to_be_introduced(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > 0 && !self.introduced.load(Ordering::Relaxed)
    }

    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// The node said something, whatever it was.
    pub fn hear(&self) {
        self.heard.store(self.age(), Ordering::Relaxed);
    }

    /// How long the node has been silent.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.age().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Whether the node was heard of since the database was last told, which is so long ago; marks it as told.
    pub fn take_touch(&self, after: Duration) -> bool {
        let (heard, told) = (self.heard.load(Ordering::Relaxed), self.touched.load(Ordering::Relaxed));
        let due = told < heard && Duration::from_millis(self.age().saturating_sub(told)) >= after;
        if due {
            self.touched.store(heard, Ordering::Relaxed);
        }
        due
    }

    /// Undoes [`Session::take_touch`] after the database could not be told.
    pub fn untake_touch(&self) {
        self.touched.store(0, Ordering::Relaxed);
    }

    fn age(&self) -> u64 {
        // The moment of opening counts as heard and as told: the claim did both.
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
