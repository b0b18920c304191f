//! Delete: erase what nothing holds, mark what something does.
//!
//! An object with finalizers is marked: `deletionTimestamp` is set once and never moves, and whoever
//! removes the last finalizer erases the object in that very change. Because the item names the head that
//! it was judged on, an object that got its first finalizer in between (a bind) is judged again and marked
//! instead.
//!
//! # Dependents
//!
//! What names the object as its owner is garbage once the object is gone, and the garbage collection deletes it
//! then. That is `Background`, and what happens when a request says nothing. Two policies make the object wait:
//! with `Foreground` it is marked with the finalizer `foregroundDeletion` and goes after its dependents, with
//! `Orphan` it is marked with `orphan` and goes once they no longer name it.
//!
//! Most objects have no dependents, and then there is nothing to wait for: the object goes (or is marked for
//! other reasons) without any such finalizer, under the guard that nothing names it as its owner. Where that
//! guard fails, the deletion is planned again, with the finalizer. So nobody looks for dependents here, and none
//! that comes in between is overlooked.
//!
//! An ApplicationSet is held for the sake of its children under every policy, and always gets the finalizer of
//! the policy beside that: its controller reads `orphan`. A policy counts when the object is first deleted;
//! later ones change nothing, but for `Orphan`, which is still taken for the dependents that are left.

use std::sync::Arc;

use futures::StreamExt as _;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::metadata::{FOREGROUND, ORPHAN};
use horchestra_core::object::Object;
use horchestra_core::status::{Cause, Reason, Status};
use horchestra_store::{Class, Entry, Guard, Relation};
use serde_json::{Value, json};

use super::draft::{as_owner, columns, draft, spec_of};
use super::update::clear_object;
use super::{Attempt, Plan, Planned, Unwritten, tracking};
use crate::admission::{self, Attributes, CallerClass, Demand, Door, Operation, Verdict};
use crate::caller::RequestContext;
use crate::clock;
use crate::request::{Contents, DeleteOptions, Deleted, ListRequest, Propagation};
use crate::service::Service;

/// Deletions of a collection that are under way at the same time.
const AT_ONCE: usize = 16;

impl Service {
    pub(crate) async fn delete_object(
        &self,
        context: &RequestContext,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        Ok(self.delete_while(context, key, options, &[]).await?)
    }

    /// As [`Service::delete`], for as long as `conditions` hold.
    pub(crate) async fn delete_while(
        &self,
        context: &RequestContext,
        key: &Key,
        options: &DeleteOptions,
        conditions: &[Guard],
    ) -> Result<Deleted, Unwritten> {
        spec_of(key.kind)?;
        if let Some(seconds) = options.grace_period_seconds
            && seconds < 0
        {
            let cause = Cause::invalid(
                "gracePeriodSeconds",
                &seconds.to_string(),
                "must be greater than or equal to 0",
            );
            return Err(Status::invalid_options("DeleteOptions", vec![cause]).into());
        }
        let written = self
            .run_while(context, "delete", key, options.dry_run, conditions, |attempt: Attempt<'_>| {
                let old = attempt.view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
                check_preconditions(&old, options)?;
                plan(self, context, &attempt, key, &old, options)
            })
            .await?;
        Ok(Deleted { entry: written.entry, erased: written.erased, warnings: written.warnings })
    }
}

impl Service {
    /// Deletes what a listing selects, each object on its own. Objects that are gone, or replaced, by the time
    /// that it is their turn are passed over; any other refusal, a precondition that does not hold included, ends the
    /// call, with what was deleted before staying deleted.
    pub(crate) async fn delete_listed(
        &self,
        context: &RequestContext,
        request: ListRequest,
        options: &DeleteOptions,
    ) -> Result<Vec<Deleted>, Status> {
        // Deleting looks at the clear part only, so it needs no keys.
        let request = ListRequest { contents: Contents::Sealed, ..request };
        let listing = self.list_objects(request).await?;
        let deletions = listing.entries.into_iter().map(|entry| {
            let asked = check_preconditions(&entry, options);
            let mut options = options.clone();
            options.preconditions.uid = Some(entry.uid.to_string());
            async move {
                asked?;
                self.delete_object(context, &entry.key, &options).await
            }
        });
        let demands = options.preconditions.uid.is_some() || options.preconditions.resource_version.is_some();
        let mut deleted = Vec::new();
        let mut results = futures::stream::iter(deletions).buffered(AT_ONCE);
        while let Some(result) = results.next().await {
            match result {
                Ok(one) => deleted.push(one),
                Err(status) if status.reason == Reason::NotFound => {}
                // What somebody has made in its place meanwhile; a caller's own preconditions are another matter.
                Err(status) if status.reason == Reason::Conflict && !demands => {}
                Err(status) => return Err(status),
            }
        }
        Ok(deleted)
    }
}

