use std::collections::BTreeMap;

use horchestra_core::object::{self, Object};
use horchestra_proto::node::v1::DesiredState;
use horchestra_store::{Columns, Draft, Index};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

fn entry(key: &Key, revision: i64, spec: Value, status: Value) -> Entry {
    let mut metadata = json!({"name": key.name, "uid": Uuid::nil().to_string(), "generation": 1});
    if key.kind.namespaced() {
        metadata["namespace"] = key.namespace.clone().into();
    }
    let deleting = status["deleting"] == true;
    if deleting {
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z".into();
    }
    let node = spec["placement"]["nodeName"].as_str().map(str::to_owned);
    let mut tree = json!({"metadata": metadata, "spec": spec});
    if key.kind != Kind::Service {
        tree["status"] = status;
    }
    let body = object::encode(key.kind, &Object::from_value(tree).unwrap());
    let draft = Draft {
        key: key.clone(),
        uid: Uuid::nil(),
        generation: 1,
        deleting,
        body,
        managed: None,
        index: Index::default(),
        columns: Columns { node, ..Columns::default() },
        edges: Vec::new(),
    };
    Entry::new(draft, revision, revision)
}

fn app_key(name: &str) -> Key {
    match name.split_once('/') {
        Some((namespace, name)) => Key::namespaced(Kind::Application, namespace, name),
        None => Key::namespaced(Kind::Application, "team", name),
    }
}

fn service_key(name: &str) -> Key {
    Key::namespaced(Kind::Service, "team", name)
}

struct World {
    fleet: Fleet,
    last: Part,
}

impl World {
    fn new() -> World {
        World { fleet: Fleet::default(), last: Part::default() }
    }

    fn node(&mut self, name: &str, ip: &str) -> &mut World {
        let key = Key::cluster(Kind::Node, name);
        let status = json!({"capacity": {}, "allocated": {}, "ready": true, "ip": ip});
        self.fleet.put(&key, Some(&entry(&key, 1, json!({}), status)));
        self
    }

    fn app(&mut self, name: &str, spec: Value, status: Value) -> &mut World {
        let mut full = json!({"image": "x"});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.fleet.put(&app_key(name), Some(&entry(&app_key(name), 1, full, status)));
        self
    }

    /// Isolated, on a node, with what the node reported.
    fn isolated(&mut self, name: &str, node: &str, address: &str) -> &mut World {
        self.app(name, json!({"placement": {"nodeName": node}, "hostNetwork": false}), running(address))
    }

    fn service(&mut self, name: &str, address: &str, ports: Value) -> &mut World {
        let key = service_key(name);
        let spec = json!({"clusterIP": address, "ports": ports});
        self.fleet.put(&key, Some(&entry(&key, 1, spec, json!({}))));
        self
    }

    fn part(&mut self) -> DesiredState {
        self.last = self.fleet.part(&self.last, usize::MAX);
        let bytes = self.last.pieces.concat();
        assert_eq!(bytes.len(), self.last.len);
        let part = DesiredState::decode(bytes.as_slice()).unwrap();
        assert_eq!((part.routes.len(), part.services.len()), (self.last.routes, self.last.rules));
        part
    }

    fn routes(&mut self) -> Vec<String> {
        self.part().routes.iter().map(|route| format!("{} via {}", route.cidr, route.node_ip)).collect()
    }

    fn rules(&mut self) -> Vec<String> {
        self.part().services.iter().map(shown).collect()
    }

    /// Who is told what.
    fn faults(&mut self) -> Vec<String> {
        self.part();
        self.fleet.faults().into_iter().map(|(key, why)| format!("{key}: {why}")).collect()
    }
}

fn running(address: &str) -> Value {
    json!({"phase": "Running", "observedGeneration": 1, "address": address})
}

fn shown(rule: &ServiceRule) -> String {
    let backends: Vec<String> =
        rule.backends.iter().map(|backend| format!("{}:{}", backend.address, backend.port)).collect();
    format!("{}:{}/{} -> {}", rule.cluster_ip, rule.port, rule.protocol, backends.join(" "))
}

