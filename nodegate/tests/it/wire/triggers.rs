//! When something is pushed, and when it is not.

use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_proto::node::v1::AppStatus;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::{Node, report};
use super::stage::{Stage, volume_key};
use crate::world::{NAMESPACE, SOON, app_key, node_key, secret_key};

/// What happens, and whether the node is pushed to for it.
type Happening = (&'static str, for<'a> fn(&'a Stage, &'a Node) -> LocalBoxFuture<'a, ()>, bool);

const HAPPENINGS: &[Happening] = &[
    ("it runs", |stage, node| Box::pin(says(stage, node, "Running")), false),
    ("it runs on", |stage, node| Box::pin(says(stage, node, "Running")), false),
    ("it fails", |stage, node| Box::pin(says(stage, node, "Failed")), false),
    (
        "it is edited",
        |stage, _| Box::pin(stage.edit("web", json!({"image": "registry.example/app:2"}))),
        true,
    ),
    (
        "it is edited to what it is",
        |stage, _| Box::pin(stage.edit("web", json!({"image": "registry.example/app:2"}))),
        false,
    ),
    ("its labels are", |stage, _| Box::pin(labels(stage, app_key("web"))), false),
    ("it is frozen", |stage, _| Box::pin(stage.act("web", Door::Freeze)), true),
    ("it is thawed", |stage, _| Box::pin(stage.act("web", Door::Thaw)), true),
    ("a Secret that it names is", |stage, _| Box::pin(secret(stage, "named")), true),
    ("another Secret is", |stage, _| Box::pin(secret(stage, "unnamed")), false),
    (
        "a Secret is fetched elsewhere",
        |stage, _| Box::pin(annotate(stage, "fetched", "path", "apps/y")),
        true,
    ),
    (
        "a Secret is in another store",
        |stage, _| Box::pin(annotate(stage, "fetched", "store", "second")),
        true,
    ),
    ("the store is edited", |stage, _| Box::pin(store(stage, "second")), true),
    ("another store is", |stage, _| Box::pin(store(stage, "first")), false),
    ("a volume comes", |stage, _| Box::pin(stage.create_volume("mine", "n1")), true),
    ("a volume comes elsewhere", |stage, _| Box::pin(stage.create_volume("theirs", "n2")), false),
    (
        "a volume elsewhere is edited",
        |stage, _| Box::pin(volume(stage, "theirs", json!({"size": "2Gi"}))),
        false,
    ),
    ("a volume is edited", |stage, _| Box::pin(volume(stage, "mine", json!({"size": "2Gi"}))), true),
    (
        "a volume comes from elsewhere",
        |stage, _| Box::pin(volume(stage, "theirs", json!({"node": "n1"}))),
        true,
    ),
    ("a volume goes", |stage, _| Box::pin(gone(stage, volume_key("mine"))), true),
    ("its node is labelled", |stage, _| Box::pin(labels(stage, node_key("n1"))), false),
    ("its node is cordoned", |stage, _| Box::pin(cordon(stage)), false),
    ("an Application comes elsewhere", |stage, _| Box::pin(app(stage, "elsewhere", "n2")), false),
    ("a namespace comes", |stage, _| Box::pin(stage.create_namespace("new")), false),
    ("an Application comes", |stage, _| Box::pin(app(stage, "second", "n1")), true),
    ("it is deleted", |stage, _| Box::pin(deleted(stage)), true),
];

async fn says(stage: &Stage, node: &Node, phase: &str) {
    let failed = i32::from(phase == "Failed");
    node.pass([AppStatus { exit_code: failed, ..report(NAMESPACE, "web", phase, 1) }]).await;
    stage.until_phase("web", phase).await;
}

async fn labels(stage: &Stage, key: Key) {
    stage.world.merge(&key, json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})).await;
}

async fn secret(stage: &Stage, name: &str) {
    stage.world.merge(&secret_key(name), json!({"stringData": {"k": "changed"}})).await;
}

async fn annotate(stage: &Stage, name: &str, member: &str, value: &str) {
    let member = format!("secrets.horchestra.io/{member}");
    stage.world.merge(&secret_key(name), json!({"metadata": {"annotations": {member: value}}})).await;
}

async fn store(stage: &Stage, name: &str) {
    let key = Key::namespaced(Kind::SecretStore, NAMESPACE, name);
    stage.world.merge(&key, json!({"spec": {"server": "https://moved.example:8200"}})).await;
}

async fn volume(stage: &Stage, name: &str, spec: Value) {
    stage.world.merge(&volume_key(name), json!({"spec": spec})).await;
}

async fn gone(stage: &Stage, key: Key) {
    assert!(stage.world.delete(&key).await);
}

async fn cordon(stage: &Stage) {
    stage.world.operator.cordon(&stage.world.who(), "n1", true).await.unwrap();
}

async fn app(stage: &Stage, name: &str, node: &str) {
    stage.world.create_app(name, node, json!({})).await;
}

