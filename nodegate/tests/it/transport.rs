//! Who is let in, and what else may arrive at the port.

use std::time::Duration;

use horchestra_agent::identity::Identity;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_auth::pki::{Authority, Lifetime};
use horchestra_proto::node::v1::NodeStatus;
use horchestra_proto::node::v1::node_message::Body;
use horchestra_testkit::eventually;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Code;

use crate::world::{SOON, TestGateway, World, tls_client};

async fn outcome(gateway: &TestGateway, identity: &Identity) -> Option<Code> {
    let mut node = ScriptedNode::connect(&gateway.controller(), identity).await.unwrap();
    node.ended(SOON).await.unwrap().map(|status| status.code())
}

#[tokio::test]
async fn only_the_holder_of_a_nodes_certificate_gets_a_session() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    const NODES: &str = "system:nodes";
    for (name, groups, code) in [
        ("operator", ["dev"].as_slice(), Code::PermissionDenied),
        ("operator", &["system:masters"], Code::PermissionDenied),
        ("horchestra-nodegate", &["system:controllers"], Code::PermissionDenied),
        ("", &[NODES], Code::Unauthenticated),
        ("N1", &[NODES], Code::Unauthenticated),
        ("n1/x", &[NODES], Code::Unauthenticated),
        ("../n1", &[NODES], Code::Unauthenticated),
        ("n1.", &[NODES], Code::Unauthenticated),
    ] {
        let identity = world.identity_of(name, groups);
        assert_eq!(outcome(&gateway, &identity).await, Some(code), "{name:?} of {groups:?}");
    }
    let anonymous = Identity::anonymous(world.authority.pem().certificate.as_bytes()).unwrap();
    assert_eq!(outcome(&gateway, &anonymous).await, Some(Code::Unauthenticated));
    for (name, groups) in
        [("10.0.0.2", [NODES].as_slice()), ("n1.rack.example", &[NODES]), ("n2", &["dev", NODES])]
    {
        let identity = world.identity_of(name, groups);
        let node = ScriptedNode::connect(&gateway.controller(), &identity).await.unwrap();
        gateway.wait_for_session(name).await;
        assert!(node.is_open());
    }
}

#[tokio::test]
async fn a_certificate_of_a_foreign_authority_ends_the_handshake() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let foreign = Authority::generate().unwrap().node("n1", Lifetime::CLIENT).unwrap();
    let ca = &world.authority.pem().certificate;
    let identity =
        Identity::from_pem(foreign.certificate.as_bytes(), foreign.key.as_bytes(), ca.as_bytes()).unwrap();
    // The client learns of it with its first read, which may be after its side of the handshake.
    if let Ok(mut node) = ScriptedNode::connect(&gateway.controller(), &identity).await {
        let status = node.ended(SOON).await.unwrap().unwrap();
        assert!(!matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied), "{status}");
    }
    eventually(SOON, async || gateway.gateway.gate.metrics.handshakes_failed.get() > 0).await;
    assert!(!gateway.has_session("n1"));
}

#[tokio::test]
async fn a_removed_authority_cuts_the_sessions_that_it_let_in() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut old = world.join(&gateway, "old").await;
    let next = Authority::generate().unwrap();
    gateway.believe(&[&world.authority, &next]);
    let issued = next.node("new", Lifetime::CLIENT).unwrap();
    let ca = &world.authority.pem().certificate;
    let identity =
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca.as_bytes()).unwrap();
    let new = ScriptedNode::connect(&gateway.controller(), &identity).await.unwrap();
    gateway.wait_for_session("new").await;
    assert!(old.is_open() && gateway.has_session("old"));

    gateway.believe(&[&next]);
    let _ = old.ended(SOON).await.expect("the stream ends");
    eventually(SOON, async || !gateway.has_session("old")).await;
    assert!(new.is_open() && gateway.has_session("new"), "the other authority's node stays");
}

#[tokio::test]
async fn a_denied_certificate_is_cut_off_and_opens_no_new_stream() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut stolen = world.join(&gateway, "n1").await;
    let bystander = world.join(&gateway, "n2").await;
    // Certificates begin an hour before they are made.
    let hour = jiff::SignedDuration::from_hours(1);
    gateway.deny("n1", jiff::Timestamp::now() - hour - hour);
    assert!(stolen.is_open(), "it was made after that");
    gateway.deny("n1", jiff::Timestamp::now() - hour);
    let _ = stolen.ended(SOON).await.expect("the stream ends");
    eventually(SOON, async || !gateway.has_session("n1")).await;
    assert!(bystander.is_open());
    let failed = || gateway.gateway.gate.metrics.handshakes_failed.get();
    gateway.deny("n1", jiff::Timestamp::now());
    let before = failed();
    // The client learns of it with its first read, which may be after its side of the handshake.
    if let Ok(mut again) = ScriptedNode::connect(&gateway.controller(), &world.identity("n1")).await {
        let _ = again.ended(SOON).await.expect("it is not let in");
    }
    eventually(SOON, async || failed() > before).await;
    assert!(!gateway.has_session("n1"));
    gateway.deny("somebody else", jiff::Timestamp::now());
    assert!(world.join(&gateway, "n1").await.is_open(), "allowed again");
}

