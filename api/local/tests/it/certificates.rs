//! Nodes get their next certificates from the workers, by themselves or with an operator's word.

use std::path::Path;
use std::time::Duration;

use horchestra_auth::Identity;
use horchestra_auth::identity::fingerprint;
use horchestra_auth::pki::{NewRequest, write_file};
use horchestra_core::values::{decode_base64, encode_base64};
use horchestra_testkit::{TempDir, eventually};
use hyper::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::client::Client;
use crate::stack::{RECOVERY, Stack, signal};

pub const REQUESTS: &str = "/apis/certificates.horchestra.io/v1/certificatesigningrequests";

/// How long an agent waits for its certificate.
const PATIENCE: Duration = Duration::from_secs(120);

fn request(name: &str, node: &str, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.horchestra.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": encode_base64(pem.as_bytes()), "nodeName": node, "groups": ["system:nodes"]},
    })
}

/// A client that shows this pair at a port of the stack.
pub fn client(stack: &Stack, port: &str, folder: &Path, certificate: &str, key: &str) -> Client {
    std::fs::copy(stack.home().join("pki/ca.crt"), folder.join("ca.crt")).unwrap();
    std::fs::write(folder.join("admin.crt"), certificate).unwrap();
    std::fs::write(folder.join("admin.key"), key).unwrap();
    Client::new(([127, 0, 0, 1], stack.port(port)).into(), folder)
}

/// What an agent does: makes a request with the certificate that it has, and looks every now and then what became of it.
/// `Err`: why it gave up.
pub async fn renew(agent: &Client, node: &str, name: &str) -> Result<(String, String), String> {
    let new = NewRequest::generate(node).unwrap();
    let object = request(name, node, &new.request);
    let (code, made) = agent.call(Method::POST, REQUESTS, Some(&object)).await.unwrap();
    assert_eq!(code, 201, "{made}");
    let path = format!("{REQUESTS}/{name}");
    eventually(PATIENCE, async || {
        let (_, read) = agent.call_patiently(Method::GET, &path, None).await;
        let status = read["status"].clone();
        match status["phase"].as_str()? {
            "Pending" => None,
            "Approved" => Some(
                status["certificate"]
                    .as_str()
                    .map(|text| {
                        (String::from_utf8(decode_base64(text).unwrap()).unwrap(), new.key.to_string())
                    })
                    .ok_or_else(|| "approved without a certificate".to_owned()),
            ),
            other => Some(Err(format!("{other}: {}", status["reason"]))),
        }
    })
    .await
}

fn leaf(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// The certificate of the session that the node has on a gateway which lives.
pub async fn session_certificate(stack: &Stack, node: &str) -> Option<String> {
    let mut database = sqlx::PgConnection::connect(&stack.database_url()).await.unwrap();
    sqlx::query_scalar("select certificate from inspect.node_sessions where node = $1 and live")
        .bind(node)
        .fetch_optional(&mut database)
        .await
        .unwrap()
}

async fn told(stack: &Stack, reason: &str) -> Option<Value> {
    let path = "/api/v1/namespaces/default/events";
    let (_, events) = stack.client("api").call_patiently(Method::GET, path, None).await;
    events["items"].as_array()?.iter().find(|event| event["reason"] == reason).cloned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_rotate_by_themselves_and_operators_approve_the_rest() {
    let stack = Stack::up(&[
        "--nodes",
        "1",
        "--worker-replicas",
        "2",
        "--feature-gates",
        "AutoNodeCertRotation=true",
    ]);
    let pki = stack.home().join("pki");
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).unwrap();
    let (old_folder, new_folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let old = client(&stack, "api", old_folder.path(), &read("node-node-1.crt"), &read("node-node-1.key"));
    let before = fingerprint(&leaf(&read("node-node-1.crt")));
    eventually(RECOVERY, async || session_certificate(&stack, "node-1").await.as_ref() == Some(&before))
        .await;

    // The node's agent renews, stores what it gets byte for byte, ends, and is started again.
    let (certificate, key) = renew(&old, "node-1", "node-1-00000001").await.unwrap();
    let identity = Identity::from_verified(&leaf(&certificate)).unwrap().unwrap();
    assert_eq!(identity.node(), Some("node-1"));
    write_file(&pki.join("node-node-1.key"), key.as_bytes(), 0o600).unwrap();
    write_file(&pki.join("node-node-1.crt"), certificate.as_bytes(), 0o644).unwrap();
    signal(stack.pid("agent-0"), "TERM");
    let after = fingerprint(&leaf(&certificate));
    assert_ne!(after, before);
    eventually(RECOVERY, async || session_certificate(&stack, "node-1").await.as_ref() == Some(&after)).await;
    let event = eventually(RECOVERY, async || told(&stack, "NodeCertificateRotated").await).await;
    assert_eq!(event["involvedObject"]["name"], "node-1", "{event}");

    // The new certificate renews in its turn, whichever worker leads.
    let new = client(&stack, "api", new_folder.path(), &certificate, &key);
    stack.kill_and_await_successor("workers-0").await;
    renew(&new, "node-1", "node-1-00000002").await.unwrap();
    stack.kill_and_await_successor("workers-1").await;
    renew(&new, "node-1", "node-1-00000003").await.unwrap();

    // A node that there is not yet: an operator asks, and approves; the answer has the certificate in it.
    let operator = stack.client("api");
    let asked = NewRequest::generate("node-9").unwrap();
    let (code, made) = operator
        .call(Method::POST, REQUESTS, Some(&request("new-node", "node-9", &asked.request)))
        .await
        .unwrap();
    assert_eq!(code, 201, "{made}");
    let path = format!("{REQUESTS}/new-node");
    let held = eventually(RECOVERY, async || {
        let (_, read) = operator.call_patiently(Method::GET, &path, None).await;
        read["status"]["reason"].as_str().map(|_| read["status"].clone())
    })
    .await;
    assert_eq!(held["phase"], "Pending");
    assert!(held["reason"].as_str().unwrap().contains("not a node"), "{held}");
    let approval = json!({"message": "rack 7"});
    let (code, approved) =
        operator.call(Method::POST, &format!("{path}/approve"), Some(&approval)).await.unwrap();
    assert_eq!((code, &approved["status"]["phase"]), (200, &json!("Approved")), "{approved}");
    let pem = decode_base64(approved["status"]["certificate"].as_str().unwrap()).unwrap();
    let folder = TempDir::new().unwrap();
    let fresh = client(&stack, "api", folder.path(), std::str::from_utf8(&pem).unwrap(), &asked.key);
    let (code, own) = fresh.call(Method::GET, &path, None).await.unwrap();
    assert_eq!(code, 200, "the new node is let in: {own}");

    // Nobody is another node.
    let stolen = NewRequest::generate("node-9").unwrap();
    let name = "node-1-00000004";
    let (code, _) =
        new.call(Method::POST, REQUESTS, Some(&request(name, "node-9", &stolen.request))).await.unwrap();
    assert_eq!(code, 201);
    let held = eventually(RECOVERY, async || {
        let (_, read) = operator.call_patiently(Method::GET, &format!("{REQUESTS}/{name}"), None).await;
        read["status"]["reason"].as_str().map(|_| read["status"].clone())
    })
    .await;
    assert_eq!(held["phase"], "Pending");
    assert!(held["reason"].as_str().unwrap().contains("node-9"), "{held}");
}
