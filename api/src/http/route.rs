//! From a request line to a [`Route`]: the one place where a path is looked at.
//!
//! What this guarantees: the path is split once, and the values that come out (kind, namespace, name,
//! subresource) are what authorization judges **and** what the handler acts on. There is no second parser, no
//! decoding and no normalisation in between, so the two can never disagree. Group and version are matched to
//! the letter against the served kinds; a plural under a foreign group is simply not routed.
//!
//! What is refused, and how:
//! * a path with any percent escape → 400 before anything else. No name that can exist needs one, and every
//!   trick that makes a router and an authorizer see different segments starts with one;
//! * an empty, `.` or `..` segment → not routed. Nothing is redirected: a redirect before authentication
//!   tells strangers which routes exist;
//! * a trailing slash → not routed, apart from discovery and version documents, which several clients ask
//!   for in that form.
//!
//! A route knows its methods. The table of what a resource serves is data ([`Served`]), filled from the
//! registry of kinds; discovery prints the same verbs.

mod catalog;

use std::collections::HashMap;

use horchestra_core::alias;
use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_core::reviews::{self, ReviewSpec};
use horchestra_core::usage::shown as usage;
use http::Method;

pub use catalog::Endpoint;

/// A probe that needs no credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Live,
    Ready,
    Health,
}

/// What the issuer of workload tokens serves, outside the chain of the other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// `/openid/v1/jwks`
    Keys,
    /// `/.well-known/openid-configuration`
    Configuration,
    /// `/apis/authentication.k8s.io/v1/tokenreviews`
    Review,
}

/// A resource that shows our own objects in another shape: of the core group, and Events of a second group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alias {
    Pods,
    Nodes,
    Namespaces,
    /// Events of the group `events.k8s.io`, which can be written too.
    Events,
}

impl Alias {
    /// What the alias shows, and how.
    pub fn spec(self) -> &'static alias::Alias {
        match self {
            Alias::Pods => &alias::PODS,
            Alias::Nodes => &alias::NODES,
            Alias::Namespaces => &alias::NAMESPACES,
            Alias::Events => &alias::EVENTS,
        }
    }

    fn is_written(self) -> bool {
        self.spec().written.is_some()
    }

    pub fn plural(self) -> &'static str {
        self.spec().plural
    }

    /// The kind whose objects are shown, which is also the kind that permissions are judged on.
    pub fn kind(self) -> Kind {
        self.spec().kind
    }

    /// The group that permissions are judged on: of a shape that is written its own, else that of the kind.
    pub fn judged_group(self) -> &'static str {
        if self.is_written() { self.spec().group } else { self.kind().group() }
    }

    fn of(group: &str, version: &str, plural: &str) -> Option<Alias> {
        [Alias::Pods, Alias::Nodes, Alias::Namespaces, Alias::Events]
            .into_iter()
            .find(|alias| version == "v1" && alias.spec().group == group && alias.plural() == plural)
    }
}

/// A resolved path. Namespaces are `None` where the path names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/livez`, `/readyz`, `/healthz`, each with an optional single check behind it.
    Probe {
        probe: Probe,
        check: Option<String>,
    },
    Issued(Issued),
    Version,
    /// `/api`
    CoreVersions,
    /// `/api/v1`
    CoreResources,
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/apis/<group>/<version>`
    Resources {
        group: String,
        version: String,
    },
    /// `/metrics`: what was measured, of the whole fleet.
    Fleet,
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/<path>`, e.g. `apis/horchestra.io/v1`
    OpenApiDocument(String),
    /// A collection; `namespace` is `None` for cluster-scoped kinds and for "in all namespaces".
    Collection {
        kind: Kind,
        namespace: Option<String>,
    },
    Item {
        kind: Kind,
        namespace: Option<String>,
        name: String,
    },
    /// `…/<name>/status`
    ItemStatus {
        kind: Kind,
        namespace: Option<String>,
        name: String,
    },
    /// `…/<name>/<door>`
    ItemDoor {
        kind: Kind,
        namespace: Option<String>,
        name: String,
        door: Door,
    },
    AliasCollection {
        alias: Alias,
        namespace: Option<String>,
    },
    /// `namespace` is `None` on the un-namespaced form of a pod's path too.
    AliasItem {
        alias: Alias,
        namespace: Option<String>,
        name: String,
    },
    PodLog {
        namespace: Option<String>,
        name: String,
    },
    /// `nodes/<name>/log`: what the agent of a node has written.
    NodeLog {
        name: String,
    },
    /// `applications/<name>/metrics`: what was measured of an Application.
    ApplicationMetrics {
        namespace: String,
        name: String,
    },
    /// Usage of everything of a kind, of the group `metrics.k8s.io`.
    UsageCollection {
        resource: &'static usage::Resource,
        namespace: Option<String>,
    },
    UsageItem {
        resource: &'static usage::Resource,
        namespace: Option<String>,
        name: String,
    },
    /// The catalog of services.
    Catalog(Endpoint),
    /// A question about rights or identity.
    Review {
        review: &'static ReviewSpec,
        namespace: Option<String>,
    },
}

