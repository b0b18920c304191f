use std::collections::HashSet;
use std::time::Duration;

use horchestra_agent::fleet::Fleet;
use horchestra_proto::node::v1::node_message::Body as Up;
use tokio_util::sync::CancellationToken;

use crate::apps::{TestApp, quick};
use crate::gateway::FakeGateway;
use crate::pki::Pki;

#[tokio::test]
async fn every_node_of_a_fleet_is_a_node_of_its_own() {
    let pki = Pki::new();
    let mut gateway = FakeGateway::start(&pki).await;
    let issuer = pki.nodes();
    let names: HashSet<String> = (1..=20).map(|number| format!("sim-{number}")).collect();
    let identities: Vec<_> = names.iter().map(|name| issuer.node(name).expect("an identity")).collect();
    let fleet =
        Fleet::new(&gateway.controller, identities, &quick(), Duration::from_millis(200)).expect("a fleet");
    assert_eq!(fleet.len(), 20);
    let stop = CancellationToken::new();
    let running = tokio::spawn(fleet.run(stop.clone()));

    let mut sessions = Vec::new();
    for _ in 0..20 {
        let mut session = gateway.session().await;
        let mut app = TestApp::new("web").shell("exit 1");
        app.0["spec"]["placement"]["nodeName"] = session.node.clone().into();
        session.push([app.0]).await;
        // A command is not run, only played.
        session.phase("web", "Running").await;
        session.until(|up| matches!(up, Up::NodeUsage(_)).then_some(())).await;
        sessions.push(session);
    }
    let seen: HashSet<String> = sessions.iter().map(|session| session.node.clone()).collect();
    assert_eq!(seen, names);
    stop.cancel();
    running.await.expect("a clean end");
}
