//! Reading by way of a workload what one may not read oneself.

use serde_json::{Value, json};

use super::{CORE, Fleet, apply, refused};
use crate::client::Client;
use crate::rbac::rule;
use crate::stack::Who;

const APPS: &str = "/apis/horchestra.io/v1/namespaces/team-a/applications";
const SETS: &str = "/apis/horchestra.io/v1/namespaces/team-a/applicationsets";

/// alice runs what she likes in both namespaces. In `team-a` she may read the Secret `open` and the Service
/// `front` by name, in `team-b` everything.
async fn with_alice() -> (Fleet, Client) {
    let fleet = Fleet::start().await;
    let rules = &fleet.rules;
    for namespace in ["team-a", "team-b"] {
        for secret in ["open", "closed"] {
            fleet.secret(namespace, secret).await;
        }
        for service in ["front", "back"] {
            let service = json!({"metadata": {"name": service}, "spec": {"ports": [{"port": 80}]}});
            rules.put(&format!("{CORE}/namespaces/{namespace}/services"), service).await;
        }
    }
    let running = rule(
        "horchestra.io",
        &["applications", "applicationsets"],
        &["get", "list", "create", "update", "patch", "delete"],
    );
    let named = |plural: &str, name: &str| json!({"apiGroups": ["horchestra.io"], "resources": [plural], "resourceNames": [name], "verbs": ["get"]});
    rules
        .role("team-a", "runner", json!([running, named("secrets", "open"), named("services", "front")]))
        .await;
    rules
        .role("team-b", "runner", json!([running, rule("horchestra.io", &["secrets", "services"], &["get"])]))
        .await;
    for namespace in ["team-a", "team-b"] {
        rules.bind(namespace, "alice", "Role", "runner").await;
    }
    let alice = fleet.client(Who::User("alice", "team")).await;
    (fleet, alice)
}

