//! What is listed, in tables; and that following changes one by one comes to the same as beginning anew.

use std::collections::BTreeMap;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_store::{Columns, Draft, Entry as Stored, Index as Selectable};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::follow::State;
use super::index::{Index, Touched};
use super::topics::Changes;
use super::*;
use crate::http::query::Query;

/// A stored object, with what the catalog looks at beside the body.
fn stored(kind: Kind, namespace: &str, name: &str, mut object: Value) -> Stored {
    let key = match kind {
        Kind::Node => Key::cluster(kind, name),
        _ => Key::namespaced(kind, namespace, name),
    };
    object["metadata"]["name"] = json!(name);
    let deleting = object["metadata"]["deletionTimestamp"].is_string();
    let node = object["spec"]["placement"]["nodeName"].as_str().map(str::to_owned);
    let draft = Draft {
        uid: Uuid::from_u128(name.bytes().fold(7, |sum, byte| sum * 256 + u128::from(byte))),
        key,
        generation: 1,
        deleting,
        body: Bytes::from(object.to_string()),
        managed: None,
        index: Selectable::default(),
        columns: Columns { node, ..Columns::default() },
        edges: Vec::new(),
    };
    Stored::new(draft, 1, 1)
}

fn app(name: &str, spec: Value, status: Value) -> Stored {
    let mut object =
        json!({"metadata": {"generation": 1}, "spec": {"image": "i", "placement": {"nodeName": "node-1"}}});
    for (member, value) in spec.as_object().unwrap() {
        object["spec"][member] = value.clone();
    }
    object["status"] = status;
    stored(Kind::Application, "default", name, object)
}

fn running() -> Value {
    json!({"phase": "Running", "observedGeneration": 1})
}

fn service(name: &str, spec: Value) -> Stored {
    stored(Kind::Service, "default", name, json!({"metadata": {}, "spec": spec}))
}

fn node(name: &str, ip: &str, verdict: Option<(&str, &str)>) -> Stored {
    let conditions: Vec<Value> = verdict
        .iter()
        .map(|(status, reason)| json!({"type": "Ready", "status": status, "reason": reason}))
        .collect();
    let status = json!({"capacity": {}, "allocated": {}, "ready": true, "ip": ip, "conditions": conditions});
    stored(Kind::Node, "", name, json!({"metadata": {}, "spec": {}, "status": status}))
}

const READY: Option<(&str, &str)> = Some(("True", "NodeReports"));

fn state(objects: impl IntoIterator<Item = Stored>) -> State {
    let mut index = Index::default();
    objects.into_iter().for_each(|object| index.put(&object, &mut Touched::new()));
    State { index, changes: Changes::since(1), revision: 1 }
}

fn ask(state: &State, question: &Question, namespace: &str, raw: &str) -> Value {
    let asked = Asked::of(&Query::parse(Some(raw)), question.shape()).unwrap();
    let written = body(state, question, namespace, &asked).write(&asked).unwrap();
    serde_json::from_slice(&written).unwrap()
}

fn listed(state: &State, name: &str) -> Value {
    ask(state, &Question::Service(name.to_owned()), "default", "")
}

#[test]
fn an_instance_has_the_port_that_its_service_means() {
    let ports = json!([{"name": "web", "port": 8081}, {"name": "grpc", "port": 9091}]);
    for (port, expected) in [
        (json!({"port": 80, "targetName": "web"}), 8081),
        (json!({"port": 80, "targetPort": 8080}), 8080),
        (json!({"port": 50051, "targetName": "none"}), 50051),
        // The name of a Service's port is no name of an Application's.
        (json!({"name": "grpc", "port": 9090}), 9090),
        (json!({"port": 6379}), 6379),
    ] {
        let state = state([
            node("node-1", "10.0.0.7", READY),
            service("s", json!({"ports": [port]})),
            app("a", json!({"serviceName": "s", "ports": ports}), running()),
        ]);
        let name = if port["name"].is_null() { "s" } else { "s-grpc" };
        let found = listed(&state, name);
        assert_eq!(found[0]["ServicePort"], expected, "{port}: {found}");
    }
}

