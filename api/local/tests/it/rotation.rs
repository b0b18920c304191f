//! Certificates, authorities and signing keys change under a running stack, and nobody but the holders of what was
//! withdrawn notices.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use horchestra_auth::identity::MASTERS;
use horchestra_auth::pki::{Authority, HostName, Issued, Lifetime, Process, write_file};
use horchestra_auth::tokens::{API_AUDIENCE, DEFAULT_ISSUER, Issuer, KeyFiles};
use horchestra_testkit::{TempDir, eventually};
use http_body_util::BodyExt;
use hyper::Method;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;

use crate::client::{APPLICATIONS, Client};
use crate::stack::{RECOVERY, Stack};

/// What the load uses at the moment.
struct Credentials {
    client: Client,
    token: String,
}

/// A folder with what a client of its own needs: `ca.crt`, `admin.crt` and `admin.key`.
pub fn client_folder(authorities: &str, admin: &Issued) -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("ca.crt"), authorities).unwrap();
    std::fs::write(folder.path().join("admin.crt"), &admin.certificate).unwrap();
    std::fs::write(folder.path().join("admin.key"), &admin.key).unwrap();
    folder
}

fn replace(folder: &Path, name: &str, issued: &Issued) {
    // In the order that leaves readers with a pair that does not fit for a moment.
    write_file(&folder.join(format!("{name}.key")), issued.key.as_bytes(), 0o600).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    write_file(&folder.join(format!("{name}.crt")), issued.certificate.as_bytes(), 0o644).unwrap();
}

fn token(keys: PathBuf) -> String {
    let issuer = Issuer::load(DEFAULT_ISSUER, KeyFiles::new(keys)).unwrap();
    issuer.mint("default", "web", "an-uid", API_AUDIENCE, Timestamp::now()).unwrap().token
}

async fn code(client: &Client, token: Option<&str>) -> Option<u16> {
    let path = if token.is_some() { "/version" } else { APPLICATIONS };
    let answer = client.send_as(Method::GET, path, None, token).await.ok()?;
    let code = answer.status().as_u16();
    answer.into_body().collect().await.ok()?;
    Some(code)
}

