//! Who decides about certificate requests, and what a new one does to older ones.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::{Credential, NODES};
use horchestra_auth::pki::{Authority, CertificateRequest, Lifetime};
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_core::values::{decode_base64, encode_base64};
use horchestra_service::settings::ClusterSettings;
use horchestra_service::{
    At, Caller, DoorError, Order, RequestContext, Service, ServiceConfig, WatchEvent, WatchRequest,
    WriteOptions, Written,
};
use serde_json::{Value, json};

use crate::support::*;

fn key(name: &str) -> Key {
    Key::cluster(Kind::CertificateSigningRequest, name)
}

/// A request called `name` for `node`, with a key of its own.
fn request(name: &str, node: &str) -> Value {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, node);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": encode_base64(pem.as_bytes()), "nodeName": node, "groups": [NODES]},
    })
}

/// The agent of a node, with a certificate of this fingerprint.
fn agent(node: &str, fingerprint: &str) -> RequestContext {
    let RequestContext { caller: Caller::Http(client), .. } = identity(node, &[NODES]) else {
        unreachable!("an identity calls over HTTP")
    };
    let mut identity = Arc::unwrap_or_clone(client.identity);
    identity.credential = Credential::Certificate {
        fingerprint: fingerprint.to_owned(),
        not_after: "2100-01-01T00:00:00Z".parse().unwrap(),
    };
    RequestContext::new(Caller::http(Arc::new(identity), client.authorizer))
}

async fn through(world: &World, door: Door, name: &str, message: &str) -> Result<Written, Status> {
    let message = Some(message.to_owned()).filter(|message| !message.is_empty());
    let order = Order { message, ..Order::default() };
    world.service.act(&admin(), &key(name), door, &order, &WriteOptions::default()).await
}

async fn status(world: &World, name: &str) -> Value {
    world.get(&key(name)).await.unwrap()["status"].clone()
}

