//! What may I, what may they, who am I: over HTTP, and as kubectl asks.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Protocol, Reply};
use crate::kubectl::{Kubectl, with_every_kubectl};
use crate::rbac::{Rules, rule};
use crate::stack::{Stack, Who};

const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";
const ALICE: Who = Who::User("alice", "team");
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// alice edits applications and reads one Secret in `team-a`, and `/metrics`; bob asks about others.
async fn rights(stack: &Stack) {
    let rules = Rules(stack.master());
    let core = "horchestra.io";
    rules
        .role(
            "team-a",
            "editor",
            json!([
                rule(core, &["applications"], &["get", "list", "create", "update"]),
                {"apiGroups": [core], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["db"]},
            ]),
        )
        .await;
    rules.bind("team-a", "alice", "Role", "editor").await;
    rules.cluster_role("metrics", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])).await;
    rules.bind_everywhere("alice", "metrics").await;
    let reviews = ["subjectaccessreviews", "localsubjectaccessreviews"];
    rules.cluster_role("auditor", json!([rule("authorization.k8s.io", &reviews, &["create"])])).await;
    rules.bind_everywhere("bob", "auditor").await;
}

async fn ask(client: &Client, path: &str, spec: &Value) -> Reply {
    client.post(&format!("{AUTHORIZATION}/{path}"), &json!({ "spec": spec })).await
}

async fn allowed(client: &Client, path: &str, spec: &Value) -> bool {
    let reply = ask(client, path, spec).await;
    assert_eq!(reply.status, 201, "{spec}: {reply:?}");
    let answer = reply.json();
    assert_eq!(answer["spec"], *spec);
    assert_eq!(answer["apiVersion"], "authorization.k8s.io/v1");
    answer["status"]["allowed"].as_bool().unwrap()
}

