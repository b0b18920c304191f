use std::time::Duration;

use horchestra_agent::converge::{ConvergeOptions, Order};
use horchestra_agent::node::NodeOptions;
use horchestra_agent::units::simulated::SimulationOptions;
use horchestra_proto::node::v1::DesiredState;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Status;

use crate::apps::{Running, TestApp, quick};
use crate::gateway::{FakeGateway, FakeSession, SOON};
use crate::pki::Pki;

/// What kind a message is of, in one letter.
fn letter(message: &Up) -> char {
    match message {
        Up::Status(_) => 'N',
        Up::AppStatus(_) => 'S',
        Up::AppMetrics(_) => 'M',
        Up::NodeUsage(_) => 'U',
        Up::LogChunk(_) => 'L',
    }
}

async fn letters(session: &mut FakeSession, until: impl Fn(&str) -> bool) -> String {
    let mut seen = String::new();
    while !until(&seen) {
        seen.push(letter(&session.recv().await.expect("an open stream")));
    }
    seen
}

#[tokio::test]
async fn heartbeats_come_at_once_and_nothing_else_before_the_first_push() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    assert_eq!(session.node, "n1");
    assert!(
        session.metadata.get("authorization").is_none() && session.metadata.get("grpc-timeout").is_none()
    );

    let Some(Up::Status(first)) = session.recv().await else { panic!("a heartbeat comes first") };
    let first: Value = serde_json::from_slice(&first.node).expect("JSON");
    assert_eq!(first["metadata"], json!({"name": "n1"}));
    assert_eq!(first["spec"], json!({}));
    assert_eq!(first["status"]["ready"], json!(true));
    assert_eq!(first["status"]["allocated"], json!({}));
    assert_eq!(first["status"]["ip"], json!("127.0.0.1"));
    assert_eq!(first["status"].get("units"), None, "nothing is held");
    assert_eq!(letters(&mut session, |seen| seen.len() == 6).await, "NNNNNN");
    node.stop().await;
}

#[tokio::test]
async fn each_push_and_each_beat_bring_one_pass_in_order() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let apps = [TestApp::new("a"), TestApp::new("b"), TestApp::new("c")];
    session.push(apps.clone().map(|app| app.0)).await;

    let seen = letters(&mut session, |seen| seen.matches('U').count() == 4).await;
    // Heartbeats go their own way in between.
    let passes: String = seen.chars().filter(|letter| *letter != 'N').collect();
    assert_eq!(passes, "SSSMMMU".repeat(4), "{seen}");

    session.push([]).await;
    session.idle().await;
    let seen = letters(&mut session, |seen| seen.ends_with("UNU") || seen.ends_with("NUN")).await;
    assert!(seen.len() < 20, "without applications a pass is its usage: {seen}");
    node.stop().await;
}

#[tokio::test]
async fn a_new_session_knows_nothing_of_the_last_ones_push() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let app = TestApp::new("web");

    let mut session = gateway.session().await;
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    // Every ending leads to the same, an orderly one too.
    for end in [None, Some(Status::already_exists("taken")), Some(Status::permission_denied("no"))] {
        session.end(end).await;
        session = gateway.session().await;
        assert_eq!(letters(&mut session, |seen| seen.len() == 4).await, "NNNN");
    }
    session.push([app.0]).await;
    let status = session.phase("web", "Running").await;
    assert_eq!(status.observed_generation, 1, "the process remembers what it applied");
    node.stop().await;
}

#[tokio::test]
async fn what_is_held_is_told_until_the_session_has_said_what_is_to_be() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let apps = [TestApp::new("a"), TestApp::new("b")];
    let mut uids = apps.each_ref().map(TestApp::uid);
    uids.sort_unstable();
    let mut session = gateway.session().await;
    session.push(apps.clone().map(|app| app.0)).await;
    session.phase("a", "Running").await;
    session.phase("b", "Running").await;
    session.end(None).await;

    let mut session = gateway.session().await;
    let heartbeat = async |session: &mut FakeSession| loop {
        if let Some(Up::Status(status)) = session.recv().await {
            return serde_json::from_slice::<Value>(&status.node).expect("JSON")["status"].clone();
        }
    };
    for _ in 0..2 {
        assert_eq!(heartbeat(&mut session).await["units"], json!(uids));
    }
    session.push([]).await;
    while heartbeat(&mut session).await.get("units").is_some() {}
    node.stop().await;
}

#[tokio::test]
async fn a_refused_node_comes_back_after_the_same_pause_every_time() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    assert_eq!(NodeOptions::default().reconnect, Duration::from_secs(5));
    let options = NodeOptions { reconnect: Duration::from_millis(300), ..quick() };
    let node = Running::start(&gateway, &pki, options);
    let mut session = gateway.session().await;
    for _ in 0..4 {
        let refused = Instant::now();
        session.end(Some(Status::unavailable("draining"))).await;
        session = gateway.session().await;
        assert!(refused.elapsed() >= Duration::from_millis(300), "it waits before it dials again");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_gateway_that_stops_reading_silences_the_node() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, NodeOptions { heartbeat: Duration::from_millis(1), ..quick() });
    let mut session = gateway.session().await;
    // Not waiting for something, but for nothing: what is not read must fill up.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut last: Option<jiff::Timestamp> = None;
    let silence = session
        .until(|up| {
            let Up::Status(status) = up else { return None };
            let node: Value = serde_json::from_slice(&status.node).expect("JSON");
            let now = node["status"]["heartbeat"].as_str().expect("text").parse().expect("a time");
            let gap = last.replace(now).map(|last| now.duration_since(last));
            gap.filter(|gap| gap.as_secs() >= 2)
        })
        .await;
    assert!(silence.as_secs() >= 2, "{silence}");
    node.stop().await;
}

