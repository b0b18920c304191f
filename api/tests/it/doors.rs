//! Actions on one object: revisions, rollback, freeze and thaw, finalize, cordon, uncordon and admit.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::Protocol;
use crate::crud::app;
use crate::stack::{Stack, Who};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const NODES: &str = "/apis/horchestra.io/v1/nodes";
const NAMESPACES: &str = "/apis/horchestra.io/v1/namespaces";

#[tokio::test]
async fn versions_are_listed_with_who_wrote_them_and_can_be_gone_back_to() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let first = client.post(APPS, &app("web")).await.json();
    let headers = [("content-type", "application/merge-patch+json"), ("audit-id", "abc")];
    let web = format!("{APPS}/web");
    let edit = r#"{"spec":{"image":"nginx:2"},"metadata":{"labels":{"tier":"x"}}}"#;
    let second = client.send(Method::PATCH, &web, &headers, edit).await.json();

    let reply = client.get(&format!("{web}/revisions")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let list = reply.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("RevisionList"), &json!("horchestra.io/v1")));
    assert_eq!(list["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    let items = list["items"].as_array().unwrap();
    let of = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<i64>().unwrap();
    assert_eq!(items.len(), 2, "{list}");
    for (item, (object, generation, verb, current)) in
        items.iter().zip([(&second, 2, "patch", true), (&first, 1, "create", false)])
    {
        assert_eq!(item["revision"], of(object));
        assert_eq!(
            (&item["generation"], &item["verb"], &item["current"], &item["user"]),
            (&json!(generation), &json!(verb), &json!(current), &json!("admin"))
        );
        assert!(item["time"].as_str().unwrap().ends_with('Z'), "{item}");
        assert_eq!(item["auditID"].as_str().unwrap().len(), 36, "{item}");
    }
    let yaml = client.get_as(&format!("{web}/revisions"), "application/yaml").await;
    assert!(yaml.text().contains("kind: RevisionList"), "{}", yaml.text());

    let order = json!({"revision": of(&first)});
    let dry = client.post(&format!("{web}/rollback?dryRun=All"), &order).await.json();
    assert_eq!(dry["spec"]["image"], "nginx:1");
    assert_eq!(client.get(&web).await.json(), second, "a dry run stores nothing");
    let back = client.post(&format!("{web}/rollback"), &order).await;
    assert_eq!((back.status, &back.json()["spec"]["image"]), (200, &json!("nginx:1")));
    assert_eq!(back.json()["metadata"]["labels"], Value::Null);
    assert_eq!(back.json()["metadata"]["generation"], 3);
    let same = client.put(&format!("{web}/rollback"), &json!({"revision": of(&back.json())})).await;
    assert_eq!(same.json(), back.json(), "what is current already changes nothing");

    for (body, code, reason, message) in [
        (json!({"revision": 999_999}), 404, "NotFound", "revision 999999"),
        (json!({}), 422, "Invalid", "revision"),
        (json!({"revision": of(&first), "revison": 1}), 400, "BadRequest", "revison"),
        (
            json!({"revision": of(&second), "resourceVersion": second["metadata"]["resourceVersion"]}),
            409,
            "Conflict",
            "modified",
        ),
    ] {
        let reply = client.post(&format!("{web}/rollback"), &body).await;
        assert_eq!((reply.status, reply.reason().as_str()), (code, reason), "{body}: {reply:?}");
        assert!(reply.message().contains(message), "{body}: {}", reply.message());
    }
    let order = json!({"revision": of(&first), "x": 1});
    let warned = client.post(&format!("{web}/rollback?fieldValidation=Warn"), &order).await;
    assert_eq!((warned.status, warned.headers_of("warning").len()), (200, 1), "{warned:?}");
    assert_eq!(client.get(&format!("{APPS}/ghost/revisions")).await.status, 404);
    let order = json!({"revision": of(&first)});
    assert_eq!(client.post(&format!("{APPS}/ghost/rollback"), &order).await.status, 404);
}

#[tokio::test]
async fn every_kind_has_a_history() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    for object in [format!("{NODES}/n1"), format!("{NAMESPACES}/team-a")] {
        let before = client.get(&object).await.json();
        client.merge(&object, &json!({"metadata": {"labels": {"a": "b"}}})).await;
        let list = client.get(&format!("{object}/revisions")).await.json();
        let first = &list["items"][1]["revision"];
        let back = client.post(&format!("{object}/rollback"), &json!({"revision": first})).await;
        assert_eq!((back.status, &back.json()["metadata"]["labels"]), (200, &before["metadata"]["labels"]));
    }
}

