//! Namespaces.

use serde_json::{Value, json};

use super::{APPS, NAMESPACES, Rows, app, names, stack};

#[tokio::test]
async fn a_namespace_from_beginning_to_end() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let team = format!("{NAMESPACES}/team-b");
    let apps = format!("{team}/applications");
    let made = client.post(NAMESPACES, &json!({"metadata": {"name": "team-b", "labels": {"a": "1"}}})).await;
    rows.same("created", made.status, 201);
    let patched = client.merge(&team, &json!({"metadata": {"labels": {"a": "2", "b": "x"}}})).await.json();
    rows.same("patched", &patched["metadata"]["labels"], &json!({"a": "2", "b": "x"}));
    let mut whole = patched.clone();
    whole["metadata"]["labels"] = json!({"c": "y"});
    rows.same("replaced", &client.put(&team, &whole).await.json()["metadata"]["labels"], &json!({"c": "y"}));
    let selected = client.get(&format!("{NAMESPACES}?labelSelector=c%3Dy")).await.json();
    rows.same("selected", names(&selected), vec!["team-b".to_owned()]);
    client.merge(&team, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    rows.same("deleted while held", client.delete(&team).await.status, 200);
    rows.holds(
        "it is marked",
        client.get(&team).await.json()["metadata"]["deletionTimestamp"].is_string(),
        "",
    );
    rows.same(
        "the hold taken away",
        client.merge(&team, &json!({"metadata": {"finalizers": null}})).await.status,
        200,
    );
    rows.same("it is gone", client.get(&team).await.status, 404);
    client.post(NAMESPACES, &json!({"metadata": {"name": "team-b"}})).await;
    client.post(&apps, &app("web")).await;
    let full = client.delete(&team).await;
    rows.code("one that holds something stays", &full, 403, "Forbidden");
    rows.holds("and says what it holds", full.message().contains("web"), full.message());
    client.delete(&format!("{apps}/web")).await;
    rows.same("an empty one goes", client.delete(&team).await.status, 200);
    client.post(NAMESPACES, &json!({"metadata": {"name": "team-b"}})).await;
    let again = client.get(&team).await.json();
    rows.same("and comes back new", &again["metadata"]["labels"], &Value::Null);
    rows.same("and empty", names(&client.get(&apps).await.json()).len(), 0);
    rows.close();
}

#[tokio::test]
async fn the_default_namespace_stays() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    rows.same("while it holds something", client.post(APPS, &app("web")).await.status, 201);
    let default = format!("{NAMESPACES}/default");
    rows.code("it stays", &client.delete(&default).await, 403, "Forbidden");
    client.delete(&format!("{APPS}/web")).await;
    rows.code("and also when it is empty", &client.delete(&default).await, 403, "Forbidden");
    rows.same("it is still there", client.get(&default).await.status, 200);
    rows.close();
}
