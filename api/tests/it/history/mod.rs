//! Many clients at once over two replicas, and one order of everything that they saw.
//!
//! The revisions give the order: every acknowledged write has its own, so there is exactly one history, and
//! whatever anybody was told has to fit into it.
//!
//! * A write takes its place after everything that was acknowledged (or shown) before it began, and the
//!   history holds what was acknowledged and nothing else.
//! * An answer (an object, a list, a 404, a 409) is the truth of a moment between what was known before it
//!   was asked for and what began after it was given, on whichever replica.
//! * A watch shows the changes of what it selects, each once, in order and whole, whoever serves it after
//!   how many reconnects; and what a watcher has put together at any revision is the list of that revision.
//!
//! What is asked is random (see [`crate::seed`]); the judgement is not.

mod judge;
mod record;
mod watcher;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use horchestra_service::ServiceConfig;
use serde_json::{Value, json};

use crate::client::{Client, patiently};
use crate::crud::app;
use crate::replicas::{database, replica_with};
use crate::seed::Seed;
use crate::stack::Stack;

use judge::History;
use record::Records;
use watcher::Watching;
use writer::Writer;

const GROUP: &str = "/apis/horchestra.io/v1";
/// Where the objects live.
const NAMESPACES: [&str; 2] = ["default", "team-a"];
const WRITERS: u64 = 8;
/// Requests of each writer.
const REQUESTS: usize = 70;
const WATCHERS: u64 = 14;

fn revision(object: &Value) -> i64 {
    let text =
        object["metadata"]["resourceVersion"].as_str().unwrap_or_else(|| panic!("no revision: {object}"));
    text.parse().unwrap()
}

