//! No value of a Secret on any disk: not in the database's files, its write-ahead log, a dump, or a log of the
//! server or of ours.
//!
//! Every value holds one token that is made up for the test, and everything is searched for the token as it
//! is, in base64 at each of the three alignments, and in hexadecimal of all these. A second token stands in a
//! label, which is stored in the clear: where the first must not be found, the second must be, or the search
//! would prove nothing.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_auth::pki::{LocalPki, Process};
use horchestra_runtime::tls::ReloadingClient;
use horchestra_testkit::{
    Cluster, ClusterOptions, Shutdown, TempDir, eventually, free_port, postgres_program,
};
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Client, Protocol};
use crate::stack::pair;

const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";
const SOON: Duration = Duration::from_secs(60);
const LOG: &str = "debug,horchestra_api=trace,horchestra_service=trace,horchestra_store=trace,\
    horchestra_auth=trace,sqlx=trace";

/// All that a token can look like.
fn looks(token: &str) -> Vec<Vec<u8>> {
    let mut looks = vec![token.as_bytes().to_vec()];
    for shift in 0..3 {
        let shifted = [&[0; 2][..shift], token.as_bytes()].concat();
        let text = STANDARD.encode(shifted);
        // Without the characters that neighbours have a part in.
        let from = [0, 2, 3][shift];
        looks.push(text.as_bytes()[from..text.len() - 4].to_vec());
    }
    let hex = |bytes: &[u8], upper: bool| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        (if upper { digits.to_uppercase() } else { digits }).into_bytes()
    };
    let plain = looks.clone();
    looks.extend(plain.iter().map(|look| hex(look, false)));
    looks.extend(plain.iter().map(|look| hex(look, true)));
    looks
}

fn holds(haystack: &[u8], look: &[u8]) -> bool {
    let Some((first, rest)) = look.split_first() else { return false };
    let mut at = 0;
    while let Some(found) = haystack[at..].iter().position(|byte| byte == first) {
        at += found + 1;
        if haystack[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

fn found(haystack: &[u8], token: &str) -> bool {
    looks(token).iter().any(|look| holds(haystack, look))
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, into);
        } else if path.is_file() {
            into.push(path);
        }
    }
}

struct Replica {
    process: Child,
    address: SocketAddr,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where everything of the test is.
struct Place {
    folder: TempDir,
    pki: LocalPki,
    database: String,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_horchestra-api"))
            .args(args)
            .env("DATABASE_URL", &self.database)
            .env("RUST_LOG", LOG)
            .output()
            .unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let name = format!("{}.log", Uuid::new_v4());
        fs::write(self.path(&name), said).unwrap();
        output
    }

