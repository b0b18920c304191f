//! Tables.

use serde_json::{Value, json};

use super::{APPS, NAMESPACES, NODES, Rows, TABLE, app, encoded, revision, stack};

const BETA: &str = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";

#[tokio::test]
async fn shape() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    client.post(APPS, &app("web")).await;
    for (path, expected) in [
        (APPS, vec!["Name", "IMAGE", "Status", "NODE", "IP", "Age"]),
        (NODES, vec!["Name", "Status", "CPU", "MEM", "IP", "OS", "Age"]),
        (NAMESPACES, vec!["Name", "Age"]),
    ] {
        let table = client.get_as(path, TABLE).await.json();
        rows.same(
            "kind and version",
            (&table["kind"], &table["apiVersion"]),
            (&json!("Table"), &json!("meta.k8s.io/v1")),
        );
        let columns = table["columnDefinitions"].as_array().unwrap();
        let names: Vec<&str> = columns.iter().map(|it| it["name"].as_str().unwrap()).collect();
        rows.same("the columns", names, expected);
        rows.same(
            "the first is the name",
            (&columns[0]["type"], &columns[0]["format"]),
            (&json!("string"), &json!("name")),
        );
        for column in columns {
            let whole =
                column["description"].is_string() && matches!(column["priority"].as_i64(), Some(0 | 1));
            rows.holds("each column is whole", whole, column);
        }
        for row in table["rows"].as_array().unwrap() {
            rows.same("a cell for each", row["cells"].as_array().unwrap().len(), columns.len());
            rows.same("and the metadata", &row["object"]["kind"], &json!("PartialObjectMetadata"));
            rows.holds("which is whole", row["object"]["metadata"]["uid"].is_string(), row);
        }
        rows.holds("it carries its revision", revision(&table) > 0, &table["metadata"]);
    }
    let list = client.get_as(APPS, TABLE).await.json();
    let cells = list["rows"][0]["cells"].as_array().unwrap();
    rows.same(
        "a new Application",
        &cells[..5],
        &[json!("web"), json!("nginx:1"), json!("Pending"), json!("-"), json!("")][..],
    );
    rows.holds("its age in words", cells[5].as_str().is_some_and(|age| age.ends_with('s')), cells);
    let node = client.get_as(&format!("{NODES}/n1"), TABLE).await.json();
    rows.same(
        "a new Node",
        &node["rows"][0]["cells"].as_array().unwrap()[..5],
        &[json!("n1"), json!("NotReady"), json!("0/0"), json!("0/0Gi"), json!("")][..],
    );
    rows.close();
}

#[tokio::test]
async fn choices() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for name in ["a", "b", "c"] {
        client.post(APPS, &app(name)).await;
    }
    let beta = client.get_as(APPS, BETA).await.json();
    rows.same(
        "the older version where only that is taken",
        &beta["apiVersion"],
        &json!("meta.k8s.io/v1beta1"),
    );
    let both = client.get_as(APPS, &format!("{TABLE},{BETA},application/json")).await.json();
    rows.same("the first that is taken", &both["apiVersion"], &json!("meta.k8s.io/v1"));
    let other =
        client.get_as(APPS, "application/json;as=Table;v=v7;g=meta.k8s.io,application/json").await.json();
    rows.same("the next entry where there is no such version", &other["kind"], &json!("ApplicationList"));
    for (include, kind) in [
        ("None", Value::Null),
        ("Metadata", json!("PartialObjectMetadata")),
        ("Object", json!("Application")),
    ] {
        let table = client.get_as(&format!("{APPS}?includeObject={include}"), TABLE).await.json();
        rows.same("what a row carries", &table["rows"][0]["object"]["kind"], &kind);
        let path = format!("{APPS}?watch=1&includeObject={include}");
        let frame = client.lines(&path, &[("accept", TABLE)]).await.frame().await;
        rows.same("also in a watch", &frame["object"]["rows"][0]["object"]["kind"], &kind);
    }
    rows.code(
        "nothing else",
        &client.get_as(&format!("{APPS}?includeObject=All"), TABLE).await,
        400,
        "BadRequest",
    );
    let page = client.get_as(&format!("{APPS}?limit=2"), TABLE).await.json();
    rows.same(
        "pages",
        (page["rows"].as_array().unwrap().len(), page["metadata"]["remainingItemCount"].as_i64()),
        (2, Some(1)),
    );
    let token = encoded(page["metadata"]["continue"].as_str().unwrap());
    let rest = client.get_as(&format!("{APPS}?limit=2&continue={token}"), TABLE).await.json();
    rows.same("and their rest", &rest["rows"][0]["cells"][0], &json!("c"));
    for path in ["/version", "/api", "/apis", "/apis/horchestra.io/v1", "/openapi/v3"] {
        rows.code("what has no rows has no table", &client.get_as(path, TABLE).await, 406, "NotAcceptable");
    }
    let revisions = client.get_as(&format!("{APPS}/a/revisions"), TABLE).await;
    rows.code("nor has a history", &revisions, 406, "NotAcceptable");
    let failure = client.get_as(&format!("{APPS}/ghost"), TABLE).await;
    rows.code("failures are never tables", &failure, 404, "NotFound");
    rows.close();
}

#[tokio::test]
async fn watches() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let list = client.get_as(APPS, TABLE).await.json();
    let mut watch = client
        .lines(&format!("{APPS}?watch=1&resourceVersion={}", revision(&list)), &[("accept", TABLE)])
        .await;
    client.post(APPS, &app("web")).await;
    client.merge(&format!("{APPS}/web/status"), &json!({"status": {"phase": "Running"}})).await;
    client.delete(&format!("{APPS}/web")).await;
    let mut last = 0;
    for (kind, status) in [("ADDED", "Pending"), ("MODIFIED", "Running"), ("DELETED", "Running")] {
        let frame = watch.frame().await;
        rows.same("each event", &frame["type"], &json!(kind));
        rows.same("is a table", &frame["object"]["kind"], &json!("Table"));
        rows.same(
            "with the columns of the list",
            &frame["object"]["columnDefinitions"],
            &list["columnDefinitions"],
        );
        let row = &frame["object"]["rows"][0];
        rows.same(
            "and one row",
            (frame["object"]["rows"].as_array().unwrap().len(), &row["cells"][2]),
            (1, &json!(status)),
        );
        let at = revision(&row["object"]);
        rows.holds("at its revision", at > last, (at, last));
        last = at;
    }
    rows.close();
}
