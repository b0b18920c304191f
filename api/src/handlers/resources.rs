//! Objects of the stored kinds: read, list, write, delete.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::registry::{self, KindSpec};
use horchestra_core::status::Status;
use horchestra_service::{Apply, Body, Contents, ListRequest, Part, Patch, PatchType, WriteOptions, Written};
use horchestra_store::Entry;
use http::StatusCode;
use serde_json::{Value, json};

use super::options;
use crate::access::Permit;
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate::{self, Accepted, Offer, Wire};
use crate::http::respond::{self, Answer};
use crate::http::route::{Route, Verb};
use crate::render::{self, Form, View};

/// The spec of a routed kind. Routes are made from the registry, so there is one.
pub fn spec(kind: Kind) -> Result<&'static KindSpec, Status> {
    registry::spec(kind).ok_or_else(Status::no_such_route)
}

/// The key that a route addresses.
pub fn key(kind: Kind, namespace: Option<&str>, name: &str) -> Key {
    Key { kind, namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() }
}

/// The form that the client wants objects in.
pub fn form(call: &Call, offer: Offer) -> Result<(Accepted, Form), Status> {
    let accepted = negotiate::accept(&call.headers, offer)?;
    Ok((accepted, Form { shape: accepted.shape, include: render::include(&call.query)? }))
}

pub async fn serve(app: &Arc<App>, call: &Call, kind: Kind) -> Result<Answer, Status> {
    let view = View::Stored(spec(kind)?);
    match call.verb {
        Some(Verb::Get) => get(app, call, view).await,
        Some(Verb::List) => list(app, call, view).await,
        Some(Verb::Watch) => super::watch::serve(app, call, view).await,
        _ => write(app, call, view).await,
    }
}

/// A request that changes something, in the shape that is shown.
pub async fn write(app: &Arc<App>, call: &Call, view: View) -> Result<Answer, Status> {
    let kind = view.kind();
    match (&call.route, call.verb) {
        (Route::Collection { .. } | Route::AliasCollection { .. }, Some(Verb::Create)) => {
            create(app, call, view, kind, call.route.namespace().unwrap_or_default()).await
        }
        (Route::Collection { .. } | Route::AliasCollection { .. }, Some(Verb::DeleteCollection)) => {
            delete_collection(app, call, view, kind).await
        }
        (Route::Item { .. } | Route::ItemStatus { .. } | Route::AliasItem { .. }, Some(Verb::Update)) => {
            update(app, call, view, kind).await
        }
        (Route::Item { .. } | Route::ItemStatus { .. } | Route::AliasItem { .. }, Some(Verb::Patch)) => {
            patch(app, call, view, kind).await
        }
        (Route::Item { .. } | Route::AliasItem { .. }, Some(Verb::Delete)) => {
            delete(app, call, view, kind).await
        }
        _ => Err(Status::no_such_route()),
    }
}

/// One object, of a stored kind or an alias whose name addresses one object.
pub async fn get(app: &Arc<App>, call: &Call, view: View) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let key = key(view.kind(), call.route.namespace(), call.route.name());
    let at = options::at(&call.query)?;
    let entry = match form.contents() {
        Contents::Opened => app.service().get(&key, at).await?,
        Contents::Sealed => app.service().get_clear(&key, at).await?,
    };
    respond::document(StatusCode::OK, accepted.wire, render::one(view, form, &entry)?)
}

/// The listing that the parameters ask for. A caller who may know of some objects only gets all of those at
/// once: a page's end, and the token that names it, would tell of objects that were left out.
pub fn list_request(call: &Call, view: View) -> Result<ListRequest, Status> {
    let paged = call.permit != Permit::Narrowed;
    let text = |name: &str| call.query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(ListRequest {
        kind: view.kind(),
        namespace: call.route.namespace().map(str::to_owned),
        label_selector: call.query.text("labelSelector").to_owned(),
        field_selector: view.field_selector(call.query.text("fieldSelector"))?,
        limit: options::limit(&call.query)?.filter(|_| paged),
        continue_token: text("continue").filter(|_| paged),
        resource_version: text("resourceVersion"),
        resource_version_match: text("resourceVersionMatch"),
        send_initial_events: options::send_initial_events(&call.query),
        contents: Contents::Opened,
    })
}

/// Lists longer than this are written on a thread of their own.
const LARGE: usize = 256;

pub async fn list(app: &Arc<App>, call: &Call, view: View) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let request = ListRequest { contents: form.contents(), ..list_request(call, view)? };
    let mut listing = app.service().list(request).await?;
    let large = listing.entries.len() > LARGE;
    app.keep_permitted(call, &mut listing);
    let render = move || {
        let mut answer =
            respond::document(StatusCode::OK, accepted.wire, render::list(view, form, &listing)?)?;
        respond::warn(&mut answer, &listing.warnings);
        Ok(answer)
    };
    if large {
        // Long enough to hold up the other requests of this thread.
        let rendered = tokio::task::spawn_blocking(render).await;
        return rendered.unwrap_or_else(|_| Err(Status::internal("the list could not be written")));
    }
    render()
}

/// The document of a write.
async fn document(call: &Call) -> Result<Body, Status> {
    let wire = negotiate::document_type(&call.headers)?;
    let body = call.body().await?;
    Ok(match wire {
        Wire::Json => Body::Json(body),
        Wire::Yaml => Body::Yaml(body),
    })
}

