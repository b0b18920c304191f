//! Coming by rights that nobody gave.

use serde_json::{Value, json};

use super::{CORE, Fleet, RBAC, apply, refused};
use crate::client::Client;
use crate::rbac::rule;
use crate::stack::Who;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// What may be written of rules, without the verbs that waive questions.
const WRITING: [&str; 7] = ["get", "list", "create", "update", "patch", "delete", "deletecollection"];

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"rules": rules}})
}

fn binding(name: &str, user: &str, kind: &str, role: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "subjects": [{"kind": "User", "name": user}], "roleRef": {"kind": kind, "name": role}}})
}

/// Whether the caller may do this on a path that is no resource.
async fn may_ask(client: &Client, path: &str) -> bool {
    let asked = json!({"spec": {"nonResourceAttributes": {"path": path, "verb": "get"}}});
    client.post(REVIEWS, &asked).await.json_of(201).unwrap()["status"]["allowed"] == true
}

/// Whether the caller may get this subresource of nodes.
async fn may_get(client: &Client, subresource: &str) -> bool {
    let asked = json!({"spec": {"resourceAttributes": {"group": "horchestra.io", "resource": "nodes",
        "subresource": subresource, "name": "n1", "verb": "get"}}});
    client.post(REVIEWS, &asked).await.json_of(201).unwrap()["status"]["allowed"] == true
}

/// alice may write rules of `team-a` and read its applications, and nothing else.
async fn with_alice() -> (Fleet, Client) {
    let fleet = Fleet::start().await;
    let rules = &fleet.rules;
    rules
        .role(
            "team-a",
            "lead",
            json!([
                rule("rbac.horchestra.io", &["roles", "rolebindings"], &WRITING),
                rule("horchestra.io", &["applications"], &["get", "list"]),
            ]),
        )
        .await;
    rules.bind("team-a", "alice", "Role", "lead").await;
    rules.cluster_role("all", json!([rule("*", &["*"], &["*"])])).await;
    rules.cluster_role("secrets", json!([rule("horchestra.io", &["secrets"], &["get", "list"])])).await;
    let alice = fleet.client(Who::User("alice", "team")).await;
    (fleet, alice)
}

#[tokio::test]
async fn a_tenant_does_not_widen_its_own_rights() {
    let (fleet, alice) = with_alice().await;
    fleet.secret("team-a", "db").await;
    let (roles, bindings) =
        (format!("{RBAC}/namespaces/team-a/roles"), format!("{RBAC}/namespaces/team-a/rolebindings"));
    let lead = format!("{roles}/lead");
    let secrets = rule("horchestra.io", &["secrets"], &["get"]);
    let own = alice.get(&lead).await.json();
    let wider = |rules: Value| {
        let mut wider = own.clone();
        wider["spec"]["rules"].as_array_mut().unwrap().push(rules);
        wider
    };
    let unheld = "cannot hand out what is not their own: get resource \"secrets\"";
    refused(&alice.put(&lead, &wider(secrets.clone())).await, unheld);
    let spec = wider(secrets.clone())["spec"].clone();
    refused(&alice.merge(&lead, &json!({"spec": spec})).await, unheld);
    let more = json!([{"op": "add", "path": "/spec/rules/-", "value": secrets}]);
    refused(&alice.json_patch(&lead, &more).await, unheld);
    let applied = json!({"apiVersion": "rbac.horchestra.io/v1", "kind": "Role", "metadata": {"name": "lead"},
        "spec": spec});
    refused(&apply(&alice, &lead, &applied).await, unheld);
    refused(&alice.post(&roles, &role("new", json!([secrets]))).await, unheld);
    let dry = alice.post(&format!("{roles}?dryRun=All"), &role("new", json!([secrets]))).await;
    refused(&dry, unheld);
    // A role that holds more is there already.
    for (name, kind, words) in [
        ("secrets", "ClusterRole", unheld),
        ("all", "ClusterRole", "only a member of system:masters may hand out one"),
        ("to-come", "Role", "there is no Role \"to-come\""),
        ("to-come", "ClusterRole", "there is no ClusterRole \"to-come\""),
    ] {
        refused(&alice.post(&bindings, &binding("mine", "alice", kind, name)).await, words);
    }
    let reader = json!([rule("horchestra.io", &["applications"], &["get"])]);
    assert_eq!(alice.post(&roles, &role("reader", reader.clone())).await.status, 201, "what she holds");
    let created = alice.post(&bindings, &binding("reader", "bob", "Role", "reader")).await;
    assert_eq!(created.status, 201, "{created:?}");
    // A binding that is hers is not led to another role.
    let path = format!("{bindings}/reader");
    for change in [
        json!({"spec": {"roleRef": {"kind": "ClusterRole", "name": "all"}}}),
        json!({"spec": {"roleRef": {"kind": "ClusterRole", "name": "secrets"}}}),
    ] {
        assert_eq!(alice.merge(&path, &change).await.status, 403, "{change}");
    }
    // The waiving verbs are rights like others, and so are rules of other places.
    for verb in ["escalate", "bind"] {
        let waiver = json!([rule("rbac.horchestra.io", &["roles"], &[verb])]);
        let words = format!("not their own: {verb} resource \"roles\"");
        refused(&alice.post(&roles, &role("waiver", waiver)).await, &words);
    }
    let elsewhere = alice.post(&format!("{RBAC}/namespaces/team-b/roles"), &role("r", reader.clone())).await;
    refused(&elsewhere, "cannot create resource \"roles\"");
    refused(
        &alice.post(&format!("{RBAC}/clusterroles"), &role("r", reader)).await,
        "cannot create resource \"clusterroles\"",
    );
    refused(
        &alice
            .post(&format!("{RBAC}/clusterrolebindings"), &binding("b", "alice", "ClusterRole", "all"))
            .await,
        "cannot create resource \"clusterrolebindings\"",
    );
    let secret = alice.get(&format!("{CORE}/namespaces/team-a/secrets/db")).await;
    refused(&secret, "cannot get resource \"secrets\"");
}