/// Why a path has no [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The path is not in the one spelling that we take: 400, before authentication.
    Encoded,
    /// Nothing is served there: 401 or 404.
    Unknown,
}

/// What is asked of a resource; the words that authorization and discovery use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub const fn word(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

const READ: &[Method] = &[Method::GET, Method::HEAD];
const COLLECTION: &[Method] = &[Method::GET, Method::HEAD, Method::POST, Method::DELETE];
const ITEM: &[Method] = &[Method::GET, Method::HEAD, Method::PUT, Method::PATCH, Method::DELETE];
const STATUS: &[Method] = &[Method::GET, Method::HEAD, Method::PUT, Method::PATCH];
const CREATE: &[Method] = &[Method::POST];
const ACTION: &[Method] = &[Method::POST, Method::PUT];
const ANY: &[Method] = &[];

impl Route {
    /// The methods that this path takes; empty = any.
    pub fn methods(&self) -> &'static [Method] {
        match self {
            Route::Probe { .. } => ANY,
            Route::Review { .. } => CREATE,
            Route::Issued(Issued::Review) => CREATE,
            Route::Collection { kind, namespace } if namespace.is_none() && kind.namespaced() => READ,
            Route::AliasCollection { alias, namespace: Some(_) } if alias.is_written() => COLLECTION,
            Route::AliasItem { alias, .. } if alias.is_written() => ITEM,
            Route::Collection { .. } => COLLECTION,
            Route::Item { .. } => ITEM,
            Route::ItemStatus { kind, .. } if kind.takes_status_writes() => STATUS,
            Route::ItemDoor { door, .. } if door.verbs() != ["get"] => ACTION,
            _ => READ,
        }
    }

    /// What the method asks for on this resource, judged with the very `watch` value that routes the
    /// request. `None`: not a resource, or not a method of this route.
    pub fn verb(&self, method: &Method, watch: bool) -> Option<Verb> {
        let allowed = self.methods();
        if !allowed.contains(method) {
            return None;
        }
        match self {
            Route::Review { .. } => Some(Verb::Create),
            Route::Collection { .. } | Route::AliasCollection { .. } => Some(match *method {
                Method::POST => Verb::Create,
                Method::DELETE => Verb::DeleteCollection,
                // A HEAD answers the headers of a list; it never opens a stream.
                Method::GET if watch => Verb::Watch,
                _ => Verb::List,
            }),
            Route::UsageCollection { .. } => Some(Verb::List),
            Route::Item { .. }
            | Route::ItemStatus { .. }
            | Route::ItemDoor { .. }
            | Route::AliasItem { .. }
            | Route::PodLog { .. }
            | Route::NodeLog { .. }
            | Route::ApplicationMetrics { .. }
            | Route::UsageItem { .. } => Some(match *method {
                Method::POST => Verb::Create,
                Method::PUT => Verb::Update,
                Method::PATCH => Verb::Patch,
                Method::DELETE => Verb::Delete,
                _ => Verb::Get,
            }),
            _ => None,
        }
    }

    /// The kind whose permission decides, where the route is a resource.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Route::Collection { kind, .. }
            | Route::Item { kind, .. }
            | Route::ItemStatus { kind, .. }
            | Route::ItemDoor { kind, .. } => Some(*kind),
            Route::AliasCollection { alias, .. } | Route::AliasItem { alias, .. } => Some(alias.kind()),
            Route::PodLog { .. } | Route::ApplicationMetrics { .. } => Some(Kind::Application),
            Route::NodeLog { .. } => Some(Kind::Node),
            _ => None,
        }
    }

    /// The group whose permission decides, where the route is a resource.
    pub fn group(&self) -> &'static str {
        match self {
            Route::AliasCollection { alias, .. } | Route::AliasItem { alias, .. } => alias.judged_group(),
            Route::Review { review, .. } => review.group,
            Route::UsageCollection { .. } | Route::UsageItem { .. } => usage::GROUP,
            _ => self.kind().map_or("", Kind::group),
        }
    }

    /// The plural whose permission decides, where the route is a resource.
    pub fn resource(&self) -> Option<&'static str> {
        match self {
            Route::Review { review, .. } => Some(review.plural),
            Route::UsageCollection { resource, .. } | Route::UsageItem { resource, .. } => {
                Some(resource.plural)
            }
            _ => self.kind().map(Kind::plural),
        }
    }

    pub fn namespace(&self) -> Option<&str> {
        match self {
            Route::Collection { namespace, .. }
            | Route::Item { namespace, .. }
            | Route::ItemStatus { namespace, .. }
            | Route::ItemDoor { namespace, .. }
            | Route::AliasCollection { namespace, .. }
            | Route::AliasItem { namespace, .. }
            | Route::PodLog { namespace, .. }
            | Route::UsageCollection { namespace, .. }
            | Route::UsageItem { namespace, .. }
            | Route::Review { namespace, .. } => namespace.as_deref(),
            Route::ApplicationMetrics { namespace, .. } => Some(namespace),
            _ => None,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Route::Item { name, .. }
            | Route::ItemStatus { name, .. }
            | Route::ItemDoor { name, .. }
            | Route::AliasItem { name, .. }
            | Route::PodLog { name, .. }
            | Route::NodeLog { name }
            | Route::ApplicationMetrics { name, .. }
            | Route::UsageItem { name, .. } => name,
            Route::Catalog(endpoint) => endpoint.name(),
            _ => "",
        }
    }

    /// The subresource that permissions are judged on. A pod's log is read with the permission to read its
    /// Application, so it is none.
    pub fn subresource(&self) -> &'static str {
        match self {
            Route::ItemStatus { .. } => "status",
            Route::ItemDoor { door, .. } => door.name(),
            Route::NodeLog { .. } => "log",
            Route::ApplicationMetrics { .. } => usage::SUBRESOURCE,
            _ => "",
        }
    }

    /// A short name for logs and metrics: bounded, whatever clients send.
    pub fn label(&self) -> &'static str {
        match self {
            Route::Probe { .. } => "probe",
            Route::Issued(Issued::Review) => "tokenreviews",
            Route::Issued(_) => "openid",
            Route::Version => "version",
            Route::Fleet => "metrics",
            Route::CoreVersions
            | Route::CoreResources
            | Route::Groups
            | Route::Group(_)
            | Route::Resources { .. } => "discovery",
            Route::OpenApiV2 | Route::OpenApiIndex | Route::OpenApiDocument(_) => "openapi",
            Route::Collection { kind, .. } | Route::Item { kind, .. } => kind.plural(),
            Route::ItemStatus { kind, .. } => match kind {
                Kind::Application => "applications/status",
                Kind::Node => "nodes/status",
                Kind::ApplicationSet => "applicationsets/status",
                Kind::CertificateSigningRequest => "certificatesigningrequests/status",
                _ => "status",
            },
            Route::ItemDoor { door, .. } => door.name(),
            Route::AliasCollection { alias, .. } | Route::AliasItem { alias, .. } => match alias {
                Alias::Pods => "pods",
                Alias::Nodes => "core-nodes",
                Alias::Namespaces => "core-namespaces",
                Alias::Events => "events.k8s.io",
            },
            Route::PodLog { .. } => "pods/log",
            Route::NodeLog { .. } => "nodes/log",
            Route::ApplicationMetrics { .. } => "applications/metrics",
            Route::UsageCollection { resource, .. } | Route::UsageItem { resource, .. } => {
                match resource.kind {
                    Kind::Node => "nodes.metrics.k8s.io",
                    _ => "pods.metrics.k8s.io",
                }
            }
            Route::Catalog(endpoint) => endpoint.label(),
            Route::Review { review, .. } => review.plural,
        }
    }
}

