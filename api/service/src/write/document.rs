//! Reading and completing the documents of writes.

use horchestra_core::admit::{self, Media};
use horchestra_core::decode::Document;
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::status::Status;

use crate::request::{Body, WriteOptions};

/// Reads a body.
pub(super) fn read(spec: &KindSpec, body: Body) -> Result<Document, Status> {
    match body {
        Body::Json(bytes) => admit::decode(spec, Media::Json, &bytes),
        Body::Yaml(bytes) => admit::decode(spec, Media::Yaml, &bytes),
        Body::Object(object) => Ok(Document { object, ..Document::default() }),
    }
}

/// The object in its stored form, with the texts of warnings; or everything that is wrong with it. `spec` is
/// that of the shape in which the document is written; `stored` is stored.
pub(super) fn complete(
    spec: &KindSpec,
    document: Document,
    stored: Option<&Object>,
    options: &WriteOptions,
) -> Result<(Object, Vec<String>), Status> {
    let shown = stored.map(|stored| spec.shown(stored));
    let admitted = admit::complete(spec, document, shown.as_deref(), options.field_validation)?;
    Ok((spec.stored(admitted.object), admitted.warnings))
}
