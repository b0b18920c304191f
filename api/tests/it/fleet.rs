//! The page of the fleet: `/metrics` at the API's own address.

use std::io::Read as _;
use std::time::Duration;

use http::Method;
use serde_json::json;

use horchestra_store::{MemoryDatabase, Store, StoreOptions};

use crate::client::{BOTH, Client, Protocol, Reply};
use crate::rbac::Rules;
use crate::stack::{Setup, Stack, Who};
use crate::usage::{Gateways, make_app, make_node, measured};

const MIB: i64 = 1 << 20;

/// The samples of a page, without what explains them.
fn samples(page: &str) -> Vec<&str> {
    page.lines().filter(|line| !line.starts_with('#')).collect()
}

fn of_family<'a>(page: &'a str, family: &str) -> Vec<&'a str> {
    let begins = format!("{family}{{");
    samples(page).into_iter().filter(|line| line.starts_with(&begins)).collect()
}

async fn scrape(client: &Client) -> String {
    let reply = client.get("/metrics").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.text()
}

#[tokio::test]
async fn a_page_tells_of_the_whole_fleet_for_two_minutes() {
    let database = MemoryDatabase::new();
    let store = Store::open(database.connect(), StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    client.post("/apis/horchestra.io/v1/namespaces", &json!({"metadata": {"name": "team-b"}})).await;
    for node in ["node-2", "node-1", "silent"] {
        make_node(&client, node, json!({})).await;
    }
    let zebra = make_app(&client, "team-a", "zebra", "node-1", json!({})).await;
    let web = make_app(&client, "team-b", "web", "node-1", json!({})).await;
    let alpha = make_app(&client, "team-a", "alpha", "node-2", json!({})).await;
    let gone = make_app(&client, "team-a", "gone", "node-2", json!({})).await;
    make_app(&client, "team-a", "unplaced", "", json!({})).await;
    make_app(&client, "team-a", "unmeasured", "node-1", json!({})).await;
    let gateways = Gateways::of(&stack.store, &["node-1", "node-2", "unknown"]).await;
    let app = |memory| measured(200, memory * MIB);
    // The first node also speaks of what runs on the second.
    gateways
        .keep("node-1", Some(measured(7, 2 << 30)), &[(&web, app(5)), (&zebra, app(4)), (&alpha, app(99))])
        .await;
    gateways.keep("node-2", Some(measured(8, 1 << 30)), &[(&alpha, app(3)), (&gone, app(2))]).await;
    gateways.keep("unknown", Some(measured(1, 1)), &[]).await;
    // Deleted, though its node speaks of it still. Placed ones wait for their node, so somebody gives that up.
    let path = "/apis/horchestra.io/v1/namespaces/team-a/applications/gone";
    assert_eq!(client.delete(path).await.status, 200);
    let finalizers = json!({"finalizers": ["horchestra.io/node-teardown"]});
    assert!(client.post(&format!("{path}/finalize"), &finalizers).await.status < 300);

    for protocol in BOTH {
        let reply = stack.client(Who::Master, protocol).get("/metrics").await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
        assert_page(&reply.text());
    }
    let first = scrape(&client).await;
    assert_eq!(scrape(&client).await, first, "the order is stable");
    assert_other_forms(&client, &first).await;

    // Still fresh, and then not any more; replicas that have read nothing yet.
    database.advance(Duration::from_secs(80));
    let later = Stack::with(Setup { store: Some(stack.store.clone()), ..Setup::default() }).await;
    assert_eq!(samples(&scrape(&later.master()).await), samples(&first));
    database.advance(Duration::from_secs(41));
    let latest = Stack::with(Setup { store: Some(stack.store.clone()), ..Setup::default() }).await;
    let stale = scrape(&latest.master()).await;
    assert!(samples(&stale).is_empty(), "{stale}");
    assert_eq!(stale.lines().count(), 18, "every family is there all the same: {stale}");
}

fn assert_page(page: &str) {
    let labels = |app: &str, namespace: &str, node: &str| {
        format!("namespace=\"{namespace}\",application=\"{app}\",node=\"{node}\"")
    };
    let web = labels("web", "team-b", "node-1");
    for line in [
        "# TYPE horchestra_application_cpu_usec_total counter".to_owned(),
        "# TYPE horchestra_application_cpu_throttled_usec_total counter".to_owned(),
        "# TYPE horchestra_application_memory_bytes gauge".to_owned(),
        "# TYPE horchestra_application_memory_peak_bytes gauge".to_owned(),
        "# TYPE horchestra_application_pids gauge".to_owned(),
        "# TYPE horchestra_application_oom_kills_total counter".to_owned(),
        "# TYPE horchestra_node_cpu_usec_total counter".to_owned(),
        "# TYPE horchestra_node_memory_used_bytes gauge".to_owned(),
        "# TYPE horchestra_node_memory_total_bytes gauge".to_owned(),
        format!("horchestra_application_cpu_usec_total{{{web}}} 4000000"),
        format!("horchestra_application_cpu_throttled_usec_total{{{web}}} 4"),
        format!("horchestra_application_memory_bytes{{{web}}} 5242880"),
        format!("horchestra_application_memory_peak_bytes{{{web}}} 9437184"),
        format!("horchestra_application_pids{{{web}}} 3"),
        format!("horchestra_application_oom_kills_total{{{web}}} 2"),
        "horchestra_node_cpu_usec_total{node=\"node-1\"} 1105000".to_owned(),
        "horchestra_node_memory_used_bytes{node=\"node-1\"} 2147483648".to_owned(),
        "horchestra_node_memory_total_bytes{node=\"node-1\"} 9437184".to_owned(),
    ] {
        assert!(page.lines().any(|found| found == line), "no {line} in {page}");
    }
    assert_eq!(
        of_family(page, "horchestra_application_memory_bytes"),
        [
            format!("horchestra_application_memory_bytes{{{}}} 3145728", labels("alpha", "team-a", "node-2")),
            format!("horchestra_application_memory_bytes{{{}}} 4194304", labels("zebra", "team-a", "node-1")),
            format!("horchestra_application_memory_bytes{{{web}}} 5242880"),
        ],
        "by namespace and name; each by its own node's word"
    );
    assert_eq!(of_family(page, "horchestra_node_memory_used_bytes").len(), 2, "{page}");
    assert_eq!(samples(page).len(), 6 * 3 + 3 * 2, "{page}");
}

async fn assert_other_forms(client: &Client, page: &str) {
    let gzip = [("accept-encoding", "gzip")];
    let squeezed = client.send(Method::GET, "/metrics", &gzip, "").await;
    assert_eq!((squeezed.status, squeezed.header("content-encoding")), (200, "gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&squeezed.body[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, page);
    let head = client.send(Method::HEAD, "/metrics", &[], "").await;
    assert_eq!((head.status, head.body.len(), head.header("content-length")), (200, 0, ""));
    assert!(head.header("content-type").starts_with("text/plain; version=0.0.4"));
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(client.get_as("/metrics", prometheus).await.text(), page);
    assert_eq!(client.get_as("/metrics", "image/png").await.status, 406);
    let posted = client.post("/metrics", &json!({})).await;
    assert_eq!((posted.status, posted.header("allow")), (405, "GET, HEAD"));
}

#[tokio::test]
async fn without_its_source_the_page_is_refused_and_never_empty() {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    let store = Store::open(backend.clone(), StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    let client = stack.master();
    make_node(&client, "node-1", json!({})).await;
    let unavailable = |reply: &Reply| {
        assert_eq!((reply.status, reply.reason().as_str()), (503, "ServiceUnavailable"), "{reply:?}");
        assert!(!reply.header("retry-after").is_empty());
    };
    backend.set_cut_off(true);
    unavailable(&client.get("/metrics").await);
    backend.set_cut_off(false);
    assert_eq!(client.get("/metrics").await.status, 200);

    // Every place is taken by somebody who is still reading.
    let mut places = Vec::new();
    while let Ok(place) = stack.app.fleets().enter() {
        places.push(place);
    }
    let refused = client.get("/metrics").await;
    assert_eq!((refused.status, refused.reason().as_str()), (429, "TooManyRequests"), "{refused:?}");
    places.pop();
    assert_eq!(client.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn the_page_is_a_path_that_is_granted() {
    let stack = Stack::with_namespaces().await;
    let rules = Rules(stack.master());
    rules.cluster_role("scrapes", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])).await;
    rules.bind_everywhere("prometheus", "scrapes").await;
    let ask = async |who, path: &str| stack.client(who, Protocol::Http2).get(path).await.status;
    let (prometheus, bob) = (Who::User("prometheus", "tools"), Who::User("bob", "people"));
    for (who, path, status) in [
        (prometheus, "/metrics", 200),
        (prometheus, "/metrics/", 404),
        (prometheus, "/metrics/debug", 404),
        (prometheus, "/apis/horchestra.io/v1/nodes", 403),
        (bob, "/metrics", 403),
        (Who::Node("node-1"), "/metrics", 403),
        (Who::Controller, "/metrics", 403),
        (Who::Anonymous, "/metrics", 401),
        (Who::Master, "/metrics", 200),
    ] {
        assert_eq!(ask(who, path).await, status, "{who:?} {path}");
    }
}
