//! The database is put back to an older state behind a running fleet: nothing that runs is stopped until an operator
//! says so, and then exactly what is gone. The ways of the guide are in modules of their own.

mod base;
mod dump;
pub mod fleet;
mod standby;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use horchestra_testkit::binaries::{self, Account};
use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::json;

use crate::client::{APPLICATIONS, Client};
use crate::plane::held;
use crate::stack::{Stack, said, signal};

const NODES: &str = "/apis/horchestra.io/v1/nodes";
const SOON: Duration = Duration::from_secs(60);
/// Until every process works with the restored database. On a busy machine connections take long to be made.
pub const RECOVERY: Duration = Duration::from_secs(240);
/// Some heartbeats and passes of the agents.
pub const A_WHILE: Duration = Duration::from_secs(4);

/// A base backup of the stack's server, taken while it runs.
fn back_up(stack: &Stack) -> PathBuf {
    let account = Account::find().unwrap();
    let data = data(stack);
    let place = beside(&data, "backup");
    std::fs::create_dir(&place).unwrap();
    account.own(&place).unwrap();
    let taken = account
        .command(&binaries::program("pg_basebackup").unwrap())
        .args(["-U", "postgres", "-X", "stream", "-c", "fast", "-h"])
        .arg(&data)
        .args(["-p", &stack.port("postgres").to_string(), "-D"])
        .arg(&place)
        .current_dir("/")
        .output()
        .unwrap();
    assert!(taken.status.success(), "pg_basebackup: {}", said(&taken));
    place
}

/// A place of its own next to the data.
fn beside(data: &Path, what: &str) -> PathBuf {
    data.with_file_name(format!("{}-{what}", data.file_name().unwrap().to_string_lossy()))
}

fn data(stack: &Stack) -> PathBuf {
    std::fs::canonicalize(stack.home().join("pg")).unwrap()
}

/// Puts the backup in the place of what there is. Everything else goes on running.
async fn restore(stack: &Stack, backup: &Path) {
    let data = data(stack);
    let server = stack.pid("postgres");
    // It would start the server again before the data is exchanged.
    let supervisor = stack.pid("supervisor");
    signal(supervisor, "STOP");
    signal(server, "QUIT");
    eventually(SOON, async || is_over(server)).await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(backup, &data).unwrap();
    let allowed = Command::new("chmod").arg("700").arg(&data).status().unwrap();
    assert!(allowed.success());
    signal(supervisor, "CONT");
}

/// Gone, or a zombie until its parent looks.
fn is_over(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.trim_start().is_empty() || rest.trim_start().starts_with('Z'))
}

/// An Application with a command, running on this node; its uid.
async fn run_app(client: &Client, name: &str, node: &str) -> String {
    let app = json!({"metadata": {"name": name}, "spec": {
        "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"],
        "placement": {"nodeName": node}}});
    let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{APPLICATIONS}/{name}");
    eventually(SOON, async || {
        let (_, found) = client.call_patiently(Method::GET, &path, None).await;
        found["status"]["phase"] == "Running"
    })
    .await;
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Whether the node holds the unit.
fn holds(stack: &Stack, node: &str, uid: &str) -> bool {
    stack.home().join("agents").join(node).join("units").join(uid).is_dir()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_stops_nothing_until_an_operator_says_so() {
    let stack = Stack::up(&["--nodes", "2", "--heartbeat", "1"]);
    let client = stack.client("api");
    let nodes = ["node-1", "node-2"];
    let mut kept = Vec::new();
    for node in nodes {
        kept.push(run_app(&client, &format!("kept-{node}"), node).await);
    }
    let backup = back_up(&stack);
    let mut lost = Vec::new();
    for node in nodes {
        lost.push(run_app(&client, &format!("lost-{node}"), node).await);
    }
    let all_run = |what: &str| {
        for (at, node) in nodes.iter().enumerate() {
            assert!(holds(&stack, node, &kept[at]), "{what}: {node} has stopped what it is to run");
            assert!(holds(&stack, node, &lost[at]), "{what}: {node} has stopped what the database lost");
        }
    };
    all_run("before");

    restore(&stack, &backup).await;
    for node in nodes {
        eventually(RECOVERY, async || held(&client, node).await.as_deref() == Some("HistoryLost")).await;
    }
    let (code, _) = client.call_patiently(Method::GET, &format!("{APPLICATIONS}/lost-node-1"), None).await;
    assert_eq!(code, 404, "the backup knows nothing of it");
    tokio::time::sleep(A_WHILE).await;
    all_run("after the restore");

    // New sessions, of a gateway that has seen nothing: the hold is in the database.
    stack.kill_and_await_successor("nodegate-0").await;
    for index in 0..nodes.len() {
        stack.kill_and_await_successor(&format!("agent-{index}")).await;
    }
    let page = eventually(RECOVERY, async || {
        let page = stack.metrics("nodegate-0").await.ok()?;
        page.contains("horchestra_gate_sessions_held 2").then_some(page)
    })
    .await;
    assert!(page.contains("horchestra_gate_pushes_total 0"), "{page}");
    let shown = stack.operate(&["hold", "show"]);
    assert!(shown.starts_with("all nodes are held since") && shown.contains("HistoryLost"), "{shown}");
    tokio::time::sleep(A_WHILE).await;
    all_run("after everything was started anew");

    // One node is admitted: what the database knows nothing of goes there, and only there, and nothing else.
    let (code, answer) = client.call_patiently(Method::POST, &format!("{NODES}/node-1/admit"), None).await;
    assert_eq!(code, 200, "{answer}");
    eventually(SOON, async || !holds(&stack, "node-1", &lost[0])).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(holds(&stack, "node-1", &kept[0]) && holds(&stack, "node-2", &kept[1]));
    assert!(holds(&stack, "node-2", &lost[1]), "node-2 was not admitted");
    for (node, why) in [("node-1", ""), ("node-2", "HistoryLost")] {
        eventually(SOON, async || held(&client, node).await.as_deref() == Some(why)).await;
    }

    // All are released: the same for the other.
    let shown = stack.operate(&["hold", "release"]);
    assert_eq!(shown, "no node is held\n");
    eventually(SOON, async || !holds(&stack, "node-2", &lost[1])).await;
    eventually(SOON, async || held(&client, "node-2").await.as_deref() == Some("")).await;
    assert!(holds(&stack, "node-1", &kept[0]) && holds(&stack, "node-2", &kept[1]));
    // And what comes now runs.
    run_app(&client, "later", "node-2").await;
}
