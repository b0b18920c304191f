//! The rules, one after the other: what is there before, the two requests, and what may come of them.

use serde_json::{Value, json};

use super::{Ask, GRANTER, Round, act, cluster, create, delete, delete_at, merge};
use crate::client::Reply;

#[derive(Debug)]
pub struct Outcome {
    /// Of the first and of the second request.
    pub codes: (u16, u16),
    /// What a request that was refused is told.
    pub told: &'static str,
    /// Comes about seldom, or not at all on some machines.
    pub rare: bool,
    /// Whether the second one has to be stored before the first.
    reversed: bool,
}

impl Outcome {
    /// Whether both were stored in the one order that the rule allows.
    pub fn is_in_order(&self, replies: [&Reply; 2]) -> bool {
        let revision =
            |reply: &Reply| reply.json()["metadata"]["resourceVersion"].as_str()?.parse::<i64>().ok();
        let [first, second] = replies.map(revision);
        !self.reversed || (first.is_some() && second < first)
    }
}

pub struct Rule {
    pub name: &'static str,
    pub setup: fn(&Round) -> Vec<Ask>,
    pub race: fn(&Round) -> [Ask; 2],
    pub outcomes: &'static [Outcome],
}

impl Rule {
    /// The namespace that the rounds of the rule share.
    pub fn namespace(&self) -> String {
        format!("n-{}", self.name)
    }
}

const fn one(first: u16, second: u16, told: &'static str) -> Outcome {
    Outcome { codes: (first, second), told, rare: false, reversed: false }
}

/// Both, if the second came first.
const fn reversed(first: u16, second: u16) -> Outcome {
    Outcome { codes: (first, second), told: "", rare: false, reversed: true }
}

const fn seldom(first: u16, second: u16, told: &'static str) -> Outcome {
    Outcome { codes: (first, second), told, rare: true, reversed: false }
}

fn app(name: &str, spec: Value) -> Value {
    let mut object = json!({"metadata": {"name": name}, "spec": {"image": "x"}});
    for (member, value) in spec.as_object().into_iter().flatten() {
        object["spec"][member] = value.clone();
    }
    object
}

fn new_app(round: &Round, which: &str, spec: Value) -> Ask {
    create(round.path("applications"), app(&round.named(which), spec))
}

fn mounting(volume: &str) -> Value {
    json!({"volumes": [{"mountPath": "/v", "volume": {"type": "pv", "name": volume}}]})
}

fn reading(secret: &str, optional: bool) -> Value {
    let source = json!({"name": secret, "key": "k", "optional": optional});
    json!({"env": [{"name": "A", "secretRef": source}]})
}

fn pinned(node: &str, cpu: &str) -> Value {
    json!({"placement": {"nodeName": node}, "resources": {"requests": {"cpu": cpu}}})
}

fn volume(round: &Round, shared: bool) -> Ask {
    let object = json!({"metadata": {"name": round.name}, "spec": {"shared": shared}});
    create(round.path("persistentvolumes"), object)
}

fn secret(round: &Round) -> Ask {
    create(round.path("secrets"), json!({"metadata": {"name": round.name}, "stringData": {"k": "1"}}))
}

fn service(round: &Round, which: &str, address: &str) -> Ask {
    let mut object = json!({"metadata": {"name": round.named(which)}, "spec": {"ports": [{"port": 80}]}});
    if !address.is_empty() {
        object["spec"]["clusterIP"] = json!(address);
    }
    create(round.path("services"), object)
}

/// A node with this many cores.
fn node(round: &Round, cores: &str) -> Vec<Ask> {
    let object = json!({"metadata": {"name": round.name}, "spec": {}});
    let status = json!({"status": {"ready": true, "capacity": {"cpu": cores, "memory": "8Gi"}}});
    let path = format!("{}/{}/status", cluster("nodes"), round.name);
    vec![create(cluster("nodes"), object), merge(path, status)]
}

fn item(round: &Round, plural: &str, name: &str) -> String {
    format!("{}/{name}", round.path(plural))
}

fn room(name: &str, block: Option<String>) -> Ask {
    let mut object = json!({"metadata": {"name": name}});
    if let Some(block) = block {
        object["metadata"]["annotations"] = json!({"horchestra.io/uid-range": block});
    }
    create(cluster("namespaces"), object)
}

/// An address that is no other round's, outside of the range.
fn address(round: &Round) -> String {
    format!("10.9.{}.{}", round.number / 200 % 200, round.number % 200 + 1)
}

/// The path of rule objects of a kind, in the rule's namespace or outside of all.
fn rbac(namespace: Option<&str>, plural: &str) -> String {
    match namespace {
        Some(namespace) => format!("/apis/rbac.horchestra.io/v1/namespaces/{namespace}/{plural}"),
        None => format!("/apis/rbac.horchestra.io/v1/{plural}"),
    }
}

