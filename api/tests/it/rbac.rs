//! Rights that rule objects give, through the whole of a request.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Protocol, Reply};
use crate::crud::app;
use crate::replicas::{database, replica};
use crate::stack::{Stack, Who};

const CORE: &str = "/apis/horchestra.io/v1";
const RBAC: &str = "/apis/rbac.horchestra.io/v1";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const ALICE: Who = Who::User("alice", "team");
const BOB: Who = Who::User("bob", "others");

pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// The operator's side of rules.
pub struct Rules(pub Client);

impl Rules {
    pub async fn put(&self, path: &str, object: Value) {
        let reply = self.0.post(path, &object).await;
        assert_eq!(reply.status, 201, "{path} {object}: {reply:?}");
    }

    pub async fn namespace(&self, name: &str) {
        self.put(&format!("{CORE}/namespaces"), json!({"metadata": {"name": name}})).await;
    }

    pub async fn role(&self, namespace: &str, name: &str, rules: Value) {
        let role = json!({"metadata": {"name": name}, "spec": {"rules": rules}});
        self.put(&format!("{RBAC}/namespaces/{namespace}/roles"), role).await;
    }

    pub async fn cluster_role(&self, name: &str, rules: Value) {
        self.put(
            &format!("{RBAC}/clusterroles"),
            json!({"metadata": {"name": name}, "spec": {"rules": rules}}),
        )
        .await;
    }

    pub async fn bind(&self, namespace: &str, user: &str, kind: &str, role: &str) {
        self.put(&format!("{RBAC}/namespaces/{namespace}/rolebindings"), binding(user, kind, role)).await;
    }

    pub async fn bind_everywhere(&self, user: &str, role: &str) {
        self.put(&format!("{RBAC}/clusterrolebindings"), binding(user, "ClusterRole", role)).await;
    }

    pub async fn app(&self, namespace: &str, name: &str, node: Option<&str>) {
        let mut app = app(name);
        if let Some(node) = node {
            app["spec"]["placement"] = json!({"nodeName": node});
        }
        self.put(&format!("{CORE}/namespaces/{namespace}/applications"), app).await;
    }

    pub async fn node(&self, name: &str) {
        self.put(&format!("{CORE}/nodes"), json!({"metadata": {"name": name}, "spec": {}})).await;
    }
}

fn binding(user: &str, kind: &str, role: &str) -> Value {
    json!({
        "metadata": {"generateName": format!("{user}-")},
        "spec": {"subjects": [{"kind": "User", "name": user}], "roleRef": {"kind": kind, "name": role}},
    })
}

