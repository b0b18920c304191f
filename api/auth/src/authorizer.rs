//! May this caller do that?
//!
//! Nobody may do anything that is not granted; there are no denying rules, so the order of grants does not
//! matter. What is granted without any rule object:
//!
//! - `system:masters`: everything, on resources and paths, apart from what only controllers may do;
//! - `system:nodes`: create of Nodes, and get, update and patch of the one that bears the node's name; create,
//!   get and list of certificate requests; no subresource. What may be written is for admission to say;
//! - `system:controllers`: the log streams of node sessions (`nodes/sessionlog`), and only they. That target is
//!   looked at before anything else, so neither the masters' grant nor any rule ever reaches it: whoever
//!   holds it reads logs without a check on the object, because the asking replica has made that check;
//! - everybody with an identity: list and watch of Namespaces (the answer is narrowed to what the caller may
//!   see), questions about oneself, and the discovery documents.
//!
//! A decision is made from the caller, the attributes and the rules, and never looks at the object asked for,
//! so it is the same whether or not that exists.
//!
//! [`Authorizer::authorize`] is the only entrance. Built-in grants come first and need no rules; what they do
//! not cover is for the rule objects to say ([`crate::rbac`]). Without a decision (the rules are not loaded,
//! the engine fails) the answer is an error, which is nobody's permission.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use horchestra_core::kind::{CORE_GROUP, Kind};
use horchestra_core::kinds::rbac::PolicyRule;
use parking_lot::{Mutex, RwLock};

use crate::attributes::{Attributes, ResourceAttributes};
use crate::identity::{CONTROLLERS, Identity, MASTERS};
use crate::rbac::{AuthorizationError, Enforcers, Policy, PolicySource, PolicyVersion, Profile};

/// Callers whose grants are kept at hand. When there are more, all are looked up anew.
const PROFILES: usize = 4_096;
/// After a policy could not be built, the next attempt waits this long.
const RETRY: Duration = Duration::from_secs(1);

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
pub struct Authorizer {
    source: Box<dyn PolicySource>,
    state: ArcSwapOption<State>,
    /// Held while a policy is built: the first who needs it builds it, the others wait for that.
    building: Mutex<Option<Failure>>,
    enforcers: Enforcers,
}

/// A policy, and who was looked up in it.
struct State {
    version: PolicyVersion,
    policy: Arc<Policy>,
    profiles: RwLock<HashMap<Box<[u8]>, Arc<Profile>>>,
}

/// A build that failed.
struct Failure {
    version: PolicyVersion,
    at: Instant,
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl Authorizer {
    pub fn new(source: impl PolicySource + 'static) -> Authorizer {
        Authorizer {
            source: Box::new(source),
            state: ArcSwapOption::empty(),
            building: Mutex::new(None),
            enforcers: Enforcers::default(),
        }
    }

    /// Judges one request.
    pub fn authorize(
        &self,
        identity: &Identity,
        asked: &Attributes<'_>,
    ) -> Result<Decision, AuthorizationError> {
        if let Attributes::Resource(resource) = asked
            && controllers_only(resource)
        {
            return Ok(if identity.in_group(CONTROLLERS) && resource.verb == "get" {
                Decision::allow("a process of the control plane reads a session's log")
            } else {
                Decision::deny(format!(
                    "User \"{}\" cannot {asked}: only the control plane's own processes may; \
                     read the log of an Application instead",
                    identity.name
                ))
            });
        }
        if identity.in_group(MASTERS) {
            return Ok(Decision::allow("a member of system:masters"));
        }
        let granted = match asked {
            Attributes::Path { path, .. } => discovery(path),
            Attributes::Resource(resource) => {
                everybody(resource).or_else(|| identity.node().and_then(|name| node(name, resource)))
            }
        };
        if let Some(reason) = granted {
            return Ok(Decision::allow(reason));
        }
        let profile = self.profile(identity)?;
        let ruled = match asked {
            Attributes::Path { verb, path } => profile.allows_path(verb, path),
            Attributes::Resource(resource) => profile.allows(resource, &self.enforcers)?,
        };
        Ok(if ruled {
            Decision::allow("a rule grants it")
        } else {
            Decision::deny(format!(
                "User \"{}\" cannot {asked}: nothing grants it; ask a member of system:masters",
                identity.name
            ))
        })
    }

    /// The Namespaces that the caller may know of.
    pub fn visible_namespaces(&self, identity: &Identity) -> Result<VisibleNamespaces, AuthorizationError> {
        if identity.in_group(MASTERS) {
            return Ok(VisibleNamespaces(None));
        }
        let profile = self.profile(identity)?;
        Ok(VisibleNamespaces((!profile.sees_all_namespaces()).then_some(profile)))
    }

    /// Everything that the caller may do in a namespace, and on paths, as rules: what is built in, then what
    /// rule objects grant.
    pub fn rules_of(
        &self,
        identity: &Identity,
        namespace: &str,
    ) -> Result<Vec<PolicyRule>, AuthorizationError> {
        let mut rules = built_in(identity);
        if !identity.in_group(MASTERS) {
            rules.extend(self.profile(identity)?.rules(namespace));
        }
        Ok(rules)
    }

    /// The state of the rules that decisions are made on, once there is one.
    pub fn version(&self) -> Option<PolicyVersion> {
        self.state.load().as_ref().map(|state| state.version)
    }

    /// Brings the policy up to date; an error when there is none at all.
    pub fn refresh(&self) -> Result<(), AuthorizationError> {
        self.state().map(|_| ())
    }

    /// Sets of lines that an enforcer is kept for.
    pub fn enforcers(&self) -> usize {
        self.enforcers.len()
    }

    fn profile(&self, identity: &Identity) -> Result<Arc<Profile>, AuthorizationError> {
        let state = self.state()?;
        let key = key(identity);
        if let Some(known) = state.profiles.read().get(key.as_slice()) {
            return Ok(Arc::clone(known));
        }
        let profile = Arc::new(Profile::new(&state.policy, identity));
        let mut profiles = state.profiles.write();
        if profiles.len() >= PROFILES {
            profiles.clear();
        }
        profiles.insert(key.into(), Arc::clone(&profile));
        Ok(profile)
    }

    /// The policy of what the source shows now, or the last one that could be built.
    fn state(&self) -> Result<Arc<State>, AuthorizationError> {
        let version = self.source.version();
        let is_current = |state: &State| version.is_none_or(|version| version == state.version);
        if let Some(state) = self.state.load_full()
            && is_current(&state)
        {
            return Ok(state);
        }
        let Some(version) = version else { return Err(AuthorizationError::NotLoaded) };
        let mut failure = self.building.lock();
        let kept = self.state.load_full();
        if let Some(state) = &kept
            && is_current(state)
        {
            return Ok(Arc::clone(state));
        }
        if failure.as_ref().is_some_and(|it| it.version == version && it.at.elapsed() < RETRY) {
            return kept.ok_or(AuthorizationError::NotLoaded);
        }
        match self.source.read() {
            Ok((version, policy)) => {
                let state = Arc::new(State { version, policy, profiles: RwLock::default() });
                self.state.store(Some(Arc::clone(&state)));
                *failure = None;
                Ok(state)
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "the rules of before stay in force");
                *failure = Some(Failure { version, at: Instant::now() });
                kept.ok_or(AuthorizationError::NotLoaded)
            }
        }
    }
}

