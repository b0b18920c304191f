//! Placement: the scheduler's two doors.
//!
//! A bind is one item: the node's name, the hold of the node, the new generation and the end of whatever was
//! said about not being placed come together or not at all, under the guards that the node exists, that it
//! still has the room (summed over everything placed on it, binds of the same batch included) and that the
//! scheduler still leads. The item names the revision that the decision was made from, so an edit, a pin by
//! the author or a deletion in between sends the decision back instead of being overwritten. Volumes of the
//! Application come along ([`super::volumes`]).
//!
//! A bind goes on with the trace of the change that it answers, the last one to anything but the status.

use futures::future::join_all;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::object::Object;
use horchestra_store::{Attribution, Class, Entry, Guard, Item, Op, Revision};
use horchestra_trace::{Role, attribute};
use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::volumes::{Provision, provision};
use crate::admission::{self, NODE_TEARDOWN};
use crate::caller::RequestContext;
use crate::conditions::{self, Condition};
use crate::errors::door_error;
use crate::placement::{self, SCHEDULED};
use crate::request::{Binding, DoorError, Outcome};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{stored_object, tracking};

impl Service {
    pub(crate) async fn bind_applications(
        &self,
        context: &RequestContext,
        bindings: Vec<Binding>,
    ) -> Vec<Result<Outcome, DoorError>> {
        join_all(bindings.iter().map(|binding| self.bind_one(context, binding))).await
    }

    async fn bind_one(&self, context: &RequestContext, binding: &Binding) -> Result<Outcome, DoorError> {
        let key = &binding.key;
        let spec = spec_of(key.kind).map_err(DoorError::Refused)?;
        let view = self.inner.store.snapshot();
        let entry = view.get(key).ok_or(DoorError::Gone)?;
        if entry.uid != binding.uid || entry.deleting {
            return Err(DoorError::Gone);
        }
        if entry.revision != binding.revision {
            return Err(DoorError::Changed);
        }
        let cause = context.trace.or_else(|| self.inner.store.trace_of(entry.core_revision));
        let span = horchestra_trace::child("bind", Role::Consumer, cause);
        if span.is_recorded() {
            span.set(|| {
                [
                    attribute("horchestra.namespace", key.namespace.clone()),
                    attribute("horchestra.name", key.name.clone()),
                    attribute("horchestra.node", binding.node.clone()),
                ]
            });
            // The pass, which may have been woken by others.
            horchestra_trace::current().into_iter().for_each(|pass| span.link(pass));
        }
        let stored = stored_object(&entry).map_err(DoorError::Refused)?;
        let mut object = stored.clone();
        if !placement::node_of(&object).is_empty() || placement::is_frozen(&object) {
            return Err(DoorError::Changed);
        }
        place(&mut object, &binding.node);
        let columns = columns(spec, &object);
        let managed = tracking::of_component(spec, context, Some((&entry, &stored)), &object);
        let draft = draft(spec, key, &object, columns, managed).map_err(DoorError::Refused)?;
        let node = Key::cluster(Kind::Node, binding.node.clone());
        let mut guards: Vec<Guard> = context.caller.fence().into_iter().collect();
        guards.push(Guard::Exists(node.clone()));
        guards.push(Guard::Capacity { node: binding.node.clone(), zero_is_unbounded: false });
        guards.extend(binding.node_revision.map(|revision| Guard::Unchanged(node, revision)));
        let application = entry.typed::<Application>().map_err(|_| DoorError::Changed)?;
        let Provision { mut ops, guards: volumes } = provision(context, &view, &application, &binding.node)?;
        guards.extend(volumes);
        ops.push(Op::Update { draft: draft.clone(), expect: entry.revision, class: Class::Core });
        let who = Attribution { trace: span.trace().or(cause), ..context.attribution("bind") };
        match self.inner.store.commit(Item { ops, guards, who }).await {
            Ok(committed) => {
                let revision = committed.revisions.last().copied().unwrap_or_default();
                let entry = Arc::new(Entry::new(draft, revision, revision));
                Ok(Outcome { entry, changed: true, erased: false })
            }
            Err(error) => {
                span.fail(|| error.to_string().into());
                Err(door_error(key, &error))
            }
        }
    }

    pub(crate) async fn mark_unschedulable(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        message: &str,
    ) -> Result<Outcome, DoorError> {
        self.edit(context, "status", key, |entry, object| {
            if entry.deleting {
                return Err(DoorError::Gone);
            }
            // What was found out about an older version need not hold for this one.
            let placed = !placement::node_of(object).is_empty();
            if entry.revision != revision || placed {
                return Err(DoorError::Changed);
            }
            let generation = entry.generation;
            let status = conditions::status_mut(object);
            status.insert("phase".to_owned(), "Pending".into());
            status.insert("message".to_owned(), message.into());
            let wanted =
                Condition { kind: SCHEDULED, status: "False", reason: "Unschedulable", message, generation };
            conditions::set(object, &wanted);
            Ok(super::Edit::Write(Class::Status))
        })
        .await
    }
}

/// Everything that placing an Application changes in it.
fn place(object: &mut Object, node: &str) {
    let generation = object.generation() + 1;
    object.set_metadata("generation", json!(generation));
    let spec = object.0.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Some(spec) = spec.as_object_mut() {
        let placement = spec.entry("placement").or_insert_with(|| Value::Object(Map::new()));
        if !placement.is_object() {
            *placement = Value::Object(Map::new());
        }
        placement["nodeName"] = node.into();
    }
    admission::set_finalizer(object, NODE_TEARDOWN, true);
    placement::mark_placed(object, generation);
}