fn names(list: &Value) -> Vec<String> {
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

async fn world() -> (Stack, Rules) {
    let stack = Stack::start().await;
    let rules = Rules(stack.master());
    for namespace in ["team-a", "team-b"] {
        rules.namespace(namespace).await;
    }
    (stack, rules)
}

#[tokio::test]
async fn a_role_counts_from_the_answer_on_and_no_longer_than_it_is_there() {
    let (stack, rules) = world().await;
    let alice = stack.client(ALICE, Protocol::Http2);
    let apps = format!("{CORE}/namespaces/team-a/applications");
    let refused = alice.get(&apps).await;
    assert_eq!((refused.status, refused.reason().as_str()), (403, "Forbidden"));
    rules.role("team-a", "reader", json!([rule("horchestra.io", &["applications"], &["get", "list"])])).await;
    assert_eq!(alice.get(&apps).await.status, 403, "a role alone grants nothing");
    rules.bind("team-a", "alice", "Role", "reader").await;
    assert_eq!(alice.get(&apps).await.status, 200);
    assert_eq!(alice.get(&format!("{apps}/missing")).await.status, 404, "what may be read may be missing");
    for (method, path) in [
        (Method::GET, format!("{CORE}/namespaces/team-b/applications")),
        (Method::GET, format!("{CORE}/applications")),
        (Method::GET, format!("{CORE}/nodes")),
        (Method::GET, format!("{apps}?watch=1")),
        (Method::POST, apps.clone()),
        (Method::DELETE, apps.clone()),
        (Method::DELETE, format!("{apps}/missing")),
        (Method::GET, format!("{apps}/missing/status")),
        (Method::POST, format!("{apps}/missing/freeze")),
    ] {
        let reply = alice.send(method.clone(), &path, &[], "").await;
        assert_eq!(reply.status, 403, "{method} {path}: {reply:?}");
        let text = reply.message();
        assert!(text.contains("nothing grants it") && !text.contains("reader"), "{text}");
    }

    let role = format!("{RBAC}/namespaces/team-a/roles/reader");
    let narrower = json!({"spec": {"rules": [rule("horchestra.io", &["applications"], &["get"])]}});
    assert_eq!(rules.0.merge(&role, &narrower).await.status, 200);
    assert_eq!(alice.get(&apps).await.status, 403);
    assert_eq!(alice.get(&format!("{apps}/missing")).await.status, 404);
    assert_eq!(rules.0.delete(&role).await.status, 200);
    assert_eq!(alice.get(&format!("{apps}/missing")).await.status, 403);
}

#[tokio::test]
async fn a_patch_needs_patch_or_update_and_an_apply_that_creates_needs_create() {
    let (stack, rules) = world().await;
    rules.app("team-a", "web", None).await;
    let apps = format!("{CORE}/namespaces/team-a/applications");
    for (verb, patched, replaced, applied_new) in [
        ("patch", 200, 403, 403),
        ("update", 200, 200, 403),
        ("create", 403, 403, 403),
        ("get", 403, 403, 403),
    ] {
        let who: &'static str = verb;
        rules.role("team-a", verb, json!([rule("horchestra.io", &["applications"], &[verb])])).await;
        rules.bind("team-a", who, "Role", verb).await;
        let client = stack.client(Who::User(who, "team"), Protocol::Http2);
        let change = json!({"metadata": {"labels": {"by": verb}}});
        assert_eq!(client.merge(&format!("{apps}/web"), &change).await.status, patched, "{verb} patches");
        let stored = rules.0.get(&format!("{apps}/web")).await.json();
        assert_eq!(client.put(&format!("{apps}/web"), &stored).await.status, replaced, "{verb} replaces");
        for door in ["freeze", "thaw", "rollback"] {
            let reply = client.put(&format!("{apps}/web/{door}"), &json!({})).await;
            assert_eq!(reply.status, 403, "{verb} is not {door}");
        }
        let new = json!({"apiVersion": "horchestra.io/v1", "kind": "Application",
            "metadata": {"name": "new"}, "spec": {"image": "nginx"}});
        let reply = apply(&client, &format!("{apps}/new"), &new).await;
        assert_eq!(reply.status, applied_new, "{verb} applies: {reply:?}");
    }
    rules.bind("team-a", "patch", "Role", "create").await;
    let client = stack.client(Who::User("patch", "team"), Protocol::Http2);
    let new = json!({"apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": "new"}, "spec": {"image": "nginx"}});
    assert_eq!(apply(&client, &format!("{apps}/new"), &new).await.status, 201);
}

async fn apply(client: &Client, path: &str, object: &Value) -> Reply {
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}?fieldManager=test");
    client.send(Method::PATCH, &path, &headers, object.to_string()).await
}