/// `namespace/name`.
fn key(object: &Value) -> String {
    let text = |member: &str| object["metadata"][member].as_str().unwrap_or("?").to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn collection(namespace: &str) -> String {
    format!("{GROUP}/namespaces/{namespace}/applications")
}

/// The path of an object by its `namespace/name`.
fn item(key: &str) -> String {
    let (namespace, name) = key.split_once('/').expect("a key");
    format!("{}/{name}", collection(namespace))
}

/// Two API servers on one database, bookmarks often.
async fn two_replicas() -> (horchestra_testkit::TestDatabase, [Stack; 2], [Client; 2]) {
    let database = database().await;
    let service =
        || ServiceConfig { bookmark_interval: Duration::from_millis(80), ..ServiceConfig::default() };
    let (here, first) = replica_with(&database, service()).await;
    let (there, second) = replica_with(&database, service()).await;
    let team = json!({"metadata": {"name": "team-a"}});
    assert_eq!(first.post(&format!("{GROUP}/namespaces"), &team).await.status, 201);
    let clients = [first.keep().await, second.keep().await];
    (database, [here, there], clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_anybody_is_told_fits_into_one_history() {
    let seed = Seed::of("history");
    let (_database, stacks, replicas) = two_replicas().await;
    let from = revision(&replicas[0].get(&format!("{GROUP}/applications")).await.json());

    let records = Arc::new(Records::default());
    let end = Arc::new(AtomicI64::new(i64::MAX));
    let observer = tokio::spawn(watcher::observe(replicas[0].clone(), from, Arc::clone(&end)));
    let mut watchers = Vec::new();
    for number in 0..WATCHERS {
        let watching = Watching::random(number, seed.lane(1000 + number), &replicas, &end);
        watchers.push(tokio::spawn(watching.run()));
    }
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let writer = Writer::new(number, seed.lane(number), &replicas, &records);
        writers.push(tokio::spawn(writer.run(REQUESTS)));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let last = writer::write_the_end(&replicas[1], &records).await;
    end.store(last, Ordering::SeqCst);

    let log = observer.await.unwrap();
    let history = History::new(from, log);
    assert_eq!(history.last(), last);
    history.judge(&records.take());
    for watcher in watchers {
        let seen =
            tokio::time::timeout(Duration::from_secs(60), watcher).await.expect("the watch catches up");
        history.judge_watch(&seen.unwrap());
    }
    for stack in stacks {
        stack.store.shutdown().await;
    }
}

/// "Not now": on a machine that is too busy for its database nobody knows whether the write was made.
fn is_no_answer(status: u16) -> bool {
    matches!(status, 429 | 503 | 504)
}

/// What the writers of a round try with one and the same resourceVersion.
const CONDITIONAL: [&str; 4] = ["PUT", "merge patch", "JSON patch", "delete"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writes_with_one_revision_one_wins_on_whichever_replica() {
    let (_database, stacks, replicas) = two_replicas().await;
    let path = item("default/contended");
    for round in 0..24 {
        let stored = match replicas[round % 2].get(&path).await {
            reply if reply.status == 200 => reply.json(),
            _ => {
                let created = replicas[0].post(&collection("default"), &app("contended")).await;
                if created.status != 201 {
                    continue;
                }
                created.json()
            }
        };
        let version = stored["metadata"]["resourceVersion"].clone();
        let attempts = (0..16usize).map(|number| {
            let (client, path, mut object) = (replicas[number % 2].clone(), path.clone(), stored.clone());
            let version = version.clone();
            let image = json!(format!("image:{round}-{number}"));
            async move {
                // Deletes would win too often to leave the others a chance.
                let how = if number == 15 { 3 } else { number / 2 % 3 };
                let reply = match CONDITIONAL[how] {
                    "PUT" => {
                        object["spec"]["image"] = image;
                        client.put(&path, &object).await
                    }
                    "merge patch" => {
                        let patch =
                            json!({"metadata": {"resourceVersion": version}, "spec": {"image": image}});
                        client.merge(&path, &patch).await
                    }
                    "JSON patch" => {
                        let patch = json!([
                            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                            {"op": "replace", "path": "/spec/image", "value": image},
                        ]);
                        client.json_patch(&path, &patch).await
                    }
                    _ => {
                        let options = json!({"preconditions": {"resourceVersion": version}});
                        client.send(http::Method::DELETE, &path, &[], options.to_string()).await
                    }
                };
                (CONDITIONAL[how], reply.status, reply.text())
            }
        });
        let outcomes = futures::future::join_all(attempts).await;
        if outcomes.iter().any(|(_, status, _)| is_no_answer(*status)) {
            continue;
        }
        let won: Vec<_> = outcomes.iter().filter(|(_, status, _)| *status == 200).collect();
        assert_eq!(won.len(), 1, "round {round}: {outcomes:#?}");
        let deleted = won[0].0 == "delete";
        for (how, status, text) in &outcomes {
            let lost = match *how {
                "JSON patch" => matches!(status, 422),
                _ => matches!(status, 409),
            };
            assert!(*status == 200 || lost || (deleted && *status == 404), "round {round}: {how}: {text}");
        }
    }
    for stack in stacks {
        stack.store.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_a_node_do_not_make_an_editor_lose_and_two_editors_still_have_one_winner() {
    let (_database, stacks, replicas) = two_replicas().await;
    let path = item("default/reported");
    assert_eq!(replicas[0].post(&collection("default"), &app("reported")).await.status, 201);
    for round in 0..16 {
        let stored = patiently(&replicas[round % 2], &path).await.json();
        let reports = (0..6).map(|number| {
            let (client, path) = (replicas[number % 2].clone(), format!("{path}/status"));
            async move {
                let report = json!({"status": {"message": format!("{round}-{number}")}});
                client.merge(&path, &report).await.status
            }
        });
        let edits = (0..6).map(|number| {
            let (client, path, mut object) = (replicas[number % 2].clone(), path.clone(), stored.clone());
            async move {
                object["spec"]["image"] = json!(format!("image:{round}-{number}"));
                client.put(&path, &object).await.status
            }
        });
        let (codes, reported) =
            futures::join!(futures::future::join_all(edits), futures::future::join_all(reports));
        if codes.iter().chain(&reported).any(|code| is_no_answer(*code)) {
            continue;
        }
        assert!(reported.iter().all(|code| *code == 200), "round {round}: {reported:?}");
        assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "round {round}: {codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 200 | 409)), "round {round}: {codes:?}");
        // Nothing of what the losers sent is left, and no report is.
        let after = patiently(&replicas[(round + 1) % 2], &path).await.json();
        assert!(after["spec"]["image"].as_str().unwrap().starts_with(&format!("image:{round}-")));
        assert!(after["status"]["message"].as_str().unwrap().starts_with(&format!("{round}-")));
    }
    for stack in stacks {
        stack.store.shutdown().await;
    }
}
