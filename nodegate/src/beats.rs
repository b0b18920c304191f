//! Telling the database who is alive.
//!
//! Heartbeats are recorded for all sessions of this process in one statement, which checks each session as it does:
//! they are what readiness is judged by (only a report that made sense counts), and what keeps others from taking a
//! node over. For the latter any message counts, so sessions that were heard of otherwise are told of by a statement
//! of their own, in which there is rarely any. The answers name the sessions that are no longer ours; those end. A
//! session whose node is silent is not told of, so it is looked up instead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use horchestra_store::store::{Heartbeat, SeenSession, SessionGrant};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::node_status::NodeReport;
use crate::session::Session;

/// Heartbeats that wait to be recorded.
#[derive(Default)]
pub struct Beats {
    waiting: Mutex<HashMap<String, (SessionGrant, Heartbeat)>>,
}

impl Beats {
    /// Notes a heartbeat; a later one of the same node replaces it.
    pub fn beat(&self, session: &Session, report: &NodeReport) {
        let heartbeat = Heartbeat {
            node: session.node.clone(),
            allocated_cpu: report.allocated_cpu,
            allocated_memory: report.allocated_memory,
        };
        self.waiting.lock().insert(session.node.clone(), (session.grant.clone(), heartbeat));
    }
}

/// Records heartbeats and touches sessions until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    let mut beat = interval(gate.settings.beat_every);
    let mut touch = interval(gate.settings.touch_every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    touch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = beat.tick() => record(&gate).await,
            _ = touch.tick() => {
                if gate.term.in_force() {
                    touch_sessions(&gate).await;
                    look_up_silent(&gate).await;
                }
            }
        }
    }
}

/// Records the heartbeats that wait. While the gateway is suspended they go on waiting.
async fn record(gate: &Gate) {
    if !gate.term.in_force() {
        return;
    }
    let taken = std::mem::take(&mut *gate.beats.waiting.lock());
    // Of a session that has ended or was taken over nothing is recorded any more.
    let (sessions, beats): (Vec<Arc<Session>>, Vec<(SessionGrant, Heartbeat)>) = taken
        .into_values()
        .filter_map(|(grant, heartbeat)| {
            let session = gate.sessions.get(&heartbeat.node).filter(|session| session.grant == grant)?;
            Some((session, (grant, heartbeat)))
        })
        .unzip();
    if beats.is_empty() {
        return;
    }
    sessions.iter().for_each(|session| {
        session.take_touch(Duration::ZERO);
    });
    match gate.store.record_beats(&beats).await {
        Ok(lost) => {
            gate.metrics.heartbeats.inc_by((beats.len() - lost.len()) as u64);
            end_lost(&sessions, lost);
        }
        Err(error) => {
            tracing::debug!(%error, "heartbeats could not be recorded");
            sessions.iter().for_each(|session| session.untake_touch());
            let mut waiting = gate.beats.waiting.lock();
            for (grant, heartbeat) in beats {
                waiting.entry(heartbeat.node.clone()).or_insert((grant, heartbeat));
            }
        }
    }
}

/// Ends those of the sessions whose nodes have another one by now.
fn end_lost(sessions: &[Arc<Session>], lost: Vec<String>) {
    let lost: HashSet<String> = lost.into_iter().collect();
    sessions.iter().filter(|session| lost.contains(&session.node)).for_each(|session| session.lost());
}

async fn touch_sessions(gate: &Gate) {
    let heard: Vec<Arc<Session>> = gate
        .sessions
        .all()
        .into_iter()
        // Once even where heartbeats tell of it: what they say is not all that people want to see.
        .filter(|session| session.take_touch(gate.settings.touch_every) || session.to_be_introduced())
        .collect();
    if heard.is_empty() {
        return;
    }
    let seen: Vec<SeenSession> = heard
        .iter()
        .map(|session| SeenSession {
            node: session.node.clone(),
            grant: session.grant.clone(),
            certificate_ends: session.valid_until,
        })
        .collect();
    match gate.store.touch_sessions(gate.id, &seen).await {
        Ok(lost) => {
            heard.iter().for_each(|session| session.introduced());
            end_lost(&heard, lost);
        }
        Err(error) => {
            tracing::debug!(%error, "sessions could not be touched");
            heard.iter().for_each(|session| session.untake_touch());
        }
    }
}

/// Nodes that have been silent for long may have been taken over without our hearing of it.
async fn look_up_silent(gate: &Gate) {
    let silent = gate.sessions.all().into_iter();
    for session in silent.filter(|session| session.silent_for() >= gate.settings.stale_after / 2) {
        match gate.store.session_of(&session.node).await {
            Ok(Some(row)) if row.grant == session.grant => {}
            Ok(_) => session.lost(),
            Err(_) => return,
        }
    }
}
