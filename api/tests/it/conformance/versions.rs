//! What `resourceVersion` means on reads.

use futures::future::join_all;
use horchestra_store::{MemoryDatabase, Store, StoreOptions};
use serde_json::json;

use super::{APPS, NODES, Rows, app, names, revision, stack};
use crate::client::Next;
use crate::stack::{Setup, Stack};

#[tokio::test]
async fn lists_and_reads_at_a_revision() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("a")).await;
    let then = client.get(APPS).await.json();
    let at = revision(&then);
    client.post(APPS, &app("b")).await;
    let now = revision(&client.get(APPS).await.json());
    rows.holds("revisions grow", now > at, (at, now));
    for (row, query, expected) in [
        ("none: the newest", String::new(), "ab"),
        ("empty: the same", "?resourceVersion=".to_owned(), "ab"),
        ("0: whatever there is", "?resourceVersion=0".to_owned(), "ab"),
        ("a number: not older", format!("?resourceVersion={at}"), "ab"),
        ("said so", format!("?resourceVersion={at}&resourceVersionMatch=NotOlderThan"), "ab"),
        ("exactly", format!("?resourceVersion={at}&resourceVersionMatch=Exact"), "a"),
        ("exactly the newest", format!("?resourceVersion={now}&resourceVersionMatch=Exact"), "ab"),
        ("0, not older", "?resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(), "ab"),
        (
            "as tools that wait ask",
            "?limit=500&resourceVersion=0&fieldSelector=metadata.name%3Db".to_owned(),
            "b",
        ),
    ] {
        let list = client.get(&format!("{APPS}{query}")).await.json();
        rows.same(row, names(&list).join("").as_str(), expected);
        let wanted = if expected == "a" { at } else { now };
        rows.same(row, revision(&list), wanted);
    }
    let future = i64::MAX;
    let lists = [
        ("no number", "resourceVersion=x".to_owned(), 400, "BadRequest"),
        ("a sign", "resourceVersion=-1".to_owned(), 400, "BadRequest"),
        ("another sign", "resourceVersion=%2B1".to_owned(), 400, "BadRequest"),
        ("beyond 64 bits", "resourceVersion=99999999999999999999".to_owned(), 400, "BadRequest"),
        ("a match without a revision", "resourceVersionMatch=Exact".to_owned(), 422, "Invalid"),
        (
            "a match that nobody knows",
            format!("resourceVersion={at}&resourceVersionMatch=Newest"),
            422,
            "Invalid",
        ),
        ("exactly 0", "resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422, "Invalid"),
        ("initial events of a list", "sendInitialEvents=true".to_owned(), 422, "Invalid"),
        ("a revision to come", format!("resourceVersion={future}"), 504, "Timeout"),
        (
            "a revision to come, exactly",
            format!("resourceVersion={future}&resourceVersionMatch=Exact"),
            504,
            "Timeout",
        ),
    ];
    let objects = [
        ("none", String::new(), 200),
        ("0", "?resourceVersion=0".to_owned(), 200),
        ("not older", format!("?resourceVersion={now}"), 200),
        ("to come", format!("?resourceVersion={future}"), 504),
        ("no number", "?resourceVersion=x".to_owned(), 400),
        ("a sign", "?resourceVersion=-1".to_owned(), 400),
        ("another sign", "?resourceVersion=%2B1".to_owned(), 400),
        ("beyond 64 bits", "?resourceVersion=99999999999999999999".to_owned(), 400),
    ];
    // Together, since what is to come is waited for.
    let ask = async |path: String| client.get(&path).await;
    let (of_lists, of_objects) = futures::join!(
        join_all(lists.iter().map(|(_, query, ..)| ask(format!("{APPS}?{query}")))),
        join_all(objects.iter().map(|(_, query, _)| ask(format!("{APPS}/b{query}")))),
    );
    for ((row, _, code, reason), reply) in lists.into_iter().zip(of_lists) {
        rows.code(row, &reply, code, reason);
        if code == 504 {
            let cause = &reply.json()["details"]["causes"][0]["reason"];
            rows.same("with the cause that clients look for", cause, &json!("ResourceVersionTooLarge"));
            rows.holds("and when to come back", !reply.header("retry-after").is_empty(), &reply.headers);
        }
    }
    for ((row, _, code), reply) in objects.into_iter().zip(of_objects) {
        rows.same(&format!("one object, {row}"), reply.status, code);
    }
    rows.close();
}

#[tokio::test]
async fn one_sequence_for_everything() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let mut last = 0;
    let mut next = |row: &str, object: &serde_json::Value| {
        let text = object["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
        let number: i64 = text.parse().unwrap_or(-1);
        rows.holds(
            "a decimal number without sign or leading zero",
            number.to_string() == text && number >= 1,
            &text,
        );
        rows.holds(row, number > last, (number, last));
        last = number;
    };
    next("a first object", &client.post(APPS, &app("a")).await.json());
    next(
        "one of another kind",
        &client.post(NODES, &json!({"metadata": {"name": "n"}, "spec": {}})).await.json(),
    );
    next("an edit", &client.merge(&format!("{APPS}/a"), &json!({"spec": {"image": "x"}})).await.json());
    next(
        "a label",
        &client.merge(&format!("{APPS}/a"), &json!({"metadata": {"labels": {"a": "b"}}})).await.json(),
    );
    next(
        "a status",
        &client.merge(&format!("{APPS}/a/status"), &json!({"status": {"phase": "Running"}})).await.json(),
    );
    let before = client.get(APPS).await.json();
    client.delete(&format!("{APPS}/a")).await;
    next("a deletion", &client.get(APPS).await.json());
    let path = format!("{APPS}?watch=1&resourceVersion={}", revision(&before));
    let frame = client.lines(&path, &[]).await.frame().await;
    rows.same("the last event", &frame["type"], &json!("DELETED"));
    rows.same("carries the revision of the deletion", revision(&frame["object"]), last);
    rows.close();
}

#[tokio::test]
async fn what_the_log_no_longer_has() {
    let database = MemoryDatabase::new();
    let here = Stack::with(Setup {
        store: Some(Store::open(database.connect(), StoreOptions::default())),
        ..Setup::default()
    })
    .await;
    here.make_namespaces().await;
    let client = here.master();
    let mut rows = Rows::default();
    let old = revision(&client.post(APPS, &app("a")).await.json());
    for number in 0..20 {
        client.merge(&format!("{APPS}/a"), &json!({"metadata": {"labels": {"n": number.to_string()}}})).await;
    }
    let now = revision(&client.get(APPS).await.json());
    database.compact(now);
    // A replica that has seen nothing of it.
    let there = Stack::with(Setup {
        store: Some(Store::open(database.connect(), StoreOptions::default())),
        ..Setup::default()
    })
    .await;
    let client = there.master();
    let exact = client.get(&format!("{APPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await;
    rows.code("an old state", &exact, 410, "Expired");
    rows.same("not older than it", client.get(&format!("{APPS}?resourceVersion={old}")).await.status, 200);
    for asked in [old, now + 1000] {
        let mut watch = client.lines(&format!("{APPS}?watch=1&resourceVersion={asked}"), &[]).await;
        let frame = watch.frame().await;
        rows.same("a watch of it says so in the stream", &frame["type"], &json!("ERROR"));
        let status = &frame["object"];
        rows.same(
            "with 410",
            (&status["kind"], &status["code"], &status["reason"]),
            (&json!("Status"), &json!(410), &json!("Expired")),
        );
        rows.same("and ends", watch.next().await, Next::End);
    }
    rows.close();
}
