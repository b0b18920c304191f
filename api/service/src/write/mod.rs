//! Writing: every change goes through [`Service::run`].
//!
//! A verb is a function from a view to a [`Plan`]: it judges the request against the view and says what to
//! store, under which guards. It is pure, so it can be run again. [`Service::run`] owns everything else:
//!
//! * The first attempt uses the cache as it is, which may be behind. **A yes on an old view is safe**, since
//!   the item carries the revision of the head that it replaces and the guards of every rule. **A no, or
//!   "nothing to do", is not**: it is only answered after a second look at a view that has everything that
//!   was acknowledged before the request came.
//! * An item that the store refuses (head moved, guard failed) is planned again on a fresh view. A client
//!   that named a resourceVersion thereby gets its 409 from the rule about resourceVersions, one that named
//!   none never sees a conflict.
//! * From the second attempt on, writers of one object in this process queue up instead of racing each
//!   other, so a crowd of patches to one object makes progress one by one.
//! * Attempts are bounded. The answer after the last one is that of the rule whose guard failed, or 429.
//!
//! Objects of a sealed kind are planned in the clear and sealed just before the commit; an entry that a write
//! answers is the one in the clear.
//!
//! Refused: holding a lock around the first attempt. Most objects have one writer at a time, and a queue
//! would turn a slow commit of one client into latency for all.

mod apply;
mod collect;
mod create;
mod delete;
pub(crate) mod document;
pub(crate) mod draft;
mod emptying;
mod identity;
mod patch;
pub(crate) mod rollback;
pub(crate) mod tracking;
mod update;

pub(crate) use collect::release_teardown;
pub(crate) use delete::mark_deleted;
pub(crate) use identity::stamp_new;
pub(crate) use update::{
    Replacement, check_revision, clear_object, parse_named, protect_erased_namespace, stored_object,
};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_store::{Class, CommitError, Draft, Entry, Guard, Item, Op, Refusal, Revision, Snapshot};
use horchestra_trace::{Role, attribute};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::admission::Verdict;
use crate::caller::RequestContext;
use crate::errors;
use crate::request::Written;
use crate::rules;
use crate::service::Service;

/// How often a write is planned at most.
const ATTEMPTS: usize = 24;
/// Queues for writers that met a conflict; objects share them by hash.
const QUEUES: usize = 256;

/// What a verb wants done.
pub(crate) struct Plan {
    pub change: Planned,
    pub verdict: Verdict,
}

pub(crate) enum Planned {
    /// The object already is as wanted.
    Nothing(Arc<Entry>),
    Create(Draft),
    Update {
        draft: Draft,
        old: Arc<Entry>,
        class: Class,
    },
    Erase(Arc<Entry>),
}

/// Per-object queues.
pub(crate) struct Queues(Vec<Arc<Mutex<()>>>);

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues((0..QUEUES).map(|_| Arc::new(Mutex::new(()))).collect())
    }

    async fn wait(&self, key: &Key) -> OwnedMutexGuard<()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % QUEUES as u64).unwrap_or(0);
        Arc::clone(&self.0[at]).lock_owned().await
    }
}

/// What a verb is told about the attempt that it plans.
pub(crate) struct Attempt<'a> {
    pub view: &'a Snapshot,
    /// Counts from 0.
    pub number: usize,
    /// Guards by which the store refused earlier attempts.
    pub refused: &'a [Guard],
}

/// Why a write did not happen.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// A condition of the caller's own does not hold; planning again would not help.
    Fenced(Key, Guard),
    Status(Status),
}

impl From<Status> for Unwritten {
    fn from(status: Status) -> Unwritten {
        Unwritten::Status(status)
    }
}

impl From<Unwritten> for Status {
    fn from(unwritten: Unwritten) -> Status {
        match unwritten {
            Unwritten::Fenced(key, _) => errors::term_over(&key),
            Unwritten::Status(status) => status,
        }
    }
}

