//! What the loop signs, and what it does when it cannot.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::Identity;
use horchestra_auth::identity::NODES;
use horchestra_core::doors::Door;
use horchestra_runtime::{Backoff, Metrics};
use horchestra_service::settings::{ClusterSettings, Wanted};
use horchestra_service::{Caller, DoorError, Order, RequestContext, WatchEvent, WatchRequest, WriteOptions};
use horchestra_testkit::eventually;
use horchestra_workers::certificates::reconcile::Retry;
use horchestra_workers::certificates::signer::Signer;
use horchestra_workers::substrate::{LoopMetrics, PassError, Reconciler, Runner, RunnerOptions};
use rcgen::{
    BasicConstraints, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKeyData, SanType,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::support::{
    SOON, TestSigner, World, agent, away, key, object, operator, refuses, request, request_with, tampered,
    term,
};

/// The text of a condition's status and reason.
fn condition(status: &Value, kind: &str) -> Option<(String, String)> {
    let found = status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)?;
    let text = |member: &str| found[member].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn is(status: &Value, kind: &str, truth: &str, reason: &str) -> bool {
    condition(status, kind) == Some((truth.to_owned(), reason.to_owned()))
}

#[tokio::test]
async fn a_node_renews_its_own_certificate_in_one_change() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let mut watch = world
        .service
        .watch(WatchRequest::of(horchestra_core::kind::Kind::CertificateSigningRequest))
        .await
        .unwrap();
    let (pem, own_key) = request_with("node-1", |_| ());
    world.create(&agent("node-1", "aa"), "r", &pem).await;
    let report = world.pass(Some(&signer)).await;
    assert_eq!((report.writes, report.refused), (1, 0));

    let status = world.status("r").await;
    assert!(
        is(&status, "Approved", "True", "Renewal") && is(&status, "Issued", "True", "Signed"),
        "{status}"
    );
    let certificate = world.certificate("r").await;
    let identity = Identity::from_verified(&certificate).unwrap().unwrap();
    assert_eq!(identity.node(), Some("node-1"));
    let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
    assert_eq!(parsed.public_key().raw, own_key.subject_public_key_info());
    let (_, authority) = X509Certificate::from_der(signer.authority.certificate()).unwrap();
    parsed.verify_signature(Some(authority.public_key())).unwrap();

    // Whoever watches sees it open, then approved with the certificate, and nothing in between.
    let mut phases = Vec::new();
    while phases.len() < 2 {
        let event = tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap();
        if let WatchEvent::Added(entry) | WatchEvent::Modified(entry) = event {
            let status = entry.object().unwrap().into_value()["status"].clone();
            phases.push((status["phase"].as_str().unwrap().to_owned(), status["certificate"].is_string()));
        }
    }
    assert_eq!(phases, [("Pending".to_owned(), false), ("Approved".to_owned(), true)]);
    assert_eq!(world.pass(Some(&signer)).await.writes, 0, "and that is it");
    assert_eq!(signer.asked(), ["node-1"]);
}

/// A request that asks for the group of administrators.
#[tokio::test]
async fn a_request_for_other_groups_gets_the_group_of_nodes_alone() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let (pem, _) = request_with("node-1", |params| {
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    });
    world.create(&agent("node-1", "aa"), "r", &pem).await;
    world.pass(Some(&signer)).await;
    let certificate = world.certificate("r").await;
    let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
    let groups: Vec<&str> =
        parsed.subject().iter_organization().map(|group| group.as_str().unwrap()).collect();
    assert_eq!(groups, [NODES]);
}

/// A node that asks for the certificate of another one.
#[tokio::test]
async fn a_request_for_another_node_is_held_and_never_signed() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    world.create(&agent("node-1", "aa"), "r", &request("node-2")).await;
    assert_eq!(world.pass(Some(&signer)).await.writes, 1);
    let status = world.status("r").await;
    let reason = status["reason"].as_str().unwrap();
    assert_eq!(status["phase"], "Pending");
    assert!(reason.contains("node-1") && reason.contains("node-2"), "{reason}");
    assert_eq!(world.pass(Some(&signer)).await.writes, 0, "it is said once");
    assert!(signer.asked().is_empty());
}