#[test]
fn an_instance_is_shown_with_everything_that_is_known_of_it() {
    let mut with_labels = json!({
        "metadata": {"labels": {"horchestra.io/application-set": "shop", "horchestra.io/component": "cache"}},
        "spec": {
            "image": "i", "placement": {"nodeName": "node-1"}, "serviceName": "cache",
            "ports": [{"name": "redis", "port": 6379}, {"port": 9121}],
        },
    });
    with_labels["status"] = running();
    let cache = stored(
        Kind::Service,
        "default",
        "cache",
        json!({
            "metadata": {"annotations": {
                "team": "storage", "application": "wins",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            }},
            "spec": {"clusterIP": "10.243.0.1", "ports": [
                {"name": "redis", "port": 6379}, {"name": "gossip", "port": 7946, "protocol": "UDP"},
            ]},
        }),
    );
    let machine = node("node-1", "10.0.0.7", READY);
    let id = machine.uid.to_string();
    let state = state([machine, cache, stored(Kind::Application, "default", "cache-0", with_labels)]);
    let entry = json!({
        "ID": id, "Node": "node-1", "Address": "10.0.0.7", "Datacenter": "horchestra", "Namespace": "default",
        "ServiceID": "cache-0-gossip", "ServiceName": "cache-gossip", "ServiceAddress": "10.0.0.7",
        "ServicePort": 7946,
        "ServiceTags": ["applicationset=shop", "component=cache", "namespace=default", "port=gossip", "protocol=udp",
            "service=cache"],
        "ServiceMeta": {"application": "wins", "clusterIP": "10.243.0.1", "team": "storage"},
    });
    assert_eq!(listed(&state, "cache-gossip"), json!([entry]));
    assert_eq!(listed(&state, "cache"), json!([]), "named ports have names of their own");

    let of_node = listed(&state, "node-1");
    let ids: Vec<&Value> = of_node.as_array().unwrap().iter().map(|entry| &entry["ServiceID"]).collect();
    assert_eq!(ids, ["cache-0-9121", "cache-0-redis"]);
    assert_eq!(
        of_node[1]["ServiceTags"],
        json!([
            "application=cache-0",
            "applicationset=shop",
            "component=cache",
            "namespace=default",
            "node=node-1",
            "port=redis",
            "protocol=tcp",
            "service=cache"
        ])
    );
    assert_eq!(
        of_node[1]["ServiceMeta"],
        json!({"application": "cache-0", "clusterIP": "10.0.0.7", "node": "node-1"})
    );
    let health = ask(&state, &Question::Health("cache-redis".to_owned()), "default", "");
    assert_eq!(
        health[0]["Node"],
        json!({"ID": id, "Node": "node-1", "Address": "10.0.0.7", "Datacenter": "horchestra"})
    );
    assert_eq!(health[0]["Service"]["ID"], "cache-0-redis");
    assert_eq!(health[0]["Checks"][0]["Status"], "passing");
    assert_eq!(health[0]["Checks"][0]["ServiceID"], "cache-0-redis");
    let on_node = ask(&state, &Question::Node { name: "node-1".to_owned(), any: false }, "default", "");
    let keys: Vec<&String> = on_node["Services"].as_object().unwrap().keys().collect();
    // One id stands for the port of the Service and for that of the node.
    assert_eq!(keys, ["cache-0-9121", "cache-0-gossip", "cache-0-redis", "node-1/cache-0-redis"]);
}

#[test]
fn not_everything_is_listed() {
    let member = |spec: Value| {
        let mut all = json!({"serviceName": "s", "ports": [{"port": 80}]});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        app("a", all, running())
    };
    // Instances of the Service, and of the node.
    for (what, app, address, of_service, of_node) in [
        ("as it is", member(json!({})), "10.0.0.7", 1, 1),
        ("placed nowhere", member(json!({"placement": {}})), "10.0.0.7", 0, 0),
        ("a network of its own", member(json!({"hostNetwork": false})), "10.0.0.7", 1, 0),
        ("said outright", member(json!({"hostNetwork": true})), "10.0.0.7", 1, 1),
        ("no ports", member(json!({"ports": []})), "10.0.0.7", 1, 0),
        ("no Service", member(json!({"serviceName": ""})), "10.0.0.7", 0, 1),
        ("a Service that is not there", member(json!({"serviceName": "x"})), "10.0.0.7", 0, 1),
        ("a node without address", member(json!({})), "", 1, 0),
    ] {
        let spec = json!({"ports": [{"port": 80}]});
        let state = state([app, service("s", spec), node("node-1", address, READY)]);
        let count = |name: &str| listed(&state, name).as_array().unwrap().len();
        assert_eq!((count("s"), count("node-1")), (of_service, of_node), "{what}");
    }
}