impl Service {
    /// Plans and commits a write; see the module's essay.
    pub(crate) async fn run<F>(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        dry_run: bool,
        plan: F,
    ) -> Result<Written, Status>
    where
        F: Fn(Attempt<'_>) -> Result<Plan, Status> + Send + Sync,
    {
        Ok(self.run_while(context, verb, key, dry_run, &[], plan).await?)
    }

    /// As [`Service::run`], for as long as `conditions` of the caller's own hold.
    pub(crate) async fn run_while<F>(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        dry_run: bool,
        conditions: &[Guard],
        plan: F,
    ) -> Result<Written, Unwritten>
    where
        F: Fn(Attempt<'_>) -> Result<Plan, Status> + Send + Sync,
    {
        let store = &self.inner.store;
        if key.kind == Kind::Service {
            self.inner.allocator.remember(store).await;
        }
        let mut fresh = dry_run;
        let mut view = if fresh { self.fresh().await? } else { store.snapshot() };
        let mut turn: Option<OwnedMutexGuard<()>> = None;
        let mut last_refusal = None;
        let mut refused: Vec<Guard> = Vec::new();
        for number in 0..ATTEMPTS {
            let judging = horchestra_trace::child("admission", Role::Internal, context.trace);
            let planned = judging.within(|| plan(Attempt { view: &view, number, refused: &refused }));
            if let Err(status) = &planned {
                judging.set(|| [attribute("horchestra.reason", format!("{:?}", status.reason))]);
            }
            drop(judging);
            let plan = match planned {
                Ok(Plan { change: Planned::Nothing(_), .. }) | Err(_) if !fresh => {
                    view = self.fresh().await?;
                    fresh = true;
                    continue;
                }
                Err(status) => return Err(status.into()),
                Ok(plan) => plan,
            };
            let Plan { change, verdict } = plan;
            // What was chosen stays set aside until it is known what became of the write.
            let Verdict { mut demands, warnings, ops: mut further, claims, reserved: _reserved, .. } =
                verdict;
            if dry_run {
                return Ok(preview(change, warnings));
            }
            let created = matches!(change, Planned::Create(_));
            let mut along = Vec::new();
            if let Planned::Erase(old) = &change
                && old.key.kind == Kind::Namespace
            {
                match self.events_of(context, &view, old).await? {
                    Some(contents) => {
                        along = contents.ops;
                        demands.push(contents.demand);
                    }
                    None => {
                        view = self.fresh().await?;
                        fresh = true;
                        continue;
                    }
                }
            }
            let (op, stored) = match change {
                Planned::Nothing(entry) => {
                    return Ok(Written { entry, created: false, erased: false, warnings });
                }
                Planned::Create(draft) => (
                    Op::Create(self.seal(draft.clone(), None)?),
                    Stored::Object { draft: Box::new(draft), core: None },
                ),
                Planned::Update { draft, old, class } => {
                    let (op, stored) = Stored::update(draft, &old, class);
                    (self.seal_update(op, &old)?, stored)
                }
                Planned::Erase(old) => Stored::erase(old),
            };
            let mut guards: Vec<Guard> = context.caller.fence().into_iter().collect();
            guards.extend_from_slice(conditions);
            let fences = guards.len();
            let mut refusals = Vec::with_capacity(demands.len());
            for demand in demands {
                guards.push(demand.guard);
                refusals.push(demand.refusal);
            }
            if matches!(stored, Stored::Erased(_)) {
                // What it held goes with the object.
                further.clear();
            }
            let mut ops = vec![op];
            ops.append(&mut further);
            ops.append(&mut along);
            let item = Item { ops, guards, who: context.attribution(verb) };
            match store.commit(item).await {
                Ok(committed) => {
                    let revision = committed.revisions.first().copied().unwrap_or_default();
                    if rules::has_part(key.kind) {
                        // Whoever is told of a change of the rules can rely on it here.
                        let _ = store.not_older_than(revision).await;
                    }
                    let (entry, erased) = stored.at(revision);
                    return Ok(Written { entry, created, erased, warnings });
                }
                Err(CommitError::Refused(Refusal::Guard { index, guard })) if index < fences => {
                    return Err(Unwritten::Fenced(key.clone(), guard));
                }
                // Claims are judged after everything else of the item: this one is taken, right now.
                Err(CommitError::Refused(Refusal::ClaimTaken { space, value })) => {
                    let known = claims.into_iter().find(|it| it.space == space && it.value == value);
                    match known {
                        Some(claim) if claim.chosen => last_refusal = Some(claim.refusal),
                        Some(claim) => return Err(claim.refusal.into()),
                        None => {
                            let taken = Refusal::ClaimTaken { space, value };
                            return Err(errors::commit_status(key, &taken.into()).into());
                        }
                    }
                }
                Err(CommitError::Refused(refusal)) => {
                    last_refusal = match &refusal {
                        Refusal::Guard { index, guard } => {
                            refused.push(guard.clone());
                            refusals.into_iter().nth(index - fences)
                        }
                        _ => None,
                    };
                    tracing::debug!(%key, %refusal, number, "planning a write again");
                }
                Err(error) => return Err(errors::commit_status(key, &error).into()),
            }
            if turn.is_none() {
                turn = Some(self.inner.queues.wait(key).await);
            }
            view = self.fresh().await?;
            fresh = true;
        }
        drop(turn);
        let crowded = || Status::too_many_requests("too many writers are changing this object, try again", 1);
        Err(last_refusal.unwrap_or_else(crowded).into())
    }

    /// A view with everything that was acknowledged before this call.
    pub(crate) async fn fresh(&self) -> Result<Snapshot, Status> {
        self.inner.store.fresh().await.map_err(|error| errors::read_status(&error))
    }
}

/// What an item leaves behind once it is committed.
pub(crate) enum Stored {
    Object {
        draft: Box<Draft>,
        /// The core revision where the write does not move it.
        core: Option<Revision>,
    },
    Erased(Arc<Entry>),
}

impl Stored {
    pub(crate) fn update(draft: Draft, old: &Entry, class: Class) -> (Op, Stored) {
        let core = (class == Class::Status).then_some(old.core_revision);
        let op = Op::Update { draft: draft.clone(), expect: old.revision, class };
        (op, Stored::Object { draft: Box::new(draft), core })
    }

    pub(crate) fn erase(old: Arc<Entry>) -> (Op, Stored) {
        (Op::Delete { key: old.key.clone(), expect: old.revision }, Stored::Erased(old))
    }

    /// The entry as of the revision of the commit, and whether it is erased.
    pub(crate) fn at(self, revision: Revision) -> (Arc<Entry>, bool) {
        match self {
            Stored::Object { draft, core } => {
                (Arc::new(Entry::new(*draft, revision, core.unwrap_or(revision))), false)
            }
            Stored::Erased(old) => (Arc::new(old.deleted_at(revision)), true),
        }
    }
}

/// The answer of a dry run: the object as it would be, at the revision that it was judged at.
fn preview(change: Planned, warnings: Vec<String>) -> Written {
    match change {
        Planned::Nothing(entry) => Written { entry, created: false, erased: false, warnings },
        Planned::Create(draft) => {
            Written { entry: Arc::new(Entry::new(draft, 0, 0)), created: true, erased: false, warnings }
        }
        Planned::Update { draft, old, .. } => {
            let entry = Arc::new(Entry::new(draft, old.revision, old.core_revision));
            Written { entry, created: false, erased: false, warnings }
        }
        Planned::Erase(old) => Written { entry: old, created: false, erased: true, warnings },
    }
}