fn condition(status: &Value, kind: &str) -> Option<(String, String)> {
    let list = status["conditions"].as_array()?;
    let found = list.iter().find(|condition| condition["type"] == kind)?;
    let text = |member: &str| found[member].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn is(status: &Value, kind: &str, truth: &str, reason: &str) -> bool {
    condition(status, kind) == Some((truth.to_owned(), reason.to_owned()))
}

/// Signs what is approved, as the loop does that has the authority's key.
async fn sign_what_is_approved(world: &World, authority: Arc<Authority>) -> tokio::task::JoinHandle<()> {
    ClusterSettings::announce_signer(world.service.store()).await.unwrap();
    let (service, loop_) = (world.service.clone(), world.lease("node-csr").await);
    let mut watch = service.watch(WatchRequest::of(Kind::CertificateSigningRequest)).await.unwrap();
    tokio::spawn(async move {
        while let Some(event) = watch.next().await {
            let (WatchEvent::Added(entry) | WatchEvent::Modified(entry)) = event else { continue };
            let object = tree(&entry);
            if object["status"]["phase"] != "Pending"
                || condition(&object["status"], "Approved").is_none_or(|(status, _)| status != "True")
            {
                continue;
            }
            let pem = decode_base64(object["spec"]["request"].as_str().unwrap()).unwrap();
            let asked = CertificateRequest::from_pem(&pem).unwrap();
            let certificate = authority.sign(&asked, Lifetime::CLIENT).unwrap();
            issue(&service, &loop_, &entry.key, entry.revision, &certificate).await.unwrap();
        }
    })
}

async fn issue(
    service: &Service,
    loop_: &RequestContext,
    key: &Key,
    revision: i64,
    certificate: &str,
) -> Result<(), DoorError> {
    service.issue_certificate(loop_, key, revision, certificate).await.map(drop)
}

#[tokio::test]
async fn an_approval_comes_back_with_the_certificate() {
    let world = World::new().await;
    let authority = Arc::new(Authority::generate().unwrap());
    let signer = sign_what_is_approved(&world, Arc::clone(&authority)).await;
    world.create(request("new-node", "node-1")).await.unwrap();
    assert_eq!(status(&world, "new-node").await, json!({"phase": "Pending"}));

    let written = through(&world, Door::Approve, "new-node", "rack 7").await.unwrap();
    assert!(written.warnings.is_empty(), "{:?}", written.warnings);
    let signed = tree(&written.entry);
    assert_eq!(signed["status"]["phase"], "Approved");
    assert!(is(&signed["status"], "Approved", "True", "ApprovedByOperator"), "{signed}");
    assert!(is(&signed["status"], "Issued", "True", "Signed"), "{signed}");
    assert!(signed.to_string().contains("approved by admin: rack 7"), "{signed}");
    assert_eq!(condition(&signed["status"], "StandingApproval"), None, "it renews nothing");
    let pem = decode_base64(signed["status"]["certificate"].as_str().unwrap()).unwrap();
    assert!(pem.starts_with(b"-----BEGIN CERTIFICATE-----"));
    assert_eq!(written.entry.columns.phase.as_deref(), Some("Approved"));

    let again = through(&world, Door::Approve, "new-node", "").await.unwrap();
    assert_eq!(again.entry.revision, written.entry.revision, "asking for what is so changes nothing");
    let late = through(&world, Door::Deny, "new-node", "").await.unwrap_err();
    assert_eq!(late.code(), 409);
    signer.abort();
}

#[tokio::test]
async fn nobody_approves_where_nobody_signs_and_a_slow_signer_is_told_of() {
    let signed_within = Duration::from_millis(100);
    let world = World::with(ServiceConfig { signed_within, ..ServiceConfig::default() }).await;
    world.create(request("r", "node-1")).await.unwrap();
    let refused = through(&world, Door::Approve, "r", "").await.unwrap_err();
    assert_eq!(refused.code(), 409);
    assert!(refused.message.contains("horchestra-local pki sign"), "{refused}");
    assert_eq!(status(&world, "r").await, json!({"phase": "Pending"}), "nothing is recorded");

    ClusterSettings::announce_signer(world.service.store()).await.unwrap();
    let order = Order::default();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let judged = world.service.act(&admin(), &key("r"), Door::Approve, &order, &dry).await.unwrap();
    assert!(is(&tree(&judged.entry)["status"], "Approved", "True", "ApprovedByOperator"));
    assert_eq!(status(&world, "r").await, json!({"phase": "Pending"}), "a dry run stores nothing");

    let approved = through(&world, Door::Approve, "r", "").await.unwrap();
    assert!(approved.warnings[0].contains("not signed yet"), "{:?}", approved.warnings);
    let pending = status(&world, "r").await;
    assert_eq!(pending["phase"], "Pending", "never Approved without a certificate: {pending}");
    assert!(is(&pending, "Approved", "True", "ApprovedByOperator"));
}

#[tokio::test]
async fn what_cannot_be_approved_is_refused() {
    let world = World::new().await;
    ClusterSettings::announce_signer(world.service.store()).await.unwrap();
    world.create(request("r", "node-1")).await.unwrap();
    world.create(request("group", "system:masters")).await.unwrap();
    world.create(request("denied", "node-2")).await.unwrap();
    through(&world, Door::Deny, "denied", "").await.unwrap();
    let node = agent("node-1", "aa");
    let act = async |who: &RequestContext, name: &str, order: Order| {
        let options = WriteOptions::default();
        world.service.act(who, &key(name), Door::Approve, &order, &options).await.unwrap_err().code()
    };
    let uid = Order { uid: Some(uuid::Uuid::nil().to_string()), ..Order::default() };
    let stale = Order { resource_version: Some("1".to_owned()), ..Order::default() };
    let long = Order { message: Some("x".repeat(2000)), ..Order::default() };
    for (what, who, name, order, code) in [
        ("not there", &admin(), "nothing", Order::default(), 404),
        ("denied already", &admin(), "denied", Order::default(), 409),
        ("no node's name", &admin(), "group", Order::default(), 422),
        ("the node itself", &node, "r", Order::default(), 403),
        ("another object", &admin(), "r", uid, 409),
        ("a version that is over", &admin(), "denied", stale, 409),
        ("a very long reason", &admin(), "r", long, 400),
    ] {
        assert_eq!(act(who, name, order).await, code, "{what}");
    }
    let (node, order, options) =
        (Key::cluster(Kind::Node, "node-1"), Order::default(), WriteOptions::default());
    let other = world.service.act(&admin(), &node, Door::Approve, &order, &options).await;
    assert_eq!(other.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_denial_is_final_and_says_why() {
    let world = World::new().await;
    world.create(request("r", "node-1")).await.unwrap();
    through(&world, Door::Deny, "r", "who is this?").await.unwrap();
    let denied = status(&world, "r").await;
    assert_eq!(denied["phase"], "Denied");
    assert_eq!(denied["reason"], "denied by admin: who is this?");
    assert!(is(&denied, "Denied", "True", "DeniedByOperator"), "{denied}");
    let revision = world.get(&key("r")).await.unwrap()["metadata"]["resourceVersion"].clone();
    through(&world, Door::Deny, "r", "again").await.unwrap();
    assert_eq!(world.get(&key("r")).await.unwrap()["metadata"]["resourceVersion"], revision);
}

#[tokio::test]
async fn a_new_request_supersedes_what_its_maker_asked_before() {
    let world = World::new().await;
    let (one, two) = (agent("node-1", "aa"), agent("node-2", "bb"));
    world.create_as(&one, request("one-a", "node-1")).await.unwrap();
    world.create_as(&one, request("one-odd", "node-9")).await.unwrap();
    world.create_as(&two, request("two", "node-2")).await.unwrap();
    world.create(request("by-hand-1", "node-1")).await.unwrap();
    world.create(request("by-hand-2", "node-2")).await.unwrap();
    world.create_as(&one, request("one-b", "node-1")).await.unwrap();
    world.create(request("by-hand-3", "node-2")).await.unwrap();
    for (name, phase, by) in [
        ("one-a", "Denied", "one-odd"),
        ("one-odd", "Denied", "one-b"),
        ("one-b", "Pending", ""),
        ("two", "Pending", ""),
        ("by-hand-1", "Pending", ""),
        ("by-hand-2", "Denied", "by-hand-3"),
        ("by-hand-3", "Pending", ""),
    ] {
        let status = status(&world, name).await;
        assert_eq!(status["phase"], phase, "{name}: {status}");
        if phase == "Denied" {
            assert_eq!(status["reason"], format!("superseded by {by}"), "{name}");
            assert!(is(&status, "Denied", "True", "Superseded"), "{name}");
        }
    }
}

#[tokio::test]
async fn an_agent_leaves_one_request_open_however_many_it_makes() {
    let world = World::new().await;
    let node = agent("node-1", "aa");
    let all = (0..20).map(|number| world.create_as(&node, request(&format!("r{number}"), "node-1")));
    for created in futures::future::join_all(all).await {
        created.unwrap();
    }
    let mut open = 0;
    for number in 0..20 {
        open += usize::from(status(&world, &format!("r{number}")).await["phase"] == "Pending");
    }
    // Those that were made in one moment may not have seen each other; the next one sees them all.
    assert!(open >= 1);
    world.create_as(&node, request("last", "node-1")).await.unwrap();
    for number in 0..20 {
        assert_eq!(status(&world, &format!("r{number}")).await["phase"], "Denied");
    }
    assert_eq!(status(&world, "last").await["phase"], "Pending");
}

#[tokio::test]
async fn an_approved_renewal_stands_for_the_next_one_once() {
    let world = World::new().await;
    let authority = Arc::new(Authority::generate().unwrap());
    let signer = sign_what_is_approved(&world, Arc::clone(&authority)).await;
    let node = agent("node-1", "aa");
    world.create_as(&node, request("first", "node-1")).await.unwrap();
    through(&world, Door::Approve, "first", "").await.unwrap();
    assert!(is(&status(&world, "first").await, "StandingApproval", "True", "ApprovedByOperator"));

    // Neither for somebody else, nor for another certificate or name, nor made by hand.
    for (who, name, node) in [
        (agent("node-2", "aa"), "stranger", "node-2"),
        (agent("node-1", "cc"), "other-certificate", "node-1"),
        (agent("node-1", "aa"), "other-name", "node-3"),
        (admin(), "by-hand", "node-1"),
    ] {
        let created = tree(&world.create_as(&who, request(name, node)).await.unwrap().entry);
        assert_eq!(condition(&created["status"], "Approved"), None, "{name}");
    }
    let second = tree(&world.create_as(&node, request("second", "node-1")).await.unwrap().entry);
    assert!(is(&second["status"], "Approved", "True", "StandingApproval"), "{second}");
    assert!(is(&status(&world, "first").await, "StandingApproval", "False", "Used"));
    horchestra_testkit::eventually(DEADLINE, async || status(&world, "second").await["phase"] == "Approved")
        .await;
    assert_eq!(status(&world, "first").await["phase"], "Approved", "it stays what it was");

    let third = tree(&world.create_as(&node, request("third", "node-1")).await.unwrap().entry);
    assert_eq!(third["status"], json!({"phase": "Pending"}), "once is once");
    signer.abort();
}

#[tokio::test]
async fn a_standing_approval_ends_with_its_day_and_with_its_request() {
    let world = World::new().await;
    ClusterSettings::announce_signer(world.service.store()).await.unwrap();
    let node = agent("node-1", "aa");
    let loop_ = world.lease("node-csr").await;
    let standing = async |name: &str, since: &str| {
        let entry = world.create_as(&node, request(name, "node-1")).await.unwrap().entry;
        let mut object = tree(&entry);
        object["status"]["conditions"] = json!([{"type": "StandingApproval", "status": "True",
            "reason": "ApprovedByOperator", "message": "", "lastTransitionTime": since}]);
        object["status"]["phase"] = json!("Approved");
        let body = horchestra_service::Body::Json(object.to_string().into());
        world.service.update_status(&loop_, &key(name), body, &WriteOptions::default()).await.unwrap();
    };
    standing("old", "2020-01-01T00:00:00Z").await;
    let created = tree(&world.create_as(&node, request("late", "node-1")).await.unwrap().entry);
    assert_eq!(condition(&created["status"], "Approved"), None, "a day is over");
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    standing("fresh", &now).await;
    world.delete(&key("fresh")).await.unwrap();
    let created = tree(&world.create_as(&node, request("orphan", "node-1")).await.unwrap().entry);
    assert_eq!(condition(&created["status"], "Approved"), None, "deleting it withdraws it");
}

/// Two requests at once, through two processes: one of them is approved, the other waits.
#[tokio::test]
async fn a_standing_approval_is_used_by_one_of_two() {
    let world = World::new().await;
    ClusterSettings::announce_signer(world.service.store()).await.unwrap();
    let replica = world.replica().await;
    let loop_ = world.lease("node-csr").await;
    for round in 0..40 {
        // A node of its own for each round: of one, no more than so many requests are kept.
        let name = format!("node-{round}");
        let node = agent(&name, "aa");
        let entry = world.create_as(&node, request(&format!("base-{round}"), &name)).await.unwrap().entry;
        let mut object = tree(&entry);
        object["status"]["conditions"] = json!([{"type": "StandingApproval", "status": "True",
            "reason": "ApprovedByOperator", "message": "",
            "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}]);
        object["status"]["phase"] = json!("Approved");
        let body = horchestra_service::Body::Json(object.to_string().into());
        let options = WriteOptions::default();
        world.service.update_status(&loop_, &entry.key, body, &options).await.unwrap();
        let make = |service: &Service, which: String| {
            let (service, node, asked) = (service.clone(), node.clone(), request(&which, &name));
            async move {
                let body = horchestra_service::Body::Json(asked.to_string().into());
                let kind = Kind::CertificateSigningRequest;
                tree(&service.create(&node, kind, "", body, &WriteOptions::default()).await.unwrap().entry)
            }
        };
        let (a, b) =
            tokio::join!(make(&world.service, format!("a-{round}")), make(&replica, format!("b-{round}")));
        let mut approved = 0;
        for name in [format!("a-{round}"), format!("b-{round}")] {
            let status = status(&world, &name).await;
            approved += usize::from(status["phase"] == "Pending" && condition(&status, "Approved").is_some());
        }
        assert_eq!(approved, 1, "round {round}: {a} {b}");
    }
}

#[tokio::test]
async fn the_loop_judges_what_it_looked_at_and_nothing_that_is_decided() {
    let world = World::new().await;
    let loop_ = world.lease("node-csr").await;
    let created = world.create(request("r", "node-1")).await.unwrap().entry;
    let held = world.service.hold_certificate(&loop_, &key("r"), created.revision, "first").await.unwrap();
    assert_eq!(status(&world, "r").await, json!({"phase": "Pending", "reason": "first"}));
    let again = world.service.hold_certificate(&loop_, &key("r"), held.entry.revision, "second").await;
    assert!(!again.unwrap().changed, "the first reason stays");
    let old = issue(&world.service, &loop_, &key("r"), created.revision, "PEM").await;
    assert!(matches!(old, Err(DoorError::Changed)), "{old:?}");
    issue(&world.service, &loop_, &key("r"), held.entry.revision, "PEM").await.unwrap();
    let issued = world.get(&key("r")).await.unwrap();
    assert_eq!(issued["status"]["phase"], "Approved");
    assert_eq!(issued["status"].get("reason"), None, "it waits no more");
    let revision = issued["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let late = world.service.deny_certificate(&loop_, &key("r"), revision, "no").await;
    assert!(matches!(late, Err(DoorError::Changed)), "{late:?}");
    let failing = world.create(request("f", "node-3")).await.unwrap().entry;
    let held = world.service.hold_certificate(&loop_, &key("f"), failing.revision, "why").await.unwrap();
    let failed =
        world.service.fail_certificate(&loop_, &key("f"), held.entry.revision, "broken").await.unwrap();
    let told = status(&world, "f").await;
    assert_eq!((&told["phase"], &told["reason"]), (&json!("Pending"), &json!("broken")), "what counts now");
    assert!(is(&told, "Issued", "False", "SigningFailed"), "{told}");
    let again = world.service.fail_certificate(&loop_, &key("f"), failed.entry.revision, "worse").await;
    assert!(!again.unwrap().changed, "the first failure stays");
    issue(&world.service, &loop_, &key("f"), failed.entry.revision, "PEM").await.unwrap();
    let issued = status(&world, "f").await;
    assert!(is(&issued, "Issued", "True", "Signed") && issued.get("reason").is_none(), "{issued}");

    let other = world.create(request("s", "node-2")).await.unwrap().entry;
    world.service.deny_certificate(&loop_, &key("s"), other.revision, "unreadable").await.unwrap();
    assert_eq!(status(&world, "s").await["phase"], "Denied");
}

#[tokio::test]
async fn loops_let_requests_expire_as_they_saw_them_and_nothing_else() {
    let world = World::new().await;
    let loop_ = world.lease("node-csr").await;
    let mut requests = Vec::new();
    for number in 0..70 {
        requests.push(
            world.create(request(&format!("r{number}"), &format!("node-{number}"))).await.unwrap().entry,
        );
    }
    through(&world, Door::Deny, "r7", "").await.unwrap();
    let space = world.service.get(&Key::cluster(Kind::Namespace, "default"), At::Fresh).await.unwrap();
    for (who, requests) in [(&admin(), &requests[..1]), (&loop_, &[space][..])] {
        let refused = world.service.expire_certificate_requests(who, requests).await;
        assert!(matches!(refused, Err(DoorError::Refused(_))), "{refused:?}");
    }
    let refused = world.service.expire_events(&loop_, &requests[..1]).await;
    assert!(matches!(refused, Err(DoorError::Refused(_))), "each of a kind: {refused:?}");
    assert_eq!(world.service.expire_certificate_requests(&loop_, &requests).await.unwrap(), 69);
    assert_eq!(status(&world, "r7").await["phase"], "Denied", "it is another one by now");
    assert_eq!(world.service.expire_certificate_requests(&loop_, &requests).await.unwrap(), 0);
}