pub(super) fn plan(
    service: &Service,
    context: &RequestContext,
    attempt: &Attempt<'_>,
    key: &Key,
    old: &Arc<Entry>,
    options: &DeleteOptions,
) -> Result<Plan, Status> {
    let spec = spec_of(key.kind)?;
    let stored = clear_object(old)?;
    let attributes = Attributes {
        caller: &context.caller,
        class: CallerClass::of(&context.caller),
        door: Door::Main,
        operation: Operation::Delete,
        key,
        old: Some(&stored),
        old_columns: Some(&old.columns),
        view: attempt.view,
        gates: service.config().gates,
        allocator: &service.inner.allocator,
    };
    let mut verdict = Verdict::default();
    admission::validate(&attributes, &stored, &old.columns, &mut verdict)?;
    let mut object = stored.clone();
    if waits_for_dependents(attempt, old, &stored, options.propagation, &mut verdict) {
        let orphan = options.propagation == Some(Propagation::Orphan);
        admission::set_finalizer(&mut object, ORPHAN, orphan);
        admission::set_finalizer(&mut object, FOREGROUND, !orphan);
    }
    if object.finalizers().is_empty() {
        return Ok(Plan { change: Planned::Erase(Arc::clone(old)), verdict });
    }
    mark(key.kind, &mut object, options.grace_period_seconds);
    if object == stored {
        return Ok(Plan { change: Planned::Nothing(Arc::clone(old)), verdict });
    }
    let columns = columns(spec, &object);
    let managed = tracking::of_component(spec, context, Some((old, &stored)), &object);
    let draft = draft(spec, key, &object, columns, managed)?;
    Ok(Plan { change: Planned::Update { draft, old: Arc::clone(old), class: Class::Core }, verdict })
}

/// Whether the object gets the finalizer of the policy. Where it does not although the policy would have it
/// wait, that rests on its having no dependents.
fn waits_for_dependents(
    attempt: &Attempt<'_>,
    old: &Entry,
    stored: &Object,
    policy: Option<Propagation>,
    verdict: &mut Verdict,
) -> bool {
    let policy = match policy {
        None | Some(Propagation::Background) => return false,
        Some(policy) => policy,
    };
    if stored.is_deleting() {
        return policy == Propagation::Orphan;
    }
    if old.key.kind == Kind::ApplicationSet && !stored.finalizers().is_empty() {
        return true;
    }
    let found = |guard: &Guard| matches!(guard, Guard::NoEdge { relation: Relation::Owner, .. });
    if attempt.refused.iter().any(found) {
        return true;
    }
    let why = "objects that it owns come and go all the time, try again";
    let refusal = Status::conflict(old.key.kind, &old.key.name, why);
    let target = as_owner(&old.key, &old.uid.to_string());
    verdict.demands.push(Demand { guard: Guard::NoEdge { relation: Relation::Owner, target }, refusal });
    false
}

/// Sets the deletion mark, unless there is one.
pub(crate) fn mark_deleted(kind: Kind, object: &mut Object) {
    if !object.is_deleting() {
        mark(kind, object, None);
    }
}

/// Sets the deletion mark. A later request can shorten the time that is granted, nothing else.
fn mark(kind: Kind, object: &mut Object, asked: Option<i64>) {
    let granted = object.at(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    let own = match kind {
        Kind::Application => {
            object.at(&["spec", "lifecycle", "terminationGracePeriodSeconds"]).and_then(Value::as_i64)
        }
        _ => None,
    };
    let grace = if object.is_deleting() {
        match (granted, asked) {
            (Some(granted), Some(asked)) => Some(granted.min(asked)),
            (granted, _) => granted,
        }
    } else {
        object.set_metadata("deletionTimestamp", clock::now());
        asked.or(own).or(Some(0))
    };
    if let Some(grace) = grace {
        object.set_metadata("deletionGracePeriodSeconds", json!(grace));
    }
}

fn check_preconditions(old: &Entry, options: &DeleteOptions) -> Result<(), Status> {
    let conflict = |what: &str, wanted: &str, is: String| {
        let why =
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {is}");
        Err(Status::conflict(old.key.kind, &old.key.name, why))
    };
    if let Some(uid) = &options.preconditions.uid
        && *uid != old.uid.to_string()
    {
        return conflict("UID", uid, old.uid.to_string());
    }
    if let Some(revision) = &options.preconditions.resource_version
        && *revision != old.revision.to_string()
    {
        return conflict("ResourceVersion", revision, old.revision.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_set_once_and_grace_only_shrinks() {
        let mut object = Object::from_value(json!({
            "metadata": {"finalizers": ["x.y/z"]},
            "spec": {"lifecycle": {"terminationGracePeriodSeconds": 30}},
        }))
        .unwrap();
        let grace = |object: &Object| object.at(&["metadata", "deletionGracePeriodSeconds"]).cloned();
        mark(Kind::Application, &mut object, None);
        assert!(object.is_deleting());
        assert_eq!(grace(&object), Some(json!(30)));
        object.set_metadata("deletionTimestamp", "2020-01-01T00:00:00Z");
        mark(Kind::Application, &mut object, Some(60));
        assert_eq!(grace(&object), Some(json!(30)));
        mark(Kind::Application, &mut object, Some(5));
        assert_eq!(grace(&object), Some(json!(5)));
        mark(Kind::Application, &mut object, None);
        assert_eq!(grace(&object), Some(json!(5)));
        assert_eq!(object.str_at(&["metadata", "deletionTimestamp"]), "2020-01-01T00:00:00Z");
    }
}
