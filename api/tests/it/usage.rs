//! What was measured: `applications/<name>/metrics`, `metrics.k8s.io`, and `kubectl top`.

use std::collections::HashMap;
use std::time::Duration;

use horchestra_core::usage::row::{Aged, AppUsage, NodeUsage};
use horchestra_core::usage::{Before, Measured, Sample};
use horchestra_store::{MemoryDatabase, Samples, SessionClaim, SessionGrant, Store, StoreOptions};
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Client, Protocol};
use crate::crud::app;
use crate::kubectl::{Kubectl, with_every_kubectl};
use crate::rbac::{Rules, rule};
use crate::stack::{Setup, Stack, Who};

const CORE: &str = "/apis/horchestra.io/v1";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const MIB: i64 = 1 << 20;
/// Some moment of a node's clock, in nanoseconds.
const MOMENT: i64 = 1_700_000_000_000_000_000;

/// What was counted twice within fifteen seconds, with this rate.
pub fn measured(milli_cpu: i64, memory_bytes: i64) -> Measured {
    let now = Sample {
        cpu_usec: 1_000_000 + milli_cpu * 15_000,
        cpu_throttled_usec: 4,
        memory_bytes,
        memory_peak_bytes: 9 * MIB,
        pids: 3,
        oom_kills: 2,
        at: MOMENT,
    };
    Measured { now, before: Some(Before { cpu_usec: 1_000_000, at: MOMENT - 15_000_000_000 }) }
}

/// What was counted once.
fn counted() -> Measured {
    Measured { before: None, ..measured(0, MIB) }
}

fn aged(measured: Measured) -> Aged {
    Aged { measured, age: Duration::ZERO }
}

/// Stands in for gateways: keeps what they would keep.
pub struct Gateways<'a> {
    store: &'a Store,
    sessions: HashMap<String, SessionGrant>,
}

impl<'a> Gateways<'a> {
    pub async fn of(store: &'a Store, nodes: &[&str]) -> Gateways<'a> {
        let gateway = Uuid::new_v4();
        store.renew_gateway(gateway, "127.0.0.1:1", Duration::from_secs(600)).await.unwrap();
        let mut sessions = HashMap::new();
        for node in nodes {
            let claim = SessionClaim {
                node: (*node).to_owned(),
                gateway,
                peer: "127.0.0.1:1".into(),
                certificate: "00".repeat(32),
            };
            let grant = store.claim_session(claim, Duration::ZERO).await.unwrap().expect("free");
            sessions.insert((*node).to_owned(), grant);
        }
        Gateways { store, sessions }
    }

    pub async fn keep(&self, node: &str, usage: Option<Measured>, apps: &[(&Value, Measured)]) {
        let text = |app: &Value, member: &str| app["metadata"][member].as_str().unwrap().to_owned();
        let apps = apps.iter().map(|(app, usage)| AppUsage {
            uid: text(app, "uid").parse().unwrap(),
            namespace: text(app, "namespace"),
            name: text(app, "name"),
            usage: aged(*usage),
        });
        let row = NodeUsage { node: usage.map(aged), apps: apps.collect() };
        let grant = self.sessions[node].clone();
        let samples = Samples { node: node.to_owned(), grant, body: row.encode().into() };
        self.store.record_samples(&[samples]).await.unwrap();
    }
}

/// A Node that is known to have two cores and eight GiB.
pub async fn make_node(client: &Client, name: &str, labels: Value) {
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
    let made = client.post(&format!("{CORE}/nodes"), &node).await;
    assert_eq!(made.status, 201, "{made:?}");
    let status = json!({"status": {"capacity": {"cpu": "2", "memory": "8Gi"}}});
    let reply = client.merge(&format!("{CORE}/nodes/{name}/status"), &status).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

pub async fn make_app(client: &Client, namespace: &str, name: &str, node: &str, labels: Value) -> Value {
    let mut object = app(name);
    object["metadata"]["labels"] = labels;
    if !node.is_empty() {
        object["spec"]["placement"] = json!({"nodeName": node});
    }
    let made = client.post(&format!("{CORE}/namespaces/{namespace}/applications"), &object).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            let metadata = &item["metadata"];
            let namespace = metadata["namespace"].as_str().map_or(String::new(), |it| format!("{it}/"));
            format!("{namespace}{}", metadata["name"].as_str().unwrap())
        })
        .collect()
}

