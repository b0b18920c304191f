//! The way of a written document from bytes to an object that may be stored.
//!
//! [`decode`] reads the bytes; [`complete`] judges the document by its kind: apiVersion and kind, nulls,
//! defaults, unknown and duplicate members, and every violation of the schema at once; [`validate`] applies
//! the rules that the schema cannot say. Between the two the server puts in what it decides itself (names,
//! user ids, …), so `validate` sees the object as it would be stored.
//!
//! Not judged here: names and namespaces ([`crate::names`]), anything about other objects, who is asking.
//! [`prune`](crate::schema::prune) and the checks look at what the request adds: a member that this version
//! does not know but the stored object carries stays as it is.

use std::borrow::Cow;

use serde_json::Value;

use crate::decode::{self, DecodeError, Document};
use crate::object::Object;
use crate::registry::KindSpec;
use crate::schema;
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
    let unknown = schema::prune(schema, &mut value, stored.map(|object| &object.0));
    let warnings = report(spec, validation, unknown, document.duplicates)?;
    schema::fill_defaults(schema, &mut value);
    schema::normalize(schema, &mut value);

    let causes = schema::check(schema, &value);
    let object = Object::from_value(value).unwrap_or_default();
    if causes.is_empty() {
        Ok(Admitted { object, warnings })
    } else {
        Err(Status::invalid(spec.kind, object.name(), causes))
    }
}

/// The rules of one object alone that the schema cannot say, all violations at once.
pub fn validate(spec: &KindSpec, object: &Object) -> Result<(), Status> {
    let causes = (spec.validate)(object);
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(spec.kind, object.name(), causes)) }
}