#[tokio::test]
async fn namespaces_are_listed_as_far_as_somebody_may_know_of_them() {
    let (stack, rules) = world().await;
    rules.namespace("team-c").await;
    rules.role("team-a", "nothing", json!([])).await;
    rules.bind("team-a", "alice", "Role", "nothing").await;
    rules.bind("team-c", "alice", "Role", "missing").await;
    rules.bind("team-b", "bob", "Role", "missing").await;
    let (alice, bob) = (stack.client(ALICE, Protocol::Http2), stack.client(BOB, Protocol::Http2));
    for path in [format!("{CORE}/namespaces"), "/api/v1/namespaces".to_owned()] {
        let list = alice.get(&path).await.json();
        assert_eq!(names(&list), ["team-a", "team-c"], "{path}");
        assert!(list["metadata"]["remainingItemCount"].is_null());
        assert_eq!(names(&alice.get(&format!("{path}?limit=1")).await.json()), ["team-a", "team-c"]);
        assert_eq!(names(&bob.get(&path).await.json()), ["team-b"], "{path}");
        let table = alice.get_as(&path, TABLE).await.json();
        let shown: Vec<&str> =
            table["rows"].as_array().unwrap().iter().map(|row| row["cells"][0].as_str().unwrap()).collect();
        assert_eq!(shown, ["team-a", "team-c"], "{path}");
        assert_eq!(rules.0.get(&path).await.json()["items"].as_array().unwrap().len(), 3);
        let watch = alice.get(&format!("{path}?watch=1&timeoutSeconds=1")).await;
        assert_eq!(watch.status, 403, "{path}");
        assert!(watch.message().contains("cluster-wide access"), "{}", watch.message());
        for one in [format!("{path}/team-a"), format!("{path}/team-a?watch=true")] {
            assert_eq!(alice.get(&one).await.status, 403, "{one}: seeing a name is not reading the object");
        }
    }
    // Reading what lies in no namespace is no reason to learn of any.
    rules
        .cluster_role("viewer", json!([rule("horchestra.io", &["nodes", "namespaces"], &["list", "watch"])]))
        .await;
    rules.bind_everywhere("alice", "viewer").await;
    assert_eq!(names(&alice.get("/api/v1/namespaces").await.json()), ["team-a", "team-c"]);
    assert_eq!(alice.get("/api/v1/namespaces?watch=1&timeoutSeconds=1").await.status, 403);
    // Whoever reads in all namespaces sees all of them, and those to come.
    rules.cluster_role("reader", json!([rule("horchestra.io", &["applications"], &["list"])])).await;
    rules.bind_everywhere("alice", "reader").await;
    assert_eq!(names(&alice.get("/api/v1/namespaces").await.json()).len(), 3);
    let request =
        alice.request(Method::GET, "/api/v1/namespaces?watch=1&timeoutSeconds=1", &[], Default::default());
    assert_eq!(alice.open(request).await.unwrap().status(), 200);
    // What is bound in a Namespace that is gone, is not shown, and does not come back with its name.
    for namespace in ["team-b"] {
        let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
        for name in names(&rules.0.get(&bindings).await.json()) {
            assert_eq!(rules.0.delete(&format!("{bindings}/{name}")).await.status, 200);
        }
        assert_eq!(rules.0.delete(&format!("{CORE}/namespaces/{namespace}")).await.status, 200);
    }
    assert_eq!(names(&bob.get("/api/v1/namespaces").await.json()), [""; 0]);
}

