//! The aliases: Applications as Pods, our Nodes and Namespaces in their core shape, all of them to be read
//! only; and Events in the shape of their second group, which are written as well.

use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_service::{At, ListRequest};
use horchestra_store::Entry;
use http::StatusCode;

use super::{options, resources};
use crate::access::Permit;
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate::Offer;
use crate::http::respond::{self, Answer};
use crate::http::route::{Alias, Verb};
use crate::render::{self, View};

pub async fn serve(app: &Arc<App>, call: &Call, alias: Alias) -> Result<Answer, Status> {
    let view = View::Alias(alias);
    match call.verb {
        Some(Verb::Get) if alias == Alias::Pods => pod(app, call).await,
        Some(Verb::Get) => resources::get(app, call, view).await,
        Some(Verb::List) => resources::list(app, call, view).await,
        Some(Verb::Watch) => super::watch::serve(app, call, view).await,
        Some(_) if alias.spec().written.is_some() => resources::write(app, call, view).await,
        _ => Err(Status::no_such_route()),
    }
}

async fn pod(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    let (accepted, form) = resources::form(call, Offer::OBJECTS)?;
    let entry = find_pod(app, call, options::at(&call.query)?).await?;
    respond::document(StatusCode::OK, accepted.wire, render::one(View::Alias(Alias::Pods), form, &entry)?)
}

/// The Application that a pod's path addresses. Without a namespace in the path the name must be unique
/// among what the caller may read. What the caller may not read does not exist.
pub async fn find_pod(app: &Arc<App>, call: &Call, at: At) -> Result<Arc<Entry>, Status> {
    let name = call.route.name();
    let missing = || Status::not_found_resource("", "pods", name);
    let mut sight = app.sight(call);
    let mut visible = |entry: &Arc<Entry>| call.permit == Permit::Full || sight.covers(entry);
    if let Some(namespace) = call.route.namespace() {
        let key = resources::key(Kind::Application, Some(namespace), name);
        return match app.service().get(&key, at).await {
            Ok(entry) if visible(&entry) => Ok(entry),
            Ok(_) => Err(missing()),
            Err(status) if status.code() == 404 => Err(missing()),
            Err(status) => Err(status),
        };
    }
    if !is_name(name) {
        return Err(missing());
    }
    let listing = app
        .service()
        .list(ListRequest {
            field_selector: format!("metadata.name={name}"),
            ..ListRequest::of(Kind::Application)
        })
        .await?;
    let mut found = listing.entries.into_iter().filter(visible);
    let Some(first) = found.next() else { return Err(missing()) };
    let others: Vec<String> = found.map(|entry| entry.key.namespace.clone()).collect();
    if others.is_empty() {
        return Ok(first);
    }
    Err(Status::bad_request(format!(
        "pods \"{name}\" exists in several namespaces ({}, {}): name one",
        first.key.namespace,
        others.join(", ")
    )))
}

/// Whether a text can be the name of an object, so that it is safe inside a selector.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}
