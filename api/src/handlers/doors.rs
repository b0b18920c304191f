//! The doors of an object: what they are told, and their answers.
//!
//! The body is small and may be left out: the version and the uid that the caller has in mind (also where an
//! object carries them, under `metadata`), for a rollback the revision, for a finalize which finalizers, and for a
//! verdict on a request why. A mistyped member would be a
//! precondition that is not checked, so unknown members are judged as in any other write.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::admit::{self, Media};
use horchestra_core::doors::{Door, REVISION_LIST};
use horchestra_core::kind::Kind;
use horchestra_core::status::{Cause, Status};
use horchestra_service::{FieldValidation, Order};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};

use super::options;
use super::resources::{form, key, spec, written};
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate::{self, Offer, Wire, document_type};
use crate::http::respond::{self, Answer};
use crate::render::View;

pub async fn serve(app: &Arc<App>, call: &Call, kind: Kind, door: Door) -> Result<Answer, Status> {
    let key = key(kind, call.route.namespace(), call.route.name());
    if door == Door::Revisions {
        let accepted = negotiate::accept(&call.headers, Offer::PLAIN)?;
        let history = app.service().revisions(&key).await?;
        let items: Vec<Value> = history
            .versions
            .iter()
            .enumerate()
            .map(|(at, version)| {
                json!({
                    "revision": version.revision,
                    "generation": version.generation,
                    "time": version.time.to_string(),
                    "user": version.user,
                    "verb": version.verb,
                    "auditID": version.audit_id.to_string(),
                    "current": at == 0,
                })
            })
            .collect();
        let list = json!({
            "kind": REVISION_LIST,
            "apiVersion": "horchestra.io/v1",
            "metadata": {"resourceVersion": history.revision.to_string()},
            "items": items,
        });
        return respond::document(StatusCode::OK, accepted.wire, Bytes::from(list.to_string()));
    }
    let view = View::Stored(spec(kind)?);
    let (accepted, form) = form(call, Offer::OBJECTS)?;
    let options = options::write("UpdateOptions", &call.query)?;
    let (order, mut warnings) =
        order(&call.headers, &call.body().await?, door, call.route.name(), options.field_validation)?;
    let mut done = app.service().act(&call.context, &key, door, &order, &options).await?;
    warnings.append(&mut done.warnings);
    done.warnings = warnings;
    // No door opens what is sealed.
    written(accepted, form.unopened(kind), view, StatusCode::OK, &done)
}

/// Members of an order that are objects of their own.
const METADATA: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];

/// Reads what a door is told, with warnings.
fn order(
    headers: &HeaderMap,
    body: &Bytes,
    door: Door,
    name: &str,
    validation: FieldValidation,
) -> Result<(Order, Vec<String>), Status> {
    let empty = body.trim_ascii().is_empty();
    if empty && door != Door::Rollback {
        return Ok((Order::default(), Vec::new()));
    }
    let media = match document_type(headers)? {
        Wire::Json => Media::Json,
        Wire::Yaml => Media::Yaml,
    };
    let document = if empty { Default::default() } else { admit::read(media, body)? };
    let members = document.object.0;
    let metadata = match members.get("metadata") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(_) => return Err(malformed("metadata", "an object")),
    };

    let mut odd: Vec<(&str, String)> = document.duplicates.into_iter().map(|it| ("duplicate", it)).collect();
    let known = |member: &str| {
        matches!(member, "apiVersion" | "kind" | "metadata" | "uid" | "resourceVersion")
            || (member == "revision" && door == Door::Rollback)
            || (member == "finalizers" && door == Door::Finalize)
            || (member == "message" && door.takes_message())
    };
    odd.extend(members.keys().filter(|member| !known(member)).map(|member| ("unknown", member.clone())));
    odd.extend(
        metadata
            .keys()
            .filter(|member| !METADATA.contains(&member.as_str()))
            .map(|member| ("unknown", format!("metadata.{member}"))),
    );
    let texts: Vec<String> = odd.iter().map(|(what, path)| format!("{what} field {path:?}")).collect();
    if !odd.is_empty() && validation == FieldValidation::Strict {
        let message = format!("strict decoding error: {}", texts.join(", "));
        let causes = odd.into_iter().zip(&texts).map(|((what, path), text)| {
            let reason = if what == "unknown" { "FieldValueForbidden" } else { "FieldValueDuplicate" };
            Cause::new(reason, path, text)
        });
        return Err(Status::bad_fields(message, causes.collect()));
    }

    let named = text(&metadata, "name")?;
    if named.as_deref().is_some_and(|named| named != name) {
        return Err(Status::bad_request("the name in the body is not that of the request"));
    }
    let either = |member: &str| match (text(&members, member)?, text(&metadata, member)?) {
        (Some(one), Some(other)) if one != other => {
            Err(Status::bad_request(format!("{member} differs from metadata.{member}")))
        }
        (one, other) => Ok(one.or(other)),
    };
    let revision = match members.get("revision") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.parse().map_err(|_| malformed("revision", "a whole number"))?),
        Some(value) => Some(value.as_i64().ok_or_else(|| malformed("revision", "a whole number"))?),
    };
    if door == Door::Rollback && revision.is_none() {
        let mut cause = Cause::required("revision");
        cause.message = "Required value: one of those that revisions lists".to_owned();
        return Err(Status::invalid_options("Rollback", vec![cause]));
    }
    let finalizers = match members.get("finalizers") {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => {
            let names: Option<Vec<String>> = list.iter().map(|it| it.as_str().map(str::to_owned)).collect();
            Some(names.ok_or_else(|| malformed("finalizers", "a list of strings"))?)
        }
        Some(_) => return Err(malformed("finalizers", "a list of strings")),
    };
    let (resource_version, uid) = (either("resourceVersion")?, either("uid")?);
    let message = text(&members, "message")?;
    let order = Order { revision, finalizers, resource_version, uid, message };
    Ok((order, if validation == FieldValidation::Warn { texts } else { Vec::new() }))
}

