//! Nodes that show up, what they say of themselves, and whether they take part.

use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_nodegate::strict::ReverseNames;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::world::{A_WHILE, SOON, World, assert_no_push, names, node_key};

fn full_report(name: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "horchestra.io/v1",
        "metadata": {
            "name": name, "labels": {"tier": "secure"}, "annotations": {"a": "b"}, "finalizers": ["x.io/y"],
        },
        "spec": {"unschedulable": false},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi"}, "allocated": {"cpu": "1500m"}, "os": "test-os",
            "ip": "10.0.0.9", "ready": true, "heartbeat": "2099-01-01T00:00:00Z", "runtimes": ["userns"],
            "platform": {"os": "linux", "arch": "amd64"}, "labels": {"arch": "gpu"}, "newer": {"member": 1},
        },
    })
}

#[tokio::test]
async fn a_new_node_is_registered_cordoned_and_with_its_name_only() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = world.join(&gateway, "n1").await;
    node.node_status(&full_report("n1")).await.unwrap();
    let registered =
        eventually(SOON, async || Some(world.node("n1").await).filter(|node| !node.is_null())).await;
    assert_eq!(registered["spec"]["unschedulable"], true);
    let metadata = registered["metadata"].as_object().unwrap();
    for member in ["labels", "annotations", "finalizers"] {
        assert!(!metadata.contains_key(member), "{member} in {metadata:?}");
    }
    let status = &registered["status"];
    assert_eq!(status["ready"], true);
    assert_eq!(status["os"], "test-os");
    assert_eq!(status["capacity"], json!({"cpu": "4", "memory": "8Gi"}));
    assert_eq!(
        status["labels"],
        json!({
            "horchestra.io/hostname": "n1", "horchestra.io/os": "linux", "horchestra.io/arch": "amd64",
        })
    );
    assert_eq!(status.get("newer"), None);
    // The heartbeat is the database's clock, and so is its age; what the node claims is nothing.
    let beats = eventually(SOON, async || {
        Some(world.operator.store().heartbeats().await.unwrap()).filter(|b| b.len() == 1)
    })
    .await;
    assert_eq!(beats[0].heartbeat.allocated_cpu, 1_500_000_000);
    let now = jiff::Timestamp::now().as_microsecond();
    assert!(beats[0].at < now + 60_000_000, "{beats:?}");
}

#[tokio::test]
async fn a_registered_node_is_sent_nothing_until_it_is_uncordoned() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    world.create_app("web", "n1", json!({})).await;
    assert_no_push(&mut node).await;
    world.uncordon("n1").await;
    let first = node.desired(SOON).await.unwrap();
    assert_eq!(names(&first), ["web"]);
    assert_no_push(&mut node).await;
    // From here on cordoning concerns the scheduler alone, and heartbeats never lift it.
    world.operator.cordon(&world.who(), "n1", true).await.unwrap();
    node.heartbeat().await.unwrap();
    world.create_app("more", "n1", json!({})).await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["more", "web"]);
    assert_eq!(world.node("n1").await["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn reports_that_make_no_sense_change_nothing_and_end_nothing() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = world.join(&gateway, "n1").await;
    let mut namespaced = full_report("n1");
    namespaced["metadata"]["namespace"] = json!("team");
    let mut empty_amount = full_report("n1");
    empty_amount["status"]["capacity"]["cpu"] = json!("");
    let mut negative = full_report("n1");
    negative["status"]["allocated"]["cpu"] = json!("-1");
    for bad in [full_report("n2"), namespaced, empty_amount, negative, json!([1]), json!("x")] {
        node.node_status(&bad).await.unwrap();
    }
    node.node_status(&full_report("n1")).await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    assert!(node.is_open());
    assert!(world.node("n2").await.is_null());
    let dropped = &gateway.gateway.gate.metrics;
    assert_eq!(dropped.reports_dropped_for("node_status"), 6);
}

#[tokio::test]
async fn what_changes_in_a_report_is_stored_and_what_does_not_writes_nothing() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = world.join(&gateway, "n1").await;
    node.node_status(&full_report("n1")).await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    let before = world.revision().await;
    let suppressed = || gateway.gateway.gate.metrics.reports_suppressed.get();
    let beats = || gateway.gateway.gate.metrics.heartbeats.get();
    let (start, beaten) = (suppressed(), beats());
    // Allocation and the claimed time change all the time; they are no reason to write.
    for second in 0..5 {
        let mut report = full_report("n1");
        report["status"]["heartbeat"] = json!(format!("2030-01-01T00:00:0{second}Z"));
        report["status"]["allocated"]["cpu"] = json!(format!("{second}"));
        let seen = suppressed();
        node.node_status(&report).await.unwrap();
        eventually(SOON, async || suppressed() > seen).await;
    }
    eventually(SOON, async || beats() > beaten).await;
    assert_eq!((suppressed() - start, world.revision().await), (5, before));

    let mut report = full_report("n1");
    report["status"]["platform"]["arch"] = json!("arm64");
    report["status"]["capacity"] = json!({"cpu": "100000", "memory": "1Pi"});
    node.node_status(&report).await.unwrap();
    eventually(SOON, async || {
        let status = world.node("n1").await["status"].clone();
        status["labels"]["horchestra.io/arch"] == "arm64"
            && status["capacity"] == json!({"cpu": "4096", "memory": "64Ti"})
    })
    .await;

    // Somebody else's edit of the status is put right by the next report.
    let patch = horchestra_service::Patch {
        kind: horchestra_service::PatchType::Merge,
        document: json!({"status": {"os": "edited"}}).to_string().into(),
    };
    let part = horchestra_service::Part::Status;
    world.operator.patch(&world.who(), &node_key("n1"), part, patch, &Default::default()).await.unwrap();
    eventually(SOON, async || {
        node.node_status(&report).await.unwrap();
        world.node("n1").await["status"]["os"] == "test-os"
    })
    .await;
}

