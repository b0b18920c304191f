//! Doors for people: freeze, thaw, cordon, uncordon, rollback; and admit, finalize, forget, approve and deny, which
//! are told of in [`super::hold`], [`super::finalize`], [`super::forget`] and [`super::certificates`].
//!
//! Each is permitted on its own, so that somebody may stop a workload's changes without being able to change
//! it. What they share: the object must be the one that the caller means (its uid, and its version by the rule
//! for updates), a dry run judges everything and stores nothing, asking for what is already so changes
//! nothing, and the history tells which door it was.
//!
//! Cordon, uncordon and rollback are ordinary updates that the server writes itself, so every rule about
//! updates applies to them. All others set one thing that no update can set and leave the rest as it is
//! stored ([`Service::change_through`]); there is nothing in them for those rules to judge, and an object that
//! today's rules would refuse must still be possible to freeze. A node's certificate opens none of these doors,
//! whatever was granted to it: a node must not decide about itself, nor about the work of others.
//!
//! # What a freeze means
//!
//! At once and for sure: the control plane leaves the object alone. The scheduler does not place it and loops
//! do not write it. Whether the workload is held still is the node's to say: an agent that knows how to
//! reports the phase `Frozen`, and only then is the condition `Frozen` true. Older agents ignore the member,
//! and the condition keeps saying that a freeze was asked for.

use std::sync::Arc;

use horchestra_core::decode::Document;
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Class, Entry, Snapshot};
use serde_json::{Map, Value};

use super::Edit;
use crate::admission::{CallerClass, Verdict};
use crate::caller::RequestContext;
use crate::conditions::{self, Condition};
use crate::placement;
use crate::request::{Order, Part, WriteOptions, Written};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{
    Attempt, Plan, Planned, Replacement, check_revision, clear_object, parse_named, protect_erased_namespace,
    stored_object, tracking,
};

/// What is told to whoever freezes a workload.
const OLD_AGENTS: &str = "agents of line 0.9 ignore a freeze: the node holds the workload still once the \
                          condition Frozen is True, until then only the control plane leaves it alone";

impl Service {
    pub(crate) async fn act_on_node(
        &self,
        context: &RequestContext,
        node: &str,
        door: Door,
    ) -> Result<Written, Status> {
        let key = Key::cluster(Kind::Node, node);
        self.act_through(context, &key, door, &Order::default(), &WriteOptions::default()).await
    }

    pub(crate) async fn act_through(
        &self,
        context: &RequestContext,
        key: &Key,
        door: Door,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        if !door.opens(key.kind) {
            return Err(Status::no_such_route());
        }
        if CallerClass::of(&context.caller) == CallerClass::NodeIdentity {
            let why = format!("a node's certificate does not open the door \"{}\"", door.name());
            return Err(Status::forbidden(key.kind, &key.name, why));
        }
        match door {
            Door::Rollback => self.roll_back(context, key, order, options).await,
            Door::Finalize => self.finalize(context, key, order, options).await,
            Door::Forget => self.forget(context, key, order, options).await,
            Door::Approve => self.approve(context, key, order, options).await,
            Door::Deny => self.deny(context, key, order, options).await,
            Door::Cordon | Door::Uncordon => {
                self.set_unschedulable_node(context, key, door, order, options).await
            }
            Door::Admit => self.admit_node(context, key, order, options).await,
            Door::Freeze | Door::Thaw => self.set_door_owned(context, key, door, order, options).await,
            Door::Revisions => Err(Status::method_not_allowed("POST")),
        }
    }