#[tokio::test]
async fn wildcards_are_handed_out_by_administrators_alone() {
    let fleet = Fleet::start().await;
    // Holds all there is in one group, and every path, and may write rules anywhere.
    fleet
        .rules
        .cluster_role(
            "wild",
            json!([
                rule("horchestra.io", &["*"], &["*"]),
                rule("rbac.horchestra.io", &["*"], &WRITING),
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        )
        .await;
    fleet.rules.bind_everywhere("wilma", "wild").await;
    let (wilma, master) = (fleet.client(Who::User("wilma", "people")).await, fleet.master());
    let cluster = format!("{RBAC}/clusterroles");
    let local = format!("{RBAC}/namespaces/team-a/roles");
    let path = |url: &str, verb: &str| json!([{"nonResourceURLs": [url], "verbs": [verb]}]);
    let cases = [
        (&local, json!([rule("horchestra.io", &["applications"], &["*"])])),
        (&local, json!([rule("horchestra.io", &["*"], &["get"])])),
        (&local, json!([rule("*", &["applications"], &["get"])])),
        (&local, json!([rule("horchestra.io", &["applications"], &["get", "*"])])),
        (&cluster, json!([rule("horchestra.io", &["nodes", "*"], &["get"])])),
        (&cluster, path("*", "get")),
        (&cluster, path("/metrics/*", "get")),
        (&cluster, path("/metrics", "*")),
    ];
    for (number, (collection, rules)) in cases.into_iter().enumerate() {
        let object = role(&format!("r{number}"), rules);
        let reply = wilma.post(collection, &object).await;
        refused(&reply, "has a wildcard, and only a member of system:masters may hand out one");
        assert_eq!(master.post(collection, &object).await.status, 201, "{object}");
    }
    let bound = wilma
        .post(&format!("{RBAC}/namespaces/team-a/rolebindings"), &binding("b", "zoe", "Role", "r0"))
        .await;
    refused(&bound, "has a wildcard");
    let spelled = role("spelled", json!([rule("horchestra.io", &["applications"], &["get", "list"])]));
    assert_eq!(wilma.post(&local, &spelled).await.status, 201, "what she holds, spelled out");
}

#[tokio::test]
async fn a_role_too_large_to_be_judged_is_refused_unjudged() {
    let fleet = Fleet::start().await;
    fleet
        .rules
        .cluster_role(
            "wild",
            json!([rule("*", &["*"], &["get", "list", "create", "update"]), {"nonResourceURLs": ["*"],
                "verbs": ["get", "post"]}]),
        )
        .await;
    fleet.rules.bind_everywhere("wilma", "wild").await;
    let wilma = fleet.client(Who::User("wilma", "people")).await;
    let words = |count: usize| (0..count).map(|number| format!("w{number}")).collect::<Vec<_>>();
    let resources = |groups, resources, names: usize, verbs: &[&str]| {
        let mut rule = json!({"apiGroups": words(groups), "resources": words(resources), "verbs": verbs});
        if names > 0 {
            rule["resourceNames"] = json!(words(names));
        }
        rule
    };
    let roles = format!("{RBAC}/clusterroles");
    let urls: Vec<String> = (0..5001).map(|number| format!("/w{number}")).collect();
    for (rules, count) in [
        (json!([resources(101, 100, 0, &["get"])]), 10_100),
        (json!([resources(1, 1, 10_001, &["get"])]), 10_001),
        // None of which is large by itself.
        (json!([resources(50, 100, 0, &["get", "list"]), resources(1, 1, 0, &["get"])]), 10_001),
        (json!([{"nonResourceURLs": urls, "verbs": ["get", "post"]}]), 10_004),
        (json!([resources(3000, 3000, 3000, &["get"])]), 27_000_000_000_u64),
    ] {
        let object = role("giant", rules);
        let text = format!("spell out {count} permissions");
        refused(&wilma.post(&roles, &object).await, &text);
    }
    let large = role("large", json!([resources(20, 50, 0, &["get"])]));
    let reply = wilma.post(&roles, &large).await;
    assert_eq!(reply.status, 201, "a thousand are judged: {}", reply.text());
    let giant = role("giant", json!([resources(101, 100, 0, &["get"])]));
    assert_eq!(fleet.master().post(&roles, &giant).await.status, 201, "administrators are not asked");
    let bound = binding("b", "zoe", "ClusterRole", "giant");
    let reply = wilma.post(&format!("{RBAC}/clusterrolebindings"), &bound).await;
    refused(&reply, "spell out 10100 permissions");
}

#[tokio::test]
async fn a_binding_in_a_namespace_opens_neither_paths_nor_the_cluster() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    fleet
        .rules
        .cluster_role(
            "viewer",
            json!([
                rule("horchestra.io", &["*"], &["get", "list", "watch"]),
                {"nonResourceURLs": ["/metrics", "/logs/*"], "verbs": ["get"]},
            ]),
        )
        .await;
    fleet.rules.bind("team-a", "alice", "ClusterRole", "viewer").await;
    fleet.rules.bind_everywhere("vera", "viewer").await;
    let alice = fleet.client(Who::User("alice", "team")).await;
    let vera = fleet.client(Who::User("vera", "team")).await;
    for (path, in_namespace) in [
        ("namespaces/team-a/applications", true),
        ("namespaces/team-a/secrets", true),
        ("namespaces/team-b/applications", false),
        ("applications", false),
        ("applications?watch=1&timeoutSeconds=1", false),
        ("nodes", false),
        ("nodes/n1", false),
        ("namespaces/team-a", false),
        ("namespaces?watch=1&timeoutSeconds=1", false),
    ] {
        let path = format!("{CORE}/{path}");
        assert_eq!(vera.get(&path).await.status, 200, "{path}: bound everywhere it is open");
        assert_eq!(alice.get(&path).await.status, if in_namespace { 200 } else { 403 }, "{path}");
    }
    for path in ["/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/namespaces/team-a", "/api/v1/pods?watch=1"] {
        assert_eq!(alice.get(path).await.status, 403, "{path}");
    }
    for path in ["/metrics", "/logs/a"] {
        assert!(may_ask(&vera, path).await && !may_ask(&alice, path).await, "{path}");
    }
}

#[tokio::test]
async fn a_name_that_comes_back_brings_no_rights_with_it() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    let reading = json!([rule("horchestra.io", &["applications"], &["list"])]);
    fleet.rules.role("team-a", "reader", reading.clone()).await;
    fleet.rules.bind("team-a", "alice", "Role", "reader").await;
    let alice = fleet.client(Who::User("alice", "team")).await;
    let apps = format!("{CORE}/namespaces/team-a/applications");
    assert_eq!(alice.get(&apps).await.status, 200);
    // What would be left behind keeps the namespace.
    let namespace = format!("{CORE}/namespaces/team-a");
    let held = master.delete(&namespace).await;
    refused(&held, "rolebinding alice-");
    assert!(held.message().contains("role reader"), "{}", held.message());
    let bindings = format!("{RBAC}/namespaces/team-a/rolebindings");
    let roles = format!("{RBAC}/namespaces/team-a/roles");
    // One without the other grants nothing, and comes into force with the other, as whoever may bind it knows.
    assert_eq!(master.delete(&format!("{roles}/reader")).await.status, 200);
    refused(&alice.get(&apps).await, "cannot list");
    refused(&master.delete(&namespace).await, "rolebinding alice-");
    assert_eq!(master.delete(&bindings).await.status, 200);
    assert_eq!(master.delete(&namespace).await.status, 200);
    refused(&alice.get(&apps).await, "cannot list");
    fleet.rules.namespace("team-a").await;
    fleet.rules.role("team-a", "reader", reading).await;
    refused(&alice.get(&apps).await, "cannot list");
    let listed = alice.get(&format!("{CORE}/namespaces")).await.json();
    assert_eq!(listed["items"], json!([]), "nor does she learn of it");
    // Rights that are bound everywhere are those of a name: the object is another one, the right is not.
    fleet.rules.cluster_role("reader", json!([rule("horchestra.io", &["applications"], &["list"])])).await;
    fleet.rules.bind_everywhere("alice", "reader").await;
    assert_eq!(alice.get(&apps).await.status, 200);
}