/// Reads, writes and token requests in turn, each over a connection of its own. Answers how many there were.
async fn load(
    credentials: Arc<Mutex<Credentials>>,
    bare: Client,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
) -> usize {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let (client, token) = {
            let now = credentials.lock();
            (now.client.clone(), now.token.clone())
        };
        assert_eq!(code(&client, None).await, Some(200), "a read after {done} requests");
        let name = format!("load-{done}");
        let object = json!({
            "apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": name},
            "spec": {"image": "registry.example/demo:1"},
        });
        let (created, body) = client.call(Method::POST, APPLICATIONS, Some(&object)).await.unwrap();
        assert_eq!(created, 201, "{body}");
        let (deleted, body) =
            client.call(Method::DELETE, &format!("{APPLICATIONS}/{name}"), None).await.unwrap();
        assert_eq!(deleted, 200, "{body}");
        assert_eq!(code(&bare, Some(&token)).await, Some(200), "a token after {done} requests");
        done += 4;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_can_be_rotated_under_load() {
    let stack = Stack::up(&["--nodes", "1", "--api-replicas", "2"]);
    let pki = stack.home().join("pki");
    let keys = stack.home().join("token-keys");
    let old_ca = std::fs::read_to_string(pki.join("ca.crt")).unwrap();
    let next = Authority::generate().unwrap();
    let new_ca = next.pem().certificate.clone();
    let both = format!("{old_ca}{new_ca}");
    let address = |of: &str| SocketAddr::from(([127, 0, 0, 1], stack.port(of)));
    let replicas = ["api-0", "api-1"].map(address);

    // Clients trust both authorities before anything changes, as they are told to.
    let old_admin = Issued {
        certificate: std::fs::read_to_string(pki.join("admin.crt")).unwrap(),
        key: std::fs::read_to_string(pki.join("admin.key")).unwrap(),
    };
    let new_admin = next.client("admin", MASTERS, Lifetime::CLIENT).unwrap();
    let (old_folder, new_folder) = (client_folder(&both, &old_admin), client_folder(&both, &new_admin));
    let old = |at: SocketAddr| Client::new(at, old_folder.path());
    let new = |at: SocketAddr| Client::new(at, new_folder.path());
    let old_token = token(keys.clone());
    let credentials =
        Arc::new(Mutex::new(Credentials { client: old(address("api")), token: old_token.clone() }));
    let stop = Arc::new(AtomicBool::new(false));
    let bare = Client::anonymous(address("api"), old_folder.path());
    let rounds = Arc::new(AtomicUsize::new(0));
    let load =
        tokio::spawn(load(Arc::clone(&credentials), bare.clone(), Arc::clone(&stop), Arc::clone(&rounds)));

    // The next authority is believed beside the old one.
    write_file(&pki.join("ca.crt"), both.as_bytes(), 0o644).unwrap();
    for replica in replicas {
        assert_eq!(code(&old(replica), None).await, Some(200));
        eventually(RECOVERY, async || code(&new(replica), None).await == Some(200)).await;
    }
    // Everything that serves or calls gets a certificate of it.
    let hosts = [HostName::parse("localhost").unwrap()];
    replace(&pki, "server", &next.server(&hosts, Lifetime::SERVER).unwrap());
    for process in Process::ALL {
        let issued = next.controller(process.name(), &hosts, Lifetime::CONTROLLER).unwrap();
        replace(&pki, process.name(), &issued);
    }
    replace(&pki, "node-node-1", &next.node("node-1", Lifetime::CLIENT).unwrap());
    let only_new = client_folder(&new_ca, &new_admin);
    for replica in replicas {
        let strict = Client::new(replica, only_new.path());
        eventually(RECOVERY, async || code(&strict, None).await == Some(200)).await;
    }
    // The agent reads its own when it starts.
    stack.kill_and_await_successor("agent-0").await;
    credentials.lock().client = new(address("api"));

    // The old authority goes: whoever still relies on it is cut off, watches included.
    let watched = Arc::new(AtomicUsize::new(0));
    let mut cut = Vec::new();
    for replica in replicas {
        let response =
            old(replica).send(Method::GET, &format!("{APPLICATIONS}?watch=1"), None).await.unwrap();
        assert_eq!(response.status(), 200);
        let (mut body, watched) = (response.into_body(), Arc::clone(&watched));
        cut.push(tokio::spawn(async move {
            while let Some(Ok(_)) = body.frame().await {
                watched.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    eventually(RECOVERY, async || watched.load(Ordering::Relaxed) > 2).await;
    write_file(&pki.join("ca.crt"), new_ca.as_bytes(), 0o644).unwrap();
    for (watch, replica) in cut.into_iter().zip(replicas) {
        tokio::time::timeout(RECOVERY, watch).await.expect("the watch is cut").unwrap();
        assert_eq!(code(&old(replica), None).await, None, "nor does it get in again");
    }
    // The node is there with its new certificate, through gateways with theirs.
    let nodes = "/apis/horchestra.io/v1/nodes/node-1";
    eventually(RECOVERY, async || {
        let (_, node) = new(address("api")).call(Method::GET, nodes, None).await.unwrap();
        node["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"))
    })
    .await;

    // A key for tokens is added, used, and the old one withdrawn.
    let apart = TempDir::new().unwrap();
    let new_token = token(apart.path().join("key.pem"));
    let pem = std::fs::read(apart.path().join("key.pem")).unwrap();
    write_file(&keys.join("9999-next.pem"), &pem, 0o600).unwrap();
    for replica in replicas {
        let bare = Client::anonymous(replica, old_folder.path());
        eventually(RECOVERY, async || code(&bare, Some(&new_token)).await == Some(200)).await;
        assert_eq!(code(&bare, Some(&old_token)).await, Some(200));
    }
    credentials.lock().token = new_token.clone();
    // The round that is under way may use the old one, the next does not.
    let under_way = rounds.load(Ordering::Relaxed);
    eventually(RECOVERY, async || rounds.load(Ordering::Relaxed) > under_way + 1).await;
    std::fs::remove_file(keys.join("0000-first.pem")).unwrap();
    for replica in replicas {
        let bare = Client::anonymous(replica, old_folder.path());
        eventually(RECOVERY, async || code(&bare, Some(&old_token)).await == Some(401)).await;
        assert_eq!(code(&bare, Some(&new_token)).await, Some(200));
    }

    stop.store(true, Ordering::Relaxed);
    let requests =
        tokio::time::timeout(RECOVERY, load).await.expect("the load ends").expect("no failed request");
    assert!(requests > 40, "{requests}");
}
