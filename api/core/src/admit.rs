//! The way of a written document from bytes to an object that may be stored.
//!
//! [`decode()`] reads the bytes; [`complete`] judges the document by its kind: apiVersion and kind, nulls,
//! defaults, unknown and duplicate members, and every violation of the schema at once; [`validate`] applies
//! the rules that the schema cannot say. Between the two the server puts in what it decides itself (names,
//! user ids, …), so `validate` sees the object as it would be stored.
//!
//! Not judged here: names and namespaces ([`crate::names`]), anything about other objects, who is asking.
//!
//! Judged is what the request adds. A member that this version does not know but the stored object carries
//! stays as it is; a part (`spec`, `status`, …) that is the same as stored is not held against the request,
//! even if this version would refuse it today. Otherwise a node's report on an object that a newer version
//! wrote, or that was imported, could never be stored.

use std::borrow::Cow;

use serde_json::Value;

use crate::decode::{self, DecodeError, Document};
use crate::object::Object;
use crate::registry::KindSpec;
use crate::schema::{self, Pruned};
use crate::status::{Cause, Status};
use crate::yaml;

/// What happens to unknown and duplicate members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Refused, all of them in one answer.
    #[default]
    Strict,
    /// Dropped (of duplicates the last stays), each with a warning.
    Warn,
    /// Dropped silently.
    Ignore,
}

impl FieldValidation {
    /// From the query parameter; absent or empty is strict.
    pub fn parse(parameter: Option<&str>) -> Result<FieldValidation, Status> {
        match parameter {
            None | Some("" | "Strict") => Ok(FieldValidation::Strict),
            Some("Warn") => Ok(FieldValidation::Warn),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some(other) => Err(Status::invalid_options(
                "WriteOptions",
                vec![Cause::new(
                    "FieldValueNotSupported",
                    "fieldValidation",
                    format!(
                        "Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                    ),
                )],
            )),
        }
    }
}

/// Most warnings about unknown and duplicate members in one answer: each is a header.
const MAX_WARNINGS: usize = 50;

/// How a body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    #[default]
    Json,
    Yaml,
}

/// An object that satisfies the schema of its kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admitted {
    pub object: Object,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Reads a body. 400 when it is no single object; 422 when a string holds U+0000.
pub fn decode(spec: &KindSpec, media: Media, body: &[u8]) -> Result<Document, Status> {
    let document = read(media, body)?;
    if document.nul.is_empty() {
        return Ok(document);
    }
    let causes = document
        .nul
        .iter()
        .map(|path| Cause::invalid(path.clone(), "null", "must not contain the character U+0000"))
        .collect();
    Err(Status::invalid(spec.kind, &document.object.name().replace('\0', ""), causes))
}

/// Reads a body that is no object of a kind (delete options, reviews). 400 when it is no single object.
pub fn read(media: Media, body: &[u8]) -> Result<Document, Status> {
    let read = match media {
        Media::Json => decode::json(body),
        Media::Yaml => yaml::read(body),
    };
    read.map_err(|error| unreadable(&error))
}

pub(crate) fn unreadable(error: &DecodeError) -> Status {
    Status::bad_request(format!("the body of the request could not be read: {error}"))
}

/// Judges a document by its kind: the object in its stored form, with defaults, or everything that is wrong
/// with it. `stored` is the object that the document is to replace, if there is one.
pub fn complete(
    spec: &KindSpec,
    document: Document,
    stored: Option<&Object>,
    validation: FieldValidation,
) -> Result<Admitted, Status> {
    let schema = spec.schema();
    let mut object = document.object;
    stamp_type(spec, &mut object)?;
    let mut value = object.into_value();

    schema::drop_nulls(schema, &mut value);
    if let Value::Object(map) = &mut value {
        (spec.defaults)(map);
    }
    let pruned = schema::prune(schema, &mut value, stored.map(|object| &object.0));
    let warnings = report(spec, validation, pruned, document.duplicates)?;
    schema::fill_defaults(schema, &mut value);
    schema::normalize(schema, &mut value);

    let mut causes = schema::check(schema, &value);
    let object = Object::from_value(value).unwrap_or_default();
    causes.retain(|cause| is_new(cause, &object, stored));
    if causes.is_empty() {
        Ok(Admitted { object, warnings })
    } else {
        Err(Status::invalid(spec.kind, object.name(), causes))
    }
}

