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
    let spec =
        json!({"image": "x", "lifecycle": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}});
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
        (json!({"resources": {"limits": {"cpu": "1x"}}}), "spec.resources.limits.cpu", "FieldValueInvalid"),
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
    let spec =
        json!({"image": "x", "lifecycle": {"restartPolicy": "nope", "terminationGracePeriodSeconds": -5}});
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
fn a_verdict_on_a_node_that_never_reported_is_a_whole_status() {
    let conditions = json!([{"type": "Ready", "status": "False"}]);
    let body = json!({"metadata": {"name": "x"}, "spec": {}, "status": {"conditions": conditions}});
    let object = admit(Kind::Node, body).unwrap().object;
    let want = json!({"allocated": {}, "capacity": {}, "ready": false, "conditions": conditions});
    assert_eq!(object.get("status"), Some(&want));
    let bad = json!({"metadata": {"name": "x"}, "spec": {}, "status": {"ready": "yes", "conditions": [{"type": ""}]}});
    let status = admit(Kind::Node, bad).unwrap_err();
    let fields: Vec<&str> = status.details.causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(fields, ["status.conditions[0].status", "status.conditions[0].type", "status.ready"]);
}

#[test]
fn lists_are_bounded() {
    let mounts: Vec<Value> =
        (0..65).map(|n| json!({"mountPath": format!("/v{n}"), "volume": {"type": "tmpfs"}})).collect();
    assert_eq!(causes(json!({"image": "x", "volumes": mounts})), one("spec.volumes", "FieldValueTooMany"));
    assert!(admit(Kind::Application, application(json!({"image": "x", "volumes": &mounts[..64]}))).is_ok());
    let env: Vec<Value> = (0..257).map(|n| json!({"name": format!("V{n}")})).collect();
    assert_eq!(causes(json!({"image": "x", "env": env})), one("spec.env", "FieldValueTooMany"));
    assert!(admit(Kind::Application, application(json!({"image": "x", "env": &env[..256]}))).is_ok());
}

#[test]
fn a_hostile_body_is_answered_briefly() {
    let wrong = vec![json!(1); 10_000];
    let status = admit(Kind::Application, application(json!({"image": "x", "ports": wrong}))).unwrap_err();
    assert_eq!((status.code(), status.details.causes.len()), (422, 501));
    let unknown = vec![json!({"port": 1, "x": 1}); 10_000];
    let body = application(json!({"image": "x", "ports": unknown}));
    let status = admit(Kind::Application, body.clone()).unwrap_err();
    assert_eq!((status.code(), status.details.causes.len()), (400, 500));
    let warned = admit_as(Kind::Application, &body.to_string(), FieldValidation::Warn).unwrap();
    assert_eq!(warned.warnings.len(), 51);
    assert_eq!(warned.warnings[50], "9950 more unknown or duplicate fields");
    assert_eq!(warned.object.at(&["spec", "ports"]).unwrap()[9_999], json!({"port": 1}));

    let spec = registry::spec(Kind::Application).unwrap();
    let stored = vec![json!({"port": 1, "y": 1}); 10_000];
    let stored = Object::from_value(application(json!({"image": "x", "ports": stored}))).unwrap();
    let document = decode(spec, Media::Json, body.to_string().as_bytes()).unwrap();
    let status = complete(spec, document, Some(&stored), FieldValidation::Strict).unwrap_err();
    assert_eq!(status.code(), 400);
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
        assert_eq!(admit_as(Kind::Application, &folded, FieldValidation::Strict).unwrap_err().code(), 400);
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
    assert!(object.at(&["spec", "command"]).is_none() && object.at(&["spec", "securityContext"]).is_none());
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
    let status = admit(Kind::Namespace, json!({"metadata": {"name": "x", "labels": {"a": 1, "0": true}}}))
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
    let admitted = complete(spec, document(edited.clone()), Some(&stored), FieldValidation::Strict).unwrap();
    assert!(admitted.warnings.is_empty());
    assert_eq!(admitted.object.at(&["spec", "newer"]), Some(&json!({"a": 1})));
    assert_eq!(admitted.object.at(&["spec", "ports"]), Some(&json!([{"port": 2, "tls": true}])));
    edited["spec"]["newer"] = json!({"a": 2});
    let status = complete(spec, document(edited), Some(&stored), FieldValidation::Strict).unwrap_err();
    assert_eq!(status.details.causes[0].field, "spec.newer");
}

