//! What somebody may hand out, and what they may have a workload use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use horchestra_auth::Authorizer;
use horchestra_auth::rbac::{Policy, PolicyError, PolicySource, PolicyVersion};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_service::{Body, CachedRules, Caller, DeleteOptions, RequestContext, WriteOptions, Written};
use serde_json::{Value, json};

use crate::support::{World, admin, identity, kind_of};

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn role(name: &str, rules: Value) -> Value {
    json!({"kind": "Role", "metadata": {"name": name}, "spec": {"rules": rules}})
}

fn cluster_role(name: &str, rules: Value) -> Value {
    json!({"kind": "ClusterRole", "metadata": {"name": name}, "spec": {"rules": rules}})
}

fn binding(kind: &str, name: &str, user: &str, role_kind: &str, role: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": name}, "spec": {
        "subjects": [{"kind": "User", "name": user}], "roleRef": {"kind": role_kind, "name": role}}})
}

fn everywhere(name: &str, user: &str, role: &str) -> Value {
    binding("ClusterRoleBinding", name, user, "ClusterRole", role)
}

/// A world, and who is judged by its rules.
struct Ruled {
    world: World,
    authorizer: Arc<Authorizer>,
}

impl Ruled {
    async fn new(objects: &[Value]) -> Ruled {
        let world = World::new().await;
        for object in objects {
            world
                .create(object.clone())
                .await
                .unwrap_or_else(|status| panic!("{object}: {}", status.message));
        }
        let authorizer = Arc::new(Authorizer::new(CachedRules::new(world.service.store().clone())));
        Ruled { world, authorizer }
    }

    fn who(&self, name: &str) -> RequestContext {
        let Caller::Http(client) = identity(name, &[]).caller else { unreachable!() };
        RequestContext::new(Caller::http(client.identity, Arc::clone(&self.authorizer)))
    }

    async fn create(&self, who: &str, object: &Value) -> Result<Written, Status> {
        self.world.create_as(&self.who(who), object.clone()).await
    }