fn malformed(member: &str, what: &str) -> Status {
    Status::bad_request(format!("{member} must be {what}"))
}

/// A member that is a text; an empty one says nothing.
fn text(map: &Map<String, Value>, member: &str) -> Result<Option<String>, Status> {
    match map.get(member) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed(member, "a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(door: Door, body: &'static str) -> Result<Order, u16> {
        let body = Bytes::from_static(body.as_bytes());
        order(&HeaderMap::new(), &body, door, "web", FieldValidation::Strict)
            .map(|(order, _)| order)
            .map_err(|status| status.code())
    }

    #[test]
    fn an_order_is_read_wherever_it_stands() {
        let precise = |version: &str, uid: &str| Order {
            resource_version: Some(version.to_owned()),
            uid: Some(uid.to_owned()),
            ..Order::default()
        };
        let taking = |names: &[&str]| Order {
            finalizers: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Order::default()
        };
        for (door, body, expected) in [
            (Door::Freeze, "", Order::default()),
            (Door::Freeze, " {} ", Order::default()),
            (Door::Freeze, r#"{"kind":"Application","apiVersion":"horchestra.io/v1"}"#, Order::default()),
            (Door::Freeze, r#"{"resourceVersion":"7","uid":"u"}"#, precise("7", "u")),
            (Door::Thaw, r#"{"metadata":{"name":"web","resourceVersion":"7","uid":"u"}}"#, precise("7", "u")),
            (Door::Rollback, r#"{"revision":3}"#, Order { revision: Some(3), ..Order::default() }),
            (Door::Deny, r#"{"message":"who?"}"#, Order { message: Some("who?".into()), ..Order::default() }),
            (Door::Rollback, r#"{"revision":"3"}"#, Order { revision: Some(3), ..Order::default() }),
            (Door::Finalize, "", Order::default()),
            (Door::Finalize, r#"{"finalizers":null}"#, Order::default()),
            (Door::Finalize, r#"{"finalizers":[]}"#, taking(&[])),
            (Door::Finalize, r#"{"finalizers":["a.b/c","d"]}"#, taking(&["a.b/c", "d"])),
        ] {
            assert_eq!(read(door, body), Ok(expected), "{body}");
        }
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for (door, body, code) in [
            (Door::Freeze, "not json", 400),
            (Door::Freeze, "[]", 400),
            (Door::Freeze, r#"{"resourceversion":"7"}"#, 400),
            (Door::Freeze, r#"{"revision":3}"#, 400),
            (Door::Freeze, r#"{"message":"why"}"#, 400),
            (Door::Deny, r#"{"message":1}"#, 400),
            (Door::Freeze, r#"{"uid":"a","uid":"b"}"#, 400),
            (Door::Freeze, r#"{"resourceVersion":7}"#, 400),
            (Door::Freeze, r#"{"metadata":{"name":"other"}}"#, 400),
            (Door::Freeze, r#"{"metadata":{"labels":{}}}"#, 400),
            (Door::Freeze, r#"{"uid":"a","metadata":{"uid":"b"}}"#, 400),
            (Door::Rollback, "", 422),
            (Door::Rollback, "{}", 422),
            (Door::Rollback, r#"{"revision":1.5}"#, 400),
            (Door::Rollback, r#"{"revision":"x"}"#, 400),
            (Door::Freeze, r#"{"finalizers":["a.b/c"]}"#, 400),
            (Door::Finalize, r#"{"finalizers":"a.b/c"}"#, 400),
            (Door::Finalize, r#"{"finalizers":[1]}"#, 400),
            (Door::Finalize, r#"{"metadata":{"finalizers":["a.b/c"]}}"#, 400),
        ] {
            assert_eq!(read(door, body), Err(code), "{body}");
        }
    }
}
