use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{Apply, FieldValidation, Part, PatchType, RequestContext, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::*;

fn spec(spec: Value) -> Value {
    json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": "web"}, "spec": spec})
}

fn causes(status: &Status) -> Vec<(&str, &str)> {
    let of = |cause: &horchestra_core::status::Cause| (cause.field.clone(), cause.reason.clone());
    assert!(status.details.causes.iter().map(of).all(|(_, reason)| reason == "FieldManagerConflict"));
    status.details.causes.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect()
}

#[tokio::test]
async fn an_apply_makes_what_is_missing_and_a_second_one_changes_nothing() {
    let world = World::new().await;
    let wanted = spec(
        json!({"image": "a", "resources": {"limits": {"memory": "1024Mi"}}, "env": [{"name": "A", "value": "1"}]}),
    );
    let written = world.apply(&app("web"), "m", wanted.clone()).await.unwrap();
    assert!(written.created);
    let made = tree(&written.entry);
    assert_eq!(made["spec"]["lifecycle"]["restartPolicy"], "Always");
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(
        fields_of(&made, "Apply m"),
        json!({"f:spec": {"f:image": {}, "f:resources": {"f:limits": {"f:memory": {}}},
            "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}}})
    );
    let again = world.apply(&app("web"), "m", wanted).await.unwrap();
    assert!(!again.created);
    assert_eq!(tree(&again.entry), made, "revision and times included");
    assert_eq!(world.get(&app("web")).await.unwrap(), made);
}

#[tokio::test]
async fn what_the_server_fills_in_is_its_own() {
    let world = World::new().await;
    world.node("n1", "4", "8Gi").await;
    let placed = |node: Value| spec(json!({"image": "a", "placement": node}));
    let made = world.apply(&app("web"), "m", placed(json!({"nodeName": "n1"}))).await.unwrap();
    let made = tree(&made.entry);
    assert_eq!(managers(&made), ["Apply m", "Update horchestra-api", "Update horchestra-api (status)"]);
    let server = fields_of(&made, "Update horchestra-api");
    assert!(
        server["f:metadata"]["f:finalizers"].get("v:\"horchestra.io/node-teardown\"").is_some(),
        "{server}"
    );
    assert_eq!(server["f:spec"].get("f:placement"), None);
    assert!(server["f:spec"]["f:securityContext"].get("f:runAsUser").is_some(), "{server}");
    assert!(fields_of(&made, "Update horchestra-api (status)")["f:status"].get("f:phase").is_some());
    let written = world.apply(&app("web"), "m", spec(json!({"image": "b"}))).await.unwrap();
    let stored = tree(&written.entry);
    assert_eq!(stored["spec"].get("placement"), None, "named no longer");
    assert_eq!(stored["metadata"].get("finalizers"), None, "the hold follows the placement");
    assert_eq!(stored["metadata"]["generation"], 2);
}

#[tokio::test]
async fn others_are_asked_before_their_fields_change() {
    let world = World::new().await;
    world.apply(&app("web"), "a", spec(json!({"image": "a", "args": ["x"]}))).await.unwrap();
    let before = world.get(&app("web")).await.unwrap();
    let wanted = spec(json!({"image": "b", "args": ["y"], "env": [{"name": "B", "value": "1"}]}));
    let status = world.apply(&app("web"), "b", wanted.clone()).await.unwrap_err();
    assert_eq!(status.code(), 409);
    assert_eq!(
        causes(&status),
        [(".spec.args", "conflict with \"a\""), (".spec.image", "conflict with \"a\"")]
    );
    assert_eq!(world.get(&app("web")).await.unwrap(), before);

    let forced = tree(&world.force(&app("web"), "b", wanted).await.unwrap().entry);
    assert_eq!(forced["spec"]["image"], "b");
    assert_eq!(managers(&forced), ["Apply b", "Update horchestra-api"], "the other one has nothing left");
    // What it lost it neither gets back nor takes away by naming nothing.
    let empty = json!({"metadata": {"name": "web"}});
    assert_eq!(tree(&world.apply(&app("web"), "a", empty).await.unwrap().entry), forced);
}

#[tokio::test]
async fn what_is_named_no_longer_goes_unless_somebody_else_names_it() {
    let world = World::new().await;
    world
        .apply(
            &app("web"),
            "a",
            spec(json!({"image": "a", "args": ["x"], "ports": [{"port": 80, "name": "web"}]})),
        )
        .await
        .unwrap();
    world.apply(&app("web"), "b", spec(json!({"ports": [{"port": 80}, {"port": 90}]}))).await.unwrap();
    let stored = tree(&world.apply(&app("web"), "a", spec(json!({"image": "a"}))).await.unwrap().entry);
    assert_eq!(stored["spec"].get("args"), None);
    assert_eq!(stored["spec"]["ports"], json!([{"port": 80}, {"port": 90}]));
    let status = world.apply(&app("web"), "a", spec(json!({}))).await.unwrap_err();
    assert_eq!(status.code(), 422, "what it takes away must still leave an Application: {status}");
    let stored = tree(&world.apply(&app("web"), "b", json!({})).await.unwrap().entry);
    assert_eq!(stored["spec"].get("ports"), None);
}

#[tokio::test]
async fn lists_are_shared_as_openapi_says() {
    let world = World::new().await;
    let env = |list: Value| spec(json!({"image": "a", "env": list}));
    let wildcard = json!({"secretRef": {"name": "s", "key": "*", "optional": true}});
    world.apply(&app("web"), "a", env(json!([wildcard, {"name": "A", "value": "1"}]))).await.unwrap();
    let stored =
        world.apply(&app("web"), "b", spec(json!({"env": [{"name": "B", "value": "1"}]}))).await.unwrap();
    assert_eq!(tree(&stored.entry)["spec"]["env"].as_array().unwrap().len(), 3);
    let other = json!({"secretRef": {"name": "t", "key": "*", "optional": true}});
    let status = world.apply(&app("web"), "b", spec(json!({"env": [other]}))).await.unwrap_err();
    assert_eq!(causes(&status)[0].0, ".spec.env[]", "entries without a name are one");

    let mount = |path: &str| json!({"mountPath": path, "volume": {"type": "tmpfs"}});
    let volumes = |list: Value| spec(json!({ "volumes": list }));
    world.apply(&app("web"), "c", volumes(json!([mount("/c")]))).await.unwrap();
    let stored = world.apply(&app("web"), "d", volumes(json!([mount("/d")]))).await.unwrap();
    assert_eq!(tree(&stored.entry)["spec"]["volumes"].as_array().unwrap().len(), 2);
    let command = |word: &str| spec(json!({ "command": [word] }));
    world.apply(&app("web"), "c", command("x")).await.unwrap();
    assert_eq!(world.apply(&app("web"), "d", command("y")).await.unwrap_err().code(), 409);
    let values = |values: Value| spec(json!({ "values": values }));
    world.apply(&app("web"), "e", values(json!({"a": 1}))).await.unwrap();
    let status = world.apply(&app("web"), "f", values(json!({"b": 1}))).await.unwrap_err();
    assert_eq!(causes(&status)[0].0, ".spec.values");
}

#[tokio::test]
async fn volumes_on_one_path_are_one_value() {
    let world = World::new().await;
    let mount =
        |path: &str, size: &str| json!({"mountPath": path, "volume": {"type": "tmpfs", "size": size}});
    let twice = json!([mount("/a", "1Mi"), mount("/a", "2Mi")]);
    let wanted = spec(json!({"image": "a", "volumes": twice}));
    let made = world.apply(&app("web"), "a", wanted.clone()).await.unwrap().entry;
    assert_eq!(fields_of(&tree(&made), "Apply a")["f:spec"]["f:volumes"], json!({}));
    assert_eq!(world.apply(&app("web"), "a", wanted).await.unwrap().entry.revision, made.revision);
    let more = spec(json!({"volumes": [mount("/b", "1Mi")]}));
    assert_eq!(causes(&world.apply(&app("web"), "b", more).await.unwrap_err())[0].0, ".spec.volumes");
}

#[tokio::test]
async fn status_is_applied_by_itself() {
    let world = World::new().await;
    world.apply(&app("web"), "a", spec(json!({"image": "a"}))).await.unwrap();
    let whole = |image: &str, phase: &str| {
        json!({"metadata": {"name": "web", "labels": {"x": "y"}}, "spec": {"image": image}, "status": {"phase": phase,
            "conditions": [{"type": "Mine", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    let put = |manager: &'static str, object: Value, force: bool| {
        let world = &world;
        async move { world.apply_with(&app("web"), Part::Status, &object, force, &managed_by(manager)).await }
    };
    let stored = tree(&put("s", whole("b", "Running"), false).await.unwrap().entry);
    assert_eq!(stored["spec"]["image"], "a");
    assert_eq!(stored["metadata"].get("labels"), None);
    assert_eq!(stored["metadata"]["generation"], 1);
    assert_eq!(stored["status"]["phase"], "Running");
    assert_eq!(managers(&stored), ["Apply a", "Apply s (status)", "Update horchestra-api"]);
    assert!(fields_of(&stored, "Apply s (status)").get("f:spec").is_none());
    let again = put("s", whole("b", "Running"), false).await.unwrap();
    assert_eq!(tree(&again.entry), stored);
    let status = put("t", whole("b", "Failed"), false).await.unwrap_err();
    assert_eq!(causes(&status), [(".status.phase", "conflict with \"s\" with subresource \"status\"")]);
    put("t", whole("b", "Failed"), true).await.unwrap();
    // The object's own managers are not in the way, nor is the status of those who apply the whole.
    let applied = world.apply(&app("web"), "a", whole("a", "Odd")).await.unwrap();
    assert_eq!(tree(&applied.entry)["status"]["phase"], "Failed");
    let missing = world.apply_with(&app("no"), Part::Status, &json!({}), false, &managed_by("s")).await;
    assert_eq!(missing.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_node_that_reports_and_a_manager_that_applies_do_not_meet() {
    let world = World::new().await;
    let session = world.node("n1", "4", "8Gi").await;
    let lease = world.lease("scheduler").await;
    let wanted = spec(json!({"image": "a", "lifecycle": {"restartPolicy": "Always"}}));
    let made = world.apply(&app("web"), "m", wanted.clone()).await.unwrap().entry;
    let binding = horchestra_service::Binding {
        key: app("web"),
        uid: made.uid,
        revision: made.revision,
        node: "n1".to_owned(),
        node_revision: None,
    };
    world.service.bind(&lease, vec![binding]).await.remove(0).unwrap();
    let report = horchestra_service::ApplicationReport { phase: "Running".to_owned(), ..Default::default() };
    let reported =
        world.service.report_application(&session, &app("web"), made.uid, report.clone()).await.unwrap();
    let stored = tree(&reported.entry);
    let mut names = managers(&stored);
    names.sort();
    assert_eq!(
        names,
        [
            "Apply m",
            "Update horchestra-api",
            "Update horchestra-nodegate (status)",
            "Update horchestra-scheduler",
            "Update horchestra-scheduler (status)"
        ]
    );
    assert!(
        fields_of(&stored, "Update horchestra-scheduler")["f:spec"]["f:placement"]
            .get("f:nodeName")
            .is_some()
    );
    assert_eq!(tree(&world.apply(&app("web"), "m", wanted).await.unwrap().entry), stored);
    let elsewhere = spec(json!({"image": "a", "placement": {"nodeName": "n2"}}));
    let status = world.apply(&app("web"), "m", elsewhere).await.unwrap_err();
    assert!(
        causes(&status)[0].1.starts_with("conflict with \"horchestra-scheduler\" using horchestra.io/v1 at ")
    );
    let again =
        world.service.report_application(&session, &app("web"), made.uid, report.clone()).await.unwrap();
    assert!(!again.changed);
}

#[tokio::test]
async fn what_cannot_be_applied_says_why() {
    let world = World::new().await;
    world.apply(&app("web"), "m", spec(json!({"image": "a"}))).await.unwrap();
    let before = world.get(&app("web")).await.unwrap();
    for (what, document, code) in [
        ("no document", "", 400),
        ("a list", "[]", 400),
        ("half of one", "{", 400),
        ("bytes after it", "{} {}", 400),
        ("another kind", r#"{"kind":"Node"}"#, 400),
        ("another version", r#"{"apiVersion":"horchestra.io/v2"}"#, 400),
        ("another name", r#"{"metadata":{"name":"other"}}"#, 400),
        ("another namespace", r#"{"metadata":{"namespace":"other"}}"#, 400),
        ("managers", r#"{"metadata":{"managedFields":[{}]}}"#, 400),
        ("no managers", r#"{"metadata":{"managedFields":[]}}"#, 400),
        ("another uid", r#"{"metadata":{"uid":"00000000-0000-0000-0000-000000000000"}}"#, 409),
        ("an old version", r#"{"metadata":{"resourceVersion":"1"},"spec":{"image":"b"}}"#, 409),
        ("no version", r#"{"metadata":{"resourceVersion":"x"}}"#, 400),
        ("an unknown field", r#"{"spec":{"odd":1}}"#, 400),
        ("a field twice", r#"{"spec":{"image":"a","image":"b"}}"#, 400),
        ("a wrong type", r#"{"spec":{"image":1}}"#, 422),
        ("a wrong spec", r#"{"spec":1}"#, 422),
        ("no metadata", r#"{"metadata":1}"#, 422),
        ("null in a list", r#"{"spec":{"env":[null]}}"#, 422),
        ("a NUL", r#"{"spec":{"image":"a\u0000"}}"#, 422),
        ("a bad value", r#"{"spec":{"image":""}}"#, 422),
        ("a mark of deletion", r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}"#, 403),
        ("YAML with a tab", "spec:\n\timage: a", 400),
    ] {
        let request = Apply { document: document.to_owned().into(), force: true, refuse_create: None };
        let status = world
            .service
            .apply(&admin(), &app("web"), Part::Main, request, &managed_by("n"))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{what}: {status}");
    }
    assert_eq!(world.get(&app("web")).await.unwrap(), before);
    for (what, name, document) in [
        ("a uid without an object", "new", json!({"metadata": {"uid": "x"}})),
        ("a version without an object", "new", json!({"metadata": {"resourceVersion": "1"}})),
    ] {
        let status = world.apply(&app(name), "m", document).await.unwrap_err();
        assert_eq!(status.code(), 409, "{what}: {status}");
    }
    let status = world.apply(&app("Bad_Name"), "m", spec(json!({"image": "a"}))).await.unwrap_err();
    assert_eq!(status.code(), 400, "the name is another: {status}");
    let unnamed = json!({"spec": {"image": "a"}});
    assert_eq!(world.apply(&app("Bad_Name"), "m", unnamed).await.unwrap_err().code(), 422);
    let nameless =
        world.apply_with(&app("web"), Part::Main, &json!({}), false, &WriteOptions::default()).await;
    assert_eq!(nameless.unwrap_err().code(), 400, "somebody has to own what is applied");
    let refusal = Status::bad_request("no");
    let request =
        Apply { document: b"{}".to_vec().into(), force: false, refuse_create: Some(refusal.clone()) };
    let refused = world.service.apply(&admin(), &app("new"), Part::Main, request, &managed_by("m")).await;
    assert_eq!(refused.unwrap_err(), refusal);
}

#[tokio::test]
async fn a_named_version_makes_an_apply_conditional() {
    let world = World::new().await;
    let made = world.apply(&app("web"), "m", spec(json!({"image": "a"}))).await.unwrap().entry;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    world.put_status(&app("web"), &status).await.unwrap();
    let at = |revision: i64, image: &str| json!({"metadata": {"resourceVersion": revision.to_string()}, "spec": {"image": image}});
    let edited = world.apply(&app("web"), "m", at(made.revision, "b")).await.unwrap().entry;
    let stale = world.apply(&app("web"), "m", at(made.revision, "c")).await.unwrap_err();
    assert_eq!(stale.code(), 409);
    assert!(stale.details.causes.is_empty(), "not a conflict of managers: {stale}");
    world.apply(&app("web"), "m", at(edited.revision, "c")).await.unwrap();
}

#[tokio::test]
async fn options_are_honoured() {
    let world = World::new().await;
    let dry = WriteOptions { dry_run: true, ..managed_by("m") };
    let wanted = spec(json!({"image": "a"}));
    let tried = world.apply_with(&app("web"), Part::Main, &wanted, false, &dry).await.unwrap();
    assert!(tried.created);
    assert_eq!(managers(&tree(&tried.entry)), ["Apply m", "Update horchestra-api"]);
    assert_eq!(world.get(&app("web")).await.unwrap_err().code(), 404);
    world.apply(&app("web"), "m", wanted).await.unwrap();
    let before = world.get(&app("web")).await.unwrap();
    let other = spec(json!({"image": "b", "odd": 1}));
    let lenient = WriteOptions { field_validation: FieldValidation::Warn, dry_run: true, ..managed_by("m") };
    let tried = world.apply_with(&app("web"), Part::Main, &other, false, &lenient).await.unwrap();
    assert_eq!(tried.warnings, ["unknown field \"spec.odd\""]);
    assert_eq!(tree(&tried.entry)["spec"]["image"], "b");
    let status = world.apply_with(&app("web"), Part::Main, &other, false, &dry).await.unwrap_err();
    assert_eq!(status.code(), 400);
    assert_eq!(world.get(&app("web")).await.unwrap(), before);
}

#[tokio::test]
async fn documents_are_yaml_or_json() {
    let world = World::new().await;
    for (name, document) in [
        ("yaml", "metadata:\n  annotations: {note: crab}\nspec:\n  image: a\n"),
        ("flow", "{metadata: {annotations: {note: crab}}, spec: {image: a}}"),
        ("json", r#" {"metadata":{"annotations":{"note":"\ud83e\udd80"}},"spec":{"image":"a"}}"#),
    ] {
        let request = Apply { document: document.to_owned().into(), force: false, refuse_create: None };
        let written =
            world.service.apply(&admin(), &app(name), Part::Main, request, &managed_by("m")).await.unwrap();
        let note = tree(&written.entry)["metadata"]["annotations"]["note"].clone();
        assert_eq!(note, if name == "json" { "\u{1f980}" } else { "crab" }, "{name}");
    }
}

#[tokio::test]
async fn what_was_read_can_be_applied_and_doors_keep_what_is_theirs() {
    let world = World::new().await;
    world.node("n1", "4", "8Gi").await;
    let wanted = spec(json!({"image": "a", "placement": {"nodeName": "n1"}}));
    world.apply(&app("web"), "m", wanted).await.unwrap();
    let mut read = world.get(&app("web")).await.unwrap();
    read["metadata"].as_object_mut().unwrap().remove("managedFields");
    read["spec"]["frozen"] = json!(true);
    let applied = tree(&world.apply(&app("web"), "m", read).await.unwrap().entry);
    assert_eq!(applied["spec"].get("frozen"), None);
    assert_eq!(fields_of(&applied, "Apply m")["f:spec"].get("f:frozen"), None);
    assert_eq!(fields_of(&applied, "Apply m").get("f:status"), None);
    // Naming a hold does not make it one's own to take away.
    let fewer = spec(json!({"image": "a", "placement": {"nodeName": "n1"}}));
    let stored = tree(&world.apply(&app("web"), "m", fewer).await.unwrap().entry);
    assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
}

#[tokio::test]
async fn finalizers_of_clients_are_applied_and_the_last_one_erases() {
    let world = World::new().await;
    let mut held = spec(json!({"image": "a"}));
    held["metadata"]["finalizers"] = json!(["example.com/a"]);
    world.apply(&app("web"), "m", held).await.unwrap();
    world.delete(&app("web")).await.unwrap();
    let written = world.apply(&app("web"), "m", spec(json!({"image": "a"}))).await.unwrap();
    assert!(written.erased);
    assert_eq!(world.get(&app("web")).await.unwrap_err().code(), 404);
}

/// Managers of different fields race on one object, through two processes: nobody is ever told of a conflict,
/// and nothing is lost.
#[tokio::test]
async fn races_of_appliers_are_nobodys_business() {
    let world = Arc::new(World::new().await);
    let other = world.replica().await;
    world.apply(&app("web"), "base", spec(json!({"image": "a"}))).await.unwrap();
    let tasks: Vec<_> = (0..24)
        .map(|n| {
            let service = if n % 2 == 0 { world.service.clone() } else { other.clone() };
            tokio::spawn(async move {
                let object = spec(json!({"env": [{"name": format!("V{n}"), "value": "1"}]}));
                let request =
                    Apply { document: object.to_string().into(), force: false, refuse_create: None };
                let context: RequestContext = admin();
                let options = managed_by(&format!("m{n}"));
                let done: Result<Written, Status> =
                    service.apply(&context, &app("web"), Part::Main, request, &options).await;
                done.map(|written| written.created)
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(false));
    }
    let stored = world.get(&app("web")).await.unwrap();
    assert_eq!(stored["spec"]["env"].as_array().unwrap().len(), 24);
    assert_eq!(managers(&stored).iter().filter(|name| name.starts_with("Apply m")).count(), 24);

    let made: Vec<_> = (0..8)
        .map(|n| {
            let service = if n % 2 == 0 { world.service.clone() } else { other.clone() };
            tokio::spawn(async move {
                let request = Apply {
                    document: spec(json!({"image": "a"})).to_string().replace("web", "new").into(),
                    force: false,
                    refuse_create: None,
                };
                let options = managed_by(&format!("m{n}"));
                service.apply(&admin(), &app("new"), Part::Main, request, &options).await
            })
        })
        .collect();
    let mut created = 0;
    for task in made {
        created += usize::from(task.await.unwrap().unwrap().created);
    }
    assert_eq!(created, 1);
    assert_eq!(
        managers(&world.get(&app("new")).await.unwrap()).iter().filter(|it| it.starts_with("Apply")).count(),
        8
    );
}

#[tokio::test]
async fn a_merge_patch_in_between_moves_the_owner() {
    let world = World::new().await;
    world.apply(&app("web"), "m", spec(json!({"image": "a"}))).await.unwrap();
    world.patch(&app("web"), Part::Main, PatchType::Merge, json!({"spec": {"image": "b"}})).await.unwrap();
    let stored = world.get(&app("web")).await.unwrap();
    assert!(!managers(&stored).contains(&"Apply m".to_owned()), "it has nothing left");
    let status = world.apply(&app("web"), "m", spec(json!({"image": "a"}))).await.unwrap_err();
    assert!(
        causes(&status)[0].1.starts_with("conflict with \"unknown\" using horchestra.io/v1 at "),
        "{status}"
    );
}

#[tokio::test]
async fn texts_of_a_secret_are_owned_as_the_data_that_they_become() {
    let world = World::new().await;
    let key = Key::namespaced(Kind::Secret, "default", "s");
    let texts = |value: &str| json!({"stringData": {"user": value}, "data": {"pw": "eA=="}});
    let made = tree(&world.apply(&key, "a", texts("x")).await.unwrap().entry);
    assert_eq!(fields_of(&made, "Apply a"), json!({"f:data": {"f:user": {}, "f:pw": {}}}));
    assert_eq!(tree(&world.apply(&key, "a", texts("x")).await.unwrap().entry), made);
    let status = world.apply(&key, "b", texts("y")).await.unwrap_err();
    assert_eq!(causes(&status), [(".data.user", "conflict with \"a\"")]);
    assert!(!status.to_value().to_string().contains("eQ=="), "values are not told");
    let stored = tree(&world.apply(&key, "a", json!({"data": {"pw": "eA=="}})).await.unwrap().entry);
    assert_eq!(stored["data"], json!({"pw": "eA=="}));
}

#[tokio::test]
async fn ports_of_a_service_are_told_apart_by_port_and_protocol() {
    let world = World::new().await;
    let key = Key::namespaced(Kind::Service, "default", "s");
    let ports = |list: Value| json!({"spec": {"ports": list}});
    let http = json!({"port": 80, "name": "http"});
    let made = tree(&world.apply(&key, "a", ports(json!([http]))).await.unwrap().entry);
    assert_eq!(
        fields_of(&made, "Apply a")["f:spec"]["f:ports"],
        json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}})
    );
    assert_eq!(tree(&world.apply(&key, "a", ports(json!([http]))).await.unwrap().entry), made);
    world.apply(&key, "b", ports(json!([{"port": 90, "name": "more"}]))).await.unwrap();
    let stored =
        tree(&world.apply(&key, "a", ports(json!([{"port": 81, "name": "http"}]))).await.unwrap().entry);
    let numbers: Vec<i64> = stored["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["port"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, [90, 81], "a port that nobody names any more goes, its default with it");
}

#[tokio::test]
async fn components_of_a_set_are_told_apart_by_name() {
    let world = World::new().await;
    let key = Key::namespaced(Kind::ApplicationSet, "default", "s");
    let component = |name: &str, image: &str| json!({"name": name, "spec": {"image": image}});
    let set = |list: Value| json!({"spec": {"applications": list}});
    world.apply(&key, "a", set(json!([component("x", "1")]))).await.unwrap();
    world.apply(&key, "b", set(json!([component("y", "1")]))).await.unwrap();
    let status = world.apply(&key, "b", set(json!([component("x", "2")]))).await.unwrap_err();
    assert_eq!(causes(&status)[0].0, ".spec.applications[name=\"x\"].spec.image");
    let stored = tree(&world.apply(&key, "b", set(json!([]))).await.unwrap().entry);
    assert_eq!(stored["spec"]["applications"].as_array().unwrap().len(), 1);
}