/// A role that lets one read the Applications of this round.
fn right(round: &Round, name: &str) -> Value {
    let rule = json!({"apiGroups": ["horchestra.io"], "resources": ["applications"], "verbs": ["get"],
        "resourceNames": [round.name]});
    json!({"metadata": {"name": name}, "spec": {"rules": [rule]}})
}

fn bound(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "subjects": [{"kind": "User", "name": user}], "roleRef": {"kind": kind, "name": role}}})
}

/// The granter may write rule objects in this round's namespace, and holds the right of the round there.
fn granting(round: &Round) -> Vec<Ask> {
    let rules = json!([{"apiGroups": ["rbac.horchestra.io"], "resources": ["roles", "rolebindings"],
        "verbs": ["get", "create", "update"]}]);
    let office = json!({"metadata": {"name": "office"}, "spec": {"rules": rules}});
    let inside = |plural| rbac(Some(&round.name), plural);
    vec![
        room(&round.name, None),
        create(inside("roles"), office),
        create(inside("rolebindings"), bound("office", "Role", "office", GRANTER)),
        create(inside("roles"), right(round, "right")),
        create(inside("rolebindings"), bound("right", "Role", "right", GRANTER)),
    ]
}

const NOT_HIS: &str = "cannot hand out what is not their own";

