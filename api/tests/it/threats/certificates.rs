//! Getting a certificate, or somebody else's name, by way of a request for one.

use horchestra_auth::Identity;
use horchestra_auth::identity::{AUTHENTICATED, NODES};
use horchestra_auth::pki::Issued;
use horchestra_core::values::{decode_base64, encode_base64};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::{CORE, Fleet, apply, refused};
use crate::certificates::sign;
use crate::client::{Client, Protocol};
use crate::rbac::rule;
use crate::stack::Who;

const REQUESTS: &str = "/apis/certificates.horchestra.io/v1/certificatesigningrequests";
const REQUESTER: &str = "certificates.horchestra.io/requester";

/// A request for this name and group, as it is signed.
fn der(key: &KeyPair, name: &str, group: Option<&str>) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.serialize_request(key).unwrap().der().to_vec()
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = encode_base64(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn object(name: &str, node: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.horchestra.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": encode_base64(pem.as_bytes()), "nodeName": node, "groups": [NODES]},
    })
}

/// A request as the agent of this node makes it.
fn request(name: &str, node: &str) -> Value {
    let key = KeyPair::generate().unwrap();
    object(name, node, &pem("CERTIFICATE REQUEST", &der(&key, node, None)))
}

/// Writes `change` into the stored object in every way that there is, and says how each was answered.
async fn rewrite(client: &Client, name: &str, change: &Value) -> Vec<(&'static str, crate::client::Reply)> {
    let path = format!("{REQUESTS}/{name}");
    let mut replies = vec![("a merge patch", client.merge(&path, change).await)];
    let mut operations = Vec::new();
    let mut whole = client.get(&path).await.json();
    for (member, below) in change.as_object().unwrap() {
        for (field, value) in below.as_object().unwrap() {
            operations.push(json!({"op": "add", "path": format!("/{member}/{field}"), "value": value}));
            whole[member][field] = value.clone();
        }
    }
    replies.push(("a JSON patch", client.json_patch(&path, &json!(operations)).await));
    replies.push(("a replacement", client.put(&path, &whole).await));
    let mut applied = json!({"apiVersion": whole["apiVersion"], "kind": whole["kind"],
        "metadata": {"name": name}, "spec": whole["spec"]});
    for (member, below) in change.as_object().unwrap() {
        for (field, value) in below.as_object().unwrap() {
            applied[member][field] = value.clone();
        }
    }
    replies.push(("an apply", apply(client, &path, &applied).await));
    replies
}

#[tokio::test]
async fn who_asks_for_the_administrators_group_gets_a_nodes_certificate() {
    let fleet = Fleet::start().await;
    sign(&fleet.stack).await;
    let (master, node) = (fleet.master(), fleet.client(Who::Node("n1")).await);
    let key = KeyPair::generate().unwrap();
    let greedy = pem("CERTIFICATE REQUEST", &der(&key, "n1", Some("system:masters")));
    let mut asked = object("greedy", "n1", &greedy);
    asked["spec"]["groups"] = json!(["system:masters", "system:controllers"]);
    let created = node.post(REQUESTS, &asked).await;
    assert_eq!(created.status, 201, "what is asked for is not looked at: {created:?}");
    let approved = master.post(&format!("{REQUESTS}/greedy/approve"), &json!({})).await;
    let approved = approved.json_of(200).unwrap();
    let certificate = decode_base64(approved["status"]["certificate"].as_str().unwrap()).unwrap();
    let leaf = CertificateDer::from_pem_slice(&certificate).unwrap();
    let identity = Identity::from_verified(&leaf).unwrap().unwrap();
    assert_eq!(identity.name, "n1");
    assert_eq!(identity.groups, [NODES, AUTHENTICATED]);
    let issued = Issued { certificate: String::from_utf8(certificate).unwrap(), key: key.serialize_pem() };
    let holder = fleet.holder(&issued, Protocol::Http1);
    assert_eq!(holder.get(REQUESTS).await.status, 200, "it is good for what nodes may do");
    refused(&holder.get(&format!("{CORE}/nodes")).await, "User \"n1\" cannot list resource \"nodes\"");
}