/// The kinds that are served, by where their paths lie.
#[derive(Clone, Debug)]
pub struct Served {
    kinds: HashMap<(&'static str, &'static str, &'static str), Kind>,
    /// There is an issuer of tokens.
    issuer: bool,
    /// Its name is an address.
    configuration: bool,
    /// The logs of agents can be read.
    node_logs: bool,
}

impl Served {
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Served {
        let kinds =
            kinds.into_iter().map(|kind| ((kind.group(), kind.version(), kind.plural()), kind)).collect();
        Served { kinds, issuer: false, configuration: false, node_logs: false }
    }

    /// With what an issuer serves; `configuration` says whether its configuration can be asked for.
    pub fn with_issuer(self, configuration: bool) -> Served {
        Served { issuer: true, configuration, ..self }
    }

    /// With the logs of agents, or without.
    pub fn with_node_logs(self, node_logs: bool) -> Served {
        Served { node_logs, ..self }
    }

    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Kind> {
        self.kinds.get(&(group, version, plural)).copied()
    }

    /// Resolves a path as it stands in the request line, without its query.
    pub fn resolve(&self, path: &str) -> Result<Route, NoRoute> {
        if path.contains('%') {
            return Err(NoRoute::Encoded);
        }
        let inner = path.strip_prefix('/').ok_or(NoRoute::Unknown)?;
        let (inner, slash) = match inner.strip_suffix('/') {
            Some(inner) => (inner, true),
            None => (inner, false),
        };
        let segments: Vec<&str> = inner.split('/').collect();
        if segments.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
            return Err(NoRoute::Unknown);
        }
        let route = self.by_segments(&segments).ok_or(NoRoute::Unknown)?;
        let document = matches!(
            route,
            Route::Version
                | Route::CoreVersions
                | Route::CoreResources
                | Route::Groups
                | Route::Group(_)
                | Route::Resources { .. }
        );
        if slash && !document { Err(NoRoute::Unknown) } else { Ok(route) }
    }

