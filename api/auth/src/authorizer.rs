//! May this caller do that?
//!
//! Nobody may do anything that is not granted; there are no denying rules, so the order of grants does not
//! matter. What is granted without any rule object:
//!
//! - `system:masters`: everything, on resources and paths, apart from what only controllers may do;
//! - `system:nodes`: create, get, update and patch of Nodes; create, get and list of their certificate
//!   requests; no subresource. Which Node and how is for admission to say;
//! - `system:controllers`: the log streams of node sessions (`nodes/sessionlog`), and only they. That target is
//!   looked at before anything else, so neither the masters' grant nor any rule ever reaches it: whoever
//!   holds it reads logs without a check on the object, because the asking replica has made that check;
//! - everybody with an identity: list and watch of Namespaces (the answer is narrowed to what the caller may
//!   see), questions about oneself, and the discovery documents.
//!
//! A decision is made from the caller and the attributes alone and never looks at stored objects, so it is
//! the same whether or not the object exists.
//!
//! [`Authorizer::authorize`] is the only entrance. Rule objects will be consulted in it, after the built-in
//! grants and before the refusal.

use std::borrow::Cow;

use horchestra_core::kind::{CORE_GROUP, Kind};

use crate::attributes::{Attributes, ResourceAttributes};
use crate::identity::{CONTROLLERS, Identity, MASTERS, NODES};

/// The outcome, and the words for it: why it is allowed (for logs), or what the refused caller should know.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: Cow<'static, str>,
}

impl Decision {
    fn allow(reason: &'static str) -> Decision {
        Decision { allowed: true, reason: Cow::Borrowed(reason) }
    }

    fn deny(reason: String) -> Decision {
        Decision { allowed: false, reason: Cow::Owned(reason) }
    }
}

/// The one judge of permissions.
#[derive(Clone, Debug, Default)]
pub struct Authorizer {}

impl Authorizer {
    pub fn new() -> Authorizer {
        Authorizer {}
    }

    /// Judges one request.
    pub fn authorize(&self, identity: &Identity, asked: &Attributes<'_>) -> Decision {
        if let Attributes::Resource(resource) = asked
            && controllers_only(resource)
        {
            return if identity.in_group(CONTROLLERS) && resource.verb == "get" {
                Decision::allow("a process of the control plane reads a session's log")
            } else {
                Decision::deny(format!(
                    "User \"{}\" cannot {asked}: only the control plane's own processes may; \
                     read the log of an Application instead",
                    identity.name
                ))
            };
        }
        if identity.in_group(MASTERS) {
            return Decision::allow("a member of system:masters");
        }
        let granted = match asked {
            Attributes::Path { path, .. } => discovery(path),
            Attributes::Resource(resource) => {
                everybody(resource).or_else(|| identity.in_group(NODES).then(|| node(resource)).flatten())
            }
        };
        match granted {
            Some(reason) => Decision::allow(reason),
            None => Decision::deny(format!(
                "User \"{}\" cannot {asked}: nothing grants it; ask a member of system:masters",
                identity.name
            )),
        }
    }
}

/// However the target is spelled: a review may ask about `nodes/sessionlog` in one word.
fn controllers_only(asked: &ResourceAttributes<'_>) -> bool {
    asked.is(CORE_GROUP, "nodes", "sessionlog") || asked.is(CORE_GROUP, "nodes/sessionlog", "")
}

fn node(asked: &ResourceAttributes<'_>) -> Option<&'static str> {
    let verbs: &[&str] = if asked.is(CORE_GROUP, Kind::Node.plural(), "") {
        &["create", "get", "update", "patch"]
    } else if asked.is(Kind::CertificateSigningRequest.group(), Kind::CertificateSigningRequest.plural(), "")
    {
        &["create", "get", "list"]
    } else {
        return None;
    };
    verbs.contains(&asked.verb).then_some("a node agent's own business")
}

fn everybody(asked: &ResourceAttributes<'_>) -> Option<&'static str> {
    if asked.is(CORE_GROUP, Kind::Namespace.plural(), "")
        && asked.name.is_empty()
        && matches!(asked.verb, "list" | "watch")
    {
        return Some("everybody may list the namespaces that they can see");
    }
    let about_oneself = asked.is("authorization.k8s.io", "selfsubjectaccessreviews", "")
        || asked.is("authorization.k8s.io", "selfsubjectrulesreviews", "")
        || asked.is("authentication.k8s.io", "selfsubjectreviews", "");
    (about_oneself && asked.verb == "create").then_some("everybody may ask about themselves")
}

/// Documents that describe the API, for every identified caller and any method.
fn discovery(path: &str) -> Option<&'static str> {
    // One trailing slash is the same document; a second one is another path.
    let trimmed = match path {
        "/" => path,
        _ => path.strip_suffix('/').unwrap_or(path),
    };
    let described =
        matches!(trimmed, "/api" | "/api/v1" | "/apis" | "/version" | "/openapi" | "/livez" | "/readyz")
            || path.strip_prefix("/openapi/").is_some_and(|rest| clean(rest.split('/')))
            || trimmed
                .strip_prefix("/apis/")
                .is_some_and(|rest| rest.split('/').count() <= 2 && clean(rest.split('/')));
    described.then_some("everybody may read what the API is")
}

/// Whether these segments mean themselves.
fn clean<'a>(mut segments: impl Iterator<Item = &'a str>) -> bool {
    segments.all(|segment| !matches!(segment, "" | "." | "..") && !segment.contains('%'))
}