#[test]
fn health_is_that_of_the_workload_and_of_its_node() {
    let job = json!({"lifecycle": {"restartPolicy": "Never"}});
    let deleted = || {
        let object = json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"image": "i", "serviceName": "s", "placement": {"nodeName": "node-1"}},
            "status": {"phase": "Running"},
        });
        stored(Kind::Application, "default", "a", object)
    };
    let in_phase = |phase: &str| app("a", json!({"serviceName": "s"}), json!({"phase": phase}));
    let failed_job = || {
        let status = json!({"phase": "Failed", "observedGeneration": 1, "attempts": 1});
        let mut spec = job.clone();
        spec["serviceName"] = json!("s");
        app("a", spec, status)
    };
    let silent = Some(("Unknown", "NodeSilent"));
    let lost = Some(("Unknown", "NodeLost"));
    let known = "10.0.0.7";
    for (what, app, address, verdict, status) in [
        ("running", in_phase("Running"), known, READY, "passing"),
        ("not reported", in_phase(""), known, READY, "critical"),
        ("starting", in_phase("Pending"), known, READY, "critical"),
        ("failed", in_phase("Failed"), known, READY, "critical"),
        ("a failed job", failed_job(), known, READY, "critical"),
        ("finished", in_phase("Succeeded"), known, READY, "critical"),
        ("held still", in_phase("Frozen"), known, READY, "critical"),
        ("ending", in_phase("Terminating"), known, READY, "critical"),
        ("ended", in_phase("Terminated"), known, READY, "critical"),
        ("being deleted", deleted(), known, READY, "critical"),
        ("on a node that says it is not ready", in_phase("Running"), known, Some(("False", "x")), "warning"),
        ("on a silent node", in_phase("Running"), known, silent, "warning"),
        ("on a lost node", in_phase("Running"), known, lost, "critical"),
        ("on a node that nobody judged", in_phase("Running"), known, None, "warning"),
        ("failed, on a silent node", in_phase("Failed"), known, silent, "critical"),
        ("nowhere to be reached", in_phase("Running"), "", READY, "critical"),
    ] {
        let spec = json!({"ports": [{"port": 80}]});
        let state = state([app, service("s", spec), node("node-1", address, verdict)]);
        let ask = |raw: &str| ask(&state, &Question::Health("s".to_owned()), "default", raw);
        let found = ask("");
        assert_eq!(found[0]["Checks"][0]["Status"], status, "{what}: {found}");
        assert_eq!(found[0]["Checks"][0]["Output"] == "", status == "passing", "{what}: {found}");
        let passing = ask("passing").as_array().unwrap().len();
        assert_eq!(passing, usize::from(status == "passing"), "{what}");
        for word in ["passing", "warning", "critical", "any"] {
            let checks = self::ask(&state, &Question::State(word.to_owned()), "default", "");
            let expected = usize::from(word == status || word == "any");
            assert_eq!(checks.as_array().unwrap().len(), expected, "{what} {word}");
        }
    }
    let nowhere = state([in_phase("Running"), service("s", json!({"ports": [{"port": 80}]}))]);
    let found = ask(&nowhere, &Question::Health("s".to_owned()), "default", "");
    assert_eq!(found[0]["Checks"][0]["Output"], "its node is not known");
}

#[test]
fn a_workload_with_an_address_of_its_own_is_reached_there() {
    let spec = json!({"serviceName": "s", "hostNetwork": false});
    let ports = json!({"ports": [{"port": 80}]});
    for (status, address, health) in [
        (json!({"phase": "Running", "address": "10.244.0.2/32"}), "10.244.0.2", "passing"),
        (json!({"phase": "Running", "address": "10.244.0.2"}), "10.244.0.2", "passing"),
        (json!({"phase": "Running"}), "", "critical"),
    ] {
        let state = state([
            app("a", spec.clone(), status),
            service("s", ports.clone()),
            node("node-1", "10.0.0.7", READY),
        ]);
        let found = ask(&state, &Question::Health("s".to_owned()), "default", "");
        assert_eq!(
            (&found[0]["Service"]["Address"], &found[0]["Node"]["Address"]),
            (&json!(address), &json!("10.0.0.7"))
        );
        assert_eq!(found[0]["Checks"][0]["Status"], health);
    }
}

