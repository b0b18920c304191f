//! What rule objects grant, case by case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use horchestra_auth::rbac::{
    AuthorizationError, COMBINATIONS_LIMIT, FixedPolicy, Policy, PolicyError, PolicySource, PolicyVersion,
};
use horchestra_auth::{Attributes, Authorizer};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::plain::World;
use crate::somebody;

/// Rule objects in short: `roles` and `bindings` are `[namespace, …]`, their cluster-wide kin are without one.
fn world(objects: Value) -> World {
    let mut world = World::default();
    let list = |member: &str| objects[member].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let read = |value: &Value| serde_json::from_value(value.clone()).unwrap();
    world.namespaces = list("namespaces").iter().map(text).collect();
    for role in list("roles") {
        world.roles.push((text(&role[0]), text(&role[1]), serde_json::from_value(role[2].clone()).unwrap()));
    }
    for role in list("clusterRoles") {
        world.cluster_roles.push((text(&role[0]), serde_json::from_value(role[1].clone()).unwrap()));
    }
    for binding in list("bindings") {
        world.bindings.push((text(&binding[0]), read(&binding[1])));
    }
    world.cluster_bindings = list("clusterBindings").iter().map(read).collect();
    world
}

fn judge(objects: Value) -> Authorizer {
    Authorizer::new(FixedPolicy::new(world(objects).policy()))
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn user(name: &str, role_kind: &str, role: &str) -> Value {
    json!({"subjects": [{"kind": "User", "name": name}], "roleRef": {"kind": role_kind, "name": role}})
}

/// `verb group/resource[/subresource] [@namespace] [:name]`, or `verb /path`.
fn allowed(authorizer: &Authorizer, who: &str, groups: &[&str], asked: &str) -> bool {
    let (verb, rest) = asked.split_once(' ').unwrap();
    let who = somebody(who, groups);
    if rest.starts_with('/') {
        return authorizer.authorize(&who, &Attributes::path(verb, rest)).unwrap().allowed;
    }
    let (mut namespace, mut name, mut target) = ("", "", "");
    for word in rest.split(' ') {
        match word.as_bytes()[0] {
            b'@' => namespace = &word[1..],
            b':' => name = &word[1..],
            _ => target = word,
        }
    }
    let (group, resource) = target.split_once('/').unwrap();
    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let asked = Attributes::resource(verb, group, resource, namespace, name).of_subresource(sub);
    authorizer.authorize(&who, &asked).unwrap().allowed
}

const H: &str = "horchestra.io";

/// A world, and questions with their answers: the asking user, the question, whether it is allowed.
struct Case {
    name: &'static str,
    world: Value,
    answers: &'static [(&'static str, &'static str, bool)],
}

fn cases() -> Vec<Case> {
    let reading = rule(&[H], &["applications"], &["get", "list"]);
    let everything = rule(&["*"], &["*"], &["*"]);
    let namespaces = json!(["team-a", "team-b"]);
    vec![
        Case {
            name: "a role in a namespace",
            world: json!({"namespaces": namespaces, "roles": [["team-a", "r", [reading]]],
                "bindings": [["team-a", user("alice", "Role", "r")]]}),
            answers: &[
                ("alice", "get horchestra.io/applications @team-a :web", true),
                ("alice", "list horchestra.io/applications @team-a", true),
                ("alice", "delete horchestra.io/applications @team-a :web", false),
                ("alice", "create horchestra.io/applications @team-a", false),
                ("alice", "list horchestra.io/applications @team-b", false),
                ("alice", "list horchestra.io/applications", false),
                ("alice", "get horchestra.io/nodes :n", false),
                ("alice", "list horchestra.io/nodes", false),
                ("alice", "get other.io/applications @team-a :web", false),
                ("bob", "get horchestra.io/applications @team-a :web", false),
            ],
        },
        Case {
            name: "a role that lists everything",
            world: json!({"namespaces": namespaces, "roles": [["team-a", "r", [everything]]],
                "bindings": [["team-a", user("alice", "Role", "r")]]}),
            answers: &[
                ("alice", "get horchestra.io/applications @team-a :web", true),
                ("alice", "create horchestra.io/applications @team-a", true),
                ("alice", "deletecollection horchestra.io/secrets @team-a", true),
                ("alice", "escalate rbac.horchestra.io/roles @team-a :r", true),
                ("alice", "get horchestra.io/applications/metrics @team-a :web", true),
                ("alice", "get horchestra.io/applications @team-b :web", false),
                ("alice", "get horchestra.io/nodes :n", false),
                ("bob", "get horchestra.io/applications @team-a :web", false),
            ],
        },
        Case {
            name: "a cluster role bound everywhere",
            world: json!({"namespaces": namespaces,
                "clusterRoles": [["r", [reading, rule(&[H], &["nodes"], &["list"])]]],
                "clusterBindings": [user("alice", "ClusterRole", "r")]}),
            answers: &[
                ("alice", "list horchestra.io/applications @team-a", true),
                ("alice", "list horchestra.io/applications @team-b", true),
                ("alice", "list horchestra.io/applications", true),
                ("alice", "list horchestra.io/nodes", true),
                ("alice", "create horchestra.io/applications @team-a", false),
                ("alice", "get horchestra.io/nodes :n", false),
            ],
        },
        Case {
            name: "a cluster role bound in one namespace",
            world: json!({"namespaces": namespaces,
                "clusterRoles": [["r", [reading, rule(&[H], &["nodes"], &["list"])]]],
                "bindings": [["team-a", user("alice", "ClusterRole", "r")]]}),
            answers: &[
                ("alice", "list horchestra.io/applications @team-a", true),
                ("alice", "list horchestra.io/applications @team-b", false),
                ("alice", "list horchestra.io/nodes", false),
            ],
        },
        Case {
            name: "a binding outlives its namespace",
            world: json!({"namespaces": ["team-b"], "roles": [["team-a", "r", [reading]], ["team-b", "r", [reading]]],
                "bindings": [["team-a", user("alice", "Role", "r")], ["team-b", user("alice", "Role", "r")]]}),
            answers: &[
                ("alice", "list horchestra.io/applications @team-a", false),
                ("alice", "list horchestra.io/applications @team-b", true),
            ],
        },
        Case {
            name: "references that lead nowhere, and subjects of other kinds",
            world: json!({"namespaces": namespaces, "roles": [["team-a", "r", [everything]], ["team-b", "far", [everything]]],
                "clusterRoles": [["c", [everything]]],
                "bindings": [
                    ["team-a", user("alice", "Role", "missing")],
                    ["team-a", user("alice", "Role", "far")],
                    ["team-a", user("alice", "Role", "c")],
                    ["team-a", user("alice", "ClusterRole", "r")],
                    ["team-a", user("alice", "role", "r")],
                    ["team-a", {"subjects": [{"kind": "ServiceAccount", "name": "alice"}],
                        "roleRef": {"kind": "Role", "name": "r"}}],
                    ["team-a", {"subjects": [{"kind": "Group", "name": "alice"}],
                        "roleRef": {"kind": "Role", "name": "r"}}],
                ],
                "clusterBindings": [user("alice", "Role", "r"), user("alice", "ClusterRole", "missing"),
                    {"subjects": [{"kind": "Group", "name": "system:controllers"}],
                        "roleRef": {"kind": "ClusterRole", "name": "c"}}]}),
            answers: &[
                ("alice", "list horchestra.io/applications @team-a", false),
                ("alice", "list horchestra.io/applications @team-b", false),
                ("alice", "list horchestra.io/nodes", false),
                ("system:controllers", "list horchestra.io/nodes", false),
            ],
        },
        Case {
            name: "subresources stand for themselves",
            world: json!({"namespaces": namespaces, "clusterRoles": [
                    ["plain", [rule(&[H], &["applications", "nodes/*", "*/log", "app*", "applications/*"], &["get"])]],
                    ["metrics", [rule(&[H], &["applications/metrics"], &["get"])]],
                    ["all", [rule(&[H], &["*"], &["get"])]]],
                "clusterBindings": [user("alice", "ClusterRole", "plain"), user("bob", "ClusterRole", "metrics"),
                    user("carol", "ClusterRole", "all")]}),
            answers: &[
                ("alice", "get horchestra.io/applications @team-a :web", true),
                ("alice", "get horchestra.io/applications/metrics @team-a :web", false),
                ("alice", "get horchestra.io/nodes/log :n", false),
                ("alice", "get horchestra.io/applicationsets @team-a :s", false),
                ("bob", "get horchestra.io/applications/metrics @team-a :web", true),
                ("bob", "get horchestra.io/applications @team-a :web", false),
                ("carol", "get horchestra.io/nodes/log :n", true),
                ("carol", "get horchestra.io/nodes/sessionlog :n", false),
            ],
        },
        Case {
            name: "update includes patch, and nothing includes update",
            world: json!({"namespaces": namespaces, "clusterRoles": [
                    ["patch", [rule(&[H], &["nodes"], &["patch"])]], ["update", [rule(&[H], &["nodes"], &["update"])]]],
                "clusterBindings": [user("alice", "ClusterRole", "patch"), user("bob", "ClusterRole", "update")]}),
            answers: &[
                ("alice", "patch horchestra.io/nodes :n", true),
                ("alice", "update horchestra.io/nodes :n", false),
                ("bob", "patch horchestra.io/nodes :n", true),
                ("bob", "update horchestra.io/nodes :n", true),
                ("bob", "delete horchestra.io/nodes :n", false),
                ("bob", "deletecollection horchestra.io/nodes", false),
            ],
        },
        Case {
            name: "names",
            world: json!({"namespaces": namespaces, "roles": [["team-a", "r", [
                    {"apiGroups": [H], "resources": ["secrets"], "resourceNames": ["db", "", "*"],
                        "verbs": ["get", "create", "list"]}]]],
                "bindings": [["team-a", user("alice", "Role", "r")]]}),
            answers: &[
                ("alice", "get horchestra.io/secrets @team-a :db", true),
                ("alice", "get horchestra.io/secrets @team-a :other", false),
                ("alice", "list horchestra.io/secrets @team-a", false),
                ("alice", "create horchestra.io/secrets @team-a", false),
                ("alice", "get horchestra.io/secrets @team-b :db", false),
                ("alice", "get horchestra.io/services @team-a :db", false),
            ],
        },
        Case {
            name: "everybody, as a group",
            world: json!({"namespaces": namespaces, "clusterRoles": [["r", [reading]]],
                "clusterBindings": [{"subjects": [{"kind": "Group", "name": "system:authenticated"}],
                    "roleRef": {"kind": "ClusterRole", "name": "r"}}]}),
            answers: &[
                ("alice", "get horchestra.io/applications @team-a :web", true),
                ("bob", "get horchestra.io/applications @team-a :web", true),
                ("bob", "delete horchestra.io/applications @team-a :web", false),
            ],
        },
        Case {
            name: "paths",
            world: json!({"namespaces": namespaces, "clusterRoles": [
                    ["metrics", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]],
                    ["docs", [{"nonResourceURLs": ["/docs/*"], "verbs": ["*"]}]],
                    ["all", [{"nonResourceURLs": ["*"], "verbs": ["post"]}]]],
                "bindings": [["team-a", user("bob", "ClusterRole", "metrics")]],
                "clusterBindings": [user("prometheus", "ClusterRole", "metrics"), user("dora", "ClusterRole", "docs"),
                    user("eve", "ClusterRole", "all")]}),
            answers: &[
                ("prometheus", "get /metrics", true),
                ("prometheus", "post /metrics", false),
                ("prometheus", "get /metrics/debug", false),
                ("prometheus", "get /metrics/", false),
                // A binding in a namespace confers no path.
                ("bob", "get /metrics", false),
                ("dora", "get /docs/a/b", true),
                ("dora", "delete /docs/", true),
                ("dora", "get /docs", false),
                ("dora", "get /metrics", false),
                ("eve", "post /anything/at/all", true),
                ("eve", "get /anything", false),
                // Rules about everything are about resources.
                ("eve", "post horchestra.io/nodes", false),
            ],
        },
        Case {
            name: "a rule that spells out too much grants nothing, and takes nothing else along",
            world: json!({"namespaces": namespaces, "clusterRoles": [["r", [
                    {"apiGroups": (0..=COMBINATIONS_LIMIT).map(|n| format!("g{n}")).collect::<Vec<_>>(),
                        "resources": ["x"], "verbs": ["get"]}, reading]]],
                "clusterBindings": [user("alice", "ClusterRole", "r")]}),
            answers: &[
                ("alice", "get g1/x :a", false),
                ("alice", "get horchestra.io/applications @team-a :web", true),
            ],
        },
    ]
}

