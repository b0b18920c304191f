//! The node-lifecycle loop: the one judge of whether a node is ready.
//!
//! It sets the `Ready` condition of every Node, in both directions, from heartbeats. Everybody else reads
//! the verdict and never the age of a heartbeat.
//!
//! **Fail static.** A verdict of "not ready" makes others act, so it is only given when the silence can be
//! the node's. Silence counts from the moment since which somebody was there to hear (see
//! [`crate::heartbeats`]), so after an absence of ours every node gets the full timeout, be it that this loop, the
//! database or every gateway was away, or that the database's clock was set. And when more than
//! half of the ready nodes, and at least three, fall silent together, it is far more likely that the way to
//! them is broken than that they all died: verdicts then stay as they are until heartbeats come back and a
//! full timeout has passed, or for five minutes. One Event tells of it, about the node that is silent for longest.
//!
//! A node that has been judged silent, and is so for five minutes more (a setting of the cluster) before the eyes of one
//! leader and without an absence of ours, is lost: its readiness is as unknown as before, with that for a reason. It
//! makes nobody move anything; it is what the catalog of services gives up on.
//!
//! What is remembered between passes only ever delays a verdict; a new leader starts with the longest delay.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::{Node, REASON_LOST};
use horchestra_core::reasons::{self, EventReason};
use horchestra_service::{DoorError, Ready, ReadyVerdict, Recorder, RequestContext, Service, Subject};
use horchestra_store::{Change, ChangeKind, Snapshot};

use crate::heartbeats::{Heard, Heartbeats};
use crate::substrate::{PassError, PassReport, Reconciler, Term, store_verdicts};

/// How long verdicts stay frozen at most when most of the fleet falls silent at once.
const FREEZE: Duration = Duration::from_secs(300);

/// How often heartbeats are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// What the judge looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub name: String,
    /// The verdict that stands.
    pub verdict: Option<ConditionStatus>,
    /// It was judged lost.
    pub lost: bool,
    /// What the node says of itself.
    pub reports_ready: bool,
}

/// The pure part: verdicts from observations.
#[derive(Debug)]
pub struct Judge {
    /// Microseconds for which a node has to be seen silent, after the verdict, to be lost.
    lost_after: i64,
    /// Since when each node that stands judged silent has been seen so, without a break.
    silent: HashMap<String, i64>,
    /// While set, nobody is judged not ready: until this moment (microseconds, database clock).
    frozen_until: Option<i64>,
    /// The silent nodes came back during this freeze, so that it ends a timeout later.
    returning: bool,
    /// The freeze is over and led to verdicts; a further one needs ready nodes again.
    spent: bool,
}

/// That verdicts stay as they are from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The node that is silent for longest.
    pub node: String,
    /// Nodes that fell silent, of so many that are judged ready.
    pub quiet: usize,
    pub ready: usize,
}

/// What follows from what was heard.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// The verdicts that differ from those that stand.
    pub verdicts: Vec<(String, ReadyVerdict)>,
    /// The freeze that has just begun; one that is prolonged is still the same.
    pub freeze: Option<Freeze>,
}

impl Judge {
    /// Without a memory.
    pub fn new(lost_after: Duration) -> Judge {
        let lost_after = i64::try_from(lost_after.as_micros()).unwrap_or(i64::MAX);
        Judge { lost_after, silent: HashMap::new(), frozen_until: None, returning: false, spent: false }
    }

    /// Judges; to be asked in the order of time.
    pub fn judge(&mut self, heard: &Heard, nodes: &[Observed]) -> Judgement {
        let freeze = self.update_freeze(heard, nodes);
        let frozen = self.frozen_until.is_some();
        self.update_silent(heard, nodes, frozen);
        let judged = |node: &Observed| {
            let lost = self.silent.get(&node.name).is_some_and(|since| heard.now - since > self.lost_after);
            Some((node.name.clone(), verdict(heard, node, frozen, lost)?))
        };
        Judgement { verdicts: nodes.iter().filter_map(judged).collect(), freeze }
    }

    fn update_silent(&mut self, heard: &Heard, nodes: &[Observed], frozen: bool) {
        let before = std::mem::take(&mut self.silent);
        let silent = nodes.iter().filter(|node| {
            !frozen
                && node.verdict == Some(ConditionStatus::Unknown)
                && silence(heard, &node.name) > heard.timeout
        });
        let since = |node: &Observed| before.get(&node.name).copied().unwrap_or(heard.now);
        self.silent = silent.map(|node| (node.name.clone(), since(node))).collect();
    }

    fn freeze(&mut self, heard: &Heard) {
        let freeze = i64::try_from(FREEZE.as_micros()).unwrap_or(i64::MAX).max(heard.timeout);
        self.frozen_until = Some(heard.now + freeze);
        self.returning = false;
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen_until.is_some()
    }

    fn update_freeze(&mut self, heard: &Heard, nodes: &[Observed]) -> Option<Freeze> {
        let ready: Vec<&Observed> =
            nodes.iter().filter(|node| node.verdict == Some(ConditionStatus::True)).collect();
        let quiet = ready.iter().filter(|node| silence(heard, &node.name) > heard.timeout / 2).count();
        let overdue = ready.iter().any(|node| silence(heard, &node.name) > heard.timeout);
        let most = quiet >= 3 && quiet * 2 > ready.len();
        match self.frozen_until {
            Some(until) if !most => {
                // They are back: whoever stays silent gets a full timeout from now.
                self.frozen_until = Some(until.min(heard.now + heard.timeout));
                self.returning = true;
                if until <= heard.now {
                    self.frozen_until = None;
                }
            }
            // Away again before it was over: another absence, with a patience of its own.
            Some(_) if self.returning => self.freeze(heard),
            Some(until) if until <= heard.now => {
                self.frozen_until = None;
                self.spent = true;
            }
            Some(_) => {}
            None if most && overdue && !self.spent => {
                self.freeze(heard);
                let longest = ready.iter().rev().max_by_key(|node| silence(heard, &node.name));
                let node = longest.map(|node| node.name.clone()).unwrap_or_default();
                return Some(Freeze { node, quiet, ready: ready.len() });
            }
            None if !most => self.spent = false,
            None => {}
        }
        None
    }
}