/// Namespaces that a caller may know of.
#[derive(Clone)]
pub struct VisibleNamespaces(Option<Arc<Profile>>);

impl VisibleNamespaces {
    /// Whether that is all of them, those to come included.
    pub fn all(&self) -> bool {
        self.0.is_none()
    }

    pub fn contains(&self, namespace: &str) -> bool {
        self.0.as_ref().is_none_or(|profile| profile.is_bound_in(namespace))
    }
}

/// What tells callers apart: name and groups, each with its length before it.
fn key(identity: &Identity) -> Vec<u8> {
    let mut key = Vec::with_capacity(128);
    for text in std::iter::once(&identity.name).chain(&identity.groups) {
        key.extend_from_slice(&(text.len() as u64).to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    }
    key
}

/// The grants of this module as rules.
fn built_in(identity: &Identity) -> Vec<PolicyRule> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| PolicyRule {
        verbs: texts(verbs),
        api_groups: texts(&[group]),
        resources: texts(resources),
        ..PolicyRule::default()
    };
    let paths = |urls: &[&str], verbs: &[&str]| PolicyRule {
        verbs: texts(verbs),
        non_resource_urls: texts(urls),
        ..PolicyRule::default()
    };
    if identity.in_group(MASTERS) {
        return vec![rule("*", &["*"], &["*"]), paths(&["*"], &["*"])];
    }
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    let mut rules = vec![
        rule(CORE_GROUP, &[Kind::Namespace.plural()], &["list", "watch"]),
        rule("authorization.k8s.io", &reviews, &["create"]),
        rule("authentication.k8s.io", &["selfsubjectreviews"], &["create"]),
        paths(
            &[
                "/api",
                "/api/v1",
                "/apis",
                "/apis/*",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ],
            &["get"],
        ),
    ];
    if let Some(name) = identity.node() {
        let requests = Kind::CertificateSigningRequest;
        let own = PolicyRule {
            resource_names: texts(&[name]),
            ..rule(CORE_GROUP, &[Kind::Node.plural()], &["get", "update", "patch"])
        };
        rules.extend([
            rule(CORE_GROUP, &[Kind::Node.plural()], &["create"]),
            own,
            rule(requests.group(), &[requests.plural()], &["create", "get", "list"]),
        ]);
    }
    if identity.in_group(CONTROLLERS) {
        rules.push(rule(CORE_GROUP, &["nodes/sessionlog"], &["get"]));
    }
    rules
}

/// However the target is spelled: a review may ask about `nodes/sessionlog` in one word.
fn controllers_only(asked: &ResourceAttributes<'_>) -> bool {
    asked.is(CORE_GROUP, "nodes", "sessionlog") || asked.is(CORE_GROUP, "nodes/sessionlog", "")
}

/// What the agent of the node of this name may do.
fn node(name: &str, asked: &ResourceAttributes<'_>) -> Option<&'static str> {
    let verbs: &[&str] = if asked.is(CORE_GROUP, Kind::Node.plural(), "") {
        if asked.name == name { &["create", "get", "update", "patch"] } else { &["create"] }
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
