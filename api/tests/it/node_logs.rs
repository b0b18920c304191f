//! `nodes/<name>/log`, behind its gate, and what all readers of logs share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use horchestra_auth::pki::Process;
use horchestra_core::gates::{Gate, Gates};
use horchestra_proto::relay::v1::log_request::Source;
use horchestra_service::ServiceConfig;
use http::Method;
use serde_json::json;

use crate::client::{Client, DEADLINE, Next, Protocol};
use crate::crud::app;
use crate::logs::{Gateway, LOG, claim, data, placed, placed_with};
use crate::rbac::{Rules, rule};
use crate::stack::{Setup, Stack, Who};

const NODE_LOG: &str = "/apis/horchestra.io/v1/nodes/n1/log";
const GHOST_LOG: &str = "/apis/horchestra.io/v1/nodes/ghost/log";

async fn with_gate(on: bool) -> (Stack, Client) {
    let gates = Gates::default().with(Gate::NodeLogs, on);
    let service = ServiceConfig { gates, ..ServiceConfig::default() };
    let stack = Stack::with(Setup { relay: true, service, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.client(Who::Master, Protocol::Http1);
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(client.post("/apis/horchestra.io/v1/nodes", &node).await.status, 201);
    (stack, client)
}

#[tokio::test]
async fn without_the_gate_there_is_nothing_whoever_asks() {
    let (stack, _) = with_gate(false).await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    for who in [Who::Anonymous, Who::Nobody, Who::Node("n1"), Who::Master] {
        let client = stack.client(who, Protocol::Http2);
        let ordinary = client.get("/apis/horchestra.io/v1/nodes/n1/nosuch").await;
        for path in [NODE_LOG, GHOST_LOG] {
            let reply = client.get(path).await;
            assert_eq!((reply.status, &reply.body), (ordinary.status, &ordinary.body), "{who:?} {path}");
            assert_eq!(reply.header("content-type"), ordinary.header("content-type"), "{who:?} {path}");
        }
        let expected = if who == Who::Anonymous { 401 } else { 404 };
        assert_eq!(ordinary.status, expected, "{who:?}");
    }
    assert_eq!(gateway.asked().len(), 0);
}

#[tokio::test]
async fn with_the_gate_the_agents_own_log_is_read() {
    let (stack, client) = with_gate(true).await;
    assert_eq!(client.get(NODE_LOG).await.status, 503, "the node has no session");
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("agent one\n"), data("agent two\n")]));
    let reply = client.get(&format!("{NODE_LOG}?tailLines=7")).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "agent one\nagent two\n"));
    assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    let asked = gateway.asked();
    let [asked] = asked.as_slice() else { panic!("one log is one stream: {asked:?}") };
    assert_eq!(asked.source, Some(Source::NodeUnit(true)), "never addressed as a workload");
    assert_eq!((asked.node.as_str(), asked.tail_lines, asked.follow), ("n1", 7, false));

    let mut followed = client.lines(&format!("{NODE_LOG}?follow=true"), &[]).await;
    assert_eq!(followed.next().await, Next::Line("agent one".into()));
    drop(followed);
    horchestra_testkit::eventually(DEADLINE, async || gateway.open.load(Ordering::SeqCst) == 0).await;

    let before = gateway.asked().len();
    for (path, code) in [
        (GHOST_LOG.to_owned(), 404),
        (format!("{NODE_LOG}?container=n1"), 400),
        (format!("{NODE_LOG}?tailLines=-1"), 400),
        (format!("{NODE_LOG}?previous=true"), 400),
    ] {
        assert_eq!(client.get(&path).await.status, code, "{path}");
    }
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(client.send(method.clone(), NODE_LOG, &[], "").await.status, 405, "{method}");
    }
    let empty = client.get(&format!("{NODE_LOG}?tailLines=0")).await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    assert_eq!(gateway.asked().len(), before, "none of these reached the node");

    let rules = Rules(stack.master());
    for (user, role, expected) in [
        ("reads-nodes", rule("horchestra.io", &["nodes"], &["get", "list"]), 403),
        ("reads-logs", rule("horchestra.io", &["nodes/log"], &["get"]), 200),
        ("reads-all", rule("horchestra.io", &["*"], &["get"]), 200),
    ] {
        rules.cluster_role(user, json!([role])).await;
        rules.bind_everywhere(user, user).await;
        let caller = stack.client(Who::User(user, "people"), Protocol::Http2);
        assert_eq!(caller.get(NODE_LOG).await.status, expected, "{user}");
    }
    assert_eq!(stack.client(Who::Node("n1"), Protocol::Http2).get(NODE_LOG).await.status, 403);
}

