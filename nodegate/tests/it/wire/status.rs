//! What nodes say of workloads, and what is stored of it.

use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_proto::node::v1::AppStatus;
use serde_json::{Value, json};

use super::client::report;
use super::stage::{Case, Stage, job, together};
use crate::world::{A_WHILE, NAMESPACE, app_key};

const FINISHED: i64 = 1_700_000_000_123_456_000;

fn said(phase: &str) -> AppStatus {
    report(NAMESPACE, "", phase, 1)
}

/// Of what, what is said of it, and the status that is stored then (`Null` where it has no such member).
type Said = (&'static str, fn() -> Value, fn() -> AppStatus, fn() -> Value);

const SAID: &[Said] = &[
    (
        "runs",
        || json!({}),
        || said("Running"),
        || json!({"phase": "Running", "observedGeneration": 1, "exitCode": null, "finishedAt": null, "message": null}),
    ),
    (
        "runs-and-says-more",
        || json!({}),
        || AppStatus { exit_code: 3, finished_at_unix_nano: FINISHED, ..said("Running") },
        || json!({"phase": "Running", "exitCode": null, "finishedAt": null}),
    ),
    (
        "has-succeeded",
        || job(0),
        || AppStatus { attempts: 1, finished_at_unix_nano: FINISHED, ..said("Succeeded") },
        || json!({"phase": "Succeeded", "exitCode": 0, "finishedAt": "2023-11-14T22:13:20Z", "attempts": 1}),
    ),
    (
        "has-failed-for-good",
        || job(0),
        || AppStatus { attempts: 1, exit_code: 7, ..said("Failed") },
        || json!({"phase": "Failed", "exitCode": 7, "finishedAt": null}),
    ),
    (
        "may-try-again",
        || job(2),
        || AppStatus { attempts: 2, exit_code: 7, ..said("Failed") },
        || json!({"phase": "Failed", "exitCode": null, "attempts": 2}),
    ),
    (
        "is-trying",
        || job(2),
        || AppStatus { attempts: 2, ..said("Running") },
        || json!({"phase": "Running", "attempts": 2}),
    ),
    (
        "a-service-has-failed",
        || json!({}),
        || AppStatus { exit_code: 1, ..said("Failed") },
        || json!({"phase": "Failed", "exitCode": null}),
    ),
    (
        "is-run-on-failure",
        || json!({"lifecycle": {"restartPolicy": "OnFailure"}}),
        || AppStatus { exit_code: 1, ..said("Failed") },
        || json!({"phase": "Failed", "exitCode": null}),
    ),
    (
        "is-ahead",
        || json!({}),
        || AppStatus { observed_generation: 9, ..said("Running") },
        || json!({"observedGeneration": 1}),
    ),
    (
        "is-behind-zero",
        || json!({}),
        || AppStatus { observed_generation: -4, attempts: -1, ..said("Running") },
        || json!({"phase": "Running", "attempts": null}),
    ),
    (
        "says-much",
        || json!({}),
        || AppStatus { message: "\u{e9}".repeat(4000), ..said("Running") },
        || json!({"message": "\u{e9}".repeat(512)}),
    ),
    (
        "says-why",
        || job(0),
        || AppStatus { attempts: 1, exit_code: 1, message: "DeadlineExceeded: 5 s".into(), ..said("Failed") },
        || json!({"message": "DeadlineExceeded: 5 s"}),
    ),
    ("is-frozen", || json!({}), || said("Frozen"), || json!({"phase": "Frozen"})),
];

#[tokio::test]
async fn of_a_report_is_stored_what_means_something() {
    let stage = Stage::new().await;
    let stage = &stage;
    together(SAID.iter().map(|(what, spec, said, stored)| -> Case<'_> {
        Box::pin(async move {
            let mut node = stage.serving(what, &[(what, spec())]).await;
            if *what == "is-frozen" {
                stage.act(what, Door::Freeze).await;
                node.push().await;
            }
            let before = stage.world.app(what).await;
            node.pass([AppStatus { name: (*what).to_owned(), ..said() }]).await;
            let after = stage.until_app(what, |app| app["status"]["phase"] == said().phase.as_str()).await;
            for (member, value) in stored().as_object().unwrap() {
                let found = after["status"].get(member).cloned().unwrap_or_default();
                let is_zero = value.is_null() && found == json!(0) && member == "attempts";
                assert!(found == *value || is_zero, "{what}: {member} is {found}");
            }
            assert_eq!(after["spec"], before["spec"], "{what}");
            assert_eq!(after["metadata"]["generation"], 1, "{what}");
            assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "{what}");
        })
    }))
    .await;
}

#[tokio::test]
async fn what_is_not_for_this_node_to_say_is_dropped() {
    let stage = Stage::new().await;
    stage.world.create_node("n2").await;
    stage.world.create_app("theirs", "n2", json!({})).await;
    let mut node =
        stage.serving("n1", &[("web", json!({})), ("moved", json!({})), ("quiet", json!({}))]).await;
    stage.edit("moved", json!({"placement": {"nodeName": "n2"}})).await;
    node.push_where(|push| !push.has("moved")).await;
    let of = |name: &str, phase: &str| report(NAMESPACE, name, phase, 1);
    let job_without_evidence = of("web", "Failed");
    let before = stage.world.revision().await;
    for dropped in [
        of("theirs", "Running"),
        of("moved", "Running"),
        of("missing", "Running"),
        of("", "Running"),
        report("other", "web", "Running", 1),
        report("", "web", "Running", 1),
        of("web", "Odd"),
        of("web", ""),
        of("web", "running"),
        of("web", "Frozen"),
        // Nobody asked for its end.
        of("web", "Terminating"),
        of("web", "Terminated"),
    ] {
        node.pass([dropped]).await;
    }
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.world.revision().await, before);
    assert!(node.is_open().await);
    // People hear of what no agent should say, and not of what is in the ordinary course of things.
    let told = stage.world.told("ReportRefused", "n1").await.join("\n");
    assert!(told.contains("moved") && !told.contains("missing"), "{told}");
    node.pass([job_without_evidence]).await;
    stage.until_phase("web", "Failed").await;
}