fn app(name: &str, more: &Value) -> Value {
    let mut spec = json!({"image": "x"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": name}, "spec": spec})
}

fn env(secret: &str) -> Value {
    json!({"env": [{"name": "A", "secretRef": {"name": secret, "key": "password"}}]})
}

fn whole(secret: &str) -> Value {
    json!({"env": [{"secretRef": {"name": secret, "key": "*", "optional": true}}]})
}

fn volume(secret: &str) -> Value {
    json!({"volumes": [{"mountPath": "/s", "volume": {"type": "secret", "name": secret}}]})
}

fn cannot(kind: &str, name: &str, namespace: &str) -> String {
    format!(
        "User \"alice\" cannot get {kind} \"{name}\" in the namespace \"{namespace}\", which it refers to"
    )
}

#[tokio::test]
async fn a_workload_is_given_no_secret_that_its_author_cannot_read() {
    let (_fleet, alice) = with_alice().await;
    assert_eq!(alice.post(APPS, &app("web", &env("open"))).await.status, 201, "what she may read");
    let words = cannot("secret", "closed", "team-a");
    let web = format!("{APPS}/web");
    let stored = alice.get(&web).await.json();
    for (what, use_of) in [
        ("a variable", env("closed")),
        ("all variables, though optional", whole("closed")),
        ("files", volume("closed")),
        ("one that is not there", whole("missing")),
    ] {
        let words =
            if what.contains("not there") { cannot("secret", "missing", "team-a") } else { words.clone() };
        refused(&alice.post(APPS, &app("new", &use_of)).await, &words);
        refused(&alice.post(&format!("{APPS}?dryRun=All"), &app("new", &use_of)).await, &words);
        refused(&alice.merge(&web, &json!({"spec": use_of})).await, &words);
        let mut put = stored.clone();
        put["spec"].as_object_mut().unwrap().extend(use_of.as_object().unwrap().clone());
        refused(&alice.put(&web, &put).await, &words);
        refused(&apply(&alice, &web, &app("web", &use_of)).await, &words);
        refused(&apply(&alice, &format!("{APPS}/new"), &app("new", &use_of)).await, &words);
    }
    assert_eq!(alice.get(&web).await.json(), stored);
    assert_eq!(alice.get(&format!("{APPS}/new")).await.status, 404);
    let many: Vec<Value> = (0..65)
        .map(|n| json!({"name": format!("E{n}"), "secretRef": {"name": format!("s{n}"), "key": "k", "optional": true}}))
        .collect();
    let reply = alice.post(APPS, &app("new", &json!({"env": many}))).await;
    refused(&reply, "it speaks of 65 different secrets, at most 64 are possible");
}

#[tokio::test]
async fn a_set_hides_no_secret_that_its_author_cannot_read() {
    let (_fleet, alice) = with_alice().await;
    let set = |name: &str, common: Value, last: Value| {
        json!({"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "metadata": {"name": name},
            "spec": {"common": common, "applications": [
                {"name": "one", "spec": {"image": "x"}},
                {"name": "two", "spec": app("", &last)["spec"]}]}})
    };
    let fine = set("fine", env("open"), volume("open"));
    let created = alice.post(SETS, &fine).await;
    assert_eq!(created.status, 201, "what she may read: {created:?}");
    let words = cannot("secret", "closed", "team-a");
    let path = format!("{SETS}/fine");
    let stored = alice.get(&path).await.json();
    for (common, last) in [
        (env("closed"), json!({})),
        (volume("closed"), json!({})),
        (whole("closed"), json!({})),
        (json!({}), env("closed")),
        (json!({}), volume("closed")),
        (env("open"), whole("closed")),
    ] {
        let object = set("new", common.clone(), last.clone());
        refused(&alice.post(SETS, &object).await, &words);
        refused(&apply(&alice, &format!("{SETS}/new"), &object).await, &words);
        let object = set("fine", common, last);
        refused(&alice.merge(&path, &json!({"spec": object["spec"]})).await, &words);
        refused(&apply(&alice, &path, &object).await, &words);
    }
    assert_eq!(alice.get(&path).await.json(), stored);
}

#[tokio::test]
async fn no_reference_leads_into_another_namespace() {
    let (_fleet, alice) = with_alice().await;
    // What she may read in the one namespace says nothing about what bears its name in the other.
    let there = "/apis/horchestra.io/v1/namespaces/team-b/applications";
    for (use_of, kind, name) in [
        (env("closed"), "secret", "closed"),
        (volume("closed"), "secret", "closed"),
        (json!({"serviceName": "back"}), "service", "back"),
    ] {
        let reply = alice.post(there, &app(&format!("{kind}-{}", use_of.to_string().len()), &use_of)).await;
        assert_eq!(reply.status, 201, "{use_of}: {reply:?}");
        refused(&alice.post(APPS, &app("x", &use_of)).await, &cannot(kind, name, "team-a"));
    }
    // There is no member that could name a namespace, and no name with one in it.
    for (what, use_of, code) in [
        (
            "a member in a variable",
            json!({"env": [{"name": "A", "secretRef": {"name": "closed", "namespace": "team-b", "key": "k"}}]}),
            400,
        ),
        (
            "a member in a volume",
            json!({"volumes": [{"mountPath": "/s",
                "volume": {"type": "secret", "name": "closed", "namespace": "team-b"}}]}),
            400,
        ),
        ("a member beside the service", json!({"serviceName": "back", "serviceNamespace": "team-b"}), 400),
    ] {
        let reply = alice.post(APPS, &app("x", &use_of)).await;
        assert_eq!(reply.status, code, "{what}: {reply:?}");
        assert!(reply.message().contains("amespace"), "{what}: {}", reply.message());
    }
    for name in ["team-b/closed", "../team-b/closed", "team-b.closed", "team-b:closed", "closed.team-b"] {
        for use_of in [env(name), volume(name), json!({"serviceName": name})] {
            let reply = alice.post(APPS, &app("x", &use_of)).await;
            assert!(matches!(reply.status, 403 | 422), "{use_of}: {reply:?}");
        }
    }
    assert_eq!(alice.get(&format!("{APPS}/x")).await.status, 404);
}

#[tokio::test]
async fn a_workload_joins_no_service_that_its_author_cannot_read() {
    let (_fleet, alice) = with_alice().await;
    let join = |service: &str| json!({"serviceName": service, "ports": [{"port": 80}]});
    let created = alice.post(APPS, &app("web", &join("front"))).await;
    assert_eq!(created.status, 201, "what she may read: {created:?}");
    let words = cannot("service", "back", "team-a");
    let web = format!("{APPS}/web");
    refused(&alice.post(APPS, &app("new", &join("back"))).await, &words);
    refused(&alice.merge(&web, &json!({"spec": {"serviceName": "back"}})).await, &words);
    refused(&apply(&alice, &web, &app("web", &join("back"))).await, &words);
    let set = json!({"metadata": {"name": "set"}, "spec": {"applications": [
        {"name": "one", "spec": {"image": "x"}},
        {"name": "two", "spec": app("", &join("back"))["spec"]}]}});
    refused(&alice.post(SETS, &set).await, &words);
    assert_eq!(alice.get(&web).await.json()["spec"]["serviceName"], "front");
}
