//! Deletion: of one object and of collections.

use http::Method;
use serde_json::{Value, json};

use super::{APPS, NODES, Rows, TABLE, TEAM_APPS, app, labelled, names, send, stack};
use crate::client::Client;

async fn held(client: &Client, name: &str) -> Value {
    let mut body = app(name);
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let reply = client.post(APPS, &body).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()
}

#[tokio::test]
async fn one_object() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (number, body) in [
        "",
        "{}",
        r#"{"kind":"DeleteOptions","apiVersion":"v1"}"#,
        r#"{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}"#,
        r#"{"propagationPolicy":"Background"}"#,
        r#"{"propagationPolicy":"Foreground"}"#,
        r#"{"propagationPolicy":"Orphan"}"#,
        r#"{"orphanDependents":true}"#,
        r#"{"gracePeriodSeconds":0}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("a{number}");
        let uid = client.post(APPS, &app(&name)).await.json()["metadata"]["uid"].clone();
        let reply = send(&client, Method::DELETE, &format!("{APPS}/{name}"), body).await;
        let status = reply.json();
        rows.same(&format!("the options {body}"), reply.status, 200);
        rows.same(
            "a Status of success",
            (&status["kind"], &status["status"]),
            (&json!("Status"), &json!("Success")),
        );
        rows.same("that tells the uid", &status["details"]["uid"], &uid);
        rows.same("the object is gone", client.get(&format!("{APPS}/{name}")).await.status, 404);
    }
    for query in [
        "propagationPolicy=Orphan",
        "propagationPolicy=Foreground",
        "gracePeriodSeconds=5",
        "orphanDependents=false",
    ] {
        client.post(APPS, &app("q")).await;
        rows.same("options in the query", client.delete(&format!("{APPS}/q?{query}")).await.status, 200);
    }
    let web = format!("{APPS}/web");
    let object = client.post(APPS, &app("web")).await.json();
    for (row, query, body, code, reason) in [
        ("another uid", "", json!({"preconditions": {"uid": "x"}}).to_string(), 409, "Conflict"),
        (
            "another revision",
            "",
            json!({"preconditions": {"resourceVersion": "1"}}).to_string(),
            409,
            "Conflict",
        ),
        ("negative grace", "", json!({"gracePeriodSeconds": -1}).to_string(), 422, "Invalid"),
        ("negative grace in the query", "?gracePeriodSeconds=-1", String::new(), 422, "Invalid"),
        ("a policy that nobody knows", "?propagationPolicy=Never", String::new(), 422, "Invalid"),
        (
            "both ways to orphan",
            "",
            json!({"orphanDependents": true, "propagationPolicy": "Orphan"}).to_string(),
            422,
            "Invalid",
        ),
        (
            "query against body",
            "?gracePeriodSeconds=1",
            json!({"gracePeriodSeconds": 2}).to_string(),
            400,
            "BadRequest",
        ),
        ("no JSON", "", "not json".to_owned(), 400, "BadRequest"),
        ("options of another kind", "", json!({"kind": "Application"}).to_string(), 400, "BadRequest"),
    ] {
        rows.code(row, &send(&client, Method::DELETE, &format!("{web}{query}"), body).await, code, reason);
    }
    rows.same("nothing of that deletes", &client.get(&web).await.json(), &object);
    let right = json!({"preconditions": {"uid": object["metadata"]["uid"], "resourceVersion": object["metadata"]["resourceVersion"]}});
    rows.same(
        "the right preconditions",
        send(&client, Method::DELETE, &web, right.to_string()).await.status,
        200,
    );
    rows.code("what is gone", &client.delete(&web).await, 404, "NotFound");
    rows.close();
}

