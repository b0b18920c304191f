//! The writes of the garbage collection: deleting dependents, freeing them, letting owners go.
//!
//! The collection has looked at an object some time ago and decided; each of these writes says what the decision
//! rested on and does nothing where that is no longer so. What it rests on is the object's own metadata (who
//! owns it, what holds it); that the owner is gone, or on its way, cannot become untrue.
//!
//! Deletions are judged by the rules for deletions like any other: what somebody still uses stays, whoever its
//! owner was, until nobody does.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use horchestra_core::kind::{Key, Kind};
use horchestra_core::metadata::{FOREGROUND, ORPHAN};
use horchestra_core::object::Object;
use horchestra_core::owners;
use horchestra_core::status::Status;
use horchestra_store::{ClaimRow, Class, Entry, Guard, Item, MAX_OPS, Op, Relation};
use uuid::Uuid;

use super::draft::{as_owner, columns, draft, spec_of};
use super::{Attempt, Plan, Planned, clear_object, delete, protect_erased_namespace, tracking};
use crate::admission::{self, Demand, NODE_TEARDOWN, Verdict};
use crate::caller::{Caller, RequestContext};
use crate::errors::{door_error, door_status, modified};
use crate::placement;
use crate::request::{DeleteOptions, DoorError, Outcome, Propagation, Written};
use crate::service::Service;

