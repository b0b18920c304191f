//! A leader that was asleep for longer than its lease changes nothing when it wakes up.

use std::time::Duration;

use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::client::APPLICATIONS;
use crate::stack::{Stack, signal};

const TAKEOVER: Duration = Duration::from_secs(60);

/// Which worker process leads the scheduler, by its own metrics.
async fn leads(stack: &Stack, worker: &str) -> bool {
    let port = stack.port(&format!("{worker}.metrics"));
    metric(port, "horchestra_loop_leading{reconciler=\"scheduler\"}").await == Some(1)
}

async fn metric(port: u16, name: &str) -> Option<i64> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    tokio::time::timeout(Duration::from_secs(2), exchange).await.ok()?
}

async fn epoch(url: &str) -> i64 {
    let mut database = sqlx::PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("select epoch from horchestra.lease_epochs where name = 'scheduler'")
        .fetch_one(&mut database)
        .await
        .unwrap()
}

async fn create(stack: &Stack, name: &str) {
    let app: Value = json!({"metadata": {"name": name}, "spec": {"image": "registry.example/demo:1"}});
    let (code, made) = stack.client("api").call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
    assert_eq!(code, 201, "{made}");
}

/// Waits until an Application is bound, and returns its generation: 2 when it was bound once.
async fn bound(stack: &Stack, name: &str) -> i64 {
    let path = format!("{APPLICATIONS}/{name}");
    eventually(TAKEOVER, async || {
        let (_, app) = stack.client("api").call_patiently(Method::GET, &path, None).await;
        let node = app["spec"]["placement"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        if node {
            Ok(app["metadata"]["generation"].as_i64().unwrap())
        } else {
            Err(app["status"].to_string())
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_slept_past_its_lease_writes_nothing() {
    let stack = Stack::up(&["--nodes", "1", "--worker-replicas", "2"]);
    let workers = ["workers-0", "workers-1"];
    let leader = eventually(TAKEOVER, async || {
        let (first, second) = (leads(&stack, workers[0]).await, leads(&stack, workers[1]).await);
        assert!(!(first && second), "two lead at once");
        workers.into_iter().zip([first, second]).find(|(_, leads)| *leads).map(|(worker, _)| worker)
    })
    .await;
    create(&stack, "before").await;
    assert_eq!(bound(&stack, "before").await, 2);
    let before = epoch(&stack.database_url()).await;

    let pid = stack.pid(leader);
    signal(pid, "STOP");
    // Something for the sleeper to do with what it believes, should it wake.
    create(&stack, "meanwhile").await;
    assert_eq!(bound(&stack, "meanwhile").await, 2);
    let after = epoch(&stack.database_url()).await;
    assert!(after > before, "another process took over: epoch {before} → {after}");

    signal(pid, "CONT");
    create(&stack, "afterwards").await;
    assert_eq!(bound(&stack, "afterwards").await, 2);
    eventually(TAKEOVER, async || !leads(&stack, leader).await).await;
    assert_eq!(epoch(&stack.database_url()).await, after, "the sleeper did not lead again");

    let mut database = sqlx::PgConnection::connect(&stack.database_url()).await.unwrap();
    let binds: Vec<(String, i64)> = sqlx::query_as(
        "select name, count(*) from horchestra.events \
         where kind = 3 and who = 'system:loop:scheduler' and verb = 'bind' group by name order by name",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let once = ["afterwards", "before", "meanwhile"].map(|name| (name.to_owned(), 1));
    assert_eq!(binds, once, "every Application was bound exactly once");
}

/// Less than what is left of a lease that was renewed in time: whoever leads within it was handed the lease.
const BEFORE_IT_RUNS_OUT: Duration = Duration::from_secs(9);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_to_end_hands_its_leases_over() {
    let stack = Stack::up(&["--nodes", "1", "--worker-replicas", "2", "--restart", "0"]);
    let workers = ["workers-0", "workers-1"];
    let leader = eventually(TAKEOVER, async || {
        let (first, second) = (leads(&stack, workers[0]).await, leads(&stack, workers[1]).await);
        workers.into_iter().zip([first, second]).find(|(_, leads)| *leads).map(|(worker, _)| worker)
    })
    .await;
    let other = workers.into_iter().find(|worker| *worker != leader).unwrap();
    let before = epoch(&stack.database_url()).await;
    signal(stack.pid(leader), "TERM");
    eventually(BEFORE_IT_RUNS_OUT, async || leads(&stack, other).await).await;
    let after = epoch(&stack.database_url()).await;
    assert!(after > before, "to the one that is left: epoch {before} → {after}");
    create(&stack, "afterwards").await;
    assert_eq!(bound(&stack, "afterwards").await, 2);
    assert_eq!(epoch(&stack.database_url()).await, after, "and once");
}