/// A request with names, usages and powers of its own choice.
#[tokio::test]
async fn extensions_that_a_request_asks_for_are_not_copied() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let (pem, _) = request_with("node-1", |params| {
        params.subject_alt_names = vec![
            SanType::DnsName("api.example".try_into().unwrap()),
            SanType::IpAddress([192, 0, 2, 1].into()),
        ];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });
    world.create(&agent("node-1", "aa"), "r", &pem).await;
    world.pass(Some(&signer)).await;
    let certificate = world.certificate("r").await;
    let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
    assert!(parsed.subject_alternative_name().unwrap().is_none());
    let usage = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any && usage.other.is_empty());
    assert!(!parsed.is_ca());
    let usage = parsed.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && !usage.key_cert_sign());
}

/// A request whose signature does not fit, in a store that took it long ago.
#[tokio::test]
async fn a_tampered_request_is_denied_and_not_signed() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let mut stored = object("r", &tampered());
    stored["metadata"]["annotations"] = json!({
        "certificates.horchestra.io/requester": "node-2",
        "certificates.horchestra.io/requester-groups": "system:nodes",
    });
    world.plant(stored).await;
    assert_eq!(world.pass(Some(&signer)).await.writes, 1);
    let status = world.status("r").await;
    assert_eq!(status["phase"], "Denied");
    assert!(status["reason"].as_str().unwrap().contains("not signed with the key"), "{status}");
    assert!(is(&status, "Denied", "True", "Unusable"));
    assert!(signer.asked().is_empty());
    let told = eventually(SOON, async || world.told("CertificateDenied").await.pop()).await;
    assert_eq!(told.0, "CertificateSigningRequest/r");
}

/// Runs the loop until the token is dropped.
fn run(world: &World, signer: &Arc<TestSigner>) -> tokio_util::sync::DropGuard {
    let reconciler = world.reconciler(Some(Arc::clone(signer) as Arc<dyn Signer>));
    let options = RunnerOptions { campaign_every: Duration::from_millis(20), ..RunnerOptions::default() };
    let metrics = LoopMetrics::new(&Metrics::new("test", "0", None));
    let shutdown = CancellationToken::new();
    let runner = Runner::new(reconciler, world.service.store().clone(), options, metrics);
    tokio::spawn(runner.run(shutdown.clone()));
    shutdown.drop_guard()
}

#[tokio::test]
async fn an_operator_approves_and_the_certificate_comes_with_the_answer() {
    let (world, signer) = (World::new(false).await, TestSigner::new());
    world.service.store().release_lease(&world.term.lease).await.unwrap();
    let other = world.replica().await;
    let approve = async |name: &str| {
        let (order, options) = (Order::default(), WriteOptions::default());
        other.act(&operator(), &key(name), Door::Approve, &order, &options).await
    };
    world.create(&operator(), "new", &request("node-9")).await;
    assert_eq!(approve("new").await.unwrap_err().code(), 409, "nobody signs yet");

    let _running = run(&world, &signer);
    let held =
        async || world.status("new").await["reason"].as_str().is_some_and(|it| it.contains("not a node"));
    eventually(SOON, held).await;
    let approved = approve("new").await.unwrap();
    assert!(approved.warnings.is_empty(), "{:?}", approved.warnings);
    let status = approved.entry.object().unwrap().into_value()["status"].clone();
    assert_eq!(status["phase"], "Approved");
    assert!(status["certificate"].is_string() && status.get("reason").is_none(), "{status}");
    let told = eventually(SOON, async || world.told("CertificateIssued").await.pop()).await;
    assert_eq!(told.0, "CertificateSigningRequest/new");

    // An agent gives its first request up; the approval stands for the one that it makes next.
    let node = agent("node-1", "aa");
    world.create(&node, "first", &request("node-1")).await;
    approve("first").await.unwrap();
    world.create(&node, "second", &request("node-1")).await;
    eventually(SOON, async || world.status("second").await["phase"] == "Approved").await;
    assert!(is(&world.status("second").await, "Approved", "True", "StandingApproval"));
    world.create(&node, "third", &request("node-1")).await;
    eventually(SOON, async || world.status("third").await["reason"].is_string()).await;
    assert_eq!(world.status("third").await["phase"], "Pending", "once is once");
    assert_eq!(signer.asked(), ["node-9", "node-1", "node-1"]);
}

