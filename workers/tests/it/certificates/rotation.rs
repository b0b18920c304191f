//! Nodes that come back with their next certificate, and nodes that do not.

use std::time::Duration;

use horchestra_auth::identity::fingerprint;
use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::{Order, WriteOptions};
use horchestra_store::{SessionClaim, SessionGrant};
use horchestra_testkit::eventually;
use horchestra_workers::certificates::reconcile::NodeCertificates;
use jiff::{Span, Timestamp};
use uuid::Uuid;

use super::support::{SOON, TestSigner, World, agent, key, operator, request};

const LONG: Duration = Duration::from_secs(600);

/// A world in which node-1 was given its next certificate; the fingerprint of that.
async fn rotated() -> (World, String) {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    world.pass(Some(&signer)).await;
    let fingerprint = fingerprint(&world.certificate("r").await);
    (world, fingerprint)
}

async fn connect(world: &World, gateway: Uuid, certificate: &str) -> SessionGrant {
    let store = world.service.store();
    store.renew_gateway(gateway, "127.0.0.1:1", LONG).await.unwrap();
    let claim = SessionClaim {
        node: "node-1".to_owned(),
        gateway,
        peer: "127.0.0.1:2".to_owned(),
        certificate: certificate.to_owned(),
    };
    store.claim_session(claim, LONG).await.unwrap().expect("the session")
}

fn in_a_minute() -> Timestamp {
    Timestamp::now() + Span::new().seconds(61)
}

fn in_half_a_minute() -> Timestamp {
    Timestamp::now() + Span::new().seconds(30)
}

fn in_an_hour() -> Timestamp {
    Timestamp::now() + Span::new().minutes(59)
}

/// A loop that has led since then.
fn at(world: &World, now: fn() -> Timestamp) -> NodeCertificates {
    world.reconciler(None).with_clock(now)
}

#[tokio::test]
async fn a_node_that_is_back_with_its_new_certificate_is_told_of_once() {
    let (world, fingerprint) = rotated().await;
    let gateway = Uuid::new_v4();
    let old = connect(&world, gateway, "aa").await;
    let mut reconciler = at(&world, in_half_a_minute);
    let report = world.pass_of(&mut reconciler).await;
    assert!(report.again_in.is_some_and(|soon| soon <= Duration::from_secs(5)), "it looks again: {report:?}");
    world.service.store().release_session("node-1", &old).await.unwrap();
    world.pass_of(&mut reconciler).await;
    connect(&world, gateway, &fingerprint).await;
    for _ in 0..3 {
        world.pass_of(&mut reconciler).await;
    }
    let told = eventually(SOON, async || world.told("NodeCertificateRotated").await.pop()).await;
    assert_eq!(told.0, "Node/node-1");
    assert_eq!(world.told("NodeNotBack").await, []);
    let entry = world.service.store().snapshot();
    let events = entry.list(Kind::Event, None).count();
    assert_eq!(events, 1, "one observation of one thing");
}

#[tokio::test]
async fn a_node_that_is_not_back_within_a_minute_is_told_of_once() {
    let (world, fingerprint) = rotated().await;
    let mut reconciler = at(&world, in_a_minute);
    for _ in 0..3 {
        world.pass_of(&mut reconciler).await;
    }
    let told = eventually(SOON, async || world.told("NodeNotBack").await.pop()).await;
    assert_eq!(told.0, "Node/node-1");
    assert!(told.1.contains("has not connected"), "{told:?}");
    // Late is better than never.
    connect(&world, Uuid::new_v4(), &fingerprint).await;
    world.pass_of(&mut reconciler).await;
    eventually(SOON, async || !world.told("NodeCertificateRotated").await.is_empty()).await;
    assert_eq!(world.told("NodeNotBack").await.len(), 1);
}

#[tokio::test]
async fn a_node_that_goes_on_with_the_old_certificate_is_told_apart() {
    let (world, _) = rotated().await;
    connect(&world, Uuid::new_v4(), "aa").await;
    world.pass_of(&mut at(&world, in_a_minute)).await;
    let told = eventually(SOON, async || world.told("NodeNotBack").await.pop()).await;
    assert!(told.1.contains("still connected with the old one"), "{told:?}");
}

#[tokio::test]
async fn of_rotations_of_long_ago_nothing_is_told() {
    let (world, _) = rotated().await;
    let report = world.pass_of(&mut at(&world, in_an_hour)).await;
    assert!(report.again_in.is_none_or(|rest| rest > Duration::from_secs(10)), "{report:?}");
    // Of a certificate for a node that somebody else asked for, neither.
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let operator = operator();
    world.create(&operator, "new", &request("node-9")).await;
    let (order, options, key) = (Order::default(), WriteOptions::default(), key("new"));
    world.pass(Some(&signer)).await;
    let approving = world.service.act(&operator, &key, Door::Approve, &order, &options);
    let (approved, ()) = tokio::join!(approving, async {
        eventually(SOON, async || world.pass(Some(&signer)).await.writes == 1).await;
    });
    approved.unwrap();
    world.pass_of(&mut at(&world, in_a_minute)).await;
    eventually(SOON, async || !world.told("CertificateIssued").await.is_empty()).await;
    assert_eq!(world.told("NodeNotBack").await, []);
}
