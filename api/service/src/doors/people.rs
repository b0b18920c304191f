//! Doors for operators: cordon, uncordon, admit.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_store::Class;
use serde_json::{Value, json};

use crate::admission;
use crate::caller::RequestContext;
use crate::request::{Part, Patch, PatchType, WriteOptions, Written};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{Attempt, Plan, Planned, stored_object, tracking};

impl Service {
    pub(crate) async fn cordon_node(
        &self,
        context: &RequestContext,
        node: &str,
        unschedulable: bool,
    ) -> Result<Written, Status> {
        let value = if unschedulable { Value::Bool(true) } else { Value::Null };
        let document = json!({"spec": {"unschedulable": value}}).to_string();
        let patch = Patch { kind: PatchType::Merge, document: document.into() };
        let key = Key::cluster(Kind::Node, node);
        self.patch_object(context, &key, Part::Main, patch, &WriteOptions::default()).await
    }

    pub(crate) async fn admit_node(&self, context: &RequestContext, node: &str) -> Result<Written, Status> {
        let key = &Key::cluster(Kind::Node, node);
        let spec = spec_of(Kind::Node)?;
        self.run(context, "admit", key, false, |attempt: Attempt<'_>| {
            let old = attempt.view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
            let stored = stored_object(&old)?;
            let mut object = stored.clone();
            let verdict = admission::Verdict::default();
            if crate::conditions::is_true(&object, admission::ADMITTED) {
                return Ok(Plan { change: Planned::Nothing(old), verdict });
            }
            admission::set_admitted(&mut object, true, "AdmittedByOperator", "");
            let columns = columns(spec, &object);
            let managed = tracking::of_component(spec, context, Some((&old, &stored)), &object);
            let draft = draft(spec, key, &object, columns, managed)?;
            Ok(Plan { change: Planned::Update { draft, old, class: Class::Status }, verdict })
        })
        .await
    }
}
