//! The judge as a loop: what comes of heartbeats, of their absence, and of an absence of ours.
//!
//! Time is the test's, so that a timeout is exactly that long. Rounds are five seconds, the ready timeout is 45.

use std::collections::BTreeMap;
use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::Order;

use crate::faults::plane::{Plane, app, node};
use crate::faults::process::Process;

/// Rounds within which nobody who has just been heard of is judged silent, and after which everybody is.
const WITHIN: usize = 9;
const AFTER: usize = 11;
/// Ten minutes.
const LONG: usize = 120;

struct Walk {
    plane: Plane,
    processes: [Process; 1],
}

impl Walk {
    async fn with(nodes: &[&str]) -> Walk {
        let plane = Plane::new(nodes).await;
        let processes = [Process::start(&plane).await];
        let mut walk = Walk { plane, processes };
        walk.pass(2).await;
        for node in nodes {
            assert_eq!(walk.plane.verdict(node).await, "True", "{node}");
        }
        walk.changed().await;
        walk
    }

    async fn pass(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.plane.round(&mut self.processes).await;
        }
    }

    async fn silent(&mut self, nodes: &[&str]) {
        self.plane.silent = nodes.iter().map(|node| (*node).to_owned()).collect();
    }

    /// Whether any object was written since it was last asked.
    async fn changed(&mut self) -> bool {
        self.plane.has_news().await
    }

    /// Events about a node, by reason, once all have been written.
    async fn told(&self, node: &str) -> BTreeMap<String, i64> {
        tokio::time::sleep(Duration::from_secs(120)).await;
        let mut told = self.plane.told_of(node).await;
        let judged = ["NodeReady", "NodeNotReady", "NodeSilent", "NodeLost", "VerdictsFrozen"];
        told.retain(|reason, _| judged.contains(&reason.as_str()));
        told
    }
}

fn counts(expected: &[(&str, i64)]) -> BTreeMap<String, i64> {
    expected.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_turn_of_a_node_is_one_change_and_one_event() {
    let mut walk = Walk::with(&["n1", "n2", "n3", "n4"]).await;
    walk.pass(20).await;
    assert!(!walk.changed().await, "heartbeats change no object");

    walk.silent(&["n4"]).await;
    walk.pass(WITHIN - 1).await;
    assert!(!walk.changed().await, "not yet");
    walk.pass(AFTER - WITHIN + 1).await;
    assert_eq!(walk.plane.verdict("n4").await, "Unknown");
    assert!(walk.changed().await);
    walk.pass(LONG).await;
    assert!(walk.changed().await, "lost");
    walk.pass(LONG).await;
    assert!(!walk.changed().await, "that it stays so is no news");

    walk.silent(&[]).await;
    walk.pass(1).await;
    assert_eq!(walk.plane.verdict("n4").await, "True");

    for (ready, verdict) in [(false, "False"), (true, "True")] {
        walk.plane.report("n4", ready).await;
        walk.pass(1).await;
        assert_eq!(walk.plane.verdict("n4").await, verdict);
    }
    assert_eq!(
        walk.told("n4").await,
        counts(&[("NodeReady", 3), ("NodeSilent", 1), ("NodeLost", 1), ("NodeNotReady", 1)])
    );
    assert_eq!(walk.told("n1").await, counts(&[("NodeReady", 1)]));
}

/// Who of ours was away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Away {
    Workers,
    Gateways,
    Database,
}

#[tokio::test(start_paused = true)]
async fn after_an_absence_of_ours_every_node_gets_the_full_timeout() {
    for away in [Away::Workers, Away::Gateways, Away::Database] {
        // Too few to be told from all of them.
        let mut walk = Walk::with(&["n1", "n2"]).await;
        // One of them will not be back.
        walk.silent(&["n2"]).await;
        match away {
            Away::Workers => {
                for _ in 0..LONG {
                    walk.plane.round(&mut []).await;
                }
            }
            Away::Gateways => {
                walk.plane.served = false;
                walk.pass(LONG).await;
                walk.plane.served = true;
            }
            Away::Database => {
                walk.plane.served = false;
                walk.processes[0].backend.set_cut_off(true);
                walk.pass(LONG).await;
                walk.processes[0].backend.set_cut_off(false);
                walk.plane.served = true;
            }
        }
        walk.pass(WITHIN).await;
        assert!(!walk.changed().await, "{away:?}: nobody is judged for what we did not hear");
        walk.pass(AFTER - WITHIN + 1).await;
        let verdicts = (walk.plane.verdict("n1").await, walk.plane.verdict("n2").await);
        assert_eq!(verdicts, ("True".to_owned(), "Unknown".to_owned()), "{away:?}");
        assert_eq!(walk.told("n1").await, counts(&[("NodeReady", 1)]), "{away:?}");
        assert_eq!(walk.told("n2").await, counts(&[("NodeReady", 1), ("NodeSilent", 1)]), "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_falls_silent_together_stays_as_it_was_for_a_while() {
    let nodes = ["n1", "n2", "n3", "n4"];
    // The way to them is broken, and comes back in time.
    let mut walk = Walk::with(&nodes).await;
    walk.silent(&["n1", "n2", "n3"]).await;
    walk.pass(LONG / 3).await;
    assert!(!walk.changed().await);
    walk.silent(&[]).await;
    walk.pass(LONG / 3).await;
    assert!(!walk.changed().await);

    // It does not come back.
    walk.silent(&["n1", "n2", "n3"]).await;
    walk.pass(LONG).await;
    for node in nodes {
        let expected = if node == "n4" { "True" } else { "Unknown" };
        assert_eq!(walk.plane.verdict(node).await, expected, "{node}");
    }
    let told = counts(&[("NodeReady", 1), ("VerdictsFrozen", 2), ("NodeSilent", 1)]);
    assert_eq!(walk.told("n1").await, told, "each freeze is told of once");
    assert_eq!(walk.told("n2").await, counts(&[("NodeReady", 1), ("NodeSilent", 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_forgotten_lets_go_of_what_was_to_end_there() {
    let mut walk = Walk::with(&["n1", "n2"]).await;
    for name in ["goes", "stays"] {
        walk.plane.run(name, "1").await;
        let pin = serde_json::json!({"spec": {"placement": {"nodeName": "n2"}}});
        walk.plane.merge(&app(name), pin).await.unwrap();
    }
    let forget = async |walk: &Walk| walk.plane.act(&node("n2"), Door::Forget, &Order::default()).await;
    assert_eq!(forget(&walk).await.unwrap_err().code(), 409, "it is connected");
    walk.silent(&["n2"]).await;
    walk.plane.disconnect("n2").await;
    assert_eq!(forget(&walk).await.unwrap_err().code(), 409, "it was heard of a moment ago");
    walk.pass(AFTER).await;
    assert_eq!(walk.plane.verdict("n2").await, "Unknown");
    walk.plane.delete(&app("goes"), None).await;
    walk.pass(2).await;
    assert!(walk.plane.entry(&app("goes")).await.is_some(), "it waits for its node");

    assert!(forget(&walk).await.unwrap().erased);
    walk.pass(2).await;
    assert!(walk.plane.entry(&app("goes")).await.is_none());
    assert_eq!(walk.plane.placed_on("stays").await.as_deref(), Some("n2"), "nobody moves it");
    walk.plane.delete(&app("stays"), None).await;
    walk.pass(2).await;
    assert!(walk.plane.entry(&app("stays")).await.is_none(), "nobody waits for a node that was given up");
    let snapshot = walk.plane.store().fresh().await.unwrap();
    assert_eq!(snapshot.count(Kind::Node, None), 1);
}
