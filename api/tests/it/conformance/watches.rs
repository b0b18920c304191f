//! Watches.

use std::time::Duration;

use horchestra_service::ServiceConfig;
use http::Method;
use serde_json::{Value, json};

use super::{
    ALL_APPS, APPS, METADATA, NAMESPACES, NODES, Rows, TABLE, TEAM_APPS, app, labelled, revision, stack,
};
use crate::client::{Lines, Next, Protocol};
use crate::stack::{Setup, Stack, Who};

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

/// The next frames as `TYPE name`.
async fn take(watch: &mut Lines, count: usize) -> Vec<String> {
    let mut events = Vec::new();
    for _ in 0..count {
        let (kind, name) = watch.event().await;
        events.push(format!("{kind} {name}"));
    }
    events
}

#[tokio::test]
async fn what_is_a_watch() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("a")).await;
    for query in ["watch", "watch=", "watch=1", "watch=true", "watch=yes", "watch=True"] {
        let mut watch = client.lines(&format!("{APPS}?{query}"), &[]).await;
        rows.same(query, watch.event().await, event("ADDED", "a"));
    }
    for query in ["watch=0", "watch=false", ""] {
        rows.same(
            query,
            &client.get(&format!("{APPS}?{query}")).await.json()["kind"],
            &json!("ApplicationList"),
        );
    }
    rows.same(
        "of one object there is none",
        &client.get(&format!("{APPS}/a?watch=1")).await.json()["kind"],
        &json!("Application"),
    );
    let mut one = client.lines(&format!("{APPS}?watch=1&fieldSelector=metadata.name%3Da"), &[]).await;
    rows.same("a field selector does it", one.event().await, event("ADDED", "a"));
    rows.same(
        "the old path is not served",
        client.get("/apis/horchestra.io/v1/watch/applications").await.status,
        404,
    );
    for (query, code, reason) in [
        ("resourceVersion=x", 400, "BadRequest"),
        ("labelSelector=a+in+(", 400, "BadRequest"),
        ("fieldSelector=spec.image%3Dx", 400, "BadRequest"),
        ("timeoutSeconds=x", 400, "BadRequest"),
        ("sendInitialEvents=true", 422, "Invalid"),
        ("sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1", 422, "Invalid"),
        ("sendInitialEvents=false", 422, "Invalid"),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=1", 422, "Invalid"),
    ] {
        rows.code(query, &client.get(&format!("{APPS}?watch=1&{query}")).await, code, reason);
    }
    rows.close();
}

#[tokio::test]
async fn how_it_comes_over_the_wire() {
    let (stack, _) = stack().await;
    let mut rows = Rows::default();
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        let headers = [("accept-encoding", "gzip")];
        let mut watch = client.lines(&format!("{APPS}?watch=1"), &headers).await;
        let header = |name: &str| watch.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        rows.same("frames are JSON", header("content-type").as_deref(), Some("application/json"));
        rows.same("never compressed", header("content-encoding"), None);
        rows.same("of no known length", header("content-length"), None);
        if protocol == Protocol::Http1 {
            rows.same("but in chunks", header("transfer-encoding").as_deref(), Some("chunked"));
        }
        rows.holds(
            "with a name and a date",
            header("audit-id").is_some() && header("date").is_some(),
            &watch.headers,
        );
        client.post(APPS, &app("a")).await;
        let Next::Line(line) = watch.next().await else { panic!("a line") };
        let frame: Value = serde_json::from_str(&line).unwrap_or_default();
        rows.same("one frame a line", &frame["type"], &json!("ADDED"));
        client.delete(&format!("{APPS}/a")).await;
        rows.same("flushed each", watch.event().await, event("DELETED", "a"));
        for (accept, kind) in [(TABLE, "Table"), (METADATA, "PartialObjectMetadata")] {
            let mut watch = client.lines(&format!("{APPS}?watch=1"), &[("accept", accept)]).await;
            client.post(APPS, &app("b")).await;
            let frame = watch.frame().await;
            rows.same(accept, (&frame["type"], &frame["object"]["kind"]), (&json!("ADDED"), &json!(kind)));
            client.delete(&format!("{APPS}/b")).await;
        }
    }
    rows.close();
}