#[tokio::test]
async fn who_reads_nodes_does_not_read_their_logs() {
    let fleet = Fleet::start().await;
    fleet.rules.node("n1").await;
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
    fleet.rules.cluster_role("nodes", json!([rule("horchestra.io", &["nodes", "nodes/*"], &verbs)])).await;
    fleet.rules.bind_everywhere("nora", "nodes").await;
    fleet.rules.cluster_role("logs", json!([rule("horchestra.io", &["nodes/log"], &["get"])])).await;
    fleet.rules.bind_everywhere("lars", "logs").await;
    fleet.rules.cluster_role("all", json!([rule("*", &["*"], &["*"])])).await;
    fleet.rules.bind_everywhere("root", "all").await;
    let nora = fleet.client(Who::User("nora", "people")).await;
    let lars = fleet.client(Who::User("lars", "people")).await;
    let root = fleet.client(Who::User("root", "people")).await;
    assert_eq!(nora.get(&format!("{CORE}/nodes/n1")).await.status, 200);
    for subresource in ["log", "status", "revisions", "sessionlog", "metrics"] {
        assert!(!may_get(&nora, subresource).await, "{subresource}");
    }
    assert!(may_get(&lars, "log").await && may_get(&root, "log").await);
    refused(&lars.get(&format!("{CORE}/nodes/n1")).await, "cannot get resource \"nodes\"");
    for route in ["status", "revisions"] {
        let reply = nora.get(&format!("{CORE}/nodes/n1/{route}")).await;
        refused(&reply, &format!("cannot get resource \"nodes/{route}\""));
    }
    // What is read between processes of the control plane is no rule's to give.
    assert!(!may_get(&root, "sessionlog").await && !may_get(&fleet.master(), "sessionlog").await);
    assert_eq!(root.get(&format!("{CORE}/nodes/n1/sessionlog")).await.status, 404);
}

