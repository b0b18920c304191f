//! Watches over both protocols: what comes, in which order, and how a stream ends.

use std::time::Duration;

use serde_json::{Value, json};

use horchestra_api::server;

use crate::client::{BOTH, Client, Next};
use crate::crud::app;
use crate::stack::{Setup, Stack, Who};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const OTHER: &str = "/apis/horchestra.io/v1/namespaces/team-a/applications";
const ALL: &str = "/apis/horchestra.io/v1/applications";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn listed(client: &Client) -> i64 {
    revision(&client.get(ALL).await.json())
}

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_watch_from_a_list_sees_every_later_change_once_and_in_order() {
    let stack = Stack::with_namespaces().await;
    for protocol in BOTH {
        let client = stack.client(Who::Master, protocol);
        client.post(APPS, &app("before")).await;
        let from = listed(&client).await;
        let mut watch = client.lines(&format!("{ALL}?watch=1&resourceVersion={from}"), &[]).await;
        assert_eq!(watch.headers["content-type"], "application/json");
        assert!(!watch.headers.contains_key("content-encoding"));
        client.post(APPS, &app("web")).await;
        client.merge(&format!("{APPS}/web"), &json!({"spec": {"image": "nginx:2"}})).await;
        client.merge(&format!("{APPS}/web"), &json!({"spec": {"image": "nginx:2"}})).await;
        client.post(OTHER, &app("other")).await;
        client.delete(&format!("{APPS}/web")).await;
        client.delete(&format!("{OTHER}/other")).await;
        client.delete(&format!("{APPS}/before")).await;
        let mut last = from;
        let mut seen = Vec::new();
        for _ in 0..6 {
            let frame = watch.frame().await;
            let object = &frame["object"];
            assert!(revision(object) > last, "{frame}");
            last = revision(object);
            seen.push(format!(
                "{} {}",
                frame["type"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap()
            ));
        }
        assert_eq!(
            seen,
            ["ADDED web", "MODIFIED web", "ADDED other", "DELETED web", "DELETED other", "DELETED before"]
        );

        // From any revision seen, another watch goes on exactly there.
        let mut again = client.lines(&format!("{ALL}?watch=true&resourceVersion={}", last - 1), &[]).await;
        assert_eq!(again.event().await, event("DELETED", "before"));
    }
}

#[tokio::test]
async fn without_a_revision_the_state_comes_first() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(APPS, &app("a")).await;
    client.post(APPS, &app("b")).await;
    client.post(OTHER, &app("c")).await;
    for query in ["watch", "watch=yes&resourceVersion=0", "watch=1&resourceVersion="] {
        let mut watch = client.lines(&format!("{APPS}?{query}"), &[]).await;
        assert_eq!(watch.event().await, event("ADDED", "a"), "{query}");
        assert_eq!(watch.event().await, event("ADDED", "b"), "{query}");
    }
    let list = client.get(&format!("{APPS}?watch=false")).await.json();
    assert_eq!(list["kind"], "ApplicationList");
    let mut one = client.lines(&format!("{APPS}?watch=1&fieldSelector=metadata.name%3Db"), &[]).await;
    assert_eq!(one.event().await, event("ADDED", "b"));
}

#[tokio::test]
async fn initial_events_end_with_an_annotated_bookmark_at_once() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (accept, kind) in [
        ("application/json", "Application"),
        (TABLE, "Table"),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "PartialObjectMetadata"),
    ] {
        for extra in ["", "&resourceVersion=", "&resourceVersion=0"] {
            let mut watch = client.lines(&format!("{APPS}?{query}{extra}"), &[("accept", accept)]).await;
            let bookmark = watch.frame().await;
            assert_eq!(bookmark["type"], "BOOKMARK", "{bookmark}");
            assert_eq!(bookmark["object"]["kind"], kind);
            let object =
                if kind == "Table" { &bookmark["object"]["rows"][0]["object"] } else { &bookmark["object"] };
            assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{bookmark}");
            assert!(revision(object) > 0);
        }
    }
    client.post(APPS, &app("web")).await;
    let mut watch = client.lines(&format!("{APPS}?{query}"), &[]).await;
    assert_eq!(watch.event().await, event("ADDED", "web"));
    assert_eq!(watch.frame().await["type"], "BOOKMARK");
    client.post(APPS, &app("later")).await;
    assert_eq!(watch.event().await, event("ADDED", "later"));
}

#[tokio::test]
async fn objects_enter_and_leave_selectors() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let from = listed(&client).await;
    let mut watch =
        client.lines(&format!("{APPS}?watch=1&resourceVersion={from}&labelSelector=env%3Dprod"), &[]).await;
    client.post(APPS, &app("web")).await;
    let path = format!("{APPS}/web");
    for label in [json!("prod"), json!("dev"), json!("prod")] {
        client.merge(&path, &json!({"metadata": {"labels": {"env": label}}})).await;
    }
    client.delete(&path).await;
    for kind in ["ADDED", "DELETED", "ADDED", "DELETED"] {
        assert_eq!(watch.event().await, event(kind, "web"));
    }
}

