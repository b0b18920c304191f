//! Lists in pages: every object that was there all the time is on exactly one page, whatever is written in
//! between, whichever replica answers and whether it was there when the list began.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use horchestra_service::ServiceConfig;
use http::Method;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::client::{Client, DEADLINE};
use crate::crud::app;
use crate::replicas::{database, replica_with};
use crate::seed::Seed;
use crate::stack::Stack;

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Objects that stay.
const STAYING: usize = 1003;

fn staying() -> impl Iterator<Item = String> {
    (0..STAYING).map(|number| format!("stay-{number:04}"))
}

async fn fill(client: &Client, names: impl Iterator<Item = String>) {
    let creates = names.map(|name| {
        let client = client.clone();
        async move {
            horchestra_testkit::eventually(DEADLINE, async || {
                let reply = client.post(APPS, &app(&name)).await;
                // 409: an attempt that was answered with "not now" was made after all.
                matches!(reply.status, 201 | 409)
            })
            .await;
        }
    });
    futures::stream::iter(creates).buffer_unordered(48).collect::<Vec<()>>().await;
}

/// Creates and deletes objects between those that stay, and changes those, until told to stop; returns how
/// many writes it made.
fn churn(client: Client, mut random: StdRng, stop: Arc<AtomicBool>) -> JoinHandle<usize> {
    tokio::spawn(async move {
        let mut writes = 0;
        while !stop.load(Ordering::Relaxed) {
            let number = random.random_range(0..STAYING);
            // Sorts right behind an object that stays.
            let passing = format!("stay-{number:04}-passing");
            let code = match random.random_range(0..3) {
                0 => client.post(APPS, &app(&passing)).await.status,
                1 => client.delete(&format!("{APPS}/{passing}")).await.status,
                _ => {
                    let path = format!("{APPS}/stay-{number:04}");
                    let change = json!({"metadata": {"annotations": {"write": writes.to_string()}}});
                    client.merge(&path, &change).await.status
                }
            };
            assert!(matches!(code, 200 | 201 | 404 | 409 | 429 | 503), "{code}");
            writes += 1;
        }
        writes
    })
}

/// A page as a client reads it, from a list or from a table.
struct Page {
    revision: String,
    names: Vec<String>,
    remaining: Option<usize>,
    token: Option<String>,
}

fn name_of(item: &Value) -> String {
    item["metadata"]["name"].as_str().unwrap().to_owned()
}

async fn page(client: &Client, query: &str, token: Option<&str>, accept: &str) -> Page {
    let token = token.map(|token| {
        let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
        format!("&continue={token}")
    });
    let path = format!("{APPS}?{query}{}", token.unwrap_or_default());
    let list = horchestra_testkit::eventually(DEADLINE, async || {
        let reply = client.get_as(&path, accept).await;
        // "Not now" is no answer yet; anything else but the page is a wrong one.
        assert!(matches!(reply.status, 200 | 429 | 503), "{path}: {reply:?}");
        reply.json_of(200)
    })
    .await;
    let names = if list["kind"] == "Table" {
        list["rows"].as_array().unwrap().iter().map(|row| name_of(&row["object"])).collect()
    } else {
        list["items"].as_array().unwrap().iter().map(name_of).collect()
    };
    let metadata = &list["metadata"];
    let count = |value: &Value| value.as_u64().map(|count| usize::try_from(count).unwrap());
    Page {
        revision: metadata["resourceVersion"].as_str().unwrap().to_owned(),
        names,
        remaining: count(&metadata["remainingItemCount"]),
        token: metadata["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned),
    }
}

/// Each name once, in order, and all that stay among them.
fn check(names: &[String], what: &str) {
    assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]), "{what}: not in order");
    let listed: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let missing: Vec<String> = staying().filter(|name| !listed.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{what}: missing {missing:?}");
}

