//! What nodes say about Applications.

use horchestra_agent::scripted::ScriptedNode;
use horchestra_proto::node::v1::AppStatus;
use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::world::{A_WHILE, SOON, TestGateway, World, app_key, named, report};

async fn served(world: &World, gateway: &TestGateway, spec: Value) -> ScriptedNode {
    world.create_node("n1").await;
    world.create_app("web", "n1", spec).await;
    let mut node = world.connect(gateway, "n1").await;
    node.desired_where(SOON, |desired| !desired.applications.is_empty()).await.unwrap();
    node
}

async fn status(world: &World) -> Value {
    world.app("web").await["status"].clone()
}

#[tokio::test]
async fn a_report_moves_the_status_and_nothing_else() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({})).await;
    let before = world.app("web").await;
    node.app_status(report("web", "Running", 1)).await.unwrap();
    let after = eventually(SOON, async || {
        Some(world.app("web").await).filter(|app| app["status"]["phase"] == "Running")
    })
    .await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    assert_eq!(after["status"]["observedGeneration"], 1);
    assert_eq!(after["status"].get("exitCode"), None, "an exit code of something that runs means nothing");
    let ready =
        after["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True");
}

#[tokio::test]
async fn the_same_report_again_writes_nothing() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({})).await;
    node.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || status(&world).await["phase"] == "Running").await;
    let revision = world.revision().await;
    let metrics = &gateway.gateway.gate.metrics;
    for _ in 0..10 {
        let before = metrics.reports_suppressed.get();
        node.app_status(report("web", "Running", 1)).await.unwrap();
        eventually(SOON, async || metrics.reports_suppressed.get() > before).await;
    }
    assert_eq!(world.revision().await, revision);
}

#[tokio::test]
async fn reports_that_are_not_the_nodes_to_make_are_dropped() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n2").await;
    world.create_app("theirs", "n2", json!({})).await;
    let node = served(&world, &gateway, json!({})).await;
    let before = world.revision().await;
    for dropped in [
        report("theirs", "Running", 1),
        report("missing", "Running", 1),
        report("web", "Odd", 1),
        report("web", "", 1),
        report("web", "Frozen", 1),
        // Nobody asked for its end.
        report("web", "Terminating", 1),
        report("web", "Terminated", 1),
        AppStatus { namespace: "other".to_owned(), ..report("web", "Running", 1) },
    ] {
        node.app_status(dropped).await.unwrap();
        node.send(crate::world::end_of_pass()).await.unwrap();
    }
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.revision().await, before);
    assert!(node.is_open());
    node.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || status(&world).await["phase"] == "Running").await;
}

#[tokio::test]
async fn a_report_after_a_move_comes_from_the_wrong_node() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    world.create_node("n2").await;
    let mut node = served(&world, &gateway, json!({})).await;
    world.merge(&app_key("web"), json!({"spec": {"placement": {"nodeName": "n2"}}})).await;
    node.desired_where(SOON, |desired| desired.applications.is_empty()).await.unwrap();
    let before = world.revision().await;
    node.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || gateway.gateway.gate.metrics.reports_dropped_for("not_pinned_here") == 1).await;
    assert_eq!(world.revision().await, before);
}

#[tokio::test]
async fn outcomes_are_stored_as_far_as_they_mean_something() {
    const AT: i64 = 1_800_000_000_000_000_000;
    let job = json!({"lifecycle": {"restartPolicy": "Never"}});
    let service = json!({"lifecycle": {"restartPolicy": "Always"}});
    for (spec, sent, exit_code, finished) in [
        (
            &job,
            AppStatus { finished_at_unix_nano: AT, attempts: 1, ..report("web", "Succeeded", 1) },
            json!(0),
            true,
        ),
        (&job, AppStatus { exit_code: 7, attempts: 1, ..report("web", "Failed", 1) }, json!(7), false),
        (&service, AppStatus { exit_code: 1, ..report("web", "Failed", 1) }, Value::Null, false),
        (&job, AppStatus { exit_code: 3, attempts: 1, ..report("web", "Running", 1) }, Value::Null, false),
    ] {
        let world = World::new().await;
        let gateway = world.gateway().await;
        let node = served(&world, &gateway, spec.clone()).await;
        node.app_status(sent.clone()).await.unwrap();
        eventually(SOON, async || status(&world).await["phase"] == sent.phase).await;
        let stored = status(&world).await;
        assert_eq!(stored.get("exitCode").cloned().unwrap_or_default(), exit_code, "{sent:?}");
        assert_eq!(stored.get("finishedAt").is_some(), finished, "{sent:?}");
    }
}