    fn serve(&self, keys: &Path, extra: &[&str]) -> (Child, SocketAddr) {
        let (port, metrics) = (free_port().unwrap(), free_port().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let (serving, peer) = (self.pki.serving(), self.pki.controller(Process::Api));
        let log = File::create(self.path(&format!("{}.log", Uuid::new_v4()))).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_horchestra-api"))
            .args(["serve", "--listen", &address.to_string()])
            .args(["--metrics-addr", &format!("127.0.0.1:{metrics}")])
            .arg("--tls-cert")
            .arg(&serving.certificate)
            .arg("--tls-key")
            .arg(&serving.key)
            .arg("--tls-ca")
            .arg(self.pki.authority())
            .arg("--peer-cert")
            .arg(&peer.certificate)
            .arg("--peer-key")
            .arg(&peer.key)
            .arg("--peer-ca")
            .arg(self.pki.authority())
            .arg("--secret-keys")
            .arg(keys)
            .args(extra)
            .env("DATABASE_URL", &self.database)
            .env("RUST_LOG", LOG)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        (process, address)
    }

    async fn replica(&self, keys: &Path) -> (Replica, Client) {
        let (process, address) = self.serve(keys, &[]);
        let replica = Replica { process, address };
        let tls =
            ReloadingClient::load(Some(pair(&self.pki.admin())), self.pki.authority(), &[b"h2"]).unwrap();
        let client = Client::new(replica.address, tls.config(), Protocol::Http2);
        eventually(SOON, async || client.connect().await.map(drop)).await;
        eventually(SOON, async || client.get("/readyz").await.status == 200).await;
        (replica, client)
    }
}

fn secret(name: &str, token: &str, label: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {"clear": label},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": format!("last {token} applied")},
        },
        "stringData": {"one": format!("x{token}y"), "two": format!("xy{token}z"), "three": token},
        "data": {"four": STANDARD.encode(format!("xyz{token}"))},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_of_a_secret_is_on_a_disk() {
    let _ = horchestra_runtime::crypto::install();
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = ClusterOptions {
        settings: vec![
            setting("log_statement", "all"),
            setting("log_min_duration_statement", "0"),
            setting("log_parameter_max_length", "-1"),
            setting("log_parameter_max_length_on_error", "-1"),
            setting("log_error_verbosity", "verbose"),
        ],
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(options).unwrap();
    let folder = TempDir::new().unwrap();
    let pki = LocalPki::ensure(&folder.path().join("pki"), &[]).unwrap();
    let place = Place { folder, pki, database: cluster.url("postgres") };
    let keys = place.path("keys");
    let words = keys.display().to_string();
    assert!(place.run(&["secret-keys", "new", &words]).status.success());
    assert!(place.run(&["migrate"]).status.success());
    let token = Uuid::new_v4().simple().to_string();
    let label = Uuid::new_v4().simple().to_string();

    let (replica, client) = place.replica(&keys).await;
    let created = client.post(SECRETS, &secret("db", &token, &label)).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert!(found(&created.body, &token), "the client does get it");
    let path = format!("{SECRETS}/db");
    let change = json!({"stringData": {"five": format!("new {token}")}});
    assert_eq!(client.merge(&path, &change).await.status, 200);
    assert_eq!(client.put(&path, &secret("db", &token, &label)).await.status, 200);
    assert_eq!(client.post(SECRETS, &secret("gone", &token, &label)).await.status, 201);
    assert_eq!(client.delete(&format!("{SECRETS}/gone")).await.status, 200);
    // Refused in every way that there is.
    let mut stale = secret("db", &token, &label);
    stale["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(client.put(&path, &stale).await.status, 409);
    assert_eq!(client.post(SECRETS, &secret("db", &token, &label)).await.status, 409);
    let mut misnamed = secret("misnamed", &token, &label);
    misnamed["data"]["no/file name"] = json!(STANDARD.encode(&token));
    assert_eq!(client.post(SECRETS, &misnamed).await.status, 422);
    let mut unknown = secret("unknown", &token, &label);
    unknown["value"] = json!(token);
    assert_eq!(client.post(SECRETS, &unknown).await.status, 400);
    let mut odd = secret("odd", &token, &label);
    odd["data"]["odd"] = json!(format!("%{token}"));
    assert_eq!(client.post(SECRETS, &odd).await.status, 422);
    let elsewhere = "/apis/horchestra.io/v1/namespaces/nowhere/secrets";
    assert_eq!(client.post(elsewhere, &secret("db", &token, &label)).await.status, 404);
    let dry = client.post(&format!("{SECRETS}?dryRun=All"), &secret("dry", &token, &label)).await;
    assert_eq!(dry.status, 201);
    let headers = [("content-type", "application/json")];
    let broken = client.send(Method::POST, SECRETS, &headers, format!("{{\"data\": \"{token}")).await;
    assert_eq!(broken.status, 400);
    assert!(found(&client.get(SECRETS).await.body, &token));

    // A rotation, as it is documented.
    let old = String::from_utf8(place.run(&["secret-keys", "list", &words]).stdout).unwrap();
    let old = old.split_whitespace().next().unwrap().to_owned();
    let listed = String::from_utf8(place.run(&["secret-keys", "add", &words]).stdout).unwrap();
    let new = listed.lines().last().unwrap().to_owned();
    drop(replica);
    assert!(place.run(&["secret-keys", "use", &words, &new]).status.success());
    let (replica, client) = place.replica(&keys).await;
    assert_eq!(client.post(SECRETS, &secret("second", &token, &label)).await.status, 201);
    for round in 0..2 {
        let resealed = place.run(&["reseal", "--secret-keys", &words]);
        assert!(resealed.status.success(), "round {round}: {resealed:?}");
    }
    let whole = client.get(SECRETS).await;
    drop(replica);
    assert!(place.run(&["secret-keys", "remove", &words, &old]).status.success());
    let (replica, client) = place.replica(&keys).await;
    assert_eq!(client.get(SECRETS).await.json(), whole.json(), "nothing changed but the key");
    drop(replica);

    // Without the key nothing starts by accident.
    let stranger = place.path("stranger");
    assert!(place.run(&["secret-keys", "new", &stranger.display().to_string()]).status.success());
    let (mut refused, _) = place.serve(&stranger, &[]);
    let ended = eventually(SOON, async || refused.try_wait().unwrap()).await;
    assert!(!ended.success());

    let dump = Command::new(postgres_program("pg_dump").unwrap()).arg(&place.database).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    // Everything that was in memory is written out, and nothing moves any more.
    cluster.stop(Shutdown::Fast).unwrap();
    let mut searched = vec![("the dump".to_owned(), dump.stdout)];
    searched.push(("the log of the server".to_owned(), cluster.log().into_bytes()));
    let mut paths = Vec::new();
    files(&cluster.data(), &mut paths);
    files(place.folder.path(), &mut paths);
    let (mut clear, mut ours) = (false, 0);
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        clear |= path.starts_with(cluster.data()) && found(&bytes, &label);
        ours += usize::from(path.extension().is_some_and(|extension| extension == "log"));
        searched.push((path.display().to_string(), bytes));
    }
    for (what, bytes) in &searched {
        assert!(!found(bytes, &token), "a value is in {what}");
    }
    assert!(searched[..2].iter().all(|(_, bytes)| found(bytes, &label)), "the search finds what is there");
    assert!(clear && ours > 10, "so it does in the files of the database, and the logs were among them");
}
