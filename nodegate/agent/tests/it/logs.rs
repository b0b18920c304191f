use std::time::Duration;

use horchestra_agent::node::NodeOptions;
use horchestra_agent::units::simulated::SimulationOptions;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{LogCancel, LogChunk, LogRequest};
use serde_json::json;

use crate::apps::{Running, TestApp, quick};
use crate::gateway::{FakeGateway, FakeSession};
use crate::pki::Pki;

async fn chunk(session: &mut FakeSession, id: &str) -> LogChunk {
    session
        .until(|up| match up {
            Up::LogChunk(chunk) if chunk.id == id => Some(chunk),
            _ => None,
        })
        .await
}

/// Everything up to the end, and the error that came with it.
async fn whole(session: &mut FakeSession, id: &str) -> (String, String) {
    let mut text = Vec::new();
    loop {
        let chunk = chunk(session, id).await;
        assert!(chunk.data.len() <= 8192, "{} bytes in one chunk", chunk.data.len());
        text.extend_from_slice(&chunk.data);
        if chunk.eof {
            assert!(chunk.data.is_empty(), "the last chunk is empty");
            return (String::from_utf8(text).expect("text"), chunk.error);
        }
    }
}

fn request(id: &str, app: &TestApp) -> LogRequest {
    LogRequest { id: id.into(), app: app.uid().to_string(), ..LogRequest::default() }
}

#[tokio::test]
async fn a_log_ends_and_a_followed_one_does_not() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let app = TestApp::new("web");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;

    session.send(Down::LogRequest(request("1", &app))).await;
    let (text, error) = whole(&mut session, "1").await;
    assert!(text.starts_with("20") && text.contains("shop/web") && text.ends_with('\n'), "{text}");
    assert_eq!(error, "");

    session.send(Down::LogRequest(LogRequest { follow: true, ..request("2", &app) })).await;
    let mut lines = 0;
    while lines < 2 {
        let chunk = chunk(&mut session, "2").await;
        assert!(!chunk.eof);
        lines += chunk.data.iter().filter(|byte| **byte == b'\n').count();
    }
    // Cancelling what is not there harms nobody; cancelling what is still says eof.
    session.send(Down::LogCancel(LogCancel { id: "nobody".into() })).await;
    session.send(Down::LogCancel(LogCancel { id: "2".into() })).await;
    assert_eq!(whole(&mut session, "2").await.1, "");
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_says_so_or_is_empty() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    // Before any push, too.
    session.send(Down::LogRequest(request("1", &TestApp::new("unknown")))).await;
    assert_eq!(whole(&mut session, "1").await, (String::new(), String::new()));
    session
        .send(Down::LogRequest(LogRequest { id: "2".into(), app: "no uid".into(), ..LogRequest::default() }))
        .await;
    assert_eq!(whole(&mut session, "2").await, (String::new(), String::new()));
    session
        .send(Down::LogRequest(LogRequest { id: "3".into(), node_unit: true, ..LogRequest::default() }))
        .await;
    let (text, error) = whole(&mut session, "3").await;
    assert!(text.is_empty() && error.contains("not run under a unit"), "{error}");
    node.stop().await;
}

#[tokio::test]
async fn the_agents_own_log_is_served_where_there_is_one() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let scratch = tempfile::tempdir().expect("a directory");
    let own_log = scratch.path().join("agent.log");
    std::fs::write(&own_log, "one\ntwo\n").expect("writes");
    let node = Running::start(&gateway, &pki, NodeOptions { own_log: Some(own_log), ..quick() });
    let mut session = gateway.session().await;
    let request = LogRequest { id: "1".into(), node_unit: true, tail_lines: 1, ..LogRequest::default() };
    session.send(Down::LogRequest(request)).await;
    assert_eq!(whole(&mut session, "1").await, ("two\n".into(), String::new()));
    node.stop().await;
}

#[tokio::test]
async fn a_follower_hears_the_last_words_and_then_the_end() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let simulation =
        SimulationOptions { stop_delay: Duration::from_millis(50), ..SimulationOptions::default() };
    let node = Running::start(&gateway, &pki, NodeOptions { simulation, ..quick() });
    let mut session = gateway.session().await;
    let app = TestApp::new("web").lifecycle(json!({"terminationGracePeriodSeconds": 1}));
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    session.send(Down::LogRequest(LogRequest { follow: true, ..request("1", &app) })).await;
    assert!(!chunk(&mut session, "1").await.eof);
    session.push([]).await;
    assert_eq!(whole(&mut session, "1").await.1, "", "the workload is gone, nothing more will come");
    session.send(Down::LogRequest(request("2", &app))).await;
    assert!(whole(&mut session, "2").await.0.contains("line 1\n"), "what it wrote can still be read");
    node.stop().await;
}