#[test]
fn a_workload_with_a_reported_address_has_a_route() {
    let mut world = World::new();
    world.node("n2", "10.0.0.2").isolated("web", "n2", "10.244.0.7/32");
    assert_eq!(world.routes(), ["10.244.0.7/32 via 10.0.0.2"]);
    for (reported, route) in [
        ("10.244.0.8", Some("10.244.0.8/32 via 10.0.0.2")),
        ("", None),
        ("10.244.0.7/32/32", None),
        ("garbage", None),
        ("fd00::7", None),
        ("10.244.0.7/24", None),
    ] {
        world.isolated("web", "n2", reported);
        assert_eq!(world.routes(), Vec::from_iter(route), "{reported:?}");
    }
    // What has the network of its node, or no node, has none.
    world.app("web", json!({"placement": {"nodeName": "n2"}}), running("10.244.0.7/32"));
    world.app("loose", json!({"hostNetwork": false}), running("10.244.0.9/32"));
    assert_eq!(world.routes(), Vec::<String>::new());
}

#[test]
fn routes_follow_the_address_of_the_node_and_are_sorted_as_text() {
    let mut world = World::new();
    world.isolated("a", "n1", "10.244.0.9/32").isolated("b", "n1", "10.244.0.10/32");
    assert_eq!(world.routes(), Vec::<String>::new(), "where n1 is nobody knows");
    world.node("n1", "10.0.0.1");
    assert_eq!(world.routes(), ["10.244.0.10/32 via 10.0.0.1", "10.244.0.9/32 via 10.0.0.1"]);
    let revision = world.last.revision;
    world.node("n1", "10.0.0.1");
    assert!(!world.fleet.has_moved());
    world.node("n1", "10.0.0.7");
    assert!(world.fleet.has_moved());
    assert_eq!(world.routes(), ["10.244.0.10/32 via 10.0.0.7", "10.244.0.9/32 via 10.0.0.7"]);
    assert_ne!(world.last.revision, revision);
    world.node("n1", "fd00::1");
    assert_eq!(world.routes(), Vec::<String>::new());
    assert_eq!(world.faults(), ["Node n1: fd00::1 is no IPv4 address, so nobody routes to workloads there"]);
}

#[test]
fn a_service_has_its_members_behind_it_at_their_own_address_or_their_nodes() {
    let mut world = World::new();
    world.node("n1", "10.0.0.1").node("n2", "10.0.0.2");
    let ports = |port: i64| json!([{"name": "http", "port": port}, {"name": "other", "port": 1}]);
    let member = |node: &str, isolated: bool, port: i64| {
        let network = if isolated { json!(false) } else { Value::Null };
        json!({"placement": {"nodeName": node}, "serviceName": "web", "hostNetwork": network,
               "ports": ports(port)})
    };
    world.app("own", member("n1", true, 8080), running("10.244.0.3/32"));
    world.app("host", member("n2", false, 9000), running(""));
    world.app("unwired", member("n2", true, 9000), json!({}));
    world.app("elsewhere/host", member("n1", false, 9000), running(""));
    world.app("unplaced", json!({"serviceName": "web", "ports": ports(7)}), json!({}));
    world.service("web", "10.96.0.10", json!([{"port": 80, "targetName": "http"}]));
    assert_eq!(world.rules(), ["10.96.0.10:80/TCP -> 10.0.0.2:9000 10.244.0.3:8080"]);
    for (what, port, backends) in [
        ("a number", json!({"port": 80, "targetPort": 5000}), "10.0.0.2:5000 10.244.0.3:5000"),
        ("neither", json!({"port": 80}), "10.0.0.2:80 10.244.0.3:80"),
        ("its own name is no target", json!({"port": 80, "name": "http"}), "10.0.0.2:80 10.244.0.3:80"),
        ("no such name", json!({"port": 80, "targetName": "odd"}), "10.0.0.2:80 10.244.0.3:80"),
    ] {
        world.service("web", "10.96.0.10", json!([port]));
        assert_eq!(world.rules(), [format!("10.96.0.10:80/TCP -> {backends}")], "{what}");
    }
    world.service("web", "", json!([{"port": 80}]));
    world.service("lonely", "10.96.0.11", json!([{"port": 80}]));
    assert_eq!(world.rules(), Vec::<String>::new(), "without an address, without members");
    assert_eq!(world.faults(), Vec::<String>::new());
}

