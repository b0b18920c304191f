//! Who is let in, and what a stream bears.

use std::time::Duration;

use futures::future::join_all;
use horchestra_auth::pki::Authority;
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::strict::ReverseNames;
use horchestra_testkit::eventually;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use super::NODES;
use super::client::{Node, Refusal, heartbeat, tls};
use super::pki::{Credentials, Part};
use super::stage::Stage;
use crate::world::SOON;

/// What a certificate says, and what comes of a call with it.
type Presented = (&'static str, &'static [&'static [Part]], Option<Code>);

const PRESENTED: &[Presented] = &[
    ("a node", &[&[Part::Cn("n1")], &[Part::O(NODES)]], None),
    ("an address for a name", &[&[Part::Cn("10.0.0.2")], &[Part::O(NODES)]], None),
    ("a name of several labels", &[&[Part::Cn("n1.rack.example")], &[Part::O(NODES)]], None),
    ("groups side by side", &[&[Part::Cn("n2")], &[Part::O("dev")], &[Part::O(NODES)]], None),
    ("groups in one set", &[&[Part::Cn("n3")], &[Part::O("dev"), Part::O(NODES)]], None),
    ("everything in one set", &[&[Part::Cn("n4"), Part::O("dev"), Part::O(NODES)]], None),
    ("the group first", &[&[Part::O(NODES)], &[Part::Cn("n5")]], None),
    ("printable text", &[&[Part::Cn("n6")], &[Part::PrintableO(NODES)]], None),
    ("somebody else", &[&[Part::Cn("operator")], &[Part::O("dev")]], Some(Code::PermissionDenied)),
    ("an administrator", &[&[Part::Cn("n7")], &[Part::O("system:masters")]], Some(Code::PermissionDenied)),
    ("no group", &[&[Part::Cn("n8")]], Some(Code::PermissionDenied)),
    ("the group as a unit", &[&[Part::Cn("n9")], &[Part::Ou(NODES)]], Some(Code::PermissionDenied)),
    ("no name", &[&[Part::O(NODES)]], Some(Code::Unauthenticated)),
    ("an empty name", &[&[Part::Cn("")], &[Part::O(NODES)]], Some(Code::Unauthenticated)),
    ("upper case", &[&[Part::Cn("N1")], &[Part::O(NODES)]], Some(Code::Unauthenticated)),
    ("a path", &[&[Part::Cn("n1/x")], &[Part::O(NODES)]], Some(Code::Unauthenticated)),
    ("a way out", &[&[Part::Cn("../n1")], &[Part::O(NODES)]], Some(Code::Unauthenticated)),
    ("a dot at the end", &[&[Part::Cn("n1.")], &[Part::O(NODES)]], Some(Code::Unauthenticated)),
];

#[tokio::test]
async fn a_node_is_who_its_certificate_names_in_the_group_of_nodes() {
    let stage = Stage::new().await;
    join_all(PRESENTED.iter().map(async |(what, subject, refused)| {
        let shown = Credentials::subject(&stage.world.authority, subject);
        let outcome = stage.try_dial_as(Some(&shown), what).await;
        match refused {
            None => {
                let mut node = outcome.unwrap_or_else(|why| panic!("{what}: {why:?}"));
                assert!(node.is_open().await, "{what}");
            }
            Some(code) => assert_eq!(outcome.err().and_then(|why| why.code()), Some(*code), "{what}"),
        }
    }))
    .await;
}

#[tokio::test]
async fn without_a_certificate_there_is_a_connection_and_no_stream() {
    let stage = Stage::new().await;
    let refused = stage.try_dial_as(None, "nobody").await.err().and_then(|why| why.code());
    assert_eq!(refused, Some(Code::Unauthenticated));
}

#[tokio::test]
async fn a_certificate_of_a_foreign_authority_reaches_no_call() {
    let stage = Stage::new().await;
    let refused = stage.try_dial_from(&Authority::generate().unwrap(), "n1").await.err();
    assert!(matches!(refused, Some(Refusal::Connection)), "{refused:?}");
    assert!(!stage.gateway.has_session("n1"));
}

#[tokio::test]
async fn the_server_speaks_http2_to_who_offers_nothing_else() {
    let stage = Stage::new().await;
    let shown = Credentials::node(&stage.world.authority, "n1");
    let authority = stage.world.authority.certificate();
    let tls = tls(stage.gateway.address, authority, Some(&shown), &["h2"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
}

#[tokio::test]
async fn the_first_thing_a_node_hears_is_what_it_is_to_run() {
    let stage = Stage::new().await;
    for node in ["n1", "n2"] {
        stage.world.create_node(node).await;
        stage.world.create_app(&format!("on-{node}"), node, json!({})).await;
    }
    let mut node = stage.dial("n1").await;
    assert_eq!(node.push().await.names(), ["on-n1"]);
}

#[tokio::test]
async fn messages_are_taken_up_to_four_mebibytes_and_a_larger_one_ends_its_own_stream() {
    let stage = Stage::new().await;
    let (mut node, mut bystander) = (stage.dial("n1").await, stage.dial("n2").await);
    // Too large for a report, and not for a message.
    node.say_of_itself(" ".repeat(3_900 << 10)).await;
    stage.heard(&node).await;
    node.say_of_itself(" ".repeat(4_200 << 10)).await;
    assert_eq!(node.end().await, Code::ResourceExhausted);
    assert!(bystander.is_open().await);
    stage.heard(&bystander).await;
}

#[tokio::test]
async fn what_agents_could_not_receive_is_not_sent_until_it_fits() {
    let stage = Stage::new().await;
    let megabyte = |name: &'static str| (name, json!({"args": ["x".repeat(1_350 << 10)]}));
    let mut node = stage.serving("n1", &[megabyte("a"), megabyte("b")]).await;
    let (third, large) = megabyte("c");
    stage.world.create_app(third, "n1", large).await;
    eventually(SOON, async || !stage.world.told("PushWithheld", "n1").await.is_empty()).await;
    stage.heard(&node).await;
    stage.edit("c", json!({"args": ["x"]})).await;
    assert_eq!(node.push().await.names(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_peer_that_no_longer_answers_is_given_up() {
    let defaults = Settings::default();
    assert!(defaults.ping_every + defaults.ping_timeout <= Duration::from_secs(40));
    let stage = Stage::with(|settings| {
        settings.ping_every = Duration::from_millis(200);
        settings.ping_timeout = Duration::from_millis(300);
    })
    .await;
    // A cable that is cut after some time: everything is swallowed, and nothing closed.
    let cable = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = (cable.local_addr().unwrap(), stage.gateway.address);
    let cut = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_cut = std::sync::Arc::clone(&cut);
    tokio::spawn(async move {
        let (from, _) = cable.accept().await.unwrap();
        let to = TcpStream::connect(far).await.unwrap();
        let ((mut from_read, mut from_write), (mut to_read, mut to_write)) =
            (from.into_split(), to.into_split());
        let there = carry(&mut from_read, &mut to_write, &is_cut);
        let back = carry(&mut to_read, &mut from_write, &is_cut);
        tokio::join!(there, back);
    });
    let shown = Credentials::node(&stage.world.authority, "n1");
    let node = Node::dial(near, stage.world.authority.certificate(), "n1", Some(&shown)).await.unwrap();
    assert!(stage.gateway.has_session("n1"));
    cut.store(true, std::sync::atomic::Ordering::Relaxed);
    eventually(SOON, async || !stage.gateway.has_session("n1")).await;
    drop(node);
}

async fn carry(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    cut: &std::sync::atomic::AtomicBool,
) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let swallowed = cut.load(std::sync::atomic::Ordering::Relaxed);
        if !swallowed && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_mistake_of_ours_costs_the_stream_that_it_hits() {
    let stage = Stage::with(|settings| {
        settings.strict_registration = Some(ReverseNames::by(SOON, |_| panic!("a mistake of ours")));
    })
    .await;
    stage.world.create_node("n2").await;
    let (mut node, mut bystander) = (stage.dial("n1").await, stage.dial("n2").await);
    node.beat().await;
    assert_eq!(node.end().await, Code::Internal);
    stage.heard(&bystander).await;
    assert!(bystander.is_open().await);
}

#[tokio::test]
async fn a_stream_needs_nothing_but_messages() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    // What no agent of today says, and one of tomorrow may: an empty message, unknown members, folded case.
    node.say_nothing().await;
    let mut newer = heartbeat("n1");
    newer["status"]["newer"] = json!({"deep": [1, 2]});
    newer["unheardOf"] = json!("x");
    node.say_of_itself(newer.to_string()).await;
    let stored = stage.until_node("n1", |node| node["status"]["ready"] == true).await;
    assert!(stored["status"].get("newer").is_none() && stored.get("unheardOf").is_none());
    assert!(node.is_open().await);
}