#[tokio::test]
async fn table_watches_have_the_columns_of_the_list() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let list = client.get_as(APPS, TABLE).await.json();
    let from = revision(&list);
    let mut watch =
        client.lines(&format!("{APPS}?watch=1&resourceVersion={from}"), &[("accept", TABLE)]).await;
    client.post(APPS, &app("web")).await;
    client.delete(&format!("{APPS}/web")).await;
    for kind in ["ADDED", "DELETED"] {
        let frame = watch.frame().await;
        assert_eq!((&frame["type"], &frame["object"]["kind"]), (&json!(kind), &json!("Table")));
        assert_eq!(frame["object"]["columnDefinitions"], list["columnDefinitions"]);
        assert_eq!(frame["object"]["rows"][0]["cells"][0], "web");
        assert!(revision(&frame["object"]["rows"][0]["object"]) > from);
    }
}

#[tokio::test]
async fn revisions_outside_of_the_log_are_an_error_in_the_stream() {
    let stack = Stack::with_namespaces().await;
    for protocol in BOTH {
        let client = stack.client(Who::Master, protocol);
        let mut watch = client.lines(&format!("{APPS}?watch=1&resourceVersion=999999999"), &[]).await;
        let frame = watch.frame().await;
        assert_eq!((&frame["type"], &frame["object"]["code"]), (&json!("ERROR"), &json!(410)), "{frame}");
        assert_eq!(frame["object"]["kind"], "Status");
        assert_eq!(watch.next().await, Next::End);
    }
}

#[tokio::test]
async fn a_watch_ends_in_order_when_its_time_is_over() {
    let stack = Stack::with_namespaces().await;
    for protocol in BOTH {
        let client = stack.client(Who::Master, protocol);
        let mut watch = client.lines(&format!("{APPS}?watch=1&timeoutSeconds=1"), &[]).await;
        assert_eq!(watch.next().await, Next::End, "{protocol:?}");
    }
}

#[tokio::test]
async fn many_watchers_see_the_same_changes_and_share_their_frames() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let from = listed(&client).await;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(client.lines(&format!("{ALL}?watch=1&resourceVersion={from}"), &[]).await);
    }
    for number in 0..30 {
        client.post(APPS, &app(&format!("w-{number}"))).await;
    }
    let mut first = None;
    for watch in &mut watches {
        let mut lines = Vec::new();
        for _ in 0..30 {
            let Next::Line(line) = watch.next().await else { panic!("ended") };
            lines.push(line);
        }
        assert_eq!(*first.get_or_insert_with(|| lines.clone()), lines);
    }
    let page = stack.page.encode().unwrap();
    assert!(page.contains("horchestra_api_watchers{resource=\"applications\"} 20"), "{page}");
    let shared = "horchestra_api_watch_frames_shared_total ";
    let count = page.lines().find_map(|line| line.strip_prefix(shared)).unwrap().parse::<u64>().unwrap();
    assert!(count > 0, "every watch encoded its own frames");
    drop(watches);
    horchestra_testkit::eventually(Duration::from_secs(10), async || {
        stack.page.encode().unwrap().contains("horchestra_api_watchers{resource=\"applications\"} 0")
    })
    .await;
}

#[tokio::test]
async fn a_client_that_stops_reading_is_given_up_and_the_others_go_on() {
    for protocol in BOTH {
        let stack = Stack::with(Setup {
            patience: Duration::from_millis(500),
            connections: server::Limits { stall: Duration::from_millis(500), ..server::Limits::default() },
            ..Setup::default()
        })
        .await;
        stack.make_namespaces().await;
        let client = stack.client(Who::Master, protocol);
        let from = listed(&client).await;
        let path = format!("{APPS}?watch=1&resourceVersion={from}");
        let stalled = client.lines(&path, &[]).await;
        let mut reading = stack.master().lines(&path, &[]).await;
        let mut large = app("large");
        let mut number = 0;
        horchestra_testkit::eventually(Duration::from_secs(60), async || {
            // Frames until no buffer on the way takes any more.
            number += 1;
            large["metadata"]["annotations"] =
                json!({"filler": "x".repeat(200_000), "number": number.to_string()});
            if number == 1 {
                client.post(APPS, &large).await;
            } else {
                client.put(&format!("{APPS}/large"), &large).await;
            }
            assert_eq!(reading.event().await.1, "large");
            stack.page.encode().unwrap().contains("horchestra_api_watchers{resource=\"applications\"} 1")
        })
        .await;
        drop(stalled);
        client.delete(&format!("{APPS}/large")).await;
        assert_eq!(reading.event().await, event("DELETED", "large"), "{protocol:?}");
    }
}
