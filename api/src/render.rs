//! Stored objects in the forms that clients ask for.
//!
//! Plain answers are never parsed: the bytes of the store get their revision spliced in and are put beside
//! each other. Tables and metadata forms read what they need. Everything here is a function of the stored
//! object, the form and (for ages in tables) the time.

use bytes::Bytes;
use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::selector::FieldSelector;
use horchestra_core::status::Status;
use horchestra_core::table::{self, Column, Include, MetaVersion};
use horchestra_service::{Contents, Listing};
use horchestra_store::{Entry, Revision};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::negotiate::Shape;
use crate::http::query::Query;
use crate::http::route::Alias;

/// What stands beside the cells of table rows.
pub fn include(query: &Query) -> Result<Include, Status> {
    match query.text("includeObject") {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => {
            Err(Status::bad_request(format!("includeObject: {other:?} is not one of None, Metadata, Object")))
        }
    }
}

/// As what stored objects are shown.
#[derive(Clone, Copy)]
pub enum View {
    Stored(&'static KindSpec),
    Alias(Alias),
}

impl View {
    /// The kind whose stored objects are shown.
    pub fn kind(self) -> Kind {
        match self {
            View::Stored(spec) => spec.kind,
            View::Alias(alias) => alias.kind(),
        }
    }

    pub fn api_version(self) -> &'static str {
        match self {
            View::Stored(spec) => spec.kind.api_version(),
            View::Alias(alias) => alias.spec().api_version,
        }
    }

    /// The group of what is shown.
    pub fn group(self) -> &'static str {
        match self {
            View::Stored(spec) => spec.group(),
            View::Alias(alias) => alias.judged_group(),
        }
    }

    /// The shape in which documents are written, where it is not the stored one.
    pub fn written_as(self) -> Option<&'static KindSpec> {
        self.alias().and_then(|alias| alias.spec().written)
    }

    pub fn kind_name(self) -> &'static str {
        match self {
            View::Stored(spec) => spec.kind.name(),
            View::Alias(alias) => alias.spec().name,
        }
    }

    pub fn list_kind(self) -> &'static str {
        match self {
            View::Stored(spec) => spec.list_kind,
            View::Alias(alias) => alias.spec().list_kind,
        }
    }

    pub fn alias(self) -> Option<Alias> {
        match self {
            View::Stored(_) => None,
            View::Alias(alias) => Some(alias),
        }
    }

    /// The plural, for metrics.
    pub fn plural(self) -> &'static str {
        match self {
            View::Stored(spec) => spec.plural(),
            View::Alias(alias) => alias.plural(),
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            View::Stored(spec) => spec.columns,
            View::Alias(alias) => alias.spec().columns,
        }
    }

    /// A field selector in the words of the stored kind; 400 for a field that an alias does not have.
    pub fn field_selector(self, selector: &str) -> Result<String, Status> {
        let View::Alias(alias) = self else { return Ok(selector.to_owned()) };
        Ok(FieldSelector::parse_reworded(selector, &|term| alias.spec().stored_terms(term))?.to_string())
    }

    /// The object as plain JSON.
    fn encode(self, entry: &Entry) -> Result<Bytes, Status> {
        match self {
            View::Stored(_) => Ok(entry.shown()),
            View::Alias(alias) => {
                let shown = (alias.spec().project)(&stored(entry)?);
                Ok(Bytes::from(shown.into_value().to_string()))
            }
        }
    }

    fn cells(self, entry: &Entry, now: jiff::Timestamp) -> Result<Vec<Value>, Status> {
        Ok(table::cells(self.columns(), &stored(entry)?, now))
    }
}

fn stored(entry: &Entry) -> Result<Object, Status> {
    entry.object().map_err(|_| unreadable())
}

/// A form of answer, with what belongs into table rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    pub shape: Shape,
    pub include: Include,
}

impl Form {
    /// What of an object of a sealed kind the form shows. The columns of such kinds look at the clear part.
    pub fn contents(self) -> Contents {
        match self.shape {
            Shape::Metadata(_) => Contents::Sealed,
            Shape::Table(_) if self.include != Include::Object => Contents::Sealed,
            _ => Contents::Opened,
        }
    }

    /// The form for an answer with an object that was not opened: of a sealed kind no more than the metadata.
    pub fn unopened(self, kind: Kind) -> Form {
        if !kind.is_sealed() || self.contents() == Contents::Sealed {
            return self;
        }
        match self.shape {
            Shape::Table(_) => Form { include: Include::Metadata, ..self },
            _ => Form { shape: Shape::Metadata(MetaVersion::V1), ..self },
        }
    }
}

fn unreadable() -> Status {
    Status::internal("a stored object could not be read")
}

