//! Every route and method, for every sort of caller, against a table of who is let through.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::tokens::Issuer;
use horchestra_core::doors::Door;
use horchestra_core::gates::{Gate, Gates};
use horchestra_core::registry;
use horchestra_core::reviews::REVIEWS;
use horchestra_service::ServiceConfig;
use http::Method;
use http_body_util::BodyExt;
use serde_json::json;

use crate::client::{Client, Protocol};
use crate::rbac::{Rules, rule};
use crate::stack::{Setup, Stack, Who};

/// Who is let through where. A route without its line, and a line that is no longer true, fail; to write the
/// table anew from what is the case, run the test with `WRITE_EXPECTATIONS=1`, and read the difference.
const TABLE: &str = include_str!("authorization.txt");
const TABLE_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/authorization.txt");

/// The columns of the table. A workload comes without a certificate, and with its token.
const CALLERS: [(&str, Who); 9] = [
    ("anonymous", Who::Anonymous),
    ("nobody", Who::Nobody),
    ("reader", Who::User("reader", "people")),
    ("editor", Who::User("editor", "people")),
    ("node", Who::Node("node-1")),
    ("other-node", Who::Node("node-2")),
    (WORKLOAD, Who::Anonymous),
    ("controller", Who::Controller),
    ("master", Who::Master),
];

const WORKLOAD: &str = "workload";

const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

fn routes() -> Vec<String> {
    let mut routes: Vec<String> = [
        "/livez",
        "/readyz",
        "/readyz/store-loaded",
        "/healthz",
        "/version",
        "/api",
        "/api/v1",
        "/apis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/api/v1/pods",
        "/api/v1/pods?watch=1",
        "/api/v1/pods/x",
        "/api/v1/pods/x/log",
        "/api/v1/namespaces/team-a/pods",
        "/api/v1/namespaces/team-a/pods?watch=1",
        "/api/v1/namespaces/team-a/pods/x",
        "/api/v1/namespaces/team-a/pods/x/log",
        "/api/v1/nodes",
        "/api/v1/nodes?watch=1",
        "/api/v1/nodes/x",
        // A node's own.
        "/api/v1/nodes/node-1",
        "/apis/horchestra.io/v1/nodes/node-1",
        "/apis/horchestra.io/v1/nodes/node-1/status",
        "/api/v1/namespaces",
        "/api/v1/namespaces?watch=1",
        "/api/v1/namespaces/team-a",
        "/metrics",
        // Not routed, whoever asks.
        "/",
        "/logs",
        "/debug/pprof/",
        "/api/v2",
        "/api/v1/secrets",
        "/apis/horchestra.io/v1/nodes/x/sessionlog",
        "/apis/metrics.k8s.io/v1beta1/secrets",
        "/apis/metrics.k8s.io/v1beta1/namespaces/team-a",
        // What was measured, and what agents write.
        "/apis/horchestra.io/v1/nodes/x/log",
        "/apis/horchestra.io/v1/nodes/node-1/log",
        "/apis/horchestra.io/v1/namespaces/team-a/applications/x/metrics",
        "/apis/metrics.k8s.io",
        "/apis/metrics.k8s.io/v1beta1",
        "/apis/metrics.k8s.io/v1beta1/nodes",
        "/apis/metrics.k8s.io/v1beta1/nodes/x",
        "/apis/metrics.k8s.io/v1beta1/nodes/node-1",
        "/apis/metrics.k8s.io/v1beta1/pods",
        "/apis/metrics.k8s.io/v1beta1/namespaces/team-a/pods",
        "/apis/metrics.k8s.io/v1beta1/namespaces/team-a/pods/x",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut groups = std::collections::BTreeSet::new();
    for spec in registry::described() {
        let base = if spec.group().is_empty() {
            format!("/api/{}", spec.version())
        } else {
            groups.insert(format!("/apis/{}", spec.group()));
            format!("/apis/{}/{}", spec.group(), spec.version())
        };
        groups.insert(format!("/openapi/v3{base}"));
        groups.insert(base.clone());
        let mut collections = vec![format!("{base}/{}", spec.plural())];
        if spec.namespaced() {
            collections.push(format!("{base}/namespaces/team-a/{}", spec.plural()));
        }
        let last = collections.last().cloned().unwrap_or_default();
        for collection in collections {
            routes.push(format!("{collection}?watch=true"));
            routes.push(collection);
        }
        routes.push(format!("{last}/x"));
        routes.push(format!("{last}/x?watch=true"));
        if spec.has_status() {
            routes.push(format!("{last}/x/status"));
        }
        routes.extend(Door::of(spec.kind).map(|door| format!("{last}/x/{}", door.name())));
    }
    for spec in &REVIEWS {
        let place = if spec.namespaced { "/namespaces/team-a" } else { "" };
        let base = format!("/apis/{}/{}", spec.group, spec.version);
        routes.push(format!("{base}{place}/{}", spec.plural));
        groups.insert(format!("/apis/{}", spec.group));
        groups.insert(format!("/openapi/v3{base}"));
        groups.insert(base);
    }
    routes.extend(groups);
    routes
}

/// What somebody met: 401, 403, `ok` for whatever comes after authorization (rules of admission may refuse with
/// 403 as well, in other words), `405`, or `404` where nothing is routed.
fn outcome(route: &str, (status, text): (u16, String)) -> &'static str {
    match status {
        401 => "401",
        403 if text.is_empty() || text.contains("nothing grants it") || text.contains("cluster-wide") => {
            "403"
        }
        405 => "405",
        404 if !is_routed(route) => "404",
        _ => "ok",
    }
}

