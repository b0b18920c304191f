//! Who asks, and what that makes of a write.
//!
//! A [`Caller`] has no default and is never optional, so a request whose identity got lost on the way
//! cannot pass for an internal writer. Everything that depends on the kind of caller is derived here or in
//! the admission table: the name in the change log, and the fence. An internal writer acts on behalf of a
//! term (a lease, a session) that may have ended without its noticing; every item that it commits therefore
//! carries the guard that its term still runs. Nobody adds that guard by hand, so nobody can forget it.

use std::sync::Arc;

use horchestra_auth::Identity;
use horchestra_store::store::SessionGrant;
use horchestra_store::{Attribution, Guard};
use uuid::Uuid;

/// Who makes a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// An authenticated and authorized client of the HTTP API.
    Http(Arc<Identity>),
    /// A control loop that holds the lease `name` in `epoch`.
    Loop { name: String, epoch: i64 },
    /// A recorder of Events, for this component.
    Recorder { component: &'static str },
    /// A node gateway on its own behalf, not for one node.
    Gateway { id: Uuid },
    /// A node gateway on behalf of the node whose session it holds.
    Node { name: String, grant: SessionGrant, gateway: Uuid },
}

impl Caller {
    /// The name that the change log and the history keep.
    pub fn user(&self) -> String {
        match self {
            Caller::Http(identity) => identity.name.clone(),
            Caller::Loop { name, .. } => format!("system:loop:{name}"),
            Caller::Recorder { component } => format!("system:recorder:{component}"),
            Caller::Gateway { id } => format!("system:gateway:{id}"),
            Caller::Node { name, .. } => format!("system:node:{name}"),
        }
    }

    /// The guard that every write of this caller carries.
    pub(crate) fn fence(&self) -> Option<Guard> {
        match self {
            // What a recorder saw was so, whoever leads or holds the session by now.
            Caller::Http(_) | Caller::Gateway { .. } | Caller::Recorder { .. } => None,
            Caller::Loop { name, epoch } => Some(Guard::LeaseIs { name: name.clone(), epoch: *epoch }),
            Caller::Node { name, grant, .. } => {
                Some(Guard::SessionIs { node: name.clone(), epoch: grant.epoch, session: grant.session })
            }
        }
    }
}

/// What is known about a request besides what it asks for.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub caller: Caller,
    pub audit_id: Uuid,
    /// W3C trace id, where the request has one.
    pub trace_id: Option<[u8; 16]>,
}

impl RequestContext {
    /// A context with a fresh audit id and no trace.
    pub fn new(caller: Caller) -> RequestContext {
        RequestContext { caller, audit_id: Uuid::new_v4(), trace_id: None }
    }

    pub(crate) fn attribution(&self, verb: &str) -> Attribution {
        Attribution {
            user: self.caller.user(),
            verb: verb.to_owned(),
            audit_id: self.audit_id,
            trace_id: self.trace_id,
        }
    }
}