#[tokio::test]
async fn a_caller_has_one_budget_for_logs_of_all_sorts() {
    let (stack, client) = with_gate(true).await;
    let mut web = app("web");
    web["spec"]["placement"] = json!({"nodeName": "n1"});
    let apps = "/apis/horchestra.io/v1/namespaces/default/applications";
    assert_eq!(client.post(apps, &web).await.status, 201);
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("x\n")]));
    let mut open = Vec::new();
    for number in 0..8 {
        let path = if number % 2 == 0 { NODE_LOG } else { LOG };
        open.push(client.lines(&format!("{path}?follow=true"), &[]).await);
    }
    for path in [NODE_LOG, LOG] {
        assert_eq!(client.get(path).await.status, 429, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_fill_the_budget_and_slow_nobody_else() {
    // None is to be cut off before all are there.
    let patience = Duration::from_secs(600);
    let (stack, client) = placed_with(Setup { patience, ..Setup::default() }).await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    let piece = "x".repeat(8191) + "\n";
    gateway.plays(move |_| Ok((0..100).map(|_| data(&piece)).collect()));
    let names: Vec<&'static str> = (0..33).map(|number| &*format!("tenant-{number}").leak()).collect();
    let path = Arc::new(format!("{LOG}?follow=true"));
    let mut held = Vec::new();
    for name in &names[..32] {
        let who = Who::User(name, "system:masters");
        let tenant = stack.client(who, Protocol::Http2).keep().await;
        let opening = (0..8).map(|_| tenant.open(tenant.request(Method::GET, &path, &[], Bytes::new())));
        for answer in futures::future::join_all(opening).await {
            let answer = answer.unwrap();
            assert_eq!(answer.status(), 200, "{name}");
            held.push(answer);
        }
        // On a connection of its own: nothing comes through the other one any more.
        let ninth = stack.client(who, Protocol::Http2).get(&path).await;
        assert_eq!(ninth.status, 429, "{name}: {ninth:?}");
    }
    let late = stack.client(Who::User(names[32], "system:masters"), Protocol::Http2);
    let refused = late.get(&path).await;
    assert_eq!((refused.status, refused.reason().as_str()), (503, "ServiceUnavailable"), "{refused:?}");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(client.get("/apis/horchestra.io/v1/nodes").await.status, 200, "others are served");
    assert_eq!(gateway.open.load(Ordering::SeqCst), 256);

    drop(held);
    horchestra_testkit::eventually(DEADLINE, async || gateway.open.load(Ordering::SeqCst) == 0).await;
    gateway.plays(|_| Ok(vec![data("room again\n")]));
    let room = async || late.get(LOG).await.text() == "room again\n";
    horchestra_testkit::eventually(DEADLINE, room).await;
}

#[tokio::test]
async fn a_gateway_that_leaves_takes_its_channels_along() {
    let (stack, client) = placed().await;
    let relay = stack.app.relay().unwrap();
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("one\n")]));
    assert_eq!(client.get(LOG).await.text(), "one\n");
    assert_eq!(relay.gateways(), 1);
    gateway.leave();
    horchestra_testkit::eventually(DEADLINE, async || relay.gateways() == 0).await;
    assert_eq!(client.get(LOG).await.status, 503);
    assert_eq!(relay.gateways(), 0, "one that cannot be reached leaves nothing behind");

    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("two\n")]));
    assert_eq!(client.get(LOG).await.text(), "two\n");
}