/// Status and body of an answer.
async fn ask(client: &Client, method: &Method, route: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mark = if route.contains('?') { '&' } else { '?' };
    if *method == Method::GET && route.contains("watch=") {
        // Streams that open are closed by the time-out of the request.
        let path = format!("{route}{mark}timeoutSeconds=1");
        let request = client.request(Method::GET, &path, headers, Bytes::new());
        let answer = client.open(request).await.unwrap();
        let status = answer.status().as_u16();
        let text =
            if status == 200 { Bytes::new() } else { answer.into_body().collect().await.unwrap().to_bytes() };
        return (status, String::from_utf8_lossy(&text).into_owned());
    }
    // Nothing that is let through may change what the next request meets.
    let dry = if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) { "" } else { "dryRun=All" };
    let reply = client.send(method.clone(), &format!("{route}{mark}{dry}"), headers, Bytes::new()).await;
    (reply.status, reply.text())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_let_through_exactly_where_the_table_says() {
    let issuer = Arc::new(Issuer::ephemeral("horchestra").unwrap());
    // Everything that can be served is.
    let gates = Gates::default().with(Gate::NodeLogs, true);
    let service = ServiceConfig { gates, ..ServiceConfig::default() };
    let stack = Stack::with(Setup { issuer: Some(Arc::clone(&issuer)), service, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let rules = Rules(stack.master());
    let uid = "8ed9e6f4-3e3a-4a0f-9a8b-1f2e3d4c5b6a";
    let token = issuer.mint("team-a", "edge", uid, "horchestra", jiff::Timestamp::now()).unwrap().token;
    let token = format!("Bearer {token}");
    let reading = ["get", "list", "watch"];
    let writing = ["create", "update", "patch", "delete", "deletecollection"];
    rules.role("team-a", "reader", json!([rule("*", &["*"], &reading)])).await;
    rules.role("team-a", "editor", json!([rule("*", &["*"], &[&reading[..], &writing].concat())])).await;
    for who in ["reader", "editor"] {
        rules.bind("team-a", who, "Role", who).await;
    }
    let mut clients = Vec::new();
    for (_, who) in CALLERS {
        clients.push(stack.client(who, Protocol::Http2).keep().await);
    }
    let mut table = String::new();
    for route in routes() {
        // Methods that meet the same are one line.
        let mut met: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for method in &METHODS {
            let mut line = Vec::with_capacity(CALLERS.len());
            for ((name, _), client) in CALLERS.iter().zip(&clients) {
                let token = [("authorization", token.as_str())];
                let headers = if *name == WORKLOAD { &token[..] } else { &[] };
                let met = ask(client, method, &route, headers).await;
                assert!(met.0 < 500 || met.0 == 503, "{name} {method} {route}: {met:?}");
                line.push(outcome(&route, met));
            }
            let same = |word: &str| line[1..].iter().all(|it| *it == word) && line[0] == "401";
            if same("405") || same("404") {
                // Nothing is served there, and strangers are not told.
                continue;
            }
            assert_eq!(line[CALLERS.len() - 1], "ok", "{method} {route} is refused to the operator");
            assert!(!line.contains(&"405") && !line.contains(&"404"), "{method} {route}: {line:?}");
            met.entry(line.join(" ")).or_default().push(method.as_str());
        }
        for (line, methods) in met {
            writeln!(table, "{route} {} {line}", methods.join(",")).unwrap();
        }
    }
    if std::env::var_os("WRITE_EXPECTATIONS").is_some() {
        let head: String = TABLE
            .lines()
            .take_while(|line| line.starts_with('#'))
            .fold(String::new(), |text, line| text + line + "\n");
        std::fs::write(TABLE_FILE, format!("{head}\n{table}")).unwrap();
        return;
    }
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let (found, listed) = (lines(&table), lines(TABLE));
    let new: Vec<_> = found.iter().filter(|line| !listed.contains(line)).collect();
    let stale: Vec<_> = listed.iter().filter(|line| !found.contains(line)).collect();
    assert!(
        new.is_empty() && stale.is_empty(),
        "the case, but not in the table: {new:#?}\nin the table, but not the case: {stale:#?}"
    );
}

/// Whether the path is routed at all; on unrouted ones 404 is the answer to everybody.
fn is_routed(route: &str) -> bool {
    let unrouted = [
        "/",
        "/logs",
        "/debug/pprof/",
        "/api/v2",
        "/api/v1/secrets",
        "/apis/horchestra.io/v1/nodes/x/sessionlog",
        "/apis/metrics.k8s.io/v1beta1/secrets",
        "/apis/metrics.k8s.io/v1beta1/namespaces/team-a",
    ];
    !unrouted.contains(&route)
}
