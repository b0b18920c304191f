//! A database that forgot something destroys nothing.

use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_nodegate::holds::Standing;
use horchestra_store::pushes::reason;
use horchestra_store::{Holding, PushChange};
use horchestra_testkit::eventually;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::world::{
    A_WHILE, NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, names, node_key,
    report,
};

/// The names on record for a node.
async fn on_record(world: &World, node: &str) -> Vec<String> {
    let (records, _) = world.operator.store().push_records(&[node.to_owned()]).await.unwrap();
    let mut names: Vec<String> =
        records[0].holdings.iter().map(|held| format!("{}/{}", held.key.kind, held.key.name)).collect();
    names.sort();
    names
}

async fn held(world: &World, node: &str) -> Option<String> {
    world.operator.store().holds().await.unwrap().of(node).map(|hold| hold.reason.clone())
}

async fn admit(world: &World, node: &str) {
    world.operator.admit(&world.who(), node).await.unwrap_or_else(|status| panic!("{}", status.message));
}

/// Waits until this process has seen the loss, and all its sessions know of the hold.
async fn wait_for_hold(gateway: &TestGateway) {
    eventually(SOON, async || gateway.gateway.gate.store.health().losses > 0).await;
    let gate = &gateway.gateway.gate;
    eventually(SOON, async || gate.index.is_loaded() && matches!(gate.holds.of("nobody"), Standing::Held(_)))
        .await;
}

async fn create_volume(world: &World, name: &str, node: &str) {
    let object = json!({"metadata": {"name": name}, "spec": {"node": node, "size": "1Gi"}});
    world.create(Kind::PersistentVolume, NAMESPACE, object).await;
}

#[tokio::test]
async fn what_a_node_may_hold_is_on_record_before_it_is_sent() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    let mut node = world.connect(&gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), Vec::<String>::new());
    assert_eq!(on_record(&world, "n1").await, Vec::<String>::new());
    create_volume(&world, "data", "n1").await;
    create_volume(&world, "elsewhere", "n2").await;
    world.create_app("web", "n1", json!({})).await;
    node.desired_where(SOON, |desired| !desired.applications.is_empty()).await.unwrap();
    assert_eq!(on_record(&world, "n1").await, ["Application/web", "PersistentVolume/data"]);
    let written = gateway.gateway.gate.metrics.push_records.get();

    // An edit is a push, and no news for the record.
    world.merge(&app_key("web"), json!({"spec": {"args": ["x"]}})).await;
    node.desired(SOON).await.unwrap();
    assert_eq!(gateway.gateway.gate.metrics.push_records.get(), written);

    // What has ended goes off it, once the node was sent that.
    world.delete(&app_key("web")).await;
    node.desired(SOON).await.unwrap();
    assert_eq!(on_record(&world, "n1").await.len(), 2, "it is being torn down");
    eventually(SOON, async || {
        node.app_status(report("web", "Terminated", 1)).await.unwrap();
        node.send(end_of_pass()).await.unwrap();
        world.app("web").await.is_null()
    })
    .await;
    world.delete(&Key::namespaced(Kind::PersistentVolume, NAMESPACE, "data")).await;
    eventually(SOON, async || on_record(&world, "n1").await.is_empty()).await;
}

#[tokio::test]
async fn a_job_that_runs_again_is_on_record_again() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({"lifecycle": {"restartPolicy": "Never"}})).await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    for round in 1..=3_i64 {
        assert_eq!(on_record(&world, "n1").await, ["Application/web"]);
        node.app_status(horchestra_proto::node::v1::AppStatus {
            attempts: 1,
            ..report("web", "Succeeded", round)
        })
        .await
        .unwrap();
        node.desired_where(SOON, |desired| desired.applications.is_empty()).await.unwrap();
        eventually(SOON, async || on_record(&world, "n1").await.is_empty()).await;
        world.merge(&app_key("web"), json!({"spec": {"args": [format!("{round}")]}})).await;
        node.desired_where(SOON, |desired| !desired.applications.is_empty()).await.unwrap();
    }
}

/// A restored backup: `old` and the volume are in it, `lost` and what happened later are not.
struct Restored {
    world: World,
    gateway: TestGateway,
}