#[tokio::test]
async fn numbers_are_held_to_what_can_be() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let job = json!({"lifecycle": {"restartPolicy": "Never", "backoffLimit": 9}});
    let node = served(&world, &gateway, job).await;
    let long = "ä".repeat(2000);
    let first = AppStatus { attempts: 3, message: long, ..report("web", "Running", 99) };
    node.app_status(first).await.unwrap();
    eventually(SOON, async || status(&world).await["phase"] == "Running").await;
    let stored = status(&world).await;
    assert_eq!(stored["observedGeneration"], 1, "there is no generation 99");
    assert_eq!(stored["message"].as_str().unwrap().len(), 1024);
    // Neither the generation nor the count of attempts goes back.
    node.app_status(AppStatus { attempts: 1, ..report("web", "Running", 0) }).await.unwrap();
    eventually(SOON, async || status(&world).await.get("message").is_none()).await;
    let stored = status(&world).await;
    assert_eq!((&stored["observedGeneration"], &stored["attempts"]), (&json!(1), &json!(3)));
    node.app_status(AppStatus { attempts: -5, ..report("web", "Failed", -7) }).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    let stored = status(&world).await;
    assert_eq!((&stored["observedGeneration"], &stored["attempts"]), (&json!(1), &json!(3)));
}

#[tokio::test]
async fn a_job_that_left_no_trace_is_not_believed_to_have_failed() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({"lifecycle": {"restartPolicy": "Never"}})).await;
    node.app_status(AppStatus { attempts: 1, ..report("web", "Running", 1) }).await.unwrap();
    eventually(SOON, async || status(&world).await["phase"] == "Running").await;
    node.app_status(report("web", "Failed", 1)).await.unwrap();
    eventually(SOON, async || {
        let conditions = status(&world).await["conditions"].clone();
        conditions.as_array().unwrap().iter().any(|c| c["type"] == "NodeDegraded" && c["status"] == "True")
    })
    .await;
    assert_eq!(status(&world).await["phase"], "Running");
}

#[tokio::test]
async fn a_report_about_an_earlier_bearer_of_a_name_does_not_touch_the_later_one() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = served(&world, &gateway, json!({})).await;
    world.delete(&app_key("web")).await;
    node.desired_where(SOON, |desired| {
        named(desired).first().is_some_and(|(_, app)| app["metadata"]["deletionTimestamp"].is_string())
    })
    .await
    .unwrap();
    eventually(SOON, async || {
        node.app_status(report("web", "Terminated", 1)).await.unwrap();
        node.send(crate::world::end_of_pass()).await.unwrap();
        world.app("web").await.is_null()
    })
    .await;
    // Not admitted any more: the new one is stored, but not pushed.
    world.delete(&crate::world::node_key("n1")).await;
    eventually(SOON, async || {
        matches!(gateway.gateway.gate.index.view("n1"), horchestra_nodegate::desired::index::View::Absent)
    })
    .await;
    // A pin needs a Node; one that registered itself holds pushes back.
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    world.create_app("web", "n1", json!({})).await;
    let before = world.revision().await;
    node.app_status(report("web", "Running", 1)).await.unwrap();
    eventually(SOON, async || gateway.gateway.gate.metrics.reports_dropped_for("not_sent") > 0).await;
    assert_eq!(world.revision().await, before);
}

#[tokio::test]
async fn an_edit_and_a_report_at_the_same_time_both_land() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = served(&world, &gateway, json!({})).await;
    for number in 0..20 {
        let phase = if number % 2 == 0 { "Running" } else { "Failed" };
        let key = app_key("web");
        let edit = json!({"spec": {"args": [number.to_string()]}});
        let (edited, sent) = tokio::join!(world.merge(&key, edit), node.app_status(report("web", phase, 1)));
        sent.unwrap();
        assert_eq!(edited["spec"]["args"], json!([number.to_string()]));
        eventually(SOON, async || status(&world).await["phase"] == phase).await;
        assert_eq!(world.app("web").await["spec"]["args"], json!([number.to_string()]));
    }
}