async fn deleted(stage: &Stage) {
    assert!(!stage.delete_app("web").await, "its node has to let go of it");
}

#[tokio::test]
async fn what_a_node_could_tell_is_pushed_and_nothing_else() {
    let stage = Stage::with(|settings| {
        settings.push_gap = Duration::from_millis(20);
        settings.urgent_gap = Duration::from_millis(10);
    })
    .await;
    stage.world.create_node("n2").await;
    for name in ["first", "second"] {
        stage.world.create_store(name, "cert").await;
    }
    for name in ["named", "unnamed"] {
        stage.world.create_secret(name, json!({"k": "v"})).await;
    }
    stage.world.create_vault_secret("fetched", "first").await;
    let mount =
        |name: &str| json!({"mountPath": format!("/{name}"), "volume": {"type": "secret", "name": name}});
    let spec = json!({"volumes": [mount("named"), mount("fetched")]});
    let mut node = stage.serving("n1", &[("web", spec)]).await;
    stage.heard(&node).await;
    for (what, happens, pushed) in HAPPENINGS {
        happens(&stage, &node).await;
        if *pushed {
            timeout(SOON / 2, node.push()).await.unwrap_or_else(|_| panic!("{what}: not pushed"));
        } else {
            // Whatever it would bring is there before what comes next.
            tokio::time::sleep(Duration::from_millis(60)).await;
            assert!(node.is_quiet().await, "{what}: pushed");
        }
    }
    node.hears_nothing().await;
}

#[tokio::test]
async fn a_new_bearer_of_a_name_is_pushed() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({})), ("other", json!({}))]).await;
    let old = stage.world.app("web").await["metadata"]["uid"].clone();
    stage.delete_app("web").await;
    assert!(node.push().await.is_deleting("web"));
    node.pass([report(NAMESPACE, "other", "Running", 1), report(NAMESPACE, "web", "Terminated", 1)]).await;
    stage.until_app("web", Value::is_null).await;
    stage.world.create_app("web", "n1", json!({})).await;
    let push = node.push_where(|push| push.app("web").is_some_and(|app| app["metadata"]["uid"] != old)).await;
    assert_eq!(push.app("web").unwrap()["metadata"]["generation"], 1);
}

#[tokio::test]
async fn the_state_is_sent_again_after_a_time_without_change() {
    assert_eq!(
        horchestra_nodegate::settings::Settings::default().resend_every,
        Some(Duration::from_secs(300))
    );
    let stage = Stage::with(|settings| settings.resend_every = Some(Duration::from_millis(500))).await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let first = node.push().await;
    let again = node.push().await;
    assert_eq!(first.raw, again.raw, "the same, byte for byte");
}

#[tokio::test]
async fn a_change_is_delivered_although_nobody_was_told_of_it() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let args = |push: &super::push::Push| push.app("web").unwrap()["spec"]["args"][0].clone();
    stage.gateway.backend().set_deaf(true);
    stage.edit("web", json!({"args": ["deaf"]})).await;
    assert_eq!(args(&node.push().await), "deaf");
    stage.gateway.backend().set_deaf(false);
    stage.gateway.backend().set_cut_off(true);
    stage.edit("web", json!({"args": ["cut off"]})).await;
    node.hears_nothing().await;
    stage.gateway.backend().set_cut_off(false);
    assert_eq!(args(&node.push().await), "cut off");
}

#[tokio::test]
async fn a_burst_is_a_few_pushes_and_the_last_one_is_the_truth() {
    const EDITS: usize = 300;
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let start = Instant::now();
    for number in 1..=EDITS {
        stage.edit("web", json!({"args": [number.to_string()]})).await;
    }
    let took = start.elapsed();
    let mut pushes = 1;
    while node.push().await.app("web").unwrap()["spec"]["args"] != json!([EDITS.to_string()]) {
        pushes += 1;
        assert!(start.elapsed() < SOON);
    }
    // At once, then five a second.
    assert!(pushes <= took.as_millis() / 200 + 2, "{pushes} pushes in {took:?}");
    node.hears_nothing().await;
}

#[tokio::test]
async fn a_node_that_does_not_read_is_sent_the_newest_state_when_it_does() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[]).await;
    // More than fits into what may be on its way to a node that reads nothing.
    let megabyte = "x".repeat(1 << 20);
    for number in 0..6 {
        let spec = json!({"args": [if number < 2 { megabyte.as_str() } else { "small" }]});
        stage.world.create_app(&format!("app-{number}"), "n1", spec).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    stage.edit("app-0", json!({"args": ["small"]})).await;
    stage.edit("app-1", json!({"args": ["small"]})).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut pushes = 0;
    loop {
        let push = node.push().await;
        pushes += 1;
        let large = push.apps.values().any(|app| app["spec"]["args"] != json!(["small"]));
        if push.apps.len() == 6 && !large {
            break;
        }
    }
    assert!(pushes <= 4, "what nobody waits for any more was sent: {pushes}");
    node.hears_nothing().await;
}