#[tokio::test]
async fn stopping_the_agent_closes_the_stream() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    assert!(matches!(session.recv().await, Some(Up::Status(_))));
    let (orderly, ()) = tokio::join!(session.ends_well(), node.stop());
    assert!(orderly);
}

#[tokio::test]
async fn of_pushes_during_a_pass_only_the_last_is_applied_and_it_comes_after() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let converge = ConvergeOptions { pull_delay: Duration::from_millis(400), ..ConvergeOptions::default() };
    let node = Running::start(&gateway, &pki, NodeOptions { converge, ..quick() });
    let mut session = gateway.session().await;

    let app = TestApp::new("web");
    session.push([app.0.clone()]).await;
    // The first pass now waits for its image; heartbeats go on, reports do not.
    assert_eq!(letters(&mut session, |seen| seen.len() == 3).await, "NNN");
    for generation in 2..=5 {
        session.push([app.clone().generation(generation).0]).await;
    }
    let mut generations = Vec::new();
    while generations.last() != Some(&5) {
        let status = session.phase("web", "Running").await;
        generations.push(status.observed_generation);
    }
    generations.dedup();
    assert_eq!(generations, [1, 5]);
    node.stop().await;
}

/// Lets some applications run, deletes them all, and waits for the first report.
async fn delete_all(order: Order, stop_delay: Duration, count: usize) -> Duration {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let options = NodeOptions {
        converge: ConvergeOptions { order, ..ConvergeOptions::default() },
        simulation: SimulationOptions { stop_delay, ..SimulationOptions::default() },
        ..quick()
    };
    let node = Running::start(&gateway, &pki, options);
    let mut session = gateway.session().await;
    let apps: Vec<TestApp> = (0..count).map(|number| TestApp::new(&format!("app-{number}"))).collect();
    session.push(apps.iter().map(|app| app.0.clone()).collect::<Vec<_>>()).await;
    session.phase("app-0", "Running").await;

    let begun = Instant::now();
    session.push(apps.into_iter().map(|app| app.deleting().0).collect::<Vec<_>>()).await;
    session.phase("app-0", "Terminated").await;
    let took = begun.elapsed();
    node.stop().await;
    took
}

#[tokio::test]
async fn stops_go_one_after_the_other_and_until_all_are_done_none_is_reported() {
    let stop_delay = Duration::from_millis(300);
    let took = delete_all(Order::Serial, stop_delay, 4).await;
    assert!(took >= stop_delay * 4, "{took:?}");
}

#[tokio::test]
async fn stops_can_go_all_at_once() {
    // One after the other they would take longer than this test waits.
    let stop_delay = SOON / 8;
    let took = delete_all(Order::Parallel, stop_delay, 10).await;
    assert!(took >= stop_delay, "{took:?}");
}

#[tokio::test]
async fn deletion_is_confirmed_until_the_application_is_gone() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let app = TestApp::new("web");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    session.push([app.deleting().0]).await;
    for _ in 0..3 {
        session.phase("web", "Terminated").await;
    }
    session.push([]).await;
    session.idle().await;
    let seen = letters(&mut session, |seen| seen.matches('U').count() == 3).await;
    assert!(!seen.contains('S'), "{seen}");
    node.stop().await;
}

