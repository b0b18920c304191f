//! What a gateway has to bear from agents that are in the field.

use std::time::Duration;

use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{AppMetrics, AppStatus, NodeUsage};
use serde_json::json;

use super::client::{heartbeat, report};
use super::stage::{Stage, job, volume_key};
use crate::world::NAMESPACE;

#[tokio::test]
async fn a_node_that_says_nothing_of_its_workloads_for_long_has_not_failed() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({})), ("pulls", json!({}))]).await;
    node.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    let before = stage.until_phase("web", "Running").await;
    stage.heard(&node).await;
    let revision = stage.world.revision().await;
    // One image is pulled, and everything else on the node waits: twenty minutes of heartbeats.
    for minute in 0..20 {
        stage.world.advance(Duration::from_secs(60));
        let mut said = heartbeat("n1");
        said["status"]["os"] = json!(format!("minute {minute}"));
        node.say_of_itself(said.to_string()).await;
        stage.until_node("n1", |node| node["status"]["os"] == said["status"]["os"]).await;
    }
    assert_eq!(stage.world.app("web").await, before);
    assert_eq!(stage.status("pulls").await["phase"], "Pending");
    assert_eq!(stage.world.revision().await, revision + 20, "the heartbeats, which said something new each");
    node.hears_nothing().await;
    assert!(node.is_open().await);
    node.pass([report(NAMESPACE, "pulls", "Running", 1)]).await;
    stage.until_phase("pulls", "Running").await;
}

#[tokio::test]
async fn a_finished_job_is_withheld_and_begins_anew_with_its_next_generation() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("once", job(1))]).await;
    let spent = AppStatus {
        attempts: 2,
        exit_code: 9,
        finished_at_unix_nano: 1,
        ..report(NAMESPACE, "once", "Failed", 1)
    };
    node.pass([spent]).await;
    assert!(node.push().await.apps.is_empty());
    // The agent comes back without memory; it must not run it again.
    node.finish();
    node.end().await;
    let mut node = stage.dial_again(&stage.gateway, "n1").await;
    assert!(node.push().await.apps.is_empty());
    stage.edit("once", json!({"args": ["again"]})).await;
    let push = node.push().await;
    assert_eq!(push.app("once").unwrap()["status"]["attempts"], 0, "the old count would eat the new budget");
    // And the new count is kept.
    node.pass([AppStatus { attempts: 1, ..report(NAMESPACE, "once", "Running", 2) }]).await;
    stage
        .until_app("once", |app| app["status"]["attempts"] == 1 && app["status"]["observedGeneration"] == 2)
        .await;
}

#[tokio::test]
async fn a_burst_with_every_heartbeat_is_taken_in_at_once() {
    const APPS: usize = 30;
    let stage = Stage::new().await;
    let names: Vec<String> = (0..APPS).map(|number| format!("app-{number:02}")).collect();
    let apps: Vec<(&str, serde_json::Value)> = names.iter().map(|name| (name.as_str(), json!({}))).collect();
    let mut node = stage.serving("n1", &apps).await;
    for beat in 0..3 {
        // In no order, as agents go through their workloads.
        node.beat().await;
        for name in names.iter().rev() {
            node.report(report(NAMESPACE, name, "Running", 1)).await;
        }
        for name in &names {
            let (namespace, name) = (NAMESPACE.to_owned(), name.clone());
            let sample = AppMetrics { namespace, name, cpu_usec: beat, ..AppMetrics::default() };
            node.say(Up::AppMetrics(sample)).await;
        }
        node.say(Up::NodeUsage(NodeUsage { memory_total_bytes: 1, ..NodeUsage::default() })).await;
    }
    for name in &names {
        stage.until_phase(name, "Running").await;
    }
    node.hears_nothing().await;
    assert!(node.is_open().await);
}

#[tokio::test]
async fn an_agent_that_starts_anew_says_generation_zero_and_loses_nothing() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    node.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
    node.finish();
    node.end().await;
    let mut node = stage.dial_again(&stage.gateway, "n1").await;
    assert_eq!(node.push().await.names(), ["web"]);
    // It runs, and this process has not applied it yet.
    node.pass([report(NAMESPACE, "web", "Running", 0)]).await;
    stage.until_app("web", |app| app["status"]["observedGeneration"].as_i64().unwrap_or(0) == 0).await;
    node.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_app("web", |app| app["status"]["observedGeneration"] == 1).await;
}

#[tokio::test]
async fn what_agents_cannot_read_never_reaches_them() {
    let stage = Stage::new().await;
    // The name of a node is a number to agents that guard against such, wherever a volume names it.
    stage.world.create_node("1e9999").await;
    stage.create_volume("odd", "n1").await;
    super::store_as_it_is(&stage, &volume_key("odd"), |volume| {
        volume.0.get_mut("spec").unwrap()["node"] = json!("1e9999");
    })
    .await;
    stage.world.create_app("web", "1e9999", json!({})).await;
    let mut node = stage.dial("1e9999").await;
    let push = node.push().await;
    assert_eq!(push.names(), ["web"]);
    assert_eq!(push.volumes["team/odd"]["spec"], json!({}), "its name alone");
}