impl Restored {
    /// `nodes` are connected before the backup is made; each runs `old-<node>` and `lost-<node>` at the end.
    async fn with(nodes: &[&str]) -> (Restored, Vec<horchestra_agent::scripted::ScriptedNode>) {
        let world = World::new().await;
        let gateway = world.gateway().await;
        let mut connected = Vec::new();
        for name in nodes {
            world.create_node(name).await;
            create_volume(&world, &format!("data-{name}"), name).await;
            world.create_app(&format!("old-{name}"), name, json!({})).await;
            let mut node = world.connect(&gateway, name).await;
            node.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
            connected.push(node);
        }
        let backup = world.memory().backup();
        for (name, node) in nodes.iter().zip(&mut connected) {
            create_volume(&world, &format!("lost-{name}"), name).await;
            world.create_app(&format!("lost-{name}"), name, json!({})).await;
            node.desired_where(SOON, |desired| {
                desired.applications.len() == 2 && desired.persistent_volumes.len() > nodes.len()
            })
            .await
            .unwrap();
        }
        world.memory().restore(&backup);
        (Restored { world, gateway }, connected)
    }
}

#[tokio::test]
async fn a_session_that_goes_on_after_a_restore_is_sent_supersets_until_it_is_released() {
    let (Restored { world, gateway }, mut nodes) = Restored::with(&["n1", "n2"]).await;
    wait_for_hold(&gateway).await;
    assert_eq!(held(&world, "n1").await.as_deref(), Some(reason::HISTORY_LOST));
    for node in &mut nodes {
        assert_no_push(node).await;
        assert!(node.is_open());
    }
    // What comes is sent beside what the node has, and no volume is named. What is edited or deleted waits.
    world.create_app("new", "n1", json!({})).await;
    let sent = nodes[0].desired(SOON).await.unwrap();
    assert_eq!(names(&sent), ["lost-n1", "new", "old-n1"]);
    assert!(sent.persistent_volumes.is_empty());
    world.merge(&app_key("old-n1"), json!({"spec": {"image": "registry.example/app:2"}})).await;
    world.delete(&app_key("old-n1")).await;
    // The name of what was lost, given again, is no second bearer beside the first.
    world.create_app("lost-n1", "n1", json!({})).await;
    assert_no_push(&mut nodes[0]).await;

    // Admitted, one node has exactly what the database says; the other one goes on waiting.
    admit(&world, "n1").await;
    let sent = nodes[0].desired(SOON).await.unwrap();
    assert_eq!(names(&sent), ["lost-n1", "new", "old-n1"]);
    assert_eq!(sent.persistent_volumes.len(), 2, "the volumes of both nodes that there are");
    let lost: Value = serde_json::from_slice(&sent.applications[0]).unwrap();
    assert_eq!(lost["metadata"]["uid"], world.app("lost-n1").await["metadata"]["uid"]);
    assert_no_push(&mut nodes[1]).await;
    world.operator.store().release_hold(None).await.unwrap();
    assert_eq!(names(&nodes[1].desired(SOON).await.unwrap()), ["old-n2"]);
}

#[tokio::test]
async fn a_new_session_after_a_restore_is_sent_nothing_until_it_is_released() {
    let (Restored { world, gateway }, nodes) = Restored::with(&["n1", "n2"]).await;
    wait_for_hold(&gateway).await;
    for node in nodes {
        node.kill().await;
    }
    eventually(SOON, async || !gateway.has_session("n1") && !gateway.has_session("n2")).await;
    let (mut one, mut two) = (world.join(&gateway, "n1").await, world.join(&gateway, "n2").await);
    for node in [&mut one, &mut two] {
        node.heartbeat().await.unwrap();
        assert_no_push(node).await;
    }
    // Nor when something comes, nor through another gateway, nor after every process was started anew.
    world.create_app("new", "n1", json!({})).await;
    assert_no_push(&mut one).await;
    for node in [one, two] {
        node.kill().await;
    }
    gateway.crash().await;
    let gateway = world.gateway().await;
    let (mut one, mut two) = eventually(SOON, async || {
        let one = world.connect(&gateway, "n1").await;
        let two = world.connect(&gateway, "n2").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        (one.is_open() && two.is_open() && gateway.has_session("n1") && gateway.has_session("n2"))
            .then_some((one, two))
    })
    .await;
    for node in [&mut one, &mut two] {
        assert_no_push(node).await;
    }
    admit(&world, "n2").await;
    assert_eq!(names(&two.desired(SOON).await.unwrap()), ["old-n2"]);
    assert_no_push(&mut one).await;
    world.operator.store().release_hold(None).await.unwrap();
    assert_eq!(names(&one.desired(SOON).await.unwrap()), ["new", "old-n1"]);
}

