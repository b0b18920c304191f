//! One live session per node in the whole cluster.

use std::time::Duration;

use futures::future::join_all;
use horchestra_nodegate::settings::Settings;
use horchestra_proto::node::v1::LogChunk;
use horchestra_testkit::eventually;
use serde_json::json;
use tonic::Code;

use super::client::{Node, Refusal, report};
use super::stage::Stage;
use crate::world::{A_WHILE, NAMESPACE, SOON};

/// After this long without a message a session may be taken over.
const STALE: Duration = Duration::from_millis(500);

fn soon_stale(settings: &mut Settings) {
    settings.stale_after = STALE;
}

fn code(outcome: Result<Node, Refusal>) -> Option<Code> {
    outcome.err().and_then(|why| why.code())
}

#[tokio::test]
async fn a_second_stream_is_refused_and_the_first_goes_on() {
    let stage = Stage::new().await;
    let mut first = stage.serving("n1", &[("web", json!({}))]).await;
    match stage.try_dial("n1").await.err() {
        Some(Refusal::Call(status)) => {
            assert_eq!(status.code(), Code::AlreadyExists);
            assert!(status.message().contains("live session"), "{status}");
        }
        other => panic!("{other:?}"),
    }
    assert!(first.is_open().await);
    first.pass([report(NAMESPACE, "web", "Running", 1)]).await;
    stage.until_phase("web", "Running").await;
}

#[tokio::test]
async fn whatever_a_node_says_is_a_sign_of_life_and_so_is_that_it_came() {
    const MOST_OF_IT: Duration = Duration::from_secs(50);
    // The term is no matter here; the times of sessions are as ever.
    let stage = Stage::with(|settings| settings.term = Duration::from_secs(3600)).await;
    let (mut silent, chatty) = (stage.dial("silent").await, stage.dial("chatty").await);
    stage.world.advance(MOST_OF_IT);
    assert_eq!(code(stage.try_dial("silent").await), Some(Code::AlreadyExists), "it came not long ago");
    // The other one says nothing that means anything.
    let seen = async || stage.world.operator.store().session_of("chatty").await.unwrap().unwrap().last_seen;
    let first = seen().await;
    eventually(SOON, async || {
        chatty.chunk(LogChunk { id: "of no log".to_owned(), ..LogChunk::default() }).await;
        chatty.say_nothing().await;
        seen().await > first
    })
    .await;
    stage.world.advance(MOST_OF_IT);
    assert_eq!(code(stage.try_dial("chatty").await), Some(Code::AlreadyExists));
    stage.dial("silent").await;
    assert_eq!(silent.end().await, Code::Aborted);
}

#[tokio::test]
async fn who_is_silent_for_too_long_is_taken_over_and_can_say_no_more() {
    let stage = Stage::with(soon_stale).await;
    let mut old = stage.serving("n1", &[("web", json!({}))]).await;
    old.report(report(NAMESPACE, "web", "Running", 1)).await;
    stage.until_phase("web", "Running").await;
    tokio::time::sleep(2 * STALE).await;
    let mut new = stage.dial_again(&stage.gateway, "n1").await;
    old.report(report(NAMESPACE, "web", "Failed", 1)).await;
    old.beat().await;
    assert_eq!(old.end().await, Code::Aborted);
    new.push_where(|push| push.has("web")).await;
    stage.heard(&new).await;
    assert_eq!(stage.status("web").await["phase"], "Running");
    // The end of the old one gives up nothing of the new one's.
    drop(old);
    tokio::time::sleep(A_WHILE).await;
    new.beat().await;
    assert_eq!(stage.session_of("n1").await, Some(stage.gateway.gateway.gate.id));
    assert!(new.is_open().await);
}

#[tokio::test]
async fn the_place_is_free_as_soon_as_the_stream_is_over() {
    let stage = Stage::new().await;
    let mut polite = stage.dial("polite").await;
    polite.finish();
    assert_eq!(polite.end().await, Code::Ok);
    stage.dial_again(&stage.gateway, "polite").await;
    stage.dial("killed").await.vanish();
    stage.dial_again(&stage.gateway, "killed").await;
}

#[tokio::test]
async fn of_twenty_that_come_at_once_to_two_gateways_one_is_let_in() {
    let stage = Stage::new().await;
    let other = stage.world.gateway().await;
    let dialing =
        (0..20).map(|number| stage.try_dial_to(if number % 2 == 0 { &stage.gateway } else { &other }, "n1"));
    let (accepted, refused): (Vec<_>, Vec<_>) = join_all(dialing).await.into_iter().partition(Result::is_ok);
    assert_eq!(accepted.len(), 1);
    assert!(refused.into_iter().all(|outcome| code(outcome) == Some(Code::AlreadyExists)));
}

#[tokio::test]
async fn a_gateway_that_dies_costs_its_nodes_the_rest_of_its_term() {
    const TERM: Duration = Duration::from_secs(3600);
    let stage = Stage::with(|settings| settings.term = TERM).await;
    let other = stage.world.gateway().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let Stage { world, gateway } = stage;
    gateway.crash().await;
    node.end().await;
    let stage = Stage { world, gateway: other };
    assert_eq!(code(stage.try_dial("n1").await), Some(Code::AlreadyExists), "its term is not over");
    stage.world.advance(TERM);
    let mut node = stage.dial_again(&stage.gateway, "n1").await;
    assert_eq!(node.push().await.names(), ["web"]);
}

#[tokio::test]
async fn a_gateway_that_alone_has_lost_the_database_stops_pushing_and_then_sends_its_nodes_away() {
    let stage = Stage::with(|settings| {
        settings.give_up_after = Duration::from_secs(1);
        settings.give_up_over = Duration::from_millis(200);
    })
    .await;
    let other = stage.world.gateway().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    stage.gateway.backend().set_cut_off(true);
    eventually(SOON, async || !stage.gateway.gateway.gate.term.in_force()).await;
    stage.edit("web", json!({"args": ["meanwhile"]})).await;
    node.report(report(NAMESPACE, "web", "Failed", 1)).await;
    // Neither a push nor anything else until it is sent away.
    match node.hear().await {
        Err(Some(status)) => assert_eq!(status.code(), Code::Unavailable),
        other => panic!("{other:?}"),
    }
    let mut node = stage.dial_again(&other, "n1").await;
    assert_eq!(node.push().await.app("web").unwrap()["spec"]["args"], json!(["meanwhile"]));
    // What the first one still holds is written by nobody.
    stage.gateway.backend().set_cut_off(false);
    eventually(SOON, async || stage.gateway.gateway.gate.readiness()).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.status("web").await["phase"], "Pending", "as it was made");
    assert_eq!(stage.session_of("n1").await, Some(other.gateway.gate.id));
    assert!(node.is_open().await);
}

#[tokio::test]
async fn a_gateway_that_stood_still_says_nothing_more_for_a_node_of_another() {
    let stage = Stage::new().await;
    let other = stage.world.gateway().await;
    let mut old = stage.serving("n1", &[("web", json!({}))]).await;
    stage.gateway.backend().set_stalled(true);
    old.report(report(NAMESPACE, "web", "Failed", 1)).await;
    old.beat().await;
    let mut new = stage.dial_again(&other, "n1").await;
    new.push().await;
    new.report(report(NAMESPACE, "web", "Running", 1)).await;
    stage.until_phase("web", "Running").await;
    stage.gateway.backend().set_stalled(false);
    assert_eq!(old.end().await, Code::Aborted);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.status("web").await["phase"], "Running");
    assert_eq!(stage.session_of("n1").await, Some(other.gateway.gate.id));
    assert!(new.is_open().await);
}