#[tokio::test]
async fn freeze_and_thaw_are_the_only_way_to_the_marker() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let mut body = app("web");
    body["spec"]["frozen"] = json!(true);
    let created = client.post(APPS, &body).await.json();
    assert_eq!(created["spec"]["frozen"], Value::Null, "not by creating");
    let web = format!("{APPS}/web");
    for (method, door, frozen) in [
        (Method::POST, "freeze", Some(true)),
        (Method::PUT, "freeze", Some(true)),
        (Method::PUT, "thaw", None),
        (Method::POST, "thaw", None),
    ] {
        let reply = client.send(method.clone(), &format!("{web}/{door}"), &[], Bytes::new()).await;
        assert_eq!(reply.status, 200, "{method} {door}: {reply:?}");
        let object = reply.json();
        assert_eq!((&object["kind"], object["spec"]["frozen"].as_bool()), (&json!("Application"), frozen));
        assert_eq!(object["metadata"]["generation"], 1);
        let warnings = reply.headers_of("warning");
        assert_eq!(warnings.iter().any(|text| text.contains("agents of line 0.9")), door == "freeze");
        let mut whole = client.get(&web).await.json();
        whole["spec"]["frozen"] = json!(frozen.is_none());
        let kept = client.put(&web, &whole).await;
        assert_eq!((kept.status, kept.json()["spec"]["frozen"].as_bool()), (200, frozen), "{door}");
    }
    let stale =
        json!({"metadata": {"name": "web", "resourceVersion": created["metadata"]["resourceVersion"]}});
    let reply = client.post(&format!("{web}/freeze"), &stale).await;
    assert_eq!((reply.status, reply.reason().as_str()), (409, "Conflict"));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let headers = [("accept", table)];
    let reply = client.send(Method::POST, &format!("{web}/freeze"), &headers, Bytes::new()).await;
    assert_eq!(reply.json()["kind"], "Table");
}

#[tokio::test]
async fn operators_cordon_uncordon_and_admit() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    for (door, cordoned) in [("cordon", Some(true)), ("admit", Some(true)), ("uncordon", None)] {
        let reply = client.post(&format!("{NODES}/n1/{door}"), &json!({})).await;
        assert_eq!(
            (reply.status, reply.json()["spec"]["unschedulable"].as_bool()),
            (200, cordoned),
            "{door}: {reply:?}"
        );
    }
}

#[tokio::test]
async fn masters_take_off_finalizers_that_nobody_comes_back_for() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let mut body = app("web");
    body["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    client.post(APPS, &body).await;
    let web = format!("{APPS}/web");
    let finalize = format!("{web}/finalize");
    let live = client.post(&finalize, &json!({})).await;
    assert_eq!((live.status, live.reason().as_str()), (409, "Conflict"), "{live:?}");
    assert_eq!(client.delete(&web).await.status, 200);
    let one = client.put(&finalize, &json!({"finalizers": ["example.com/b", "example.com/ghost"]})).await;
    assert_eq!(one.status, 200, "{one:?}");
    assert_eq!(one.json()["metadata"]["finalizers"], json!(["example.com/a"]));
    assert!(one.headers_of("warning")[0].contains("example.com/ghost"), "{one:?}");
    let list = client.get(&format!("{web}/revisions")).await.json();
    assert_eq!((&list["items"][0]["verb"], &list["items"][0]["user"]), (&json!("finalize"), &json!("admin")));
    let gone = client.send(Method::POST, &finalize, &[], Bytes::new()).await;
    assert_eq!((gone.status, &gone.json()["kind"]), (200, &json!("Application")));
    assert_eq!(client.get(&web).await.status, 404);
    for (body, code) in [(json!({"finalizers": "x"}), 400), (json!({"finalisers": []}), 400)] {
        assert_eq!(client.post(&finalize, &body).await.status, code, "{body}");
    }
}

