//! Dry runs: the same answer, and nothing stored.

use http::Method;
use serde_json::{Value, json};

use super::{APPS, NODES, Rows, app, revision, send, stack};

const WEB: &str = "/apis/horchestra.io/v1/namespaces/default/applications/web";

#[tokio::test]
async fn every_write() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("web")).await;
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    let before = client.get(APPS).await.json();
    let mut changed = client.get(WEB).await.json();
    changed["spec"]["image"] = json!("nginx:2");
    let merge = [("content-type", "application/merge-patch+json")];
    let dry = |path: &str| format!("{path}?dryRun=All");
    for (row, reply, code, kind) in [
        ("create", client.post(&dry(APPS), &app("new")).await, 201, "Application"),
        ("update", client.put(&dry(WEB), &changed).await, 200, "Application"),
        (
            "patch",
            client.send(Method::PATCH, &dry(WEB), &merge, r#"{"spec":{"image":"nginx:2"}}"#).await,
            200,
            "Application",
        ),
        (
            "status",
            client
                .send(
                    Method::PATCH,
                    &dry(&format!("{WEB}/status")),
                    &merge,
                    r#"{"status":{"phase":"Running"}}"#,
                )
                .await,
            200,
            "Application",
        ),
        ("delete", client.delete(&dry(WEB)).await, 200, "Status"),
        (
            "delete, in the body",
            send(&client, Method::DELETE, WEB, r#"{"dryRun":["All"]}"#).await,
            200,
            "Status",
        ),
        (
            "delete, in both",
            send(&client, Method::DELETE, &dry(WEB), r#"{"dryRun":["All"]}"#).await,
            200,
            "Status",
        ),
        ("delete all", client.delete(&dry(APPS)).await, 200, "Status"),
        ("freeze", client.post(&dry(&format!("{WEB}/freeze")), &json!({})).await, 200, "Application"),
        ("cordon", client.post(&dry(&format!("{NODES}/n1/cordon")), &json!({})).await, 200, "Node"),
        (
            "said twice",
            client.post(&format!("{}&dryRun=All", dry(APPS)), &app("new")).await,
            201,
            "Application",
        ),
    ] {
        rows.holds(row, reply.status == code && reply.json()["kind"] == kind, &reply);
    }
    rows.same("nothing is stored, no revision is taken", &client.get(APPS).await.json(), &before);
    let shown = client.put(&dry(WEB), &changed).await.json();
    rows.same(
        "the answer shows what would be",
        (&shown["spec"]["image"], &shown["metadata"]["generation"]),
        (&json!("nginx:2"), &json!(2)),
    );
    let created = client.post(&dry(APPS), &app("new")).await.json();
    rows.holds(
        "a create has a uid and a time",
        created["metadata"]["uid"].is_string() && created["metadata"]["creationTimestamp"].is_string(),
        &created,
    );
    rows.same("and defaults", &created["spec"]["lifecycle"]["restartPolicy"], &json!("Always"));
    let mut watch = client.lines(&format!("{APPS}?watch=1&resourceVersion={}", revision(&before)), &[]).await;
    client.post(&dry(APPS), &app("quiet")).await;
    client.post(APPS, &app("loud")).await;
    rows.same("no event comes", watch.event().await, ("ADDED".to_owned(), "loud".to_owned()));
    rows.close();
}

#[tokio::test]
async fn refusals_are_those_of_the_real_thing() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let web = client.post(APPS, &app("web")).await.json();
    client.merge(WEB, &json!({"spec": {"image": "nginx:2"}})).await;
    let mut unplaced = app("x");
    unplaced["spec"]["placement"] = json!({"nodeName": "nowhere"});
    for (row, reply, code, reason) in [
        ("a taken name", client.post(&format!("{APPS}?dryRun=All"), &app("web")).await, 409, "AlreadyExists"),
        ("a stale update", client.put(&format!("{WEB}?dryRun=All"), &web).await, 409, "Conflict"),
        ("what is missing", client.delete(&format!("{APPS}/ghost?dryRun=All")).await, 404, "NotFound"),
        (
            "a rule about other objects",
            client.post(&format!("{APPS}?dryRun=All"), &unplaced).await,
            422,
            "Invalid",
        ),
        ("an unknown value", client.post(&format!("{APPS}?dryRun=Some"), &app("x")).await, 422, "Invalid"),
        ("an empty value", client.post(&format!("{APPS}?dryRun="), &app("x")).await, 422, "Invalid"),
        (
            "an unknown value in the body",
            send(&client, Method::DELETE, WEB, r#"{"dryRun":["Some"]}"#).await,
            422,
            "Invalid",
        ),
    ] {
        rows.code(row, &reply, code, reason);
    }
    let generate = json!({"metadata": {"generateName": "g-"}, "spec": {"image": "a"}});
    let name = client.post(&format!("{APPS}?dryRun=All"), &generate).await.json()["metadata"]["name"].clone();
    let name = name.as_str().unwrap_or_default();
    rows.holds("a generated name is shown", name.len() == 7 && name.starts_with("g-"), name);
    rows.same("and not reserved", client.post(APPS, &app(name)).await.status, 201);
    rows.same(
        "a read takes no notice",
        client.get(&format!("{WEB}?dryRun=Some")).await.json()["metadata"]["name"].clone(),
        Value::from("web"),
    );
    rows.close();
}
