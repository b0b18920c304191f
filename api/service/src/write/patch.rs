//! Patch: read, change, judge, write; again when somebody else was faster.
//!
//! A patch that names no resourceVersion is about what it changes and nothing else, so a write that came in
//! between is no conflict: the patch is applied to the newer object. One that names a resourceVersion (or
//! tests it) means that version. The identity of the object is not a patch's to change: whatever it says
//! about name, namespace and uid is passed over.

use horchestra_core::kind::Key;
use horchestra_core::object::Object;
use horchestra_core::patch;
use horchestra_core::status::Status;
use horchestra_store::Entry;
use serde_json::Value;

use super::update::{Replacement, named_revision, stored_object};
use super::{Attempt, identity};
use crate::caller::RequestContext;
use crate::request::{Part, Patch, PatchType, WriteOptions, Written};
use crate::service::Service;

impl Service {
    pub(crate) async fn patch_object(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        patch: Patch,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let spec = options.shape(key.kind)?;
        let verb = if part == Part::Status { "status" } else { "patch" };
        self.run(context, verb, key, options.dry_run, |attempt: Attempt<'_>| {
            let old = attempt.view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
            let old = self.open(old)?;
            let mut shown = spec.shown(&stored_object(&old)?).into_owned();
            let head = old.revision.to_string();
            shown.set_metadata("resourceVersion", head.clone());
            let mut document = match patch.kind {
                PatchType::Merge => patch::merge(spec, &shown, &patch.document)?,
                PatchType::Json => {
                    show_managers(&old, &mut shown);
                    patch::json(spec, &shown, &patch.document)?
                }
            };
            keep_identity(key, &shown, &mut document.object);
            identity::bind(spec, &key.namespace, &mut document.object)?;
            // The head's own revision is there in any case; naming it says nothing more.
            let named = document.object.resource_version() != head;
            let revision = if named { named_revision(&document.object)? } else { 0 };
            let exact = options.exact_resource_version;
            let replacement = Replacement { document, revision, exact, applied: None };
            self.plan_replacement(context, &attempt, key, &old, part, replacement, options)
        })
        .await
    }
}

/// Puts the managers in: a JSON patch may test and change them in their places, whereas a merge patch only
/// ever replaces the whole list.
fn show_managers(old: &Entry, shown: &mut Object) {
    let managed = old.managed.as_deref().and_then(|managed| serde_json::from_slice::<Value>(managed).ok());
    if let Some(Value::Array(list)) = managed
        && !list.is_empty()
    {
        shown.set_metadata("managedFields", list);
    }
}

/// Puts back what makes the object the one that it is. A metadata of another type is left for the judgement.
fn keep_identity(key: &Key, shown: &Object, object: &mut Object) {
    if object.get("metadata").is_some_and(|metadata| !metadata.is_object() && !metadata.is_null()) {
        return;
    }
    let uid = shown.uid().to_owned();
    let metadata = object.metadata_mut();
    metadata.insert("name".to_owned(), key.name.clone().into());
    metadata.insert("uid".to_owned(), uid.into());
    if key.namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), key.namespace.clone().into());
    }
}
