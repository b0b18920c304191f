//! Which children a pass changes, and which have to wait.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::*;

fn of(image: &str, count: usize, rollout: Value) -> Value {
    json!({"applications": [replicas("a", image, count)], "rollout": rollout})
}

/// Names of the children that run this image.
async fn with_image(world: &World, image: &str) -> Vec<String> {
    world.images().await.into_iter().filter(|(_, it)| it == image).map(|(name, _)| name).collect()
}

#[tokio::test]
async fn the_budget_decides_how_many_are_changed_in_a_pass() {
    for (what, budget, down, changed) in [
        ("one at a time", 1, &[][..], &["web-a-0"][..]),
        ("two at a time", 2, &[], &["web-a-0", "web-a-1"]),
        ("without a budget", 0, &[], &["web-a-0", "web-a-1", "web-a-2"]),
        ("the one that is down costs nothing, and uses the budget up", 1, &["web-a-1"], &["web-a-1"]),
        ("one is down and one may be", 2, &["web-a-1"], &["web-a-0", "web-a-1"]),
        ("all are down", 1, &["web-a-0", "web-a-1", "web-a-2"], &["web-a-0", "web-a-1", "web-a-2"]),
    ] {
        let mut world = World::new(&["n1"]).await;
        world.put_set("web", of("x", 3, json!({"maxUnavailable": budget}))).await;
        world.converge().await;
        for name in down {
            world.report(name, "Failed", None).await;
        }
        world.put_set("web", of("y", 3, json!({"maxUnavailable": budget}))).await;
        world.pass().await;
        assert_eq!(with_image(&world, "y").await, changed, "{what}");
        // Nobody reports: a second look changes nobody else.
        world.settle().await;
        assert_eq!(with_image(&world, "y").await, changed, "{what}, again");
        let held = changed.len() < 3;
        let phase = world.status("web").await["phase"].clone();
        assert_eq!(phase, if held { "RolloutHeld" } else { "Progressing" }, "{what}");
        world.converge().await;
        assert_eq!(with_image(&world, "y").await.len(), 3, "{what}");
        assert_eq!(world.summary("web").await, "Ready 3/3/3", "{what}");
    }
}

#[tokio::test]
async fn what_counts_as_down() {
    // The old version still running does not count as the new one: the gate names the version.
    let mut world = World::new(&["n1", "n2"]).await;
    world.put_set("web", of("x", 3, json!({"maxUnavailable": 1}))).await;
    world.converge().await;
    world.put_set("web", of("y", 3, json!({"maxUnavailable": 1}))).await;
    world.settle().await;
    assert_eq!(world.tree(&app("web-a-0")).await["status"]["phase"], "Running");
    world.put_set("web", of("z", 3, json!({"maxUnavailable": 1}))).await;
    world.settle().await;
    assert_eq!(with_image(&world, "z").await, ["web-a-0"], "the one that is behind anyway");
    world.converge().await;

    // A node that is judged away takes its children along, whatever they last said.
    world.judge("n1", false).await;
    world.settle().await;
    let lost: usize = world.status("web").await["children"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|child| child["node"] == "n1" && child["phase"] == "Scheduled")
        .count();
    assert_eq!(lost, 2);
    assert_eq!(world.summary("web").await, "Progressing 3/3/1");
    assert_eq!(world.condition("web", "Available").await, "False MinimumUnavailable");
    world.put_set("web", of("w", 3, json!({"maxUnavailable": 1}))).await;
    world.settle().await;
    assert_eq!(with_image(&world, "w").await.len(), 2, "the lost ones, not the last one that runs");
}

#[tokio::test]
async fn finished_steps_take_nothing_of_the_budget() {
    let mut world = World::new(&["n1"]).await;
    let of = |image: &str| json!({"applications": [step("init", "x"), replicas("a", image, 2)], "rollout": {"maxUnavailable": 1}});
    world.put_set("web", of("x")).await;
    world.converge().await;
    world.put_set("web", of("y")).await;
    world.settle().await;
    assert_eq!(with_image(&world, "y").await, ["web-a-0"]);
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
}