#[tokio::test]
async fn what_was_measured_of_an_application_is_shown_for_two_minutes() {
    let database = MemoryDatabase::new();
    let store = Store::open(database.connect(), StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    for node in ["node-1", "node-2"] {
        make_node(&client, node, json!({})).await;
    }
    let web = make_app(&client, "team-a", "web", "node-1", json!({})).await;
    make_app(&client, "team-a", "unmeasured", "node-1", json!({})).await;
    let elsewhere = make_app(&client, "team-a", "elsewhere", "node-2", json!({})).await;
    make_app(&client, "team-a", "unplaced", "", json!({})).await;
    let gateways = Gateways::of(&stack.store, &["node-1", "node-2"]).await;
    let once = counted();
    // The first node also speaks of what runs on the second.
    gateways.keep("node-1", None, &[(&web, measured(200, 5 * MIB)), (&elsewhere, once)]).await;

    let of = |name: &str| format!("{CORE}/namespaces/team-a/applications/{name}/metrics");
    let shown = client.get(&of("web")).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    let expected = json!({
        "kind": "ApplicationMetrics", "apiVersion": "horchestra.io/v1",
        "metadata": {"name": "web", "namespace": "team-a"},
        "node": "node-1", "timestamp": "2023-11-14T22:13:20Z",
        "cpuMicroseconds": 4_000_000, "cpuThrottledMicroseconds": 4, "memoryBytes": 5_242_880,
        "memoryPeakBytes": 9_437_184, "pids": 3, "oomKills": 2, "cpu": "200m", "window": "15s",
    });
    assert_eq!(shown.json(), expected);
    let yaml = client.get_as(&of("web"), "application/yaml").await;
    assert!(yaml.text().contains("memoryBytes: 5242880"), "{}", yaml.text());
    for name in ["unmeasured", "elsewhere", "unplaced", "ghost"] {
        let missing = client.get(&of(name)).await;
        assert_eq!((missing.status, missing.reason().as_str()), (404, "NotFound"), "{name}");
        assert_eq!(missing.json()["details"]["kind"], "applications/metrics", "{name}");
    }

    // Older than what this replica may have read, but still fresh.
    database.advance(Duration::from_secs(80));
    let later = Stack::with(Setup { store: Some(stack.store.clone()), ..Setup::default() }).await;
    assert_eq!(later.master().get(&of("web")).await.status, 200);
    database.advance(Duration::from_secs(41));
    let latest = Stack::with(Setup { store: Some(stack.store.clone()), ..Setup::default() }).await;
    let client = latest.master();
    assert_eq!(client.get(&of("web")).await.status, 404);
    assert_eq!(client.get(&format!("{METRICS}/namespaces/team-a/pods/web")).await.status, 404);
    assert_eq!(client.get(&format!("{METRICS}/pods")).await.json()["items"], json!([]));
}

#[tokio::test]
async fn usage_is_listed_in_order_and_selected() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    make_node(&client, "n2", json!({"zone": "east"})).await;
    make_node(&client, "n1", json!({"zone": "west"})).await;
    make_node(&client, "silent", json!({})).await;
    let gateways = Gateways::of(&stack.store, &["n1", "n2", "gone"]).await;
    let front = json!({"tier": "front"});
    let web = make_app(&client, "team-a", "web", "n1", front.clone()).await;
    let zebra = make_app(&client, "default", "zebra", "n1", json!({})).await;
    let alpha = make_app(&client, "default", "alpha", "n2", front).await;
    let single = make_app(&client, "default", "single", "n2", json!({})).await;
    gateways
        .keep(
            "n1",
            Some(measured(500, 2 << 30)),
            &[(&zebra, measured(10, MIB)), (&web, measured(30, 3 * MIB))],
        )
        .await;
    gateways
        .keep("n2", Some(measured(250, 1 << 30)), &[(&single, counted()), (&alpha, measured(20, 2 * MIB))])
        .await;
    gateways.keep("gone", Some(measured(1, 1)), &[]).await;

    for (path, expected) in [
        ("/nodes", vec!["n1", "n2"]),
        ("/nodes?labelSelector=zone%3Deast", vec!["n2"]),
        ("/nodes?labelSelector=zone%3Dnorth", vec![]),
        ("/nodes?fieldSelector=metadata.name%3Dn1", vec!["n1"]),
        ("/pods", vec!["default/alpha", "default/zebra", "team-a/web"]),
        ("/pods?labelSelector=tier%3Dfront", vec!["default/alpha", "team-a/web"]),
        ("/pods?fieldSelector=spec.nodeName%3Dn1", vec!["default/zebra", "team-a/web"]),
        ("/namespaces/default/pods", vec!["default/alpha", "default/zebra"]),
        ("/namespaces/team-a/pods", vec!["team-a/web"]),
        ("/namespaces/nobody/pods", vec![]),
    ] {
        for _ in 0..2 {
            let reply = client.get(&format!("{METRICS}{path}")).await;
            assert_eq!(reply.status, 200, "{path}: {reply:?}");
            assert_eq!(names(&reply.json()), expected, "{path}");
        }
    }
    for (path, code) in [
        ("/nodes?labelSelector=a%3D%3D%3Db", 400),
        ("/pods?fieldSelector=spec.image%3Dx", 400),
        ("/pods?watch=1", 405),
        ("/nodes/n1?watch=true", 405),
        ("/nodes/silent", 404),
        ("/nodes/ghost", 404),
        ("/namespaces/default/pods/single", 404),
        ("/namespaces/default/pods/web", 404),
        ("/namespaces/default/pods/ghost", 404),
    ] {
        let reply = client.get(&format!("{METRICS}{path}")).await;
        assert_eq!(reply.status, code, "{path}: {reply:?}");
    }

    let list = client.get(&format!("{METRICS}/namespaces/team-a/pods")).await.json();
    assert_eq!((&list["kind"], &list["metadata"]), (&json!("PodMetricsList"), &json!({})));
    let pod = client.get(&format!("{METRICS}/namespaces/team-a/pods/web")).await.json();
    assert_eq!(pod, list["items"][0]);
    assert_eq!(pod["containers"], json!([{"name": "web", "usage": {"cpu": "30m", "memory": "3Mi"}}]));
    assert_eq!((&pod["window"], &pod["timestamp"]), (&json!("15s"), &json!("2023-11-14T22:13:20Z")));
    assert_eq!(pod["metadata"]["labels"], json!({"tier": "front"}));
    let node = client.get(&format!("{METRICS}/nodes/n1")).await.json();
    assert_eq!(
        (&node["kind"], &node["usage"]),
        (&json!("NodeMetrics"), &json!({"cpu": "500m", "memory": "2Gi"}))
    );

    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = client.get_as(&format!("{METRICS}/nodes"), table).await.json();
    assert_eq!(table["rows"][0]["cells"], json!(["n1", "500m", "2Gi", "15s"]), "{table}");
    let protobuf = "application/vnd.kubernetes.protobuf,application/json";
    assert_eq!(client.get_as(&format!("{METRICS}/nodes"), protobuf).await.json()["kind"], "NodeMetricsList");
}

