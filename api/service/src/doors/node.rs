//! What nodes say about themselves, and the verdict on their readiness.
//!
//! A node that shows up for the first time gets a Node of its name and nothing else of what it says about
//! metadata and spec: cordoned, so that nothing is placed there, and not admitted, so that nothing is sent
//! that could tear down what runs there. An operator who uncordons or admits it takes it in.

use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::names;
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Class, CommitError, Entry, Op, Refusal};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Edit;
use super::node_status;
use crate::admission;
use crate::caller::{Caller, RequestContext};
use crate::clock;
use crate::conditions::{self, Condition};
use crate::errors::door_error;
use crate::request::{DoorError, Outcome, Ready, ReadyVerdict};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::tracking;

impl Service {
    pub(crate) async fn register(
        &self,
        context: &RequestContext,
        name: &str,
        status: &Value,
    ) -> Result<Outcome, DoorError> {
        let key = own_key(context, name)?;
        if let Some(fault) = names::subdomain_fault(name) {
            return Err(DoorError::Refused(Status::bad_request(format!("the name of a node {fault}"))));
        }
        let reported = node_status::sanitize(name, status)?;
        let mut object = Object::default();
        object.set_metadata("name", name);
        object.set_metadata("uid", Uuid::new_v4().to_string());
        object.set_metadata("generation", json!(1));
        object.set_metadata("creationTimestamp", clock::now());
        object.0.insert("apiVersion".to_owned(), Kind::Node.api_version().into());
        object.0.insert("kind".to_owned(), Kind::Node.name().into());
        object.0.insert("spec".to_owned(), json!({"unschedulable": true}));
        node_status::overwrite(&mut object, reported);
        admission::set_admitted(
            &mut object,
            false,
            admission::SELF_REGISTERED,
            admission::SELF_REGISTERED_MESSAGE,
        );
        let spec = spec_of(Kind::Node).map_err(DoorError::Refused)?;
        let columns = columns(spec, &object);
        let managed = tracking::of_component(spec, context, None, &object);
        let draft = draft(spec, &key, &object, columns, managed).map_err(DoorError::Refused)?;
        match self.commit_door(context, "register", &key, Op::Create(draft.clone()), Vec::new()).await {
            Ok(revision) => {
                let entry = Arc::new(Entry::new(draft, revision, revision));
                Ok(Outcome { entry, changed: true, erased: false })
            }
            Err(CommitError::Refused(Refusal::AlreadyExists(_))) => {
                self.report_status(context, name, status).await
            }
            Err(error) => Err(door_error(&key, &error)),
        }
    }

    pub(crate) async fn report_status(
        &self,
        context: &RequestContext,
        name: &str,
        status: &Value,
    ) -> Result<Outcome, DoorError> {
        let key = own_key(context, name)?;
        let reported = node_status::sanitize(name, status)?;
        self.edit(context, "status", &key, |_, object| {
            node_status::overwrite(object, reported.clone());
            Ok(Edit::Write(Class::Status))
        })
        .await
    }

    pub(crate) async fn judge_node(
        &self,
        context: &RequestContext,
        name: &str,
        verdict: &ReadyVerdict,
    ) -> Result<Outcome, DoorError> {
        let key = Key::cluster(Kind::Node, name);
        let status = match verdict.ready {
            Ready::True => "True",
            Ready::False => "False",
            Ready::Unknown => "Unknown",
        };
        self.edit(context, "status", &key, |_, object| {
            admission::ensure_node_status(object);
            let (reason, message) = (&verdict.reason, &verdict.message);
            conditions::set(object, &Condition { kind: "Ready", status, reason, message, generation: 0 });
            Ok(Edit::Write(Class::Status))
        })
        .await
    }
}

/// A node speaks of itself only.
fn own_key(context: &RequestContext, name: &str) -> Result<Key, DoorError> {
    let key = Key::cluster(Kind::Node, name);
    match &context.caller {
        Caller::Node { name: own, .. } if own == name => Ok(key),
        _ => Err(DoorError::Refused(Status::forbidden(
            key.kind,
            &key.name,
            "only the node itself reports about it",
        ))),
    }
}
