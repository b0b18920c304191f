//! The narrow doors of loops and gateways.
//!
//! An ordinary write replaces what a client sends and judges all of it. A door changes one thing, says
//! itself what that is, and judges only that: a node's report must not be refused because a Secret is gone,
//! nor the release of a deleted object because its node has shrunk. So doors do not run admission plugins;
//! each carries the guards of the rules that its change touches, and the fence of its caller, which
//! [`Service::commit_door`] adds to every item.
//!
//! Doors never invent a view: they work on the cache, since what they decide rests on the revision of the
//! one object that they change, and the store compares that. A report that lost to another write is applied
//! to the newer object; a placement is not, because it was decided for the older one.

mod application;
mod bind;
pub(crate) mod certificates;
mod event;
mod finalize;
mod forget;
mod hold;
mod node;
mod node_status;
pub(crate) mod people;
mod sets;
mod volumes;

pub(crate) use event::deletion;

use std::sync::Arc;

use horchestra_core::kind::Key;
use horchestra_core::object::Object;
use horchestra_store::{Class, CommitError, Entry, Guard, Item, Op, Refusal};

use crate::caller::RequestContext;
use crate::errors::{door_error, door_status, read_status};
use crate::request::{DoorError, Outcome};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{Stored, clear_object, tracking};

/// How often a report is applied anew after losing to another write.
const ATTEMPTS: usize = 16;

/// What a door does to an object. An edit that changes nothing writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    /// Stores the object as edited.
    Write(Class),
    Erase,
}

impl Service {
    /// Commits one item for a door, fenced. Returns the entry as it now is.
    async fn commit_door(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        op: Op,
        guards: Vec<Guard>,
    ) -> Result<i64, CommitError> {
        self.commit_all(context, verb, key, vec![op], guards).await
    }

    /// As [`Service::commit_door`], for several operations; answers the revision of the first.
    async fn commit_all(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        ops: Vec<Op>,
        guards: Vec<Guard>,
    ) -> Result<i64, CommitError> {
        let fence = context.caller.fence();
        let guards = fence.into_iter().chain(guards).collect();
        let item = Item { ops, guards, who: context.attribution(verb) };
        let committed = self.inner.store.commit(item).await?;
        tracing::trace!(%key, verb, "written through a door");
        Ok(committed.revisions.first().copied().unwrap_or_default())
    }

    /// Applies an edit to an object: again on a newer version when another write came in between.
    async fn edit<F>(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        edit: F,
    ) -> Result<Outcome, DoorError>
    where
        F: Fn(&Entry, &mut Object) -> Result<Edit, DoorError> + Send + Sync,
    {
        let mut view = self.inner.store.snapshot();
        let mut fresh = false;
        for _ in 0..ATTEMPTS {
            let attempted = match view.get(key) {
                None => Err(DoorError::Gone),
                Some(entry) => apply(context, key, &entry, &edit).map(|applied| (entry, applied)),
            };
            let (op, stored) = match attempted {
                Ok((_, Some(applied))) => applied,
                Ok((entry, None)) => return Ok(Outcome { entry, changed: false, erased: false }),
                // What is refused, or gone, on an old view need not be on the current one.
                Err(_) if !fresh => {
                    view = self.inner.store.fresh().await.map_err(|e| door_status(read_status(&e)))?;
                    fresh = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.commit_door(context, verb, key, op, Vec::new()).await {
                Ok(revision) => {
                    let (entry, erased) = stored.at(revision);
                    return Ok(Outcome { entry, changed: true, erased });
                }
                Err(CommitError::Refused(Refusal::Conflict { .. } | Refusal::NotFound(_))) => {
                    view = self.inner.store.fresh().await.map_err(|e| door_status(read_status(&e)))?;
                    fresh = true;
                }
                Err(error) => return Err(door_error(key, &error)),
            }
        }
        Err(DoorError::Changed)
    }
}

/// What to commit for an edit; `None` when the object already is as wanted.
fn apply<F>(
    context: &RequestContext,
    key: &Key,
    entry: &Arc<Entry>,
    edit: &F,
) -> Result<Option<(Op, Stored)>, DoorError>
where
    F: Fn(&Entry, &mut Object) -> Result<Edit, DoorError>,
{
    let spec = spec_of(key.kind).map_err(DoorError::Refused)?;
    let stored = clear_object(entry).map_err(DoorError::Refused)?;
    let mut object = stored.clone();
    let class = match edit(entry, &mut object)? {
        Edit::Erase => {
            return Ok(Some(Stored::erase(Arc::clone(entry))));
        }
        Edit::Write(class) => class,
    };
    if object == stored {
        return Ok(None);
    }
    let columns = columns(spec, &object);
    let managed = tracking::of_component(spec, context, Some((entry, &stored)), &object);
    let draft = draft(spec, key, &object, columns, managed).map_err(DoorError::Refused)?;
    Ok(Some(Stored::update(draft, entry, class)))
}
