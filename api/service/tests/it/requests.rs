use horchestra_auth::identity::NODES;
use horchestra_core::kind::{Key, Kind};
use serde_json::{Value, json};

use crate::support::*;

/// A request for `node-a`, from the manifest that we show people.
fn manifest() -> Value {
    let text = include_str!("../../../local/examples/kinds/14-certificate-signing-request.yaml");
    let document =
        horchestra_core::admit::read(horchestra_core::admit::Media::Yaml, text.as_bytes()).unwrap();
    document.object.into_value()
}

fn request() -> Key {
    Key::cluster(Kind::CertificateSigningRequest, "node-a-renewal")
}

#[tokio::test]
async fn a_request_says_who_made_it_and_is_undecided() {
    let world = World::new().await;
    let mut forged = manifest();
    forged["status"] = json!({"phase": "Approved", "certificate": "AAAA"});
    forged["metadata"]["annotations"] = json!({"certificates.horchestra.io/requester": "node-b", "note": "kept",
        "certificates.horchestra.io/requester-groups": "system:masters",
        "certificates.horchestra.io/requester-certificate": "ff"});
    let node = identity("node-a", &[NODES, "odd,system:masters"]);
    let written = world.create_as(&node, forged).await.unwrap();
    let stored = tree(&written.entry);
    assert_eq!(
        stored["metadata"]["annotations"],
        json!({"certificates.horchestra.io/requester": "node-a", "note": "kept",
            "certificates.horchestra.io/requester-groups": NODES,
            "certificates.horchestra.io/requester-certificate": "00".repeat(32)})
    );
    assert_eq!(stored["status"], json!({"phase": "Pending"}));
    assert!(written.warnings[0].contains("comma"), "{:?}", written.warnings);
    assert_eq!(written.entry.columns.phase.as_deref(), Some("Pending"));
}

#[tokio::test]
async fn a_request_stays_what_it_was() {
    let world = World::new().await;
    let created = tree(&world.create(manifest()).await.unwrap().entry);
    for (what, patch, code) in [
        ("another request", json!({"spec": {"request": "AAAA"}}), 403),
        ("another node", json!({"spec": {"nodeName": "node-b"}}), 403),
        ("no node", json!({"spec": {"nodeName": null}}), 403),
        ("other groups", json!({"spec": {"groups": ["system:masters"]}}), 200),
        (
            "a forged requester",
            json!({"metadata": {"annotations": {"certificates.horchestra.io/requester": "x"}}}),
            200,
        ),
        ("no annotations", json!({"metadata": {"annotations": null}}), 200),
        ("a decision", json!({"status": {"phase": "Approved"}}), 200),
    ] {
        match world.merge(&request(), patch).await {
            Ok(_) => assert_eq!(code, 200, "{what}"),
            Err(status) => assert_eq!(status.code(), code, "{what}: {status}"),
        }
    }
    let stored = world.get(&request()).await.unwrap();
    assert_eq!(stored["metadata"]["annotations"], created["metadata"]["annotations"]);
    assert_eq!(stored["status"], json!({"phase": "Pending"}));
    assert_eq!(stored["spec"]["groups"], json!(["system:masters"]));
    let loop_ = world.lease("node-csr").await;
    let mut denied = stored;
    denied["status"] = json!({"phase": "Denied", "reason": "no"});
    let body = horchestra_service::Body::Json(denied.to_string().into());
    let options = horchestra_service::WriteOptions::default();
    let written = world.service.update_status(&loop_, &request(), body, &options).await.unwrap();
    assert_eq!(tree(&written.entry)["status"]["phase"], "Denied");
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_the_step_that_failed() {
    let world = World::new().await;
    for (what, bytes, text) in [
        ("nothing", String::new(), "PEM"),
        ("another block", pem("CERTIFICATE", "AAAA"), "PEM"),
        ("no request inside", pem("CERTIFICATE REQUEST", "AAAA"), "PKCS #10"),
    ] {
        let mut object = manifest();
        object["spec"]["request"] = json!(horchestra_core::values::encode_base64(bytes.as_bytes()));
        let status = world.create(object).await.unwrap_err();
        assert_eq!((status.code(), status.details.causes[0].field.as_str()), (422, "spec.request"), "{what}");
        assert!(status.message.contains(text), "{what}: {status}");
    }
}

fn pem(kind: &str, body: &str) -> String {
    format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n")
}

#[tokio::test]
async fn rules_of_roles_are_judged_for_everybody() {
    let world = World::new().await;
    let role =
        |kind: &str, rule: Value| json!({"kind": kind, "metadata": {"name": "r"}, "spec": {"rules": [rule]}});
    let bad = role("Role", json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}));
    let status = world.create(bad).await.unwrap_err();
    assert_eq!(status.code(), 422);
    assert_eq!(status.details.causes[0].field, "spec.rules[0].nonResourceURLs");
    let good = role("ClusterRole", json!({"verbs": ["get"], "nonResourceURLs": ["*"]}));
    let first = world.create(good).await.unwrap().entry.revision;
    let second =
        world.create(role("Role", json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))).await;
    assert!(second.unwrap().entry.revision > first, "one sequence for all kinds");
}
