//! Patches.

use http::Method;
use serde_json::{Value, json};

use super::{APPS, Rows, app, revision, stack};
use crate::client::Client;

const WEB: &str = "/apis/horchestra.io/v1/namespaces/default/applications/web";

async fn json_patch(client: &Client, operations: &Value) -> crate::client::Reply {
    client.json_patch(WEB, operations).await
}

#[tokio::test]
async fn merge_patches() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let mut body = app("web");
    body["metadata"]["labels"] = json!({"keep": "x", "drop": "y"});
    body["spec"]["args"] = json!(["a", "b"]);
    client.post(APPS, &body).await;
    let change = json!({"metadata": {"labels": {"drop": null, "new": "z"}}, "spec": {"args": ["c"]}});
    let object = client.merge(WEB, &change).await.json();
    rows.same(
        "null deletes, members merge",
        &object["metadata"]["labels"],
        &json!({"keep": "x", "new": "z"}),
    );
    rows.same("lists are replaced", &object["spec"]["args"], &json!(["c"]));
    rows.same("what is not named stays", &object["spec"]["image"], &json!("nginx:1"));
    let before = client.get(WEB).await.json();
    rows.same("a patch without effect changes nothing", &client.merge(WEB, &json!({})).await.json(), &before);
    let identity = json!({"metadata": {"name": "victim", "namespace": "team-a", "uid": "x", "resourceVersion": null}, "spec": {"image": "nginx:2"}});
    let moved = client.merge(WEB, &identity).await;
    rows.same("a patch lands on the object that is addressed", moved.status, 200);
    let moved = moved.json();
    for member in ["name", "namespace", "uid"] {
        rows.same("whose identity stays", &moved["metadata"][member], &before["metadata"][member]);
    }
    rows.same("and no other one comes", client.get(APPS).await.json()["items"].as_array().unwrap().len(), 1);
    let stale = json!({"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "spec": {"image": "x"}});
    rows.code("a stale revision in the patch", &client.merge(WEB, &stale).await, 409, "Conflict");
    rows.code(
        "a patch of what is missing",
        &client.merge(&format!("{APPS}/ghost"), &json!({})).await,
        404,
        "NotFound",
    );
    for (row, document, code, reason) in [
        ("no JSON", "{", 400, "BadRequest"),
        ("no object", "[]", 400, "BadRequest"),
        ("an unknown field", r#"{"spec":{"imgae":"x"}}"#, 400, "BadRequest"),
        ("a field that comes twice", r#"{"spec":{"image":"a","image":"b"}}"#, 400, "BadRequest"),
        ("the removal of a requirement", r#"{"spec":{"image":null}}"#, 422, "Invalid"),
        ("a wrong type", r#"{"spec":{"image":[]}}"#, 422, "Invalid"),
    ] {
        let headers = [("content-type", "application/merge-patch+json")];
        rows.code(row, &client.send(Method::PATCH, WEB, &headers, document).await, code, reason);
    }
    rows.close();
}

#[tokio::test]
async fn json_patches() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let mut body = app("web");
    body["spec"]["args"] = json!(["a"]);
    body["metadata"]["labels"] = json!({"x~y/z": "1"});
    let first = client.post(APPS, &body).await.json();
    let changed = json_patch(
        &client,
        &json!([
            {"op": "test", "path": "/spec/image", "value": "nginx:1"},
            {"op": "replace", "path": "/spec/image", "value": "nginx:2"},
            {"op": "add", "path": "/spec/args/-", "value": "b"},
            {"op": "remove", "path": "/metadata/labels/x~0y~1z"},
        ]),
    )
    .await;
    rows.same("operations in their order", changed.status, 200);
    let changed = changed.json();
    rows.same(
        "each of them",
        (&changed["spec"]["image"], &changed["spec"]["args"]),
        (&json!("nginx:2"), &json!(["a", "b"])),
    );
    rows.same("with escapes", &changed["metadata"]["labels"], &Value::Null);
    let revision_test = |value: &Value| {
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": value},
        {"op": "replace", "path": "/spec/image", "value": "nginx:3"}])
    };
    let stale = json_patch(&client, &revision_test(&first["metadata"]["resourceVersion"])).await;
    rows.holds("a test of an old revision fails", matches!(stale.status, 409 | 422), &stale);
    let fresh = json_patch(&client, &revision_test(&changed["metadata"]["resourceVersion"])).await;
    rows.same("one of the current does not", fresh.status, 200);
    let now = client.get(WEB).await.json();
    let many = Value::Array(vec![json!({"op": "test", "path": "/kind", "value": "Application"}); 10_001]);
    let mut bomb = vec![json!({"op": "add", "path": "/spec/args", "value": ["xxxxxxxxxxxxxxxx"]})];
    bomb.extend((0..60).map(|_| json!({"op": "copy", "from": "/spec/args", "path": "/spec/args/-"})));
    for (row, operations, code, reason) in [
        ("a failed test", json!([{"op": "test", "path": "/spec/image", "value": "x"}]), 422, "Invalid"),
        ("a path that is missing", json!([{"op": "remove", "path": "/spec/nothing"}]), 422, "Invalid"),
        ("a parent that is missing", json!([{"op": "add", "path": "/spec/a/b", "value": 1}]), 422, "Invalid"),
        ("a negative index", json!([{"op": "remove", "path": "/spec/args/-1"}]), 422, "Invalid"),
        ("no list", json!({"not": "a list"}), 400, "BadRequest"),
        ("an operation that nobody knows", json!([{"op": "twist", "path": "/spec"}]), 400, "BadRequest"),
        ("more than 10 000 operations", many, 413, "RequestEntityTooLarge"),
        ("an unknown field", json!([{"op": "add", "path": "/spec/imgae", "value": "x"}]), 400, "BadRequest"),
    ] {
        rows.code(row, &json_patch(&client, &operations).await, code, reason);
    }
    let reply = json_patch(&client, &Value::Array(bomb)).await;
    rows.holds("doubling by copies is bounded", matches!(reply.status, 400 | 413 | 422), &reply);
    rows.same("nothing of that was stored", &client.get(WEB).await.json(), &now);
    rows.close();
}

#[tokio::test]
async fn types_of_patches() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("web")).await;
    for (row, content, body, code) in [
        ("merge", "application/merge-patch+json", "{}", 200),
        ("merge, with a parameter", "application/merge-patch+json; charset=utf-8", "{}", 200),
        ("operations", "application/json-patch+json", "[]", 200),
        ("strategic", "application/strategic-merge-patch+json", "{}", 415),
        ("plain JSON", "application/json", "{}", 415),
        ("text", "text/plain", "{}", 415),
    ] {
        let reply = client.send(Method::PATCH, WEB, &[("content-type", content)], body).await;
        rows.same(row, reply.status, code);
        if code == 415 {
            let message = reply.message();
            rows.holds(
                "the answer lists what is taken",
                message.contains("application/merge-patch+json"),
                message,
            );
        }
    }
    let untyped = client.send(Method::PATCH, WEB, &[], "{}").await;
    rows.code("no type at all", &untyped, 415, "UnsupportedMediaType");
    rows.close();
}

#[tokio::test]
async fn a_crowd_of_patches_never_collides() {
    let (_stack, client) = stack().await;
    client.post(APPS, &app("web")).await;
    let patches = (0..40).map(|number| {
        let client = client.clone();
        let name = format!("n{number}");
        async move { client.merge(WEB, &json!({"metadata": {"annotations": {name: "x"}}})).await.status }
    });
    let codes = futures::future::join_all(patches).await;
    let mut rows = Rows::default();
    rows.holds("nobody is told of a conflict", codes.iter().all(|code| *code == 200), &codes);
    let object = client.get(WEB).await.json();
    rows.same(
        "and nothing is lost",
        object["metadata"]["annotations"].as_object().map_or(0, |all| all.len()),
        40,
    );
    rows.holds("each is a change", revision(&object) >= 40, revision(&object));
    rows.close();
}
