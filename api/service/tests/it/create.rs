use horchestra_core::kind::Kind;
use horchestra_service::{Body, FieldValidation, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

#[tokio::test]
async fn a_created_object_has_what_the_server_owns_and_defaults() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["uid"] = json!("11111111-1111-1111-1111-111111111111");
    body["metadata"]["resourceVersion"] = json!("1");
    body["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    body["metadata"]["generation"] = json!(77);
    body["metadata"]["selfLink"] = json!("/x");
    body["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    body["status"] = json!({"phase": "Succeeded"});
    let written = world.create(body).await.unwrap();
    assert!(written.created && !written.erased);
    let stored = tree(&written.entry);
    assert_eq!(stored, world.get(&app("web")).await.unwrap(), "what is returned is what is read");
    assert_eq!(stored["apiVersion"], "horchestra.io/v1");
    assert_eq!(stored["kind"], "Application");
    let metadata = &stored["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["resourceVersion"], written.entry.revision.to_string());
    assert_ne!(metadata["uid"], "11111111-1111-1111-1111-111111111111");
    let created = metadata["creationTimestamp"].as_str().unwrap();
    assert!(created.ends_with('Z') && !created.starts_with("2001") && created.len() == 20, "{created}");
    for member in ["selfLink", "deletionTimestamp", "finalizers"] {
        assert!(metadata.get(member).is_none(), "{member}");
    }
    assert!(!managers(&stored).iter().any(|manager| manager.ends_with(" x")), "managers are the server's");
    assert!(stored.get("status").is_none(), "a status of the client's is not stored");
    assert_eq!(stored["spec"]["lifecycle"]["restartPolicy"], "Always");
    assert_eq!(stored["spec"]["lifecycle"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(
        stored["spec"]["securityContext"],
        json!({"runAsUser": 1_000_000_000, "runAsGroup": 1_000_000_000})
    );
}

#[tokio::test]
async fn revisions_are_of_one_sequence_for_all_kinds() {
    let world = World::new().await;
    let first = world.create(application("a")).await.unwrap().entry.revision;
    let second = world
        .create(json!({"kind": "Node", "metadata": {"name": "n"}, "spec": {}}))
        .await
        .unwrap()
        .entry
        .revision;
    assert!(second > first);
}

#[tokio::test]
async fn what_is_wrong_with_a_new_object() {
    let world = World::new().await;
    world.create(application("taken")).await.unwrap();
    let with = |path: &str, value: Value| {
        let mut object = application("web");
        *object.pointer_mut(path).unwrap() = value;
        object
    };
    let cases: Vec<(&str, Value, u16, &str)> = vec![
        ("a taken name", application("taken"), 409, "already exists"),
        ("no name", with("/metadata", json!({})), 422, "metadata.name"),
        ("an empty name", with("/metadata/name", json!("")), 422, "metadata.name"),
        ("an upper-case name", with("/metadata/name", json!("Foo")), 422, "metadata.name"),
        ("a path as name", with("/metadata/name", json!("../../etc")), 422, "metadata.name"),
        ("options as name", with("/metadata/name", json!("app,lowerdir=/")), 422, "metadata.name"),
        ("a number as name", with("/metadata/name", json!(3)), 422, "metadata.name"),
        ("metadata of another type", with("/metadata", json!("web")), 422, "metadata"),
        ("no spec", json!({"metadata": {"name": "web"}}), 422, "spec"),
        ("a wrong type", with("/spec/image", json!(["x"])), 422, "spec.image"),
        ("an unknown field", with("/spec", json!({"image": "x", "imgae": "y"})), 400, "spec.imgae"),
        (
            "another kind",
            json!({"kind": "Node", "metadata": {"name": "web"}, "spec": {"image": "x"}}),
            400,
            "kind",
        ),
        (
            "another group",
            json!({"apiVersion": "apps/v1", "metadata": {"name": "web"}, "spec": {"image": "x"}}),
            400,
            "apiVersion",
        ),
        (
            "a deletion mark",
            with("/metadata", json!({"name": "web", "deletionTimestamp": "2030-01-01T00:00:00Z"})),
            403,
            "deletionTimestamp",
        ),
        ("root", with("/spec", json!({"image": "x", "securityContext": {"runAsUser": 0}})), 403, "runAsUser"),
        ("a unit option", with("/spec", json!({"image": "x", "command": ["+sh"]})), 403, "command"),
        (
            "a missing node",
            with("/spec", json!({"image": "x", "placement": {"nodeName": "nope"}})),
            422,
            "nope",
        ),
        ("a missing service", with("/spec", json!({"image": "x", "serviceName": "nope"})), 422, "nope"),
        (
            "a missing secret",
            with(
                "/spec",
                json!({"image": "x", "env": [{"name": "A", "secretRef": {"name": "nope", "key": "k"}}]}),
            ),
            422,
            "nope",
        ),
        (
            "a quantity of no size",
            with("/spec", json!({"image": "x", "resources": {"requests": {"cpu": "1e-100000000"}}})),
            422,
            "cpu",
        ),
    ];
    for (what, object, code, text) in cases {
        let body = Body::Json(object.to_string().into());
        let status = world
            .service
            .create(&admin(), Kind::Application, "default", body, &WriteOptions::default())
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{what}: {status}");
        assert!(status.message.contains(text), "{what}: {status}");
        assert!(world.get(&app("web")).await.is_err(), "{what}: nothing is stored");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_document() {
    let world = World::new().await;
    for (what, body, code) in [
        ("nothing", "", 400),
        ("half an object", "{", 400),
        ("a list", "[]", 400),
        ("null", "null", 400),
        ("two objects", r#"{"metadata":{"name":"a"},"spec":{"image":"x"}} {}"#, 400),
        ("a key twice", r#"{"metadata":{"name":"a"},"spec":{"image":"x","image":"y"}}"#, 400),
        ("NUL in a string", r#"{"metadata":{"name":"a"},"spec":{"image":"x\u0000"}}"#, 422),
        ("a null in a list", r#"{"metadata":{"name":"a"},"spec":{"image":"x","env":[null]}}"#, 422),
    ] {
        let body = Body::Json(body.to_owned().into());
        let options = WriteOptions::default();
        let status =
            world.service.create(&admin(), Kind::Application, "default", body, &options).await.unwrap_err();
        assert_eq!(status.code(), code, "{what}: {status}");
    }
    let nulls = json!({"metadata": {"name": "a", "labels": null, "annotations": {"x": null}},
        "spec": {"image": "x", "command": null, "lifecycle": null}});
    let stored = tree(&world.create(nulls).await.unwrap().entry);
    assert_eq!(stored["spec"]["lifecycle"]["restartPolicy"], "Always", "null is the same as absent");
    assert!(stored["spec"].get("command").is_none());
    assert!(stored["metadata"].get("annotations").is_none() && stored["metadata"].get("labels").is_none());
}

#[tokio::test]
async fn an_environment_keeps_its_order() {
    let world = World::new().await;
    let names = |object: &Value| -> Vec<String> {
        let list = object["spec"]["env"].as_array().cloned().unwrap_or_default();
        list.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut body = application("web");
    assert_eq!(tree(&world.create(body.clone()).await.unwrap().entry)["spec"].get("env"), None);
    let entries =
        json!([{"name": "B", "value": "2"}, {"name": "C", "value": ""}, {"name": "A", "value": "1"}]);
    body["spec"]["env"] = entries.clone();
    let there = tree(&world.put(&app("web"), &body).await.unwrap().entry);
    assert_eq!(names(&there), ["B", "C", "A"]);
    assert!(there["spec"]["env"][1]["value"].as_str().unwrap_or("").is_empty());
    let back: Vec<Value> = entries.as_array().unwrap().iter().rev().cloned().collect();
    let back = world.merge(&app("web"), json!({"spec": {"env": back}})).await.unwrap();
    assert_eq!(names(&tree(&back.entry)), ["A", "C", "B"]);
    assert_eq!(names(&world.get(&app("web")).await.unwrap()), ["A", "C", "B"]);
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_about_or_dropped() {
    let world = World::new().await;
    for (at, (validation, code, warnings)) in [
        (FieldValidation::Strict, 400, 0),
        (FieldValidation::Warn, 201, 2),
        (FieldValidation::Ignore, 201, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(r#"{{"metadata":{{"name":"a{at}"}},"spec":{{"image":"x","image":"y","odd":1}}}}"#);
        let options = WriteOptions { field_validation: validation, ..WriteOptions::default() };
        let result = world
            .service
            .create(&admin(), Kind::Application, "default", Body::Json(body.into()), &options)
            .await;
        match result {
            Ok(written) => {
                assert_eq!(code, 201, "{validation:?}");
                assert_eq!(written.warnings.len(), warnings, "{:?}", written.warnings);
                let stored = tree(&written.entry);
                assert_eq!(stored["spec"]["image"], "y", "the last one counts");
                assert!(stored["spec"].get("odd").is_none());
            }
            Err(status) => {
                assert_eq!(status.code(), code, "{validation:?}: {status}");
                assert_eq!(status.details.causes.len(), 2, "all of them: {status}");
            }
        }
    }
}

#[tokio::test]
async fn namespaces_of_body_and_request() {
    let world = World::new().await;
    let create = |kind, namespace: &'static str, body: Value| {
        let service = world.service.clone();
        async move {
            let options = WriteOptions::default();
            service.create(&admin(), kind, namespace, Body::Json(body.to_string().into()), &options).await
        }
    };
    let mut body = application("web");
    body["metadata"]["namespace"] = json!("other");
    let status = create(Kind::Application, "default", body.clone()).await.unwrap_err();
    assert_eq!(status.code(), 400, "{status}");
    create(Kind::Application, "other", body).await.unwrap();
    let status = create(Kind::Application, "nope", application("web")).await.unwrap_err();
    assert_eq!((status.code(), status.message.as_str()), (404, "namespaces \"nope\" not found"));
    assert_eq!(status.details.kind, "namespaces");
    let body = json!({"metadata": {"name": "n", "namespace": "default"}, "spec": {}});
    assert_eq!(create(Kind::Node, "", body).await.unwrap_err().code(), 400);
    // Another spelling of the member is another member.
    let folded = json!({"metadata": {"name": "web", "name\u{17f}pace": "other", "Namespace": "other"}, "spec": {"image": "x"}});
    if let Ok(written) = create(Kind::Application, "default", folded).await {
        assert_eq!(written.entry.key.namespace, "default");
    }
    let dotted = json!({"metadata": {"name": "a.b"}});
    create(Kind::Namespace, "", dotted).await.unwrap();
    assert_eq!(create(Kind::Application, "a.b", application("x")).await.unwrap_err().code(), 422);
}

#[tokio::test]
async fn generated_names() {
    let world = World::new().await;
    let body = json!({"metadata": {"generateName": "web-"}, "spec": {"image": "x"}});
    let first = world.create(body.clone()).await.unwrap().entry.key.name.clone();
    let second = world.create(body.clone()).await.unwrap().entry.key.name.clone();
    assert_ne!(first, second);
    assert!(first.starts_with("web-") && first.len() == 9, "{first}");
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let body = Body::Json(body.to_string().into());
    let dry = world.service.create(&admin(), Kind::Application, "default", body, &options).await.unwrap();
    assert!(world.get(&dry.entry.key).await.is_err(), "the name of a dry run is not taken");
}

#[tokio::test]
async fn a_dry_run_judges_everything_and_stores_nothing() {
    let world = World::new().await;
    world.create(application("taken")).await.unwrap();
    let before = world.service.store().fresh().await.unwrap().revision();
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let create = |object: Value| {
        let (service, options) = (world.service.clone(), options.clone());
        async move {
            let body = Body::Json(object.to_string().into());
            service.create(&admin(), Kind::Application, "default", body, &options).await
        }
    };
    let written = create(application("web")).await.unwrap();
    assert!(written.created);
    let shown = tree(&written.entry);
    assert_eq!(shown["spec"]["lifecycle"]["restartPolicy"], "Always");
    assert!(shown["metadata"].get("resourceVersion").is_none(), "what is not stored has no revision");
    assert_eq!(create(application("taken")).await.unwrap_err().code(), 409);
    let pinned = json!({"metadata": {"name": "x"}, "spec": {"image": "x", "placement": {"nodeName": "no"}}});
    assert_eq!(create(pinned).await.unwrap_err().code(), 422);
    assert!(world.get(&app("web")).await.is_err());
    assert_eq!(world.service.store().fresh().await.unwrap().revision(), before, "no revision is taken");
}

#[tokio::test]
async fn objects_that_are_too_large_are_refused() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["annotations"] = json!({"a": "x".repeat(1_600_000)});
    let status = world.create(body).await.unwrap_err();
    assert_eq!(status.code(), 413, "{status}");
}