/// Reads all pages, each from the next of the replicas; all are of the first one's revision.
async fn read(replicas: &[Client], limit: usize, accept: &str) -> (String, Vec<String>) {
    let query = format!("limit={limit}");
    let first = page(&replicas[0], &query, None, accept).await;
    let what = format!("limit {limit} at {}", first.revision);
    let mut names = first.names;
    let total = names.len() + first.remaining.unwrap_or(0);
    let mut token = first.token;
    let mut turn = 0;
    while let Some(next) = token {
        turn += 1;
        let page = page(&replicas[turn % replicas.len()], &query, Some(&next), accept).await;
        assert_eq!(page.revision, first.revision, "{what}");
        assert!(page.names.len() == limit || page.token.is_none(), "{what}: {} names", page.names.len());
        names.extend(page.names);
        assert_eq!(names.len() + page.remaining.unwrap_or(0), total, "{what}: what is left");
        assert_eq!(
            page.remaining.is_some(),
            page.token.is_some(),
            "{what}: a count exactly where there is more"
        );
        token = page.token;
    }
    assert_eq!(names.len(), total, "{what}");
    (first.revision, names)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_any_size_hold_together_while_objects_come_and_go() {
    let seed = Seed::of("pages");
    let database = database().await;
    let (here, first) = replica_with(&database, ServiceConfig::default()).await;
    let (there, second) = replica_with(&database, ServiceConfig::default()).await;
    let replicas = [first.keep().await, second.keep().await];
    fill(&replicas[0], staying()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|number| churn(replicas[number].clone(), seed.lane(number as u64), stop.clone()))
        .collect();
    for (limit, accept) in [
        (100, "application/json"),
        (7, "application/json"),
        (333, "application/json"),
        (STAYING - 1, "application/json"),
        (STAYING, "application/json"),
        (5000, "application/json"),
        (97, TABLE),
    ] {
        let (revision, names) = read(&replicas, limit, accept).await;
        check(&names, &format!("limit {limit}"));
        let query = format!("resourceVersion={revision}&resourceVersionMatch=Exact");
        for replica in &replicas {
            let whole = page(replica, &query, None, "application/json").await;
            assert_eq!((&whole.names, whole.remaining, whole.token), (&names, None, None), "limit {limit}");
        }
    }
    // With a selector nobody knows how many are left, and pages may be short.
    let query = "limit=50&fieldSelector=metadata.name!%3Dstay-0500";
    let mut page_now = page(&replicas[0], query, None, "application/json").await;
    let mut names = Vec::new();
    loop {
        assert_eq!(page_now.remaining, None);
        names.append(&mut page_now.names);
        let Some(token) = page_now.token else { break };
        page_now = page(&replicas[names.len() % 2], query, Some(&token), "application/json").await;
    }
    assert!(!names.contains(&"stay-0500".to_owned()));
    names.push("stay-0500".to_owned());
    names.sort();
    check(&names, "with a selector");
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0, "nothing was written meanwhile");
    }
    for stack in [here, there] {
        stack.store.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_goes_on_at_a_replica_that_was_started_after_it_began() {
    let seed = Seed::of("pages over a restart");
    let database = database().await;
    let (mut here, first) = replica_with(&database, ServiceConfig::default()).await;
    let (there, second) = replica_with(&database, ServiceConfig::default()).await;
    let second = second.keep().await;
    fill(&second, staying()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = churn(second.clone(), seed.lane(0), stop.clone());

    let one = page(&first, "limit=100", None, "application/json").await;
    let mut names = one.names;
    let mut token = one.token.unwrap();
    here.stop().await;
    here.store.shutdown().await;
    // Two that were never asked for the first page, and one that has never seen its moment.
    let mut restarted: Option<(Stack, Client)> = None;
    for turn in 0.. {
        if turn == 2 || turn == 5 {
            if let Some((mut old, _)) = restarted.take() {
                old.stop().await;
                old.store.shutdown().await;
            }
            restarted = Some(replica_with(&database, ServiceConfig::default()).await);
        }
        let client = match &restarted {
            Some((_, client)) if turn % 2 == 0 || turn == 5 => client,
            _ => &second,
        };
        let next = page(client, "limit=100", Some(&token), "application/json").await;
        assert_eq!(next.revision, one.revision, "page {turn}");
        names.extend(next.names);
        match next.token {
            Some(next) => token = next,
            None => break,
        }
    }
    check(&names, "over restarts");
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 0, "nothing was written meanwhile");
    let (stack, _) = restarted.expect("the list was long enough");
    for stack in [stack, there] {
        stack.store.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_too_old_is_answered_with_one_for_the_rest_of_the_current_state() {
    let database = database().await;
    let impatient = || ServiceConfig { continue_ttl: Duration::ZERO, ..ServiceConfig::default() };
    let (here, first) = replica_with(&database, impatient()).await;
    let (there, second) = replica_with(&database, ServiceConfig::default()).await;
    fill(&first, ["a", "c", "d", "e", "g"].into_iter().map(str::to_owned)).await;
    for accept in ["application/json", TABLE] {
        let one = page(&first, "limit=2", None, accept).await;
        assert_eq!(one.names, ["a", "c"]);
        // The next clock reading is a later one.
        tokio::time::sleep(Duration::from_millis(5)).await;
        for (method, path) in [(Method::POST, APPS.to_owned()), (Method::DELETE, format!("{APPS}/d"))] {
            let body = if method == Method::POST { app("f").to_string() } else { String::new() };
            let reply = first.send(method, &path, &[], body).await;
            assert!(matches!(reply.status, 200 | 201), "{reply:?}");
        }
        let token: String = form_urlencoded::byte_serialize(one.token.unwrap().as_bytes()).collect();
        let expired = first.get_as(&format!("{APPS}?limit=2&continue={token}"), accept).await;
        assert_eq!((expired.status, expired.reason().as_str()), (410, "Expired"), "{expired:?}");
        let again =
            expired.json()["metadata"]["continue"].as_str().expect("a token to go on with").to_owned();
        // Behind the last page, in the state of now, on any replica; and later pages are of that one moment.
        let rest = page(&second, "limit=2", Some(&again), accept).await;
        assert_eq!(rest.names, ["e", "f"]);
        assert_ne!(rest.revision, one.revision);
        let last = page(&second, "limit=2", rest.token.as_deref(), accept).await;
        assert_eq!((last.names, last.revision), (vec!["g".to_owned()], rest.revision));
        // As before.
        assert_eq!(first.delete(&format!("{APPS}/f")).await.status, 200);
        assert_eq!(first.post(APPS, &app("d")).await.status, 201);
    }
    // A token of another kind, of another collection, or of nobody is no token.
    let one = page(&second, "limit=2", None, "application/json").await;
    let token: String = form_urlencoded::byte_serialize(one.token.unwrap().as_bytes()).collect();
    for path in [
        format!("/apis/horchestra.io/v1/nodes?limit=2&continue={token}"),
        format!("{APPS}?limit=2&continue={token}x%21"),
        format!("{APPS}?limit=2&continue=e30"),
    ] {
        let reply = second.get(&path).await;
        assert_eq!((reply.status, reply.reason().as_str()), (400, "BadRequest"), "{path}: {reply:?}");
    }
    for stack in [here, there] {
        stack.store.shutdown().await;
    }
}
