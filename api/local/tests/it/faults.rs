//! Any process may be killed at any moment: watches go on and lose nothing.

use std::net::{TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use horchestra_testkit::eventually_blocking;
use hyper::Method;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::client::{APPLICATIONS, Client, Reflector, Seen};
use crate::stack::{Stack, signal};

fn application(name: &str) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": name},
        "spec": {"image": "registry.example/demo:1"},
    })
}

/// What the change log says happened to Applications after `revision`.
async fn change_log(url: &str, revision: i64) -> Vec<Seen> {
    let mut database = sqlx::PgConnection::connect(url).await.unwrap();
    let rows: Vec<(i64, i16, String)> = sqlx::query_as(
        "select rv, op, name from horchestra.events where kind = 3 and ns = 'default' and rv > $1 order by rv",
    )
    .bind(revision)
    .fetch_all(&mut database)
    .await
    .unwrap();
    rows.into_iter()
        .map(|(revision, op, name)| {
            let kind = match op {
                1 => "ADDED",
                2 => "MODIFIED",
                _ => "DELETED",
            };
            Seen { kind: kind.to_owned(), name, revision }
        })
        .collect()
}

/// Creates, changes and deletes Applications until told to stop; returns the last revision it was
/// acknowledged.
async fn churn(client: Client, prefix: &'static str, stop: Arc<AtomicBool>) -> i64 {
    let mut last = 0;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("{prefix}-{number}");
        number += 1;
        let path = format!("{APPLICATIONS}/{name}");
        let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&application(&name))).await;
        // 409: an earlier attempt of this very request was stored although its answer was lost.
        assert!(matches!(code, 201 | 409), "{code}: {made}");
        let change = json!({"metadata": {"labels": {"round": number.to_string()}}});
        let (code, changed) = client.call_patiently(Method::PATCH, &path, Some(&change)).await;
        assert_eq!(code, 200, "{changed}");
        last = changed["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        if number % 3 == 0 {
            let (code, gone) = client.call_patiently(Method::DELETE, &path, None).await;
            assert!(matches!(code, 200 | 404), "{code}: {gone}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_loses_nothing_whoever_is_killed() {
    let stack = Stack::up(&["--nodes", "1", "--api-replicas", "2"]);
    for victim in ["api-0", "workers-0", "nodegate-0", "postgres"] {
        // The watcher's own replica is the one that is killed, where one is.
        let client = stack.client("api");
        let end = Arc::new(AtomicI64::new(i64::MAX));
        let known = Arc::clone(&end);
        let watching = tokio::spawn(async move {
            let until = || Some(known.load(Ordering::Relaxed)).filter(|last| *last != i64::MAX);
            Reflector::run(&client, until).await
        });
        let stop = Arc::new(AtomicBool::new(false));
        let prefix = victim.split('-').next().unwrap();
        let writing = tokio::spawn(churn(stack.client("api"), prefix, Arc::clone(&stop)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        stack.kill_and_await_successor(victim).await;
        // Until writes are acknowledged again, and a little longer.
        let probe = json!({"metadata": {"labels": {"probe": victim}}});
        let (code, _) = stack
            .client("api")
            .call_patiently(Method::PATCH, "/apis/horchestra.io/v1/namespaces/default", Some(&probe))
            .await;
        assert_eq!(code, 200);
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.store(true, Ordering::Relaxed);
        let last = writing.await.unwrap();
        end.store(last, Ordering::Relaxed);
        let seen = tokio::time::timeout(Duration::from_secs(60), watching)
            .await
            .unwrap_or_else(|_| {
                panic!("the watch did not catch up after {victim} was killed\n{}", stack.log("api-0"))
            })
            .unwrap();

        let through = seen.events.last().map_or(seen.listed_at, |event| event.revision);
        assert!(through >= last, "{victim}: saw up to {through}, {last} was acknowledged");
        let logged: Vec<Seen> = change_log(&stack.database_url(), seen.listed_at)
            .await
            .into_iter()
            .filter(|event| event.revision <= through)
            .collect();
        assert!(logged.len() > 10, "{victim}: only {} changes were made", logged.len());
        assert_eq!(seen.events, logged, "{victim} was killed, {} reconnects", seen.reconnects);
    }
}

/// A stopped process holds nothing that the others wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_does_not_stop_the_others() {
    let stack = Stack::up(&["--nodes", "1", "--api-replicas", "2", "--worker-replicas", "2"]);
    for victim in ["api-0", "workers-0", "nodegate-0"] {
        let pid = stack.pid(victim);
        let stop = Arc::new(AtomicBool::new(false));
        let through_the_victim = (victim == "api-0").then(|| {
            let client = stack.client("api-0");
            tokio::spawn(async move {
                // Writes in flight while the process is stopped; what becomes of them does not matter.
                for number in 0..50 {
                    let body = application(&format!("stopped-{number}"));
                    let attempt = client.call(Method::POST, APPLICATIONS, Some(&body));
                    let _ = tokio::time::timeout(Duration::from_secs(1), attempt).await;
                }
            })
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        signal(pid, "STOP");
        let client = stack.client("api-1");
        for number in 0..100 {
            let name = format!("{victim}-{number}");
            let answer = tokio::time::timeout(
                Duration::from_secs(10),
                client.call(Method::POST, APPLICATIONS, Some(&application(&name))),
            )
            .await;
            let answer = answer.unwrap_or_else(|_| panic!("a write hangs while {victim} is stopped"));
            assert_eq!(answer.unwrap().0, 201, "while {victim} is stopped");
        }
        signal(pid, "CONT");
        stop.store(true, Ordering::Relaxed);
        if let Some(task) = through_the_victim {
            task.await.unwrap();
        }
    }
}

#[test]
fn a_worker_that_waits_for_its_database_ends_when_it_is_told_to() {
    const SOON: Duration = Duration::from_secs(30);
    let program = Path::new(env!("CARGO_BIN_EXE_horchestra-local")).with_file_name("horchestra-workers");
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut worker = Command::new(program)
        .args(["--database-url=postgres://nobody@127.0.0.1:1/nothing", "--metrics-addr", &metrics])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It answers for its health from the beginning, and from then on knows what signals mean.
    eventually_blocking(SOON, || TcpStream::connect(&metrics));
    signal(i32::try_from(worker.id()).unwrap(), "TERM");
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
        eventually_blocking(SOON, || worker.try_wait().unwrap())
    }));
    let _ = worker.kill();
    assert!(ended.expect("it ends").success());
}
