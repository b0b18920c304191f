//! Paths that are to look different to different readers.

use bytes::Bytes;
use http::Method;
use serde_json::json;

use super::{CORE, Fleet, RBAC, refused};
use crate::client::{BOTH, Protocol};
use crate::rbac::rule;
use crate::stack::Who;

#[tokio::test]
async fn an_escaped_path_is_refused_before_anybody_is_asked_for_a_name() {
    let fleet = Fleet::start().await;
    for protocol in BOTH {
        for who in [Who::Anonymous, Who::Nobody, Who::Master] {
            let client = fleet.stack.client(who, protocol);
            for path in [
                "/apis/horchestra.io/v1/namespaces/team-a%2Fapplications%2Fx/applications",
                "/apis/horchestra.io/v1/namespaces/team-a%2fapplications",
                "/apis/horchestra.io/v1/namespaces/te%61m-a/applications",
                "/apis/horchestra.io/v1/namespaces/team%2Da/applications",
                "/apis/horchestra.io/v1/namespaces/team-a/applications/%2e%2e/secrets",
                "/apis/horchestra.io/v1/namespaces/team-a/applications/a%20b",
                "/apis/horchestra.io/v1/namespaces/team-a/applications/%00",
                "/apis/horchestra.io/v1/namespaces/team-a/applications/%C3%A9",
                "/%61pis",
            ] {
                let reply = client.get(path).await;
                assert_eq!((reply.status, reply.reason().as_str()), (400, "BadRequest"), "{who:?} {path}");
                assert!(reply.message().contains("percent escapes"), "{}", reply.message());
            }
        }
    }
}

#[tokio::test]
async fn a_second_path_in_the_version_segment_opens_nothing() {
    let fleet = Fleet::start().await;
    fleet.secret("team-b", "db").await;
    fleet.rules.role("team-a", "all", json!([rule("*", &["*"], &["*"])])).await;
    fleet.rules.bind("team-a", "mallory", "Role", "all").await;
    let mallory = fleet.client(Who::User("mallory", "team")).await;
    assert_eq!(mallory.get(&format!("{CORE}/namespaces/team-a/secrets")).await.status, 200);
    for (path, code) in [
        ("/apis/horchestra.io/v1%2Fnamespaces%2Fteam-a%2Fsecrets%2Fx/namespaces/team-b/secrets/db", 400),
        ("/apis/horchestra.io/v1%2fnamespaces%2fteam-a/namespaces/team-b/secrets/db", 400),
        ("/apis/horchestra.io/v1%252Fnamespaces%252Fteam-a/namespaces/team-b/secrets/db", 400),
        ("/apis/horchestra.io%2Fv1%2Fnamespaces%2Fteam-a/v1/namespaces/team-b/secrets/db", 400),
        // Without an escape there are simply more segments than anything has.
        ("/apis/horchestra.io/v1/namespaces/team-a/secrets/x/namespaces/team-b/secrets/db", 404),
        ("/apis/horchestra.io/v1;namespaces=team-a/namespaces/team-b/secrets/db", 404),
        ("/apis/horchestra.io/v1/namespaces/team-a/../team-b/secrets/db", 404),
        ("/apis/horchestra.io/v1//namespaces/team-b/secrets/db", 404),
    ] {
        for method in [Method::GET, Method::DELETE] {
            let reply = mallory.send(method.clone(), path, &[], Bytes::new()).await;
            assert_eq!(reply.status, code, "{method} {path}: {reply:?}");
        }
    }
    let kept = fleet.rules.0.get(&format!("{CORE}/namespaces/team-b/secrets/db")).await;
    assert_eq!(kept.status, 200, "nothing was deleted");
}

