//! Requests as such: methods, time-outs, limits, and what happens when something is away.

use std::time::Duration;

use horchestra_api::http::limits::{Limit, Limits};
use horchestra_store::{MemoryDatabase, Store, StoreOptions};
use http::Method;
use serde_json::json;

use super::{ALL_APPS, APPS, NAMESPACES, NODES, Rows, app, stack};
use crate::client::Protocol;
use crate::stack::{Setup, Stack, Who};

#[tokio::test]
async fn methods() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let item = format!("{APPS}/web");
    for (path, allowed) in [
        (APPS, "GET, HEAD, POST, DELETE"),
        (ALL_APPS, "GET, HEAD"),
        (item.as_str(), "GET, HEAD, PUT, PATCH, DELETE"),
        ("/apis/horchestra.io/v1/namespaces/default/applications/web/status", "GET, HEAD, PUT, PATCH"),
        ("/apis/horchestra.io/v1/namespaces/default/applications/web/freeze", "POST, PUT"),
        ("/apis/horchestra.io/v1/namespaces/default/applications/web/revisions", "GET, HEAD"),
        ("/api/v1/nodes", "GET, HEAD"),
        ("/api/v1/nodes/n1", "GET, HEAD"),
        ("/api/v1/namespaces/default/pods/web/log", "GET, HEAD"),
        ("/version", "GET, HEAD"),
        ("/apis", "GET, HEAD"),
    ] {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        {
            if allowed.split(", ").any(|it| it == method.as_str()) {
                continue;
            }
            let reply = client.send(method.clone(), path, &[], "{}").await;
            rows.code(&format!("{method} {path}"), &reply, 405, "MethodNotAllowed");
            rows.same("with what is allowed", reply.header("allow"), allowed);
        }
    }
    for path in [
        "/",
        "/nonsense",
        "/metrics/debug",
        "/apis/horchestra.io/v1/widgets",
        "/api/v1/secrets",
        "/apis/batch/v1/jobs",
    ] {
        rows.code("what is not routed", &client.get(path).await, 404, "NotFound");
    }
    for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        for path in ["namespaces/default/secrets", "namespaces/default", "secrets"] {
            let reply = client.send(method.clone(), &format!("/apis/bogus.io/v1/{path}"), &[], "{}").await;
            rows.code("our kinds under a foreign group", &reply, 404, "NotFound");
        }
    }
    rows.close();
}

#[tokio::test]
async fn time_outs() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("a")).await;
    for (query, code) in [
        ("timeout=1h", 200),
        ("timeout=0", 200),
        ("timeout=0s", 200),
        ("timeout=", 200),
        ("timeout=30s", 200),
        ("timeout=1m30s", 200),
        ("timeout=invalid", 400),
        ("timeout=10", 400),
        ("timeout=-1s", 400),
    ] {
        rows.same(query, client.get(&format!("{APPS}?{query}")).await.status, code);
        rows.same("of writes too", client.merge(&format!("{APPS}/a?{query}"), &json!({})).await.status, code);
    }
    let late = client.get(&format!("{APPS}?timeout=50ms&resourceVersion={}", i64::MAX)).await;
    rows.code("a request that takes longer", &late, 504, "Timeout");
    rows.holds("names no revision but the time", late.message().contains("allowed time"), late.message());
    let mut watch = client.lines(&format!("{APPS}?watch=1&timeout=1s"), &[]).await;
    rows.same("a watch has its events", watch.event().await, ("ADDED".to_owned(), "a".to_owned()));
    rows.same("and ends when its time is over", watch.next().await, crate::client::Next::End);
    rows.close();
}

#[tokio::test]
async fn names_of_requests() {
    let (stack, client) = stack().await;
    let mut rows = Rows::default();
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        for path in ["/version", APPS, "/nonsense", "/apis/horchestra.io/v1/namespaces/a%2Fb/applications"] {
            let reply = client.get(path).await;
            rows.holds(
                "every answer has a date",
                reply.header("date").ends_with("GMT"),
                (path, &reply.headers),
            );
            rows.same("and an audit id", reply.header("audit-id").len(), 36);
            let named = client.send(Method::GET, path, &[("audit-id", "mine-1")], "").await;
            rows.same("which a client can choose", named.header("audit-id"), "mine-1");
        }
    }
    let headers = [("audit-id", "6ba7b810-9dad-11d1-80b4-00c04fd430c8")];
    client.send(Method::POST, APPS, &headers, app("web").to_string()).await;
    let list = client.get(&format!("{APPS}/web/revisions")).await.json();
    rows.same("and finds again in the history", &list["items"][0]["auditID"], &json!(headers[0].1));
    rows.close();
}