#[tokio::test]
async fn a_signer_that_refuses_is_told_of_once_and_asked_again() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    signer.fail(3, refuses);
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    let mut reconciler = world.reconciler(Some(Arc::clone(&signer) as Arc<dyn Signer>));
    let first = world.pass_of(&mut reconciler).await;
    assert_eq!(first.writes, 1);
    assert!(first.again_in.is_some(), "it comes back by itself");
    let failed = world.status("r").await;
    assert_eq!(failed["phase"], "Pending");
    assert!(failed["reason"].as_str().unwrap().contains("refuses"), "{failed}");
    assert!(is(&failed, "Issued", "False", "SigningFailed"));
    for attempts in 2..=3 {
        eventually(SOON, async || {
            assert_eq!(world.pass_of(&mut reconciler).await.writes, 0, "it is said once");
            signer.asked().len() == attempts
        })
        .await;
        assert_eq!(world.status("r").await, failed);
    }
    eventually(SOON, async || world.pass_of(&mut reconciler).await.writes == 1).await;
    let signed = world.status("r").await;
    assert!(is(&signed, "Issued", "True", "Signed") && signed.get("reason").is_none(), "{signed}");
    assert_eq!(signer.asked().len(), 4);
    let told = eventually(SOON, async || world.told("SigningFailed").await.pop()).await;
    assert_eq!(told.0, "CertificateSigningRequest/r");
}

#[tokio::test]
async fn a_request_that_fails_is_left_alone_for_a_while_unless_somebody_changes_it() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    signer.fail(100, refuses);
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    world.create(&agent("node-2", "bb"), "s", &request("node-2")).await;
    let hour = Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600));
    let retry = Retry { request: hour.clone(), signer: hour };
    let mut reconciler = world.reconciler(Some(Arc::clone(&signer) as Arc<dyn Signer>)).with_retry(retry);
    for _ in 0..3 {
        world.pass_of(&mut reconciler).await;
    }
    assert_eq!(signer.asked().len(), 2, "once each");
    // An operator who approves is not kept waiting by failures of before.
    signer.recover();
    let (order, options, who, key) = (Order::default(), WriteOptions::default(), operator(), key("r"));
    let approving = world.service.act(&who, &key, Door::Approve, &order, &options);
    let (approved, ()) = tokio::join!(approving, async {
        eventually(SOON, async || {
            world.pass_of(&mut reconciler).await;
            signer.asked().len() == 3
        })
        .await;
    });
    assert!(approved.unwrap().warnings.is_empty());
    assert_eq!(signer.asked()[2], "node-1");
    assert_eq!(world.status("s").await["phase"], "Pending", "its time has not come");
}

#[tokio::test]
async fn a_signer_that_is_away_is_asked_by_few() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    signer.fail(1000, away);
    for number in 0..50 {
        let node = format!("node-{number}");
        world.create(&agent(&node, "aa"), &node, &request(&node)).await;
    }
    let hour = Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600));
    let quick = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    let signer_of = || Some(Arc::clone(&signer) as Arc<dyn Signer>);
    let mut reconciler =
        world.reconciler(signer_of()).with_retry(Retry { request: quick.clone(), signer: hour });
    for _ in 0..3 {
        assert!(world.pass_of(&mut reconciler).await.again_in.is_some());
    }
    assert_eq!(signer.asked().len(), 1, "one has found out for all");
    assert!(world.status("node-7").await.get("reason").is_none(), "nothing was found wrong with the others");

    signer.recover();
    let mut recovered =
        world.reconciler(signer_of()).with_retry(Retry { request: quick.clone(), signer: quick });
    eventually(SOON, async || {
        world.pass_of(&mut recovered).await;
        signer.asked().len() == 51
    })
    .await;
    for number in 0..50 {
        assert_eq!(world.status(&format!("node-{number}")).await["phase"], "Approved");
    }
}