fn write_options(name: &str, call: &Call, view: View) -> Result<WriteOptions, Status> {
    Ok(WriteOptions { written_as: view.written_as(), ..options::write(name, &call.query)? })
}

pub fn written(
    accepted: Accepted,
    form: Form,
    view: View,
    code: StatusCode,
    written: &Written,
) -> Result<Answer, Status> {
    object(accepted, form, view, code, &written.entry, &written.warnings)
}

fn object(
    accepted: Accepted,
    form: Form,
    view: View,
    code: StatusCode,
    entry: &Entry,
    warnings: &[String],
) -> Result<Answer, Status> {
    let mut answer = respond::document(code, accepted.wire, render::one(view, form, entry)?)?;
    respond::warn(&mut answer, warnings);
    Ok(answer)
}

async fn create(
    app: &Arc<App>,
    call: &Call,
    view: View,
    kind: Kind,
    namespace: &str,
) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let options = write_options("CreateOptions", call, view)?;
    let body = document(call).await?;
    let done = app.service().create(&call.context, kind, namespace, body, &options).await?;
    written(accepted, form, view, StatusCode::CREATED, &done)
}

async fn update(app: &Arc<App>, call: &Call, view: View, kind: Kind) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let options = write_options("UpdateOptions", call, view)?;
    let body = document(call).await?;
    let key = key(kind, call.route.namespace(), call.route.name());
    let done = if matches!(call.route, Route::ItemStatus { .. }) {
        app.service().update_status(&call.context, &key, body, &options).await?
    } else {
        app.service().update(&call.context, &key, body, &options).await?
    };
    written(accepted, form, view, StatusCode::OK, &done)
}

const PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
/// The media type of an apply.
const APPLY: &str = "application/apply-patch+yaml";

async fn patch(app: &Arc<App>, call: &Call, view: View, kind: Kind) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let language = match negotiate::content_type(&call.headers).as_deref() {
        Some("application/merge-patch+json") => Some(PatchType::Merge),
        Some("application/json-patch+json") => Some(PatchType::Json),
        Some(APPLY) => None,
        other => {
            return Err(Status::unsupported_media_type(format!(
                "the body of the request was in an unknown format ({}); accepted media types include: \
                 {PATCHES}",
                other.unwrap_or("no Content-Type")
            )));
        }
    };
    // Who manages which field is kept in the words of the stored shape alone.
    if language.is_none()
        && let View::Alias(alias) = view
    {
        return Err(Status::unsupported_media_type(format!(
            "{APPLY} is not supported for {} of {}: apply it as {}",
            alias.plural(),
            view.group(),
            kind.api_version()
        )));
    }
    let options = write_options("PatchOptions", call, view)?;
    let key = key(kind, call.route.namespace(), call.route.name());
    let part = if matches!(call.route, Route::ItemStatus { .. }) { Part::Status } else { Part::Main };
    let force = options::force(&call.query, language.is_none())?;
    let document = call.body().await?;
    let done = match language {
        Some(kind) => {
            let patch = Patch { kind, document };
            app.service().patch(&call.context, &key, part, patch, &options).await?
        }
        None => {
            let request = Apply { document, force, refuse_create: app.may_create(call).await.err() };
            app.service().apply(&call.context, &key, part, request, &options).await?
        }
    };
    let code = if done.created { StatusCode::CREATED } else { StatusCode::OK };
    written(accepted, form, view, code, &done)
}

/// Answers a Status when the object is gone, and the object while something holds it: that is how clients
/// know whether there is anything left to wait for. Who may delete need not be allowed to read: nothing is
/// opened for that.
async fn delete(app: &Arc<App>, call: &Call, view: View, kind: Kind) -> Result<Answer, Status> {
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let body = call.body().await?;
    let options = options::delete(&call.headers, &call.query, &body)?;
    let key = key(kind, call.route.namespace(), call.route.name());
    let done = app.service().delete(&call.context, &key, &options).await?;
    if !done.erased {
        let form = form.unopened(kind);
        return object(accepted, form, view, StatusCode::OK, &done.entry, &done.warnings);
    }
    let details = json!({
        "name": key.name,
        "group": view.group(),
        "kind": kind.plural(),
        "uid": done.entry.uid.to_string(),
    });
    success(accepted, &details, &done.warnings)
}

/// Deletes what the selectors of the request choose, each object by the rules of a single delete.
async fn delete_collection(app: &Arc<App>, call: &Call, view: View, kind: Kind) -> Result<Answer, Status> {
    let accepted = negotiate::accept(&call.headers, Offer::OBJECTS)?;
    let body = call.body().await?;
    let options = options::delete(&call.headers, &call.query, &body)?;
    let done = app.service().delete_collection(&call.context, list_request(call, view)?, &options).await?;
    let warnings: Vec<String> = done.into_iter().flat_map(|deleted| deleted.warnings).collect();
    success(accepted, &json!({"group": view.group(), "kind": kind.plural()}), &warnings)
}

fn success(accepted: Accepted, details: &Value, warnings: &[String]) -> Result<Answer, Status> {
    let document = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    });
    let mut answer = respond::document(StatusCode::OK, accepted.wire, Bytes::from(document.to_string()))?;
    respond::warn(&mut answer, warnings);
    Ok(answer)
}