#[tokio::test]
async fn nothing_is_written_through_what_is_measured() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    make_node(&client, "n1", json!({})).await;
    let before = client.get(&format!("{CORE}/nodes/n1")).await.json();
    let body = json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": true}}).to_string();
    let patch = [("content-type", "application/merge-patch+json")];
    for path in ["/nodes", "/nodes/n1", "/pods", "/namespaces/team-a/pods", "/namespaces/team-a/pods/web"] {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let reply = client.send(method.clone(), &format!("{METRICS}{path}"), &patch, body.clone()).await;
            assert_eq!(reply.status, 405, "{method} {path}: {reply:?}");
            assert_eq!(reply.header("allow"), "GET, HEAD", "{method} {path}");
        }
    }
    for path in [
        "/secrets",
        "/applications",
        "/namespaces",
        "/namespaces/team-a",
        "/namespaces/team-a/secrets",
        "/namespaces/team-a/applications/web",
        "/nodes/n1/status",
        "/nodes/n1/cordon",
    ] {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let reply = client.send(method.clone(), &format!("{METRICS}{path}"), &patch, body.clone()).await;
            assert_eq!(reply.status, 404, "{method} {path}: {reply:?}");
        }
    }
    assert_eq!(client.get(&format!("{CORE}/nodes/n1")).await.json(), before);
}

