//! Update, of the object and of its status: what PUT and PATCH have in common.

use std::sync::Arc;

use horchestra_core::apply::{Managed, Manager};
use horchestra_core::decode::Document;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::names;
use horchestra_core::object::Object;
use horchestra_core::sealed;
use horchestra_core::status::Status;
use horchestra_store::{Class, Draft, Entry, Guard, Revision};
use serde_json::json;

use super::document;
use super::draft::{columns, draft, spec_of};
use super::tracking::{self, Author};
use super::{Attempt, Plan, Planned, Unwritten, identity};
use crate::admission::{self, Attributes, CallerClass, Demand, Door, Operation, Verdict};
use crate::caller::RequestContext;
use crate::conditions;
use crate::errors;
use crate::request::{Body, Part, WriteOptions, Written};
use crate::service::Service;

/// What is to become of an object, wherever it came from.
pub(crate) struct Replacement {
    pub document: Document,
    /// The resourceVersion that the request named; 0 for none.
    pub revision: Revision,
    /// Whether only the very head is good enough.
    pub exact: bool,
    /// The manager that applied it, and the managers that this makes.
    pub applied: Option<(Manager, Managed)>,
}

impl Service {
    pub(crate) async fn update_object(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        Ok(self.update_while(context, key, part, body, options, &[]).await?)
    }

    /// As [`Service::update`], for as long as `conditions` hold.
    pub(crate) async fn update_while(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        body: Body,
        options: &WriteOptions,
        conditions: &[Guard],
    ) -> Result<Written, Unwritten> {
        let spec = options.shape(key.kind)?;
        let mut document = document::read(spec, body)?;
        identity::bind(spec, &key.namespace, &mut document.object)?;
        names::bind_name(&document.object, &key.name)?;
        let revision = named_revision(&document.object)?;
        let uid = document.object.uid().to_owned();
        let verb = if part == Part::Status { "status" } else { "update" };
        self.run_while(context, verb, key, options.dry_run, conditions, |attempt: Attempt<'_>| {
            let old = attempt.view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
            let old = self.open(old)?;
            if !uid.is_empty() && uid != old.uid.to_string() {
                let why = format!("its uid is {}, not {uid} as in the body", old.uid);
                return Err(Status::conflict(key.kind, &key.name, why));
            }
            let exact = options.exact_resource_version;
            let replacement = Replacement { document: document.clone(), revision, exact, applied: None };
            self.plan_replacement(context, &attempt, key, &old, part, replacement, options)
        })
        .await
    }

    /// Judges a replacement against the stored object.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn plan_replacement(
        &self,
        context: &RequestContext,
        attempt: &Attempt<'_>,
        key: &Key,
        old: &Arc<Entry>,
        part: Part,
        replacement: Replacement,
        options: &WriteOptions,
    ) -> Result<Plan, Status> {
        let spec = spec_of(key.kind)?;
        let stored = stored_object(old)?;
        let class = CallerClass::of(&context.caller);
        let attributes = Attributes {
            caller: &context.caller,
            class,
            door: if part == Part::Status { Door::Status } else { Door::Main },
            operation: Operation::Update,
            key,
            old: Some(&stored),
            old_columns: Some(&old.columns),
            view: attempt.view,
            gates: self.config().gates,
            allocator: &self.inner.allocator,
        };
        let Replacement { mut document, revision, exact, applied } = replacement;
        let sent = document.object.at(&["metadata", "managedFields"]);
        let mut managed = match part {
            Part::Main => Managed::from_client(sent),
            Part::Status => None,
        };
        if revision != 0
            && revision != old.revision
            && let Some(managed) = &mut managed
        {
            // Who reported meanwhile is not in what the client has read, and has not gone for that.
            managed.replace_subresource(tracking::STATUS, &tracking::stored(old));
        }
        let exact = match part {
            Part::Main => {
                if class.identified() {
                    admission::refuse_deletion_mark(Some(&stored), &document.object)
                        .map_err(|denial| denial.into_status(key))?;
                }
                document.object = main_part(key, document.object, &stored);
                exact
            }
            Part::Status => {
                document.object = status_part(key, &document.object, &stored);
                true
            }
        };
        let shape = options.shape(key.kind)?;
        let (asked, warnings) = document::complete(shape, document, Some(&stored), options)?;
        let mut object = asked.clone();
        let mut verdict = Verdict { warnings, ..Verdict::default() };
        admission::mutate(&attributes, &mut object, &mut verdict)?;
        // Before anything is derived from the object: a finished job that is edited counts again.
        if part == Part::Main && identity::wants_something_else(&stored, &object) {
            object.set_metadata("generation", json!(stored.generation() + 1));
        }
        let columns = columns(spec, &object);
        admission::validate(&attributes, &object, &columns, &mut verdict)
            .map_err(|status| shape.reworded(status))?;
        check_revision(old, revision, exact)?;
        if object.is_deleting() && object.finalizers().is_empty() {
            protect_erased_namespace(key, &mut verdict);
            return Ok(Plan { change: Planned::Erase(Arc::clone(old)), verdict });
        }
        let name = context.field_manager(options);
        let author = match &applied {
            Some((manager, managed)) => Author::Applier { manager, asked: &asked, managed: managed.clone() },
            None => {
                let managed = managed.unwrap_or_else(|| tracking::stored(old));
                Author::Client { name: &name, part, asked: &asked, managed }
            }
        };
        let managed = tracking::managers(spec, Some((old, &stored)), &object, author);
        let draft = draft(spec, key, &object, columns, managed)?;
        self.check_size(&draft)?;
        Ok(Plan { change: change(old, draft, part), verdict })
    }

    /// 413 for what is too large to keep.
    pub(super) fn check_size(&self, draft: &Draft) -> Result<(), Status> {
        let limit = self.inner.config.object_limit;
        let size = draft.body.len() + draft.managed.as_ref().map_or(0, |managed| managed.len());
        if size > limit {
            return Err(Status::too_large(format!("the object has {size} bytes, limit is {limit}")));
        }
        Ok(())
    }
}