#[tokio::test]
async fn who_asked_is_the_servers_word() {
    let fleet = Fleet::start().await;
    let annotations = |object: &Value| -> Vec<(String, Value)> {
        let all = object["metadata"]["annotations"].as_object().unwrap().clone();
        all.into_iter().filter(|(name, _)| name.starts_with(REQUESTER)).collect()
    };
    let forged = json!({
        REQUESTER: "n2",
        format!("{REQUESTER}-groups"): "system:masters",
        format!("{REQUESTER}-certificate"): "ff",
    });
    let node = fleet.client(Who::Node("n1")).await;
    let mut asked = request("r", "n1");
    asked["metadata"]["annotations"] = forged.clone();
    let created = node.post(REQUESTS, &asked).await.json_of(201).unwrap();
    let told = annotations(&created);
    assert_eq!(told.len(), 3, "{created}");
    assert_eq!(created["metadata"]["annotations"][REQUESTER], "n1");
    assert_eq!(
        created["metadata"]["annotations"][format!("{REQUESTER}-groups")],
        format!("{NODES},{AUTHENTICATED}")
    );
    let fingerprint = created["metadata"]["annotations"][format!("{REQUESTER}-certificate")].clone();
    assert_eq!(fingerprint.as_str().unwrap().len(), 64, "{fingerprint}");

    // Whoever may change requests, an administrator included, changes nothing about that.
    let resources = ["certificatesigningrequests"];
    let verbs = ["get", "update", "patch"];
    fleet.rules.cluster_role("editor", json!([rule("certificates.horchestra.io", &resources, &verbs)])).await;
    fleet.rules.bind_everywhere("edith", "editor").await;
    for who in [Who::User("edith", "people"), Who::Master] {
        let client = fleet.client(who).await;
        for change in [json!({"metadata": {"annotations": forged}}), json!({"metadata": {"annotations": {}}})]
        {
            for (how, reply) in rewrite(&client, "r", &change).await {
                assert_eq!(reply.status, 200, "{who:?} {how}: {reply:?}");
                assert_eq!(annotations(&reply.json()), told, "{who:?} {how}");
            }
        }
        let none = json!({"metadata": {"annotations": null}});
        let merged = client.merge(&format!("{REQUESTS}/r"), &none).await.json_of(200).unwrap();
        assert_eq!(annotations(&merged), told, "{who:?}");
    }
}