#[tokio::test]
async fn only_what_can_run_here_is_run() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let converge = ConvergeOptions { no_token_volumes: true, ..quick().converge };
    let node = Running::start(&gateway, &pki, NodeOptions { converge, ..quick() });
    let mut session = gateway.session().await;
    let good = TestApp::new("good");
    let mut foreign = TestApp::new("foreign");
    foreign.0["spec"]["placement"]["nodeName"] = json!("n2");
    let mut nameless = TestApp::new("nameless");
    nameless.0["metadata"].as_object_mut().expect("an object").remove("uid");
    let refused = [
        TestApp::new("isolated").spec("hostNetwork", json!(false)),
        TestApp::new("token").spec("volumes", json!([{"mountPath": "/t", "volume": {"type": "token"}}])),
        TestApp::new("secret").spec("env", json!([{"name": "A", "secretRef": {"name": "s", "key": "k"}}])),
        TestApp::new("volume").spec("volumes", json!([{"mountPath": "/d", "volume": {"type": "pv"}}])),
    ];
    let mut apps: Vec<Value> = refused.iter().map(|app| app.0.clone()).collect();
    apps.extend([foreign.0, nameless.0, good.0.clone()]);
    session.push(apps).await;

    // The whole of the second pass.
    session.until(|up| matches!(up, Up::NodeUsage(_)).then_some(())).await;
    let mut reported = Vec::new();
    loop {
        match session.recv().await.expect("an open stream") {
            Up::AppStatus(status) => {
                assert!(status.message.is_empty(), "why something is not applied stays on the node");
                reported.push((status.name, status.phase, status.observed_generation));
            }
            Up::NodeUsage(_) => break,
            _ => {}
        }
    }
    reported.sort();
    let mut expected: Vec<(String, String, i64)> = refused
        .iter()
        .map(|app| (app.0["metadata"]["name"].as_str().expect("a name").into(), "Failed".into(), 0))
        .collect();
    expected.push(("good".into(), "Running".into(), 1));
    expected.sort();
    assert_eq!(reported, expected);

    // A running workload is not touched when a later push makes it inapplicable.
    let broken =
        good.spec("env", json!([{"name": "A", "secretRef": {"name": "s", "key": "k"}}])).generation(2);
    session.push([broken.0.clone()]).await;
    session.until(|up| matches!(up, Up::NodeUsage(_)).then_some(())).await;
    assert_eq!(session.phase("good", "Running").await.observed_generation, 1);
    // With its Secret it goes on under the new configuration.
    let secret = json!({"metadata": {"name": "s", "namespace": "shop"}, "data": {"k": "djE="}});
    let state = DesiredState {
        applications: vec![broken.0.to_string().into()],
        secrets: vec![secret.to_string().into()],
        ..DesiredState::default()
    };
    session.send(Down::Desired(state)).await;
    session
        .until(|up| matches!(up, Up::AppStatus(status) if status.observed_generation == 2).then_some(()))
        .await;
    node.stop().await;
}

#[tokio::test]
async fn allocation_follows_what_was_last_seen() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let job = |app: TestApp| app.lifecycle(json!({"restartPolicy": "Never"})).env("SIM_RUN_SECONDS", "0");
    let apps = [
        TestApp::new("one").spec("resources", cpu("1")),
        TestApp::new("limited").spec("resources", json!({"limits": {"cpu": "500m", "memory": "1Gi"}})),
        TestApp::new("crashed").spec("resources", cpu("1")).spec("hostNetwork", json!(false)),
        job(TestApp::new("finished").spec("resources", cpu("4"))),
    ];
    session.push(apps.map(|app| app.0)).await;
    let allocated = session
        .until(|up| match up {
            Up::Status(status) => {
                let node: Value = serde_json::from_slice(&status.node).expect("JSON");
                let allocated = node["status"]["allocated"].clone();
                (allocated["cpu"] == json!("2500m")).then_some(allocated)
            }
            _ => None,
        })
        .await;
    assert_eq!(allocated, json!({"cpu": "2500m", "memory": "1Gi"}));
    node.stop().await;
}

#[tokio::test]
async fn an_unreachable_init_system_looks_like_nothing_at_all() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let converge = ConvergeOptions { init_flap: 3, ..ConvergeOptions::default() };
    let node = Running::start(&gateway, &pki, NodeOptions { converge, ..quick() });
    let mut session = gateway.session().await;
    let job = TestApp::new("job").lifecycle(json!({"restartPolicy": "Never"})).env("SIM_RUN_SECONDS", "600");
    session.push([job.0.clone()]).await;
    session.phase("job", "Running").await;
    let flap = session.phase("job", "Failed").await;
    assert_eq!((flap.exit_code, flap.finished_at_unix_nano), (0, 0));
    let back = session.phase("job", "Running").await;
    assert_eq!(back.attempts, 1, "it was not started again");

    session.push([job.deleting().0]).await;
    session.phase("job", "Terminated").await;
    node.stop().await;
}

#[tokio::test]
async fn an_address_is_reported_as_pushed_and_only_with_a_network() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let converge = ConvergeOptions { routed_network: true, ..ConvergeOptions::default() };
    let node = Running::start(&gateway, &pki, NodeOptions { converge, ..quick() });
    let mut session = gateway.session().await;
    let app = TestApp::new("web").spec("hostNetwork", json!(false));
    let push = |address: &str| {
        let network = horchestra_proto::node::v1::WorkloadNetwork {
            workload: app.uid().to_string(),
            address: address.into(),
            gateway: "169.254.1.1".into(),
            mtu: 0,
        };
        Down::Desired(DesiredState {
            applications: vec![app.0.to_string().into()],
            workload_networks: vec![network],
            ..DesiredState::default()
        })
    };
    // Another address does not restart it, but is what is said from then on.
    let mut metrics = 0;
    for address in ["10.244.0.1/32", "10.244.0.2/32"] {
        session.send(push(address)).await;
        let seen = session
            .until(|up| match up {
                Up::AppStatus(status) if status.address == address => Some(status),
                _ => None,
            })
            .await;
        assert_eq!(seen.phase, "Running");
        let used = session
            .until(|up| match up {
                Up::AppMetrics(metrics) => Some(metrics.cpu_usec),
                _ => None,
            })
            .await;
        assert!(used >= metrics, "counters go on");
        metrics = used;
    }
    node.stop().await;
}