#[tokio::test]
async fn a_job_that_left_no_trace_has_not_failed() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("job", job(0)), ("web", json!({}))]).await;
    node.pass([report(NAMESPACE, "job", "Running", 1), report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("job", "Running").await;
    // What an agent says that cannot see anything.
    node.pass([report(NAMESPACE, "job", "Failed", 1), report(NAMESPACE, "web", "Failed", 1)]).await;
    stage.until_phase("web", "Failed").await;
    let status = stage.status("job").await;
    assert_eq!(status["phase"], "Running", "{status}");
    node.hears_nothing().await;
}

#[tokio::test]
async fn a_report_about_an_earlier_bearer_of_a_name_is_dropped() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({})), ("other", json!({}))]).await;
    stage.delete_app("web").await;
    node.push_where(|push| push.is_deleting("web")).await;
    let other = report(NAMESPACE, "other", "Running", 1);
    node.pass([other.clone(), report(NAMESPACE, "web", "Terminated", 1)]).await;
    stage.until_app("web", Value::is_null).await;
    // A stranger from here on, so the gateway knows of the next one and does not send it.
    stage.delete_node("n1").await;
    stage.heard(&node).await;
    stage.world.create_app("web", "n1", json!({})).await;
    for said in ["Failed", "Terminated", "Running"] {
        node.pass([report(NAMESPACE, "web", said, 1), other.clone()]).await;
        stage.heard(&node).await;
    }
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.status("web").await["phase"], "Pending", "as it was made");
    stage.world.uncordon("n1").await;
    node.push_where(|push| push.has("web") && !push.is_deleting("web")).await;
    node.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
}

#[tokio::test]
async fn a_new_session_says_nothing_of_what_it_was_not_sent() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    node.finish();
    node.end().await;
    stage.gateway.backend().set_deaf(true);
    // Before its first push an agent of today says nothing; whoever does is not believed.
    let patient = stage.world.gateway_with(|settings| settings.settle = Duration::from_secs(3600)).await;
    let node = stage.dial_again(&patient, "n1").await;
    node.pass([report(NAMESPACE, "web", "Failed", 1)]).await;
    stage.heard(&node).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.status("web").await["phase"], "Pending", "as it was made");
}

#[tokio::test]
async fn what_is_stored_already_is_not_written_again() {
    let stage = Stage::new().await;
    let node = stage.serving("n1", &[("web", json!({}))]).await;
    let running = || report(NAMESPACE, "web", "Running", 1);
    node.pass([running()]).await;
    stage.until_phase("web", "Running").await;
    stage.heard(&node).await;
    let before = stage.world.revision().await;
    for _ in 0..50 {
        node.pass([running()]).await;
    }
    node.pass([AppStatus { message: "at last".to_owned(), ..running() }]).await;
    stage.until_app("web", |app| app["status"]["message"] == "at last").await;
    assert_eq!(stage.world.revision().await, before + 1);
}

#[tokio::test]
async fn reports_and_edits_do_not_meet() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let old = stage.world.app("web").await;
    node.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
    // An operator who holds a copy from before the report.
    let mut edited = old.clone();
    edited["spec"]["args"] = json!(["edited"]);
    let body = horchestra_service::Body::Json(edited.to_string().into());
    let (who, options) = (stage.world.who(), Default::default());
    stage.world.operator.update(&who, &app_key("web"), body, &options).await.unwrap();
    let stored = stage.world.app("web").await;
    assert_eq!(
        (&stored["status"]["phase"], &stored["spec"]["args"]),
        (&json!("Running"), &json!(["edited"]))
    );
    // And both at once, many times.
    for number in 0..6 {
        let phase = if number % 2 == 0 { "Failed" } else { "Running" };
        let saying = node.pass([AppStatus { exit_code: 1, ..report(NAMESPACE, "web", phase, 2) }]);
        tokio::join!(stage.edit("web", json!({"args": [number.to_string()]})), saying);
        let stored = stage.until_phase("web", phase).await;
        assert_eq!(stored["spec"]["args"], json!([number.to_string()]));
    }
    let versions = stage.world.operator.revisions(&app_key("web")).await.unwrap().versions;
    assert_eq!(versions.len(), 8, "each edit, and no report");
    node.push().await;
}

#[tokio::test]
async fn what_a_workload_was_last_started_as_does_not_go_back_within_a_session() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    stage.edit("web", json!({"args": ["2"]})).await;
    node.push_where(|push| push.app("web").unwrap()["metadata"]["generation"] == 2).await;
    let observed = |generation| AppStatus {
        message: format!("saw {generation}"),
        ..report(NAMESPACE, "web", "Running", generation)
    };
    for (said, stored) in [(1, 1), (2, 2), (1, 2), (3, 2)] {
        node.pass([observed(said)]).await;
        let app = stage.until_app("web", |app| app["status"]["message"] == format!("saw {said}")).await;
        assert_eq!(app["status"]["observedGeneration"], stored, "{said}");
    }
}
