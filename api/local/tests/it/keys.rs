//! The key of Secrets changes under a running stack, while everybody reads and writes them.
//!
//! Nothing is restarted and no request fails: not the reads of what was there before, not a read through one
//! replica of what was just written through the other, not a watch. Once the operator has let time pass between the
//! steps, as the documentation says; and once without, which processes that share one file have to survive too.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use horchestra_testkit::{eventually, postgres_program};
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::stack::{RECOVERY, Stack, said};

const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";
/// Secrets that are there all the time.
const KEPT: usize = 12;
const REPLICAS: [&str; 2] = ["api-0", "api-1"];
/// Processes that hold keys.
const HOLDERS: [&str; 3] = ["api-0", "api-1", "nodegate-0"];

fn secret(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "stringData": {"value": value}})
}

/// What a Secret holds, as somebody reads it.
async fn read(client: &Client, name: &str) -> Value {
    let (code, object) = client.call(Method::GET, &format!("{SECRETS}/{name}"), None).await.unwrap();
    assert_eq!(code, 200, "{name}: {object}");
    object["data"].clone()
}

/// How far the load is.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    reads: [AtomicUsize; 2],
    writes: [AtomicUsize; 2],
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn done(&self) -> [usize; 4] {
        let [a, b] = [0, 1].map(|at: usize| self.reads[at].load(Ordering::Relaxed));
        let [c, d] = [0, 1].map(|at: usize| self.writes[at].load(Ordering::Relaxed));
        [a, b, c, d]
    }

    /// Until whatever was under way is through, and another round too.
    async fn turn(&self) {
        let before = self.done();
        eventually(RECOVERY, async || self.done().iter().zip(before).all(|(now, before)| *now > before + 1))
            .await;
    }
}

