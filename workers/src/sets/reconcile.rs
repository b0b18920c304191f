//! The loop around the pure core: snapshot in, guarded writes and reports out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use horchestra_core::kind::Kind;
use horchestra_core::kinds::application_set::SET_LABEL;
use horchestra_core::kinds::node::Node;
use horchestra_core::reasons;
use horchestra_service::{DoorError, Recorder, RequestContext, Service, Subject};
use horchestra_store::{Change, ChangeKind, Entry, Store};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::apply::{Applied, Port, apply};
use super::metrics::SetMetrics;
use super::plan::{Plan, plan};
use super::report::report;
use super::situation::{Situation, Survey, node_print};
use crate::substrate::{PassError, PassReport, Reconciler, Term};

/// How soon a set is looked at again of which something was planned from an old view.
const AFTER_CONFLICT: Duration = Duration::from_millis(250);
/// How soon something that was refused is tried again at first; doubles with every time.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What the last look at a set came to; saves looking again.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// What it was made from.
    print: u64,
    /// What may have stood in its way.
    crowd: u64,
    /// When to look again although nothing has changed.
    due: Option<Instant>,
    /// Refusals in a row, of the same state of things.
    refusals: u32,
    /// Its phase and those of its children, for those who watch the numbers.
    phase: String,
    children: BTreeMap<String, i64>,
}

/// What came of one set.
#[derive(Default)]
struct Looked {
    /// When to look again though nothing changes.
    again_in: Option<Duration>,
    refusals: u32,
    phase: String,
    children: BTreeMap<String, i64>,
}

/// The loop.
pub struct Sets<P = Service> {
    store: Store,
    port: P,
    recorder: Recorder,
    metrics: SetMetrics,
    seen: HashMap<Uuid, Seen>,
    nodes: HashMap<String, u64>,
    /// Services of others of which people were told.
    told: HashSet<(Uuid, String)>,
}

impl Sets {
    pub fn new(service: Service, recorder: Recorder, metrics: SetMetrics) -> Sets {
        Sets::with_port(service.store().clone(), service, recorder, metrics)
    }
}

impl<P: Port> Sets<P> {
    /// A loop that writes through another port.
    pub fn with_port(store: Store, port: P, recorder: Recorder, metrics: SetMetrics) -> Sets<P> {
        let (seen, nodes, told) = (HashMap::new(), HashMap::new(), HashSet::new());
        Sets { store, port, recorder, metrics, seen, nodes, told }
    }