    async fn update(&self, who: &str, object: &Value) -> Result<Written, Status> {
        let kind = kind_of(object);
        let namespace = if kind.namespaced() { "default" } else { "" };
        let name = object["metadata"]["name"].as_str().unwrap();
        let key = Key { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let body = Body::Json(object.to_string().into());
        self.world.service.update(&self.who(who), &key, body, &WriteOptions::default()).await
    }

    /// Judges a create by its outcome: nothing expected means that it is admitted.
    async fn judge(&self, name: &str, who: &str, object: &Value, refusal: Option<&str>) {
        let outcome = self.create(who, object).await;
        match (outcome, refusal) {
            (Ok(_), None) => {}
            (Ok(_), Some(refusal)) => panic!("{name}: admitted, not refused with {refusal:?}"),
            (Err(status), None) => panic!("{name}: {}", status.message),
            (Err(status), Some(refusal)) => {
                assert_eq!(status.code(), 403, "{name}: {}", status.message);
                assert!(status.message.contains(refusal), "{name}: {}", status.message);
            }
        }
    }
}

const CORE: &str = "horchestra.io";

/// Rules of the world in which hands are given out: alice reads applications in `default` and `/metrics`,
/// bob holds everything there is in two groups and on paths, carol may escalate and bind, root holds everything.
fn hierarchy() -> Vec<Value> {
    vec![
        role("reader", json!([rule(&[CORE], &["applications", "applications/status"], &["get", "list"])])),
        binding("RoleBinding", "alice", "alice", "Role", "reader"),
        role(
            "named",
            json!([{"apiGroups": [CORE], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["db"]}]),
        ),
        binding("RoleBinding", "alice-named", "alice", "Role", "named"),
        role("editor", json!([rule(&[CORE], &["applications"], &["get", "update"])])),
        binding("RoleBinding", "dave", "dave", "Role", "editor"),
        cluster_role("metrics", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])),
        everywhere("alice-metrics", "alice", "metrics"),
        cluster_role(
            "everything",
            json!([rule(&["*"], &["*"], &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
        ),
        everywhere("root", "root", "everything"),
        cluster_role(
            "wild",
            json!([rule(&[CORE, "x"], &["*"], &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
        ),
        everywhere("bob", "bob", "wild"),
        cluster_role(
            "waiver",
            json!([
            rule(&["rbac.horchestra.io"], &["roles", "clusterroles"], &["escalate"]),
            {"apiGroups": ["rbac.horchestra.io"], "resources": ["roles", "clusterroles"], "verbs": ["bind"],
                "resourceNames": ["everything", "to-come"]}]),
        ),
        everywhere("carol", "carol", "waiver"),
    ]
}

#[tokio::test]
async fn nobody_hands_out_what_they_do_not_hold() {
    let ruled = Ruled::new(&hierarchy()).await;
    let reading = || rule(&[CORE], &["applications"], &["get", "list"]);
    let wild = json!([rule(&["*"], &["*"], &["*"])]);
    let path = |url: &str, verb: &str| json!([{"nonResourceURLs": [url], "verbs": [verb]}]);
    let named = |name: &str| json!([{"apiGroups": [CORE], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [name]}]);
    let many: Vec<String> = (0..101).map(|n| format!("r{n}")).collect();
    let many = json!([{"apiGroups": many, "resources": many, "verbs": ["get"]}]);
    let wildcard = Some("only a member of system:masters may hand out one");
    let cases: Vec<(&str, &str, Value, Option<&str>)> = vec![
        ("what she holds", "alice", role("a1", json!([reading()])), None),
        ("no rules at all", "alice", role("a2", json!([])), None),
        (
            "a subresource that she holds",
            "alice",
            role("a3", json!([rule(&[CORE], &["applications/status"], &["get"])])),
            None,
        ),
        (
            "what everybody holds",
            "alice",
            cluster_role("a4", json!([rule(&[CORE], &["namespaces"], &["list", "watch"])])),
            None,
        ),
        (
            "one verb more",
            "alice",
            role("x", json!([rule(&[CORE], &["applications"], &["get", "delete"])])),
            Some(
                "delete resource \"applications\" in API group \"horchestra.io\" in the namespace \"default\"",
            ),
        ),
        (
            "one resource more",
            "alice",
            role("x", json!([reading(), rule(&[CORE], &["secrets"], &["get"])])),
            Some("get resource \"secrets\""),
        ),
        (
            "another group",
            "alice",
            role("x", json!([rule(&["other.io"], &["applications"], &["get"])])),
            Some("in API group \"other.io\""),
        ),
        (
            "a subresource that she does not hold",
            "alice",
            role("x", json!([rule(&[CORE], &["applications/log"], &["get"])])),
            Some("\"applications/log\""),
        ),
        ("the object that she may read", "alice", role("a5", named("db")), None),
        ("another object", "alice", role("x", named("other")), Some("get resource \"secrets\"")),
        ("wildcards", "alice", role("x", wild.clone()), wildcard),
        ("a wildcard verb", "alice", role("x", json!([rule(&[CORE], &["applications"], &["*"])])), wildcard),
        (
            "wildcards of somebody who holds them",
            "bob",
            role("x", json!([rule(&[CORE], &["*"], &["*"])])),
            wildcard,
        ),
        ("whoever may do everything may escalate", "root", role("r1", wild.clone()), None),
        (
            "everything spelled out",
            "bob",
            role("b1", json!([rule(&[CORE, "x"], &["a", "b"], &["get", "list"])])),
            None,
        ),
        (
            "in another namespace",
            "alice",
            {
                let mut role = role("x", json!([reading()]));
                role["metadata"]["namespace"] = json!("other");
                role
            },
            Some("in the namespace \"other\""),
        ),
        (
            "everywhere, of what is held in one namespace",
            "alice",
            cluster_role("x", json!([reading()])),
            Some("at the cluster scope"),
        ),
        ("a path that she holds", "alice", cluster_role("a6", path("/metrics", "get")), None),
        ("another path", "alice", cluster_role("x", path("/logs", "get")), Some("get path \"/logs\"")),
        (
            "another method",
            "alice",
            cluster_role("x", path("/metrics", "post")),
            Some("post path \"/metrics\""),
        ),
        ("a wildcard path", "alice", cluster_role("x", path("/*", "get")), wildcard),
        ("a wildcard method", "alice", cluster_role("x", path("/metrics", "*")), wildcard),
        ("too much to look at", "bob", role("x", many.clone()), Some("spell out 10201 permissions")),
        (
            "patch of somebody who may update",
            "dave",
            role("d1", json!([rule(&[CORE], &["applications"], &["patch"])])),
            None,
        ),
        ("whoever may escalate", "carol", role("c1", wild.clone()), None),
        ("whoever may escalate, everywhere", "carol", cluster_role("c2", path("*", "*")), None),
        ("whoever may bind", "carol", everywhere("c3", "zoe", "everything"), None),
        ("whoever may bind, before the role is there", "carol", everywhere("c4", "zoe", "to-come"), None),
        ("escalate is not bind", "carol", everywhere("x", "carol", "metrics"), Some("get path \"/metrics\"")),
        ("binding what she holds", "alice", binding("RoleBinding", "a7", "eve", "Role", "reader"), None),
        (
            "binding more than she holds",
            "alice",
            binding("RoleBinding", "x", "alice", "Role", "editor"),
            Some("update resource \"applications\""),
        ),
        (
            "binding everything",
            "alice",
            binding("RoleBinding", "x", "alice", "ClusterRole", "everything"),
            wildcard,
        ),
        (
            "binding everywhere what is held in one namespace",
            "alice",
            everywhere("x", "alice", "everything"),
            wildcard,
        ),
        ("binding a path that she holds", "alice", everywhere("a8", "eve", "metrics"), None),
        (
            "binding a role that is not there",
            "alice",
            binding("RoleBinding", "x", "alice", "Role", "none"),
            Some("there is no Role \"none\""),
        ),
        (
            "binding a role of an unknown kind",
            "bob",
            binding("RoleBinding", "x", "alice", "Rolle", "reader"),
            Some("there is no Rolle \"reader\""),
        ),
        (
            "binding a Role everywhere",
            "bob",
            binding("ClusterRoleBinding", "x", "alice", "Role", "reader"),
            Some("there is no Role \"reader\""),
        ),
    ];
    for (name, who, object, refusal) in &cases {
        ruled.judge(name, who, object, *refusal).await;
    }
    // Operators and the system itself are not asked.
    for (name, rules) in [("m1", wild), ("m2", many)] {
        ruled.world.create(role(name, rules)).await.unwrap();
    }
    ruled.world.create(everywhere("m3", "alice", "none")).await.unwrap();
    let lease = ruled.world.lease("test").await;
    let object = role("l1", json!([rule(&["*"], &["*"], &["*"])]));
    ruled.world.create_as(&lease, object).await.unwrap();
}

#[tokio::test]
async fn every_update_of_a_role_is_judged_in_full_and_a_deletion_is_not() {
    let ruled = Ruled::new(&hierarchy()).await;
    let mut editor = role("editor", json!([rule(&[CORE], &["applications"], &["get", "update"])]));
    editor["metadata"]["labels"] = json!({"a": "b"});
    let status = ruled.update("alice", &editor).await.unwrap_err();
    assert!(status.code() == 403 && status.message.contains("update resource"), "{}", status.message);
    ruled.update("dave", &editor).await.expect("he holds all of it");
    let key = Key::namespaced(Kind::Role, "default", "editor");
    let deleted = ruled.world.service.delete(&ruled.who("alice"), &key, &DeleteOptions::default()).await;
    deleted.expect("what goes is not handed out");
}

#[tokio::test]
async fn the_group_of_the_control_plane_is_bound_by_nobody() {
    let world = World::new().await;
    for (kind, role_kind) in [("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")] {
        let mut object = binding(kind, "x", "alice", role_kind, "any");
        let subjects = object["spec"]["subjects"].as_array_mut().unwrap();
        subjects.push(json!({"kind": "Group", "name": "system:controllers"}));
        let status = world.create_as(&admin(), object).await.unwrap_err();
        assert_eq!(status.code(), 422);
        assert!(status.message.contains("spec.subjects[1]"), "{}", status.message);
    }
    // A user of that name is a user.
    world.create(everywhere("y", "system:controllers", "any")).await.unwrap();
}

/// alice reads the Secret `a` and the Service `front` of `default`, and everything in `other`.
fn readers() -> Vec<Value> {
    let mut objects = vec![
        role(
            "reader",
            json!([
            {"apiGroups": [CORE], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["a", "c"]},
            {"apiGroups": [CORE], "resources": ["services"], "verbs": ["get"], "resourceNames": ["front"]}]),
        ),
        binding("RoleBinding", "alice", "alice", "Role", "reader"),
    ];
    let mut all = role("all", json!([rule(&["*"], &["*"], &["*"])]));
    let mut bound = binding("RoleBinding", "alice", "alice", "Role", "all");
    for object in [&mut all, &mut bound] {
        object["metadata"]["namespace"] = json!("other");
    }
    objects.extend([all, bound]);
    for name in ["a", "b", "c"] {
        objects.push(json!({"kind": "Secret", "metadata": {"name": name}, "data": {"k": "dg=="}}));
    }
    for name in ["front", "back"] {
        objects
            .push(json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}));
    }
    objects
}

fn env(name: &str, secret: &str) -> Value {
    json!({"name": name, "secretRef": {"name": secret, "key": "k"}})
}

fn volume(path: &str, secret: &str) -> Value {
    json!({"mountPath": path, "volume": {"type": "secret", "name": secret}})
}

#[tokio::test]
async fn a_workload_uses_what_its_author_may_read() {
    let ruled = Ruled::new(&readers()).await;
    let app = |name: &str, more: Value| {
        let mut spec = json!({"image": "nginx"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"kind": "Application", "metadata": {"name": name}, "spec": spec})
    };
    let set = |name: &str, common: Value, second: Value| {
        let mut spec = json!({"image": "nginx"});
        spec.as_object_mut().unwrap().extend(second.as_object().unwrap().clone());
        json!({"kind": "ApplicationSet", "metadata": {"name": name}, "spec": {"common": common,
            "applications": [{"name": "first", "spec": {"image": "nginx"}}, {"name": "second", "spec": spec}]}})
    };
    let many = |count: usize| -> Value {
        json!({"env": (0..count).map(|n| {
            json!({"name": format!("E{n}"), "secretRef": {"name": format!("s{n}"), "key": "k", "optional": true}})
        }).collect::<Vec<_>>()})
    };
    let secret_b = Some("cannot get secret \"b\" in the namespace \"default\"");
    let back = Some("cannot get service \"back\" in the namespace \"default\"");
    let cases: Vec<(&str, Value, Option<&str>)> = vec![
        ("nothing", app("w1", json!({})), None),
        ("a readable secret", app("w2", json!({"env": [env("A", "a")]})), None),
        (
            "the same one many times, in every place",
            app(
                "w3",
                json!({
            "env": [env("A", "a"), env("B", "a"), env("C", "c")], "volumes": [volume("/a", "a"), volume("/c", "c")]}),
            ),
            None,
        ),
        ("an unreadable secret", app("x", json!({"env": [env("A", "a"), env("B", "b")]})), secret_b),
        ("an unreadable secret as a volume", app("x", json!({"volumes": [volume("/b", "b")]})), secret_b),
        (
            "an unreadable secret, all keys",
            app("x", json!({"env": [{"secretRef": {"name": "b", "key": "*"}}]})),
            secret_b,
        ),
        (
            "an optional one counts too",
            app(
                "x",
                json!({"env": [
            {"name": "B", "secretRef": {"name": "b", "key": "k", "optional": true}}]}),
            ),
            secret_b,
        ),
        ("a readable service", app("w4", json!({"serviceName": "front"})), None),
        ("an unreadable service", app("x", json!({"serviceName": "back"})), back),
        ("too many secrets", app("x", many(65)), Some("65 different secrets, at most 64")),
        ("a set without any", set("s1", json!({}), json!({})), None),
        (
            "a set with readable ones",
            set("s2", json!({"env": [env("A", "a")]}), json!({"serviceName": "front"})),
            None,
        ),
        ("a set's common block", set("x", json!({"volumes": [volume("/b", "b")]}), json!({})), secret_b),
        ("a set's second component", set("x", json!({}), json!({"env": [env("B", "b")]})), secret_b),
        ("a set that joins a service", set("x", json!({}), json!({"serviceName": "back"})), back),
    ];
    for (name, object, refusal) in &cases {
        ruled.judge(name, "alice", object, *refusal).await;
    }
    // Whoever may read nothing may still run what needs nothing.
    ruled.judge("nobody in particular", "eve", &app("w5", json!({})), None).await;
    ruled
        .judge(
            "nobody in particular",
            "eve",
            &app("x", json!({"env": [env("A", "a")]})),
            Some("cannot get secret \"a\""),
        )
        .await;
    // Operators are not asked.
    ruled
        .world
        .create_as(&admin(), app("w6", json!({"env": [env("B", "b")], "serviceName": "back"})))
        .await
        .unwrap();
    // Whoever changes what runs is judged in full, and whoever does not is not.
    let mut object = app("w6", json!({"env": [env("B", "b")], "serviceName": "back"}));
    object["metadata"]["labels"] = json!({"a": "b"});
    ruled.update("alice", &object).await.expect("a label is no matter of secrets");
    object["spec"]["image"] = json!("mine");
    let status = ruled.update("alice", &object).await.unwrap_err();
    assert!(status.code() == 403 && status.message.contains("secret \"b\""), "{}", status.message);
    let key = Key::namespaced(Kind::Application, "default", "w6");
    let deleted = ruled.world.service.delete(&ruled.who("alice"), &key, &DeleteOptions::default()).await;
    deleted.expect("nothing is read by what goes");
    // Loops write what the author of a set was asked about.
    let lease = ruled.world.lease("appset").await;
    let child = app("w7", json!({"env": [env("B", "b")], "serviceName": "back"}));
    ruled.world.create_as(&lease, child).await.unwrap();
}

/// The rules of a world, and how many decisions were asked of them.
struct Counted {
    rules: CachedRules,
    asked: Arc<AtomicUsize>,
}

impl PolicySource for Counted {
    fn version(&self) -> Option<PolicyVersion> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.rules.version()
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        self.rules.read()
    }
}

#[tokio::test]
async fn each_name_is_asked_about_once_and_what_is_too_much_not_at_all() {
    let mut ruled = Ruled::new(&readers()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let rules = CachedRules::new(ruled.world.service.store().clone());
    ruled.authorizer = Arc::new(Authorizer::new(Counted { rules, asked: Arc::clone(&asked) }));
    let app =
        |name: &str, spec: Value| json!({"kind": "Application", "metadata": {"name": name}, "spec": spec});
    let twice = json!({"image": "x", "env": [env("A", "a"), env("B", "a"), env("C", "c"), env("D", "a")],
        "volumes": [volume("/a", "a"), volume("/c", "c")]});
    let mut joining = twice.clone();
    joining["serviceName"] = json!("front");
    let set = json!({"kind": "ApplicationSet", "metadata": {"name": "set"}, "spec": {
        "common": {"env": [env("A", "a")]},
        "applications": [{"name": "one", "spec": {"image": "x", "volumes": [volume("/a", "a")]}},
            {"name": "two", "spec": {"image": "x", "env": [env("B", "c")]}}]}});
    for (what, object, questions) in [
        ("nothing", app("w0", json!({"image": "x"})), 0),
        ("two secrets, many times", app("w1", twice), 2),
        ("and a service", app("w2", joining), 3),
        ("a set", set, 2),
    ] {
        let before = asked.load(Ordering::Relaxed);
        ruled.judge(what, "alice", &object, None).await;
        assert_eq!(asked.load(Ordering::Relaxed) - before, questions, "{what}");
    }
    let many: Vec<String> = (0..101).map(|number| format!("r{number}")).collect();
    let giant = role("giant", json!([{"apiGroups": many, "resources": many, "verbs": ["get"]}]));
    let before = asked.load(Ordering::Relaxed);
    ruled.judge("a giant role", "alice", &giant, Some("spell out 10201 permissions")).await;
    // Whether she may escalate has to be known, on a view that may be behind and on a fresh one; and each time the
    // version of the rules is looked at once more, since the answer has to be about that view.
    let questions = asked.load(Ordering::Relaxed) - before;
    assert!(questions <= 4, "{questions} questions");
}