/// The stored object without its resourceVersion, as new versions are compared with it. One of a sealed kind
/// has to be opened before.
pub(crate) fn stored_object(entry: &Entry) -> Result<Object, Status> {
    let object = clear_object(entry)?;
    if entry.key.kind.is_sealed() && object.get(sealed::MEMBER).is_some() {
        tracing::error!(key = %entry.key, "an object was to be changed without being opened");
        return Err(Status::internal("the object was not opened"));
    }
    Ok(object)
}

/// As [`stored_object`], for changes that are about the clear part of an object alone: of a sealed kind, its
/// contents are carried along sealed.
pub(crate) fn clear_object(entry: &Entry) -> Result<Object, Status> {
    let mut object = entry.object().map_err(|error| {
        tracing::error!(key = %entry.key, %error, "a stored object cannot be read");
        Status::internal("the stored object cannot be read")
    })?;
    object.metadata_mut().remove("resourceVersion");
    Ok(object)
}

/// A write that changes nothing is none.
fn change(old: &Arc<Entry>, draft: Draft, part: Part) -> Planned {
    if draft.body == old.body && draft.managed == old.managed {
        return Planned::Nothing(Arc::clone(old));
    }
    let class = if part == Part::Status { Class::Status } else { Class::Core };
    Planned::Update { draft, old: Arc::clone(old), class }
}

fn main_part(key: &Key, mut object: Object, stored: &Object) -> Object {
    identity::carry_over(&mut object, key, stored);
    if key.kind.has_status() {
        object.0.remove("status");
        if let Some(status) = stored.get("status") {
            object.0.insert("status".to_owned(), status.clone());
        }
    }
    object
}

/// The stored object with another status. What a Node's status shows beside what is stored (heartbeat,
/// allocation) does not come back in. The address of a workload is what it was leased: all nodes route to it, so no
/// writer of a status says what it is.
fn status_part(key: &Key, object: &Object, stored: &Object) -> Object {
    let mut new = stored.clone();
    match object.get("status") {
        Some(status) if !status.is_null() => {
            new.0.insert("status".to_owned(), status.clone());
        }
        _ => {
            new.0.remove("status");
        }
    }
    if key.kind == Kind::Application && new.get("status").is_some_and(serde_json::Value::is_object) {
        let status = conditions::status_mut(&mut new);
        match stored.at(&["status", "address"]) {
            Some(address) => status.insert("address".to_owned(), address.clone()),
            None => status.remove("address"),
        };
    }
    if key.kind == Kind::Node && new.get("status").is_none_or(serde_json::Value::is_object) {
        let status = conditions::status_mut(&mut new);
        status.remove("heartbeat");
        status.remove("allocated");
        if let Some(allocated) = stored.at(&["status", "allocated"]) {
            status.insert("allocated".to_owned(), allocated.clone());
        }
        admission::ensure_node_status(&mut new);
    }
    new
}

/// The resourceVersion in a body: 0 when it names none.
pub(super) fn named_revision(object: &Object) -> Result<Revision, Status> {
    parse_named(object.resource_version())
}

pub(crate) fn parse_named(text: &str) -> Result<Revision, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    crate::read::parse_revision(text)
        .ok_or_else(|| Status::bad_request(format!("invalid resource version in the body: {text:?}")))
}

/// A named revision must not be older than the last change to anything but status: a report from a node
/// between a client's read and its write is no conflict. Where exactness is asked for, only the head will
/// do.
pub(crate) fn check_revision(old: &Entry, named: Revision, exact: bool) -> Result<(), Status> {
    let good =
        if exact { named == old.revision } else { (old.core_revision..=old.revision).contains(&named) };
    if named == 0 || good { Ok(()) } else { Err(errors::modified(&old.key)) }
}

/// Whatever way a Namespace is erased, it is empty at that moment.
pub(crate) fn protect_erased_namespace(key: &Key, verdict: &mut Verdict) {
    if key.kind == Kind::Namespace {
        verdict.demands.push(Demand {
            guard: Guard::NamespaceEmpty(key.name.clone()),
            refusal: Status::forbidden(key.kind, &key.name, "it is not empty; delete what it holds first"),
        });
    }
}