/// Lists all Secrets and reads those that are there all the time, again and again.
async fn reader(client: Client, load: Arc<Load>, which: usize) {
    while load.goes_on() {
        let (code, list) = client.call(Method::GET, SECRETS, None).await.unwrap();
        assert_eq!(code, 200, "{list}");
        let items = list["items"].as_array().unwrap();
        assert!(items.len() >= KEPT && items.iter().all(|item| item["data"]["value"].is_string()), "{list}");
        for number in 0..KEPT {
            let value = read(&client, &format!("kept-{number}")).await;
            assert!(value["value"].is_string(), "{value}");
        }
        load.reads[which].fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes, changes and deletes Secrets through one replica and reads each at once through the other.
async fn writer(clients: [Client; 2], load: Arc<Load>, which: usize) {
    let [here, there] = clients;
    let mut number = 0;
    while load.goes_on() {
        let name = format!("load-{which}-{number}");
        let path = format!("{SECRETS}/{name}");
        let (code, made) = here.call(Method::POST, SECRETS, Some(&secret(&name, "first"))).await.unwrap();
        assert_eq!(code, 201, "{made}");
        assert_eq!(read(&there, &name).await, made["data"]);
        let change = json!({"stringData": {"value": "second", "more": "x"}});
        let (code, changed) = there.call(Method::PATCH, &path, Some(&change)).await.unwrap();
        assert_eq!(code, 200, "{changed}");
        assert_eq!(read(&here, &name).await, changed["data"]);
        let (code, gone) = here.call(Method::DELETE, &path, None).await.unwrap();
        assert_eq!(code, 200, "{gone}");
        number += 1;
        load.writes[which].fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches until the load ends; a stream that is refused or ends before is a failure.
async fn watcher(client: Client, load: Arc<Load>) -> usize {
    let path = format!("{SECRETS}?watch=1&timeoutSeconds=600");
    let response = client.send(Method::GET, &path, None).await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut body, mut frames, mut rest) = (response.into_body(), 0, Vec::new());
    while load.goes_on() {
        let frame = body.frame().await.expect("the watch goes on").unwrap();
        rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            assert_ne!(event["type"], "ERROR", "{event}");
            assert!(event["object"]["data"]["value"].is_string(), "{event}");
            frames += 1;
        }
    }
    frames
}

/// The keys that stored Secrets are sealed with.
fn keys_in_use(stack: &Stack) -> Vec<String> {
    let mut command = Command::new(postgres_program("psql").unwrap());
    command.args([&stack.database_url(), "-Atc", "select distinct key_id from horchestra.seals order by 1"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn sealing(stack: &Stack) -> String {
    let listed = stack.operate(&["secret-keys", "list", &stack.secret_keys()]);
    listed.lines().find_map(|line| line.strip_suffix("  seals")).expect("one of them seals").to_owned()
}

/// One rotation from the first step to the last. `hasty`: the new key seals the moment that it is there.
async fn rotate(stack: &Stack, load: &Load, hasty: bool) {
    let keys = stack.secret_keys();
    let old = sealing(stack);
    assert_eq!(keys_in_use(stack), [old.as_str()]);
    let listed = stack.operate(&["secret-keys", "add", &keys]);
    let new = listed.lines().last().unwrap().to_owned();
    let everywhere = async |id: &str, seals: Option<bool>| {
        for process in HOLDERS {
            eventually(RECOVERY, async || stack.key_of(process, id).await == seals).await;
        }
    };
    if hasty {
        stack.operate(&["secret-keys", "use", &keys, &new, "--in", "0"]);
    } else {
        everywhere(&new, Some(false)).await;
        load.turn().await;
        assert_eq!(keys_in_use(stack), [old.as_str()], "a key that was added does not seal");
        let said = stack.operate(&["secret-keys", "use", &keys, &new, "--in", "2s"]);
        assert!(
            said.contains(&format!("{new}  seals from ")) || said.contains(&format!("{new}  seals\n")),
            "{said}"
        );
    }
    everywhere(&new, Some(true)).await;
    load.turn().await;
    assert!(keys_in_use(stack).contains(&old), "what is not written again stays as it was");
    stack.operate(&["reseal", "--secret-keys", &keys]);
    assert_eq!(keys_in_use(stack), [new.as_str()]);
    stack.operate(&["secret-keys", "remove", &keys, &old]);
    everywhere(&old, None).await;
    load.turn().await;
    assert_eq!(keys_in_use(stack), [new.as_str()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_secrets_can_be_changed_under_load() {
    let stack = Stack::up(&["--nodes", "1", "--api-replicas", "2"]);
    let clients = REPLICAS.map(|replica| stack.client(replica));
    for number in 0..KEPT {
        let object = secret(&format!("kept-{number}"), &format!("value {number}"));
        assert_eq!(clients[number % 2].call(Method::POST, SECRETS, Some(&object)).await.unwrap().0, 201);
    }
    let mut kept = Vec::new();
    for number in 0..KEPT {
        let path = format!("{SECRETS}/kept-{number}");
        kept.push(clients[0].call(Method::GET, &path, None).await.unwrap().1);
    }

    let load = Arc::new(Load::default());
    let mut tasks = tokio::task::JoinSet::new();
    let mut watches = tokio::task::JoinSet::new();
    for which in 0..2 {
        let (here, there) = (clients[which].clone(), clients[1 - which].clone());
        watches.spawn(watcher(here.clone(), Arc::clone(&load)));
        tasks.spawn(reader(here.clone(), Arc::clone(&load), which));
        tasks.spawn(writer([here, there], Arc::clone(&load), which));
    }
    let rotations = async {
        load.turn().await;
        rotate(&stack, &load, false).await;
        rotate(&stack, &load, true).await;
    };
    // A request that failed ends the test there and then.
    tokio::select! {
        () = rotations => {}
        Some(ended) = tasks.join_next() => panic!("the load ended: {ended:?}"),
        Some(ended) = watches.join_next() => panic!("a watch ended: {ended:?}"),
    }
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no request failed");
    }
    // One more change, so that the watches notice.
    clients[0].call(Method::POST, SECRETS, Some(&secret("last", "x"))).await.unwrap();
    while let Some(ended) = watches.join_next().await {
        let frames = ended.expect("no watch failed");
        assert!(frames > KEPT, "{frames}");
    }

    // What was there all the time is as it was, for a process too that never had the first key.
    stack.kill_and_await_successor("api-0").await;
    for client in &clients {
        for (number, object) in kept.iter().enumerate() {
            let (code, now) =
                client.call_patiently(Method::GET, &format!("{SECRETS}/kept-{number}"), None).await;
            assert_eq!((code, &now), (200, object));
        }
    }
}

/// Without the keys that stored Secrets need no replica starts by accident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_the_keys_of_another_system_does_not_start() {
    let stack = Stack::up(&["--nodes", "0"]);
    let client = stack.client("api");
    assert_eq!(client.call(Method::POST, SECRETS, Some(&secret("db", "x"))).await.unwrap().0, 201);
    let stranger = stack.home().join("stranger").display().to_string();
    stack.operate(&["secret-keys", "new", &stranger]);
    let pki = |name: &str| stack.home().join("pki").join(name).display().to_string();
    let (certificate, key) = (pki("server.crt"), pki("server.key"));
    let (own, own_key) = (pki("horchestra-api.crt"), pki("horchestra-api.key"));
    let authority = pki("ca.crt");
    let mut command = stack.api(&[
        "serve",
        "--listen=127.0.0.1:0",
        "--metrics-addr=127.0.0.1:0",
        &format!("--tls-cert={certificate}"),
        &format!("--tls-key={key}"),
        &format!("--tls-ca={authority}"),
        &format!("--peer-cert={own}"),
        &format!("--peer-key={own_key}"),
        &format!("--peer-ca={authority}"),
        &format!("--secret-keys={stranger}"),
    ]);
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let ended = eventually(RECOVERY, async || process.try_wait().unwrap()).await;
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!ended.success() && said.contains(&sealing(&stack)), "{said}");
}