#[tokio::test]
async fn selectors_see_their_own_and_every_type() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let from = revision(&client.get(APPS).await.json());
    let open = async |selector: &str| {
        client.lines(&format!("{APPS}?watch=1&resourceVersion={from}&labelSelector={selector}"), &[]).await
    };
    let (mut a, mut b, mut both) = (open("set%3Da").await, open("set%3Db").await, open("set+in+(a,b)").await);
    client.post(APPS, &labelled("x", json!({"set": "a"}))).await;
    client.post(APPS, &labelled("y", json!({"set": "b"}))).await;
    let x = format!("{APPS}/x");
    client.merge(&x, &json!({"spec": {"image": "nginx:2"}})).await;
    client.merge(&x, &json!({"metadata": {"labels": {"set": "b"}}})).await;
    client.merge(&x, &json!({"metadata": {"labels": {"set": "c"}}})).await;
    client.delete(&x).await;
    client.delete(&format!("{APPS}/y")).await;
    client.post(APPS, &labelled("end", json!({"set": "a"}))).await;
    client.merge(&format!("{APPS}/end"), &json!({"metadata": {"labels": {"set": "b"}}})).await;
    rows.same(
        "those of one",
        take(&mut a, 5).await.join(", "),
        "ADDED x, MODIFIED x, DELETED x, ADDED end, DELETED end".to_owned(),
    );
    rows.same(
        "those of the other",
        take(&mut b, 5).await.join(", "),
        "ADDED y, ADDED x, DELETED x, DELETED y, ADDED end".to_owned(),
    );
    rows.same(
        "those of both",
        take(&mut both, 8).await.join(", "),
        "ADDED x, ADDED y, MODIFIED x, MODIFIED x, DELETED x, DELETED y, ADDED end, MODIFIED end".to_owned(),
    );
    rows.close();
}

#[tokio::test]
async fn from_any_revision_exactly_what_came_later() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let from = revision(&client.get(ALL_APPS).await.json());
    let mut first = client.lines(&format!("{ALL_APPS}?watch=1&resourceVersion={from}"), &[]).await;
    client.post(APPS, &app("a")).await;
    client.post(TEAM_APPS, &app("b")).await;
    client.merge(&format!("{APPS}/a"), &json!({"spec": {"image": "nginx:2"}})).await;
    client.merge(&format!("{APPS}/a/status"), &json!({"status": {"phase": "Running"}})).await;
    client.post(NODES, &json!({"metadata": {"name": "n"}, "spec": {}})).await;
    client.delete(&format!("{TEAM_APPS}/b")).await;
    let mut frames = Vec::new();
    for _ in 0..5 {
        frames.push(first.frame().await);
    }
    let revisions: Vec<i64> = frames.iter().map(|frame| revision(&frame["object"])).collect();
    rows.holds("in the order of revisions, over all namespaces", revisions.is_sorted(), &revisions);
    for (at, seen) in revisions.iter().enumerate() {
        let mut again = client.lines(&format!("{ALL_APPS}?watch=1&resourceVersion={seen}"), &[]).await;
        for frame in &frames[at + 1..] {
            rows.same("reopened at an event, the same ones come", &again.frame().await, frame);
        }
    }
    let list = client.get(APPS).await.json();
    client.post(APPS, &app("between")).await;
    let mut watch = client.lines(&format!("{APPS}?watch=1&resourceVersion={}", revision(&list)), &[]).await;
    rows.same("between a list and its watch nothing is lost", watch.event().await, event("ADDED", "between"));
    client.put(&format!("{APPS}/between"), &client.get(&format!("{APPS}/between")).await.json()).await;
    client.post(APPS, &app("last")).await;
    rows.same("what changes nothing is no event", watch.event().await, event("ADDED", "last"));
    rows.close();
}