#[tokio::test]
async fn nobody_decides_about_a_request_by_writing_it() {
    let fleet = Fleet::start().await;
    let (node, master) = (fleet.client(Who::Node("n1")).await, fleet.master());
    let decided = json!({"phase": "Approved", "certificate": "AAAA",
        "conditions": [{"type": "Approved", "status": "True", "reason": "Me", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let pending = json!({"phase": "Pending"});
    let mut asked = request("r", "n1");
    asked["status"] = decided.clone();
    assert_eq!(node.post(REQUESTS, &asked).await.json_of(201).unwrap()["status"], pending);
    let path = format!("{REQUESTS}/r");
    for (how, reply) in rewrite(&master, "r", &json!({"status": decided})).await {
        assert!(matches!(reply.status, 200 | 400 | 422), "{how}: {reply:?}");
        assert_eq!(master.get(&path).await.json()["status"], pending, "{how}");
    }
    let mut whole = master.get(&path).await.json();
    whole["status"] = decided.clone();
    let status = format!("{path}/status");
    assert_eq!(master.put(&status, &whole).await.status, 405);
    assert_eq!(master.merge(&status, &json!({"status": decided})).await.status, 405);
    assert_eq!(apply(&master, &status, &whole).await.status, 405);
    // The doors are the one way, and no node's certificate opens them, whatever was granted to it.
    let resources = ["certificatesigningrequests/approve", "certificatesigningrequests/deny"];
    let verbs = ["create", "update"];
    fleet
        .rules
        .cluster_role("approver", json!([rule("certificates.horchestra.io", &resources, &verbs)]))
        .await;
    fleet.rules.bind_everywhere("n1", "approver").await;
    for door in ["approve", "deny"] {
        let reply = node.post(&format!("{path}/{door}"), &json!({})).await;
        refused(&reply, &format!("a node's certificate does not open the door \"{door}\""));
    }
    assert_eq!(master.get(&path).await.json()["status"], pending);
}

#[tokio::test]
async fn a_request_is_not_exchanged_for_another_one() {
    let fleet = Fleet::start().await;
    sign(&fleet.stack).await;
    let (node, master) = (fleet.client(Who::Node("n1")).await, fleet.master());
    assert_eq!(node.post(REQUESTS, &request("r", "n1")).await.status, 201);
    let path = format!("{REQUESTS}/r");
    let other = request("r", "n2")["spec"]["request"].clone();
    let before = master.get(&path).await.json()["spec"].clone();
    let attempts = async |when: &str| {
        for (field, value) in [("request", other.clone()), ("nodeName", json!("n2"))] {
            for (how, reply) in rewrite(&master, "r", &json!({"spec": {field: value}})).await {
                assert_eq!(reply.status, 403, "{when}, {how} of {field}: {reply:?}");
                assert!(reply.message().contains(&format!("spec.{field} cannot be changed")), "{reply:?}");
            }
        }
        assert_eq!(master.get(&path).await.json()["spec"], before, "{when}");
    };
    attempts("undecided").await;
    let approved = master.post(&format!("{path}/approve"), &json!({})).await.json_of(200).unwrap();
    assert_eq!(approved["status"]["phase"], "Approved");
    attempts("approved").await;
    // Neither does an earlier version of another request of that name come back.
    assert_eq!(master.delete(&path).await.status, 200);
    assert_eq!(fleet.client(Who::Node("n2")).await.post(REQUESTS, &request("r", "n2")).await.status, 201);
    let rolled = master.post(&format!("{path}/rollback"), &json!({"revision": 1})).await;
    assert!(rolled.status >= 400, "{rolled:?}");
    assert_eq!(master.get(&path).await.json()["metadata"]["annotations"][REQUESTER], "n2");
}

#[tokio::test]
async fn a_request_that_is_not_signed_with_its_key_is_not_stored() {
    let fleet = Fleet::start().await;
    let node = fleet.client(Who::Node("n1")).await;
    let key = KeyPair::generate().unwrap();
    let good = der(&key, "n1", None);
    let changed = |from: &[u8], to: &[u8]| {
        let at = good.windows(from.len()).position(|part| part == from).unwrap();
        let mut bytes = good.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    let other = der(&KeyPair::generate().unwrap(), "n1", None);
    let mut signature = good.clone();
    *signature.last_mut().unwrap() ^= 1;
    // The key of one request under the signature of another.
    let point = |der: &[u8]| der.windows(3).position(|part| part == [0x42, 0x00, 0x04]).unwrap() + 3;
    let mut swapped = good.clone();
    swapped[point(&good)..point(&good) + 64].copy_from_slice(&other[point(&other)..point(&other) + 64]);
    let label = "CERTIFICATE REQUEST";
    for (what, text, words) in [
        ("another name", pem(label, &changed(b"n1", b"n2")), "is not signed"),
        ("another key", pem(label, &swapped), "is not signed"),
        ("another signature", pem(label, &signature), ""),
        ("more than a request", pem(label, &[&good[..], b"x"].concat()), "holds no PKCS #10 request"),
        ("half a request", pem(label, &good[..good.len() / 2]), "holds no PKCS #10 request"),
        ("another block", pem("NEW CERTIFICATE REQUEST", &good), "is not PEM"),
        ("a certificate", fleet.stack.pki.signer().pem().certificate.clone(), "is not PEM"),
        ("no PEM", "n1".to_owned(), "is not PEM"),
        ("nothing", String::new(), ""),
        ("nobody's name", pem(label, &der(&key, "", None)), "names nobody"),
    ] {
        let reply = node.post(REQUESTS, &object("r", "n1", &text)).await;
        assert_eq!((reply.status, reply.reason().as_str()), (422, "Invalid"), "{what}: {reply:?}");
        assert_eq!(reply.json()["details"]["causes"][0]["field"], "spec.request", "{what}: {reply:?}");
        assert!(reply.message().contains(words), "{what}: {}", reply.message());
        assert_eq!(fleet.master().get(&format!("{REQUESTS}/r")).await.status, 404, "{what}");
    }
    assert_eq!(node.post(REQUESTS, &object("r", "n1", &pem(label, &good))).await.status, 201);
}

#[tokio::test]
async fn a_requester_heaps_up_a_bounded_number_of_requests() {
    let fleet = Fleet::start().await;
    let node = fleet.client(Who::Node("n1")).await;
    let asked = request("r", "n1");
    let named = |name: &str| {
        let mut asked = asked.clone();
        asked["metadata"]["name"] = json!(name);
        asked
    };
    // Each gives up the one before, which stays as one that is denied.
    let mut stored = 0;
    let refusal = loop {
        let reply = node.post(REQUESTS, &named(&format!("r-{stored}"))).await;
        if reply.status != 201 {
            break reply;
        }
        stored += 1;
        assert!(stored <= 100, "it is never refused");
    };
    assert_eq!(stored, 100, "{refusal:?}");
    refused(&refusal, "\"n1\" has 100 certificate requests here already, and no more than 100 are kept");
    let dry = node.post(&format!("{REQUESTS}?dryRun=All"), &named("dry")).await;
    refused(&dry, "delete some, or wait until they are cleaned up");
    // It is nobody else's loss, for the same name neither, and operators are not held to it.
    let resources = ["certificatesigningrequests"];
    let asking = json!([rule("certificates.horchestra.io", &resources, &["create"])]);
    fleet.rules.cluster_role("asker", asking).await;
    fleet.rules.bind_everywhere("ada", "asker").await;
    let (master, ada) = (fleet.master(), fleet.client(Who::User("ada", "people")).await);
    for (client, name) in [(&ada, "of-ada"), (&master, "of-the-operator")] {
        assert_eq!(client.post(REQUESTS, &named(name)).await.status, 201, "{name}");
    }
    let other = fleet.client(Who::Node("n2")).await;
    assert_eq!(other.post(REQUESTS, &request("other", "n2")).await.status, 201);
    // One less is room for one more.
    assert_eq!(master.delete(&format!("{REQUESTS}/r-7")).await.status, 200);
    assert_eq!(node.post(REQUESTS, &named("again")).await.status, 201);
    refused(&node.post(REQUESTS, &named("more")).await, "no more than 100 are kept");
}
