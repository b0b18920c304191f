//! A node's certificate over HTTP, in the wrong hands.

use horchestra_auth::pki::{Lifetime, Process};
use horchestra_core::registry;
use http::Method;
use serde_json::{Value, json};

use super::{CORE, Fleet, refused};
use crate::client::Protocol;
use crate::logs::{Gateway, claim, data};
use crate::rbac::rule;
use crate::stack::{Setup, Who};

#[tokio::test]
async fn a_nodes_certificate_reads_nothing_of_tenants() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    fleet.rules.node("n2").await;
    fleet.secret("team-a", "x").await;
    fleet.rules.app("team-a", "x", Some("n2")).await;
    let volume = json!({"metadata": {"name": "x"}, "spec": {"size": "1Gi", "node": "n2"}});
    fleet.rules.put(&format!("{CORE}/namespaces/team-a/persistentvolumes"), volume).await;
    let node = fleet.client(Who::Node("n1")).await;
    let mut asked = 0;
    for spec in registry::described() {
        let base = match spec.group() {
            "" => format!("/api/{}", spec.version()),
            group => format!("/apis/{group}/{}", spec.version()),
        };
        let plural = spec.plural();
        let open = matches!(plural, "namespaces" | "certificatesigningrequests");
        let mut paths = Vec::new();
        if spec.namespaced() {
            paths.push(format!("{base}/namespaces/team-a/{plural}"));
            paths.push(format!("{base}/namespaces/team-a/{plural}/x"));
        }
        paths.push(format!("{base}/{plural}"));
        if !spec.namespaced() && plural != "certificatesigningrequests" {
            paths.push(format!("{base}/{plural}/x"));
        }
        for path in paths {
            if open && path.ends_with(plural) {
                continue;
            }
            for query in ["", "?watch=1&timeoutSeconds=1", "?limit=1", "?fieldSelector=metadata.name%3Dx"] {
                refused(&node.get(&format!("{path}{query}")).await, "User \"n1\" cannot");
                asked += 1;
            }
        }
    }
    assert!(asked > 80, "{asked}");
    refused(&node.get(&format!("{CORE}/nodes/n2")).await, "cannot get resource \"nodes\"");
    assert_eq!(node.get(&format!("{CORE}/nodes/n1")).await.status, 200, "its own it may see");
    let namespaces = node.get(&format!("{CORE}/namespaces")).await.json_of(200).unwrap();
    assert_eq!(namespaces["items"], json!([]));
    assert_eq!(node.get("/api/v1/pods").await.json_of(200).unwrap()["items"], json!([]));
}

#[tokio::test]
async fn a_nodes_certificate_tails_no_workload_of_another_node() {
    let fleet = Fleet::with(Setup { relay: true, ..Setup::default() }).await;
    fleet.rules.node("n1").await;
    fleet.rules.node("n2").await;
    fleet.rules.app("team-a", "web", Some("n1")).await;
    let (gateway, address) = Gateway::start(&fleet.stack, Process::Nodegate).await;
    claim(&fleet.stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("a secret\n")]));
    // Even where somebody granted to nodes what their agents never need.
    let verbs = ["get", "list", "watch"];
    fleet.rules.cluster_role("reader", json!([rule("horchestra.io", &["applications"], &verbs)])).await;
    for node in ["n1", "n2"] {
        fleet.rules.bind_everywhere(node, "reader").await;
    }
    let other = fleet.client(Who::Node("n2")).await;
    let ghost = "pods \"web\" not found";
    for path in [
        "/api/v1/pods/web",
        "/api/v1/pods/web/log",
        "/api/v1/pods/web/log?follow=true",
        "/api/v1/pods/web/log?tailLines=5",
        "/api/v1/namespaces/team-a/pods/web",
        "/api/v1/namespaces/team-a/pods/web/log",
        "/api/v1/namespaces/team-a/pods/web/log?follow=true",
    ] {
        let reply = other.get(path).await;
        assert_eq!((reply.status, reply.message().as_str()), (404, ghost), "{path}: {reply:?}");
    }
    for path in ["/api/v1/pods", "/api/v1/namespaces/team-a/pods"] {
        assert_eq!(other.get(path).await.json_of(200).unwrap()["items"], json!([]), "{path}");
        refused(&other.get(&format!("{path}?watch=1&timeoutSeconds=1")).await, "its own Applications only");
    }
    assert_eq!(gateway.asked().len(), 0, "no log was opened");
    let own = fleet.client(Who::Node("n1")).await.get("/api/v1/namespaces/team-a/pods/web/log").await;
    assert_eq!((own.status, own.text().as_str()), (200, "a secret\n"));
    assert_eq!(gateway.asked().len(), 1);
}