    fn by_segments(&self, segments: &[&str]) -> Option<Route> {
        match segments {
            [probe @ ("livez" | "readyz" | "healthz"), check @ ..] if check.len() <= 1 => {
                Some(Route::Probe {
                    probe: match *probe {
                        "livez" => Probe::Live,
                        "readyz" => Probe::Ready,
                        _ => Probe::Health,
                    },
                    check: check.first().map(|check| (*check).to_owned()),
                })
            }
            ["openid", "v1", "jwks"] if self.issuer => Some(Route::Issued(Issued::Keys)),
            [".well-known", "openid-configuration"] if self.configuration => {
                Some(Route::Issued(Issued::Configuration))
            }
            ["apis", "authentication.k8s.io", "v1", "tokenreviews"] if self.issuer => {
                Some(Route::Issued(Issued::Review))
            }
            ["version"] => Some(Route::Version),
            ["servicediscovery", "v1", rest @ ..] | ["v1", rest @ ..] => {
                Endpoint::of(rest).map(Route::Catalog)
            }
            ["metrics"] => Some(Route::Fleet),
            ["openapi", "v2"] => Some(Route::OpenApiV2),
            ["openapi", "v3"] => Some(Route::OpenApiIndex),
            ["openapi", "v3", "apis", group, version] => {
                Some(Route::OpenApiDocument(format!("apis/{group}/{version}")))
            }
            ["openapi", "v3", "api", version] => Some(Route::OpenApiDocument(format!("api/{version}"))),
            ["api"] => Some(Route::CoreVersions),
            ["api", "v1"] => Some(Route::CoreResources),
            ["api", "v1", rest @ ..] => aliased("", "v1", rest).or_else(|| self.resource("", "v1", rest)),
            ["apis"] => Some(Route::Groups),
            ["apis", group] => Some(Route::Group((*group).to_owned())),
            ["apis", group, version] => {
                Some(Route::Resources { group: (*group).to_owned(), version: (*version).to_owned() })
            }
            // The unnamed group has a place of its own.
            ["apis", "", ..] => None,
            ["apis", group, version, rest @ ..] => {
                let kind = self.resource(group, version, rest).or_else(|| aliased(group, version, rest));
                kind.or_else(|| review(group, version, rest)).or_else(|| measured(group, version, rest))
            }
            _ => None,
        }
    }

