//! Placement by labels, by neighbours, by runtime and by network.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::WorkloadAffinityTerm;
use horchestra_workers::scheduler::cluster::{Amounts, Cluster, NodeInfo, VolumeInfo};
use serde_json::{Value, json};

use crate::fleet::{application, labelled, node, occupy, pending, place, requests, waiting};

fn selector(expression: Value) -> Value {
    json!({"placement": {"affinity": {"nodeAffinity": {"requiredDuringScheduling": expression}}}})
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    selector(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
}

#[test]
fn node_labels_decide_where_an_application_fits() {
    let ssd = labelled("n1", &[("disktype", "ssd"), ("gpu", "yes")]);
    let cases = [
        ("no constraints", json!({}), true),
        ("equal selector", json!({"placement": {"nodeSelector": {"disktype": "ssd"}}}), true),
        ("other selector", json!({"placement": {"nodeSelector": {"disktype": "hdd"}}}), false),
        ("empty value needs the key", json!({"placement": {"nodeSelector": {"absent": ""}}}), false),
        ("required labels", selector(json!({"matchLabels": {"disktype": "ssd"}})), true),
        ("In with the value", expression("disktype", "In", &["ssd", "nvme"]), true),
        ("In without the value", expression("disktype", "In", &["nvme"]), false),
        ("NotIn without the value", expression("disktype", "NotIn", &["hdd"]), true),
        ("NotIn with the value", expression("disktype", "NotIn", &["ssd"]), false),
        ("Exists", expression("gpu", "Exists", &[]), true),
        ("Exists on an absent key", expression("tpu", "Exists", &[]), false),
        ("DoesNotExist on an absent key", expression("tpu", "DoesNotExist", &[]), true),
        ("DoesNotExist on a present key", expression("gpu", "DoesNotExist", &[]), false),
        ("host name", json!({"placement": {"nodeSelector": {"horchestra.io/hostname": "n1"}}}), true),
    ];
    for (name, spec, fits) in cases {
        let placed = place(&mut Cluster::new([ssd.clone()]), waiting("app", spec));
        assert_eq!(placed.is_ok(), fits, "{name}: {placed:?}");
    }
}

#[test]
fn preferred_labels_draw_an_application() {
    let spec = json!({"placement": {"affinity": {"nodeAffinity": {"preferredDuringScheduling": [
        {"weight": 10, "preference": {"matchLabels": {"tier": "gold"}}},
    ]}}}});
    let mut cluster =
        Cluster::new([labelled("a", &[("tier", "silver")]), labelled("b", &[("tier", "gold")])]);
    assert_eq!(place(&mut cluster, waiting("app", spec)), Ok("b".to_owned()));
}

fn workload(kind: &str, labels: Value, key: &str) -> Value {
    json!({"placement": {"affinity": {kind: {"requiredDuringScheduling": [
        {"labelSelector": labels, "topologyKey": key},
    ]}}}})
}

const HOST: &str = "horchestra.io/hostname";

#[test]
fn neighbours_decide_where_an_application_fits() {
    let near = |labels| workload("workloadAffinity", labels, HOST);
    let away = |labels| workload("workloadAntiAffinity", labels, HOST);
    let db = || application("default", "db", json!({"app": "db"}), json!({}));
    let cases = [
        ("beside its peer", db(), json!({}), near(json!({"app": "db"})), Ok("n2")),
        ("no such peer", db(), json!({}), near(json!({"app": "cache"})), Err(())),
        ("the first of its own group", db(), json!({"app": "web"}), near(json!({"app": "web"})), Ok("n1")),
        ("away from its peer", db(), json!({}), away(json!({"app": "db"})), Ok("n1")),
        (
            "a peer of another namespace does not count",
            application("other", "db", json!({"app": "db"}), json!({})),
            json!({}),
            near(json!({"app": "db"})),
            Err(()),
        ),
        (
            "kept off by a peer that wants to be alone",
            application("default", "loner", json!({}), away(json!({"app": "web"}))),
            json!({"app": "web"}),
            json!({}),
            Ok("n1"),
        ),
        (
            "kept off its node alone, where no node has the label that domains go by",
            application(
                "default",
                "loner",
                json!({}),
                workload("workloadAntiAffinity", json!({"app": "web"}), "rack"),
            ),
            json!({"app": "web"}),
            json!({}),
            Ok("n1"),
        ),
    ];
    for (name, peer, labels, spec, expected) in cases {
        let mut cluster = Cluster::new([node("n1"), node("n2")]);
        occupy(&mut cluster, "n2", &pending(peer));
        let placed = place(&mut cluster, pending(application("default", "app", labels, spec)));
        assert_eq!(placed.as_deref().map_err(|_| ()), expected, "{name}: {placed:?}");
    }
}

#[test]
fn two_that_repel_each_other_do_not_share_a_node_within_one_pass() {
    let loner = |name: &str| {
        let spec = workload("workloadAntiAffinity", json!({"app": "web"}), HOST);
        pending(application("default", name, json!({"app": "web"}), spec))
    };
    let mut cluster = Cluster::new([node("n1"), node("n2")]);
    let first = place(&mut cluster, loner("a")).unwrap();
    let second = place(&mut cluster, loner("b")).unwrap();
    assert_ne!(first, second);
    assert!(place(&mut cluster, loner("c")).is_err());
}

#[test]
fn a_domain_is_the_nodes_with_an_equal_label() {
    let zone = |name: &str, zone: &str| labelled(name, &[("zone", zone)]);
    let mut cluster = Cluster::new([zone("n1", "a"), zone("n2", "a"), zone("n3", "b"), node("n4")]);
    let term = |key: &str| WorkloadAffinityTerm { topology_key: key.to_owned(), ..Default::default() };
    let before = cluster.watch("default", &term("zone"));
    let app = waiting("app", json!({}));
    occupy(&mut cluster, "n1", &app);
    occupy(&mut cluster, "unknown", &waiting("lost", json!({})));
    for (key, near) in [(HOST, "n1"), ("zone", "n1 n2"), ("absent", "n1")] {
        let watched = cluster.watch("default", &term(key));
        let peers = cluster.peers(watched);
        let names: Vec<&str> =
            (0..4).filter(|at| peers.near(*at)).map(|at| cluster.at(at).name.as_str()).collect();
        assert_eq!(names.join(" "), near, "{key}");
    }
    assert!(cluster.peers(before).near(1), "counted on from the first question");
    let elsewhere = cluster.watch("other", &term("zone"));
    assert!(!cluster.peers(elsewhere).anywhere());
    cluster.displace("n1", &app.key);
    assert!(!cluster.peers(before).anywhere());
}

#[test]
fn runtime_class_and_network_helper_are_asked_of_the_node() {
    let offering = |classes: &[&str], routed: bool| -> NodeInfo {
        let mut node = node("n1");
        node.runtimes = classes.iter().map(|class| (*class).to_owned()).collect();
        node.routed_network = routed;
        node
    };
    let class = json!({"runtimeClassName": "firecracker"});
    let cases = [
        ("no class asked, none offered", offering(&[], false), json!({}), true),
        ("no class asked, some offered", offering(&["userns"], false), json!({}), true),
        ("the class is offered", offering(&["userns", "firecracker"], false), class.clone(), true),
        ("another class is offered", offering(&["userns"], false), class.clone(), false),
        ("no class is offered", offering(&[], false), class, false),
        ("own network with a helper", offering(&[], true), json!({"hostNetwork": false}), true),
        ("own network without a helper", offering(&[], false), json!({"hostNetwork": false}), false),
        ("network unset", offering(&[], false), json!({}), true),
    ];
    for (name, node, spec, fits) in cases {
        let placed = place(&mut Cluster::new([node]), waiting("app", spec));
        assert_eq!(placed.is_ok(), fits, "{name}: {placed:?}");
    }
}

fn volume(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, "default", name)
}