fn nothing(_: &Round) -> Vec<Ask> {
    Vec::new()
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "one-name",
        setup: nothing,
        race: |round| [new_app(round, "a", json!({})), new_app(round, "a", json!({"args": ["b"]}))],
        outcomes: &[one(201, 409, "already exists"), one(409, 201, "already exists")],
    },
    Rule {
        name: "full-namespace",
        setup: |round| vec![room(&round.name, None)],
        race: |round| {
            let path = format!("/apis/horchestra.io/v1/namespaces/{}/applications", round.name);
            let namespace = format!("{}/{}", cluster("namespaces"), round.name);
            [create(path, app("a", json!({}))), delete(namespace)]
        },
        outcomes: &[one(201, 403, "still holds"), one(404, 200, "not found")],
    },
    Rule {
        name: "full-namespace-store",
        setup: |round| vec![room(&round.name, None)],
        race: |round| {
            let path = format!("/apis/secrets.horchestra.io/v1/namespaces/{}/secretstores", round.name);
            let namespace = format!("{}/{}", cluster("namespaces"), round.name);
            let spec = json!({"provider": "openbao", "server": "https://bao.example:8200", "mount": "kv",
                "auth": {"method": "kubernetes", "role": "x"}});
            [create(path, json!({"metadata": {"name": "a"}, "spec": spec})), delete(namespace)]
        },
        outcomes: &[one(201, 403, "still holds"), one(404, 200, "not found")],
    },
    Rule {
        name: "pinned-node",
        setup: |round| node(round, "4"),
        race: |round| {
            let path = format!("{}/{}", cluster("nodes"), round.name);
            [new_app(round, "a", pinned(&round.name, "1")), delete(path)]
        },
        outcomes: &[one(201, 200, ""), one(422, 200, "does not exist")],
    },
    Rule {
        name: "volume-absent",
        setup: nothing,
        race: |round| {
            let spec = || mounting(&round.name);
            [new_app(round, "a", spec()), new_app(round, "b", spec())]
        },
        outcomes: &[one(201, 403, "is not shared"), one(403, 201, "is not shared")],
    },
    Rule {
        name: "volume-alone",
        setup: |round| vec![volume(round, false)],
        race: |round| {
            let spec = || mounting(&round.name);
            [new_app(round, "a", spec()), new_app(round, "b", spec())]
        },
        outcomes: &[one(201, 403, "is not shared"), one(403, 201, "is not shared")],
    },
    Rule {
        name: "volume-unshared",
        setup: |round| vec![volume(round, true), new_app(round, "a", mounting(&round.name))],
        race: |round| {
            let unshare = json!({"spec": {"shared": false}});
            let path = item(round, "persistentvolumes", &round.name);
            [new_app(round, "b", mounting(&round.name)), merge(path, unshare)]
        },
        outcomes: &[one(201, 403, "cannot be taken back"), one(403, 200, "is not shared")],
    },
    Rule {
        name: "volume-deleted",
        setup: |round| vec![volume(round, false)],
        race: |round| {
            let path = item(round, "persistentvolumes", &round.name);
            [new_app(round, "a", mounting(&round.name)), delete(path)]
        },
        outcomes: &[one(201, 403, "mounts it"), one(201, 200, "")],
    },
    Rule {
        name: "secret-needed",
        setup: |round| vec![secret(round)],
        race: |round| {
            let path = item(round, "secrets", &round.name);
            [new_app(round, "a", reading(&round.name, false)), delete(path)]
        },
        outcomes: &[one(201, 403, "refers to it"), one(422, 200, "does not exist")],
    },
    Rule {
        name: "secret-optional",
        setup: |round| vec![secret(round)],
        race: |round| {
            let path = item(round, "secrets", &round.name);
            [new_app(round, "a", reading(&round.name, true)), delete(path)]
        },
        outcomes: &[one(201, 403, "refers to it"), one(201, 200, "")],
    },
    Rule {
        name: "secret-immutable",
        setup: |round| vec![secret(round)],
        race: |round| {
            let path = || item(round, "secrets", &round.name);
            [merge(path(), json!({"immutable": true})), merge(path(), json!({"stringData": {"k": "2"}}))]
        },
        outcomes: &[one(200, 422, "immutable"), reversed(200, 200)],
    },
    Rule {
        name: "service-joined",
        setup: |round| vec![service(round, "s", "")],
        race: |round| {
            let name = round.named("s");
            let path = item(round, "services", &name);
            [new_app(round, "a", json!({ "serviceName": name })), delete(path)]
        },
        outcomes: &[one(201, 422, "is a member of it"), one(422, 200, "does not exist")],
    },
    Rule {
        name: "capacity-pins",
        setup: |round| node(round, "4"),
        race: |round| {
            let spec = || pinned(&round.name, "3");
            [new_app(round, "a", spec()), new_app(round, "b", spec())]
        },
        outcomes: &[one(201, 403, "does not fit node"), one(403, 201, "does not fit node")],
    },
    Rule {
        name: "capacity-growth",
        setup: |round| {
            let mut asks = node(round, "4");
            asks.extend(["a", "b"].map(|which| new_app(round, which, pinned(&round.name, "1"))));
            asks
        },
        race: |round| {
            let grow = json!({"spec": {"resources": {"requests": {"cpu": "3"}}}});
            ["a", "b"].map(|which| merge(item(round, "applications", &round.named(which)), grow.clone()))
        },
        outcomes: &[one(200, 403, "does not fit node"), one(403, 200, "does not fit node")],
    },
    Rule {
        name: "address-declared",
        setup: nothing,
        race: |round| ["a", "b"].map(|which| service(round, which, &address(round))),
        outcomes: &[one(201, 403, "is in use"), one(403, 201, "is in use")],
    },
    Rule {
        name: "address-chosen",
        setup: nothing,
        race: |round| ["a", "b"].map(|which| service(round, which, "")),
        outcomes: &[one(201, 201, "")],
    },
    Rule {
        name: "address-chosen-and-declared",
        setup: nothing,
        // Of the addresses that are chosen about now.
        race: |round| {
            let declared =
                format!("10.243.{}.{}", (round.number + 240) / 128, (round.number * 2 + 226) % 256);
            [service(round, "a", ""), service(round, "b", &declared)]
        },
        outcomes: &[one(201, 201, ""), seldom(201, 403, "")],
    },
    Rule {
        name: "name-of-node",
        setup: nothing,
        race: |round| {
            let name = round.named("s");
            [
                service(round, "s", ""),
                create(cluster("nodes"), json!({"metadata": {"name": name}, "spec": {}})),
            ]
        },
        outcomes: &[one(201, 201, ""), one(403, 201, "which is the name of a node")],
    },
    Rule {
        name: "block-chosen",
        setup: nothing,
        race: |round| ["a", "b"].map(|which| room(&round.named(which), None)),
        outcomes: &[one(201, 201, "")],
    },
    Rule {
        name: "block-declared",
        setup: nothing,
        race: |round| {
            let first = 3_500_000_000 + round.number * 100;
            [
                room(&round.named("a"), Some(format!("{first}/60"))),
                room(&round.named("b"), Some(format!("{}/60", first + 40))),
            ]
        },
        outcomes: &[one(201, 403, "overlaps"), one(403, 201, "overlaps")],
    },
    Rule {
        name: "id-chosen",
        setup: nothing,
        race: |round| ["a", "b"].map(|which| new_app(round, which, json!({}))),
        outcomes: &[one(201, 201, "")],
    },
    Rule {
        name: "id-chosen-and-named",
        // A namespace with a block of a known place.
        setup: |round| vec![room(&round.name, Some(format!("{}/9", 3_600_000_000 + round.number * 10)))],
        race: |round| {
            let path = format!("/apis/horchestra.io/v1/namespaces/{}/applications", round.name);
            let first = 3_600_000_000 + round.number * 10;
            let named = json!({"securityContext": {"runAsUser": first}});
            [create(path.clone(), app("chosen", json!({}))), create(path, app("named", named))]
        },
        outcomes: &[one(201, 201, "")],
    },
    Rule {
        name: "deleted-as-seen",
        setup: |round| vec![new_app(round, "a", json!({}))],
        race: |round| {
            let path = || item(round, "applications", &round.named("a"));
            let edit = json!({"metadata": {"labels": {"edited": "x"}}});
            [merge(path(), edit), delete_at(path(), &round.made[0]["metadata"]["resourceVersion"])]
        },
        outcomes: &[one(200, 409, "Precondition failed"), one(404, 200, "not found")],
    },
    Rule {
        name: "rollback",
        setup: |round| {
            let image = json!({"spec": {"image": "y"}});
            vec![new_app(round, "a", json!({})), merge(item(round, "applications", &round.named("a")), image)]
        },
        race: |round| {
            let path = item(round, "applications", &round.named("a"));
            let revision = round.made[0]["metadata"]["resourceVersion"].as_str().unwrap();
            let order = json!({ "revision": revision.parse::<i64>().unwrap() });
            [act(format!("{path}/rollback"), order), act(format!("{path}/freeze"), json!({}))]
        },
        outcomes: &[one(200, 200, "")],
    },
    Rule {
        name: "last-finalizer",
        setup: |round| {
            let held = json!({"metadata": {"name": round.named("a"), "finalizers": ["example.org/hold"]},
                "spec": {"image": "x"}});
            vec![
                create(round.path("applications"), held),
                delete(item(round, "applications", &round.named("a"))),
            ]
        },
        race: |round| {
            let path = || item(round, "applications", &round.named("a"));
            let let_go = || merge(path(), json!({"metadata": {"finalizers": null}}));
            [let_go(), let_go()]
        },
        outcomes: &[one(200, 404, "not found"), one(404, 200, "not found")],
    },
    Rule {
        name: "grant-while-binding-goes",
        setup: granting,
        race: |round| {
            let role = rbac(Some(&round.name), "roles");
            let binding = rbac(Some(&round.name), "rolebindings/right");
            [create(role, right(round, "handed-on")).by_granter(), delete(binding)]
        },
        outcomes: &[one(201, 200, ""), one(403, 200, NOT_HIS)],
    },
    Rule {
        name: "grant-while-role-shrinks",
        setup: granting,
        race: |round| {
            let bindings = rbac(Some(&round.name), "rolebindings");
            let role = rbac(Some(&round.name), "roles/right");
            let other = bound("handed-on", "Role", "right", "somebody");
            // What is bound is what the role says when the binding is stored: nothing, for anybody.
            let shrunk = json!({"spec": {"rules": [{"apiGroups": ["horchestra.io"], "resources": ["nodes"],
                "verbs": ["get"]}]}});
            [create(bindings, other).by_granter(), merge(role, shrunk)]
        },
        outcomes: &[one(201, 200, "")],
    },
    Rule {
        name: "grant-while-role-grows",
        setup: |round| {
            let mut asks = granting(round);
            asks.push(create(rbac(Some(&round.name), "roles"), right(round, "growing")));
            asks
        },
        race: |round| {
            let bindings = rbac(Some(&round.name), "rolebindings");
            let role = rbac(Some(&round.name), "roles/growing");
            let other = bound("handed-on", "Role", "growing", "somebody");
            let grown = json!({"spec": {"rules": [{"apiGroups": ["horchestra.io"], "resources": ["secrets"],
                "verbs": ["get"]}]}});
            [create(bindings, other).by_granter(), merge(role, grown)]
        },
        outcomes: &[one(201, 200, ""), one(403, 200, NOT_HIS)],
    },
    Rule {
        name: "grant-everywhere",
        // One who writes cluster roles, and holds the right of the round through a binding of its own.
        setup: |round| {
            let rules = json!([{"apiGroups": ["rbac.horchestra.io"], "resources": ["clusterroles"],
                "verbs": ["create"]}]);
            let office = json!({"metadata": {"name": round.named("office")}, "spec": {"rules": rules}});
            let give = |what: &str| bound(&round.named(what), "ClusterRole", &round.named(what), GRANTER);
            vec![
                create(rbac(None, "clusterroles"), office),
                create(rbac(None, "clusterrolebindings"), give("office")),
                create(rbac(None, "clusterroles"), right(round, &round.named("right"))),
                create(rbac(None, "clusterrolebindings"), give("right")),
            ]
        },
        race: |round| {
            let binding = rbac(None, &format!("clusterrolebindings/{}", round.named("right")));
            let role = right(round, &round.named("handed-on"));
            [create(rbac(None, "clusterroles"), role).by_granter(), delete(binding)]
        },
        outcomes: &[one(201, 200, ""), one(403, 200, NOT_HIS)],
    },
];