#[tokio::test]
async fn who_no_longer_leads_signs_nothing() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    world.create(&agent("node-1", "aa"), "own", &request("node-1")).await;
    world.create(&operator(), "held", &request("node-2")).await;
    world.plant(object("bad", "hello")).await;
    let mut aged = object("aged", &request("node-3"));
    aged["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    world.plant(aged).await;
    let before: Vec<Option<Value>> = all(&world).await;
    world.service.store().release_lease(&world.term.lease).await.unwrap();
    let successor = term(world.service.store()).await;
    assert!(successor.lease.epoch > world.term.lease.epoch);
    world.service.store().fresh().await.unwrap();
    let mut deposed = world.reconciler(Some(Arc::clone(&signer) as Arc<dyn Signer>));
    assert!(matches!(deposed.pass(&world.term).await, Err(PassError::Deposed)));
    assert_eq!(all(&world).await, before);
    // And each of its writes alone.
    let context = RequestContext::new(world.term.caller());
    assert!(matches!(context.caller, Caller::Loop { .. }));
    let entry = world.service.store().snapshot().get(&key("own")).unwrap();
    let (service, revision) = (&world.service, entry.revision);
    for (what, outcome) in [
        ("issue", service.issue_certificate(&context, &key("own"), revision, "PEM").await),
        ("deny", service.deny_certificate(&context, &key("own"), revision, "no").await),
        ("hold", service.hold_certificate(&context, &key("own"), revision, "why").await),
        ("fail", service.fail_certificate(&context, &key("own"), revision, "why").await),
    ] {
        assert!(matches!(outcome, Err(DoorError::Fenced)), "{what}: {outcome:?}");
    }
    let gone = service.expire_certificate_requests(&context, &[entry]).await;
    assert!(matches!(gone, Err(DoorError::Fenced)), "{gone:?}");
    assert_eq!(all(&world).await, before);
}

async fn all(world: &World) -> Vec<Option<Value>> {
    let mut all = Vec::new();
    for name in ["own", "held", "bad", "aged"] {
        all.push(world.get(name).await);
    }
    all
}

#[tokio::test]
async fn an_operator_who_denies_meanwhile_wins_as_a_whole() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    let entry = world.service.store().fresh().await.unwrap().get(&key("r")).unwrap();
    let (order, options) = (Order::default(), WriteOptions::default());
    world.service.act(&operator(), &key("r"), Door::Deny, &order, &options).await.unwrap();
    let context = RequestContext::new(world.term.caller());
    let late = world.service.issue_certificate(&context, &key("r"), entry.revision, "PEM").await;
    assert!(matches!(late, Err(DoorError::Changed)), "{late:?}");
    let status = world.status("r").await;
    assert_eq!((&status["phase"], status.get("certificate")), (&json!("Denied"), None));
    assert_eq!(world.pass(Some(&signer)).await.writes, 0);
    assert!(signer.asked().is_empty());
}

#[tokio::test]
async fn the_leader_says_whether_it_signs() {
    let (world, signer) = (World::new(true).await, TestSigner::new());
    let signs = async || {
        let store = world.service.store();
        ClusterSettings::agree(store, &Wanted::default()).await.unwrap().certificate_signer
    };
    world.pass(Some(&signer)).await;
    assert!(signs().await);
    world.pass(None).await;
    assert!(!signs().await);
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    world.pass(None).await;
    let held = world.status("r").await;
    assert_eq!(held["phase"], "Pending", "never approved without a certificate: {held}");
    assert!(held["reason"].as_str().unwrap().contains("--cluster-ca-key"), "{held}");
    world.pass(Some(&signer)).await;
    assert!(signs().await);
    assert_eq!(world.status("r").await["phase"], "Approved", "it was looked at again");
}
