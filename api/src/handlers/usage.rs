//! What was measured of nodes and Applications: `applications/<name>/metrics`, and the group `metrics.k8s.io` that
//! `kubectl top` reads.
//!
//! Every document is made from a stored object and the samples of the node that it is placed on, in that order: what
//! is not stored any more has no usage, and what only a wrong node speaks of has none either. What was not measured
//! lately is not there: 404 by name, left out of lists. Selectors choose among the stored objects.
//!
//! A list is written while it is sent, and of each object no more is read than is shown.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use horchestra_core::selector::{FieldSelector, Term};
use horchestra_core::status::Status;
use horchestra_core::table;
use horchestra_core::usage::named::Named;
use horchestra_core::usage::shown::{self, Resource};
use horchestra_core::usage::{Measured, Rate};
use horchestra_service::ListRequest;
use horchestra_store::Entry;
use http::StatusCode;
use serde_json::{Value, json};

use super::{options, resources};
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate::{self, Offer, Shape, Wire};
use crate::http::paged::{self, Pieces};
use crate::http::respond::{self, Answer};
use crate::http::route::Verb;
use crate::render::Form;
use crate::usage::Known;

/// `applications/<name>/metrics`
pub async fn application(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    let accepted = negotiate::accept(&call.headers, Offer::PLAIN)?;
    let (namespace, name) = (call.route.namespace(), call.route.name());
    let unmeasured = || {
        let resource = format!("{}/{}", Kind::Application.plural(), shown::SUBRESOURCE);
        Status::not_found_resource(Kind::Application.group(), &resource, name)
    };
    let key = resources::key(Kind::Application, namespace, name);
    let entry =
        app.service().get(&key, options::at(&call.query)?).await.map_err(|status| match status.code() {
            404 => unmeasured(),
            _ => status,
        })?;
    let node = entry.columns.node.as_deref().filter(|_| concerns(call, &entry)).ok_or_else(unmeasured)?;
    let known = app.usage().of(BTreeSet::from([node])).await?;
    let measured = known.app(node, entry.uid).ok_or_else(unmeasured)?;
    let document = shown::application_metrics(&stored(&entry)?, node, measured);
    respond::document(StatusCode::OK, accepted.wire, Bytes::from(document.to_string()))
}

/// A resource of `metrics.k8s.io`.
pub async fn serve(app: &Arc<App>, call: &Call, resource: &'static Resource) -> Result<Answer, Status> {
    match call.verb {
        // Nothing tells when something was measured.
        _ if call.query.watch() => Err(Status::method_not_allowed("watch")),
        Some(Verb::Get) => get(app, call, resource).await,
        Some(Verb::List) => list(app, call, resource).await,
        _ => Err(Status::no_such_route()),
    }
}

async fn get(app: &Arc<App>, call: &Call, resource: &'static Resource) -> Result<Answer, Status> {
    let (accepted, form) = resources::form(call, Offer::OBJECTS)?;
    let name = call.route.name();
    let unmeasured = || Status::not_found_resource(shown::GROUP, resource.plural, name);
    let key = resources::key(resource.kind, call.route.namespace(), name);
    let entry =
        app.service().get(&key, options::at(&call.query)?).await.map_err(|status| match status.code() {
            404 => unmeasured(),
            _ => status,
        })?;
    let node = place(&entry).filter(|_| concerns(call, &entry)).ok_or_else(unmeasured)?;
    let known = app.usage().of(BTreeSet::from([node])).await?;
    let shown = object(resource, &entry, &known)?.ok_or_else(unmeasured)?;
    let text = match form.shape {
        Shape::Table(_) => of_list(resource, form, vec![shown]),
        Shape::Metadata(version) => table::partial_metadata(version, &shown),
        Shape::Plain | Shape::Discovery(_) => shown.into_value(),
    };
    respond::document(StatusCode::OK, accepted.wire, Bytes::from(text.to_string()))
}

async fn list(app: &Arc<App>, call: &Call, resource: &'static Resource) -> Result<Answer, Status> {
    let (accepted, form) = resources::form(call, Offer::OBJECTS)?;
    let stored = |term: &Term| {
        let (_, stored) = resource.fields.iter().find(|(shown, _)| *shown == term.field)?;
        Some(vec![Term { field: (*stored).to_owned(), ..term.clone() }])
    };
    let fields = FieldSelector::parse_reworded(call.query.text("fieldSelector"), &stored)?;
    let listing = app
        .service()
        .list(ListRequest {
            namespace: call.route.namespace().map(str::to_owned),
            label_selector: call.query.text("labelSelector").to_owned(),
            field_selector: fields.to_string(),
            ..ListRequest::of(resource.kind)
        })
        .await?;
    let entries: Vec<Arc<Entry>> =
        listing.entries.into_iter().filter(|entry| concerns(call, entry)).collect();
    let known = app.usage().of(entries.iter().filter_map(|entry| place(entry)).collect()).await?;
    if matches!((accepted.wire, form.shape), (Wire::Json, Shape::Plain | Shape::Discovery(_))) {
        let list = Documents { resource, entries: entries.into_iter(), known, written: None };
        return Ok(paged::answer(app, call, accepted.wire.content_type(), (), list));
    }
    // A fleet is long enough to hold up the other requests of this thread.
    let render = tokio::task::spawn_blocking(move || {
        let objects = entries.iter().filter_map(|entry| object(resource, entry, &known).transpose());
        let list = of_list(resource, form, objects.collect::<Result<_, _>>()?);
        respond::document(StatusCode::OK, accepted.wire, Bytes::from(list.to_string()))
    });
    render.await.unwrap_or_else(|_| Err(Status::internal("the list could not be written")))
}