fn resource(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Value {
    let mut attributes = json!({"verb": verb, "resource": resource});
    for (member, value) in [("group", group), ("namespace", namespace), ("name", name)] {
        if !value.is_empty() {
            attributes[member] = json!(value);
        }
    }
    json!({ "resourceAttributes": attributes })
}

#[tokio::test]
async fn answers_are_those_that_a_request_would_get() {
    let stack = Stack::with_namespaces().await;
    rights(&stack).await;
    let core = "horchestra.io";
    let path = |verb: &str, path: &str| json!({"nonResourceAttributes": {"path": path, "verb": verb}});
    let mut status = resource("get", core, "applications", "team-a", "");
    status["resourceAttributes"]["subresource"] = json!("status");
    let mut session = resource("get", core, "nodes", "", "n");
    session["resourceAttributes"]["subresource"] = json!("sessionlog");
    let cases = [
        (resource("create", core, "applications", "team-a", ""), true),
        (resource("patch", core, "applications", "team-a", "web"), true),
        (resource("delete", core, "applications", "team-a", "web"), false),
        (resource("create", core, "applications", "default", ""), false),
        (resource("list", core, "applications", "", ""), false),
        (status, false),
        (resource("get", core, "secrets", "team-a", "db"), true),
        (resource("get", core, "secrets", "team-a", "other"), false),
        (resource("get", core, "secrets", "team-a", ""), false),
        (resource("*", "*", "*", "team-a", ""), false),
        (resource("get", core, "nosuch", "team-a", ""), false),
        // As the core group shows them.
        (resource("list", "", "pods", "team-a", ""), true),
        (resource("list", "", "pods", "default", ""), false),
        (resource("list", "", "namespaces", "", ""), true),
        (resource("get", "", "namespaces", "", "team-a"), false),
        (resource("list", "", "nodes", "", ""), false),
        (resource("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", ""), true),
        (resource("create", "authorization.k8s.io", "subjectaccessreviews", "", ""), false),
        (session, false),
        (path("get", "/metrics"), true),
        (path("post", "/metrics"), false),
        (path("get", "/logs"), false),
        (path("get", "/version"), true),
    ];
    let alice = stack.client(ALICE, Protocol::Http2);
    let bob = stack.client(Who::User("bob", "auditors"), Protocol::Http2);
    for (spec, expected) in &cases {
        assert_eq!(allowed(&alice, "selfsubjectaccessreviews", spec).await, *expected, "{spec}");
        // The same about alice, and to the letter about somebody else.
        for (user, expected) in [("alice", *expected), ("nobody", false)] {
            let mut about = spec.clone();
            about["user"] = json!(user);
            if user == "nobody" && allowed_to_all(spec) {
                continue;
            }
            assert_eq!(allowed(&bob, "subjectaccessreviews", &about).await, expected, "{about}");
        }
    }
    let mut about = resource("get", core, "applications", "team-a", "web");
    about["user"] = json!("alice");
    assert!(allowed(&bob, "namespaces/team-a/localsubjectaccessreviews", &about).await);
    let mut masters = resource("delete", core, "nodes", "", "");
    masters["groups"] = json!(["system:masters"]);
    assert!(allowed(&bob, "subjectaccessreviews", &masters).await);
    // Nothing is stored.
    assert_eq!(stack.master().get(&format!("{AUTHORIZATION}/selfsubjectaccessreviews")).await.status, 405);
}

/// What everybody with an identity may do.
fn allowed_to_all(spec: &Value) -> bool {
    let resource = spec["resourceAttributes"]["resource"].as_str().unwrap_or_default();
    let verb = spec["resourceAttributes"]["verb"].as_str().unwrap_or_default();
    (resource == "namespaces" && verb == "list")
        || resource == "selfsubjectaccessreviews"
        || spec["nonResourceAttributes"]["path"] == "/version"
}

#[tokio::test]
async fn everything_that_one_may_do_is_listed() {
    let stack = Stack::with_namespaces().await;
    rights(&stack).await;
    let alice = stack.client(ALICE, Protocol::Http2);
    let rules = |namespace: &str| {
        let spec = json!({ "namespace": namespace });
        let alice = alice.clone();
        async move {
            let reply = ask(&alice, "selfsubjectrulesreviews", &spec).await;
            assert_eq!(reply.status, 201, "{reply:?}");
            reply.json()["status"].clone()
        }
    };
    let own = json!({"verbs": ["get", "list", "create", "update", "patch"], "apiGroups": ["horchestra.io"],
        "resources": ["applications"]});
    let secret = json!({"verbs": ["get"], "apiGroups": ["horchestra.io"], "resources": ["secrets"],
        "resourceNames": ["db"]});
    let everybody =
        json!({"verbs": ["list", "watch"], "apiGroups": ["horchestra.io"], "resources": ["namespaces"]});
    let here = rules("team-a").await;
    let there = rules("default").await;
    assert_eq!(here["incomplete"], false);
    for (rule, anywhere) in [(own, false), (secret, false), (everybody, true)] {
        assert!(here["resourceRules"].as_array().unwrap().contains(&rule), "{rule} is not in {here}");
        assert_eq!(there["resourceRules"].as_array().unwrap().contains(&rule), anywhere, "{rule}");
    }
    let metrics = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]});
    assert!(there["nonResourceRules"].as_array().unwrap().contains(&metrics));
    let master =
        ask(&stack.master(), "selfsubjectrulesreviews", &json!({"namespace": "default"})).await.json();
    assert_eq!(
        master["status"]["resourceRules"],
        json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])
    );
}

