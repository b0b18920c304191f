//! Who may ask.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::tokens::Issuer;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{PREFIX, Site, ask};
use crate::client::Protocol;
use crate::rbac::{Rules, rule};
use crate::stack::{Setup, Who};

const ALICE: Who = Who::User("alice", "team");

fn paths(urls: &[&str]) -> Value {
    json!([{"nonResourceURLs": urls, "verbs": ["get"]}])
}

#[tokio::test]
async fn it_takes_the_path_and_the_right_to_list_services() {
    let site = Site::with(Setup::default()).await;
    let rules = Rules(site.operator.clone());
    let alice = site.stack.client(ALICE, Protocol::Http2).keep().await;
    let data = [
        "catalog/services",
        "catalog/service/s",
        "health/service/s",
        "health/state/any",
        "catalog/nodes",
        "catalog/node/n",
    ];
    let everything: Vec<&str> =
        data.iter().copied().chain(["catalog/datacenters", "agent/self", "status/leader"]).collect();
    let anonymous = site.stack.client(Who::Anonymous, Protocol::Http1);
    for path in &everything {
        assert_eq!(ask(&anonymous, path).await.status, 401, "{path}");
        for prefix in [PREFIX, "/v1"] {
            let reply = alice.get(&format!("{prefix}/{path}?ns=team-a")).await;
            assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{prefix}/{path}");
            assert!(reply.message().contains(&format!("{PREFIX}/{path}")), "{}", reply.message());
        }
    }
    // The right to list Services is not enough.
    rules.role("team-a", "lister", json!([rule("horchestra.io", &["services"], &["list"])])).await;
    rules.bind("team-a", "alice", "Role", "lister").await;
    assert_eq!(ask(&alice, "catalog/services?ns=team-a").await.status, 403);
    // A rule that names the other spelling grants nothing.
    rules.cluster_role("wrong", paths(&["/v1/*"])).await;
    rules.bind_everywhere("alice", "wrong").await;
    assert_eq!(alice.get("/v1/catalog/services?ns=team-a").await.status, 403);
    let granted = [
        "/servicediscovery/v1/catalog/*",
        "/servicediscovery/v1/health/*",
        "/servicediscovery/v1/agent/self",
    ];
    rules.cluster_role("paths", paths(&granted)).await;
    rules.bind_everywhere("alice", "paths").await;
    for prefix in [PREFIX, "/v1"] {
        for path in &everything {
            let expected = if *path == "status/leader" { 403 } else { 200 };
            let reply = alice.get(&format!("{prefix}/{path}?ns=team-a")).await;
            assert_eq!(reply.status, expected, "{prefix}/{path}: {reply:?}");
        }
        for path in data {
            for query in ["", "?ns=default", "?ns=", "?ns=*", "?ns=default&ns=team-a", "?namespace=team-a"] {
                let reply = alice.get(&format!("{prefix}/{path}{query}")).await;
                assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{path}{query}");
                assert_eq!(reply.json()["details"]["kind"], "services", "{path}{query}");
            }
        }
    }
}

#[tokio::test]
async fn nodes_are_shown_as_far_as_somebody_may_know_of_them() {
    let site = Site::with(Setup::default()).await;
    let rules = Rules(site.operator.clone());
    for name in ["node-1", "node-2"] {
        site.node(name, if name == "node-1" { "10.0.0.7" } else { "10.0.0.8" }).await;
    }
    site.run("team-a", "web", "node-1", json!({"ports": [{"port": 80}]})).await;
    rules.cluster_role("paths", paths(&["/servicediscovery/*"])).await;
    rules.cluster_role("nodes", json!([rule("horchestra.io", &["nodes"], &["list"])])).await;
    rules.role("team-a", "lister", json!([rule("horchestra.io", &["services"], &["list"])])).await;
    for user in ["alice", "nora"] {
        rules.bind_everywhere(user, "paths").await;
        rules.bind("team-a", user, "Role", "lister").await;
    }
    rules.bind_everywhere("nora", "nodes").await;
    for (who, expected) in [(ALICE, vec!["node-1"]), (Who::User("nora", "team"), vec!["node-1", "node-2"])] {
        let client = site.stack.client(who, Protocol::Http2).keep().await;
        let nodes = ask(&client, "catalog/nodes?ns=team-a").await.json();
        let names: Vec<&str> =
            nodes.as_array().unwrap().iter().map(|it| it["Node"].as_str().unwrap()).collect();
        assert_eq!(names, expected);
        for name in ["node-1", "node-2"] {
            let found = ask(&client, &format!("catalog/node/{name}?ns=team-a")).await.json();
            assert_eq!(found.is_object(), expected.contains(&name), "{name}: {found}");
        }
    }
}

#[tokio::test]
async fn clients_of_consul_show_a_token_in_their_own_header() {
    let issuer = Arc::new(Issuer::ephemeral("horchestra").unwrap());
    let site = Site::with(Setup { issuer: Some(Arc::clone(&issuer)), ..Setup::default() }).await;
    let rules = Rules(site.operator.clone());
    rules.cluster_role("paths", paths(&["/servicediscovery/*"])).await;
    rules.cluster_role("lister", json!([rule("horchestra.io", &["services"], &["list"])])).await;
    let subject = json!([{"kind": "Group", "name": "system:workloads"}]);
    for role in ["paths", "lister"] {
        let binding = json!({
            "metadata": {"name": role},
            "spec": {"subjects": subject, "roleRef": {"kind": "ClusterRole", "name": role}},
        });
        rules.put("/apis/rbac.horchestra.io/v1/clusterrolebindings", binding).await;
    }
    let mint = |audience: &str| {
        let uid = "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11";
        issuer.mint("team-a", "edge", uid, audience, Timestamp::now()).unwrap().token
    };
    let (good, vault) = (mint("horchestra"), mint("vault"));
    let bearer = format!("Bearer {good}");
    type Case<'a> = (&'a [(&'a str, &'a str)], u16);
    let cases: &[Case<'_>] = &[
        (&[("x-consul-token", &good)], 200),
        (&[("authorization", &bearer)], 200),
        (&[("authorization", &bearer), ("x-consul-token", "unknown")], 200),
        (&[("authorization", "Bearer unknown"), ("x-consul-token", &good)], 401),
        (&[("x-consul-token", "unknown")], 401),
        (&[("x-consul-token", &vault)], 401),
        (&[], 401),
    ];
    let stranger = site.stack.client(Who::Anonymous, Protocol::Http1);
    for (headers, expected) in cases {
        for path in ["/v1/catalog/services", "/servicediscovery/v1/health/service/s"] {
            let reply = stranger.send(Method::GET, path, headers, Bytes::new()).await;
            assert_eq!(reply.status, *expected, "{path} {headers:?}: {reply:?}");
        }
    }
    let in_query = stranger.get(&format!("/v1/catalog/services?token={good}")).await;
    assert_eq!(in_query.status, 401, "addresses end up in logs, so none is taken from there");
}