#[tokio::test]
async fn each_sort_of_usage_is_a_right_of_its_own() {
    let stack = Stack::with_namespaces().await;
    let rules = Rules(stack.master());
    let client = stack.master();
    for node in ["node-1", "node-2"] {
        make_node(&client, node, json!({})).await;
    }
    let web = make_app(&client, "team-a", "web", "node-1", json!({})).await;
    let gateways = Gateways::of(&stack.store, &["node-1"]).await;
    gateways.keep("node-1", Some(measured(1, 1)), &[(&web, measured(1, 1))]).await;
    let app = format!("{CORE}/namespaces/team-a/applications/web");
    let app_metrics = format!("{app}/metrics");
    let pods = format!("{METRICS}/namespaces/team-a/pods");
    let pod = format!("{pods}/web");
    let nodes = format!("{METRICS}/nodes");
    let node = format!("{nodes}/node-1");
    let everywhere = format!("{METRICS}/pods");
    let paths = [&app, &app_metrics, &pods, &pod, &nodes, &node, &everywhere];

    let grants: [(&'static str, Value, &[&String]); 6] = [
        ("reads-apps", rule("horchestra.io", &["applications"], &["get", "list"]), &[&app]),
        ("reads-app-metrics", rule("horchestra.io", &["applications/metrics"], &["get"]), &[&app_metrics]),
        ("lists-pods", rule("metrics.k8s.io", &["pods"], &["list"]), &[&pods]),
        ("reads-pods", rule("metrics.k8s.io", &["pods"], &["get"]), &[&pod]),
        ("reads-all", rule("metrics.k8s.io", &["*"], &["*"]), &[&pods, &pod]),
        ("reads-ours", rule("horchestra.io", &["*"], &["get", "list"]), &[&app, &app_metrics]),
    ];
    for (user, role, allowed) in grants {
        rules.role("team-a", user, json!([role])).await;
        rules.bind("team-a", user, "Role", user).await;
        let caller = stack.client(Who::User(user, "people"), Protocol::Http2);
        for path in paths {
            let expected = if allowed.contains(&path) { 200 } else { 403 };
            assert_eq!(caller.get(path).await.status, expected, "{user} {path}");
        }
    }
    rules.cluster_role("usage", json!([rule("metrics.k8s.io", &["nodes", "pods"], &["get", "list"])])).await;
    rules.bind_everywhere("viewer", "usage").await;
    let viewer = stack.client(Who::User("viewer", "people"), Protocol::Http2);
    for path in paths {
        let expected = if path.starts_with(METRICS) { 200 } else { 403 };
        assert_eq!(viewer.get(path).await.status, expected, "{path}");
    }
    // A node is told of what is on it, whatever was granted to it.
    for name in ["node-1", "node-2"] {
        rules.bind_everywhere(name, "usage").await;
    }
    for (name, expected) in [("node-1", vec!["team-a/web"]), ("node-2", vec![])] {
        let caller = stack.client(Who::Node(name), Protocol::Http2);
        assert_eq!(names(&caller.get(&everywhere).await.json()), expected, "{name}");
        assert_eq!(caller.get(&pod).await.status, if expected.is_empty() { 404 } else { 200 }, "{name}");
    }
}

#[tokio::test]
async fn without_a_database_there_is_a_clear_answer() {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    let store = Store::open(backend.clone(), StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    make_node(&client, "n1", json!({})).await;
    make_app(&client, "team-a", "web", "n1", json!({})).await;
    backend.set_cut_off(true);
    for path in [
        format!("{METRICS}/nodes"),
        format!("{METRICS}/pods"),
        format!("{METRICS}/nodes/n1?resourceVersion=0"),
        format!("{CORE}/namespaces/team-a/applications/web/metrics?resourceVersion=0"),
    ] {
        let reply = client.get(&path).await;
        assert_eq!((reply.status, reply.header("retry-after").is_empty()), (503, false), "{path}: {reply:?}");
    }
    backend.set_cut_off(false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_shows_who_uses_what() {
    with_every_kubectl(top).await;
}

/// The lines of a table behind its head, as words.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect()).collect()
}

async fn top(stack: &Stack, kubectl: &Kubectl) {
    let program = kubectl.program.display().to_string();
    let client = stack.master();
    let not_yet = kubectl.refused(&["top", "node"]).await;
    assert!(not_yet.contains("metrics not available yet"), "{program}: {not_yet}");

    make_node(&client, "n1", json!({"zone": "west"})).await;
    make_node(&client, "n2", json!({"zone": "east"})).await;
    let web = make_app(&client, "default", "web", "n1", json!({"tier": "front"})).await;
    let not_yet = kubectl.refused(&["top", "pod"]).await;
    assert!(not_yet.contains("metrics not available yet"), "{program}: {not_yet}");
    let back = make_app(&client, "default", "back", "n2", json!({})).await;
    let other = make_app(&client, "team-a", "other", "n2", json!({})).await;
    let gateways = Gateways::of(&stack.store, &["n1", "n2"]).await;
    gateways.keep("n1", Some(measured(500, 4 << 30)), &[(&web, measured(30, 30 * MIB))]).await;
    let on_second = [(&back, measured(20, 70 * MIB)), (&other, measured(10, 10 * MIB))];
    gateways.keep("n2", Some(measured(1000, 2 << 30)), &on_second).await;
    // The rows that were read before are good for a moment.
    let shown = async || !kubectl.run(&["top", "node"]).await.contains("unknown");
    horchestra_testkit::eventually(crate::client::DEADLINE, shown).await;

    let first = ["n1", "500m", "25%", "4096Mi", "50%"];
    let second = ["n2", "1000m", "50%", "2048Mi", "25%"];
    for (args, expected) in [
        (&["top", "node"][..], vec![&first[..], &second[..]]),
        (&["top", "nodes", "n1"], vec![&first[..]]),
        (&["top", "node", "-l", "zone=east"], vec![&second[..]]),
        (&["top", "node", "--sort-by=cpu"], vec![&second[..], &first[..]]),
        (&["top", "node", "--sort-by=memory"], vec![&first[..], &second[..]]),
        (&["top", "pod"], vec![&["back", "20m", "70Mi"][..], &["web", "30m", "30Mi"][..]]),
        (&["top", "pods", "web"], vec![&["web", "30m", "30Mi"][..]]),
        (&["top", "pod", "-l", "tier=front"], vec![&["web", "30m", "30Mi"][..]]),
        (&["top", "pod", "-n", "team-a"], vec![&["other", "10m", "10Mi"][..]]),
        (&["top", "pod", "--sort-by=cpu"], vec![&["web", "30m", "30Mi"][..], &["back", "20m", "70Mi"][..]]),
        (
            &["top", "pod", "--sort-by=memory"],
            vec![&["back", "20m", "70Mi"][..], &["web", "30m", "30Mi"][..]],
        ),
        (
            &["top", "pod", "-A", "--sort-by=memory"],
            vec![
                &["default", "back", "20m", "70Mi"][..],
                &["default", "web", "30m", "30Mi"][..],
                &["team-a", "other", "10m", "10Mi"][..],
            ],
        ),
        (
            &["top", "pod", "--containers"],
            vec![&["back", "back", "20m", "70Mi"][..], &["web", "web", "30m", "30Mi"][..]],
        ),
    ] {
        let shown = kubectl.run(args).await;
        assert_eq!(rows(&shown), expected, "{program} {args:?}:\n{shown}");
    }
    let missing = kubectl.refused(&["top", "pod", "ghost"]).await;
    assert!(missing.contains("not found"), "{program}: {missing}");
    // Names without a group mean what they always did.
    assert!(kubectl.run(&["get", "nodes"]).await.contains("STATUS"), "{program}");
    assert!(kubectl.run(&["get", "pods"]).await.contains("READY"), "{program}");
    assert!(kubectl.run(&["get", "nodes.metrics.k8s.io"]).await.contains("WINDOW"), "{program}");
}
