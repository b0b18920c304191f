//! Who asks, and what that makes of a write.
//!
//! A [`Caller`] has no default and is never optional, so a request whose identity got lost on the way
//! cannot pass for an internal writer. Everything that depends on the kind of caller is derived here or in
//! the admission table: the name in the change log, and the fence. An internal writer acts on behalf of a
//! term (a lease, a session) that may have ended without its noticing; every item that it commits therefore
//! carries the guard that its term still runs. Nobody adds that guard by hand, so nobody can forget it.

use std::sync::Arc;

use horchestra_auth::identity::MASTERS;
use horchestra_auth::{Authorizer, Identity};
use horchestra_store::store::SessionGrant;
use horchestra_store::{Attribution, Guard, Trace};
use uuid::Uuid;

use crate::request::WriteOptions;

/// Who makes a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// An authenticated client of the HTTP API whose request was authorized.
    Http(Client),
    /// A control loop that holds the lease `name` in `epoch`.
    Loop { name: String, epoch: i64 },
    /// A recorder of Events, for this component.
    Recorder { component: &'static str },
    /// A node gateway on its own behalf, not for one node.
    Gateway { id: Uuid },
    /// A node gateway on behalf of the node whose session it holds.
    Node { name: String, grant: SessionGrant, gateway: Uuid },
}

/// A client of the HTTP API. What it writes may speak of further rights (a role, a Secret), so whoever brings
/// its request brings the judge of those along.
#[derive(Clone, Debug)]
pub struct Client {
    pub identity: Arc<Identity>,
    pub authorizer: Arc<Authorizer>,
}

impl Caller {
    /// A client of the HTTP API.
    pub fn http(identity: Arc<Identity>, authorizer: Arc<Authorizer>) -> Caller {
        Caller::Http(Client { identity, authorizer })
    }

    /// The name that the change log and the history keep.
    pub fn user(&self) -> String {
        match self {
            Caller::Http(client) => client.identity.name.clone(),
            Caller::Loop { name, .. } => format!("system:loop:{name}"),
            Caller::Recorder { component } => format!("system:recorder:{component}"),
            Caller::Gateway { id } => format!("system:gateway:{id}"),
            Caller::Node { name, .. } => format!("system:node:{name}"),
        }
    }

    /// A person who may do everything.
    pub(crate) fn is_master(&self) -> bool {
        matches!(self, Caller::Http(client) if client.identity.in_group(MASTERS))
    }

    /// The manager of fields that this caller writes on behalf of the system.
    pub(crate) fn component(&self) -> String {
        match self {
            Caller::Http(_) => API_MANAGER.to_owned(),
            Caller::Loop { name, .. } => format!("horchestra-{name}"),
            Caller::Recorder { component } => (*component).to_owned(),
            Caller::Gateway { .. } | Caller::Node { .. } => "horchestra-nodegate".to_owned(),
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

/// The manager of what the server itself puts into objects.
pub(crate) const API_MANAGER: &str = "horchestra-api";
/// The manager of fields whose writer says nothing about itself.
const UNKNOWN_MANAGER: &str = "unknown";
/// Longest name of a manager, in bytes.
const MANAGER_LIMIT: usize = 128;

/// What is known about a request besides what it asks for.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub caller: Caller,
    pub audit_id: Uuid,
    /// The trace that the request is part of, and the span that what it does goes on from. A loop says none: what it
    /// does for an object goes on with the trace of the object's last change.
    pub trace: Option<Trace>,
    /// The program that makes the request (see [`program_of`]); empty when it does not say.
    pub program: String,
}

/// The program that a `User-Agent` header names: what comes before the first `/`, as far as it can be shown.
pub fn program_of(agent: &[u8]) -> String {
    let agent = String::from_utf8_lossy(agent);
    let mut program = String::new();
    let shown = |c: &char| *c == ' ' || !(c.is_control() || c.is_whitespace());
    for c in agent.split('/').next().unwrap_or_default().chars().filter(shown) {
        if program.len() + c.len_utf8() > MANAGER_LIMIT {
            break;
        }
        program.push(c);
    }
    program
}

impl RequestContext {
    /// A context with a fresh audit id and no trace.
    pub fn new(caller: Caller) -> RequestContext {
        RequestContext { caller, audit_id: Uuid::new_v4(), trace: None, program: String::new() }
    }

    /// The manager that the fields of this write belong to: the one that the request names, or else the
    /// program that makes it.
    pub(crate) fn field_manager(&self, options: &WriteOptions) -> String {
        match (&options.field_manager, &self.caller) {
            (Some(manager), _) => manager.clone(),
            (None, Caller::Http(_)) if self.program.is_empty() => UNKNOWN_MANAGER.to_owned(),
            (None, Caller::Http(_)) => self.program.clone(),
            (None, caller) => caller.component(),
        }
    }

    pub(crate) fn attribution(&self, verb: &str) -> Attribution {
        Attribution {
            user: self.caller.user(),
            verb: verb.to_owned(),
            audit_id: self.audit_id,
            trace: self.trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_as_kubernetes_does() {
        for (agent, program) in [
            ("kubectl/v1.32.0 (linux/amd64) kubernetes/abc", "kubectl"),
            ("kube rs", "kube rs"),
            ("", ""),
            ("/v1", ""),
            ("a\tb\u{a0}c/1", "abc"),
        ] {
            assert_eq!(program_of(agent.as_bytes()), program, "{agent:?}");
        }
        assert_eq!(program_of("é".repeat(100).as_bytes()), "é".repeat(64));
        assert_eq!(program_of(b"a\xff/1"), "a\u{fffd}");
    }
}