#[tokio::test]
async fn a_grant_in_a_foreign_group_opens_no_object() {
    let fleet = Fleet::start().await;
    fleet.secret("team-b", "db").await;
    let foreign = ["foo.io", "metrics.k8s.io", "", "core", "Horchestra.io"];
    let rules = foreign.map(|group| rule(group, &["*"], &["*"]));
    fleet.rules.cluster_role("foreign", json!(rules)).await;
    fleet.rules.bind_everywhere("mallory", "foreign").await;
    let mallory = fleet.client(Who::User("mallory", "team")).await;
    let master = fleet.master();
    for base in [
        "/apis/foo.io/v1",
        "/apis/metrics.k8s.io/v1beta1",
        "/apis/core/v1",
        "/apis/Horchestra.io/v1",
        "/apis/horchestra.io/v2",
        "/apis/horchestra.io/V1",
        "/apis/horchestra.io/v1beta1",
        // A group that is served, of which this is no resource.
        "/apis/secrets.horchestra.io/v1",
        RBAC,
        "/api/v1",
    ] {
        for path in ["namespaces/team-b/secrets", "namespaces/team-b/secrets/db", "secrets"] {
            let path = format!("{base}/{path}");
            for client in [&mallory, &master] {
                for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
                    let reply = client.send(method.clone(), &path, &[], "{}").await;
                    assert_eq!(
                        (reply.status, reply.reason().as_str()),
                        (404, "NotFound"),
                        "{method} {path}: {reply:?}"
                    );
                }
            }
        }
    }
    let secret = format!("{CORE}/namespaces/team-b/secrets/db");
    refused(&mallory.get(&secret).await, "cannot get resource \"secrets\" in API group \"horchestra.io\"");
    assert_eq!(master.get(&secret).await.status, 200, "nothing was deleted");
}

#[tokio::test]
async fn a_watch_flag_on_one_object_asks_for_a_get() {
    let fleet = Fleet::start().await;
    fleet.secret("team-b", "db").await;
    for (who, verb) in [("walter", "watch"), ("gary", "get")] {
        fleet.rules.role("team-b", verb, json!([rule("horchestra.io", &["secrets"], &[verb])])).await;
        fleet.rules.bind("team-b", who, "Role", verb).await;
    }
    let secrets = format!("{CORE}/namespaces/team-b/secrets");
    let walter = fleet.client(Who::User("walter", "team")).await;
    let gary = fleet.client(Who::User("gary", "team")).await;
    for flag in ["watch=true", "watch=1", "watch=yes", "watch=", "watch"] {
        refused(&walter.get(&format!("{secrets}/db?{flag}")).await, "cannot get resource \"secrets\"");
        // Everybody may watch namespaces, so this is the flag that would pay.
        let namespace = walter.get(&format!("{CORE}/namespaces/team-b?{flag}")).await;
        refused(&namespace, "cannot get resource \"namespaces\"");
        let served = gary.get(&format!("{secrets}/db?{flag}")).await;
        assert_eq!((served.status, &served.json()["kind"]), (200, &json!("Secret")), "{flag}");
        refused(&gary.get(&format!("{secrets}?{flag}")).await, "cannot watch resource \"secrets\"");
    }
    for flag in ["watch=false", "watch=0"] {
        refused(&walter.get(&format!("{secrets}?{flag}")).await, "cannot list resource \"secrets\"");
    }
}

#[tokio::test]
async fn a_route_that_is_off_does_not_tell_which_nodes_there_are() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    for who in [Who::Nobody, Who::Node("n1"), Who::Node("n2"), Who::Controller, Who::Master] {
        let client = fleet.stack.client(who, Protocol::Http1);
        let nonsense = client.get("/apis/horchestra.io/v1/nonsense/n1/log").await;
        assert_eq!((nonsense.status, nonsense.reason().as_str()), (404, "NotFound"), "{who:?}");
        for route in ["log", "sessionlog"] {
            for node in ["n1", "n2", "ghost"] {
                let reply = client.get(&format!("{CORE}/nodes/{node}/{route}")).await;
                assert_eq!((reply.status, &reply.body), (404, &nonsense.body), "{who:?} {node}/{route}");
                let names = |reply: &crate::client::Reply| {
                    reply.headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
                };
                assert_eq!(names(&reply), names(&nonsense), "{who:?} {node}/{route}");
            }
        }
    }
}