#[test]
fn answers_are_narrowed_as_asked() {
    let on = |name: &str, node: &str| {
        let spec = json!({"serviceName": "s", "placement": {"nodeName": node}, "ports": [{"port": 80}]});
        app(name, spec, running())
    };
    let state = state([
        service("s", json!({"ports": [{"port": 80}]})),
        node("node-1", "10.0.0.7", READY),
        node("node-2", "10.0.0.8", READY),
        node("node-3", "10.0.0.9", READY),
        on("a", "node-1"),
        on("b", "node-2"),
    ]);
    let ids = |question: Question, raw: &str| -> Vec<String> {
        let found = ask(&state, &question, "default", raw);
        let id =
            |item: &Value| item["ServiceID"].as_str().or(item["Service"]["ID"].as_str()).unwrap().to_owned();
        found.as_array().unwrap().iter().map(id).collect()
    };
    let of = || Question::Service("s".to_owned());
    for (raw, expected) in [
        ("", vec!["a-tcp", "b-tcp"]),
        ("near=node-2", vec!["b-tcp", "a-tcp"]),
        ("near=_agent", vec!["a-tcp", "b-tcp"]),
        ("tag=service%3Ds", vec!["a-tcp", "b-tcp"]),
        ("tag=service%3Ds&tag=namespace%3Ddefault", vec!["a-tcp", "b-tcp"]),
        ("tag=service%3Ds&tag=nope", vec![]),
        ("filter=Node+%3D%3D+node-2", vec!["b-tcp"]),
        ("filter=ServiceMeta.application+!%3D+b", vec!["a-tcp"]),
    ] {
        assert_eq!(ids(of(), raw), expected, "{raw}");
        let health = raw.replace("ServiceMeta", "Service.Meta").replace("Node+", "Node.Node+");
        assert_eq!(ids(Question::Health("s".to_owned()), &health), expected, "{health}");
    }
    let names = |raw: &str| -> Vec<String> {
        ask(&state, &Question::Services, "default", raw).as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names(""), ["node-1", "node-2", "s"]);
    assert_eq!(names("filter=Node+%3D%3D+node-2"), ["node-2", "s"]);
    assert_eq!(names("tag=node%3Dnode-1"), ["node-1"]);
    let services = ask(&state, &Question::Services, "default", "");
    assert_eq!(services["s"], json!(["namespace=default", "protocol=tcp", "service=s"]));
    assert_eq!(services, ask(&state, &Question::Services, "default", "filter=ServicePort+%3D%3D+80"));
    let nodes = |all: bool, namespace: &str, raw: &str| -> Vec<String> {
        let found = ask(&state, &Question::Nodes { all }, namespace, raw);
        found.as_array().unwrap().iter().map(|node| node["Node"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(nodes(false, "default", ""), ["node-1", "node-2"]);
    assert_eq!(nodes(true, "default", "near=node-3"), ["node-3", "node-1", "node-2"]);
    assert_eq!(nodes(false, "other", ""), Vec::<String>::new());
    assert_eq!(nodes(true, "default", "filter=Address+matches+%60[89]%24%60"), ["node-2", "node-3"]);
    let node =
        |name: &str, any: bool| ask(&state, &Question::Node { name: name.to_owned(), any }, "default", "");
    assert_eq!(node("node-1", false)["Services"]["a-tcp"]["Port"], 80);
    assert_eq!(node("node-3", false), Value::Null);
    assert_eq!(node("node-3", true)["Services"], json!({}));
    assert_eq!(node("ghost", true), Value::Null);
    assert_eq!(ask(&state, &Question::Services, "other", ""), json!({}));
    assert_eq!(listed(&state, "ghost"), json!([]));
}

// ---- following ---------------------------------------------------------------------------------------------

const NAMESPACES: [&str; 2] = ["default", "team-a"];
const SERVICES: [&str; 3] = ["s", "s-http", "t"];
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// An object comes, changes or goes.
#[derive(Clone, Debug)]
struct Step {
    kind: usize,
    namespace: usize,
    name: usize,
    choices: [usize; 6],
    gone: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let choices = proptest::array::uniform6(0usize..6);
    (0usize..5, 0usize..2, 0usize..3, choices, proptest::bool::weighted(0.2))
        .prop_map(|(kind, namespace, name, choices, gone)| Step { kind, namespace, name, choices, gone })
}

impl Step {
    fn object(&self) -> Stored {
        let [a, b, c, d, e, f] = self.choices;
        let namespace = NAMESPACES[self.namespace];
        match self.kind {
            0 => {
                let ports = [
                    json!([{"port": 80}]),
                    json!([{"name": "http", "port": 80}]),
                    json!([{"name": "http", "port": 80}, {"name": "admin", "port": 81}]),
                    json!([{"name": "admin", "port": 81}, {"name": "http", "port": 80}]),
                    json!([{"port": 80, "targetName": "p"}]),
                    json!([{"port": 80, "protocol": "UDP"}]),
                ];
                let annotations = if b < 3 { json!({}) } else { json!({"team": "ops"}) };
                let object = json!({
                    "metadata": {"annotations": annotations},
                    "spec": {"ports": ports[a], "clusterIP": if c < 3 { "" } else { "10.243.0.9" }},
                });
                stored(Kind::Service, namespace, SERVICES[self.name], object)
            }
            1 => {
                let verdicts = [
                    READY,
                    READY,
                    None,
                    Some(("Unknown", "NodeSilent")),
                    Some(("Unknown", "NodeLost")),
                    READY,
                ];
                let address = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", ""][b];
                node(NODES[self.name], address, verdicts[a])
            }
            _ => {
                let ports =
                    [json!([]), json!([{"name": "p", "port": 8080}]), json!([{"port": 1}, {"port": 2}])];
                let placement = ["n1", "n1", "n2", "n2", "n3", ""][b];
                let joins = ["", "s", "s", "s-http", "t", "t"][c];
                let phase = ["Running", "Running", "Running", "Pending", "Failed", "Succeeded"][d];
                let labels = if e < 4 { json!({}) } else { json!({"horchestra.io/component": "c"}) };
                let object = json!({
                    "metadata": {"labels": labels},
                    "spec": {
                        "image": "i",
                        "placement": {"nodeName": placement},
                        "serviceName": joins,
                        "ports": ports[a % 3],
                        "hostNetwork": f > 0,
                    },
                    "status": {
                        "phase": phase,
                        "address": "10.244.0.1",
                        // What no answer shows.
                        "message": format!("{e}"), "attempts": f + 1,
                    },
                });
                stored(Kind::Application, namespace, ["a", "b", "a-http"][self.name], object)
            }
        }
    }
}

fn questions() -> Vec<(Question, &'static str)> {
    let mut questions = Vec::new();
    for namespace in NAMESPACES {
        questions.push((Question::Services, namespace));
        questions.push((Question::State("any".to_owned()), namespace));
        questions.push((Question::Nodes { all: false }, namespace));
        questions.push((Question::Nodes { all: true }, namespace));
        for name in ["s", "s-http", "s-admin", "s-http-http", "t", "n1", "n2", "n3"] {
            questions.push((Question::Service(name.to_owned()), namespace));
            questions.push((Question::Health(name.to_owned()), namespace));
        }
        for name in NODES {
            questions.push((Question::Node { name: name.to_owned(), any: true }, namespace));
        }
    }
    questions
}

/// Whether the index of such an answer moves only with the answer. The others are coarser.
fn is_exact(question: &Question) -> bool {
    matches!(question, Question::Services | Question::Service(_) | Question::Health(_))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn following_comes_to_the_same_as_beginning_anew_and_indexes_move_with_answers(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let questions = questions();
        let mut followed = State { changes: Changes::since(10), revision: 10, ..State::default() };
        let mut objects: BTreeMap<(i16, String, String), Stored> = BTreeMap::new();
        let answers = |state: &State| -> Vec<Value> {
            questions.iter().map(|(question, namespace)| ask(state, question, namespace, "")).collect()
        };
        let mut before = answers(&followed);
        for (revision, step) in (11..).zip(&steps) {
            let object = step.object();
            let key = object.key.clone();
            let place = (key.kind.number(), key.namespace.clone(), key.name.clone());
            let mut touched = Touched::new();
            if step.gone {
                followed.index.remove(&key, &mut touched);
                objects.remove(&place);
            } else {
                followed.index.put(&object, &mut touched);
                objects.insert(place, object);
            }
            for topic in touched {
                followed.changes.note(topic, revision);
            }
            let now = answers(&followed);
            // In another order than they came.
            let anew = answers(&state(objects.values().rev().map(step_again)));
            for (at, (question, namespace)) in questions.iter().enumerate() {
                prop_assert_eq!(&now[at], &anew[at], "{:?} in {} after {:?}", question, namespace, step);
                let index = followed.changes.index(&question.topics(namespace));
                if now[at] != before[at] {
                    prop_assert_eq!(index, revision, "{:?} in {} changed with {:?}", question, namespace, step);
                } else if is_exact(question) {
                    prop_assert!(index < revision, "{:?} in {} did not change with {:?}", question, namespace, step);
                }
            }
            before = now;
        }
        for object in objects.values() {
            followed.index.remove(&object.key, &mut Touched::new());
        }
        let nothing = format!("{:?}", Index::default());
        prop_assert_eq!(format!("{:?}", followed.index), nothing, "nothing is left behind");
    }
}

/// The same object once more.
fn step_again(object: &Stored) -> Stored {
    object.with_body(object.body.clone(), None)
}
