//! Parameters and option bodies of verbs.

use bytes::Bytes;
use horchestra_core::admit::{self, Media};
use horchestra_core::status::{Cause, Status};
use horchestra_service::{At, DeleteOptions, FieldValidation, Propagation, WriteOptions};
use http::HeaderMap;
use serde_json::{Map, Value};

use crate::http::negotiate::{Wire, document_type};
use crate::http::query::Query;

/// Longest `fieldManager`.
const MANAGER_LIMIT: usize = 128;

/// `dryRun` may be given several times and knows one value.
fn dry_run<'a>(options: &str, values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let mut wanted = false;
    for value in values {
        if value != "All" {
            return Err(not_supported(options, "dryRun", value, &["All"]));
        }
        wanted = true;
    }
    Ok(wanted)
}

fn not_supported(options: &str, field: &str, value: &str, supported: &[&str]) -> Status {
    let listed: Vec<String> = supported.iter().map(|word| format!("\"{word}\"")).collect();
    let value: String = value.chars().take(64).collect();
    Status::invalid_options(
        options,
        vec![Cause::new(
            "FieldValueNotSupported",
            field,
            format!("Unsupported value: {value:?}: supported values: {}", listed.join(", ")),
        )],
    )
}

fn invalid(options: &str, field: &str, shown: &str, why: &str) -> Status {
    Status::invalid_options(options, vec![Cause::invalid(field, shown, why)])
}

/// The options of a create, update or patch; `options` is what Kubernetes calls them (`CreateOptions`, …).
pub fn write(options: &str, query: &Query) -> Result<WriteOptions, Status> {
    let field_validation = match query.text("fieldValidation") {
        "" | "Strict" => FieldValidation::Strict,
        "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        other => {
            return Err(not_supported(options, "fieldValidation", other, &["Ignore", "Warn", "Strict"]));
        }
    };
    let manager = query.text("fieldManager");
    if manager.len() > MANAGER_LIMIT {
        return Err(invalid(options, "fieldManager", "\"\"", "may not be longer than 128 bytes"));
    }
    if manager.chars().any(char::is_control) {
        return Err(invalid(options, "fieldManager", "\"\"", "should only contain printable characters"));
    }
    Ok(WriteOptions {
        dry_run: dry_run(options, query.all("dryRun"))?,
        field_validation,
        field_manager: (!manager.is_empty()).then(|| manager.to_owned()),
        exact_resource_version: query.flag("exactResourceVersion"),
        ..WriteOptions::default()
    })
}

/// `force`, which belongs to an apply alone.
pub fn force(query: &Query, apply: bool) -> Result<bool, Status> {
    let given = query.get("force").is_some_and(|value| !value.is_empty());
    if given && !apply {
        let cause =
            Cause::new("FieldValueForbidden", "force", "Forbidden: may not be specified for non-apply patch");
        return Err(Status::invalid_options("PatchOptions", vec![cause]));
    }
    Ok(given && query.flag("force"))
}

/// How fresh a read of one object must be.
pub fn at(query: &Query) -> Result<At, Status> {
    At::parse(query.get("resourceVersion"))
}

/// `limit`; zero and negative numbers mean none.
pub fn limit(query: &Query) -> Result<Option<u64>, Status> {
    Ok(query.integer("limit")?.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0))
}

/// `sendInitialEvents`, which knows three states.
pub fn send_initial_events(query: &Query) -> Option<bool> {
    query.get("sendInitialEvents").filter(|value| !value.is_empty()).map(|_| query.flag("sendInitialEvents"))
}

const DELETE: &str = "DeleteOptions";

/// Options of a delete: the query and the body count, and may not contradict each other.
pub fn delete(headers: &HeaderMap, query: &Query, body: &Bytes) -> Result<DeleteOptions, Status> {
    let document = delete_document(headers, body)?;
    let member = |name: &str| document.get(name).filter(|value| !value.is_null());
    let malformed =
        |name: &str, what: &str| Status::bad_request(format!("DeleteOptions: {name} must be {what}"));

    let mut dry = dry_run(DELETE, query.all("dryRun"))?;
    if let Some(values) = member("dryRun") {
        let values = values.as_array().ok_or_else(|| malformed("dryRun", "a list of strings"))?;
        let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        if words.len() != values.len() {
            return Err(malformed("dryRun", "a list of strings"));
        }
        dry |= dry_run(DELETE, words.into_iter())?;
    }

    let asked = query.integer("gracePeriodSeconds")?;
    let written = match member("gracePeriodSeconds") {
        Some(value) => Some(value.as_i64().ok_or_else(|| malformed("gracePeriodSeconds", "a whole number"))?),
        None => None,
    };
    let grace = agree("gracePeriodSeconds", asked, written)?;
    if let Some(seconds) = grace.filter(|seconds| *seconds < 0) {
        return Err(invalid(
            DELETE,
            "gracePeriodSeconds",
            &seconds.to_string(),
            "must be greater than or equal to 0",
        ));
    }

    let asked = query.get("propagationPolicy").filter(|word| !word.is_empty()).map(str::to_owned);
    let written = match member("propagationPolicy") {
        Some(Value::String(word)) if word.is_empty() => None,
        Some(Value::String(word)) => Some(word.clone()),
        Some(_) => return Err(malformed("propagationPolicy", "a string")),
        None => None,
    };
    let policy = agree("propagationPolicy", asked, written)?;
    let propagation = match policy.as_deref() {
        None => None,
        Some("Background") => Some(Propagation::Background),
        Some("Foreground") => Some(Propagation::Foreground),
        Some("Orphan") => Some(Propagation::Orphan),
        Some(other) => {
            return Err(not_supported(
                DELETE,
                "propagationPolicy",
                other,
                &["Foreground", "Background", "Orphan"],
            ));
        }
    };

    let asked = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
    let written = match member("orphanDependents") {
        Some(value) => Some(value.as_bool().ok_or_else(|| malformed("orphanDependents", "a boolean"))?),
        None => None,
    };
    let propagation = match (agree("orphanDependents", asked, written)?, propagation) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                DELETE,
                "propagationPolicy",
                "\"\"",
                "orphanDependents and propagationPolicy cannot be both set",
            ));
        }
        (Some(true), None) => Some(Propagation::Orphan),
        (Some(false), None) => Some(Propagation::Background),
        (None, propagation) => propagation,
    };

    let mut options =
        DeleteOptions { grace_period_seconds: grace, propagation, dry_run: dry, ..DeleteOptions::default() };
    if let Some(preconditions) = member("preconditions") {
        let preconditions =
            preconditions.as_object().ok_or_else(|| malformed("preconditions", "an object"))?;
        let text = |name: &str| match preconditions.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(malformed("preconditions", "an object of strings")),
        };
        options.preconditions.uid = text("uid")?;
        options.preconditions.resource_version = text("resourceVersion")?;
    }
    Ok(options)
}