    /// Goes through a door that changes what no update can change. `change` is given the stored object, the clear part
    /// of it where the kind is a sealed one, and the warnings of the answer. What it leaves is stored, unless that is
    /// what was there.
    pub(super) async fn change_through(
        &self,
        context: &RequestContext,
        door: Door,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
        change: impl Fn(&mut Object, &mut Vec<String>) -> Result<Edit, Status> + Send + Sync,
    ) -> Result<Written, Status> {
        let spec = spec_of(key.kind)?;
        let revision = named(order)?;
        self.run(context, door.name(), key, options.dry_run, |attempt: Attempt<'_>| {
            let old = meant(attempt.view, key, order)?;
            check_revision(&old, revision, options.exact_resource_version)?;
            let stored = clear_object(&old)?;
            let mut object = stored.clone();
            let mut verdict = Verdict::default();
            let class = match change(&mut object, &mut verdict.warnings)? {
                Edit::Write(class) => class,
                Edit::Erase => {
                    protect_erased_namespace(key, &mut verdict);
                    return Ok(Plan { change: Planned::Erase(old), verdict });
                }
            };
            if object == stored {
                return Ok(Plan { change: Planned::Nothing(old), verdict });
            }
            let columns = columns(spec, &object);
            let managed = tracking::of_component(spec, context, Some((&old, &stored)), &object);
            let draft = draft(spec, key, &object, columns, managed)?;
            Ok(Plan { change: Planned::Update { draft, old, class }, verdict })
        })
        .await
    }

    /// The same as an update of `spec.unschedulable`.
    async fn set_unschedulable_node(
        &self,
        context: &RequestContext,
        key: &Key,
        door: Door,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let revision = named(order)?;
        self.run(context, door.name(), key, options.dry_run, |attempt: Attempt<'_>| {
            let old = meant(attempt.view, key, order)?;
            let mut object = stored_object(&old)?;
            set_flag(&mut object, "unschedulable", door == Door::Cordon);
            let document = Document { object, ..Document::default() };
            let replacement =
                Replacement { document, revision, exact: options.exact_resource_version, applied: None };
            self.plan_replacement(context, &attempt, key, &old, Part::Main, replacement, options)
        })
        .await
    }

    async fn set_door_owned(
        &self,
        context: &RequestContext,
        key: &Key,
        door: Door,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.change_through(context, door, key, order, options, |object, warnings| {
            Ok(Edit::Write(match door {
                Door::Freeze => {
                    if key.kind == Kind::Application {
                        warnings.push(OLD_AGENTS.to_owned());
                    }
                    freeze(key.kind, object);
                    Class::Core
                }
                _ => {
                    thaw(object);
                    Class::Core
                }
            }))
        })
        .await
    }
}

/// The version that the caller has in mind; 0 for none.
pub(crate) fn named(order: &Order) -> Result<i64, Status> {
    parse_named(order.resource_version.as_deref().unwrap_or(""))
}

/// The object of this key, if it is the one that the caller means.
pub(crate) fn meant(view: &Snapshot, key: &Key, order: &Order) -> Result<Arc<Entry>, Status> {
    let entry = view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
    match &order.uid {
        Some(uid) if *uid != entry.uid.to_string() => {
            let why = format!("its uid is {}, not {uid} as in the body", entry.uid);
            Err(Status::conflict(key.kind, &key.name, why))
        }
        _ => Ok(entry),
    }
}

/// Sets a member of the spec, or takes it out where it is not wanted.
fn set_flag(object: &mut Object, member: &str, wanted: bool) {
    if !wanted {
        if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove(member);
        }
        return;
    }
    let spec = object.0.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Some(spec) = spec.as_object_mut() {
        spec.insert(member.to_owned(), Value::Bool(true));
    }
}

fn freeze(kind: Kind, object: &mut Object) {
    if placement::is_frozen(object) {
        return;
    }
    set_flag(object, "frozen", true);
    if kind == Kind::Application {
        placement::await_freeze(object);
    } else {
        // There is nothing to hold still but the control plane itself.
        let generation = object.generation();
        let message = "the control plane leaves the set and its children as they are";
        conditions::set(
            object,
            &Condition { kind: placement::FROZEN, status: "True", reason: "Requested", message, generation },
        );
    }
}

fn thaw(object: &mut Object) {
    set_flag(object, "frozen", false);
    conditions::clear(object, placement::FROZEN);
}