/// Fills in apiVersion and kind; 400 when the document claims to be something else.
fn stamp_type(spec: &KindSpec, object: &mut Object) -> Result<(), Status> {
    for (member, want) in [("apiVersion", spec.kind.api_version()), ("kind", spec.kind.name())] {
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
    unknown: Vec<schema::Unknown>,
    duplicates: Vec<String>,
) -> Result<Vec<String>, Status> {
    let mut warnings = Vec::new();
    let mut causes = Vec::new();
    let found = unknown
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
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::registry;
    use proptest::prelude::*;
    use serde_json::json;

    fn admit_as(kind: Kind, body: &str, validation: FieldValidation) -> Result<Admitted, Status> {
        let spec = registry::spec(kind).unwrap();
        complete(spec, decode(spec, Media::Json, body.as_bytes())?, None, validation)
    }

    fn admit(kind: Kind, value: Value) -> Result<Admitted, Status> {
        admit_as(kind, &value.to_string(), FieldValidation::Strict)
    }

    fn application(spec: Value) -> Value {
        json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    }

    fn causes(spec: Value) -> Vec<(String, String)> {
        let status = admit(Kind::Application, application(spec)).unwrap_err();
        assert_eq!(status.code(), 422, "{}", status.message);
        status.details.causes.iter().map(|cause| (cause.field.clone(), cause.reason.clone())).collect()
    }

    fn one(field: &str, reason: &str) -> Vec<(String, String)> {
        vec![(field.to_owned(), reason.to_owned())]
    }

    #[test]
    fn a_minimal_application_gets_its_defaults() {
        let object = admit(Kind::Application, application(json!({"image": "nginx"}))).unwrap().object;
        assert_eq!(object.get("apiVersion"), Some(&json!("horchestra.io/v1")));
        assert_eq!(
            object.get("spec"),
            Some(
                &json!({"image": "nginx", "lifecycle": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}})
            )
        );
    }

    #[test]
    fn authored_zero_values_stay() {
        let spec = json!({"image": "x", "lifecycle": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}});
        let object = admit(Kind::Application, application(spec.clone())).unwrap().object;
        assert_eq!(object.get("spec"), Some(&spec));
    }

    #[test]
    fn every_violation_has_its_path_and_reason() {
        assert_eq!(causes(json!({"image": ""})), one("spec.image", "FieldValueInvalid"));
        assert_eq!(causes(json!({})), one("spec.image", "FieldValueRequired"));
        let cases = [
            (
                json!({"lifecycle": {"restartPolicy": "never"}}),
                "spec.lifecycle.restartPolicy",
                "FieldValueNotSupported",
            ),
            (
                json!({"lifecycle": {"restartPolicy": ""}}),
                "spec.lifecycle.restartPolicy",
                "FieldValueNotSupported",
            ),
            (
                json!({"lifecycle": {"terminationGracePeriodSeconds": -1}}),
                "spec.lifecycle.terminationGracePeriodSeconds",
                "FieldValueInvalid",
            ),
            (
                json!({"lifecycle": {"activeDeadlineSeconds": 0}}),
                "spec.lifecycle.activeDeadlineSeconds",
                "FieldValueInvalid",
            ),
            (
                json!({"lifecycle": {"backoffLimit": 2147483648u64}}),
                "spec.lifecycle.backoffLimit",
                "FieldValueInvalid",
            ),
            (json!({"lifecycle": {"backoffLimit": 2.5}}), "spec.lifecycle.backoffLimit", "FieldValueInvalid"),
            (json!({"ports": [{"port": 70000}]}), "spec.ports[0].port", "FieldValueInvalid"),
            (json!({"ports": [{"name": "x"}]}), "spec.ports[0].port", "FieldValueRequired"),
            (json!({"env": {"A": "b"}}), "spec.env", "FieldValueInvalid"),
            (json!({"env": [null]}), "spec.env[0]", "FieldValueInvalid"),
            (json!({"command": ["a", 1]}), "spec.command[1]", "FieldValueInvalid"),
            (
                json!({"env": [{"name": "A", "secretRef": {"name": "", "key": "k"}}]}),
                "spec.env[0].secretRef.name",
                "FieldValueInvalid",
            ),
            (
                json!({"env": [{"name": "A", "secretRef": {"name": "s"}}]}),
                "spec.env[0].secretRef.key",
                "FieldValueRequired",
            ),
            (json!({"resources": {"limits": {"cpu": 1}}}), "spec.resources.limits.cpu", "FieldValueInvalid"),
            (json!({"resources": {"limits": {"cpu": ""}}}), "spec.resources.limits.cpu", "FieldValueInvalid"),
            (
                json!({"resources": {"limits": {"cpu": "1x"}}}),
                "spec.resources.limits.cpu",
                "FieldValueInvalid",
            ),
            (json!({"serviceName": "x".repeat(254)}), "spec.serviceName", "FieldValueInvalid"),
            (json!({"values": "text"}), "spec.values", "FieldValueInvalid"),
            (
                json!({"volumes": [{"mountPath": "/a", "volume": {"type": "hostPath"}}]}),
                "spec.volumes[0].volume.type",
                "FieldValueNotSupported",
            ),
            (
                json!({"volumes": [{"mountPath": "/a", "volume": {"type": "pv", "size": ""}}]}),
                "spec.volumes[0].volume.size",
                "FieldValueInvalid",
            ),
            (
                json!({"volumes": [{"mountPath": "", "volume": {"type": "pv"}}]}),
                "spec.volumes[0].mountPath",
                "FieldValueInvalid",
            ),
            (json!({"volumes": [{"mountPath": "/a"}]}), "spec.volumes[0].volume", "FieldValueRequired"),
            (
                json!({"placement": {"affinity": {"nodeAffinity": {"requiredDuringScheduling": {"matchExpressions": [{"key": "k", "operator": "in"}]}}}}}),
                "spec.placement.affinity.nodeAffinity.requiredDuringScheduling.matchExpressions[0].operator",
                "FieldValueNotSupported",
            ),
        ];
        for (mut spec, field, reason) in cases {
            spec["image"] = json!("x");
            assert_eq!(causes(spec.clone()), one(field, reason), "{spec}");
        }
    }

    #[test]
    fn two_violations_are_reported_together_in_full() {
        let spec = json!({"image": "x", "lifecycle": {"restartPolicy": "nope", "terminationGracePeriodSeconds": -5}});
        let status = admit(Kind::Application, application(spec)).unwrap_err();
        assert_eq!(
            status.message,
            "Application.horchestra.io \"web\" is invalid: [spec.lifecycle.restartPolicy: Unsupported value: \
             \"nope\": supported values: \"Always\", \"OnFailure\", \"Never\", \
             spec.lifecycle.terminationGracePeriodSeconds: Invalid value: null: minimum: got -5, want 0]"
        );
    }

    #[test]
    fn a_missing_spec_is_not_made_up() {
        let status = admit(Kind::Application, json!({"metadata": {"name": "x"}})).unwrap_err();
        assert_eq!(status.details.causes[0].field, "spec");
        let status = admit(Kind::Node, json!({"metadata": {"name": "x"}})).unwrap_err();
        assert_eq!(status.details.causes[0].field, "spec");
        assert!(admit(Kind::Node, json!({"metadata": {"name": "x"}, "spec": {}})).is_ok());
        assert!(admit(Kind::Namespace, json!({"metadata": {"name": "x"}})).is_ok());
    }

    #[test]
    fn values_are_never_shown() {
        let spec = json!({"image": 42, "env": [{"name": "A", "value": {"secret": "hunter2"}}], "serviceName": "hunter2".repeat(40)});
        let status = admit(Kind::Application, application(spec)).unwrap_err();
        assert_eq!(status.details.causes.len(), 3);
        assert!(!status.to_value().to_string().contains("hunter2"));
    }

    #[test]
    fn monstrous_literals_are_refused_under_any_spelling() {
        let long = "1".repeat(4096);
        for literal in ["\"1e-100000000\"", "\"1\\u0065-100000000\"", "1e-100000000", &format!("{long:?}")] {
            for member in [
                "\"resources\":{\"limits\":{\"cpu\":L}}",
                "\"volumes\":[{\"mountPath\":\"/a\",\"volume\":{\"type\":\"pv\",\"size\":L}}]",
                "\"volumes\":[{\"mountPath\":\"/a\",\"volume\":{\"type\":\"pv\",\"name\":L}}]",
            ] {
                let body = format!(
                    "{{\"metadata\":{{\"name\":\"x\"}},\"spec\":{{\"image\":\"x\",{}}}}}",
                    member.replace('L', literal)
                );
                assert_eq!(
                    admit_as(Kind::Application, &body, FieldValidation::Strict).unwrap_err().code(),
                    422,
                    "{body}"
                );
            }
            let folded = format!(
                "{{\"metadata\":{{\"name\":\"x\"}},\"spec\":{{\"image\":\"x\",\"resources\":{{\"limit\u{17f}\":{{\"cpu\":{literal}}}}}}}}}"
            );
            assert_eq!(
                admit_as(Kind::Application, &folded, FieldValidation::Strict).unwrap_err().code(),
                400
            );
        }
        let fine = application(
            json!({"image": "x", "volumes": [{"mountPath": "/1e99", "subPath": "1e-100000000",
            "volume": {"type": "pv", "name": "data-1", "size": "1E"}}], "resources": {"requests": {"cpu": "1e9", "memory": "64e000"}}}),
        );
        assert!(admit(Kind::Application, fine).is_ok());
    }

    #[test]
    fn quantities_and_times_are_stored_in_their_canonical_form() {
        let spec = json!({"image": "x", "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}});
        let object = admit(Kind::Application, application(spec)).unwrap().object;
        assert_eq!(object.at(&["spec", "resources", "limits"]), Some(&json!({"cpu": "1", "memory": "1Gi"})));
        let node = json!({"metadata": {"name": "n"}, "spec": {}, "status": {"capacity": {}, "allocated": {}, "ready": true,
            "heartbeat": "2026-01-02T03:04:05.678+01:00"}});
        let object = admit(Kind::Node, node).unwrap().object;
        assert_eq!(object.str_at(&["status", "heartbeat"]), "2026-01-02T02:04:05Z");
    }

    #[test]
    fn null_is_absent_and_empty_texts_leave_volumes() {
        let spec = json!({"image": "x", "command": null, "lifecycle": null, "securityContext": null,
            "volumes": [{"mountPath": "/a", "volume": {"type": "pv", "name": "", "audience": ""}}]});
        let mut body = application(spec);
        body["metadata"]["annotations"] = json!({"a": null, "b": "c"});
        body["metadata"]["creationTimestamp"] = Value::Null;
        let object = admit(Kind::Application, body).unwrap().object;
        assert_eq!(object.at(&["spec", "lifecycle", "restartPolicy"]), Some(&json!("Always")));
        assert!(
            object.at(&["spec", "command"]).is_none() && object.at(&["spec", "securityContext"]).is_none()
        );
        assert_eq!(
            object.at(&["spec", "volumes"]),
            Some(&json!([{"mountPath": "/a", "volume": {"type": "pv"}}]))
        );
        assert_eq!(object.at(&["metadata", "annotations"]), Some(&json!({"b": "c"})));
        assert_eq!(causes(json!({"image": null})), one("spec.image", "FieldValueRequired"));
    }

    #[test]
    fn unknown_and_duplicate_members_are_refused_all_at_once() {
        let body = r#"{"metadata":{"name":"web"},"kind":"Application","bogus":1,
            "spec":{"image":"a","image":"b","termnationGracePeriodSeconds":3,"lifecycle":{"x":1},
                    "env":[{"name":"A","extra":true}],"values":{"k":1,"k":2,"free":{"form":null}}}}"#;
        let status = admit_as(Kind::Application, body, FieldValidation::Strict).unwrap_err();
        assert_eq!(status.code(), 400);
        let fields: Vec<&str> = status.details.causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "bogus",
                "spec.termnationGracePeriodSeconds",
                "spec.env[0].extra",
                "spec.lifecycle.x",
                "spec.image",
                "spec.values.k"
            ]
        );
        for field in fields {
            assert!(status.message.contains(&format!("field \"{field}\"")), "{}", status.message);
        }

        let warned = admit_as(Kind::Application, body, FieldValidation::Warn).unwrap();
        assert_eq!(warned.warnings.len(), 6);
        assert_eq!(warned.warnings[1], "unknown field \"spec.termnationGracePeriodSeconds\"");
        assert_eq!(warned.object.str_at(&["spec", "image"]), "b");
        assert!(warned.object.get("bogus").is_none());
        assert_eq!(warned.object.at(&["spec", "values"]), Some(&json!({"k": 2, "free": {"form": null}})));

        let ignored = admit_as(Kind::Application, body, FieldValidation::Ignore).unwrap();
        assert!(ignored.warnings.is_empty());
        assert_eq!(ignored.object, warned.object);
    }

    #[test]
    fn unknown_metadata_is_dropped_with_a_warning_even_when_strict() {
        let body =
            json!({"metadata": {"name": "x", "selfLink": "/x", "ownerReferences": [{"uid": "u", "odd": 1}]}});
        let admitted = admit(Kind::Namespace, body).unwrap();
        assert_eq!(
            admitted.warnings,
            ["unknown field \"metadata.selfLink\"", "unknown field \"metadata.ownerReferences[0].odd\""]
        );
        let status =
            admit(Kind::Namespace, json!({"metadata": {"name": "x", "labels": {"a": 1, "0": true}}}))
                .unwrap_err();
        let fields: Vec<&str> = status.details.causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["metadata.labels[0]", "metadata.labels.a"]);
    }

    #[test]
    fn members_that_the_stored_object_has_survive() {
        let spec = registry::spec(Kind::Application).unwrap();
        let stored = Object::from_value(
            json!({"metadata": {"name": "web", "later": 1}, "spec": {"image": "x", "newer": {"a": 1},
            "ports": [{"port": 1}, {"port": 2, "tls": true}]}}),
        )
        .unwrap();
        let mut edited = stored.clone().into_value();
        edited["spec"]["image"] = json!("y");
        edited["spec"]["ports"] = json!([{"port": 2, "tls": true}]);
        let document =
            |value: Value| Document { object: Object::from_value(value).unwrap(), ..Document::default() };
        let admitted =
            complete(spec, document(edited.clone()), Some(&stored), FieldValidation::Strict).unwrap();
        assert!(admitted.warnings.is_empty());
        assert_eq!(admitted.object.at(&["spec", "newer"]), Some(&json!({"a": 1})));
        assert_eq!(admitted.object.at(&["spec", "ports"]), Some(&json!([{"port": 2, "tls": true}])));
        edited["spec"]["newer"] = json!({"a": 2});
        let status = complete(spec, document(edited), Some(&stored), FieldValidation::Strict).unwrap_err();
        assert_eq!(status.details.causes[0].field, "spec.newer");
    }

    #[test]
    fn a_body_of_another_type_is_refused() {
        for (member, value) in [
            ("kind", json!("Node")),
            ("apiVersion", json!("v1")),
            ("kind", json!(3)),
            ("apiVersion", json!("horchestra.io/v2")),
        ] {
            let mut body = application(json!({"image": "x"}));
            body[member] = value;
            assert_eq!(admit(Kind::Application, body).unwrap_err().code(), 400);
        }
        for body in ["{", "", "[]", "null", "{}{}", "{\"spec\":1}x"] {
            assert_eq!(
                admit_as(Kind::Application, body, FieldValidation::Strict).unwrap_err().code(),
                400,
                "{body}"
            );
        }
    }

    #[test]
    fn a_nul_is_refused_with_its_path() {
        let body = r#"{"metadata":{"name":"x"},"spec":{"image":"a","args":["x","\u0000"]}}"#;
        let status = admit_as(Kind::Application, body, FieldValidation::Ignore).unwrap_err();
        assert_eq!((status.code(), status.details.causes[0].field.as_str()), (422, "spec.args[1]"));
    }

    #[test]
    fn a_server_shaped_object_is_accepted() {
        let body = json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": "x", "namespace": "d",
            "uid": "u", "resourceVersion": "7", "generation": 2, "creationTimestamp": null, "labels": {"a": "b"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}\n"},
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"image": "x"}, "status": {"phase": "Running", "observedGeneration": 2}});
        let admitted = admit(Kind::Application, body.clone()).unwrap();
        assert!(admitted.warnings.is_empty(), "{:?}", admitted.warnings);
        assert_eq!(admitted.object.get("status"), body.get("status"));
    }

    #[test]
    fn field_validation_is_strict_unless_said_otherwise() {
        assert_eq!(FieldValidation::parse(None).unwrap(), FieldValidation::Strict);
        assert_eq!(FieldValidation::parse(Some("")).unwrap(), FieldValidation::Strict);
        assert_eq!(FieldValidation::parse(Some("Warn")).unwrap(), FieldValidation::Warn);
        assert_eq!(FieldValidation::parse(Some("warn")).unwrap_err().code(), 422);
    }

    #[test]
    fn a_full_manifest_in_yaml_goes_through() {
        let manifest = include_str!("../tests/data/application.yaml");
        let spec = registry::spec(Kind::Application).unwrap();
        let document = decode(spec, Media::Yaml, manifest.as_bytes()).unwrap();
        let admitted = complete(spec, document, None, FieldValidation::Strict).unwrap();
        assert!(admitted.warnings.is_empty());
        validate(spec, &admitted.object).unwrap();
        let again = Document { object: admitted.object.clone(), ..Document::default() };
        assert_eq!(complete(spec, again, None, FieldValidation::Strict).unwrap().object, admitted.object);
        let read: crate::kinds::application::Application = admitted.object.read().unwrap();
        assert_eq!(read.spec.volumes.len(), 4);
        assert_eq!(read.spec.volumes[2].volume.default_mode, Some(256));
    }

    proptest! {
        #[test]
        fn no_document_makes_it_panic(
            members in prop::collection::btree_map("(metadata|spec|status|kind|x)", prop_oneof![
                Just(json!(null)), Just(json!(1)), Just(json!([1, null])), Just(json!("")),
                Just(json!({"image": [], "lifecycle": 1, "volumes": {"a": 1}, "env": [[]]})),
                Just(json!({"name": {}, "labels": [], "ownerReferences": {"x": 1}})),
                Just(json!({"image": "x", "volumes": [1, {"volume": null}, {"volume": {"type": "pv", "name": "1e999"}}]})),
            ], 0..5),
            kind in prop::sample::select(vec![Kind::Application, Kind::Node, Kind::Namespace]),
        ) {
            let value = Value::Object(members.into_iter().collect());
            for validation in [FieldValidation::Strict, FieldValidation::Ignore] {
                if let Ok(admitted) = admit_as(kind, &value.to_string(), validation) {
                    let spec = registry::spec(kind).unwrap();
                    let _ = validate(spec, &admitted.object);
                    let _ = ((spec.facts)(&admitted.object), (spec.references)(&admitted.object));
                }
            }
        }
    }
}
