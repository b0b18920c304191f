//! Looking into the namespaces of others, past the objects themselves.

use horchestra_auth::pki::Process;
use serde_json::json;

use super::{CORE, Fleet, refused};
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

#[tokio::test]
async fn the_catalog_shows_nobody_the_services_of_others() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    for namespace in ["team-a", "team-b"] {
        let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 1}]}});
        fleet.rules.put(&format!("{CORE}/namespaces/{namespace}/services"), service).await;
        let name = format!("db-of-{namespace}");
        let spec = json!({"image": "i", "serviceName": "db", "placement": {"nodeName": "n1"}});
        let app = json!({"metadata": {"name": name}, "spec": spec});
        fleet.rules.put(&format!("{CORE}/namespaces/{namespace}/applications"), app).await;
    }
    fleet.rules.cluster_role("paths", json!([{"nonResourceURLs": ["*"], "verbs": ["*"]}])).await;
    fleet.rules.bind_everywhere("paula", "paths").await;
    fleet.rules.role("team-a", "lister", json!([rule("horchestra.io", &["services"], &["list"])])).await;
    fleet.rules.bind("team-a", "paula", "Role", "lister").await;
    let (anonymous, nobody) = (fleet.client(Who::Anonymous).await, fleet.client(Who::Nobody).await);
    let paula = fleet.client(Who::User("paula", "people")).await;
    for prefix in ["/servicediscovery/v1", "/v1"] {
        for path in [
            "catalog/services",
            "catalog/service/db",
            "health/service/db",
            "health/state/any",
            "catalog/nodes",
            "catalog/node/n1",
        ] {
            for query in
                ["", "?ns=team-b", "?ns=*", "?ns=team-b&ns=team-a", "?ns=team-b&index=1", "?namespace=team-a"]
            {
                let path = format!("{prefix}/{path}{query}");
                assert_eq!(anonymous.get(&path).await.status, 401, "{path}");
                assert_eq!(nobody.get(&path).await.status, 403, "{path}");
                refused(&paula.get(&path).await, "cannot list resource \"services\"");
            }
            for query in ["?ns=team-a", "?ns=team-a&ns=team-b", "?ns=team-a&filter=Namespace+!%3D+team-a"] {
                let own = paula.get(&format!("{prefix}/{path}{query}")).await;
                assert!(!own.text().contains("team-b"), "{path}{query}: {own:?}");
            }
        }
        let own = paula.get(&format!("{prefix}/catalog/service/db?ns=team-a")).await;
        assert!(own.text().contains("db-of-team-a"), "{own:?}");
    }
}