#[tokio::test]
async fn everybody_learns_who_they_are() {
    let stack = Stack::start().await;
    let alice = stack.client(ALICE, Protocol::Http2);
    for version in ["v1", "v1beta1"] {
        let path = format!("/apis/authentication.k8s.io/{version}/selfsubjectreviews");
        let reply = alice.post(&path, &json!({"kind": "SelfSubjectReview"})).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let answer = reply.json();
        assert_eq!(answer["apiVersion"], format!("authentication.k8s.io/{version}"));
        let user = json!({"username": "alice", "groups": ["team", "system:authenticated"]});
        assert_eq!(answer["status"]["userInfo"], user);
        assert_eq!(stack.client(Who::Anonymous, Protocol::Http2).post(&path, &json!({})).await.status, 401);
    }
}

#[tokio::test]
async fn bodies_come_in_three_encodings_and_answers_in_two() {
    let stack = Stack::with_namespaces().await;
    rights(&stack).await;
    let alice = stack.client(ALICE, Protocol::Http2);
    let path = format!("{AUTHORIZATION}/selfsubjectaccessreviews");
    // As kubectl 1.33 asks whether applications can be created in team-a.
    let protobuf = "6b3873000a320a17617574686f72697a6174696f6e2e6b38732e696f2f7631121753656c665375626a656374416363657373\
        52657669657712530a100a0012001a0022002a0032003800420012350a330a067465616d2d6112066372656174651a0d686f72636865\
        73747261 2e696f22002a0c6170706c69636174696f6e7332003a001a080800120 01a0020001a002200"
        .replace(char::is_whitespace, "");
    let protobuf: Vec<u8> = (0..protobuf.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&protobuf[at..at + 2], 16).unwrap())
        .collect();
    let yaml = "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nmetadata: {}\nspec:\n  \
                resourceAttributes: {verb: create, group: horchestra.io, resource: applications, namespace: team-a}\n";
    let json = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "metadata": {"creationTimestamp": null}, "status": {"allowed": false}, "unknown": 1,
        "spec": {"unknown": 1, "resourceAttributes":
            {"verb": "create", "group": "horchestra.io", "resource": "applications", "namespace": "team-a"}}});
    let asked = format!("{PROTOBUF},application/json");
    let cases: [(&str, Vec<u8>, &str, &str); 5] = [
        (PROTOBUF, protobuf.clone(), &asked, "application/json"),
        (PROTOBUF, protobuf, "application/yaml", "application/yaml"),
        ("application/yaml", yaml.as_bytes().to_vec(), "application/json", "application/json"),
        ("application/json", json.to_string().into_bytes(), "application/json, */*", "application/json"),
        ("application/json", json.to_string().into_bytes(), "application/yaml", "application/yaml"),
    ];
    for (content_type, body, accept, answered) in cases {
        let headers = [("content-type", content_type), ("accept", accept)];
        let reply = alice.send(Method::POST, &path, &headers, body).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (201, answered),
            "{content_type}: {reply:?}"
        );
        assert!(reply.text().replace(['"', ' '], "").contains("allowed:true"), "{reply:?}");
    }
    let refused: [(&str, &str, &str, u16); 6] = [
        ("text/plain", "{}", "*/*", 415),
        ("application/json", "{}", PROTOBUF, 406),
        ("application/json", "{}", "application/json;as=Table;v=v1;g=meta.k8s.io", 406),
        ("application/json", "[1", "*/*", 400),
        (PROTOBUF, "{}", "*/*", 400),
        ("application/json", r#"{"kind": "SubjectAccessReview"}"#, "*/*", 400),
    ];
    for (content_type, body, accept, code) in refused {
        let headers = [("content-type", content_type), ("accept", accept)];
        let reply = alice.send(Method::POST, &path, &headers, body.to_owned()).await;
        assert_eq!(reply.status, code, "{content_type} {body}: {reply:?}");
    }
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused_with_the_field() {
    let stack = Stack::with_namespaces().await;
    let master = stack.master();
    let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {}, "user": "alice"});
    let mut elsewhere = resource("get", "", "pods", "default", "");
    elsewhere["user"] = json!("alice");
    let path = json!({"nonResourceAttributes": {"path": "/", "verb": "get"}, "user": "alice"});
    let cases = [
        ("selfsubjectaccessreviews", json!({}), 422, "spec"),
        ("selfsubjectaccessreviews", both.clone(), 422, "spec"),
        ("selfsubjectaccessreviews", json!({"resourceAttributes": 1}), 400, "spec"),
        ("subjectaccessreviews", both, 422, "spec"),
        ("subjectaccessreviews", resource("get", "", "pods", "", ""), 422, "spec.user"),
        ("namespaces/team-a/localsubjectaccessreviews", elsewhere, 422, "spec.resourceAttributes.namespace"),
        ("namespaces/team-a/localsubjectaccessreviews", path, 422, "spec.nonResourceAttributes"),
        ("selfsubjectrulesreviews", json!({}), 400, "spec.namespace"),
    ];
    for (review, spec, code, field) in cases {
        let reply = ask(&master, review, &spec).await;
        assert_eq!(reply.status, code, "{review} {spec}: {reply:?}");
        assert!(reply.message().contains(field), "{review} {spec}: {}", reply.message());
    }
    for path in
        ["localsubjectaccessreviews", "namespaces/team-a/subjectaccessreviews", "selfsubjectaccessreviews/x"]
    {
        assert_eq!(ask(&master, path, &json!({})).await.status, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_asks_what_it_may_do() {
    with_every_kubectl(can_i).await;
}

async fn can_i(stack: &Stack, operator: &Kubectl) {
    rights(stack).await;
    let kubectl = Kubectl {
        program: operator.program.clone(),
        kubeconfig: stack.kubeconfig_of(ALICE, "alice"),
        home: operator.home.clone(),
    };
    let name = kubectl.program.display().to_string();
    let apps = "applications.horchestra.io";
    let cases: [(&[&str], bool); 14] = [
        (&["create", apps, "-n", "team-a"], true),
        (&["create", apps, "-n", "default"], false),
        (&["delete", apps, "-n", "team-a"], false),
        (&["patch", "applications.horchestra.io/web", "-n", "team-a"], true),
        (&["list", apps, "-A"], false),
        (&["get", apps, "--subresource=status", "-n", "team-a"], false),
        (&["get", "secrets.horchestra.io/db", "-n", "team-a"], true),
        (&["get", "secrets.horchestra.io/other", "-n", "team-a"], false),
        (&["get", "pods", "-n", "team-a"], true),
        (&["get", "/metrics"], true),
        (&["get", "/logs"], false),
        (&["get", "nosuch.horchestra.io", "-n", "team-a"], false),
        (&["*", "*", "-n", "team-a"], false),
        (&["list", "namespaces.horchestra.io"], true),
    ];
    for (args, yes) in cases {
        let output = kubectl.try_run(&[&["auth", "can-i"], args].concat()).await;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, if yes { "yes" } else { "no" }, "{name} {args:?}: {errors}");
        assert_eq!(output.status.code(), Some(i32::from(!yes)), "{name} {args:?}");
    }
    assert_eq!(operator.run(&["auth", "can-i", "*", "*"]).await.trim(), "yes", "{name}");
    let list = kubectl.run(&["auth", "can-i", "--list", "-n", "team-a"]).await;
    for part in [apps, "secrets.horchestra.io", "[db]", "[/metrics]", "selfsubjectaccessreviews"] {
        assert!(list.contains(part), "{name}: no {part} in {list}");
    }
    let who = kubectl.run(&["auth", "whoami"]).await;
    assert!(
        who.contains("alice") && who.contains("team") && who.contains("system:authenticated"),
        "{name}: {who}"
    );
    let refused = kubectl.refused(&["auth", "can-i", "get", "pods", "--as", "bob"]).await;
    assert!(refused.contains("impersonation is not supported"), "{name}: {refused}");
    // Some versions put words of their own in place of the reason.
    kubectl.refused(&["auth", "whoami", "--as", "bob"]).await;
}
