//! Reading a node's stream.
//!
//! Guarantees: this task never waits for anything but the next message. Whatever arrives goes into a slot, to
//! a log's buffer or to the bin, at once. An agent has one sender for heartbeats and logs alike, so a pause
//! here would be taken for the death of the node.

use std::collections::HashMap;
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_proto::node::v1::{AppStatus, NodeMessage, node_message::Body};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status, Streaming};

use super::Session;
use super::inbox::AppName;
use super::pass::{Pass, Verdict};
use super::told::Told;
use crate::app_status::bound;
use crate::events;
use crate::gate::Gate;
use crate::node_status::sanitise;

/// What a node says of itself.
const STATUS: &str = "status";
/// Applications whose killed processes are counted.
const KILLS_REMEMBERED: usize = 4096;

/// Reads until the stream or the session ends.
pub async fn run(gate: Arc<Gate>, session: Arc<Session>, mut inbound: Streaming<NodeMessage>) {
    let mut state = Receiving::default();
    loop {
        tokio::select! {
            message = inbound.message() => match message {
                Ok(Some(message)) => {
                    session.hear();
                    state.take(&gate, &session, message.body);
                }
                Ok(None) => return session.end(Ok(())),
                Err(status) => return session.end(outcome_of(status)),
            },
            () = at(state.pass_ends) => {
                let verdict = state.pass.end();
                state.follow(&gate, &session, verdict);
            }
            () = at(state.confirm_at) => {
                state.confirm_at = None;
                session.bell.force();
            }
        }
    }
}

#[derive(Default)]
struct Receiving {
    pass: Pass,
    /// When the pass that holds something is taken as ended.
    pass_ends: Option<Instant>,
    /// When a second pass is asked for.
    confirm_at: Option<Instant>,
    /// Processes killed for their memory, as last counted by the node.
    oom_kills: HashMap<AppName, i64>,
    told: Told,
}

impl Receiving {
    fn take(&mut self, gate: &Gate, session: &Session, body: Option<Body>) {
        match body {
            Some(Body::Status(status)) => {
                let verdict = self.pass.end();
                self.follow(gate, session, verdict);
                match sanitise(&session.node, session.peer.ip(), &status.node) {
                    Ok(report) => {
                        self.told.forget(STATUS);
                        session.first_report.hear(&report.units);
                        gate.beats.beat(session, &report);
                        if session.inbox.put_node(report) {
                            gate.metrics.reports_coalesced.inc();
                        }
                    }
                    Err(why) => {
                        gate.metrics.dropped("node_status");
                        tracing::warn!(node = %session.node, %why, "a node's report was dropped");
                        if self.told.is_new(STATUS, &why.to_string()) {
                            events::refused(
                                gate,
                                session,
                                format!("a report about the node was dropped: {why}"),
                            );
                        }
                    }
                }
            }
            Some(Body::AppStatus(mut report)) => {
                // Only what was pushed has a slot; that is also what bounds the slots.
                if session.sent.contains(&(report.namespace.clone(), report.name.clone())) {
                    bound(&mut report);
                    let verdict = self.pass.report(report);
                    self.follow(gate, session, verdict);
                } else {
                    gate.metrics.dropped("not_sent");
                }
            }
            Some(Body::NodeUsage(usage)) => {
                let verdict = self.pass.end();
                self.follow(gate, session, verdict);
                gate.metrics.samples.inc();
                if let Err(why) = gate.take_node_sample(session, &usage) {
                    gate.metrics.sample_dropped(why.text());
                }
            }
            Some(Body::AppMetrics(sample)) => {
                gate.metrics.samples.inc();
                let name: AppName = (sample.namespace.clone(), sample.name.clone());
                let kills = sample.oom_kills;
                match gate.take_app_sample(session, sample) {
                    Ok(()) => self.count_kills(gate, session, name, kills),
                    Err(why) => gate.metrics.sample_dropped(why.text()),
                }
            }
            Some(Body::LogChunk(chunk)) => gate.log_chunk(session, chunk),
            None => {}
        }
    }

    /// The first count of a session is where counting begins; one that is lower is of another run.
    fn count_kills(&mut self, gate: &Gate, session: &Session, name: AppName, kills: i64) {
        if self.oom_kills.len() >= KILLS_REMEMBERED && !self.oom_kills.contains_key(&name) {
            self.oom_kills.clear();
        }
        let key = Key::namespaced(Kind::Application, name.0.as_str(), name.1.as_str());
        let before = self.oom_kills.insert(name, kills).unwrap_or(i64::MAX);
        let more = kills.saturating_sub(before);
        if more > 0 {
            events::oom_killed(gate, session, &key, more);
        }
    }

    fn follow(&mut self, gate: &Gate, session: &Session, verdict: Verdict) {
        for report in verdict.through {
            self.put(gate, session, report);
        }
        self.pass_ends = match (self.pass.holds(), self.pass_ends) {
            (false, _) => None,
            (true, _) => Some(Instant::now() + gate.settings.pass_quiet),
        };
        if verdict.ask_again {
            self.confirm_at = Some(Instant::now() + gate.settings.confirm_after);
        }
    }

    fn put(&self, gate: &Gate, session: &Session, report: AppStatus) {
        gate.metrics.reports.inc();
        if session.inbox.put_app(report) {
            gate.metrics.reports_coalesced.inc();
        }
    }
}

/// How a session ends whose stream broke.
fn outcome_of(status: Status) -> Result<(), Status> {
    match status.code() {
        // A message over the limit.
        Code::OutOfRange | Code::ResourceExhausted => {
            Err(Status::resource_exhausted("a message was larger than is accepted"))
        }
        Code::Internal | Code::InvalidArgument => Err(Status::invalid_argument("a message does not decode")),
        _ => Ok(()),
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