/// Judges a document that is to be applied as far as it can be judged alone: what it is, and unknown and
/// duplicate members. It says a part of the object, so nothing is filled in and nothing is missed; violations
/// show in the object that it makes. Amounts and times are written as they are stored, or a manager that
/// writes them in another way would seem to want something else.
pub fn configuration(
    spec: &KindSpec,
    document: Document,
    stored: Option<&Object>,
    validation: FieldValidation,
) -> Result<Admitted, Status> {
    let schema = spec.schema();
    let mut object = document.object;
    stamp_type(spec, &mut object)?;
    let mut value = object.into_value();
    schema::drop_nulls(schema, &mut value);
    if let Value::Object(map) = &mut value {
        (spec.fold)(map);
    }
    let pruned = schema::prune(schema, &mut value, stored.map(|object| &object.0));
    let warnings = report(spec, validation, pruned, document.duplicates)?;
    schema::normalize(schema, &mut value);
    Ok(Admitted { object: Object::from_value(value).unwrap_or_default(), warnings })
}

/// Whether a violation is in a part of the object that the write changes. What is stored was right when it
/// was stored (by another version, or imported): a change elsewhere, such as a report about the object, must
/// not fail because of it.
fn is_new(cause: &Cause, object: &Object, stored: Option<&Object>) -> bool {
    let Some(stored) = stored else { return true };
    let part = cause.field.split(['.', '[']).next().unwrap_or("");
    part == "metadata" || object.get(part).is_none() || object.get(part) != stored.get(part)
}

/// The rules of one object alone that the schema cannot say, all violations at once. `stored` is the object
/// that is replaced, if there is one.
pub fn validate(spec: &KindSpec, object: &Object, stored: Option<&Object>) -> Result<(), Status> {
    let mut causes = (spec.validate)(object);
    causes.retain(|cause| is_new(cause, object, stored));
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(spec.kind, object.name(), causes)) }
}

/// Fills in apiVersion and kind; 400 when the document claims to be something else.
fn stamp_type(spec: &KindSpec, object: &mut Object) -> Result<(), Status> {
    for (member, want) in [("apiVersion", spec.api_version()), ("kind", spec.kind.name())] {
        match object.0.get(member) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() || text == want => {}
            Some(other) => {
                let found = match other {
                    Value::String(text) => Cow::from(format!("{text:?}")),
                    other => Cow::from(decode::type_name(other)),
                };
                return Err(Status::bad_request(format!(
                    "the {member} in the body is {found}, but the request is about {want:?}"
                )));
            }
        }
        object.0.insert(member.to_owned(), Value::from(want));
    }
    Ok(())
}

/// Refuses or warns about unknown and duplicate members.
fn report(
    spec: &KindSpec,
    validation: FieldValidation,
    pruned: Pruned,
    duplicates: Vec<String>,
) -> Result<Vec<String>, Status> {
    let mut warnings = Vec::new();
    let mut causes = Vec::new();
    let found = pruned
        .unknown
        .into_iter()
        .map(|unknown| ("unknown", "FieldValueForbidden", unknown.path, unknown.lenient))
        .chain(duplicates.into_iter().map(|path| ("duplicate", "FieldValueDuplicate", path, false)));
    for (what, reason, path, lenient) in found {
        let text = format!("{what} field {path:?}");
        match validation {
            FieldValidation::Strict if !lenient => causes.push(Cause::new(reason, path, text)),
            FieldValidation::Strict | FieldValidation::Warn => warnings.push(text),
            FieldValidation::Ignore => {}
        }
    }
    if causes.is_empty() {
        let unlisted = pruned.unlisted + warnings.len().saturating_sub(MAX_WARNINGS);
        if unlisted > 0 && validation != FieldValidation::Ignore {
            warnings.truncate(MAX_WARNINGS);
            warnings.push(format!("{unlisted} more unknown or duplicate fields"));
        }
        return Ok(warnings);
    }
    let listed: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
    let message = format!(
        "{kind} in version {version:?} cannot be handled as {article} {kind}: strict decoding error: {}",
        listed.join(", "),
        kind = spec.kind.name(),
        version = spec.kind.version(),
        article = if spec.kind.name().starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" },
    );
    Err(Status::bad_fields(message, causes))
}

#[cfg(test)]
mod tests;
