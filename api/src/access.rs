//! Who a connection is, and what it may do: where requests meet the auth package.
//!
//! The attributes are made from the routed values and nothing else. A refusal is 403 whether or not the
//! object exists. Two sorts of route are narrowed rather than refused, because their answer is a selection
//! that the caller may know of: the list of Namespaces, and the pods alias. For them the permit says
//! [`Permit::Narrowed`], and every object goes through [`App::may_see`]; what a caller may not read is
//! simply not there.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::{Attributes, Identity};
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
    /// To those objects that [`App::may_see`] lets through.
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

    fn allowed(&self, known: &Known, asked: &Attributes<'_>) -> Result<(), String> {
        let decision = self.authorizer().authorize(&known.identity, asked);
        if decision.allowed { Ok(()) } else { Err(decision.reason.into_owned()) }
    }

    /// Judges a routed request.
    pub fn authorize(
        &self,
        known: &Known,
        route: &Route,
        verb: Option<Verb>,
        method: &Method,
        path: &str,
    ) -> Result<Permit, Status> {
        let (Some(kind), Some(verb)) = (route.kind(), verb) else {
            // HEAD asks for what GET would answer.
            let word = if method == Method::HEAD { "get".to_owned() } else { method.as_str().to_lowercase() };
            return self
                .allowed(known, &Attributes::path(&word, path))
                .map(|()| Permit::Full)
                .map_err(|why| Status::forbidden_path(path, why));
        };
        let namespace = route.namespace().unwrap_or_default();
        let asked = Attributes::resource(verb.word(), route.group(), kind.plural(), namespace, route.name())
            .of_subresource(route.subresource());
        let judged = self.allowed(known, &asked);
        let refuse = |why| Err(Status::forbidden(kind, route.name(), why));
        match route {
            Route::AliasCollection { alias: Alias::Pods, .. }
            | Route::AliasItem { alias: Alias::Pods, .. }
            | Route::PodLog { .. } => match judged {
                // A stream cannot be narrowed: what may be seen would have to be judged for ever.
                Err(why) if verb == Verb::Watch => refuse(why),
                Ok(()) if known.is_node() && verb == Verb::Watch => {
                    refuse("a node may see its own Applications only".to_owned())
                }
                // A node sees its own, whatever else was granted to it.
                Ok(()) if known.is_node() => Ok(Permit::Narrowed),
                Ok(()) => Ok(Permit::Full),
                Err(_) => Ok(Permit::Narrowed),
            },
            Route::Collection { kind: Kind::Namespace, .. }
            | Route::AliasCollection { alias: Alias::Namespaces, .. }
                if matches!(verb, Verb::List | Verb::Watch) =>
            {
                if let Err(why) = judged {
                    return refuse(why);
                }
                let everything = Attributes::resource("get", kind.group(), kind.plural(), "", "");
                match self.allowed(known, &everything) {
                    Ok(()) => Ok(Permit::Full),
                    Err(_) if verb == Verb::List => Ok(Permit::Narrowed),
                    Err(_) => refuse("an unfiltered watch needs cluster-wide access".to_owned()),
                }
            }
            _ => judged.map(|()| Permit::Full).or_else(refuse),
        }
    }

    /// Judges whether the caller may make the object that its request names. An apply of an object that is not
    /// there needs that beside the right to patch.
    pub fn may_create(&self, call: &Call) -> Result<(), Status> {
        let route = &call.route;
        let kind = route.kind().ok_or_else(Status::no_such_route)?;
        let namespace = route.namespace().unwrap_or_default();
        let asked = Attributes::resource("create", kind.group(), kind.plural(), namespace, route.name());
        self.allowed(&call.known, &asked).map_err(|why| Status::forbidden(kind, route.name(), why))
    }

    /// Whether a narrowed caller may know of this object.
    pub fn may_see(&self, known: &Known, entry: &Entry) -> bool {
        let key = &entry.key;
        if key.kind == Kind::Application
            && let Some(node) = known.identity.node()
            && entry.columns.node.as_deref() != Some(node)
        {
            return false;
        }
        let asked =
            Attributes::resource("get", key.kind.group(), key.kind.plural(), &key.namespace, &key.name);
        self.allowed(known, &asked).is_ok()
    }

    /// Leaves of a page what the caller may know of. The count of what follows would tell of the rest.
    pub fn keep_permitted(&self, call: &Call, listing: &mut Listing) {
        if call.permit == Permit::Narrowed {
            listing.entries.retain(|entry| self.may_see(&call.known, entry));
            listing.remaining = None;
        }
    }
}
