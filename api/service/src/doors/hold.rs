//! Holds on what is sent to nodes, as people see and end them.
//!
//! What is in force is a matter of rows that gateways read; the condition `Held` of a Node shows it, and is
//! kept by a loop. The door `admit` ends the hold of one node: first it is made sure that the door would open, then
//! the hold is released, then the Node says so. Should the last step fail, the loop makes up for it.

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::node::CONDITION_HELD;
use horchestra_core::status::Status;
use horchestra_store::Class;

use super::Edit;
use crate::admission;
use crate::caller::RequestContext;
use crate::conditions::{self, Condition};
use crate::errors::read_status;
use crate::request::{DoorError, HoldVerdict, Order, Outcome, WriteOptions, Written};
use crate::service::Service;

impl Service {
    pub(super) async fn admit_node(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        if !options.dry_run {
            let trial = WriteOptions { dry_run: true, ..options.clone() };
            self.set_admitted(context, key, order, &trial).await?;
            let released = self.inner.store.release_hold(Some(&key.name)).await;
            if released.map_err(|error| read_status(&error))? {
                tracing::info!(node = key.name, "the hold of a node was released");
            }
        }
        self.set_admitted(context, key, order, options).await
    }

    async fn set_admitted(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.change_through(context, Door::Admit, key, order, options, |object, _| {
            if !conditions::is_true(object, admission::ADMITTED) {
                admission::set_admitted(object, true, "AdmittedByOperator", "");
            }
            conditions::clear(object, CONDITION_HELD);
            Ok(Edit::Write(Class::Status))
        })
        .await
    }

    pub(crate) async fn set_held(
        &self,
        context: &RequestContext,
        name: &str,
        verdict: Option<&HoldVerdict>,
    ) -> Result<Outcome, DoorError> {
        let key = Key::cluster(Kind::Node, name);
        self.edit(context, "status", &key, |_, object| {
            match verdict {
                None => conditions::clear(object, CONDITION_HELD),
                Some(HoldVerdict { reason, message }) => {
                    admission::ensure_node_status(object);
                    conditions::set(
                        object,
                        &Condition { kind: CONDITION_HELD, status: "True", reason, message, generation: 0 },
                    );
                }
            }
            Ok(Edit::Write(Class::Status))
        })
        .await
    }
}