#[tokio::test]
async fn in_two_steps() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let web = format!("{APPS}/web");
    let before = held(&client, "web").await;
    let answer = client.delete(&web).await;
    rows.same("a held object", answer.status, 200);
    let marked = client.get(&web).await.json();
    rows.same("is the answer as it is now", &answer.json(), &marked);
    let table = client.send(Method::DELETE, &web, &[("accept", TABLE)], "").await;
    rows.same("in the form that was asked for", &table.json()["kind"], &json!("Table"));
    rows.holds("is marked", marked["metadata"]["deletionTimestamp"].is_string(), &marked["metadata"]);
    rows.same("with its grace", &marked["metadata"]["deletionGracePeriodSeconds"], &json!(30));
    rows.same("in the same generation", &marked["metadata"]["generation"], &before["metadata"]["generation"]);
    rows.same("once more is fine", client.delete(&web).await.status, 200);
    rows.same("and changes nothing", &client.get(&web).await.json(), &marked);
    send(&client, Method::DELETE, &web, r#"{"gracePeriodSeconds":5}"#).await;
    let shorter = client.get(&web).await.json();
    rows.same("grace can be shortened", &shorter["metadata"]["deletionGracePeriodSeconds"], &json!(5));
    rows.same(
        "the mark stays",
        &shorter["metadata"]["deletionTimestamp"],
        &marked["metadata"]["deletionTimestamp"],
    );
    let unmark = client.merge(&web, &json!({"metadata": {"deletionTimestamp": null}})).await.json();
    rows.holds(
        "nobody takes it back",
        unmark["metadata"]["deletionTimestamp"].is_string(),
        &unmark["metadata"],
    );
    for (row, body, content) in [
        (
            "no finalizer is added to it",
            json!({"metadata": {"finalizers": ["example.com/hold", "example.com/late"]}}).to_string(),
            "application/merge-patch+json",
        ),
        (
            "not in place of another",
            json!([{"op": "replace", "path": "/metadata/finalizers/0", "value": "example.com/late"}])
                .to_string(),
            "application/json-patch+json",
        ),
    ] {
        let reply = client.send(Method::PATCH, &web, &[("content-type", content)], body).await;
        rows.code(row, &reply, 422, "Invalid");
        let cause = &reply.json()["details"]["causes"][0];
        rows.same(
            "and the cause says where",
            (&cause["reason"], &cause["field"]),
            (&json!("FieldValueForbidden"), &json!("metadata.finalizers")),
        );
    }
    let labelled = client.merge(&web, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    rows.same("other changes are taken", labelled.status, 200);
    rows.code("the name is still taken", &client.post(APPS, &app("web")).await, 409, "AlreadyExists");
    let last = client.merge(&web, &json!({"metadata": {"finalizers": null}})).await;
    rows.same("who takes the last hold away", last.status, 200);
    rows.same("erases it", client.get(&web).await.status, 404);
    let again = client.post(APPS, &app("web")).await.json();
    rows.holds(
        "the next of the name is another one",
        again["metadata"]["uid"] != before["metadata"]["uid"],
        &again["metadata"],
    );
    rows.close();
}

#[tokio::test]
async fn collections() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let fill = async || {
        for (name, env) in [("a", "prod"), ("b", "dev"), ("c", "dev"), ("d", "dev")] {
            client.post(APPS, &labelled(name, json!({ "env": env }))).await;
        }
    };
    client.post(TEAM_APPS, &app("elsewhere")).await;
    for (row, query, body, left) in [
        ("a dry run", "?dryRun=All", "", vec!["a", "b", "c", "d"]),
        ("a dry run in the body", "", r#"{"dryRun":["All"]}"#, vec!["a", "b", "c", "d"]),
        ("a label selector", "?labelSelector=env%3Ddev", "", vec!["a"]),
        ("a field selector", "?fieldSelector=metadata.name%3Db", "", vec!["a", "c", "d"]),
        ("both", "?labelSelector=env%3Ddev&fieldSelector=metadata.name%21%3Db", "", vec!["a", "b"]),
        ("a limit", "?limit=2", "", vec!["c", "d"]),
        ("a selector that fits nothing", "?labelSelector=env%3Dnone", "", vec!["a", "b", "c", "d"]),
        ("no selector", "", r#"{"propagationPolicy":"Foreground"}"#, vec![]),
    ] {
        fill().await;
        let reply = send(&client, Method::DELETE, &format!("{APPS}{query}"), body).await;
        let kind = reply.json()["kind"].as_str().unwrap_or("").to_owned();
        rows.holds(row, reply.status == 200 && (kind == "Status" || kind.ends_with("List")), &reply);
        rows.same(row, names(&client.get(APPS).await.json()), left.into_iter().map(str::to_owned).collect());
        client.delete(APPS).await;
    }
    rows.same(
        "other namespaces keep theirs",
        names(&client.get(TEAM_APPS).await.json()),
        vec!["elsewhere".to_owned()],
    );
    fill().await;
    let of_a = client.get(&format!("{APPS}/a")).await.json()["metadata"].clone();
    for (row, preconditions) in [
        ("a uid that is nobody's", json!({"uid": "x"})),
        ("a uid that is not everybody's", json!({"uid": of_a["uid"]})),
        ("a revision that is nobody's", json!({"resourceVersion": "1"})),
    ] {
        let body = json!({ "preconditions": preconditions }).to_string();
        let query = "?labelSelector=env%3Ddev";
        rows.code(
            row,
            &send(&client, Method::DELETE, &format!("{APPS}{query}"), body).await,
            409,
            "Conflict",
        );
    }
    rows.same("deletes nothing", names(&client.get(APPS).await.json()).len(), 4);
    let body = json!({"preconditions": {"uid": of_a["uid"], "resourceVersion": of_a["resourceVersion"]}});
    let of_prod = format!("{APPS}?labelSelector=env%3Dprod");
    rows.same("the right ones", send(&client, Method::DELETE, &of_prod, body.to_string()).await.status, 200);
    rows.same("delete", client.get(&format!("{APPS}/a")).await.status, 404);
    client.delete(APPS).await;
    held(&client, "held").await;
    rows.same("held objects", client.delete(APPS).await.status, 200);
    let marked = client.get(&format!("{APPS}/held")).await.json();
    rows.holds("are marked", marked["metadata"]["deletionTimestamp"].is_string(), &marked["metadata"]);
    for (row, query, body, code, reason) in [
        ("a bad selector", "?labelSelector=a+in+(", "", 400, "BadRequest"),
        ("a field that nobody knows", "?fieldSelector=spec.image%3Dx", "", 400, "BadRequest"),
        ("a bad limit", "?limit=x", "", 400, "BadRequest"),
        ("bad options", "?propagationPolicy=Never", "", 422, "Invalid"),
        ("no JSON", "", "x", 400, "BadRequest"),
    ] {
        rows.code(row, &send(&client, Method::DELETE, &format!("{APPS}{query}"), body).await, code, reason);
    }
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    rows.same("cluster-scoped kinds too", client.delete(NODES).await.status, 200);
    rows.same("all of them", names(&client.get(NODES).await.json()).len(), 0);
    let everywhere = client.delete("/apis/horchestra.io/v1/applications").await;
    rows.code("but never across namespaces", &everywhere, 405, "MethodNotAllowed");
    rows.close();
}