#[tokio::test]
async fn a_lost_node_is_forgotten_with_what_was_deleted_on_it() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    for name in ["web", "stays"] {
        let mut body = app(name);
        body["spec"]["placement"] = json!({"nodeName": "n1"});
        assert_eq!(client.post(APPS, &body).await.status, 201);
    }
    let web = format!("{APPS}/web");
    assert_eq!(client.delete(&web).await.status, 200);
    assert_eq!(client.get(&web).await.status, 200, "it waits for its node");
    let trial = client.post(&format!("{NODES}/n1/forget?dryRun=All"), &json!({})).await;
    assert_eq!((trial.status, client.get(&web).await.status), (200, 200));
    let done = client.post(&format!("{NODES}/n1/forget"), &json!({})).await;
    assert_eq!((done.status, &done.json()["kind"]), (200, &json!("Node")), "{done:?}");
    let warnings = done.headers_of("warning");
    assert!(warnings[0].contains("default/stays") && warnings[1].contains("1 applications"), "{warnings:?}");
    assert_eq!(client.get(&web).await.status, 404);
    assert_eq!(client.get(&format!("{APPS}/stays")).await.status, 200);
    assert_eq!(client.get(&format!("{NODES}/n1")).await.status, 404);
    assert_eq!(client.post(&format!("{NODES}/n1/forget"), &json!({})).await.status, 404);
    let message = client.post(&format!("{NODES}/n1/forget"), &json!({"message": "x"})).await;
    assert_eq!(message.status, 400, "it takes none");
}

#[tokio::test]
async fn each_door_wants_a_permission_of_its_own() {
    let stack = Stack::with_namespaces().await;
    stack.master().post(APPS, &app("web")).await;
    stack.master().post(NODES, &json!({"metadata": {"name": "node-1"}, "spec": {}})).await;
    for who in [Who::Nobody, Who::Node("node-1")] {
        let client = stack.client(who, Protocol::Http2);
        for (method, path, asked) in [
            (Method::POST, format!("{APPS}/web/freeze"), "create resource \"applications/freeze\""),
            (Method::PUT, format!("{APPS}/web/thaw"), "update resource \"applications/thaw\""),
            (Method::GET, format!("{APPS}/web/revisions"), "get resource \"applications/revisions\""),
            (Method::POST, format!("{APPS}/web/rollback"), "create resource \"applications/rollback\""),
            (Method::POST, format!("{APPS}/web/finalize"), "create resource \"applications/finalize\""),
            (Method::POST, format!("{NODES}/node-1/uncordon"), "create resource \"nodes/uncordon\""),
            (Method::POST, format!("{NODES}/node-1/admit"), "create resource \"nodes/admit\""),
            (Method::PUT, format!("{NODES}/node-1/forget"), "update resource \"nodes/forget\""),
        ] {
            let reply = client.send(method, &path, &[], Bytes::new()).await;
            assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{who:?} {path}");
            assert!(reply.message().contains(asked), "{}", reply.message());
        }
    }
}

#[tokio::test]
async fn doors_are_where_they_belong_and_take_their_methods() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (path, code, allow) in [
        (format!("{APPS}/web/freeze"), 405, "POST, PUT"),
        (format!("{NODES}/n1/cordon"), 405, "POST, PUT"),
        (format!("{NODES}/n1/freeze"), 404, ""),
        (format!("{APPS}/web/cordon"), 404, ""),
        (format!("{NODES}/n1/forget"), 405, "POST, PUT"),
        (format!("{APPS}/web/forget"), 404, ""),
        (format!("{NAMESPACES}/team-a/thaw"), 404, ""),
        (format!("{APPS}/web/freeze/now"), 404, ""),
    ] {
        let reply = client.get(&path).await;
        assert_eq!((reply.status, reply.header("allow")), (code, allow), "{path}");
    }
    let reply = client.post(&format!("{APPS}/web/revisions"), &json!({})).await;
    assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"));
}