#[tokio::test]
async fn a_node_that_an_operator_made_is_served_at_once() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    node.heartbeat().await.unwrap();
    eventually(SOON, async || world.node("n1").await["status"]["ready"] == true).await;
    assert_eq!(world.node("n1").await["spec"].get("unschedulable"), None, "not cordoned by its report");
}

#[tokio::test]
async fn without_a_node_object_nothing_is_sent_until_there_is_one() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    assert_no_push(&mut node).await;
    world.create_node("n1").await;
    assert_eq!(node.desired(SOON).await.unwrap().applications.len(), 0, "there is nothing to run");
    assert_no_push(&mut node).await;
}

#[tokio::test]
async fn a_deleted_node_is_frozen_and_comes_back_as_a_stranger() {
    let world = World::on_postgres().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    node.heartbeat().await.unwrap();
    eventually(SOON, async || world.node("n1").await["status"]["ready"] == true).await;

    assert!(world.delete(&node_key("n1")).await);
    world
        .merge(
            &crate::world::app_key("web"),
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"args": ["x"]}}),
        )
        .await;
    assert_no_push(&mut node).await;
    node.heartbeat().await.unwrap();
    let back = eventually(SOON, async || Some(world.node("n1").await).filter(|node| !node.is_null())).await;
    assert_eq!(back["spec"]["unschedulable"], true);
    assert_no_push(&mut node).await;
    world.uncordon("n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    assert_no_push(&mut node).await;
}

#[tokio::test]
async fn the_end_of_a_stream_writes_nothing_to_the_node() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = world.join(&gateway, "n1").await;
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    let before = world.revision().await;
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.revision().await, before);
}

#[tokio::test]
async fn what_another_node_says_of_itself_is_no_reason_to_push() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
    }
    let (mut node, mut other) = (world.connect(&gateway, "n1").await, world.connect(&gateway, "n2").await);
    for node in [&mut node, &mut other] {
        node.desired(SOON).await.unwrap();
    }
    for cpu in ["2", "4"] {
        let mut report = full_report("n2");
        report["status"]["capacity"]["cpu"] = json!(cpu);
        other.node_status(&report).await.unwrap();
        eventually(SOON, async || world.node("n2").await["status"]["capacity"]["cpu"] == cpu).await;
    }
    assert_no_push(&mut node).await;
}

#[tokio::test]
async fn kinds_are_watched_by_name_not_by_neighbourhood() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    let pushes = gateway.gateway.gate.metrics.pushes.get();
    world.create_node("n2").await;
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "other"}})).await;
    world.create_app("elsewhere", "n2", json!({})).await;
    assert_no_push(&mut node).await;
    assert_eq!(gateway.gateway.gate.metrics.pushes.get(), pushes);
}

/// Names by address as the test says: by name, none at all, or never an answer.
fn reverse_names(name: Option<&'static str>) -> ReverseNames {
    ReverseNames::by(Duration::from_millis(300), move |_| {
        Box::pin(async move {
            match name {
                Some("hangs") => std::future::pending().await,
                name => Ok(name.map(str::to_owned).into_iter().collect()),
            }
        })
    })
}

#[tokio::test]
async fn under_strict_registration_the_address_has_to_bear_the_name() {
    for (node, names, registers) in [
        ("node-1", Some("node-1.example.org."), true),
        ("node-1.example.org", Some("node-1.example.org."), true),
        ("node-2", Some("node-1.example.org."), false),
        ("node-1", None, false),
        ("node-1", Some("hangs"), false),
    ] {
        let world = World::new().await;
        let gateway =
            world.gateway_with(|settings| settings.strict_registration = Some(reverse_names(names))).await;
        let scripted = world.join(&gateway, node).await;
        scripted.heartbeat().await.unwrap();
        if registers {
            eventually(SOON, async || !world.node(node).await.is_null()).await;
        } else {
            let dropped = || gateway.gateway.gate.metrics.reports_dropped_for("refused");
            eventually(SOON, async || dropped() == 1).await;
            // Tried again with every heartbeat, on the same session.
            scripted.heartbeat().await.unwrap();
            eventually(SOON, async || dropped() == 2).await;
            assert!(world.node(node).await.is_null());
        }
        assert!(scripted.is_open());
    }
}

#[tokio::test]
async fn a_node_that_exists_reports_whatever_its_address_is_called() {
    let world = World::new().await;
    let gateway =
        world.gateway_with(|settings| settings.strict_registration = Some(reverse_names(None))).await;
    world.create_node("n1").await;
    let node = world.join(&gateway, "n1").await;
    node.heartbeat().await.unwrap();
    eventually(SOON, async || world.node("n1").await["status"]["ready"] == true).await;
}