#[tokio::test]
async fn limits_in_flight() {
    let small = Limit { server: 2, caller: 1 };
    let limits = Limits {
        reads: Limit { server: 8, caller: 4 },
        writes: Limit { server: 8, caller: 4 },
        watches: small,
        ..Limits::default()
    };
    let stack = Stack::with(Setup { limits, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    let mut rows = Rows::default();
    let first = client.lines(&format!("{APPS}?watch=1"), &[]).await;
    let second = client.get(&format!("{APPS}?watch=1")).await;
    rows.code("one watch too many of a caller", &second, 429, "TooManyRequests");
    rows.same("with when to come back", second.header("retry-after"), "1");
    rows.same("in the body too", &second.json()["details"]["retryAfterSeconds"], &json!(1));
    rows.same("reads are counted apart", client.get(APPS).await.status, 200);
    rows.same("so are writes", client.post(APPS, &app("a")).await.status, 201);
    drop(first);
    horchestra_testkit::eventually(Duration::from_secs(10), async || {
        let request = client.request(Method::GET, &format!("{APPS}?watch=1"), &[], bytes::Bytes::new());
        client.open(request).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    rows.close();
}

#[tokio::test]
async fn a_database_that_is_away() {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    let stack = Stack::with(Setup {
        store: Some(Store::open(backend.clone(), StoreOptions::default())),
        ..Setup::default()
    })
    .await;
    stack.make_namespaces().await;
    let client = stack.master();
    let mut rows = Rows::default();
    client.post(APPS, &app("a")).await;
    let mut watch = client.lines(&format!("{APPS}?watch=1"), &[]).await;
    rows.same("a watch is open", watch.event().await, ("ADDED".to_owned(), "a".to_owned()));
    backend.set_cut_off(true);
    for (row, reply) in [
        ("a write", client.post(APPS, &app("b")).await),
        ("a deletion", client.delete(&format!("{APPS}/a")).await),
        ("a fresh read", client.get(&format!("{APPS}/a")).await),
        ("a fresh list", client.get(APPS).await),
        ("a history", client.get(&format!("{APPS}/a/revisions")).await),
    ] {
        rows.code(row, &reply, 503, "ServiceUnavailable");
        rows.holds("with when to come back", !reply.header("retry-after").is_empty(), &reply.headers);
        let text = reply.text().to_lowercase();
        rows.holds(
            "and no word of how it is built",
            !["sql", "postgres", "select ", "memory"].iter().any(|it| text.contains(it)),
            text,
        );
    }
    for path in [format!("{APPS}?resourceVersion=0"), format!("{APPS}/a?resourceVersion=0")] {
        rows.same("what may be old is answered", client.get(&path).await.status, 200);
    }
    let stranger = stack.client(Who::Anonymous, Protocol::Http2);
    rows.same("the process is alive", stranger.get("/livez").await.status, 200);
    backend.set_cut_off(false);
    horchestra_testkit::eventually(Duration::from_secs(20), async || {
        client.post(APPS, &app("back")).await.status == 201
    })
    .await;
    rows.same("and the watch goes on", watch.event().await, ("ADDED".to_owned(), "back".to_owned()));
    rows.close();
}

#[tokio::test]
async fn clients_that_leave() {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    let stack = Stack::with(Setup {
        store: Some(Store::open(backend.clone(), StoreOptions::default())),
        ..Setup::default()
    })
    .await;
    stack.make_namespaces().await;
    stack.master().post(APPS, &app("a")).await;
    let running = |class: &str| {
        let page = stack.page.encode().unwrap();
        let line = format!("horchestra_api_requests_in_flight{{class=\"{class}\"}} ");
        page.lines().find_map(|it| it.strip_prefix(&line)).and_then(|it| it.parse::<i64>().ok()).unwrap_or(0)
    };
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        backend.set_stalled(true);
        let body = json!({"metadata": {"generateName": "left-"}, "spec": {"image": "a"}});
        let request = client.request(Method::POST, APPS, &[], body.to_string().into());
        let asking = tokio::spawn({
            let client = client.clone();
            async move { client.open(request).await.map(|answer| answer.status()) }
        });
        horchestra_testkit::eventually(Duration::from_secs(10), async || running("write") == 1).await;
        asking.abort();
        // The database says nothing for longer than this: only the leaving can have ended the request.
        horchestra_testkit::eventually(Duration::from_secs(8), async || running("write") == 0).await;
        backend.set_stalled(false);
        assert_eq!(client.get(APPS).await.status, 200, "{protocol:?}");
    }
}

#[tokio::test]
async fn hostile_paths() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for path in [
        "/apis/horchestra.io/v1%2Fnamespaces%2Fmine%2Fapplications%2Fx/namespaces/victim/applications/db",
        "/apis/horchestra.io/v1/namespaces/team-a%2Fapplications%2Fx/applications",
        "/apis/horchestra.io/v1/namespaces/te%61m-a/applications",
        "/apis/horchestra.io/v1/namespaces/team-a/applications/%C3%A9",
        "/apis/horchestra.io/v1/namespaces/team-a/applications/a%20b",
        "/%61pis",
    ] {
        rows.code("a path in another spelling", &client.get(path).await, 400, "BadRequest");
    }
    for path in [
        "/apis//horchestra.io/v1/nodes",
        "/apis/horchestra.io/v1/./nodes",
        "/apis/horchestra.io/v1/namespaces/../nodes",
        "/apis/horchestra.io/v1/nodes/",
        "/livez/",
    ] {
        rows.code("a path that would have to be tidied", &client.get(path).await, 404, "NotFound");
    }
    rows.same(
        "a plain one",
        client.get("/apis/horchestra.io/v1/namespaces/team-a/applications").await.status,
        200,
    );
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-x"] {
        let reply = client.send(Method::GET, NODES, &[(header, "bob")], "").await;
        rows.code("impersonation", &reply, 403, "Forbidden");
    }
    rows.same(
        "the namespaces are untouched",
        client.get(NAMESPACES).await.json()["items"].as_array().unwrap().len(),
        2,
    );
    rows.close();
}
