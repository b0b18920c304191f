//! One live session per node.

use std::time::Duration;

use futures::future::join_all;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_proto::node::v1::LogChunk;
use horchestra_testkit::eventually;
use tonic::Code;

use crate::world::{A_WHILE, SOON, TestGateway, World};

async fn refusal(node: &mut ScriptedNode) -> Option<Code> {
    node.ended(SOON).await.unwrap().map(|status| status.code())
}

/// How many gateways hold a session of that node.
fn holders(gateways: &[&TestGateway], node: &str) -> usize {
    gateways.iter().filter(|gateway| gateway.has_session(node)).count()
}

#[tokio::test]
async fn a_second_stream_is_refused_and_the_first_goes_on() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let first = world.join(&gateway, "n1").await;
    let mut second = world.connect(&gateway, "n1").await;
    assert_eq!(refusal(&mut second).await, Some(Code::AlreadyExists));
    assert!(first.is_open());
    first.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
}

#[tokio::test]
async fn a_second_stream_on_another_gateway_is_refused_as_well() {
    let world = World::on_postgres().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    // It has said nothing yet: opening the stream counts.
    let first = world.join(&one, "n1").await;
    let mut second = world.connect(&two, "n1").await;
    assert_eq!(refusal(&mut second).await, Some(Code::AlreadyExists));
    assert!(first.is_open());
}

#[tokio::test]
async fn a_silent_session_is_taken_over_and_told() {
    for other_gateway in [false, true] {
        let world = World::new().await;
        let stale = |settings: &mut horchestra_nodegate::settings::Settings| {
            settings.stale_after = Duration::from_millis(400);
        };
        let (one, two) = (world.gateway_with(stale).await, world.gateway_with(stale).await);
        let mut old = world.join(&one, "n1").await;
        let newcomers = if other_gateway { &two } else { &one };
        let mut new = eventually(SOON, async || {
            let mut new = world.connect(newcomers, "n1").await;
            match new.ended(A_WHILE).await {
                Ok(_) => None,
                Err(_) => Some(new),
            }
        })
        .await;
        assert_eq!(refusal(&mut old).await, Some(Code::Aborted), "on another gateway: {other_gateway}");
        // The end of the old session leaves the new one's row alone.
        new.heartbeat().await.unwrap();
        eventually(SOON, async || !world.node("n1").await.is_null()).await;
        let row = world.operator.store().session_of("n1").await.unwrap().unwrap();
        assert_eq!(row.gateway, newcomers.gateway.gate.id);
        assert!(new.is_open());
        assert!(new.ended(Duration::ZERO).await.is_err());
    }
}

#[tokio::test]
async fn any_message_is_a_sign_of_life() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.stale_after = Duration::from_secs(1)).await;
    let first = world.join(&gateway, "n1").await;
    let before = world.operator.store().session_of("n1").await.unwrap().unwrap().last_seen;
    eventually(SOON, async || {
        first.log_chunk(LogChunk { id: "unknown".to_owned(), ..LogChunk::default() }).await.unwrap();
        let seen = world.operator.store().session_of("n1").await.unwrap().unwrap().last_seen;
        seen > before + 2_000_000
    })
    .await;
    let mut second = world.connect(&gateway, "n1").await;
    assert_eq!(refusal(&mut second).await, Some(Code::AlreadyExists));
    assert!(first.is_open());
}

#[tokio::test]
async fn the_place_is_free_as_soon_as_the_stream_is_gone() {
    for kill in [false, true] {
        let world = World::new().await;
        let gateway = world.gateway().await;
        let mut first = world.join(&gateway, "n1").await;
        if kill {
            first.kill().await;
        } else {
            first.finish();
            assert_eq!(first.ended(SOON).await.unwrap().map(|status| status.code()), None, "a clean end");
        }
        eventually(SOON, async || world.operator.store().session_of("n1").await.unwrap().is_none()).await;
        let second = world.join(&gateway, "n1").await;
        assert!(second.is_open());
    }
}

#[tokio::test]
async fn of_twenty_simultaneous_claims_on_two_gateways_one_wins() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    let identity = world.identity("n1");
    let connecting = (0..20).map(|number| {
        let controller = if number % 2 == 0 { one.controller() } else { two.controller() };
        let identity = identity.clone();
        async move { ScriptedNode::connect(&controller, &identity).await.unwrap() }
    });
    let mut nodes = join_all(connecting).await;
    eventually(SOON, async || nodes.iter().filter(|node| !node.is_open()).count() == 19).await;
    let refused = nodes.iter_mut().filter(|node| !node.is_open());
    for node in refused.collect::<Vec<_>>() {
        assert_eq!(refusal(node).await, Some(Code::AlreadyExists));
    }
    assert_eq!(holders(&[&one, &two], "n1"), 1);
}
