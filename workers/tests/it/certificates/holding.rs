//! Requests that wait, and what people are told of them.

use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::{Body, Order, WriteOptions};
use horchestra_testkit::eventually;
use serde_json::json;

use super::support::{SOON, TestSigner, World, agent, key, operator, request};

#[tokio::test]
async fn a_renewal_is_held_while_the_gate_is_off_and_signed_once_it_is_on() {
    let (world, signer) = (World::new(false).await, TestSigner::new());
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    let report = world.pass(Some(&signer)).await;
    assert_eq!((report.writes, report.refused), (1, 0));
    let held = world.get("r").await.unwrap();
    assert_eq!(held["status"]["phase"], "Pending");
    assert!(held["status"]["reason"].as_str().unwrap().contains("AutoNodeCertRotation"), "{held}");
    for _ in 0..3 {
        assert_eq!(world.pass(Some(&signer)).await.writes, 0);
    }
    assert_eq!(world.get("r").await.unwrap(), held, "the reason is written once");
    assert!(signer.asked().is_empty());

    let world = world.with_gate().await;
    assert_eq!(world.pass(Some(&signer)).await.writes, 1);
    let status = world.status("r").await;
    assert_eq!((&status["phase"], status.get("reason")), (&json!("Approved"), None));
}

#[tokio::test]
async fn a_node_whose_renewals_wait_has_one_event_however_often_it_asks() {
    let world = World::new(false).await;
    let node = json!({"metadata": {"name": "node-1"}, "spec": {}}).to_string();
    let options = WriteOptions::default();
    world.service.create(&operator(), Kind::Node, "", Body::Json(node.into()), &options).await.unwrap();
    for number in 0..3 {
        world.create(&agent("node-1", "aa"), &format!("r{number}"), &request("node-1")).await;
        world.pass(None).await;
    }
    world.create(&operator(), "by-hand", &request("node-2")).await;
    world.pass(None).await;
    let told = eventually(SOON, async || world.told("CertificateHeld").await.pop()).await;
    assert_eq!(told.0, "CertificateSigningRequest/by-hand");
    assert!(told.1.contains("operator"), "{told:?}");
    let told = world.told("RenewalHeld").await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "Node/node-1");
}

#[tokio::test]
async fn what_waits_costs_nothing_until_it_changes() {
    let (world, signer) = (World::new(false).await, TestSigner::new());
    for number in 0..30 {
        let node = format!("node-{number}");
        world.create(&agent(&node, "aa"), &node, &request(&node)).await;
    }
    let mut reconciler = world.reconciler(Some(signer.clone()));
    assert_eq!(world.pass_of(&mut reconciler).await.writes, 30);
    let last = async || {
        let snapshot = world.service.store().fresh().await.unwrap();
        snapshot.last_change(&[Kind::CertificateSigningRequest]).unwrap()
    };
    let before = last().await;
    for _ in 0..3 {
        assert_eq!(world.pass_of(&mut reconciler).await.writes, 0);
    }
    assert_eq!(last().await, before);
    // One that changes is the only one that is written.
    world.create(&agent("node-7", "aa"), "again", &request("node-7")).await;
    assert_eq!(world.pass_of(&mut reconciler).await.writes, 1);
}

#[tokio::test]
async fn a_denial_by_an_operator_is_told_of_once() {
    let world = World::new(false).await;
    let mut reconciler = world.reconciler(None);
    world.create(&operator(), "before", &request("node-1")).await;
    deny(&world, "before").await;
    world.pass_of(&mut reconciler).await;
    // One that it has seen, and one that it has not.
    world.create(&operator(), "seen", &request("node-2")).await;
    world.pass_of(&mut reconciler).await;
    deny(&world, "seen").await;
    world.create(&operator(), "unseen", &request("node-3")).await;
    deny(&world, "unseen").await;
    for _ in 0..3 {
        assert_eq!(world.pass_of(&mut reconciler).await.writes, 0);
    }
    let told = eventually(SOON, async || {
        let mut told = world.told("CertificateDenied").await;
        told.sort();
        if told.len() >= 2 { Ok(told) } else { Err(format!("{told:?}")) }
    })
    .await;
    let about: Vec<&str> = told.iter().map(|(about, _)| about.as_str()).collect();
    assert_eq!(about, ["CertificateSigningRequest/seen", "CertificateSigningRequest/unseen"]);
    assert!(told[0].1.contains("denied by operator: not ours"), "{told:?}");
    // Who leads next does not tell of it again.
    world.pass(None).await;
    assert_eq!(world.told("CertificateDenied").await.len(), 2);
}

async fn deny(world: &World, name: &str) {
    let order = Order { message: Some("not ours".to_owned()), ..Order::default() };
    world.service.act(&operator(), &key(name), Door::Deny, &order, &WriteOptions::default()).await.unwrap();
}
