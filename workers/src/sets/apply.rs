//! Writing the steps of a plan.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::reasons::{self, EventReason};
use horchestra_core::status::Reason;
use horchestra_service::{DoorError, Outcome as Written, RequestContext, Service, SetReport, Subject};
use horchestra_store::{Entry, Guard, Revision, Snapshot};
use uuid::Uuid;

use super::metrics::SetMetrics;
use super::plan::{Action, Plan, Step};
use super::report::{Outcome, Refused};
use super::situation::{Situation, is_owned};
use crate::substrate::PassError;

/// How many steps of a stage are under way at a time; they share commits.
pub const AT_ONCE: usize = 32;

/// Where the loop writes to.
pub trait Port: Send + Sync + 'static {
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        kind: Kind,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>>;

    fn update<'a>(
        &'a self,
        context: &'a RequestContext,
        entry: &'a Entry,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>>;

    fn delete<'a>(
        &'a self,
        context: &'a RequestContext,
        key: &'a Key,
        uid: Uuid,
        revision: Option<Revision>,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>>;

    fn report<'a>(
        &'a self,
        context: &'a RequestContext,
        set: &'a Entry,
        report: &'a SetReport,
    ) -> BoxFuture<'a, Result<Written, DoorError>>;
}

impl Port for Service {
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        kind: Kind,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>> {
        Box::pin(self.create_owned(context, kind, object, conditions))
    }

    fn update<'a>(
        &'a self,
        context: &'a RequestContext,
        entry: &'a Entry,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>> {
        Box::pin(self.update_owned(context, entry, object, conditions))
    }

    fn delete<'a>(
        &'a self,
        context: &'a RequestContext,
        key: &'a Key,
        uid: Uuid,
        revision: Option<Revision>,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Written, DoorError>> {
        Box::pin(self.delete_owned(context, key, uid, revision, conditions))
    }

    fn report<'a>(
        &'a self,
        context: &'a RequestContext,
        set: &'a Entry,
        report: &'a SetReport,
    ) -> BoxFuture<'a, Result<Written, DoorError>> {
        Box::pin(self.report_set(context, &set.key, set.uid, set.core_revision, report))
    }
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    pub outcome: Outcome,
    /// Writes that were committed.
    pub writes: usize,
    /// What to tell people, and about which child.
    pub events: Vec<(Subject, &'static EventReason, String)>,
    /// The set was let go of.
    pub finished: bool,
    /// The store takes nothing at the moment.
    pub unavailable: bool,
}

/// Applies the stages of a plan. What is refused holds up nothing but, where the plan says so, later stages.
/// `fresh` gives a current view, for finding out whose a name is.
pub async fn apply<P: Port>(
    port: &P,
    context: &RequestContext,
    situation: &Situation,
    plan: &Plan,
    metrics: &SetMetrics,
    fresh: impl Fn() -> Snapshot + Send + Sync,
) -> Result<Applied, PassError> {
    let mut applied = Applied::default();
    for stage in &plan.stages {
        // Once the store is away, or this process deposed, the rest of the stage need not be tried.
        let over = AtomicBool::new(false);
        let steps: Vec<BoxFuture<'_, _>> =
            stage.iter().map(|step| attempt(port, context, step, &over).boxed()).collect();
        let outcomes: Vec<_> = stream::iter(steps).buffer_unordered(AT_ONCE).collect().await;
        let mut whole = true;
        for (step, outcome) in outcomes {
            whole &= matches!(outcome, Some(Ok(_)));
            metrics.step(step.action.verb(), word(&outcome));
            match outcome {
                None => applied.outcome.put_off += 1,
                Some(Ok(written)) => done(&mut applied, situation, step, &written),
                Some(Err(error)) => not_done(&mut applied, situation, step, error, &fresh)?,
            }
        }
        if applied.unavailable || (plan.strict && !whole) {
            break;
        }
    }
    Ok(applied)
}