#[tokio::test]
async fn the_state_first() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let marked = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let annotation =
        |frame: &Value| frame["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"].clone();
    let mut empty = client.lines(&format!("{APPS}?{marked}"), &[]).await;
    let frame = empty.frame().await;
    rows.same(
        "an empty state ends at once",
        (&frame["type"], &annotation(&frame)),
        (&json!("BOOKMARK"), &json!("true")),
    );
    rows.same(
        "the bookmark says its kind",
        (&frame["object"]["kind"], &frame["object"]["apiVersion"]),
        (&json!("Application"), &json!("horchestra.io/v1")),
    );
    for name in ["a", "b"] {
        client.post(APPS, &labelled(name, json!({"name": name}))).await;
    }
    let head = revision(&client.get(APPS).await.json());
    for query in ["", "&resourceVersion=", "&resourceVersion=0", &format!("&resourceVersion={head}")] {
        let mut watch = client.lines(&format!("{APPS}?{marked}{query}"), &[]).await;
        rows.same("each object", take(&mut watch, 2).await.join(", "), "ADDED a, ADDED b".to_owned());
        let frame = watch.frame().await;
        rows.same(
            "then the end",
            (&frame["type"], &annotation(&frame)),
            (&json!("BOOKMARK"), &json!("true")),
        );
        rows.same("of that revision", revision(&frame["object"]), head);
    }
    let mut one = client.lines(&format!("{APPS}?{marked}&labelSelector=name%3Db"), &[]).await;
    rows.same("selectors count", take(&mut one, 1).await.join(""), "ADDED b".to_owned());
    rows.same("also for the end", &one.frame().await["type"], &json!("BOOKMARK"));
    let mut live = client.lines(&format!("{APPS}?{marked}"), &[]).await;
    take(&mut live, 3).await;
    client.delete(&format!("{APPS}/a")).await;
    rows.same("and then what happens", live.event().await, event("DELETED", "a"));
    let quiet = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut quiet = client.lines(&format!("{APPS}?{quiet}"), &[]).await;
    client.post(APPS, &app("c")).await;
    rows.same("or only that", quiet.event().await, event("ADDED", "c"));
    for query in ["watch=1", "watch=1&resourceVersion=0"] {
        let mut watch = client.lines(&format!("{APPS}?{query}"), &[]).await;
        rows.same(query, take(&mut watch, 2).await.join(", "), "ADDED b, ADDED c".to_owned());
    }
    rows.close();
}

#[tokio::test]
async fn bookmarks_and_ends() {
    let service = ServiceConfig { bookmark_interval: Duration::from_millis(50), ..ServiceConfig::default() };
    let mut stack = Stack::with(Setup { service, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    let mut rows = Rows::default();
    let from = revision(&client.get(APPS).await.json());
    for (accept, kind) in
        [("application/json", "Application"), (TABLE, "Table"), (METADATA, "PartialObjectMetadata")]
    {
        let path = format!("{APPS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}");
        let mut watch = client.lines(&path, &[("accept", accept)]).await;
        let elsewhere =
            revision(&client.post(NAMESPACES, &json!({"metadata": {"generateName": "n-"}})).await.json());
        let deadline = tokio::time::Instant::now() + crate::client::DEADLINE;
        loop {
            let frame = watch.frame().await;
            let object =
                if kind == "Table" { &frame["object"]["rows"][0]["object"] } else { &frame["object"] };
            rows.same("only bookmarks come", &frame["type"], &json!("BOOKMARK"));
            rows.same("of the kind that is watched", &frame["object"]["kind"], &json!(kind));
            if revision(object) >= elsewhere {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "bookmarks do not move on with other kinds");
        }
    }
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        let mut watch =
            client.lines(&format!("{APPS}?watch=1&timeoutSeconds=1&resourceVersion={from}"), &[]).await;
        rows.same(
            "without being asked for there are none, and the end is in order",
            watch.next().await,
            Next::End,
        );
    }
    let mut with =
        client.lines(&format!("{APPS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}"), &[]).await;
    let mut without = client.lines(&format!("{APPS}?watch=1&resourceVersion={from}"), &[]).await;
    client.post(APPS, &app("a")).await;
    rows.same("an event", without.event().await, event("ADDED", "a"));
    stack.begin_stop();
    let mut last = Value::Null;
    let end = loop {
        match with.next().await {
            Next::Line(line) => last = serde_json::from_str(&line).unwrap(),
            end => break end,
        }
    };
    rows.same("a replica that stops ends its watches in order", end, Next::End);
    rows.same("with a last bookmark", &last["type"], &json!("BOOKMARK"));
    rows.same("to those who take one", without.next().await, Next::End);
    stack.stop().await;
    rows.close();
}

#[tokio::test]
async fn who_may_list_need_not_be_allowed_to_watch() {
    let (stack, _) = stack().await;
    let mut rows = Rows::default();
    let nobody = stack.client(Who::Nobody, Protocol::Http2);
    rows.same("a list of what one may see", nobody.get(NAMESPACES).await.status, 200);
    for query in ["watch=1", "watch=true", "watch"] {
        let reply = nobody.get(&format!("{NAMESPACES}?{query}")).await;
        rows.code("a watch is refused before it opens", &reply, 403, "Forbidden");
    }
    rows.code(
        "an item with watch is a read",
        &nobody.get(&format!("{NAMESPACES}/default?watch=true")).await,
        403,
        "Forbidden",
    );
    rows.code("so is what was not granted", &nobody.get(&format!("{APPS}?watch=1")).await, 403, "Forbidden");
    let head = nobody.send(Method::HEAD, &format!("{NAMESPACES}?watch=1"), &[], "").await;
    rows.same("HEAD opens no stream", head.status, 200);
    rows.close();
}