fn delete_document(headers: &HeaderMap, body: &Bytes) -> Result<Map<String, Value>, Status> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let media = match document_type(headers)? {
        Wire::Json => Media::Json,
        Wire::Yaml => Media::Yaml,
    };
    let document = admit::read(media, body)?.object.0;
    match document.get("kind") {
        None | Some(Value::Null) => {}
        Some(Value::String(kind)) if kind.is_empty() || kind == DELETE => {}
        Some(_) => return Err(Status::bad_request("the body of a delete must be of kind DeleteOptions")),
    }
    Ok(document)
}

fn agree<T: PartialEq>(name: &str, asked: Option<T>, written: Option<T>) -> Result<Option<T>, Status> {
    match (asked, written) {
        (Some(asked), Some(written)) if asked != written => {
            Err(Status::bad_request(format!("{name} differs between the query and the body")))
        }
        (asked, written) => Ok(asked.or(written)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, body: &'static str) -> Result<DeleteOptions, u16> {
        delete(&HeaderMap::new(), &Query::parse(Some(query)), &Bytes::from_static(body.as_bytes()))
            .map_err(|status| status.code())
    }

    #[test]
    fn delete_options_come_from_query_and_body() {
        assert_eq!(read("", "").unwrap().propagation, None);
        assert_eq!(read("", "{}").unwrap().propagation, None);
        let orphan = read("", r#"{"propagationPolicy":"Orphan"}"#).unwrap();
        assert_eq!(orphan.propagation, Some(Propagation::Orphan));
        assert_eq!(read("orphanDependents=true", "").unwrap().propagation, Some(Propagation::Orphan));
        assert_eq!(read("gracePeriodSeconds=0", "").unwrap().grace_period_seconds, Some(0));
        assert!(read("", r#"{"dryRun":["All"]}"#).unwrap().dry_run);
        let guarded = read(
            "",
            r#"{"preconditions":{"uid":"u","resourceVersion":"7"},"kind":"DeleteOptions","apiVersion":"v1"}"#,
        )
        .unwrap();
        assert_eq!(guarded.preconditions.uid.as_deref(), Some("u"));
        assert_eq!(guarded.preconditions.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn bad_delete_options_are_refused() {
        for (query, body, code) in [
            ("", "not json", 400),
            ("", "[]", 400),
            ("", r#"{"kind":"Application"}"#, 400),
            ("", r#"{"preconditions":{"uid":1}}"#, 400),
            ("", r#"{"gracePeriodSeconds":"1"}"#, 400),
            ("", r#"{"gracePeriodSeconds":1e999}"#, 400),
            ("gracePeriodSeconds=-1", "", 422),
            ("gracePeriodSeconds=x", "", 400),
            ("gracePeriodSeconds=1", r#"{"gracePeriodSeconds":2}"#, 400),
            ("propagationPolicy=Never", "", 422),
            ("dryRun=Bogus", "", 422),
            ("dryRun=", "", 422),
            ("", r#"{"dryRun":["None"]}"#, 422),
            ("orphanDependents=true&propagationPolicy=Orphan", "", 422),
        ] {
            assert_eq!(read(query, body).unwrap_err(), code, "{query} {body}");
        }
    }

    #[test]
    fn write_options_are_judged() {
        let options = |raw: &str| write("CreateOptions", &Query::parse(Some(raw)));
        assert!(options("dryRun=All").unwrap().dry_run);
        assert_eq!(options("").unwrap().field_validation, FieldValidation::Strict);
        assert_eq!(options("fieldValidation=Warn").unwrap().field_validation, FieldValidation::Warn);
        for raw in ["fieldValidation=Bogus", "dryRun=Some", "fieldManager=a%00b"] {
            assert_eq!(options(raw).unwrap_err().code(), 422, "{raw}");
        }
        for (raw, apply, force) in [
            ("", true, Ok(false)),
            ("force=", false, Ok(false)),
            ("force=true", true, Ok(true)),
            ("force=false", true, Ok(false)),
            ("force=true", false, Err(422)),
            ("force=false", false, Err(422)),
        ] {
            assert_eq!(
                super::force(&Query::parse(Some(raw)), apply).map_err(|it| it.code()),
                force,
                "{raw} {apply}"
            );
        }
        for (raw, fine) in [
            ("", true),
            ("resourceVersion=0", true),
            ("resourceVersion=12", true),
            ("resourceVersion=-1", false),
            ("resourceVersion=x", false),
        ] {
            assert_eq!(at(&Query::parse(Some(raw))).is_ok(), fine, "{raw}");
        }
    }
}