#[tokio::test]
async fn pods_are_shown_by_the_namespace_of_their_application() {
    let (stack, rules) = world().await;
    for node in ["n1", "n2"] {
        rules.node(node).await;
    }
    rules.app("team-a", "own", Some("n1")).await;
    rules.app("team-b", "victim", Some("n2")).await;
    rules
        .cluster_role("reader", json!([rule("horchestra.io", &["applications"], &["get", "list", "watch"])]))
        .await;
    rules.bind("team-a", "alice", "ClusterRole", "reader").await;
    let alice = stack.client(ALICE, Protocol::Http2);
    assert_eq!(names(&alice.get("/api/v1/pods").await.json()), ["own"]);
    assert_eq!(names(&alice.get("/api/v1/namespaces/team-b/pods").await.json()), [""; 0]);
    for (path, status) in [
        ("/api/v1/pods/own", 200),
        ("/api/v1/namespaces/team-a/pods/own", 200),
        // No relay is there, so a log that may be read is 503; what may not be read does not exist.
        ("/api/v1/pods/own/log", 503),
        ("/api/v1/pods/victim", 404),
        ("/api/v1/pods/victim/log", 404),
        ("/api/v1/namespaces/team-b/pods/victim", 404),
        ("/api/v1/namespaces/team-b/pods/victim/log", 404),
        ("/api/v1/namespaces/team-a/pods/victim", 404),
        ("/api/v1/pods?watch=1&timeoutSeconds=1", 403),
        ("/api/v1/namespaces/team-b/pods?watch=1&timeoutSeconds=1", 403),
        ("/api/v1/namespaces/team-a/pods?watch=1&timeoutSeconds=1", 200),
        ("/api/v1/nodes", 403),
        ("/api/v1/nodes/n1", 403),
    ] {
        assert_eq!(alice.get(path).await.status, status, "{path}");
    }
    // One verb does not stand for the other.
    rules.cluster_role("lister", json!([rule("horchestra.io", &["applications"], &["list"])])).await;
    rules.bind("team-b", "bob", "ClusterRole", "lister").await;
    let bob = stack.client(BOB, Protocol::Http2);
    assert_eq!(names(&bob.get("/api/v1/pods").await.json()), ["victim"]);
    assert_eq!(bob.get("/api/v1/pods/victim").await.status, 404);
    // A node sees what runs on it, even if more was granted to it.
    rules.bind_everywhere("n1", "reader").await;
    let node = stack.client(Who::Node("n1"), Protocol::Http2);
    assert_eq!(names(&node.get("/api/v1/pods").await.json()), ["own"]);
    for (path, status) in [
        ("/api/v1/pods/own", 200),
        ("/api/v1/pods/own/log", 503),
        ("/api/v1/pods/victim", 404),
        ("/api/v1/pods/victim/log", 404),
        ("/api/v1/pods?watch=1&timeoutSeconds=1", 403),
        ("/apis/horchestra.io/v1/nodes/n1", 200),
        ("/apis/horchestra.io/v1/nodes/n2", 403),
    ] {
        assert_eq!(node.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_grant_of_a_path_opens_that_path_alone() {
    let (stack, rules) = world().await;
    // Nothing is served there that needs a grant, so 404 says that the request was let through.
    let alice = stack.client(ALICE, Protocol::Http2);
    rules.cluster_role("docs", json!([{"nonResourceURLs": ["/api/v1/*", "*"], "verbs": ["get"]}])).await;
    rules.bind_everywhere("alice", "docs").await;
    // A grant of paths never opens a resource.
    for path in ["/api/v1/nodes", "/api/v1/events", "/apis/horchestra.io/v1/nodes"] {
        assert_eq!(alice.get(path).await.status, 403, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_granted_can_be_used_at_the_other_at_once() {
    let database = database().await;
    let (here, operator) = replica(&database).await;
    let (there, _) = replica(&database).await;
    let rules = Rules(operator);
    let alice = there.client(ALICE, Protocol::Http2);
    for number in 0..40 {
        let namespace = format!("n{number}");
        let apps = format!("{CORE}/namespaces/{namespace}/applications");
        rules.namespace(&namespace).await;
        rules.role(&namespace, "reader", json!([rule("horchestra.io", &["applications"], &["list"])])).await;
        assert_eq!(alice.get(&apps).await.status, 403, "{namespace}");
        rules.bind(&namespace, "alice", "Role", "reader").await;
        assert_eq!(alice.get(&apps).await.status, 200, "{namespace}");
        let seen = alice.get(&format!("{CORE}/namespaces")).await.json();
        assert!(names(&seen).contains(&namespace), "{namespace}: {seen}");
    }
    here.store.shutdown().await;
    there.store.shutdown().await;
}
