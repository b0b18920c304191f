use horchestra_agent::dial::DialError;
use horchestra_agent::identity::Identity;
use horchestra_agent::scripted::{ScriptError, ScriptedNode};
use horchestra_proto::node::v1::LogCancel;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use tonic::{Code, Status};

use crate::gateway::{FakeGateway, SOON};
use crate::pki::Pki;

#[tokio::test]
async fn a_script_says_and_hears_exactly_what_the_test_wants() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let identity = pki.nodes().node("n1").expect("an identity");
    let mut node = ScriptedNode::connect(&gateway.controller, &identity).await.expect("connects");

    let mut session = gateway.session().await;
    assert_eq!((session.node.as_str(), session.peer_certificates), ("n1", 1));
    node.heartbeat().await.expect("open");
    let Some(Up::Status(status)) = session.recv().await else { panic!("a heartbeat comes first") };
    let status: serde_json::Value = serde_json::from_slice(&status.node).expect("JSON");
    assert_eq!(status["metadata"]["name"], "n1");

    session.send(Down::LogCancel(LogCancel { id: "1".into() })).await;
    session.push([]).await;
    assert!(node.desired(SOON).await.expect("a push").applications.is_empty());
    assert!(node.is_open());

    session.end(Some(Status::already_exists("taken"))).await;
    let end = node.recv(SOON).await;
    assert!(
        matches!(&end, Err(ScriptError::Ended(Some(status))) if status.code() == Code::AlreadyExists),
        "{end:?}"
    );
    assert!(!node.is_open());
}

#[tokio::test]
async fn a_script_can_leave_politely_or_not() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let identity = pki.nodes().node("n1").expect("an identity");

    let mut node = ScriptedNode::connect(&gateway.controller, &identity).await.expect("connects");
    let mut session = gateway.session().await;
    node.finish();
    assert!(session.recv().await.is_none());
    session.end(None).await;
    assert!(node.ended(SOON).await.expect("an end").is_none());

    let node = ScriptedNode::connect(&gateway.controller, &identity).await.expect("connects");
    let mut session = gateway.session().await;
    node.kill().await;
    assert!(session.recv().await.is_none());
}

#[tokio::test]
async fn no_certificate_and_foreign_authorities() {
    let pki = Pki::new();
    let gateway = FakeGateway::start(&pki).await;

    let nobody = Identity::anonymous(pki.ca.as_bytes()).expect("no certificate");
    let mut node = ScriptedNode::connect(&gateway.controller, &nobody).await.expect("TLS works");
    let status = node.ended(SOON).await.expect("an end").expect("a status");
    assert_eq!(status.code(), Code::Unauthenticated);

    // The server is not one that this node trusts.
    let other = Pki::new();
    let stranger = other.nodes().node("n1").expect("an identity");
    let refused = ScriptedNode::connect(&gateway.controller, &stranger).await;
    assert!(matches!(refused, Err(DialError::Connect { .. })));

    // The certificate has no name for this host.
    let mut elsewhere = gateway.controller.clone();
    elsewhere.host = "127.0.0.2".into();
    let identity = pki.nodes().node("n1").expect("an identity");
    assert!(ScriptedNode::connect(&elsewhere, &identity).await.is_err());
}

#[tokio::test]
async fn a_server_that_does_not_select_h2_is_refused() {
    let pki = Pki::new();
    let gateway = FakeGateway::start(&pki).await;
    let identity = pki.nodes().node("n1").expect("an identity").offering(&[]);
    let refused = ScriptedNode::connect(&gateway.controller, &identity).await;
    assert!(matches!(refused, Err(DialError::Protocol)));
}
