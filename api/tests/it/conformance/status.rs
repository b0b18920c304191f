//! The status, which is written apart.

use http::Method;
use serde_json::{Value, json};

use super::{APPS, NAMESPACES, NODES, Rows, app, revision, stack};
use crate::client::Protocol;
use crate::stack::Who;

#[tokio::test]
async fn written_and_read_apart() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    let web = format!("{APPS}/web");
    client.post(APPS, &app("web")).await;
    for item in [web.clone(), format!("{NODES}/n1")] {
        let path = format!("{item}/status");
        rows.same("GET", client.get(&path).await.status, 200);
        rows.same("is the whole object", client.get(&path).await.json(), client.get(&item).await.json());
        let object = client.get(&item).await.json();
        rows.same("PUT", client.put(&path, &object).await.status, 200);
        rows.same("PATCH", client.merge(&path, &json!({"status": {}})).await.status, 200);
        rows.same(
            "JSON patch",
            client
                .json_patch(&path, &json!([{"op": "test", "path": "/kind", "value": object["kind"]}]))
                .await
                .status,
            200,
        );
        for method in [Method::POST, Method::DELETE] {
            let reply = client.send(method, &path, &[], "{}").await;
            rows.code("and nothing else", &reply, 405, "MethodNotAllowed");
        }
    }
    rows.code(
        "a kind without one",
        &client.get(&format!("{NAMESPACES}/default/status")).await,
        404,
        "NotFound",
    );

    let status = format!("{web}/status");
    let first = client.get(&web).await.json();
    let mut whole = first.clone();
    whole["status"] = json!({"phase": "Running"});
    whole["spec"]["image"] = json!("nginx:9");
    whole["metadata"]["labels"] = json!({"a": "b"});
    let written = client.put(&status, &whole).await.json();
    rows.same("the status is stored", &written["status"]["phase"], &json!("Running"));
    rows.same("the spec is not", &written["spec"]["image"], &json!("nginx:1"));
    rows.same("nor are labels", &written["metadata"]["labels"], &Value::Null);
    rows.same("the generation stays", &written["metadata"]["generation"], &json!(1));
    rows.holds("the revision moves", revision(&written) > revision(&first), &written["metadata"]);
    rows.same("later reads see it", &client.get(&web).await.json(), &written);
    rows.same("the same once more changes nothing", &client.put(&status, &written).await.json(), &written);
    rows.code("a stale revision", &client.put(&status, &whole).await, 409, "Conflict");
    let mut free = whole.clone();
    free["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    free["status"]["phase"] = json!("Failed");
    rows.same(
        "no revision is no condition",
        &client.put(&status, &free).await.json()["status"]["phase"],
        &json!("Failed"),
    );

    let now = client.get(&web).await.json();
    let mut edit = now.clone();
    edit["status"]["phase"] = json!("Succeeded");
    rows.same("the main resource does not write it", &client.put(&web, &edit).await.json(), &now);
    rows.same(
        "by no patch either",
        &client.merge(&web, &json!({"status": {"phase": "Succeeded"}})).await.json(),
        &now,
    );
    let unknown = client.merge(&status, &json!({"status": {"surprise": 1}})).await;
    rows.code("an unknown member", &unknown, 400, "BadRequest");
    rows.code("of what is missing", &client.get(&format!("{APPS}/ghost/status")).await, 404, "NotFound");

    let mut held = first.clone();
    held["spec"]["image"] = json!("nginx:2");
    rows.same("an edit from before a report is no conflict", client.put(&web, &held).await.status, 200);
    rows.code(
        "unless the very head is asked for",
        &client.put(&format!("{web}?exactResourceVersion=true"), &held).await,
        409,
        "Conflict",
    );
    rows.close();
}

#[tokio::test]
async fn permitted_apart() {
    let (stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("web")).await;
    client.post(NODES, &json!({"metadata": {"name": "node-1"}, "spec": {}})).await;
    let node = stack.client(Who::Node("node-1"), Protocol::Http2);
    rows.same("a node may read its Node", node.get(&format!("{NODES}/node-1")).await.status, 200);
    for path in
        [format!("{NODES}/node-1/status"), format!("{NODES}/node-2/status"), format!("{APPS}/web/status")]
    {
        let reply = node.merge(&path, &json!({"status": {}})).await;
        rows.code("but write no status over this API", &reply, 403, "Forbidden");
        rows.holds(
            "whose permission is one of its own",
            reply.message().contains("/status"),
            reply.message(),
        );
    }
    rows.close();
}
