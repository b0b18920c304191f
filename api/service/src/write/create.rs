//! Create.

use horchestra_core::apply::{Managed, Manager};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::Guard;

use super::document;
use super::draft::{columns, draft, spec_of};
use super::{Attempt, Plan, Planned, Unwritten, identity, tracking};
use crate::admission::{self, Attributes, CallerClass, Door, Operation, Verdict};
use crate::caller::RequestContext;
use crate::doors::certificates;
use crate::request::{Body, Part, WriteOptions, Written};
use crate::service::Service;

/// How often a name is made up at most before it is judged whether it is taken.
const NAMES: usize = 8;

impl Service {
    pub(crate) async fn create_object(
        &self,
        context: &RequestContext,
        kind: Kind,
        namespace: &str,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        Ok(self.create_while(context, kind, namespace, body, options, &[]).await?)
    }

    /// As [`Service::create`], for as long as `conditions` hold.
    pub(crate) async fn create_while(
        &self,
        context: &RequestContext,
        kind: Kind,
        namespace: &str,
        body: Body,
        options: &WriteOptions,
        conditions: &[Guard],
    ) -> Result<Written, Unwritten> {
        let spec = options.shape(kind)?;
        let mut document = document::read(spec, body)?;
        identity::bind(spec, namespace, &mut document.object)?;
        let (key, made_up) = identity::new_key(spec, &mut document.object)?;
        self.require_keys(&key)?;
        if CallerClass::of(&context.caller).identified() {
            admission::refuse_deletion_mark(None, &document.object)
                .map_err(|denial| denial.into_status(&key))?;
        }
        if kind.has_status() {
            document.object.0.remove("status");
        }
        identity::stamp_new(&mut document.object, &key);
        let (object, warnings) = document::complete(spec, document, None, options)?;
        let manager = context.field_manager(options);
        self.run_while(context, "create", &key, options.dry_run, conditions, |attempt: Attempt<'_>| {
            let mut object = object.clone();
            let mut key = key.clone();
            // A made-up name that is taken, or turned out to be, is made up again.
            let mut again = attempt.number > 0;
            for _ in 0..NAMES {
                if !made_up || !(again || attempt.view.get(&key).is_some()) {
                    break;
                }
                object.metadata_mut().remove("name");
                (key, _) = identity::new_key(spec, &mut object)?;
                again = false;
            }
            plan(self, context, &attempt, &key, object, warnings.clone(), Author::Client(&manager))
                .map_err(|status| spec.reworded(status))
        })
        .await
    }
}

/// Who makes an object.
pub(super) enum Author<'a> {
    /// A client under this name of a manager.
    Client(&'a str),
    /// A manager that applied it; the managers have its fields already.
    Applier(&'a Manager, Managed),
}

/// Judges an object that is complete but for what admission adds.
pub(super) fn plan(
    service: &Service,
    context: &RequestContext,
    attempt: &Attempt<'_>,
    key: &Key,
    asked: Object,
    warnings: Vec<String>,
    author: Author<'_>,
) -> Result<Plan, Status> {
    let spec = spec_of(key.kind)?;
    let mut object = asked.clone();
    let mut verdict = Verdict { warnings, ..Verdict::default() };
    let attributes = Attributes {
        caller: &context.caller,
        class: CallerClass::of(&context.caller),
        door: Door::Main,
        operation: Operation::Create,
        key,
        old: None,
        old_columns: None,
        view: attempt.view,
        gates: service.config().gates,
        allocator: &service.inner.allocator,
    };
    admission::mutate(&attributes, &mut object, &mut verdict)?;
    if key.kind == Kind::CertificateSigningRequest {
        certificates::settle_new(context, attempt, &mut object, &mut verdict)?;
    }
    let columns = columns(spec, &object);
    admission::validate(&attributes, &object, &columns, &mut verdict)?;
    if attempt.view.get(key).is_some() {
        return Err(Status::already_exists(key.kind, &key.name));
    }
    let author = match author {
        Author::Client(name) => {
            tracking::Author::Client { name, part: Part::Main, asked: &asked, managed: Managed::new() }
        }
        Author::Applier(manager, managed) => tracking::Author::Applier { manager, asked: &asked, managed },
    };
    let managed = tracking::managers(spec, None, &object, author);
    let draft = draft(spec, key, &object, columns, managed)?;
    service.check_size(&draft)?;
    Ok(Plan { change: Planned::Create(draft), verdict })
}