#[tokio::test]
async fn a_hold_keeps_nobody_from_being_made_and_a_missing_child_counts_as_down() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", of("x", 2, json!({"maxUnavailable": 1}))).await;
    world.converge().await;
    world.put_set("web", of("y", 4, json!({"maxUnavailable": 1}))).await;
    world.settle().await;
    assert_eq!(with_image(&world, "y").await, ["web-a-2", "web-a-3"]);
    assert_eq!(world.condition("web", "Converged").await, "False RolloutHeld");
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 4/4/4");
    // Less of it goes at once.
    world.put_set("web", of("y", 1, json!({"maxUnavailable": 1}))).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a-0"]);
}

#[tokio::test]
async fn a_paused_rollout_changes_nobody_and_still_makes_and_prunes() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", of("x", 3, json!({}))).await;
    world.converge().await;
    world.put_set("web", of("y", 2, json!({"paused": true}))).await;
    world.converge().await;
    assert_eq!(with_image(&world, "x").await, ["web-a-0", "web-a-1"]);
    assert_eq!(world.summary("web").await, "RolloutPaused 2/2/2");
    assert_eq!(world.condition("web", "Progressing").await, "Unknown RolloutPaused");
    world.put_set("web", of("y", 3, json!({"paused": true}))).await;
    world.converge().await;
    assert_eq!(with_image(&world, "y").await, ["web-a-2"]);
    world.put_set("web", of("y", 3, json!({}))).await;
    world.converge().await;
    assert_eq!(with_image(&world, "y").await.len(), 3);
    assert_eq!(world.condition("web", "Progressing").await, "True Complete");
}

#[tokio::test]
async fn a_child_must_have_run_for_a_while_before_it_counts() {
    let mut world = World::new(&["n1"]).await;
    let patient = json!({"maxUnavailable": 1, "minReadySeconds": 3600});
    world.put_set("web", of("x", 2, patient.clone())).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Progressing 2/2/2");
    assert_eq!(world.status("web").await["available"], 0);
    assert_eq!(world.condition("web", "Available").await, "False MinimumUnavailable");
    let wait = world.pass().await.again_in.expect("it looks again by itself");
    assert!(wait <= Duration::from_secs(3600));

    // Those that have run for that long: without the wait they do, at once.
    world.put_set("web", of("x", 2, json!({"maxUnavailable": 1}))).await;
    world.settle().await;
    assert_eq!(world.status("web").await["available"], 2);
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
    world.put_set("web", of("y", 2, patient)).await;
    world.converge().await;
    // None of them counts yet, so all of them are down, and changed for nothing.
    assert_eq!(with_image(&world, "y").await.len(), 2);
}

#[tokio::test]
async fn a_rollout_that_gets_on_no_further_says_so_after_its_deadline() {
    let mut world = World::new(&["n1"]).await;
    let of = |image: &str| of(image, 2, json!({"maxUnavailable": 1, "progressDeadlineSeconds": 1}));
    world.put_set("web", of("x")).await;
    world.converge().await;
    assert_eq!(world.condition("web", "Progressing").await, "True Complete");
    assert!(world.status("web").await.get("lastProgressTime").is_none());
    world.put_set("web", of("y")).await;
    world.settle().await;
    assert_eq!(world.condition("web", "Progressing").await, "True Progressing");
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while world.condition("web", "Progressing").await != "False ProgressDeadlineExceeded" {
        assert!(tokio::time::Instant::now() < end, "{}", world.status("web").await);
        let wait = world.pass().await.again_in.unwrap_or(Duration::from_millis(20));
        tokio::time::sleep(wait.min(Duration::from_millis(500))).await;
    }
    assert_eq!(with_image(&world, "y").await, ["web-a-0"], "nothing is undone");
    assert_eq!(world.status("web").await["phase"], "RolloutHeld");
    let before = world.log(0).await.len();
    world.settle().await;
    assert_eq!(world.log(0).await.len(), before, "that it goes on being late is no news");
    world.converge().await;
    assert_eq!(world.condition("web", "Progressing").await, "True Complete");
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
}
