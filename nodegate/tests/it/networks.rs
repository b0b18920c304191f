//! Addresses of workloads that have a network of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_agent::converge::ConvergeOptions;
use horchestra_agent::node::{Node, NodeOptions};
use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::Object;
use horchestra_core::kind::Kind;
use horchestra_proto::node::v1::DesiredState;
use horchestra_store::{Attribution, Class, Columns, Draft, Index, Item, KnownAddress, Op};
use horchestra_testkit::eventually;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::world::{
    NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, names, networks, report,
    running_at,
};

fn isolated() -> Value {
    json!({"hostNetwork": false})
}

async fn world_with_nodes(nodes: &[&str]) -> World {
    let world = World::new().await;
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    for node in nodes {
        world.create_node(node).await;
    }
    world
}

async fn push(node: &mut ScriptedNode, wanted: impl Fn(&DesiredState) -> bool) -> DesiredState {
    node.desired_where(SOON, wanted).await.unwrap()
}

fn of(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect()
}

#[tokio::test]
async fn the_first_push_that_names_a_workload_brings_its_address() {
    let world = world_with_nodes(&["n1"]).await;
    world.create_app("a", "n1", isolated()).await;
    world.create_app("host", "n1", json!({"hostNetwork": true})).await;
    world.create_app("unsaid", "n1", json!({})).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    let first = node.desired(SOON).await.unwrap();
    assert_eq!(names(&first), ["a", "host", "unsaid"]);
    assert_eq!(networks(&first), of(&[("a", "10.244.0.1/32")]));
    world.create_app("b", "n1", isolated()).await;
    // Whatever comes about b, it comes with its address.
    let second = push(&mut node, |desired| names(desired).contains(&"b".to_owned())).await;
    assert_eq!(networks(&second), of(&[("a", "10.244.0.1/32"), ("b", "10.244.0.2/32")]));
}

#[tokio::test]
async fn without_a_range_there_are_no_networks_and_people_are_told() {
    let world = world_with_nodes(&["n1"]).await;
    world.create_app("a", "n1", isolated()).await;
    world.create_app("b", "n1", json!({})).await;
    let gateway = world.gateway_with(|settings| settings.routed_range = None).await;
    let mut node = world.connect(&gateway, "n1").await;
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!((names(&desired).len(), networks(&desired)), (2, vec![]));
    eventually(SOON, async || {
        world.told("NoAddress", "a").await
            == ["cannot start: this cluster has no range of addresses for workloads"]
    })
    .await;
    assert_eq!(world.told("NoAddress", "b").await, Vec::<String>::new());
    node.app_status(report("a", "Failed", 0)).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    eventually(SOON, async || {
        world.app("a").await["status"]["message"] == "there is no address for a network of its own"
    })
    .await;
}