/// Microseconds since the node was last heard of, as far as somebody was there to hear.
fn silence(heard: &Heard, node: &str) -> i64 {
    let last = heard.last.get(node).copied().unwrap_or(i64::MIN);
    heard.now.saturating_sub(last.max(heard.listening))
}

/// The verdict on one node, if it differs from the one that stands.
fn verdict(heard: &Heard, node: &Observed, frozen: bool, lost: bool) -> Option<ReadyVerdict> {
    let recent = heard.last.get(&node.name).is_some_and(|at| heard.now - at <= heard.timeout);
    let (ready, reason, message) = if recent && node.reports_ready {
        (Ready::True, "NodeReports", "the node reports and is ready")
    } else if recent {
        (Ready::False, "NodeNotReady", "the node reports that it is not ready")
    } else if !heard.last.contains_key(&node.name) && node.verdict.is_none() {
        // Nobody has ever heard of it: nothing to say until it reports.
        return None;
    } else if frozen || silence(heard, &node.name) <= heard.timeout {
        return None;
    } else if node.lost || lost {
        (Ready::Unknown, REASON_LOST, "the node has been silent for long")
    } else {
        (Ready::Unknown, "NodeSilent", "the node has not reported for longer than the ready timeout")
    };
    let stands = matches!(
        (node.verdict, ready),
        (Some(ConditionStatus::True), Ready::True)
            | (Some(ConditionStatus::False), Ready::False)
            | (Some(ConditionStatus::Unknown), Ready::Unknown)
    ) && node.lost == (reason == REASON_LOST);
    (!stands).then(|| ReadyVerdict { ready, reason: reason.to_owned(), message: message.to_owned() })
}

/// Why people are told of a verdict.
fn reason(verdict: &ReadyVerdict) -> &'static EventReason {
    match verdict.ready {
        Ready::Unknown if verdict.reason == REASON_LOST => &reasons::NODE_LOST,
        Ready::True => &reasons::NODE_READY,
        Ready::False => &reasons::NODE_NOT_READY,
        Ready::Unknown => &reasons::NODE_SILENT,
    }
}

/// The judge as a loop.
pub struct NodeLifecycle {
    service: Service,
    recorder: Recorder,
    heartbeats: Heartbeats,
    judge: Judge,
}

impl NodeLifecycle {
    pub fn new(service: Service, recorder: Recorder) -> NodeLifecycle {
        let heartbeats = Heartbeats::new(service.config().ready_timeout);
        let judge = Judge::new(service.config().node_lost_after);
        NodeLifecycle { service, recorder, heartbeats, judge }
    }

    async fn reconcile(&mut self, term: &Term) -> Result<PassReport, PassError> {
        let store = self.service.store().clone();
        let heard = self.heartbeats.refresh(&store).await.map_err(PassError::Read)?;
        let snapshot = store.snapshot();
        let nodes: Vec<Observed> = snapshot
            .list(Kind::Node, None)
            .filter_map(|entry| {
                let node = entry.typed::<Node>().ok()?;
                Some(Observed {
                    name: entry.key.name.clone(),
                    verdict: node.ready(),
                    lost: node.is_lost(),
                    reports_ready: node.status.ready,
                })
            })
            .collect();
        let mut report = PassReport { again_in: Some(PERIOD), ..PassReport::default() };
        let context = RequestContext::new(term.caller());
        let Judgement { verdicts, freeze } = self.judge.judge(&heard, &nodes);
        if let Some(freeze) = freeze {
            self.tell(&freeze, &snapshot);
        }
        let (this, context) = (&*self, &context);
        let write = |name: String, verdict| async move { this.write(context, &name, verdict).await };
        store_verdicts(verdicts, write, &mut report).await?;
        Ok(report)
    }

    async fn write(
        &self,
        context: &RequestContext,
        name: &str,
        verdict: ReadyVerdict,
    ) -> Result<(), DoorError> {
        let (ready, reason, message) = (verdict.ready, reason(&verdict), verdict.message.clone());
        let outcome = self.service.set_node_ready(context, name, verdict).await?;
        tracing::info!(node = name, ?ready, "judged");
        if outcome.changed {
            self.recorder.record(Subject::of(&outcome.entry), reason, message);
        }
        Ok(())
    }

    fn tell(&self, freeze: &Freeze, snapshot: &Snapshot) {
        let Freeze { node, quiet, ready } = freeze;
        tracing::warn!(quiet, ready, "most of the fleet fell silent at once; verdicts stay");
        let message = format!(
            "{quiet} of {ready} ready nodes fell silent at once, this one first: look for what is between nodes and \
             gateways. Until they are heard of again, or for {} minutes, nodes stay ready that are silent",
            FREEZE.as_secs() / 60
        );
        if let Some(entry) = snapshot.get(&Key::cluster(Kind::Node, node)) {
            self.recorder.record(Subject::of(&entry), &reasons::VERDICTS_FROZEN, message);
        }
    }
}

impl Reconciler for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-lifecycle"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Node]
    }

    fn wakes(&self, change: &Change) -> bool {
        change.kind == ChangeKind::Added
    }

    fn begin_term(&mut self) {
        self.heartbeats.forget();
        self.judge = Judge::new(self.service.config().node_lost_after);
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}