#[tokio::test]
async fn names_in_rules_are_opaque() {
    let fleet = Fleet::start().await;
    let master = fleet.master();
    fleet.secret("team-a", "db").await;
    // Everything that means something in a policy file, in a matcher or in how a subject could be written down.
    let odd = [
        "mallory, *, *",
        "*",
        "g, mallory, system:masters",
        "p, mallory, *, *, *\np, x",
        "\"mallory\"",
        "mallory\"",
        "r.sub == 'mallory' || true",
        "' || true || '",
        "keyMatch(r.obj, '*')",
        "User:mallory",
        "u:mallory",
        "Group:people",
        "system:masters",
        "{{mallory}}",
        "mallory\r\n",
        "mallory\u{200b}",
        "Mallory",
        "mallory ",
        "people",
    ];
    let kinds = ["User", "Group"];
    for (number, text) in odd.iter().enumerate() {
        let words: &[&str] = &[text];
        let rules = json!([
            {"apiGroups": words, "resources": words, "verbs": words, "resourceNames": words},
            {"apiGroups": ["horchestra.io"], "resources": ["secrets"], "verbs": ["list"]},
        ]);
        let name = format!("odd-{number}");
        let made = master.post(&format!("{RBAC}/namespaces/team-a/roles"), &role(&name, rules)).await;
        assert_eq!(made.status, 201, "{text:?}: {made:?}");
        for kind in kinds {
            // A group of the name of a user, and a user of the name of a group.
            let subject = if kind == "Group" && *text == "people" { "mallory" } else { text };
            let mut bound = binding(&format!("{name}-{}", kind.to_lowercase()), subject, "Role", &name);
            bound["spec"]["subjects"][0]["kind"] = json!(kind);
            let made = master.post(&format!("{RBAC}/namespaces/team-a/rolebindings"), &bound).await;
            assert_eq!(made.status, 201, "{text:?}: {made:?}");
            assert_eq!(made.json()["spec"]["subjects"][0]["name"], subject, "stored to the letter");
        }
    }
    let secrets = format!("{CORE}/namespaces/team-a/secrets");
    let mallory = fleet.client(Who::User("mallory", "people")).await;
    refused(&mallory.get(&secrets).await, "User \"mallory\" cannot list");
    // Whoever really bears such a name gets what is bound to it, and not one word more.
    for name in ["mallory, *, *", "Group:people", "r.sub == 'mallory' || true", "\"mallory\""] {
        let bearer = fleet.client(Who::User(name, "others")).await;
        assert_eq!(bearer.get(&secrets).await.status, 200, "{name}");
        for path in ["namespaces/team-a/secrets/db", "namespaces/team-b/secrets", "secrets", "nodes"] {
            let reply = bearer.get(&format!("{CORE}/{path}")).await;
            assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{name} {path}");
        }
    }
}