/// The plain form of a list, written as it is sent.
struct Documents {
    resource: &'static Resource,
    entries: std::vec::IntoIter<Arc<Entry>>,
    known: Known,
    /// How many so far; none: not even the head.
    written: Option<usize>,
}

impl Pieces for Documents {
    fn write(&mut self, text: &mut String, size: usize) -> bool {
        if self.written.is_none() {
            let _ = write!(text, r#"{{"apiVersion":"{}","items":["#, shown::API_VERSION);
        }
        let mut written = self.written.unwrap_or(0);
        for entry in self.entries.by_ref() {
            match self::text(self.resource, &entry, &self.known) {
                Ok(Some(document)) => {
                    text.push_str(if written > 0 { "," } else { "" });
                    text.push_str(&document);
                    written += 1;
                }
                Ok(None) => {}
                // It cannot be an error of the whole any more, and is not worth one.
                Err(_) => tracing::error!(object = %entry.key, "a stored object could not be read"),
            }
            if text.len() >= size {
                break;
            }
        }
        self.written = Some(written);
        let more = self.entries.len() > 0;
        if !more {
            let _ = writeln!(text, r#"],"kind":"{}","metadata":{{}}}}"#, self.resource.list_kind);
        }
        more
    }
}

/// A node may know of what is on it, whatever was granted to it.
fn concerns(call: &Call, entry: &Entry) -> bool {
    call.known.identity.node().is_none_or(|node| place(entry) == Some(node))
}

/// The node that measures this.
fn place(entry: &Entry) -> Option<&str> {
    match entry.key.kind {
        Kind::Node => Some(&entry.key.name),
        _ => entry.columns.node.as_deref().filter(|node| !node.is_empty()),
    }
}

fn measured<'a>(entry: &Entry, known: &'a Known) -> Option<&'a Measured> {
    let node = place(entry)?;
    if entry.key.kind == Kind::Node { known.node(node) } else { known.app(node, entry.uid) }
}

/// What a document is made of; `None`: there is none.
fn told<'a>(entry: &'a Entry, known: &'a Known) -> Result<Option<(Named<'a>, &'a Measured, Rate)>, Status> {
    let Some(measured) = measured(entry, known) else { return Ok(None) };
    let Some(rate) = measured.rate() else { return Ok(None) };
    let named = Named::read(&entry.body).map_err(|_| unreadable())?;
    Ok(Some((named, measured, rate)))
}

fn text(resource: &Resource, entry: &Entry, known: &Known) -> Result<Option<String>, Status> {
    let Some((named, measured, rate)) = told(entry, known)? else { return Ok(None) };
    let document = resource.document(&named, measured, rate);
    serde_json::to_string(&document).map(Some).map_err(|_| unreadable())
}

fn object(resource: &Resource, entry: &Entry, known: &Known) -> Result<Option<Object>, Status> {
    let Some((named, measured, rate)) = told(entry, known)? else { return Ok(None) };
    resource.document(&named, measured, rate).object().map(Some).map_err(|_| unreadable())
}

fn unreadable() -> Status {
    Status::internal("a stored object could not be read")
}

fn stored(entry: &Entry) -> Result<Object, Status> {
    entry.object().map_err(|_| unreadable())
}

/// A list has no version of its own: it is of no moment of the store.
fn of_list(resource: &Resource, form: Form, documents: Vec<Object>) -> Value {
    let now = jiff::Timestamp::now();
    match form.shape {
        Shape::Table(version) => {
            let rows = documents.iter().map(|shown| {
                let cells = table::cells(resource.columns, shown, now);
                table::row(version, form.include, cells, shown)
            });
            table::table(version, json!({}), resource.columns, rows.collect())
        }
        Shape::Metadata(version) => {
            let items = documents.iter().map(|shown| table::partial_metadata(version, shown)).collect();
            table::partial_metadata_list(version, json!({}), items)
        }
        Shape::Plain | Shape::Discovery(_) => {
            let items: Vec<Value> = documents.into_iter().map(Object::into_value).collect();
            json!({
                "kind": resource.list_kind,
                "apiVersion": shown::API_VERSION,
                "metadata": {},
                "items": items,
            })
        }
    }
}
