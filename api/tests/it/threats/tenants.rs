//! Looking into the namespaces of others, past the objects themselves.

use horchestra_auth::pki::Process;
use serde_json::json;

use super::{Fleet, refused};
use crate::logs::{Gateway, claim, data};
use crate::rbac::rule;
use crate::stack::{Setup, Who};

#[tokio::test]
async fn a_log_of_another_namespace_is_not_opened() {
    let fleet = Fleet::with(Setup { relay: true, ..Setup::default() }).await;
    fleet.rules.node("n1").await;
    fleet.rules.app("team-a", "own", Some("n1")).await;
    fleet.rules.app("team-b", "victim", Some("n1")).await;
    // The same name on both sides: the one that is asked for is the one that is judged.
    fleet.rules.app("team-a", "twin", None).await;
    fleet.rules.app("team-b", "twin", Some("n1")).await;
    let (gateway, address) = Gateway::start(&fleet.stack, Process::Nodegate).await;
    claim(&fleet.stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("a secret\n")]));
    let verbs = ["get", "list", "watch"];
    fleet.rules.cluster_role("reader", json!([rule("horchestra.io", &["applications"], &verbs)])).await;
    fleet.rules.bind("team-a", "alice", "ClusterRole", "reader").await;
    // Whoever may only list reads no log either.
    fleet.rules.role("team-b", "lister", json!([rule("horchestra.io", &["applications"], &["list"])])).await;
    fleet.rules.bind("team-b", "alice", "Role", "lister").await;
    for protocol in crate::client::BOTH {
        let alice = fleet.stack.client(Who::User("alice", "team"), protocol);
        let ghost = alice.get("/api/v1/namespaces/team-b/pods/ghost/log").await;
        assert_eq!((ghost.status, ghost.message().as_str()), (404, "pods \"ghost\" not found"));
        for (path, name) in [
            ("/api/v1/pods/victim/log", "victim"),
            ("/api/v1/pods/victim/log?follow=true", "victim"),
            ("/api/v1/namespaces/team-b/pods/victim/log", "victim"),
            ("/api/v1/namespaces/team-b/pods/victim/log?follow=true&tailLines=1", "victim"),
            ("/api/v1/namespaces/team-a/pods/victim/log", "victim"),
            ("/api/v1/namespaces/team-b/pods/twin/log", "twin"),
        ] {
            let reply = alice.get(path).await;
            let text = ghost.text().replace("ghost", name);
            assert_eq!((reply.status, reply.text()), (404, text), "{path}");
        }
        let twin = alice.get("/api/v1/namespaces/team-a/pods/twin/log").await;
        assert_eq!(twin.status, 400, "her own, which is not placed: {twin:?}");
        assert_eq!(gateway.asked().len(), 0, "no log was opened");
    }
    let own =
        fleet.client(Who::User("alice", "team")).await.get("/api/v1/namespaces/team-a/pods/own/log").await;
    assert_eq!((own.status, own.text().as_str()), (200, "a secret\n"));
    assert_eq!(gateway.asked().len(), 1);
}

/// Once a catalog of services is served, this has to become a test of whose services it shows.
#[tokio::test]
async fn no_catalog_can_be_asked_about_the_services_of_others() {
    let fleet = Fleet::start().await;
    fleet.rules.cluster_role("paths", json!([{"nonResourceURLs": ["*"], "verbs": ["*"]}])).await;
    fleet.rules.bind_everywhere("paula", "paths").await;
    let anonymous = fleet.client(Who::Anonymous).await;
    let paula = fleet.client(Who::User("paula", "people")).await;
    let callers = [fleet.client(Who::Nobody).await, paula.clone(), fleet.master()];
    for prefix in ["/servicediscovery/v1", "/v1"] {
        for path in ["catalog/services", "catalog/service/db", "health/service/db", "catalog/datacenters"] {
            for query in ["", "?ns=team-b", "?ns=*", "?namespace=team-b"] {
                let path = format!("{prefix}/{path}{query}");
                assert_eq!(anonymous.get(&path).await.status, 401, "{path}");
                for caller in &callers {
                    assert_eq!(caller.get(&path).await.status, 404, "{path}");
                }
            }
        }
    }
    let reply = paula.get("/apis/horchestra.io/v1/namespaces/team-b/services").await;
    refused(&reply, "cannot list resource \"services\"");
}