#[tokio::test]
async fn an_empty_database_behind_a_fleet_is_no_reason_to_stop_anything() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
        world.create_app(&format!("old-{name}"), name, json!({})).await;
    }
    let (mut one, mut two) = (world.connect(&gateway, "n1").await, world.connect(&gateway, "n2").await);
    for node in [&mut one, &mut two] {
        node.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    }
    world.memory().replace();
    // Their sessions are gone with it; they come back to a gateway that has seen more.
    for node in [&mut one, &mut two] {
        eventually(SOON, async || node.heartbeat().await.is_err() || !node.is_open()).await;
    }
    wait_for_hold(&gateway).await;
    let (mut one, mut two) = (world.join(&gateway, "n1").await, world.join(&gateway, "n2").await);
    // One node registers itself. Of the other somebody made the Node before, and even says what it is to run.
    world.create(Kind::Namespace, "", json!({"metadata": {"name": NAMESPACE}})).await;
    let registered = world.create_node("n2").await;
    assert_eq!(registered["status"]["conditions"][0]["status"], "True", "admitted, as such");
    world.create_app("again", "n2", json!({})).await;
    for node in [&mut one, &mut two] {
        node.heartbeat().await.unwrap();
    }
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    for node in [&mut one, &mut two] {
        assert_no_push(node).await;
    }
    assert_eq!(held(&world, "n2").await.as_deref(), Some(reason::DATABASE_REPLACED));
    world.operator.store().release_hold(None).await.unwrap();
    assert_eq!(names(&two.desired(SOON).await.unwrap()), ["again"]);
    assert_no_push(&mut one).await;
    admit(&world, "n1").await;
    assert_eq!(names(&one.desired(SOON).await.unwrap()), Vec::<String>::new());
}

#[tokio::test]
async fn a_failover_without_loss_needs_no_hold_and_one_with_a_lost_tail_does() {
    let world = World::new().await;
    let (gateway, bystander) = (world.gateway().await, world.gateway().await);
    world.create_node("n1").await;
    world.create_app("old", "n1", json!({})).await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    let caught_up = async |world: &World| {
        let head = world.operator.store().fresh().await.unwrap().revision();
        for gateway in [&gateway, &bystander] {
            eventually(SOON, async || gateway.gateway.gate.store.health().revision >= head).await;
        }
    };

    // The standby has everything that anybody has seen.
    caught_up(&world).await;
    world.memory().restore(&world.memory().backup());
    world.create_app("more", "n1", json!({})).await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["more", "old"]);
    assert_eq!(held(&world, "n1").await, None);

    // The next one lacks a tail in which nothing happened to this node; who has seen it says so to all.
    let standby = world.memory().backup();
    world.create_node("n2").await;
    caught_up(&world).await;
    world.memory().restore(&standby);
    wait_for_hold(&gateway).await;
    world.create_app("later", "n1", json!({})).await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["later", "more", "old"]);
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    let mut node = world.join(&bystander, "n1").await;
    assert_no_push(&mut node).await;
    admit(&world, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["later", "more", "old"]);
}

#[tokio::test]
async fn what_vanished_without_a_trace_holds_its_node_alone() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
        world.create_app(&format!("web-{name}"), name, json!({})).await;
    }
    let mut one = world.connect(&gateway, "n1").await;
    one.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    // On record, and nowhere else.
    let session = gateway.gateway.gate.sessions.get("n1").unwrap();
    let vanished = Holding { key: app_key("vanished"), uid: Uuid::new_v4() };
    let change = PushChange {
        node: "n1".to_owned(),
        grant: session.grant.clone(),
        revision: 1,
        add: vec![vanished],
        remove: Vec::new(),
    };
    assert!(world.operator.store().record_pushes(&[change]).await.unwrap().is_empty());
    drop(session);
    one.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;

    let (mut one, mut two) = (world.join(&gateway, "n1").await, world.connect(&gateway, "n2").await);
    two.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    assert_no_push(&mut one).await;
    let holds = world.operator.store().holds().await.unwrap();
    let hold = holds.of("n1").expect("held").clone();
    assert_eq!((hold.reason.as_str(), holds.of("n2")), (reason::UNEXPLAINED, None));
    assert!(hold.message.contains("vanished"), "{}", hold.message);
    admit(&world, "n1").await;
    assert_eq!(names(&one.desired(SOON).await.unwrap()), ["web-n1"]);
    assert_eq!(held(&world, "n1").await, None);
    assert_eq!(on_record(&world, "n1").await, ["Application/web-n1"]);
}

