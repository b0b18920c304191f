//! Certificate requests over HTTP: who decides, and that a node's request waits rather than is refused.

use std::time::Duration;

use horchestra_api::http::limits::{Class, Limit, Limits};
use horchestra_auth::Identity;
use horchestra_auth::pki::{CertificateRequest, Lifetime};
use horchestra_core::values::{decode_base64, encode_base64};
use horchestra_service::settings::ClusterSettings;
use horchestra_service::{Caller, RequestContext, WatchEvent, WatchRequest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::Protocol;
use crate::stack::{Setup, Stack, Who};

const REQUESTS: &str = "/apis/certificates.horchestra.io/v1/certificatesigningrequests";

fn request(name: &str, node: &str) -> Value {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, node);
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.horchestra.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": encode_base64(pem.as_bytes()), "nodeName": node, "groups": ["system:nodes"]},
    })
}

/// Signs what is approved, until the stack ends.
pub async fn sign(stack: &Stack) {
    let (service, store) = (stack.app.service().clone(), stack.store.clone());
    ClusterSettings::announce_signer(&store).await.unwrap();
    let lease = store.acquire_lease("node-csr", Uuid::new_v4(), Duration::from_secs(600)).await.unwrap();
    let caller = Caller::Loop { name: "node-csr".to_owned(), epoch: lease.unwrap().epoch };
    let context = RequestContext::new(caller);
    let kind = horchestra_core::kind::Kind::CertificateSigningRequest;
    let mut watch = service.watch(WatchRequest::of(kind)).await.unwrap();
    let pem = stack.pki.signer().pem().clone();
    tokio::spawn(async move {
        let authority = horchestra_auth::pki::Authority::from_pem(&pem.certificate, &pem.key).unwrap();
        while let Some(event) = watch.next().await {
            let (WatchEvent::Added(entry) | WatchEvent::Modified(entry)) = event else { continue };
            let object = entry.object().unwrap().into_value();
            let approved = object["status"]["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|it| it["type"] == "Approved" && it["status"] == "True"));
            if object["status"]["phase"] == "Pending" && approved {
                let pem = decode_base64(object["spec"]["request"].as_str().unwrap()).unwrap();
                let asked = CertificateRequest::from_pem(&pem).unwrap();
                let certificate = authority.sign(&asked, Lifetime::CLIENT).unwrap();
                service.issue_certificate(&context, &entry.key, entry.revision, &certificate).await.unwrap();
            }
        }
    });
}

#[tokio::test]
async fn an_operator_approves_and_denies_and_the_node_reads_what_came_of_it() {
    let stack = Stack::start().await;
    let (master, node) = (stack.master(), stack.client(Who::Node("node-1"), Protocol::Http1));
    for name in ["first", "second"] {
        let created = node.post(REQUESTS, &request(name, "node-1")).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert_eq!(created.json()["status"], json!({"phase": "Pending"}));
    }
    let first = node.get(&format!("{REQUESTS}/first")).await.json();
    assert_eq!(first["status"]["phase"], "Denied", "the second takes its place");

    let approve = format!("{REQUESTS}/second/approve");
    let refused = master.post(&approve, &json!({})).await;
    assert_eq!((refused.status, refused.reason().as_str()), (409, "Conflict"));
    assert!(refused.message().contains("nobody signs"), "{}", refused.message());
    for who in [Who::Node("node-1"), Who::Nobody] {
        for door in ["approve", "deny"] {
            let path = format!("{REQUESTS}/second/{door}");
            assert_eq!(stack.client(who, Protocol::Http1).post(&path, &json!({})).await.status, 403);
        }
    }

    sign(&stack).await;
    let approved = master.post(&approve, &json!({"message": "known"})).await.json_of(200).unwrap();
    assert_eq!(approved["status"]["phase"], "Approved", "{approved}");
    let read = node.get(&format!("{REQUESTS}/second")).await.json();
    let pem = decode_base64(read["status"]["certificate"].as_str().unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_slice(&pem).unwrap();
    let identity = Identity::from_verified(&certificate).unwrap().unwrap();
    assert_eq!(identity.node(), Some("node-1"));

    let third = node.post(REQUESTS, &request("third", "node-1")).await;
    assert_eq!(third.status, 201);
    let path = format!("{REQUESTS}/third");
    // The approval of the renewal stands for the next one.
    horchestra_testkit::eventually(crate::client::DEADLINE, async || {
        node.get(&path).await.json()["status"]["phase"] == "Approved"
    })
    .await;
    assert_eq!(node.post(REQUESTS, &request("fourth", "node-1")).await.status, 201);
    let denied = master.put(&format!("{REQUESTS}/fourth/deny"), &json!({"message": "enough"})).await;
    assert_eq!(denied.json_of(200).unwrap()["status"]["reason"], "denied by admin: enough");
    let odd = master.post(&format!("{REQUESTS}/fourth/deny"), &json!({"why": "enough"})).await;
    assert_eq!(odd.status, 400, "{odd:?}");
}

#[tokio::test]
async fn a_nodes_request_waits_for_its_turn_and_others_do_not() {
    let limit = Limit { server: 1, caller: 1 };
    let setup = Setup { limits: Limits { writes: limit, ..Limits::default() }, ..Setup::default() };
    let stack = Stack::with(setup).await;
    let node = stack.client(Who::Node("node-1"), Protocol::Http1);
    let busy = stack.app.in_flight().enter(Class::Write, "node-9", true).unwrap();
    let own =
        json!({"apiVersion": "horchestra.io/v1", "kind": "Node", "metadata": {"name": "node-1"}, "spec": {}});
    assert_eq!(node.post("/apis/horchestra.io/v1/nodes", &own).await.status, 429);
    let waiting = {
        let node = node.clone();
        tokio::spawn(async move { node.post(REQUESTS, &request("r", "node-1")).await })
    };
    horchestra_testkit::eventually(crate::client::DEADLINE, async || stack.app.parking().waiting() == 1)
        .await;
    assert!(!waiting.is_finished(), "it is parked, not answered");
    drop(busy);
    assert_eq!(waiting.await.unwrap().status, 201);
}
