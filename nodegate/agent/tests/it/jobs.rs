use horchestra_agent::node::NodeOptions;
use horchestra_proto::node::v1::node_message::Body as Up;
use serde_json::json;

use crate::apps::{Running, TestApp, quick};
use crate::gateway::FakeGateway;
use crate::pki::Pki;

fn job(name: &str, lifecycle: serde_json::Value) -> TestApp {
    let mut lifecycle = lifecycle;
    lifecycle["restartPolicy"] = json!("Never");
    TestApp::new(name).lifecycle(lifecycle).env("SIM_RUN_SECONDS", "0")
}

#[tokio::test]
async fn a_job_runs_as_often_as_its_budget_says() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let apps = [
        job("good", json!({"backoffLimit": 3})),
        job("once", json!({})).env("SIM_EXIT_CODE", "7"),
        job("twice", json!({"backoffLimit": 1})).env("SIM_EXIT_CODE", "9"),
        job("late", json!({"activeDeadlineSeconds": 1}))
            .env("SIM_EXIT_CODE", "0")
            .spec("env", json!([{"name": "SIM_RUN_SECONDS", "value": "60"}])),
    ];
    session.push(apps.map(|app| app.0)).await;
    for (name, phase, code, attempts, reason) in [
        ("good", "Succeeded", 0, 1, ""),
        ("once", "Failed", 7, 1, ""),
        ("twice", "Failed", 9, 2, "BackoffLimitExceeded"),
        ("late", "Failed", 143, 1, "DeadlineExceeded"),
    ] {
        let end = session
            .until(|up| match up {
                Up::AppStatus(status) if status.name == name && status.finished_at_unix_nano > 0 => {
                    Some(status)
                }
                _ => None,
            })
            .await;
        assert_eq!((end.phase.as_str(), end.exit_code, end.attempts), (phase, code, attempts), "{name}");
        assert!(end.message.starts_with(reason) && (reason.is_empty() == end.message.is_empty()), "{end:?}");
        assert_eq!(end.finished_at_unix_nano % 1000, 0, "{name}");
    }
    node.stop().await;
}

#[tokio::test]
async fn runs_that_the_control_plane_knows_of_count() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;

    // Spent elsewhere, nothing held here: it is not run again, and that is final.
    let mut spent = job("spent", json!({"backoffLimit": 1}));
    spent.0["status"] = json!({"attempts": 2});
    let mut rest = job("rest", json!({"backoffLimit": 2})).env("SIM_EXIT_CODE", "1");
    rest.0["status"] = json!({"attempts": 2});
    session.push([spent.0, rest.0]).await;
    let status = session.phase("spent", "Failed").await;
    assert_eq!((status.attempts, status.observed_generation), (2, 1));
    let status = session
        .until(|up| match up {
            Up::AppStatus(status) if status.name == "rest" && status.finished_at_unix_nano > 0 => {
                Some(status)
            }
            _ => None,
        })
        .await;
    assert_eq!((status.attempts, status.exit_code), (3, 1), "one run was left");
    node.stop().await;
}

#[tokio::test]
async fn a_finished_job_that_is_withheld_is_removed_and_runs_again_when_it_comes_back() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let node = Running::start(&gateway, &pki, quick());
    let mut session = gateway.session().await;
    let once = job("once", json!({}));
    session.push([once.0.clone()]).await;
    let first = session.phase("once", "Succeeded").await;
    // Pushed again unchanged, it stays what it is.
    session.push([once.0.clone()]).await;
    session.until(|up| matches!(up, Up::NodeUsage(_)).then_some(())).await;
    let again = session.phase("once", "Succeeded").await;
    assert_eq!((again.attempts, again.finished_at_unix_nano), (1, first.finished_at_unix_nano));

    session.push([]).await;
    session.idle().await;
    session.push([once.generation(2).0]).await;
    let second = session
        .until(|up| match up {
            Up::AppStatus(status) if status.observed_generation == 2 && status.phase == "Succeeded" => {
                Some(status)
            }
            _ => None,
        })
        .await;
    assert_eq!(second.attempts, 1, "its runs were forgotten with it");
    assert!(second.finished_at_unix_nano > first.finished_at_unix_nano);
    node.stop().await;
}

#[tokio::test]
async fn simulated_workloads_survive_a_restart_of_the_agent() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let scratch = tempfile::tempdir().expect("a directory");
    let options = NodeOptions { state: Some(scratch.path().to_owned()), ..quick() };
    let node = Running::start(&gateway, &pki, options.clone());
    let mut session = gateway.session().await;
    let (kept, gone) = (job("kept", json!({})), TestApp::new("gone"));
    session.push([kept.0.clone(), gone.0]).await;
    let before = session.phase("kept", "Succeeded").await;
    node.kill().await;

    let node = Running::start(&gateway, &pki, options);
    let mut session = gateway.session().await;
    session.push([kept.0]).await;
    let after = session.phase("kept", "Succeeded").await;
    assert_eq!(after.finished_at_unix_nano, before.finished_at_unix_nano);
    node.stop().await;
    let left = std::fs::read_dir(scratch.path().join("simulated")).expect("lists").count();
    assert_eq!(left, 1, "what nobody wanted was removed");
}