#[tokio::test]
async fn a_nodes_certificate_writes_its_own_node_and_little_of_that() {
    let fleet = Fleet::start().await;
    let plain = fleet.client(Who::Node("n1")).await;
    // What registers itself is cordoned and takes no part.
    let own = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(plain.post(&format!("{CORE}/nodes"), &own).await.status, 201);
    fleet.rules.node("n2").await;
    fleet.rules.app("team-a", "web", Some("n2")).await;
    fleet.secret("team-a", "db").await;
    let state = async || {
        let mut state = Vec::new();
        for path in ["nodes", "applications", "secrets", "namespaces"] {
            state.push(fleet.rules.0.get(&format!("{CORE}/{path}")).await.json()["items"].clone());
        }
        json!(state)
    };
    let before = state().await;
    fleet.rules.cluster_role("all", json!([rule("*", &["*"], &["*"])])).await;
    fleet.rules.bind_everywhere("n1", "all").await;
    let groups = ["system:nodes".to_owned(), "system:masters".to_owned()];
    let both = fleet.stack.pki.signer().member("n1", &groups, Lifetime::CLIENT).unwrap();
    // By rules, and by group: everything is granted, and a node's certificate stays a node's.
    for (what, node) in [("by a rule", plain.clone()), ("by its group", fleet.holder(&both, Protocol::Http2))]
    {
        let app = json!({"metadata": {"name": "mine"}, "spec": {"image": "x"}});
        let unschedulable = |value: Value| json!({"spec": {"unschedulable": value}});
        let labels = json!({"metadata": {"labels": {"tier": "secure"}}});
        let node_of = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        for (method, path, body, words) in [
            (Method::POST, "namespaces/team-a/applications", app.clone(), "may not write applications"),
            (Method::PATCH, "namespaces/team-a/applications/web", labels.clone(), "may not write"),
            (Method::DELETE, "namespaces/team-a/applications/web", Value::Null, "may not write"),
            (Method::DELETE, "namespaces/team-a/secrets/db", Value::Null, "may not write secrets"),
            (Method::DELETE, "namespaces/team-a/secrets", Value::Null, "may not write secrets"),
            (Method::POST, "namespaces", json!({"metadata": {"name": "mine"}}), "may not write namespaces"),
            (Method::POST, "nodes", node_of("n3", json!({})), "only write its own Node"),
            (Method::PATCH, "nodes/n2", labels.clone(), "only write its own Node"),
            (Method::PATCH, "nodes/n2/status", json!({"status": {"ready": true}}), "only write its own Node"),
            (Method::DELETE, "nodes/n2", Value::Null, "only write its own Node"),
            (Method::PATCH, "nodes/n1", labels.clone(), "labels of its Node"),
            (Method::PATCH, "nodes/n1", unschedulable(json!(null)), "spec of its Node"),
            (Method::PATCH, "nodes/n1", unschedulable(json!(false)), "spec of its Node"),
            (Method::PUT, "nodes/n1", node_of("n1", json!({})), "spec of its Node"),
            (Method::POST, "nodes/n1/uncordon", Value::Null, "does not open the door \"uncordon\""),
            (Method::POST, "nodes/n1/admit", Value::Null, "does not open the door \"admit\""),
            (Method::POST, "nodes/n2/cordon", Value::Null, "does not open the door \"cordon\""),
            (
                Method::POST,
                "namespaces/team-a/applications/web/freeze",
                Value::Null,
                "does not open the door \"freeze\"",
            ),
            (
                Method::POST,
                "namespaces/team-a/applications/web/finalize",
                Value::Null,
                "does not open the door \"finalize\"",
            ),
            (
                Method::POST,
                "namespaces/team-a/applications/web/rollback",
                json!({"revision": 1}),
                "does not open the door \"rollback\"",
            ),
        ] {
            let media =
                if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
            let text = if body.is_null() { String::new() } else { body.to_string() };
            let path = format!("{CORE}/{path}");
            let reply = node.send(method.clone(), &path, &[("content-type", media)], text).await;
            assert_eq!(reply.status, 403, "{what}: {method} {path}: {reply:?}");
            assert!(reply.message().contains(words), "{what}: {method} {path}: {}", reply.message());
        }
    }
    assert_eq!(state().await, before, "nothing of it was stored");
    let note = json!({"metadata": {"annotations": {"note": "mine"}}});
    assert_eq!(plain.merge(&format!("{CORE}/nodes/n1"), &note).await.status, 200);
}