    fn resource(&self, group: &str, version: &str, rest: &[&str]) -> Option<Route> {
        let (namespace, rest) = match rest {
            // A door of the Namespace itself, not a collection in it: no kind has the plural of a door.
            ["namespaces", _, door] if Door::named(Kind::Namespace, door).is_some() => (None, rest),
            _ => split_namespace(rest),
        };
        let (plural, rest) = rest.split_first()?;
        let kind = self.kind(group, version, plural)?;
        match (kind.namespaced(), &namespace, rest) {
            (false, Some(_), _) => None,
            (true, None, []) | (false, None, []) | (true, Some(_), []) => {
                Some(Route::Collection { kind, namespace })
            }
            (true, None, _) => None,
            (_, _, [name]) => Some(Route::Item { kind, namespace, name: (*name).to_owned() }),
            (_, _, [name, "status"]) if kind.has_status() => {
                Some(Route::ItemStatus { kind, namespace, name: (*name).to_owned() })
            }
            (_, Some(namespace), [name, usage::SUBRESOURCE]) if kind == Kind::Application => {
                Some(Route::ApplicationMetrics { namespace: namespace.clone(), name: (*name).to_owned() })
            }
            (_, _, [name, "log"]) if kind == Kind::Node && self.node_logs => {
                Some(Route::NodeLog { name: (*name).to_owned() })
            }
            (_, _, [name, door]) => {
                let door = Door::named(kind, door)?;
                Some(Route::ItemDoor { kind, namespace, name: (*name).to_owned(), door })
            }
            _ => None,
        }
    }
}

/// Takes `namespaces/<ns>` off the front when something follows it; otherwise the words address the
/// Namespace itself.
fn split_namespace<'a>(rest: &'a [&'a str]) -> (Option<String>, &'a [&'a str]) {
    match rest {
        ["namespaces", namespace, tail @ ..] if !tail.is_empty() => (Some((*namespace).to_owned()), tail),
        _ => (None, rest),
    }
}

fn review(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    let (namespace, rest) = split_namespace(rest);
    let [plural] = rest else { return None };
    let review = reviews::by_resource(group, version, plural)?;
    (review.namespaced == namespace.is_some()).then_some(Route::Review { review, namespace })
}

fn measured(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    if (group, version) != (usage::GROUP, usage::VERSION) {
        return None;
    }
    let (namespace, rest) = split_namespace(rest);
    let (plural, rest) = rest.split_first()?;
    let resource = usage::by_plural(plural)?;
    match rest {
        [] if namespace.is_none() || resource.kind.namespaced() => {
            Some(Route::UsageCollection { resource, namespace })
        }
        [name] if namespace.is_some() == resource.kind.namespaced() => {
            Some(Route::UsageItem { resource, namespace, name: (*name).to_owned() })
        }
        _ => None,
    }
}

fn aliased(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    let (namespace, rest) = split_namespace(rest);
    let (plural, rest) = rest.split_first()?;
    let alias = Alias::of(group, version, plural)?;
    if namespace.is_some() && !alias.kind().namespaced() {
        return None;
    }
    // Only a pod can be meant without its namespace.
    if namespace.is_none() && alias == Alias::Events && !rest.is_empty() {
        return None;
    }
    match rest {
        [] => Some(Route::AliasCollection { alias, namespace }),
        [name] => Some(Route::AliasItem { alias, namespace, name: (*name).to_owned() }),
        [name, "log"] if alias == Alias::Pods => Some(Route::PodLog { namespace, name: (*name).to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
