//! Who a connection is, and what it may do: where requests meet the auth package.
//!
//! The attributes are made from the routed values and nothing else. A refusal is 403 whether or not the
//! object exists. Two sorts of route are narrowed rather than refused, because their answer is a selection
//! that the caller may know of: the list of Namespaces, and the pods alias. For them the permit says
//! [`Permit::Narrowed`], and every object goes through [`Sight`]; what a caller may not read is simply not
//! there.
//!
//! A yes is given on the rules as this replica knows them: a right that was taken away elsewhere is gone here
//! as soon as the change log has been followed, and at once where the change was acknowledged. A no is only
//! given on rules that hold everything acknowledged before the request came, by whichever replica: who was
//! just granted something can use it anywhere. While the database cannot say what was acknowledged, what is
//! known decides.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::rbac::{AuthorizationError, PolicyVersion};
use horchestra_auth::{Attributes, Decision, Identity};
use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_service::Listing;
use horchestra_store::Entry;
use http::Method;
use jiff::Timestamp;

use crate::app::App;
use crate::http::Call;
use crate::http::route::{Alias, Route, Verb};
use crate::server::Peer;

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct Known {
    pub identity: Arc<Identity>,
    name: Arc<str>,
}

impl Known {
    pub fn new(identity: Identity) -> Known {
        let name = Arc::from(identity.name.as_str());
        Known { identity: Arc::new(identity), name }
    }

    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Connections outlive credentials, so every request on one asks again.
    pub fn valid(&self) -> bool {
        self.identity.valid_at(Timestamp::now())
    }

    /// For how much longer the credential holds.
    pub fn left(&self) -> Duration {
        let left = self.identity.credential.not_after().duration_since(Timestamp::now());
        Duration::try_from(left).unwrap_or_default()
    }

    pub fn is_node(&self) -> bool {
        self.identity.node().is_some()
    }
}

/// What authorization said to a request that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// To everything that the route addresses.
    Full,
    /// To those objects that [`Sight`] covers.
    Narrowed,
}

impl App {
    /// The identity that a connection's certificate proves.
    pub fn identify(&self, peer: &Peer) -> Option<Known> {
        let chain = peer.chain.as_ref()?;
        match Identity::from_verified(chain.leaf()) {
            Ok(identity) => identity.map(Known::new),
            Err(error) => {
                tracing::info!(peer = %peer.address, %error, "a verified certificate is no identity");
                None
            }
        }
    }

    fn decide(&self, known: &Known, asked: &Attributes<'_>) -> Result<Decision, Status> {
        self.authorizer().authorize(&known.identity, asked).map_err(no_decision)
    }

    /// Whether the rules turn out to be others than those of `version` once everything acknowledged is known.
    async fn rules_moved_on(&self, version: Option<PolicyVersion>) -> bool {
        let known = tokio::time::timeout(SECOND_LOOK, self.service().store().fresh()).await;
        matches!(known, Ok(Ok(_)))
            && self.authorizer().refresh().is_ok()
            && self.authorizer().version() != version
    }

    /// Judges a routed request.
    pub async fn authorize(
        &self,
        known: &Known,
        route: &Route,
        verb: Option<Verb>,
        method: &Method,
        path: &str,
    ) -> Result<Permit, Status> {
        self.twice(|| self.judge(known, route, verb, method, path)).await
    }

    /// Whether somebody, who need not be the caller, may do something.
    pub async fn may(&self, who: &Identity, asked: &Attributes<'_>) -> Result<Decision, Status> {
        let version = self.authorizer().version();
        let decision = self.authorizer().authorize(who, asked);
        if !matches!(&decision, Ok(decision) if decision.allowed) && self.rules_moved_on(version).await {
            return self.authorizer().authorize(who, asked).map_err(no_decision);
        }
        decision.map_err(no_decision)
    }

    /// A judgement, repeated when it is a no that newer rules may turn.
    async fn twice<T>(&self, judge: impl Fn() -> Result<T, Status>) -> Result<T, Status> {
        let version = self.authorizer().version();
        let refused = match judge() {
            Err(status) if matches!(status.code(), 403 | 503) => status,
            judged => return judged,
        };
        if self.rules_moved_on(version).await { judge() } else { Err(refused) }
    }

