//! Bodies that say one thing and mean another, and such as are meant to be expensive.

use bytes::Bytes;
use horchestra_core::values::encode_base64;
use http::Method;
use serde_json::{Value, json};

use super::{CORE, Fleet, apply, refused};
use crate::client::{BOTH, Client, Reply};
use crate::crud::app;
use crate::stack::Who;

const APPS: &str = "/apis/horchestra.io/v1/namespaces/team-a/applications";
const JSON: (&str, &str) = ("content-type", "application/json");

/// Names of the Applications of a namespace.
async fn names(client: &Client, namespace: &str) -> Vec<String> {
    let list = client.get(&format!("{CORE}/namespaces/{namespace}/applications")).await.json();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test]
async fn a_body_puts_nothing_into_another_namespace_than_its_path() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    let with =
        |member: &str| format!(r#"{{"metadata":{{"name":"smuggled",{member}}},"spec":{{"image":"x"}}}}"#);
    for (member, code) in [
        (r#""namespace":"team-b""#, 400),
        (r#""namespace":"team-a","namespace":"team-b""#, 400),
        (r#""namespace":"team-b","namespace":"team-a""#, 400),
        (r#""names\u0070ace":"team-b""#, 400),
        (r#""namespace":"team-a","names\u0070ace":"team-b""#, 400),
        (r#""namespace":["team-b"]"#, 422),
        (r#""namespace":{"team-b":1}"#, 422),
        // Another spelling is another member, and of metadata such are dropped with a warning.
        (r#""Namespace":"team-b""#, 201),
        (r#""NAMESPACE":"team-b""#, 201),
        (r#""nameſpace":"team-b""#, 201),
        (r#""name\u017fpace":"team-b""#, 201),
        (r#""namespace ":"team-b""#, 201),
        (r#""ｎamespace":"team-b""#, 201),
        (r#""namespace":"team-a","nameſpace":"team-b""#, 201),
        (r#""namespace":"","Namespace":"team-b""#, 201),
    ] {
        for media in ["application/json", "application/yaml"] {
            let reply = master.send(Method::POST, APPS, &[("content-type", media)], with(member)).await;
            assert_eq!(reply.status, code, "{media} {member}: {reply:?}");
            if code == 201 {
                assert_eq!(reply.json()["metadata"]["namespace"], "team-a", "{member}");
                assert_eq!(names(&master, "team-a").await, ["smuggled"], "{member}");
                assert_eq!(master.delete(&format!("{APPS}/smuggled")).await.status, 200);
            }
            assert_eq!(names(&master, "team-b").await, [""; 0], "{member}");
            assert_eq!(names(&master, "team-a").await, [""; 0], "{member}");
        }
    }
    // A replacement and an apply are about the object in the path, too.
    assert_eq!(master.post(APPS, &app("web")).await.status, 201);
    let mut elsewhere = app("web");
    elsewhere["metadata"]["namespace"] = json!("team-b");
    assert_eq!(master.put(&format!("{APPS}/web"), &elsewhere).await.status, 400);
    elsewhere["apiVersion"] = json!("horchestra.io/v1");
    elsewhere["kind"] = json!("Application");
    assert_eq!(apply(&master, &format!("{APPS}/web"), &elsewhere).await.status, 400);
    assert_eq!(names(&master, "team-b").await, [""; 0]);
    // Nor does a namespace come to something that lives in none.
    let node = json!({"metadata": {"name": "n1", "namespace": "team-b"}, "spec": {}});
    assert_eq!(master.post(&format!("{CORE}/nodes"), &node).await.status, 400);
}

#[tokio::test]
async fn a_patch_stays_with_the_object_that_it_is_sent_to() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    for (namespace, name) in [("team-a", "web"), ("team-a", "victim"), ("team-b", "web")] {
        let path = format!("{CORE}/namespaces/{namespace}/applications");
        assert_eq!(master.post(&path, &app(name)).await.status, 201);
    }
    let others = async || {
        let mut all = Vec::new();
        for path in ["namespaces/team-a/applications/victim", "namespaces/team-b/applications/web"] {
            all.push(master.get(&format!("{CORE}/{path}")).await.json());
        }
        all
    };
    let before = others().await;
    let victim = before[0]["metadata"].clone();
    let web = format!("{APPS}/web");
    let first = master.get(&web).await.json()["metadata"].clone();
    let forged = json!({"name": "victim", "namespace": "team-b", "uid": victim["uid"], "generation": 77,
        "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"});
    for (number, member) in forged.as_object().unwrap().keys().enumerate() {
        let value = &forged[member];
        let label = json!(number.to_string());
        let merge = json!({"metadata": {member: value, "labels": {"n": label}}});
        let operations = json!([
            {"op": "add", "path": "/metadata/labels", "value": {"n": label}},
            {"op": "add", "path": format!("/metadata/{member}"), "value": value},
        ]);
        for reply in [master.merge(&web, &merge).await, master.json_patch(&web, &operations).await] {
            // Either the whole of it is refused, or the object keeps what makes it that one.
            if reply.status == 200 {
                let now = &reply.json()["metadata"];
                for kept in ["name", "namespace", "uid", "creationTimestamp", "generation"] {
                    assert_eq!(now[kept], first[kept], "{member}: {reply:?}");
                }
                assert_eq!(now["labels"]["n"], label, "{member}: the rest of it is done");
            } else {
                assert!(matches!(reply.status, 400 | 409 | 422), "{member}: {reply:?}");
            }
            assert_eq!(others().await, before, "{member}");
        }
        let mut put = master.get(&web).await.json();
        put["metadata"][member] = value.clone();
        let reply = master.put(&web, &put).await;
        assert!(matches!(reply.status, 200 | 400 | 409 | 422), "{member}: {reply:?}");
        assert_eq!(others().await, before, "{member}");
        let mut applied = json!({"apiVersion": "horchestra.io/v1", "kind": "Application",
            "metadata": {"name": "web"}, "spec": {"image": "nginx:1"}});
        applied["metadata"][member] = value.clone();
        let reply = apply(&master, &web, &applied).await;
        assert!(matches!(reply.status, 200 | 400 | 409 | 422), "{member}: {reply:?}");
        assert_eq!(others().await, before, "{member}");
    }
    // A version that is not the object's is never a way around a conflict.
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"image": "y"}});
    assert_eq!(master.merge(&web, &stale).await.status, 409);
    assert_eq!(names(&master, "team-a").await, ["victim", "web"]);
    let last = master.get(&web).await.json();
    assert_eq!((&last["metadata"]["uid"], &last["spec"]["image"]), (&first["uid"], &json!("nginx:1")));
}

#[tokio::test]
async fn a_patch_that_grows_without_end_is_refused() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    assert_eq!(master.post(APPS, &app("web")).await.status, 201);
    let web = format!("{APPS}/web");
    let before = master.get(&web).await.json();
    let doubled = |from: &str, to: &str, times: usize| {
        let mut operations = vec![json!({"op": "add", "path": from, "value": {"a": "x".repeat(64)}})];
        for number in 0..times {
            operations.push(json!({"op": "copy", "from": from, "path": format!("{to}{number}")}));
        }
        json!(operations)
    };
    let mut chain =
        vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "x".repeat(1024)}})];
    for number in 0..64 {
        let from = if number == 0 { "a".to_owned() } else { format!("b{}", number - 1) };
        chain.push(json!({"op": "copy", "from": format!("/metadata/annotations/{from}"),
            "path": format!("/metadata/annotations/b{number}")}));
    }
    let mut many = vec![json!({"op": "test", "path": "/kind", "value": "Application"}); 10_000];
    many.push(json!({"op": "add", "path": "/metadata/labels", "value": {"late": "1"}}));
    let mut front = vec![json!({"op": "add", "path": "/spec/args", "value": vec!["x"; 20_000]})];
    front.extend(vec![json!({"op": "add", "path": "/spec/args/0", "value": "y"}); 9_000]);
    for (what, operations, codes) in [
        ("into itself, each time twice as much", doubled("/spec/x", "/spec/x/y", 40), &[400, 413, 422][..]),
        ("more than ten thousand operations", json!(many), &[413]),
        ("work that grows with the square", json!(front), &[400]),
    ] {
        let reply = master.json_patch(&web, &operations).await;
        assert!(codes.contains(&reply.status), "{what}: {} {}", reply.status, reply.text());
        reply.reason();
        assert_eq!(master.get(&web).await.json(), before, "{what}");
    }
    // What is copied is counted: not by how often, but by how much.
    let large = "x".repeat(600 << 10);
    let mut copies = vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": large}})];
    for number in 0..6 {
        copies.push(json!({"op": "copy", "from": "/metadata/annotations/a",
            "path": format!("/metadata/annotations/b{number}")}));
        copies.push(json!({"op": "remove", "path": format!("/metadata/annotations/b{number}")}));
    }
    let reply = master.json_patch(&web, &json!(copies)).await;
    assert_eq!((reply.status, reply.reason().as_str()), (400, "BadRequest"), "{}", reply.text());
    assert_eq!(master.get(&web).await.json(), before);
    assert_eq!(master.json_patch(&web, &json!(chain)).await.status, 200, "copying as such is no offence");
}

#[tokio::test]
async fn what_the_system_marks_objects_with_is_not_a_clients_to_write() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    let master = fleet.master();
    let owner = json!([{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "s",
        "uid": "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11", "controller": true}]);
    for (metadata, words) in [
        (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "deletionTimestamp may not be set"),
        (json!({"ownerReferences": owner}), "reserved to the controller of ApplicationSets"),
        (json!({"labels": {"horchestra.io/application-set": "s"}}), "reserved to the controller"),
        (json!({"labels": {"horchestra.io/component": "c"}}), "reserved to the controller"),
        (json!({"annotations": {"horchestra.io/appset-spec-hash": "h"}}), "reserved to the controller"),
    ] {
        let mut body = app("forged");
        body["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        refused(&master.post(APPS, &body).await, words);
        let mut applied = body.clone();
        applied["apiVersion"] = json!("horchestra.io/v1");
        applied["kind"] = json!("Application");
        refused(&apply(&master, &format!("{APPS}/forged"), &applied).await, words);
        assert_eq!(master.get(&format!("{APPS}/forged")).await.status, 404);
    }
    // On what is there, the marks are those that are stored.
    let mut body = app("web");
    body["spec"]["placement"] = json!({"nodeName": "n1"});
    body["metadata"]["finalizers"] = json!(["example.com/mine", "horchestra.io/child-teardown", "orphan"]);
    let created = master.post(APPS, &body).await.json_of(201).unwrap();
    let held = json!(["example.com/mine", "horchestra.io/node-teardown"]);
    assert_eq!(created["metadata"]["finalizers"], held);
    let web = format!("{APPS}/web");
    let marks = json!({"finalizers": ["example.com/mine", "horchestra.io/other", "foregroundDeletion"],
        "ownerReferences": owner,
        "labels": {"horchestra.io/application-set": "s", "horchestra.io/component": "c", "mine": "1"},
        "annotations": {"horchestra.io/appset-spec-hash": "h"}});
    let mut put = created.clone();
    put["metadata"].as_object_mut().unwrap().extend(marks.as_object().unwrap().clone());
    put["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let operations: Vec<Value> = marks
        .as_object()
        .unwrap()
        .iter()
        .map(|(member, value)| json!({"op": "add", "path": format!("/metadata/{member}"), "value": value}))
        .collect();
    for (how, reply) in [
        ("a merge patch", master.merge(&web, &json!({"metadata": marks})).await),
        ("a JSON patch", master.json_patch(&web, &json!(operations)).await),
        ("a replacement", master.put(&web, &put).await),
    ] {
        let now = reply.json_of(200).unwrap()["metadata"].clone();
        assert_eq!(now["finalizers"], held, "{how}");
        assert_eq!(now["labels"], json!({"mine": "1"}), "{how}");
        assert!(now["ownerReferences"].is_null() && now["annotations"].is_null(), "{how}: {now}");
        assert!(reply.headers_of("warning").iter().any(|it| it.contains("belongs to the system")), "{how}");
    }
    let freed = master.merge(&web, &json!({"metadata": {"finalizers": null}})).await.json_of(200).unwrap();
    assert_eq!(freed["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    let marked = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    refused(&master.merge(&web, &marked).await, "deletionTimestamp may not be set");
    assert!(master.get(&web).await.json()["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn no_workload_runs_as_root_or_as_another_namespaces_user() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    // `default` has no block before its first workload, the others have theirs from the beginning.
    let block = async |namespace: &str| -> (i64, i64) {
        let object = master.get(&format!("{CORE}/namespaces/{namespace}")).await.json();
        let range = object["metadata"]["annotations"]["horchestra.io/uid-range"].as_str().unwrap().to_owned();
        let (first, count) = range.split_once('/').unwrap();
        (first.parse().unwrap(), count.parse().unwrap())
    };
    let ((first, count), (foreign, _)) = (block("team-a").await, block("team-b").await);
    assert_eq!(master.post(APPS, &app("web")).await.status, 201);
    let web = format!("{APPS}/web");
    let before = master.get(&web).await.json();
    let with = |member: &str, id: &Value| {
        let mut body = app("new");
        body["spec"]["securityContext"] = json!({member: id});
        body
    };
    for member in ["runAsUser", "runAsGroup"] {
        for id in [
            json!(0),
            json!(-1),
            json!(foreign),
            json!(first - 1),
            json!(first + count),
            json!(65_532),
            // Such as are another number in 32 bits: 0, -1, and one of this very namespace.
            json!(1_i64 << 32),
            json!((1_i64 << 32) - 1),
            json!((1_i64 << 32) + first),
            json!(-(1_i64 << 32) + first),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(18_446_744_073_709_551_615_u64),
            json!(0.5),
            json!("0"),
            json!("root"),
            json!([0]),
            json!(true),
        ] {
            let created = master.post(APPS, &with(member, &id)).await;
            let patched = master.merge(&web, &json!({"spec": {"securityContext": {member: id}}})).await;
            for reply in [created, patched] {
                assert!(matches!(reply.status, 403 | 422), "{member} {id}: {reply:?}");
                assert!(reply.message().contains(member), "{member} {id}: {}", reply.message());
                if id.is_i64() && id.as_i64().unwrap() >= i64::from(i32::MIN) {
                    assert_eq!(reply.status, 403, "{member} {id}: {reply:?}");
                }
            }
        }
        let own = master.post(APPS, &with(member, &json!(first + 7))).await;
        assert_eq!(own.status, 201, "{member}: {own:?}");
        assert_eq!(master.delete(&format!("{APPS}/new")).await.status, 200);
    }
    // The same two in the parts of a set.
    for (member, id) in [("runAsUser", json!(0)), ("runAsGroup", json!(1_i64 << 32))] {
        let set = json!({"metadata": {"name": "set"}, "spec": {"applications": [
            {"name": "one", "spec": {"image": "x", "securityContext": {member: id}}}]}});
        let reply = master.post(&format!("{CORE}/namespaces/team-a/applicationsets"), &set).await;
        assert!(matches!(reply.status, 403 | 422), "{member} {id}: {reply:?}");
        assert!(reply.message().contains(member), "{}", reply.message());
    }
    assert_eq!(master.get(&web).await.json(), before);
}

#[tokio::test]
async fn a_panic_costs_the_request_that_brought_it_and_no_other() {
    let fleet = Fleet::start().await;
    let checks = fleet.stack.app.checks();
    for protocol in BOTH {
        let client = fleet.stack.client(Who::Master, protocol);
        let mut watch = client.lines(&format!("{APPS}?watch=1&allowWatchBookmarks=true"), &[]).await;
        checks.add("broken", || std::panic::panic_any("a secret detail"));
        for who in [Who::Anonymous, Who::Master] {
            let reply = fleet.stack.client(who, protocol).get("/readyz").await;
            assert_eq!((reply.status, reply.reason().as_str()), (500, "InternalError"), "{reply:?}");
            assert!(!reply.text().contains("secret detail"), "{}", reply.text());
            assert!(!reply.header("audit-id").is_empty());
        }
        // Those who were there before notice nothing, on whichever connection, and neither do those who come.
        let name = format!("after-{protocol:?}").to_lowercase();
        assert_eq!(client.post(APPS, &app(&name)).await.status, 201);
        loop {
            let (kind, seen) = watch.event().await;
            if (kind.as_str(), seen.as_str()) == ("ADDED", name.as_str()) {
                break;
            }
        }
        assert_eq!(client.get("/livez").await.status, 200);
    }
    let kept = fleet.master().keep().await;
    assert_eq!(kept.get("/readyz").await.status, 500);
    assert_eq!(kept.get(APPS).await.status, 200, "the connection itself goes on");
    let page = fleet.stack.page.encode().unwrap();
    assert!(page.lines().any(|line| line.contains("panics") && !line.ends_with(" 0")), "{page}");
}

/// Every way in which a body that holds `value` is refused.
async fn refusals(client: &Client, value: &str) -> Vec<(&'static str, Reply)> {
    let secrets = format!("{CORE}/namespaces/team-a/secrets");
    let db = format!("{secrets}/db");
    let new = |members: Value| {
        let mut object = json!({"metadata": {"name": "new"}});
        object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        object
    };
    let raw = async |media: &str, body: String| {
        client.send(Method::POST, &secrets, &[("content-type", media)], body).await
    };
    let base64 = encode_base64(value.as_bytes());
    let json_type = "application/json";
    vec![
        ("no base64", client.post(&secrets, &new(json!({"data": {"k": format!("%{value}")}}))).await),
        (
            "base64 of wrong length",
            client.post(&secrets, &new(json!({"data": {"k": format!("{value}=")}}))).await,
        ),
        ("a list", client.post(&secrets, &new(json!({"data": {"k": [value]}}))).await),
        ("an object", client.post(&secrets, &new(json!({"data": {"k": {"x": value}}}))).await),
        ("a text for data", client.post(&secrets, &new(json!({"data": value}))).await),
        ("a list of texts", client.post(&secrets, &new(json!({"stringData": [value]}))).await),
        ("a text in a list", client.post(&secrets, &new(json!({"stringData": {"k": [value]}}))).await),
        ("a file name", client.post(&secrets, &new(json!({"data": {"a/b": base64}}))).await),
        ("a nul", client.post(&secrets, &new(json!({"stringData": {"k": format!("\0{value}")}}))).await),
        ("an unknown member", client.post(&secrets, &new(json!({"dat": {"k": value}}))).await),
        ("a member beside", client.post(&secrets, &new(json!({"value": value}))).await),
        (
            "another type",
            client
                .post(&secrets, &new(json!({"type": "horchestra.io/vault", "stringData": {"k": value}})))
                .await,
        ),
        ("too much", client.post(&secrets, &new(json!({"stringData": {"k": value.repeat(60_000)}}))).await),
        ("a text for immutable", client.post(&secrets, &new(json!({"immutable": value}))).await),
        ("a list for a type", client.post(&secrets, &new(json!({"type": [value]}))).await),
        ("half a document", raw(json_type, format!("{{\"stringData\":{{\"k\":\"{value}")).await),
        ("no document", raw(json_type, value.to_owned()).await),
        ("a text", raw(json_type, format!("\"{value}\"")).await),
        ("a bare word", raw(json_type, format!("{{\"stringData\":{{\"k\":{value}}}}}")).await),
        ("twice", raw(json_type, format!("{{\"data\":{{\"k\":\"{base64}\",\"k\":\"{base64}\"}}}}")).await),
        (
            "broken YAML",
            raw("application/yaml", format!("stringData:\n  k: [\"{value}\"\n  : {value}")).await,
        ),
        ("a number in YAML", raw("application/yaml", format!("stringData:\n  k: !!int {value}")).await),
        ("a tag in YAML", raw("application/yaml", format!("stringData:\n  k: !{value}")).await),
        ("a tag of a list", raw("application/yaml", format!("stringData:\n  k: !{value} [a]")).await),
        ("a handle in YAML", raw("application/yaml", format!("stringData:\n  k: !a!{value} x")).await),
        ("an alias in YAML", raw("application/yaml", format!("stringData:\n  k: *{value}")).await),
        ("a reserved sign", raw("application/yaml", format!("stringData:\n  k: @{value}")).await),
        ("a directive", raw("application/yaml", format!("%{value}\nstringData: {{}}")).await),
        ("no key", raw("application/yaml", format!("stringData:\n{value}")).await),
        ("another media type", raw("application/xml", format!("<k>{value}</k>")).await),
        (
            "a name that is taken",
            client
                .post(
                    &secrets,
                    &json!({"metadata": {"name": "db"},
            "stringData": {"k": value}}),
                )
                .await,
        ),
        (
            "no such namespace",
            client
                .post(&format!("{CORE}/namespaces/none/secrets"), &new(json!({"stringData": {"k": value}})))
                .await,
        ),
        (
            "a stale version",
            client
                .put(
                    &db,
                    &json!({"metadata": {"name": "db", "resourceVersion": "1"},
            "stringData": {"k": value}}),
                )
                .await,
        ),
        ("a merge of no base64", client.merge(&db, &json!({"data": {"k": format!("%{value}")}})).await),
        ("a merge of a number for data", client.merge(&db, &json!({"data": [value]})).await),
        (
            "a test for a value",
            client.json_patch(&db, &json!([{"op": "test", "path": "/data/password", "value": base64}])).await,
        ),
        (
            "an unknown operation",
            client.json_patch(&db, &json!([{"op": value, "path": "/data/k", "value": value}])).await,
        ),
        (
            "no such place",
            client.json_patch(&db, &json!([{"op": "add", "path": "/none/k/x", "value": value}])).await,
        ),
        (
            "an apply of no base64",
            apply(
                client,
                &db,
                &json!({"apiVersion": "horchestra.io/v1", "kind": "Secret",
                "metadata": {"name": "db"}, "data": {"k": format!("%{value}")}}),
            )
            .await,
        ),
    ]
}

#[tokio::test]
async fn no_refusal_repeats_the_value_of_a_secret() {
    let fleet = Fleet::start().await;
    fleet.secret("team-a", "db").await;
    let master = fleet.master();
    let value = format!("v{}", uuid::Uuid::new_v4().simple());
    let base64 = encode_base64(value.as_bytes());
    let mut telling = Vec::new();
    for (what, reply) in refusals(&master, &value).await {
        assert!((400..500).contains(&reply.status), "{what}: {reply:?}");
        let text = format!("{} {}", reply.text(), reply.headers_of("warning").concat());
        if text.contains(&value[1..17]) || text.contains(&value[17..]) || text.contains(&base64[4..24]) {
            telling.push((what, text));
        }
    }
    assert!(telling.is_empty(), "{telling:#?}");
    // What is not refused but warned about is no better a place for it.
    for mode in ["Warn", "Ignore"] {
        let path = format!("{CORE}/namespaces/team-a/secrets?fieldValidation={mode}&dryRun=All");
        let body = format!(
            "{{\"metadata\":{{\"name\":\"new\"}},\"value\":\"{value}\",\"data\":{{\"k\":\"{base64}\"}},\
             \"data\":{{\"l\":\"eA==\"}}}}"
        );
        let reply = master.send(Method::POST, &path, &[JSON], body).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let warnings = reply.headers_of("warning").concat();
        assert!(!warnings.contains(&value) && !warnings.contains(&base64), "{warnings}");
    }
    let kept = master.get(&format!("{CORE}/namespaces/team-a/secrets")).await;
    assert!(!kept.text().contains(&base64), "and nothing of it was stored");
}

#[tokio::test]
async fn no_two_workloads_can_be_taken_for_each_other() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    // A workload is known as `<namespace>:<name>` to rules, as `<namespace>_<name>` to units and volumes.
    for name in
        ["b:c", "b_c", "a_b", "B", "a b", "a/b", "a%3Ab", "a\u{200b}b", "а", "-a", "a-", "a..b", ".", ""]
    {
        let reply = master.post(APPS, &app(name)).await;
        assert_eq!((reply.status, reply.reason().as_str()), (422, "Invalid"), "{name:?}: {reply:?}");
        let mut made_up = app("x");
        made_up["metadata"] = json!({"generateName": name});
        if name.contains([':', '_', ' ', '/', '%']) {
            assert_eq!(master.post(APPS, &made_up).await.status, 422, "{name:?}");
        }
    }
    for name in ["a:b", "a_b", "a.b", "a/b", "A", "a b", "-a", ""] {
        let object = json!({"metadata": {"name": name}});
        let reply = master.post(&format!("{CORE}/namespaces"), &object).await;
        if name == "a.b" {
            // Stored, as it always was, but nothing is put into it.
            assert_eq!(reply.status, 201, "{reply:?}");
            let inside = master.post(&format!("{CORE}/namespaces/a.b/applications"), &app("web")).await;
            assert_eq!(inside.status, 422, "{inside:?}");
        } else {
            assert_eq!((reply.status, reply.reason().as_str()), (422, "Invalid"), "{name:?}: {reply:?}");
        }
    }
    // The two that are closest to each other are two.
    for (namespace, name) in [("team-a", "b-c"), ("team-a", "b.c")] {
        let path = format!("{CORE}/namespaces/{namespace}/applications");
        assert_eq!(master.post(&path, &app(name)).await.status, 201, "{name}");
    }
    assert_eq!(names(&master, "team-a").await, ["b-c", "b.c"]);
    let ids = async |name: &str| {
        let object = master.get(&format!("{APPS}/{name}")).await.json();
        object["spec"]["securityContext"]["runAsUser"].clone()
    };
    assert_ne!(ids("b-c").await, ids("b.c").await, "and no two run as one user");
    // No certificate bears the name of a workload.
    let stranger = fleet.client(Who::User("system:workload:team-a:b-c", "people")).await;
    let reply = stranger.send(Method::GET, "/version", &[], Bytes::new()).await;
    assert_eq!(reply.status, 401, "{reply:?}");
}