/// A step and what became of it; `None` when it was not tried.
async fn attempt<'a, P: Port>(
    port: &P,
    context: &RequestContext,
    step: &'a Step,
    over: &AtomicBool,
) -> (&'a Step, Option<Result<Written, DoorError>>) {
    if over.load(Ordering::Relaxed) {
        return (step, None);
    }
    let outcome = write(port, context, step).await;
    if matches!(outcome, Err(DoorError::Fenced | DoorError::Unavailable(_))) {
        over.store(true, Ordering::Relaxed);
    }
    (step, Some(outcome))
}

/// As metrics call it.
fn word(outcome: &Option<Result<Written, DoorError>>) -> &'static str {
    match outcome {
        Some(Ok(_)) => "done",
        Some(Err(DoorError::Refused(_))) => "refused",
        _ => "put_off",
    }
}

async fn write<P: Port>(port: &P, context: &RequestContext, step: &Step) -> Result<Written, DoorError> {
    match &step.action {
        Action::Create { kind, object } => {
            port.create(context, *kind, object.clone(), &step.conditions).await
        }
        Action::Update { entry, object } | Action::Finish { entry, object } => {
            port.update(context, entry, object.clone(), &step.conditions).await
        }
        Action::Delete { entry, exact } => {
            let revision = exact.then_some(entry.revision);
            port.delete(context, &entry.key, entry.uid, revision, &step.conditions).await
        }
    }
}

fn what(step: &Step) -> String {
    format!("{} \"{}\"", step.action.kind().name().to_lowercase(), step.action.name())
}

fn done(applied: &mut Applied, situation: &Situation, step: &Step, written: &Written) {
    applied.writes += usize::from(written.changed);
    let (set, what, verb) = (&situation.entry.key, what(step), step.action.verb());
    let released = situation.entry.deleting && verb == "update";
    if verb == "delete" || released {
        tracing::info!(%set, what, verb, released, "applied");
    } else {
        tracing::debug!(%set, what, verb, "applied");
    }
    applied.finished |= matches!(step.action, Action::Finish { .. });
    let reason: &'static EventReason = match &step.action {
        Action::Create { .. } => &reasons::CHILD_CREATED,
        Action::Update { .. } if !released => &reasons::CHILD_UPDATED,
        Action::Delete { .. } => &reasons::CHILD_DELETED,
        _ => return,
    };
    if written.entry.key.kind == reason.about {
        let message = format!("{verb}d by applicationset \"{}\"", set.name);
        applied.events.push((Subject::of(&written.entry), reason, message));
    }
}

fn not_done(
    applied: &mut Applied,
    situation: &Situation,
    step: &Step,
    error: DoorError,
    fresh: impl Fn() -> Snapshot,
) -> Result<(), PassError> {
    let set = &situation.entry.key;
    match error {
        DoorError::Fenced => return Err(PassError::Deposed),
        DoorError::Unavailable(status) => {
            tracing::warn!(%set, what = what(step), error = status.message, "not now");
            applied.unavailable = true;
            applied.outcome.put_off += 1;
        }
        DoorError::Refused(status) => {
            let taken = status.reason == Reason::AlreadyExists;
            if taken && is_own(situation, step, &fresh()) {
                // Made by an earlier pass that this one could not see yet.
                applied.outcome.put_off += 1;
                return Ok(());
            }
            let why = if taken { "the name belongs to another object".to_owned() } else { status.message };
            applied.outcome.refused.push(Refused { what: what(step), conflict: taken, why });
        }
        // Planned from something that is no more.
        DoorError::Changed | DoorError::Gone | DoorError::NoNode | DoorError::NoCapacity => {
            applied.outcome.put_off += 1;
        }
    }
    Ok(())
}

fn is_own(situation: &Situation, step: &Step, view: &Snapshot) -> bool {
    let namespace = situation.entry.key.namespace.as_str();
    let key = Key::namespaced(step.action.kind(), namespace, step.action.name());
    let stored = view.get(&key).and_then(|entry| entry.object().ok());
    let metadata = stored.and_then(|object| object.read::<Metadata>().ok()).map(|it| it.metadata);
    metadata.is_some_and(|metadata| is_owned(&metadata, &situation.entry))
}

#[derive(serde::Deserialize)]
struct Metadata {
    metadata: horchestra_core::kinds::meta::ObjectMeta,
}
