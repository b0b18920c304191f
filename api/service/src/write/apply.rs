//! Apply: what a manager wants of an object, made so, whatever others want of the rest.
//!
//! The document names fields, not an object: it is put into the stored object (or becomes one), and what
//! comes out is judged like any other write. Only what the request may write is taken from it: through the
//! object itself everything but `status` and what doors own, through `status` that alone. Everything else
//! that it says is passed over, so that a document which was read from the server can be applied as it is.
//!
//! Another writer in between is no conflict unless it set the same fields; a resourceVersion in the document
//! makes the apply conditional, a uid says which object is meant.

use std::sync::Arc;

use horchestra_core::admit::{self, Media};
use horchestra_core::apply::{self, Configuration, Managed, Manager, Operation, conflict_status};
use horchestra_core::decode::Document;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::names;
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::status::Status;
use horchestra_core::time::Time;
use horchestra_store::{Entry, Revision};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::document;
use super::draft::spec_of;
use super::tracking;
use super::update::{Replacement, named_revision, stored_object};
use super::{Attempt, Plan, create, identity};
use crate::admission::{self, CallerClass};
use crate::caller::RequestContext;
use crate::errors;
use crate::request::{Apply, Part, WriteOptions, Written};
use crate::service::Service;

/// The request, as far as it does not depend on what is stored.
struct Wanted {
    document: Document,
    manager: Manager,
    part: Part,
    force: bool,
    revision: Revision,
    uid: String,
}

impl Service {
    pub(crate) async fn apply_object(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        request: Apply,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let spec = spec_of(key.kind)?;
        self.require_keys(key)?;
        let Some(name) = &options.field_manager else {
            return Err(Status::bad_request("PatchOptions: fieldManager is required for an apply"));
        };
        let mut document = read(spec, &request.document)?;
        if document.object.at(&["metadata", "managedFields"]).is_some_and(|managed| !managed.is_null()) {
            return Err(Status::bad_request("metadata.managedFields must be absent from what is applied"));
        }
        identity::bind(spec, &key.namespace, &mut document.object)?;
        if document.object.name().is_empty() {
            document.object.set_metadata("name", key.name.as_str());
        }
        names::bind_name(&document.object, &key.name)?;
        let subresource = if part == Part::Status { "status" } else { "" };
        let wanted = Wanted {
            manager: Manager::new(name, Operation::Apply, key.kind.api_version(), subresource),
            part,
            force: request.force,
            revision: named_revision(&document.object)?,
            uid: document.object.uid().to_owned(),
            document,
        };
        self.run(context, "apply", key, options.dry_run, |attempt: Attempt<'_>| match attempt.view.get(key) {
            Some(old) => self.plan_applied(context, &attempt, key, &self.open(old)?, &wanted, options),
            None => match &request.refuse_create {
                _ if part == Part::Status => Err(Status::not_found(key.kind, &key.name)),
                Some(refusal) => Err(refusal.clone()),
                None => self.plan_made(context, &attempt, key, &wanted, options),
            },
        })
        .await
    }

    /// An apply to an object that is there.
    fn plan_applied(
        &self,
        context: &RequestContext,
        attempt: &Attempt<'_>,
        key: &Key,
        old: &Arc<Entry>,
        wanted: &Wanted,
        options: &WriteOptions,
    ) -> Result<Plan, Status> {
        let spec = spec_of(key.kind)?;
        if !wanted.uid.is_empty() && wanted.uid != old.uid.to_string() {
            let why = format!("its uid is {}, not {} as in the body", old.uid, wanted.uid);
            return Err(Status::conflict(key.kind, &key.name, why));
        }
        let stored = stored_object(old)?;
        refuse_mark(context, key, Some(&stored), wanted)?;
        let (applied, warnings) =
            configure(spec, key, wanted, Some(&stored), &tracking::stored(old), options)?;
        let replacement = Replacement {
            document: Document { object: applied.object, ..Document::default() },
            revision: wanted.revision,
            exact: options.exact_resource_version,
            applied: Some((wanted.manager.clone(), applied.managed)),
        };
        let mut plan =
            self.plan_replacement(context, attempt, key, old, wanted.part, replacement, options)?;
        plan.verdict.warnings.extend(warnings);
        Ok(plan)
    }

    /// An apply that makes an object.
    fn plan_made(
        &self,
        context: &RequestContext,
        attempt: &Attempt<'_>,
        key: &Key,
        wanted: &Wanted,
        options: &WriteOptions,
    ) -> Result<Plan, Status> {
        let spec = spec_of(key.kind)?;
        if !wanted.uid.is_empty() {
            let why = format!("there is no object, and so none of uid {}", wanted.uid);
            return Err(Status::conflict(key.kind, &key.name, why));
        }
        if wanted.revision != 0 {
            return Err(errors::modified(key));
        }
        refuse_mark(context, key, None, wanted)?;
        let (applied, mut warnings) = configure(spec, key, wanted, None, &Managed::new(), options)?;
        let mut document = Document { object: applied.object, ..Document::default() };
        // The name is judged as that of any new object.
        document.object.set_metadata("name", key.name.as_str());
        identity::new_key(spec, &mut document.object)?;
        identity::stamp_new(&mut document.object, key);
        let (object, more) = document::complete(spec, document, None, options)?;
        warnings.extend(more);
        let author = create::Author::Applier(&wanted.manager, applied.managed);
        create::plan(self, context, attempt, key, object, warnings, author)
    }
}

/// Reads the document: YAML, of which JSON is a part but for its escapes of characters beyond 16 bits.
fn read(spec: &KindSpec, body: &[u8]) -> Result<Document, Status> {
    if body.trim_ascii_start().first() == Some(&b'{') {
        match admit::decode(spec, Media::Json, body) {
            Err(status) if status.code() == 400 => {}
            read => return read,
        }
    }
    admit::decode(spec, Media::Yaml, body)
}

fn refuse_mark(
    context: &RequestContext,
    key: &Key,
    stored: Option<&Object>,
    wanted: &Wanted,
) -> Result<(), Status> {
    if !CallerClass::of(&context.caller).identified() {
        return Ok(());
    }
    admission::refuse_deletion_mark(stored, &wanted.document.object).map_err(|denial| denial.into_status(key))
}

fn configure(
    spec: &KindSpec,
    key: &Key,
    wanted: &Wanted,
    stored: Option<&Object>,
    managed: &Managed,
    options: &WriteOptions,
) -> Result<(apply::Applied, Vec<String>), Status> {
    let admitted = admit::configuration(spec, wanted.document.clone(), stored, options.field_validation)?;
    let mut fields = admitted.object;
    cut(key.kind, wanted.part, &mut fields);
    let configuration = Configuration {
        manager: &wanted.manager,
        fields: &fields,
        document: &wanted.document.object,
        force: wanted.force,
    };
    let now = Time::new(Timestamp::now());
    let applied = apply::apply(spec.schema(), stored, configuration, managed, now)
        .map_err(|conflicts| conflict_status(key, &conflicts))?;
    Ok((applied, admitted.warnings))
}

/// Takes out what the request cannot write.
fn cut(kind: Kind, part: Part, fields: &mut Object) {
    match part {
        Part::Main => {
            if kind.has_status() {
                fields.0.remove("status");
            }
            admission::strip_door_owned(kind, fields);
        }
        Part::Status => {
            fields.0.retain(|member, _| matches!(member.as_str(), "apiVersion" | "kind" | "status"));
            fields.0.insert("metadata".to_owned(), Value::Object(Map::new()));
        }
    }
}