#[test]
fn what_is_stored_is_not_held_against_a_change_elsewhere() {
    let spec = registry::spec(Kind::Application).unwrap();
    let lifecycle =
        json!({"restartPolicy": "Sometimes", "terminationGracePeriodSeconds": 1, "backoffLimit": 1});
    let stored = Object::from_value(application(json!({"image": "x", "lifecycle": lifecycle}))).unwrap();
    let judge = |edit: &dyn Fn(&mut Value)| {
        let mut edited = stored.clone().into_value();
        edit(&mut edited);
        let document = Document { object: Object::from_value(edited).unwrap(), ..Document::default() };
        complete(spec, document, Some(&stored), FieldValidation::Strict)
    };
    let reported = judge(&|object| object["status"] = json!({"phase": "Running"})).unwrap();
    assert_eq!(reported.object.str_at(&["spec", "lifecycle", "restartPolicy"]), "Sometimes");
    assert_eq!(judge(&|object| object["spec"]["image"] = json!("y")).unwrap_err().code(), 422);
    assert_eq!(judge(&|object| object["metadata"]["labels"] = json!(3)).unwrap_err().code(), 422);
    assert_eq!(judge(&|object| object["status"] = json!({"phase": 3})).unwrap_err().code(), 422);

    let bad = json!({"image": "x", "lifecycle": {"restartPolicy": "Always", "backoffLimit": 1}});
    let stored = Object::from_value(application(bad)).unwrap();
    let mut reported = stored.clone();
    reported.0.insert("status".to_owned(), json!({"phase": "Running"}));
    assert!(validate(spec, &reported, Some(&stored)).is_ok());
    assert_eq!(validate(spec, &reported, None).unwrap_err().code(), 422);
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
    let manifest = include_str!("../../tests/data/application.yaml");
    let spec = registry::spec(Kind::Application).unwrap();
    let document = decode(spec, Media::Yaml, manifest.as_bytes()).unwrap();
    let admitted = complete(spec, document, None, FieldValidation::Strict).unwrap();
    assert!(admitted.warnings.is_empty());
    validate(spec, &admitted.object, None).unwrap();
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
            Just(json!({"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1, "managedFields": [{}],
                "ownerReferences": [{}], "deletionGracePeriodSeconds": null})),
            Just(json!({"image": "x", "env": [{}], "ports": [{"port": 1}], "resources": {}, "placement": {"affinity": {}},
                "lifecycle": {"backoffLimit": 3}, "values": {}, "securityContext": {"runAsUser": -1}})),
            Just(json!({"phase": "", "exitCode": 3, "finishedAt": null, "conditions": [{"type": "x", "status": "True"}],
                "capacity": {"cpu": "1"}, "allocated": {}, "ready": true})),
            Just(json!({"image": "x", "volumes": [1, {"volume": null}, {"volume": {"type": "pv", "name": "1e999"}}]})),
        ], 0..5),
        kind in prop::sample::select(vec![Kind::Application, Kind::Node, Kind::Namespace]),
    ) {
        let value = Value::Object(members.into_iter().collect());
        for validation in [FieldValidation::Strict, FieldValidation::Ignore] {
            if let Ok(admitted) = admit_as(kind, &value.to_string(), validation) {
                let spec = registry::spec(kind).unwrap();
                let _ = validate(spec, &admitted.object, None);
                // What the schema lets through can be read as the struct that it was made from.
                if kind == Kind::Application {
                    prop_assert!(admitted.object.read::<crate::kinds::application::Application>().is_ok());
                }
                let _ = ((spec.facts)(&admitted.object), (spec.references)(&admitted.object));
            }
        }
    }
}