#[test]
fn an_application_runs_where_its_volumes_lie() {
    let mounts = |names: &[&str]| {
        let mount = |name: &&str| {
            let path = format!("/{name}");
            json!({"mountPath": path, "volume": {"type": "pv", "name": name}})
        };
        json!({"volumes": names.iter().map(mount).collect::<Vec<_>>()})
    };
    let full = || {
        let mut node = node("n1");
        node.capacity = Amounts { cpu: 1, memory: 1 };
        node
    };
    let elsewhere = "its volumes lie on another node";
    let (one_elsewhere, two_full) = (
        format!("0/2 nodes are available: 1 insufficient cpu and memory, 1 {elsewhere}"),
        format!("0/1 nodes are available: 1 {elsewhere}"),
    );
    let apart = "not schedulable: its volumes lie on different nodes".to_owned();
    let going = "not schedulable: volume \"old\" is being deleted".to_owned();
    let odd = "0/1 nodes are available: 1 no agent can read a volume on a node of this name".to_owned();
    type Case<'a> = (&'a str, Vec<NodeInfo>, Value, Result<&'a str, String>, Vec<(&'a str, &'a str)>);
    let two = || vec![node("n1"), node("n2")];
    let cases: Vec<Case<'_>> = vec![
        ("one that lies nowhere comes along", two(), mounts(&["free"]), Ok("n1"), vec![("free", "n1")]),
        ("one that is missing is made there", two(), mounts(&["new"]), Ok("n1"), vec![("new", "n1")]),
        (
            "without a name it is called like the application",
            two(),
            json!({"volumes": [{"mountPath": "/data", "volume": {"type": "pv"}}]}),
            Ok("n1"),
            vec![("app", "n1")],
        ),
        ("where one lies it goes", two(), mounts(&["second", "free"]), Ok("n2"), vec![("free", "n2")]),
        ("two that lie apart", two(), mounts(&["first", "second"]), Err(apart), vec![]),
        (
            "it does not go elsewhere",
            vec![full(), node("n2")],
            mounts(&["first"]),
            Err(one_elsewhere),
            vec![],
        ),
        ("its node is gone", vec![node("n2")], mounts(&["first"]), Err(two_full), vec![]),
        ("one that is being deleted", two(), mounts(&["old"]), Err(going), vec![]),
        ("a node that is named like a number", vec![node("1e99")], mounts(&["free"]), Err(odd), vec![]),
        (
            "memory lies nowhere",
            two(),
            json!({"volumes": [{"mountPath": "/tmp", "volume": {"type": "tmpfs"}}]}),
            Ok("n1"),
            vec![],
        ),
    ];
    for (name, nodes, spec, expected, pinned) in cases {
        let mut cluster = Cluster::new(nodes);
        let lies = |node: Option<&str>| VolumeInfo { node: node.map(str::to_owned), deleting: false };
        let old = VolumeInfo { node: None, deleting: true };
        let known =
            [("free", lies(None)), ("first", lies(Some("n1"))), ("second", lies(Some("n2"))), ("old", old)];
        for (name, info) in known {
            cluster.put_volume(volume(name), Some(info));
        }
        let mut spec = spec;
        spec["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
        let placed = place(&mut cluster, waiting("app", spec));
        assert_eq!(placed, expected.map(str::to_owned), "{name}");
        for (name_of, node) in pinned {
            let known = cluster.volume(&volume(name_of));
            assert_eq!(known, Some(&lies(Some(node))), "{name}: {name_of}");
        }
    }
}

#[test]
fn those_that_share_a_volume_go_to_one_node_within_one_pass() {
    let mounts = || json!({"volumes": [{"mountPath": "/data", "volume": {"type": "pv", "name": "shared"}}]});
    let mut cluster = Cluster::new([node("n1"), node("n2")]);
    occupy(&mut cluster, "n1", &waiting("load", requests("1", "1Gi")));
    for name in ["a", "b", "c"] {
        assert_eq!(place(&mut cluster, waiting(name, mounts())), Ok("n2".to_owned()), "{name}");
        occupy(&mut cluster, "n2", &waiting("more", requests("1", "1Gi")));
    }
}