#[tokio::test]
async fn an_address_outlives_gateways_failures_and_moves() {
    let world = world_with_nodes(&["n1", "n2"]).await;
    for name in ["first", "web"] {
        world.create_app(name, "n1", isolated()).await;
    }
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    let before = networks(&node.desired(SOON).await.unwrap());
    assert_eq!(before.iter().map(|(_, address)| address).collect::<BTreeSet<_>>().len(), 2);
    let address = before[1].1.clone();
    node.app_status(running_at("web", &address)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"]["address"] == address).await;
    // It fails, so that nobody reports the address any more, and the gateway is another one.
    node.app_status(report("web", "Failed", 1)).await.unwrap();
    node.app_status(running_at("first", &before[0].1)).await.unwrap();
    eventually(SOON, async || world.app("web").await["status"].get("address").is_none()).await;
    drop(node);
    gateway.gateway.shutdown().await;
    let gateway = world.gateway().await;
    world.create_app("newcomer", "n2", isolated()).await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(networks(&node.desired(SOON).await.unwrap()), before);
    // It is taken from its node, and given to another one on another gateway.
    let other = world.gateway().await;
    let mut second = world.connect(&other, "n2").await;
    let pushed = push(&mut second, |desired| !desired.applications.is_empty()).await;
    assert_eq!(networks(&pushed), of(&[("newcomer", "10.244.0.3/32")]));
    world.merge(&app_key("web"), json!({"spec": {"placement": {"nodeName": null}}})).await;
    world.merge(&app_key("web"), json!({"spec": {"placement": {"nodeName": "n2"}}})).await;
    let moved = push(&mut second, |desired| names(desired) == ["newcomer", "web"]).await;
    assert_eq!(networks(&moved)[1], ("web".to_owned(), address));
}

#[tokio::test]
async fn an_address_is_held_back_after_its_application_was_erased() {
    let world = world_with_nodes(&["n1"]).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    for name in ["gone", "stays"] {
        world.create_app(name, "n1", isolated()).await;
        push(&mut node, |desired| names(desired).contains(&name.to_owned())).await;
    }
    world.delete(&app_key("gone")).await;
    push(&mut node, |desired| desired.applications[0].windows(17).any(|text| text == b"deletionTimestamp"))
        .await;
    node.app_status(report("gone", "Terminated", 1)).await.unwrap();
    node.app_status(running_at("stays", "10.244.0.2/32")).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    eventually(SOON, async || world.app("gone").await.is_null()).await;
    // One of the same name is another one.
    world.create_app("gone", "n1", isolated()).await;
    let again = push(&mut node, |desired| networks(desired).len() == 2 && names(desired).len() == 2).await;
    assert_eq!(networks(&again), of(&[("gone", "10.244.0.3/32"), ("stays", "10.244.0.2/32")]));
    world.advance(Duration::from_secs(599));
    world.create_app("patient", "n1", isolated()).await;
    let later = push(&mut node, |desired| names(desired).len() == 3).await;
    assert_eq!(networks(&later)[1], ("patient".to_owned(), "10.244.0.4/32".to_owned()));
    world.advance(Duration::from_secs(10));
    world.create_app("heir", "n1", isolated()).await;
    let heir = push(&mut node, |desired| names(desired).len() == 4).await;
    assert_eq!(networks(&heir)[1], ("heir".to_owned(), "10.244.0.1/32".to_owned()));
}

#[tokio::test]
async fn only_the_address_that_was_given_is_believed() {
    let world = world_with_nodes(&["n1"]).await;
    world.create_app("web", "n1", isolated()).await;
    world.create_app("host", "n1", json!({})).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    for odd in ["10.244.0.9/32", "10.244.0.1/24", "garbage"] {
        node.app_status(running_at("web", odd)).await.unwrap();
        node.app_status(running_at("host", "10.244.0.1/32")).await.unwrap();
        eventually(SOON, async || {
            let told = world.told("ReportRefused", "n1").await;
            told.iter().any(|message| message.contains("team/web") && message.contains(odd))
        })
        .await;
    }
    eventually(SOON, async || world.app("web").await["status"]["phase"] == "Running").await;
    assert_eq!(world.app("web").await["status"].get("address"), None, "not stored");
    assert!(gateway.gateway.gate.metrics.reports_dropped_for("foreign_address") >= 3);
    for spelling in ["10.244.0.1", "10.244.0.1/32"] {
        node.app_status(running_at("web", spelling)).await.unwrap();
        eventually(SOON, async || world.app("web").await["status"]["address"] == "10.244.0.1/32").await;
    }
    assert_eq!(world.app("host").await["status"].get("address"), None);
}

#[tokio::test]
async fn when_the_range_is_used_up_others_go_on_and_the_last_one_waits() {
    let world = world_with_nodes(&["n1"]).await;
    let small = |settings: &mut horchestra_nodegate::settings::Settings| {
        settings.routed_range = Some("10.244.0.0/30".parse().unwrap());
        settings.address_hold = Duration::ZERO;
    };
    let gateway = world.gateway_with(small).await;
    let mut node = world.connect(&gateway, "n1").await;
    for name in ["a", "b"] {
        world.create_app(name, "n1", isolated()).await;
        push(&mut node, |desired| names(desired).contains(&name.to_owned())).await;
    }
    world.create_app("c", "n1", isolated()).await;
    let desired = push(&mut node, |desired| names(desired).len() == 3).await;
    assert_eq!(networks(&desired), of(&[("a", "10.244.0.1/32"), ("b", "10.244.0.2/32")]));
    eventually(SOON, async || world.told("NoAddress", "c").await.len() == 1).await;
    // One is erased, and the one that waits has its address without anybody asking anew.
    world.delete(&app_key("a")).await;
    push(&mut node, |desired| desired.applications[0].windows(17).any(|text| text == b"deletionTimestamp"))
        .await;
    node.app_status(report("a", "Terminated", 1)).await.unwrap();
    node.app_status(running_at("b", "10.244.0.2/32")).await.unwrap();
    node.send(end_of_pass()).await.unwrap();
    let desired = push(&mut node, |desired| networks(desired).iter().any(|(name, _)| name == "c")).await;
    assert_eq!(networks(&desired), of(&[("b", "10.244.0.2/32"), ("c", "10.244.0.1/32")]));
}

#[tokio::test]
async fn what_nodes_and_services_have_is_given_to_no_workload() {
    let world = world_with_nodes(&["n1", "n2"]).await;
    let service =
        json!({"metadata": {"name": "vip"}, "spec": {"clusterIP": "10.244.0.2", "ports": [{"port": 80}]}});
    world.create(Kind::Service, NAMESPACE, service).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    crate::world::report_ip(&node, "10.244.0.1").await;
    eventually(SOON, async || gateway.gateway.gate.index.taken().len() == 2).await;
    for name in ["a", "b"] {
        world.create_app(name, "n1", isolated()).await;
        push(&mut node, |desired| names(desired).contains(&name.to_owned())).await;
    }
    let held = world.operator.store().address_leases().await.unwrap();
    let addresses: Vec<Ipv4Addr> = held.iter().map(|lease| lease.address).collect();
    assert_eq!(addresses, [Ipv4Addr::new(10, 244, 0, 3), Ipv4Addr::new(10, 244, 0, 4)]);
    // A node is not turned away for coming where a workload is.
    node.app_status(running_at("a", &format!("{}/32", addresses[0]))).await.unwrap();
    let second = world.join(&gateway, "n2").await;
    crate::world::report_ip(&second, &addresses[0].to_string()).await;
    eventually(SOON, async || {
        world.told("AddressClash", "n2").await
            == [format!("{} is the address of Application team/a, too", addresses[0])]
    })
    .await;
}

#[tokio::test]
async fn an_imported_workload_keeps_the_address_that_it_has() {
    let world = world_with_nodes(&["n1", "n2"]).await;
    for name in ["old", "older"] {
        world.create_app(name, "n1", isolated()).await;
    }
    // As an importer leaves it: one by its lease, one by its status alone.
    let uid = |app: &Value| app["metadata"]["uid"].as_str().unwrap().parse().unwrap();
    let known = KnownAddress {
        key: app_key("older"),
        uid: uid(&world.app("older").await),
        address: Ipv4Addr::new(10, 244, 0, 9),
    };
    let refused = world.operator.store().adopt_addresses(&[known]).await.unwrap();
    assert!(refused.is_empty());
    store_address(&world, "old", "10.244.0.7/32").await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(
        networks(&node.desired(SOON).await.unwrap()),
        of(&[("old", "10.244.0.7/32"), ("older", "10.244.0.9/32")])
    );
    world.create_app("new", "n2", isolated()).await;
    let mut second = world.connect(&gateway, "n2").await;
    let desired = push(&mut second, |desired| !desired.applications.is_empty()).await;
    assert_eq!(networks(&desired), of(&[("new", "10.244.0.1/32")]));
}

#[tokio::test]
async fn a_workload_that_is_imported_while_gateways_run_keeps_its_address_as_well() {
    let world = world_with_nodes(&["n1"]).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    let uid = uuid::Uuid::new_v4();
    let object = json!({
        "metadata": {"name": "old", "namespace": NAMESPACE, "uid": uid.to_string(), "generation": 1},
        "spec": {"image": "x", "hostNetwork": false, "placement": {"nodeName": "n1"}},
        "status": {"phase": "Running", "address": "10.244.0.1/32"},
    });
    let columns = Columns { node: Some("n1".to_owned()), ..Columns::default() };
    let draft = Draft { uid, generation: 1, columns, ..draft_of(&Object::from_value(object).unwrap()) };
    commit(&world, Op::Create(draft)).await;
    let desired = push(&mut node, |desired| names(desired) == ["old"]).await;
    assert_eq!(networks(&desired), of(&[("old", "10.244.0.1/32")]));
    world.create_app("new", "n1", isolated()).await;
    let desired = push(&mut node, |desired| names(desired).len() == 2).await;
    assert_eq!(networks(&desired)[0], ("new".to_owned(), "10.244.0.2/32".to_owned()));
}

/// Writes `status.address` past all rules.
async fn store_address(world: &World, name: &str, address: &str) {
    let entry = world.operator.store().fresh().await.unwrap().get(&app_key(name)).unwrap();
    let mut object = entry.object().unwrap();
    object.metadata_mut().remove("resourceVersion");
    object.0.insert("status".to_owned(), json!({"phase": "Running", "address": address}));
    let draft = Draft {
        uid: entry.uid,
        generation: entry.generation,
        columns: (*entry.columns).clone(),
        ..draft_of(&object)
    };
    commit(world, Op::Update { draft, expect: entry.revision, class: Class::Status }).await;
}

fn draft_of(object: &Object) -> Draft {
    Draft {
        key: object.key(Kind::Application),
        uid: uuid::Uuid::nil(),
        generation: 0,
        deleting: false,
        body: horchestra_core::object::encode(Kind::Application, object),
        managed: None,
        index: Index::default(),
        columns: Columns::default(),
        edges: Vec::new(),
    }
}

async fn commit(world: &World, op: Op) {
    let who = Attribution {
        user: "system:import".to_owned(),
        verb: "import".to_owned(),
        audit_id: uuid::Uuid::new_v4(),
        trace: None,
    };
    world.operator.store().commit(Item { ops: vec![op], guards: Vec::new(), who }).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_away_delays_a_push_and_spoils_none() {
    let world = world_with_nodes(&["n1"]).await;
    world.create_app("a", "n1", isolated()).await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    gateway.backend().set_cut_off(true);
    world.create_app("b", "n1", isolated()).await;
    assert_no_push(&mut node).await;
    gateway.backend().set_cut_off(false);
    let desired = push(&mut node, |desired| names(desired).len() == 2).await;
    assert_eq!(networks(&desired).len(), 2);
    assert!(node.is_open());
}

/// Every address that nodes were told of, held against each other at every step.
#[tokio::test]
async fn two_gateways_that_ask_at_once_never_give_an_address_twice() {
    let world = World::on_postgres().await;
    let gateways = [world.gateway().await, world.gateway().await];
    let nodes = ["n1", "n2"];
    for node in nodes {
        world.create_node(node).await;
    }
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..3 {
        let creating = (0..16).map(|n| {
            let (world, name) = (&world, format!("app{round}-{n}"));
            async move { world.create_app(&name, nodes[n % 2], isolated()).await }
        });
        futures::future::join_all(creating).await;
        // Each node is on another gateway every time, so that each asks for what the other one has leased.
        let (one, two) = (&gateways[round % 2], &gateways[(round + 1) % 2]);
        let told_now = tokio::join!(
            all_of(&world, one, nodes[0], 8 * (round + 1)),
            all_of(&world, two, nodes[1], 8 * (round + 1))
        );
        for (name, address) in told_now.0.into_iter().chain(told_now.1) {
            let before = told.insert(name.clone(), address.clone());
            assert!(before.is_none_or(|before| before == address), "{name} got another one");
        }
        let addresses: BTreeSet<&String> = told.values().collect();
        assert_eq!(addresses.len(), told.len(), "twice: {told:?}");
    }
    assert_eq!(told.len(), 48);
}

/// The addresses of a node's workloads, once it is told of so many.
async fn all_of(world: &World, gateway: &TestGateway, node: &str, count: usize) -> Vec<(String, String)> {
    let whole = |desired: &DesiredState| {
        assert_eq!(names(desired).len(), networks(desired).len(), "never without");
        names(desired).len() == count
    };
    // The session before may not have been given up yet.
    let (mut scripted, first) = eventually(SOON, async || {
        let mut scripted = world.connect(gateway, node).await;
        scripted.desired(SOON).await.ok().map(|desired| (scripted, desired))
    })
    .await;
    let desired = if whole(&first) { first } else { push(&mut scripted, whole).await };
    let networks = networks(&desired);
    scripted.kill().await;
    eventually(SOON, async || !gateway.has_session(node)).await;
    networks
}

#[tokio::test]
async fn agents_run_what_they_are_given_an_address_for_and_take_the_tables() {
    let world = world_with_nodes(&["n1", "n2"]).await;
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
    world.create(Kind::Service, NAMESPACE, service).await;
    world.create_app("web", "n1", json!({"hostNetwork": false, "serviceName": "web"})).await;
    let gateway = world.gateway().await;
    let agent = |name: &str, able: bool| {
        let converge = ConvergeOptions { routed_network: able, datapath: able, ..ConvergeOptions::default() };
        let options =
            NodeOptions { heartbeat: Duration::from_millis(200), converge, ..NodeOptions::default() };
        Arc::new(Node::new(gateway.controller(), world.identity(name), options).unwrap())
    };
    let stop = CancellationToken::new();
    let agents = [agent("n1", true), agent("n2", false)];
    let running: Vec<_> = agents
        .iter()
        .map(|agent| {
            let (agent, stop) = (Arc::clone(agent), stop.clone());
            tokio::spawn(async move { agent.run(stop).await })
        })
        .collect();
    eventually(SOON, async || world.app("web").await["status"]["address"] == "10.244.0.1/32").await;
    let rules = eventually(SOON, async || {
        let tables = agents[0].datapath().tables();
        assert_eq!(tables.refused, 0);
        (!tables.rules.is_empty()).then_some(tables.rules)
    })
    .await;
    assert_eq!(rules.into_values().next(), Some(vec![(Ipv4Addr::new(10, 244, 0, 1), 80)]));
    // On a node that cannot give it a network it does not start.
    world.create_app("other", "n2", isolated()).await;
    eventually(SOON, async || world.app("other").await["status"]["phase"] == "Failed").await;
    assert_eq!(agents[1].datapath().tables(), Default::default());
    stop.cancel();
    for task in running {
        task.await.unwrap();
    }
}
