//! Gateways that leave, come back, or lose their database, with many nodes connected.

use std::time::{Duration, Instant};

use futures::future::join_all;
use horchestra_testkit::eventually;
use serde_json::json;
use tonic::Code;

use super::client::{Node, report};
use super::stage::Stage;
use crate::world::{NAMESPACE, SOON, World};

const NODES: usize = 40;

fn name(number: usize) -> String {
    format!("n{number:02}")
}

async fn connected(stage: &Stage) -> Vec<Node> {
    let nodes: Vec<Node> = join_all((0..NODES).map(async |number| stage.dial(&name(number)).await)).await;
    join_all(nodes.iter().map(Node::beat)).await;
    eventually(SOON, async || stage.world.operator.store().heartbeats().await.unwrap().len() == NODES).await;
    nodes
}

/// When each node was last heard of, by the database's clock, in microseconds.
async fn beats(world: &World) -> Vec<(String, i64)> {
    let rows = world.operator.store().heartbeats().await.unwrap();
    let mut beats: Vec<_> = rows.into_iter().map(|row| (row.heartbeat.node, row.at)).collect();
    beats.sort();
    beats
}

#[tokio::test]
async fn a_gateway_that_leaves_sends_its_nodes_away_one_by_one_in_no_order() {
    const WINDOW: Duration = Duration::from_millis(1500);
    let stage = Stage::with(|settings| settings.drain_over = WINDOW).await;
    let other = stage.world.gateway().await;
    let mut nodes = connected(&stage).await;
    let start = Instant::now();
    let leaving = stage.gateway.gateway.shutdown();
    let comings = nodes.iter_mut().enumerate().map(async |(number, node)| {
        assert_eq!(node.end().await, Code::Unavailable);
        let left = start.elapsed();
        // Let in elsewhere on the first try.
        let mut back = stage.dial_to(&other, &name(number)).await;
        back.beat().await;
        assert!(back.is_open().await);
        (number, left, back)
    });
    let ((), mut left) = tokio::join!(leaving, join_all(comings));
    left.sort_by_key(|(_, left, _)| *left);
    let order: Vec<usize> = left.iter().map(|(number, ..)| *number).collect();
    // Of forty in random order: not as they came, not the other way round, and not all in one heap.
    let rising = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((5..=34).contains(&rising), "{order:?}");
    let (_, last, _) = &left[NODES - 1];
    assert!(*last > WINDOW / 3, "all of them were gone after {last:?}");
    let rows = stage.world.operator.store().sessions().await.unwrap();
    assert_eq!(rows.len(), NODES);
    assert!(rows.iter().all(|row| row.gateway == other.gateway.gate.id));
}

#[tokio::test]
async fn when_all_gateways_restart_every_node_is_back_and_heard_of() {
    let stage = Stage::new().await;
    let other = stage.world.gateway().await;
    let mut nodes = connected(&stage).await;
    let before = beats(&stage.world).await;
    let Stage { world, gateway } = stage;
    gateway.crash().await;
    other.crash().await;
    join_all(nodes.iter_mut().map(Node::end)).await;
    let stage = Stage { gateway: world.gateway().await, world };
    let other = stage.world.gateway().await;
    // Whoever comes before the dead gateways' term is over comes again.
    let gateways = [&stage.gateway, &other];
    let mut back = join_all((0..NODES).map(async |number| {
        let node = stage.dial_again(gateways[number % 2], &name(number)).await;
        node.beat().await;
        node
    }))
    .await;
    eventually(SOON, async || {
        let after = beats(&stage.world).await;
        after.iter().zip(&before).all(|((node, at), (before, then))| node == before && at > then)
    })
    .await;
    for node in &mut back {
        assert!(node.is_open().await, "{}", node.name);
    }
}

#[tokio::test]
async fn an_outage_of_the_database_costs_no_stream_and_nothing_that_was_said() {
    // A seventh of the usual times, and an outage as long as twenty seconds are to those.
    const OUTAGE: Duration = Duration::from_millis(20_000 / 7);
    let stage = Stage::with(|settings| {
        settings.term = Duration::from_millis(8_000 / 7);
        settings.renew_every = Duration::from_millis(2_000 / 7);
        settings.margin = Duration::from_millis(2_000 / 7);
        settings.give_up_after = Duration::from_millis(25_000 / 7);
    })
    .await;
    let mut web = stage.serving("web", &[("web", json!({}))]).await;
    let mut nodes = connected(&stage).await;
    web.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
    let before = beats(&stage.world).await;

    stage.gateway.backend().set_cut_off(true);
    let start = Instant::now();
    eventually(SOON, async || stage.gateway.gateway.gate.readiness().is_err()).await;
    stage.edit("web", json!({"args": ["meanwhile"]})).await;
    while start.elapsed() < OUTAGE {
        join_all(nodes.iter().map(Node::beat)).await;
        web.pass([report(NAMESPACE, "web", "Failed", 1)]).await;
        web.pass([report(NAMESPACE, "web", "Pending", 1)]).await;
        tokio::time::sleep(OUTAGE / 10).await;
    }
    // Who comes meanwhile is told to come again.
    let refused = stage.try_dial("late").await.err().and_then(|why| why.code());
    assert_eq!(refused, Some(Code::Unavailable));
    assert!(web.is_quiet().await, "pushed without a database");
    stage.gateway.backend().set_cut_off(false);

    // What was said last is there without being said again, and every node was heard of.
    stage.until_phase("web", "Pending").await;
    assert_eq!(web.push().await.app("web").unwrap()["spec"]["args"], json!(["meanwhile"]));
    eventually(SOON, async || {
        let after = beats(&stage.world).await;
        let later = |node: &str, then: i64| after.iter().any(|(name, at)| name == node && *at > then);
        before.iter().filter(|(node, _)| node != "web").all(|(node, then)| later(node, *then))
    })
    .await;
    for node in nodes.iter_mut().chain([&mut web]) {
        assert!(node.is_open().await, "{}", node.name);
    }
    stage.dial_again(&stage.gateway, "late").await;
}