/// One object in the form asked for.
pub fn one(view: View, form: Form, entry: &Entry) -> Result<Bytes, Status> {
    match form.shape {
        Shape::Table(version) => {
            let metadata = format!(r#"{{"resourceVersion":"{}"}}"#, entry.revision);
            let rows = [row(view, form.include, version, entry, jiff::Timestamp::now())?];
            Ok(table_of(view, version, &metadata, &rows))
        }
        Shape::Metadata(version) => metadata_only(view, version, entry),
        Shape::Plain | Shape::Discovery(_) => view.encode(entry),
    }
}

/// A page of a listing in the form asked for.
pub fn list(view: View, form: Form, listing: &Listing) -> Result<Bytes, Status> {
    let metadata = list_metadata(listing);
    let (api_version, kind) = match form.shape {
        Shape::Table(version) => {
            let now = jiff::Timestamp::now();
            let rows = listing
                .entries
                .iter()
                .map(|entry| row(view, form.include, version, entry, now))
                .collect::<Result<Vec<_>, _>>()?;
            return Ok(table_of(view, version, &metadata, &rows));
        }
        Shape::Metadata(version) => (version.api_version(), "PartialObjectMetadataList"),
        Shape::Plain | Shape::Discovery(_) => (view.api_version(), view.list_kind()),
    };
    let managed = |entry: &Entry| entry.managed.as_ref().map_or(0, Bytes::len);
    let size: usize = listing.entries.iter().map(|entry| entry.body.len() + managed(entry) + 96).sum();
    let mut out = Vec::with_capacity(size + 256);
    out.extend_from_slice(
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
            .as_bytes(),
    );
    for (at, entry) in listing.entries.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match form.shape {
            Shape::Metadata(version) => out.extend_from_slice(&metadata_only(view, version, entry)?),
            _ => out.extend_from_slice(&view.encode(entry)?),
        }
    }
    out.extend_from_slice(b"]}");
    Ok(Bytes::from(out))
}

fn list_metadata(listing: &Listing) -> String {
    let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
    if let Some(token) = &listing.continue_token {
        metadata["continue"] = json!(token);
    }
    if let Some(remaining) = listing.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    metadata.to_string()
}

/// The metadata of an object as it stands in its bytes.
fn metadata(view: View, entry: &Entry) -> Result<Box<RawValue>, Status> {
    #[derive(Deserialize)]
    struct Head {
        metadata: Box<RawValue>,
    }
    let bytes = view.encode(entry)?;
    serde_json::from_slice::<Head>(&bytes).map(|head| head.metadata).map_err(|_| unreadable())
}

fn metadata_only(view: View, version: MetaVersion, entry: &Entry) -> Result<Bytes, Status> {
    let metadata = metadata(view, entry)?;
    Ok(Bytes::from(format!(
        r#"{{"kind":"PartialObjectMetadata","apiVersion":"{}","metadata":{}}}"#,
        version.api_version(),
        metadata.get()
    )))
}

fn row(
    view: View,
    include: Include,
    version: MetaVersion,
    entry: &Entry,
    now: jiff::Timestamp,
) -> Result<Vec<u8>, Status> {
    let object = match include {
        Include::None => Bytes::from_static(b"null"),
        Include::Metadata => metadata_only(view, version, entry)?,
        Include::Object => view.encode(entry)?,
    };
    let cells = Value::Array(view.cells(entry, now)?).to_string();
    Ok(row_of(&cells, &object))
}

fn row_of(cells: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(cells.len() + object.len() + 32);
    out.extend_from_slice(br#"{"cells":"#);
    out.extend_from_slice(cells.as_bytes());
    out.extend_from_slice(br#","object":"#);
    out.extend_from_slice(object);
    out.push(b'}');
    out
}

fn table_of(view: View, version: MetaVersion, metadata: &str, rows: &[Vec<u8>]) -> Bytes {
    let mut out = Vec::with_capacity(rows.iter().map(|row| row.len() + 1).sum::<usize>() + 1024);
    out.extend_from_slice(
        format!(
            r#"{{"kind":"Table","apiVersion":"{}","metadata":{metadata},"columnDefinitions":{},"rows":["#,
            version.api_version(),
            table::definitions(view.columns())
        )
        .as_bytes(),
    );
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(row);
    }
    out.extend_from_slice(b"]}");
    Bytes::from(out)
}

/// The object of a bookmark: nothing but how far the stream has come.
pub fn bookmark(view: View, form: Form, revision: Revision, initial_events_end: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_events_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = |version: MetaVersion| {
        json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
            .to_string()
    };
    match form.shape {
        Shape::Table(version) => {
            let cells = vec![json!(""); view.columns().len()];
            let row = row_of(&Value::Array(cells).to_string(), object(version).as_bytes());
            table_of(view, version, &format!(r#"{{"resourceVersion":"{revision}"}}"#), &[row])
        }
        Shape::Metadata(version) => Bytes::from(object(version)),
        Shape::Plain | Shape::Discovery(_) => Bytes::from(
            json!({"kind": view.kind_name(), "apiVersion": view.api_version(), "metadata": metadata})
                .to_string(),
        ),
    }
}