impl Service {
    /// Deletes an object whose owners are gone or going, unless its metadata or spec has changed since.
    pub(crate) async fn collect_object(
        &self,
        context: &RequestContext,
        judged: &Entry,
        propagation: Propagation,
    ) -> Result<Outcome, DoorError> {
        let key = &judged.key;
        only_loops(context, key)?;
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let idle = AtomicBool::new(false);
        let written = self.run(context, "collect", key, false, |attempt: Attempt<'_>| {
            let old = attempt.view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
            if old.uid != judged.uid {
                return Err(Status::not_found(key.kind, &key.name));
            }
            if old.core_revision != judged.core_revision {
                return Err(modified(key));
            }
            if old.deleting {
                idle.store(true, Ordering::Relaxed);
                return Ok(Plan { change: Planned::Nothing(old), verdict: Verdict::default() });
            }
            delete::plan(self, context, &attempt, key, &old, &options)
        });
        outcome(written.await, &idle)
    }

    /// Takes the references to these owners off an object, and with the reference to the set that runs it the
    /// marks by which that set knows its children.
    pub(crate) async fn disown_object(
        &self,
        context: &RequestContext,
        judged: &Entry,
        uids: &[String],
    ) -> Result<Outcome, DoorError> {
        self.edit_judged(context, "disown", judged, |_, object, _| {
            let all = owners::owners(&judged.key, object);
            let set = |owner: &owners::Owner| owner.key.kind == Kind::ApplicationSet && owner.controller;
            let freed = all.iter().flatten().any(|owner| set(owner) && uids.contains(&owner.uid));
            if owners::disown(object, uids) && freed {
                admission::release_child(object);
            }
            Ok(())
        })
        .await
    }

    /// Takes the finalizer of a propagation policy off an owner that has nothing to wait for any more. With the
    /// last finalizer the object is gone. That no dependents are left to be freed is made sure of here.
    pub(crate) async fn let_owner_go(
        &self,
        context: &RequestContext,
        judged: &Entry,
        policy: Propagation,
    ) -> Result<Outcome, DoorError> {
        self.edit_judged(context, "collect", judged, |attempt, object, verdict| {
            let finalizer = match policy {
                Propagation::Background => return Ok(()),
                Propagation::Foreground => FOREGROUND,
                Propagation::Orphan => ORPHAN,
            };
            if !object.is_deleting() || !object.finalizers().contains(&finalizer) {
                return Ok(());
            }
            if !attempt.refused.is_empty() {
                // There are dependents again: they come first.
                return Err(modified(&judged.key));
            }
            admission::set_finalizer(object, finalizer, false);
            if policy == Propagation::Orphan {
                let target = as_owner(&judged.key, &judged.uid.to_string());
                verdict.demands.push(Demand {
                    guard: Guard::NoEdge { relation: Relation::Owner, target },
                    refusal: modified(&judged.key),
                });
            }
            Ok(())
        })
        .await
    }

    /// Stops waiting for a node that was given up, for an Application that is being deleted, as long as there is
    /// no such Node.
    pub(crate) async fn give_up_teardown(
        &self,
        context: &RequestContext,
        judged: &Entry,
    ) -> Result<Outcome, DoorError> {
        self.edit_judged(context, "forget", judged, |attempt, object, verdict| {
            let node = Key::cluster(Kind::Node, placement::node_of(object));
            let is_back = attempt.view.get(&node).is_some();
            if !object.is_deleting() || node.name.is_empty() || is_back {
                return Ok(());
            }
            release_teardown(object);
            verdict.demands.push(Demand { guard: Guard::Unchanged(node, 0), refusal: modified(&judged.key) });
            Ok(())
        })
        .await
    }

    pub(crate) async fn release_stray(
        &self,
        context: &RequestContext,
        claims: &[ClaimRow],
    ) -> Result<usize, DoorError> {
        let mut holds: Vec<(&str, Uuid)> =
            claims.iter().map(|claim| (claim.space.as_str(), claim.owner)).collect();
        holds.sort_unstable();
        holds.dedup();
        // An import can bring an object back under its old uid.
        let view = self.fresh().await.map_err(door_status)?;
        let uids: HashSet<Uuid> = holds.iter().map(|(_, owner)| *owner).collect();
        let alive: HashSet<Uuid> = Kind::ALL
            .into_iter()
            .flat_map(|kind| view.list(kind, None))
            .map(|entry| entry.uid)
            .filter(|uid| uids.contains(uid))
            .collect();
        holds.retain(|(_, owner)| !alive.contains(owner));
        for chunk in holds.chunks(MAX_OPS) {
            let release = |&(space, owner): &(&str, Uuid)| Op::Release { space: space.to_owned(), owner };
            let ops = chunk.iter().map(release).collect();
            let guards = context.caller.fence().into_iter().collect();
            let item = Item { ops, guards, who: context.attribution("collect") };
            let nothing = Key::cluster(Kind::Namespace, "");
            self.inner.store.commit(item).await.map_err(|error| door_error(&nothing, &error))?;
        }
        Ok(holds.len())
    }

    async fn edit_judged<F>(
        &self,
        context: &RequestContext,
        verb: &str,
        judged: &Entry,
        edit: F,
    ) -> Result<Outcome, DoorError>
    where
        F: Fn(&Attempt<'_>, &mut Object, &mut Verdict) -> Result<(), Status> + Send + Sync,
    {
        let key = &judged.key;
        only_loops(context, key)?;
        let spec = spec_of(key.kind).map_err(DoorError::Refused)?;
        let idle = AtomicBool::new(false);
        let written = self.run(context, verb, key, false, |attempt: Attempt<'_>| {
            let old = attempt.view.get(key).filter(|old| old.uid == judged.uid);
            let old = old.ok_or_else(|| Status::not_found(key.kind, &key.name))?;
            let stored = clear_object(&old)?;
            let mut object = stored.clone();
            let mut verdict = Verdict::default();
            edit(&attempt, &mut object, &mut verdict)?;
            idle.store(object == stored, Ordering::Relaxed);
            if object == stored {
                return Ok(Plan { change: Planned::Nothing(old), verdict: Verdict::default() });
            }
            if object.is_deleting() && object.finalizers().is_empty() {
                protect_erased_namespace(key, &mut verdict);
                return Ok(Plan { change: Planned::Erase(old), verdict });
            }
            let columns = columns(spec, &object);
            let managed = tracking::of_component(spec, context, Some((&old, &stored)), &object);
            let draft = draft(spec, key, &object, columns, managed)?;
            Ok(Plan { change: Planned::Update { draft, old, class: Class::Core }, verdict })
        });
        outcome(written.await, &idle)
    }
}

/// Takes the hold of its node off an Application.
pub(crate) fn release_teardown(object: &mut Object) {
    admission::set_finalizer(object, NODE_TEARDOWN, false);
}

fn only_loops(context: &RequestContext, key: &Key) -> Result<(), DoorError> {
    match context.caller {
        Caller::Loop { .. } => Ok(()),
        _ => {
            let why = "only the garbage collection does this";
            Err(DoorError::Refused(Status::forbidden(key.kind, &key.name, why)))
        }
    }
}

/// `idle`: the last plan had nothing to do.
fn outcome(written: Result<Written, Status>, idle: &AtomicBool) -> Result<Outcome, DoorError> {
    let written = written.map_err(door_status)?;
    let changed = !idle.load(Ordering::Relaxed);
    Ok(Outcome { entry: written.entry, changed, erased: written.erased })
}