#[test]
fn who_has_ended_or_is_to_end_serves_nobody() {
    let mut world = World::new();
    world.node("n1", "10.0.0.1").service("web", "10.96.0.10", json!([{"port": 80, "protocol": "UDP"}]));
    let spec = |more: Value| {
        let mut spec = json!({"placement": {"nodeName": "n1"}, "serviceName": "web"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let job = json!({"lifecycle": {"restartPolicy": "Never"}});
    let state = |phase: &str| json!({"phase": phase, "observedGeneration": 1});
    for (what, more, status, serves) in [
        ("a service that fails", json!({}), state("Failed"), true),
        ("a service that nobody has reported", json!({}), json!({}), true),
        ("a job that runs", job.clone(), state("Running"), true),
        ("a job that is done", job.clone(), state("Succeeded"), false),
        ("a job that has failed", job, state("Failed"), false),
        ("one that is being deleted", json!({}), json!({"phase": "Running", "deleting": true}), false),
    ] {
        world.app("one", spec(more), status);
        assert_eq!(world.rules().len(), usize::from(serves), "{what}");
    }
    // Two on one node that listen on the same port are one backend.
    world.app("one", spec(json!({})), json!({})).app("two", spec(json!({})), json!({}));
    assert_eq!(world.rules(), ["10.96.0.10:80/UDP -> 10.0.0.1:80"]);
}

#[test]
fn what_helpers_would_refuse_is_left_out_one_by_one() {
    let mut world = World::new();
    world.node("n1", "10.0.0.1");
    for name in ["a", "b"] {
        world.app(name, json!({"placement": {"nodeName": "n1"}, "serviceName": name}), json!({}));
    }
    world.service("b", "10.96.0.2", json!([{"port": 80}]));
    for address in ["fd00::1", "::ffff:10.96.0.1", "127.64.0.1", "169.254.7.7"] {
        world.service("a", address, json!([{"port": 80}]));
        assert_eq!(world.rules(), ["10.96.0.2:80/TCP -> 10.0.0.1:80"], "{address}");
        let told = world.faults();
        assert!(told.len() == 1 && told[0].starts_with(&format!("Service team/a: {address}")), "{told:?}");
    }
    // One that another has is that one's, which there should not be.
    world.service("a", "10.96.0.2", json!([{"port": 80}, {"name": "more", "port": 81}]));
    assert_eq!(world.rules(), ["10.96.0.2:80/TCP -> 10.0.0.1:80", "10.96.0.2:81/TCP -> 10.0.0.1:81"]);
    assert_eq!(world.faults(), ["Service team/b: another one has the address 10.96.0.2, too"]);
    world.service("a", "10.96.0.1", json!([{"port": 80}, {"name": "odd", "port": 70000}]));
    assert_eq!(world.rules().len(), 2);
    assert_eq!(world.faults(), ["Service team/a: port 70000 is none"]);
    world.isolated("c", "n1", "10.244.0.1/32").isolated("d", "n1", "10.244.0.1/32");
    assert_eq!(world.routes(), ["10.244.0.1/32 via 10.0.0.1"]);
    assert!(world.faults().iter().any(|fault| fault.starts_with("Application team/d: another one")));
}

#[test]
fn an_address_that_is_in_use_otherwise_is_told_of() {
    let mut world = World::new();
    world.node("n1", "10.0.0.1").isolated("a", "n1", "10.244.0.1/32");
    world.app("b", json!({"placement": {"nodeName": "n1"}, "serviceName": "b"}), json!({}));
    world.service("b", "10.244.0.1", json!([{"port": 80}]));
    assert_eq!(world.rules(), Vec::<String>::new(), "the workload was first");
    assert_eq!(
        world.faults(),
        ["Service team/b: 10.244.0.1 is the address of the workload of Application team/a"]
    );
    world.isolated("a", "n1", "");
    assert_eq!((world.rules().len(), world.faults()), (1, vec![]));
    // A node is never turned away, so it may come where somebody is.
    world.node("n2", "10.244.0.1").node("n3", "10.244.0.5").isolated("a", "n1", "10.244.0.5");
    assert_eq!(
        world.faults(),
        [
            "Node n2: 10.244.0.1 is the address of Service team/b, too",
            "Node n3: 10.244.0.5 is the address of Application team/a, too",
        ]
    );
    world.node("n2", "10.0.0.2").node("n3", "10.0.0.3");
    assert_eq!(world.faults(), Vec::<String>::new());
}

#[test]
fn tables_stay_within_their_room() {
    let mut world = World::new();
    world.node("n1", "10.0.0.1");
    for n in 0..300 {
        world.isolated(&format!("app{n}"), "n1", &format!("10.244.{}.{}", n / 200, n % 200));
    }
    let all = world.part();
    assert_eq!((all.routes.len(), world.last.left_out), (300, 0));
    let half = world.fleet.part(&world.last, world.last.len / 2);
    assert!((140..=160).contains(&half.routes) && half.routes + half.left_out == 300, "{}", half.routes);
    assert!(half.len <= world.last.len / 2);
    // A node may have less room than the others.
    for (room, pieces) in [(usize::MAX, 2), (world.last.len, 2), (world.last.len - 1, 1), (0, 0)] {
        let (kept, left_out) = world.last.within(room);
        let len: usize = kept.iter().map(Bytes::len).sum();
        assert_eq!((kept.len(), len + left_out), (pieces, world.last.len), "{room}");
        assert!(len <= room);
    }
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Node(u8, &'static str),
    NoNode(u8),
    Service(u8, &'static str, Ports),
    NoService(u8),
    App(u8, App),
    NoApp(u8),
    Look,
}

#[derive(Clone, Debug)]
struct App {
    node: Option<u8>,
    isolated: bool,
    service: Option<u8>,
    address: &'static str,
    job: bool,
    phase: &'static str,
    deleting: bool,
    ports: Vec<i32>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    const IPS: &[&str] = &["10.0.0.1", "10.0.0.2", "fd00::1", "", "10.244.0.1", "10.96.0.1"];
    const VIPS: &[&str] =
        &["10.96.0.1", "10.96.0.2", "10.96.1.1", "", "::ffff:10.96.0.1", "127.0.0.9", "10.244.0.2"];
    const OWN: &[&str] = &["10.244.0.1/32", "10.244.0.2", "10.244.1.1/32", "", "junk", "10.244.0.1"];
    const PHASES: &[&str] = &["", "Running", "Failed", "Succeeded"];
    let pick = |list: &'static [&'static str]| proptest::sample::select(list);
    let app = (
        proptest::option::weighted(0.9, 0u8..3),
        any::<bool>(),
        proptest::option::weighted(0.7, 0u8..3),
        pick(OWN),
        any::<bool>(),
        pick(PHASES),
        proptest::bool::weighted(0.1),
        vec(prop_oneof![Just(8080), Just(0), Just(70_000)], 0..2),
    )
        .prop_map(|(node, isolated, service, address, job, phase, deleting, ports)| App {
            node,
            isolated,
            service,
            address,
            job,
            phase,
            deleting,
            ports,
        });
    let ports = vec((prop_oneof![Just(80), Just(81), Just(70_000)], prop_oneof![Just(0), Just(9)]), 1..3);
    let step = prop_oneof![
        4 => (0u8..3, pick(IPS)).prop_map(|(n, ip)| Step::Node(n, ip)),
        1 => (0u8..3).prop_map(Step::NoNode),
        4 => (0u8..3, pick(VIPS), ports).prop_map(|(n, ip, ports)| Step::Service(n, ip, ports)),
        1 => (0u8..3).prop_map(Step::NoService),
        10 => (0u8..6, app).prop_map(|(n, app)| Step::App(n, app)),
        2 => (0u8..6).prop_map(Step::NoApp),
        3 => Just(Step::Look),
    ];
    vec(step, 0..50)
}

/// Number and target of each.
type Ports = Vec<(i32, i32)>;

/// What there is in the end, as it was said.
#[derive(Default)]
struct Told {
    nodes: BTreeMap<u8, &'static str>,
    services: BTreeMap<u8, (&'static str, Ports)>,
    apps: BTreeMap<u8, App>,
}

impl Told {
    fn address(app: &App) -> Option<&'static str> {
        let bare = app.address.strip_suffix("/32").unwrap_or(app.address);
        (app.isolated && app.node.is_some() && bare.starts_with("10.")).then_some(bare)
    }

    fn place(&self, app: &App) -> Option<&'static str> {
        self.nodes.get(&app.node?).copied().filter(|ip| ip.starts_with("10."))
    }

    /// The tables, by the letter of the rules.
    fn tables(&self) -> (Vec<String>, Vec<String>) {
        let mut routes = BTreeMap::new();
        for app in self.apps.values() {
            if let (Some(address), Some(place)) = (Told::address(app), self.place(app)) {
                routes.entry(format!("{address}/32")).or_insert(place);
            }
        }
        let mut rules = BTreeMap::new();
        for (number, (vip, ports)) in &self.services {
            let usable = vip.starts_with("10.");
            let in_use = self.apps.values().any(|app| Told::address(app) == Some(vip));
            if !usable || in_use {
                continue;
            }
            for (port, target) in ports.iter().filter(|(port, _)| *port < 70_000) {
                let mut backends = BTreeSet::new();
                for app in self.apps.values() {
                    let done =
                        app.job && matches!(app.phase, "Failed" | "Succeeded") || app.phase == "Succeeded";
                    let at = if app.isolated { Told::address(app) } else { self.place(app) };
                    let joins = app.service == Some(*number) && app.node.is_some() && !done && !app.deleting;
                    let named = app.ports.first().map_or(*port, |port| *port);
                    let to = if *target != 0 { *target } else { named };
                    if let (true, Some(at), 1..=65_535) = (joins, at, to) {
                        backends.insert((at, to));
                    }
                }
                if !backends.is_empty() {
                    let backends: Vec<String> =
                        backends.iter().map(|(address, port)| format!("{address}:{port}")).collect();
                    let rule = format!("{vip}:{port}/TCP -> {}", backends.join(" "));
                    rules.entry((*vip, *port)).or_insert(rule);
                }
            }
        }
        let routes = routes.into_iter().map(|(cidr, place)| format!("{cidr} via {place}")).collect();
        (routes, rules.into_values().collect())
    }
}

fn name(letter: char, number: u8) -> String {
    format!("{letter}{number}")
}

fn take(world: &mut World, told: &mut Told, step: Step) {
    match step {
        Step::Node(n, ip) => {
            told.nodes.insert(n, ip);
            world.node(&name('n', n), ip);
        }
        Step::NoNode(n) => {
            told.nodes.remove(&n);
            world.fleet.put(&Key::cluster(Kind::Node, name('n', n)), None);
        }
        Step::Service(n, ip, mut ports) => {
            ports.dedup_by_key(|port| port.0);
            let listed: Vec<Value> = ports
                .iter()
                .enumerate()
                .map(|(at, (port, target))| {
                    json!({"name": name('p', at as u8), "port": port, "targetPort": target,
                           "targetName": if *target == 0 { "main" } else { "" }})
                })
                .collect();
            world.service(&name('s', n), ip, listed.into());
            told.services.insert(n, (ip, ports));
        }
        Step::NoService(n) => {
            told.services.remove(&n);
            world.fleet.put(&service_key(&name('s', n)), None);
        }
        Step::App(n, app) => {
            let ports: Vec<Value> =
                app.ports.iter().map(|port| json!({"name": "main", "port": port})).collect();
            let spec = json!({
                "placement": {"nodeName": app.node.map(|n| name('n', n))},
                "hostNetwork": !app.isolated,
                "serviceName": app.service.map(|n| name('s', n)).unwrap_or_default(),
                "ports": ports,
                "lifecycle": {"restartPolicy": if app.job { "Never" } else { "Always" }},
            });
            let status = json!({"phase": app.phase, "observedGeneration": 1, "address": app.address,
                                "deleting": app.deleting});
            world.app(&name('a', n), spec, status);
            told.apps.insert(n, app);
        }
        Step::NoApp(n) => {
            told.apps.remove(&n);
            world.fleet.put(&app_key(&name('a', n)), None);
        }
        Step::Look => drop(world.part()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever happened and whenever it was looked at, the tables are those of what there is.
    #[test]
    fn tables_kept_from_change_to_change_are_those_computed_anew(steps in steps()) {
        let (mut world, mut told) = (World::new(), Told::default());
        for step in steps {
            let seen = world.last.revision;
            let before = world.last.pieces.concat();
            take(&mut world, &mut told, step);
            if world.last.revision == seen {
                prop_assert_eq!(&before, &world.last.pieces.concat(), "as long as it is the same revision");
            }
        }
        let (routes, rules) = told.tables();
        prop_assert_eq!(world.routes(), routes);
        let mut shown = world.rules();
        let mut expected = rules;
        shown.sort();
        expected.sort();
        prop_assert_eq!(shown, expected);
        prop_assert!(!world.fleet.has_moved());
        // From nothing, in another order.
        let (mut anew, mut again) = (World::new(), Told::default());
        for (n, (ip, ports)) in told.services { take(&mut anew, &mut again, Step::Service(n, ip, ports)); }
        for (n, app) in told.apps { take(&mut anew, &mut again, Step::App(n, app)); }
        for (n, ip) in told.nodes { take(&mut anew, &mut again, Step::Node(n, ip)); }
        prop_assert_eq!(anew.part(), world.part());
        prop_assert_eq!(anew.fleet.faults(), world.fleet.faults());
    }
}
