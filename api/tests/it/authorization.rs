//! Every route and method, for every sort of caller, against the list of what is open.

use std::collections::BTreeSet;

use bytes::Bytes;
use horchestra_core::doors::Door;
use horchestra_core::registry;
use http::Method;

use crate::client::Protocol;
use crate::stack::{Stack, Who};

/// What callers without any grant can reach. A line that is no longer true has to be taken out, and nothing
/// may be reachable that is not in it.
const OPEN: &str = include_str!("open.txt");

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
        "/api/v1/namespaces",
        "/api/v1/namespaces?watch=1",
        "/api/v1/namespaces/team-a",
        // Not routed, whoever asks.
        "/",
        "/metrics",
        "/logs",
        "/debug/pprof/",
        "/api/v2",
        "/api/v1/secrets",
        "/apis/horchestra.io/v1/nodes/x/sessionlog",
        "/apis/horchestra.io/v1/nodes/x/log",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut groups = BTreeSet::new();
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
    routes.extend(groups);
    routes
}

#[tokio::test]
async fn nothing_is_open_that_is_not_on_the_list() {
    let stack = Stack::start().await;
    let mut open = BTreeSet::new();
    for (name, who) in [
        ("anonymous", Who::Anonymous),
        ("nobody", Who::Nobody),
        ("node", Who::Node("node-1")),
        ("master", Who::Master),
    ] {
        let client = stack.client(who, Protocol::Http2).keep().await;
        for route in routes() {
            for method in METHODS {
                if method == Method::GET && route.contains("watch=") {
                    // Streams that open are closed by the time-out of the request.
                    let path = format!("{route}&timeoutSeconds=1");
                    let request = client.request(method, &path, &[], Bytes::new());
                    let status = client.open(request).await.unwrap().status().as_u16();
                    note(&mut open, name, &Method::GET, &route, status);
                    continue;
                }
                let reply = client.send(method.clone(), &route, &[], Bytes::new()).await;
                assert!(reply.status < 500, "{name} {method} {route}: {reply:?}");
                note(&mut open, name, &method, &route, reply.status);
            }
        }
    }
    let listed: BTreeSet<String> =
        OPEN.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect();
    let new: Vec<_> = open.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&open).collect();
    assert!(new.is_empty(), "open, but not on the list: {new:#?}");
    assert!(stale.is_empty(), "on the list, but closed: take these lines out: {stale:#?}");
}

/// Judges one answer: the operator is never refused, strangers always are; the others' openings are noted.
fn note(open: &mut BTreeSet<String>, name: &str, method: &Method, route: &str, status: u16) {
    let refused = matches!(status, 401 | 403);
    match name {
        "master" => assert!(!refused, "{method} {route} is refused to the operator"),
        _ if refused => {}
        // What is not routed, or not for this method, is nothing that could be open.
        _ if status == 405 => {}
        _ if status == 404 && !known(route) => {}
        _ => {
            open.insert(format!("{name} {method} {route}"));
        }
    }
}

/// Whether the path is routed at all; on unrouted ones 404 is the answer to everybody.
fn known(route: &str) -> bool {
    let unrouted =
        ["/metrics", "/logs", "/debug/", "/api/v2", "/api/v1/secrets", "sessionlog", "nodes/x/log"];
    route != "/" && !unrouted.iter().any(|part| route.contains(part))
}