#[tokio::test]
async fn a_mistake_of_ours_costs_the_session_that_it_hits_and_no_other() {
    let world = World::new().await;
    let broken = |settings: &mut horchestra_nodegate::settings::Settings| {
        let names = horchestra_nodegate::strict::ReverseNames::by(SOON, |_| panic!("a mistake of ours"));
        settings.strict_registration = Some(names);
    };
    let gateway = world.gateway_with(broken).await;
    world.create_node("n2").await;
    let bystander = world.join(&gateway, "n2").await;
    let mut node = world.join(&gateway, "n1").await;
    node.heartbeat().await.unwrap();
    let status = node.ended(SOON).await.unwrap().unwrap();
    assert_eq!(status.code(), Code::Internal, "{status}");
    bystander.heartbeat().await.unwrap();
    eventually(SOON, async || world.node("n2").await["status"]["ready"] == true).await;
    assert!(bystander.is_open());
    eventually(SOON, async || world.operator.store().session_of("n1").await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_stream_does_not_outlive_its_certificate() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let short = world.authority.node("n1", Lifetime::of(Duration::from_secs(5)).unwrap()).unwrap();
    let ca = &world.authority.pem().certificate;
    let identity =
        Identity::from_pem(short.certificate.as_bytes(), short.key.as_bytes(), ca.as_bytes()).unwrap();
    let mut node = ScriptedNode::connect(&gateway.controller(), &identity).await.unwrap();
    gateway.wait_for_session("n1").await;
    let status = node.ended(SOON).await.unwrap().unwrap();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
}

#[tokio::test]
async fn a_message_over_the_limit_ends_its_own_stream_only() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let bystander = world.join(&gateway, "n2").await;
    let mut node = world.join(&gateway, "n1").await;
    let status = |size: usize| Body::Status(NodeStatus { node: vec![b' '; size].into() });
    node.send(status(3_900 << 10)).await.unwrap();
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    node.send(status(4_200 << 10)).await.unwrap();
    let end = node.ended(SOON).await.unwrap().unwrap();
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
    assert!(bystander.is_open());
}

/// Talks HTTP/1.1 to the gateway and returns all that comes back.
async fn http1(world: &World, gateway: &TestGateway, offers: &[&str]) -> String {
    let tcp = TcpStream::connect(gateway.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = TlsConnector::from(tls_client(world, None, offers)).connect(name, tcp).await.unwrap();
    tls.write_all(b"GET /apis HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The connection may be closed without a TLS goodbye.
    let _ = tls.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn clients_of_the_api_are_told_that_it_is_elsewhere() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    for offers in [[].as_slice(), &["http/1.1"]] {
        let answer = http1(&world, &gateway, offers).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("content-type: text/plain"), "{answer}");
    }
}

#[tokio::test]
async fn a_request_that_is_no_grpc_call_is_misdirected() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let connection = crate::logs::h2(&world, gateway.address, None).await;
    let request = http::Request::get("https://localhost/apis").body(tonic::body::Body::empty()).unwrap();
    let response = connection.clone().send(request).await;
    assert_eq!(response.status(), http::StatusCode::MISDIRECTED_REQUEST);
}

/// Forwards one connection to `target` until it is told to swallow everything, in both directions and without
/// closing anything: a cable that was cut.
async fn cuttable_line(
    target: std::net::SocketAddr,
) -> (std::net::SocketAddr, tokio::sync::watch::Sender<bool>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, is_cut) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(target).await.unwrap();
        let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
        for (mut from, mut to) in [(near_read, far_write), (far_read, near_write)] {
            let is_cut = is_cut.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut buffer).await {
                    if !*is_cut.borrow() && to.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test]
async fn a_peer_that_no_longer_answers_is_given_up() {
    let world = World::new().await;
    let quick = |settings: &mut horchestra_nodegate::settings::Settings| {
        settings.ping_every = Duration::from_millis(200);
        settings.ping_timeout = Duration::from_millis(300);
    };
    let gateway = world.gateway_with(quick).await;
    let (line, cut) = cuttable_line(gateway.address).await;
    let controller = horchestra_agent::controller::Controller::parse(&line.to_string()).unwrap();
    let node = ScriptedNode::connect(&controller, &world.identity("n1")).await.unwrap();
    gateway.wait_for_session("n1").await;
    cut.send_replace(true);
    eventually(SOON, async || !gateway.has_session("n1")).await;
    drop(node);
}

#[tokio::test]
async fn a_connection_without_a_call_is_closed_and_one_with_a_silent_session_is_not() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.idle_timeout = Duration::from_millis(400)).await;
    let node = world.join(&gateway, "n1").await;
    let idle = crate::logs::h2(&world, gateway.address, None).await;
    eventually(SOON, async || idle.is_closed()).await;
    assert!(node.is_open());
    assert!(gateway.has_session("n1"));
}