#[tokio::test]
async fn a_record_that_is_ahead_of_the_database_holds_everybody() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
    }
    let node = world.connect(&gateway, "n1").await;
    gateway.wait_for_session("n1").await;
    let session = gateway.gateway.gate.sessions.get("n1").unwrap();
    eventually(SOON, async || {
        let (records, _) = world.operator.store().push_records(&["n1".to_owned()]).await.unwrap();
        records[0].revision.is_some()
    })
    .await;
    let change = PushChange {
        node: "n1".to_owned(),
        grant: session.grant.clone(),
        revision: 1_000_000,
        add: Vec::new(),
        remove: Vec::new(),
    };
    world.operator.store().record_pushes(&[change]).await.unwrap();
    drop(session);
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    let mut node = world.join(&gateway, "n1").await;
    eventually(SOON, async || held(&world, "n2").await.as_deref() == Some(reason::RECORD_AHEAD)).await;
    assert!(node.desired(A_WHILE).await.is_err());
    world.operator.store().release_hold(None).await.unwrap();
    node.desired(SOON).await.unwrap();
    assert_eq!(held(&world, "n1").await, None, "once is enough");
}

#[tokio::test]
async fn a_node_that_says_what_it_holds_loses_nothing_that_nobody_knows() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.first_report = SOON).await;
    world.create_node("n1").await;
    let mine = world.create_app("mine", "n1", json!({})).await["metadata"]["uid"].clone();
    let gone = world.create_app("gone", "", json!({})).await["metadata"]["uid"].clone();
    world.delete(&app_key("gone")).await;
    let says = |units: Value| json!({"kind": "Node", "metadata": {"name": "n1"}, "status": {"ready": true, "units": units}});
    // Everything was started anew on a database that had forgotten this one.
    let stranger = Uuid::new_v4().to_string();
    let mut node = world.join(&gateway, "n1").await;
    assert_no_push(&mut node).await;
    node.node_status(&says(json!([mine, gone, stranger]))).await.unwrap();
    eventually(SOON, async || held(&world, "n1").await.as_deref() == Some(reason::UNEXPLAINED)).await;
    let message = world.operator.store().holds().await.unwrap().nodes["n1"].message.clone();
    assert!(message.contains(&stranger) && !message.contains(mine.as_str().unwrap()), "{message}");
    assert_no_push(&mut node).await;
    admit(&world, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["mine"]);

    // What it holds is known and what is not named was deleted: nothing is in the way.
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    let mut node = world.join(&gateway, "n1").await;
    node.node_status(&says(json!([mine, gone, "no uid", 7]))).await.unwrap();
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["mine"]);
    assert_eq!(held(&world, "n1").await, None);
}

#[tokio::test]
async fn a_node_that_is_older_than_the_database_is_sent_nothing_first() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.older_by = Duration::ZERO).await;
    // Certificates are valid from the beginning of the day on which they were made.
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.join(&gateway, "n1").await;
    eventually(SOON, async || held(&world, "n1").await.as_deref() == Some(reason::OLDER_THAN_DATABASE)).await;
    assert_no_push(&mut node).await;
    admit(&world, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"]);
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    let mut node = world.join(&gateway, "n1").await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["web"], "once is enough");
}

#[tokio::test]
async fn what_is_deleted_moved_taken_off_or_erased_while_the_node_is_away_goes_when_it_is_back() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for name in ["n1", "n2"] {
        world.create_node(name).await;
    }
    for name in ["moved", "stays", "unplaced"] {
        world.create_app(name, "n1", json!({})).await;
    }
    let mut node = world.connect(&gateway, "n1").await;
    node.desired_where(SOON, |desired| desired.applications.len() == 3).await.unwrap();
    node.kill().await;
    eventually(SOON, async || !gateway.has_session("n1")).await;
    world.merge(&app_key("moved"), json!({"spec": {"placement": {"nodeName": "n2"}}})).await;
    world.merge(&app_key("unplaced"), json!({"spec": {"placement": null}})).await;
    let mut node = world.connect(&gateway, "n1").await;
    let sent = node.desired_where(SOON, |desired| desired.applications.len() == 1).await.unwrap();
    assert_eq!(names(&sent), ["stays"]);
    assert_eq!(held(&world, "n1").await, None);
    eventually(SOON, async || on_record(&world, "n1").await == ["Application/stays"]).await;
}

#[tokio::test]
async fn sessions_wait_with_their_first_push_until_others_could_have_spoken() {
    let world = World::new().await;
    let patient = world.gateway_with(|settings| settings.settle = Duration::from_secs(3600)).await;
    world.create_node("n1").await;
    world.create_app("web", "n1", json!({})).await;
    let mut node = world.join(&patient, "n1").await;
    node.heartbeat().await.unwrap();
    assert_no_push(&mut node).await;
    let key = node_key("n1");
    eventually(SOON, async || world.get(&key).await["status"]["os"] == "scripted").await;
}