#[test]
fn rules_grant_what_they_say() {
    for Case { name, world, answers } in cases() {
        let authorizer = judge(world);
        for (who, asked, expected) in answers {
            assert_eq!(allowed(&authorizer, who, &[], asked), *expected, "{name}: {who} {asked}");
        }
    }
}

#[test]
fn built_in_grants_and_rules_add_up() {
    let authorizer = judge(json!({"namespaces": ["team-a"],
        "clusterRoles": [["all", [rule(&["*"], &["*"], &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]]],
        "clusterBindings": [user("node-1", "ClusterRole", "all"), user("alice", "ClusterRole", "all")]}));
    for who in ["alice", "node-1"] {
        for asked in ["get horchestra.io/nodes :n", "delete horchestra.io/secrets @team-a :s", "get /metrics"]
        {
            assert!(allowed(&authorizer, who, &["system:nodes"], asked), "{who} {asked}");
        }
        // No rule reaches the one target that is kept for controllers, whatever its spelling.
        for asked in ["get horchestra.io/nodes/sessionlog :n", "* horchestra.io/nodes/sessionlog"] {
            assert!(!allowed(&authorizer, who, &["system:masters"], asked), "{who} {asked}");
        }
        assert!(allowed(&authorizer, who, &["system:controllers"], "get horchestra.io/nodes/sessionlog :n"));
    }
}

#[test]
fn who_sees_which_namespaces() {
    let reading = rule(&[H], &["applications"], &["get", "list"]);
    let cluster =
        |rules: Value, binding: Value| json!({"clusterRoles": [["r", rules]], "clusterBindings": [binding]});
    let bound = || user("alice", "ClusterRole", "r");
    let own: &[&str] = &["team-a", "team-c"];
    let cases: Vec<(&str, Value, Option<&[&str]>)> = vec![
        ("bindings only", json!({}), Some(own)),
        ("a cluster-wide reader", cluster(json!([reading]), bound()), None),
        ("everything", cluster(json!([rule(&["*"], &["*"], &["*"])]), bound()), None),
        ("a watch alone", cluster(json!([rule(&["*"], &["secrets"], &["watch"])]), bound()), None),
        ("a subresource", cluster(json!([rule(&[H], &["applications/status"], &["get"])]), bound()), None),
        (
            "events in either shape",
            cluster(json!([rule(&["events.k8s.io"], &["events"], &["list"])]), bound()),
            None,
        ),
        ("a dangling role", cluster(json!([reading]), user("alice", "ClusterRole", "missing")), Some(own)),
        ("a role of the other kind", cluster(json!([reading]), user("alice", "Role", "r")), Some(own)),
        (
            "writing only",
            cluster(json!([rule(&[H], &["applications"], &["create", "update"])]), bound()),
            Some(own),
        ),
        ("no rules", cluster(json!([]), bound()), Some(own)),
        ("somebody else's", cluster(json!([reading]), user("bob", "ClusterRole", "r")), Some(own)),
        (
            "what lies in no namespace",
            cluster(json!([rule(&[H], &["nodes", "namespaces"], &["*"])]), bound()),
            Some(own),
        ),
        (
            "an unknown resource",
            cluster(json!([rule(&[H], &["widgets", "*/log", "app*"], &["get"])]), bound()),
            Some(own),
        ),
        (
            "another group",
            cluster(json!([rule(&["other.io"], &["applications"], &["get"])]), bound()),
            Some(own),
        ),
        ("no groups", cluster(json!([rule(&[], &["*"], &["*"])]), bound()), Some(own)),
        ("paths", cluster(json!([{"nonResourceURLs": ["*"], "verbs": ["*"]}]), bound()), Some(own)),
        (
            "one object by name",
            cluster(
                json!([{"apiGroups": [H], "resources": ["secrets"],
            "resourceNames": ["db"], "verbs": ["get"]}]),
                bound(),
            ),
            Some(own),
        ),
    ];
    let all = ["team-a", "team-b", "team-c", "gone"];
    for (name, mut objects, expected) in cases {
        objects["namespaces"] = json!(["team-a", "team-b", "team-c"]);
        objects["bindings"] = json!([
            // What is granted does not matter, that the Namespace exists does.
            ["team-a", user("alice", "Role", "missing")],
            ["team-c", {"subjects": [{"kind": "Group", "name": "team"}], "roleRef": {"kind": "Role", "name": "r"}}],
            ["gone", user("alice", "Role", "missing")],
            ["team-b", user("bob", "Role", "r")],
        ]);
        let authorizer = judge(objects);
        let visible = authorizer.visible_namespaces(&somebody("alice", &["team"])).unwrap();
        let seen: Vec<&str> = all.into_iter().filter(|namespace| visible.contains(namespace)).collect();
        match expected {
            None => assert!(visible.all(), "{name}"),
            Some(expected) => assert!(!visible.all() && seen == expected, "{name}: {seen:?}"),
        }
        assert!(
            authorizer.visible_namespaces(&somebody("root", &["system:masters"])).unwrap().all(),
            "{name}"
        );
    }
}

#[test]
fn callers_with_the_same_rights_share_an_enforcer() {
    let teams: Vec<String> = (0..200).map(|n| format!("team-{n}")).collect();
    let bindings: Vec<Value> =
        teams.iter().map(|team| json!([team, user(&format!("of-{team}"), "ClusterRole", "r")])).collect();
    let authorizer = judge(json!({"namespaces": teams, "bindings": bindings,
        "clusterRoles": [["r", [rule(&[H], &["applications"], &["get", "list"])]]]}));
    for team in &teams {
        let who = format!("of-{team}");
        assert!(allowed(&authorizer, &who, &[], &format!("get horchestra.io/applications @{team} :web")));
        assert!(allowed(&authorizer, &who, &[], &format!("list horchestra.io/applications @{team}")));
        assert!(!allowed(&authorizer, &who, &[], &format!("list horchestra.io/secrets @{team}")));
    }
    assert_eq!(authorizer.enforcers(), 1);
}

/// Rules whose state a test decides.
#[derive(Default)]
struct Scripted {
    version: Mutex<Option<i64>>,
    policy: Mutex<Option<Arc<Policy>>>,
    reads: AtomicUsize,
}

impl PolicySource for Scripted {
    fn version(&self) -> Option<PolicyVersion> {
        self.version.lock().map(|revision| PolicyVersion { history: 7, revision })
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let version = self.version().ok_or(PolicyError::NotLoaded)?;
        let policy = self.policy.lock().clone();
        policy
            .map(|policy| (version, policy))
            .ok_or_else(|| PolicyError::Unreadable { source: "broken".into() })
    }
}

#[test]
fn a_policy_stands_until_the_next_one_is_built() {
    let source = Arc::new(Scripted::default());
    let authorizer = Authorizer::new(Arc::clone(&source));
    let alice = somebody("alice", &[]);
    let asked = Attributes::resource("list", H, "nodes", "", "");
    let granting = || {
        let objects = json!({"clusterRoles": [["r", [rule(&[H], &["nodes"], &["list"])]]],
            "clusterBindings": [user("alice", "ClusterRole", "r")]});
        Some(Arc::new(world(objects).policy()))
    };

    // Nothing is loaded: nothing is decided, apart from what needs no rules.
    assert!(matches!(authorizer.authorize(&alice, &asked), Err(AuthorizationError::NotLoaded)));
    assert!(matches!(authorizer.visible_namespaces(&alice), Err(AuthorizationError::NotLoaded)));
    assert!(authorizer.refresh().is_err() && authorizer.version().is_none());
    assert!(authorizer.authorize(&somebody("root", &["system:masters"]), &asked).unwrap().allowed);
    assert!(authorizer.authorize(&alice, &Attributes::path("get", "/version")).unwrap().allowed);
    // Loaded, but broken from the start.
    *source.version.lock() = Some(1);
    assert!(matches!(authorizer.authorize(&alice, &asked), Err(AuthorizationError::NotLoaded)));

    *source.policy.lock() = granting();
    *source.version.lock() = Some(2);
    let before = source.reads.load(Ordering::SeqCst);
    for _ in 0..10 {
        assert!(authorizer.authorize(&alice, &asked).unwrap().allowed);
    }
    assert_eq!(source.reads.load(Ordering::SeqCst), before + 1, "one state of the rules is read once");

    // The next state cannot be read: the one before stays, and is not read again for every request.
    *source.policy.lock() = None;
    *source.version.lock() = Some(3);
    let before = source.reads.load(Ordering::SeqCst);
    for _ in 0..10 {
        assert!(authorizer.authorize(&alice, &asked).unwrap().allowed);
    }
    assert!(source.reads.load(Ordering::SeqCst) < before + 10);

    *source.policy.lock() = Some(Arc::default());
    *source.version.lock() = Some(4);
    assert!(!authorizer.authorize(&alice, &asked).unwrap().allowed);
    // The source is away: what is known decides.
    *source.version.lock() = None;
    assert!(!authorizer.authorize(&alice, &asked).unwrap().allowed);
}