    fn judge(
        &self,
        known: &Known,
        route: &Route,
        verb: Option<Verb>,
        method: &Method,
        path: &str,
    ) -> Result<Permit, Status> {
        let (Some(resource), Some(verb)) = (route.resource(), verb) else {
            // Two paths lead to the catalog, and rules name one.
            let catalog = if let Route::Catalog(endpoint) = route { endpoint.path() } else { String::new() };
            let path = if catalog.is_empty() { path } else { &catalog };
            // HEAD asks for what GET would answer.
            let word = if method == Method::HEAD { "get".to_owned() } else { method.as_str().to_lowercase() };
            let decision = self.decide(known, &Attributes::path(&word, path))?;
            return if decision.allowed {
                Ok(Permit::Full)
            } else {
                Err(Status::forbidden_path(path, decision.reason))
            };
        };
        let namespace = route.namespace().unwrap_or_default();
        let asked = Attributes::resource(verb.word(), route.group(), resource, namespace, route.name())
            .of_subresource(route.subresource());
        let decision = self.decide(known, &asked)?;
        let refuse = |why: &str| {
            Err(match route.kind() {
                Some(kind) => Status::forbidden(kind, route.name(), why),
                None => Status::forbidden_resource(route.group(), resource, route.name(), why),
            })
        };
        match route {
            Route::AliasCollection { alias: Alias::Pods, .. }
            | Route::AliasItem { alias: Alias::Pods, .. }
            | Route::PodLog { .. } => match decision.allowed {
                // A stream cannot be narrowed: what may be seen would have to be judged for ever.
                false if verb == Verb::Watch => refuse(&decision.reason),
                true if known.is_node() && verb == Verb::Watch => {
                    refuse("a node may see its own Applications only")
                }
                // A node sees its own, whatever else was granted to it.
                true if known.is_node() => Ok(Permit::Narrowed),
                true => Ok(Permit::Full),
                false => Ok(Permit::Narrowed),
            },
            _ if !decision.allowed => refuse(&decision.reason),
            Route::Collection { kind: Kind::Namespace, .. }
            | Route::AliasCollection { alias: Alias::Namespaces, .. }
                if matches!(verb, Verb::List | Verb::Watch) =>
            {
                let visible = self.authorizer().visible_namespaces(&known.identity).map_err(no_decision)?;
                match verb {
                    _ if visible.all() => Ok(Permit::Full),
                    Verb::List => Ok(Permit::Narrowed),
                    _ => refuse("an unfiltered watch needs cluster-wide access"),
                }
            }
            _ => Ok(Permit::Full),
        }
    }

    /// Judges whether the caller may make the object that its request names. An apply of an object that is not
    /// there needs that beside the right to patch.
    pub async fn may_create(&self, call: &Call) -> Result<(), Status> {
        let route = &call.route;
        let kind = route.kind().ok_or_else(Status::no_such_route)?;
        let namespace = route.namespace().unwrap_or_default();
        let asked = Attributes::resource("create", kind.group(), kind.plural(), namespace, route.name());
        self.twice(|| {
            let decision = self.decide(&call.known, &asked)?;
            let refused = || Status::forbidden(kind, route.name(), &decision.reason);
            if decision.allowed { Ok(()) } else { Err(refused()) }
        })
        .await
    }

    /// What a narrowed caller may know of.
    pub fn sight<'a>(&'a self, call: &'a Call) -> Sight<'a> {
        Sight { app: self, known: &call.known, collection: call.verb == Some(Verb::List), judged: None }
    }

    /// Leaves of a page what the caller may know of. The count of what follows would tell of the rest.
    pub fn keep_permitted(&self, call: &Call, listing: &mut Listing) {
        if call.permit == Permit::Narrowed {
            let mut sight = self.sight(call);
            listing.entries.retain(|entry| sight.covers(entry));
            listing.remaining = None;
        }
    }
}

/// Longest time that a refusal waits for the database to say what was acknowledged.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The answer where a judgement was needed and there is none.
pub fn no_decision(error: AuthorizationError) -> Status {
    match error {
        AuthorizationError::NotLoaded => {
            Status::unavailable("this replica has not loaded the rules that requests are judged by", 1)
        }
        AuthorizationError::Engine { .. } | AuthorizationError::Waiting => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, source, "a request could not be judged");
            Status::internal("the request could not be judged")
        }
    }
}

/// What a narrowed caller may know of: Namespaces in which it was granted something, and Applications that
/// it may read. Without a decision there is nothing to see.
pub struct Sight<'a> {
    app: &'a App,
    known: &'a Known,
    /// Whether a collection was asked for; its parts are judged by namespace.
    collection: bool,
    judged: Option<(String, bool)>,
}

impl Sight<'_> {
    pub fn covers(&mut self, entry: &Entry) -> bool {
        let key = &entry.key;
        let authorizer = self.app.authorizer();
        if key.kind == Kind::Namespace {
            let visible = authorizer.visible_namespaces(&self.known.identity);
            return visible.is_ok_and(|visible| visible.contains(&key.name));
        }
        if key.kind == Kind::Application
            && let Some(node) = self.known.identity.node()
            && entry.columns.node.as_deref() != Some(node)
        {
            return false;
        }
        let allowed = |verb, name| {
            let asked = Attributes::resource(verb, key.kind.group(), key.kind.plural(), &key.namespace, name);
            authorizer.authorize(&self.known.identity, &asked).is_ok_and(|decision| decision.allowed)
        };
        if !self.collection {
            return allowed("get", &key.name);
        }
        match &self.judged {
            Some((namespace, verdict)) if *namespace == key.namespace => *verdict,
            _ => {
                let verdict = allowed("list", "");
                self.judged = Some((key.namespace.clone(), verdict));
                verdict
            }
        }
    }
}