    async fn reconcile(&mut self, term: &Term) -> Result<PassReport, PassError> {
        let context = RequestContext::new(term.caller());
        let snapshot = self.store.snapshot();
        let survey = Survey::of(&snapshot);
        self.nodes.clone_from(&survey.node_prints);
        let sets: Vec<Arc<Entry>> = snapshot.list(Kind::ApplicationSet, None).cloned().collect();
        let there: HashSet<Uuid> = sets.iter().map(|set| set.uid).collect();
        self.seen.retain(|uid, _| there.contains(uid));
        self.told.retain(|(uid, _)| there.contains(uid));
        let mut pass = PassReport::default();
        for set in &sets {
            let unseen = Seen::default();
            let before = self.seen.get(&set.uid).unwrap_or(&unseen);
            let (print, crowd) = (survey.print(set), survey.crowd(set));
            let now = Instant::now();
            let same = before.print == print && (before.refusals == 0 || before.crowd == crowd);
            if same && before.due.is_none_or(|due| due > now) {
                pass.again_in = sooner(pass.again_in, before.due.map(|due| due - now));
                continue;
            }
            let Some(situation) = survey.situation(set, Timestamp::now()) else { continue };
            let refusals = if same { before.refusals } else { 0 };
            let looked = AssertUnwindSafe(self.one(&context, &situation, refusals, &mut pass));
            // A set that cannot be dealt with must not keep the others from being dealt with.
            let looked = looked.catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(set = %set.key, "dealing with a set panicked; it is left as it is");
                Ok(Looked { again_in: Some(LONGEST_WAIT), refusals, ..Looked::default() })
            });
            let Looked { again_in, refusals, phase, children } = looked?;
            let due = again_in.map(|wait| now + wait);
            self.seen.insert(set.uid, Seen { print, crowd, due, refusals, phase, children });
            pass.again_in = sooner(pass.again_in, again_in);
            // A long list of sets must not keep others of this thread waiting.
            tokio::task::yield_now().await;
        }
        self.show();
        Ok(pass)
    }

    fn show(&self) {
        let (mut phases, mut children) = (BTreeMap::new(), BTreeMap::new());
        for seen in self.seen.values().filter(|seen| !seen.phase.is_empty()) {
            *phases.entry(seen.phase.clone()).or_default() += 1;
            for (phase, count) in &seen.children {
                *children.entry(phase.clone()).or_default() += count;
            }
        }
        SetMetrics::show(&self.metrics.sets, phases);
        SetMetrics::show(&self.metrics.children, children);
    }

    /// One set.
    async fn one(
        &mut self,
        context: &RequestContext,
        situation: &Situation,
        refusals: u32,
        pass: &mut PassReport,
    ) -> Result<Looked, PassError> {
        let set = &situation.entry;
        let plan = plan(situation);
        self.tell_of_shared(situation, &plan);
        let store = &self.store;
        // What becomes of the children goes on with the trace of the set's last change.
        let caused = RequestContext { trace: store.trace_of(set.core_revision), ..context.clone() };
        let applied =
            apply(&self.port, &caused, situation, &plan, &self.metrics, || store.snapshot()).await?;
        pass.writes += applied.writes;
        pass.refused += applied.outcome.refused.len() + applied.outcome.put_off;
        for (subject, reason, message) in &applied.events {
            self.recorder.record(subject.clone(), reason, message.clone());
        }
        if applied.finished {
            // It is gone, or waits for others.
            return Ok(Looked::default());
        }
        let reported = report(situation, &plan.outlook, &applied.outcome);
        let mut again_in = reported.again_in;
        match self.port.report(context, set, &reported.report).await {
            Ok(written) if written.changed => {
                pass.writes += 1;
                for (reason, message) in reported.events {
                    self.recorder.record(Subject::of(&written.entry), reason, message);
                }
            }
            Ok(_) => {}
            Err(DoorError::Fenced) => return Err(PassError::Deposed),
            Err(DoorError::Gone) => {}
            Err(error) => {
                tracing::debug!(set = %set.key, %error, "a report was not stored; trying again");
                pass.refused += 1;
                again_in = sooner(again_in, Some(AFTER_CONFLICT));
            }
        }
        let (wait, refusals) = wait(&applied, refusals);
        let mut children = BTreeMap::new();
        for child in reported.report.children {
            *children.entry(child.phase).or_default() += 1;
        }
        Ok(Looked { again_in: sooner(again_in, wait), refusals, phase: reported.report.phase, children })
    }

    fn tell_of_shared(&mut self, situation: &Situation, plan: &Plan) {
        for service in &plan.outlook.shared {
            if self.told.insert((situation.entry.uid, service.clone())) {
                let message =
                    format!("children join service \"{service}\", which does not belong to the set");
                self.recorder.record(Subject::of(&situation.entry), &reasons::SERVICE_SHARED, message);
            }
        }
    }
}

fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// When to try again what was not done.
fn wait(applied: &Applied, refusals: u32) -> (Option<Duration>, u32) {
    if applied.unavailable {
        return (Some(AFTER_REFUSAL), refusals);
    }
    if applied.outcome.put_off > 0 {
        return (Some(AFTER_CONFLICT), refusals);
    }
    if applied.outcome.refused.is_empty() {
        return (None, 0);
    }
    let wait = AFTER_REFUSAL.saturating_mul(1 << refusals.min(8)).min(LONGEST_WAIT);
    (Some(wait), refusals + 1)
}

impl<P: Port> Reconciler for Sets<P> {
    fn name(&self) -> &'static str {
        "applicationset"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::ApplicationSet, Kind::Application, Kind::Node, Kind::Service]
    }

    fn wakes(&self, change: &Change) -> bool {
        match change.object_kind() {
            // Its own reports coming back are no news.
            Kind::ApplicationSet => {
                change.kind != ChangeKind::Modified || change.entry.core_revision == change.entry.revision
            }
            // A name that was in the way may be free now, a Service that was missing may be there.
            Kind::Application if change.kind == ChangeKind::Deleted => true,
            Kind::Service if change.kind != ChangeKind::Modified => true,
            Kind::Application | Kind::Service => {
                let labelled = change.entry.index.label(SET_LABEL).is_some();
                labelled || change.previous.as_ref().is_some_and(|before| before.label(SET_LABEL).is_some())
            }
            Kind::Node => match change.kind {
                ChangeKind::Modified => {
                    let now = change.entry.typed::<Node>().map(|node| node_print(&node)).ok();
                    now != self.nodes.get(&change.key().name).copied()
                }
                _ => true,
            },
            _ => false,
        }
    }

    fn begin_term(&mut self) {
        self.seen.clear();
        self.told.clear();
    }

    fn end_term(&mut self) {
        self.metrics.sets.clear();
        self.metrics.children.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}
