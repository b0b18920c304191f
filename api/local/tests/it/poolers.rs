//! A real PgBouncer between the processes and their database: what works, and what is said where something does not.

use std::process::Output;
use std::time::Duration;

use horchestra_testkit::{Cluster, ClusterOptions, Pooler, Pooling, eventually};
use hyper::Method;
use serde_json::json;

use crate::client::APPLICATIONS;
use crate::guide::programs;
use crate::plane::Agent;
use crate::replicas::{Part, Replicas};
use crate::stack::said;

const SOON: Duration = Duration::from_secs(90);
const PARTS: [Part; 3] = [Part::Api(0), Part::Workers(0), Part::Gateway(0)];
const DEAF: &str = "notifications do not arrive on the connection that listens";

/// Whether PgBouncer is there; says so when it is not.
#[allow(clippy::print_stderr)]
fn is_installed() -> bool {
    let found = Pooler::program().is_some();
    if !found {
        eprintln!("NOTE: PgBouncer is not installed; this test is passed over");
    }
    found
}

/// Whether this PgBouncer can keep the prepared statements of its clients apart.
fn keeps_statements_apart() -> bool {
    Pooler::version().is_some_and(|version| version >= (1, 21))
}

/// One that `check` has nothing to say against.
fn server() -> Cluster {
    Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() }).unwrap()
}

/// A control plane of one process each, with these ways to its database.
async fn plane(database_url: String, listen_url: Option<String>) -> Replicas {
    let mut environment = vec![("DATABASE_URL", database_url)];
    environment.extend(listen_url.map(|url| ("DATABASE_LISTEN_URL", url)));
    Replicas::lay_out(environment, &PARTS).await
}

/// The whole path: a node comes, an Application is placed there, runs, and is stopped. Its agent goes on.
async fn assert_works(replicas: &Replicas) -> Agent {
    let client = replicas.client();
    let agent = replicas.node("node-1").await;
    let app = json!({"metadata": {"name": "web"}, "spec": {
        "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"]}});
    let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{APPLICATIONS}/web");
    eventually(SOON, async || {
        let (_, found) = client.call_patiently(Method::GET, &path, None).await;
        if found["status"]["phase"] == "Running" { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    client.call_patiently(Method::DELETE, &path, None).await;
    eventually(SOON, async || client.call_patiently(Method::GET, &path, None).await.0 == 404).await;
    agent
}

fn check(replicas: &Replicas) -> Output {
    replicas.run(&programs(), &["check", "--secret-keys", "secret-keys"])
}

/// Every process says once that it hears nothing, shows it, and is known to by `check`.
async fn assert_deaf(replicas: &Replicas) {
    for part in PARTS {
        eventually(SOON, async || replicas.metric(part, "horchestra_store_listening ").await == Some(0.0))
            .await;
        assert_eq!(replicas.log(part).matches(DEAF).count(), 1, "{part}: {}", replicas.log(part));
    }
    let looked = check(replicas);
    assert!(looked.status.success(), "a warning: {}", said(&looked));
    assert!(said(&looked).contains("they do not arrive where processes listen"), "{}", said(&looked));
}

async fn assert_hears(replicas: &Replicas) {
    for part in PARTS {
        assert_eq!(replicas.metric(part, "horchestra_store_listening ").await, Some(1.0), "{part}");
        assert!(!replicas.log(part).contains(DEAF), "{part}: {}", replicas.log(part));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_through_a_pooler_in_session_mode() {
    if !is_installed() {
        return;
    }
    let server = server();
    let pooler = Pooler::start(server.port(), Pooling::Session, &[]).unwrap();
    let mut replicas = plane(pooler.url("postgres"), None).await;
    replicas.prepare(&programs());
    replicas.start_all(&programs()).await;
    let _agent = assert_works(&replicas).await;
    assert_hears(&replicas).await;
    let looked = check(&replicas);
    assert!(looked.status.success(), "{}", said(&looked));
    for finding in ["each is a session of its own", "they arrive"] {
        assert!(said(&looked).contains(finding), "{finding}: {}", said(&looked));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_is_worked_through_where_it_keeps_statements_apart() {
    if !is_installed() || !keeps_statements_apart() {
        return;
    }
    let server = server();
    let settings = [("max_prepared_statements", "500")];
    let pooler = Pooler::start(server.port(), Pooling::Transaction, &settings).unwrap();
    let direct = server.url("postgres");
    plane(direct.clone(), None).await.prepare(&programs());

    let mut listening = plane(pooler.url("postgres"), Some(direct)).await;
    let refused = listening.run(&programs(), &["migrate"]);
    assert!(
        !refused.status.success() && said(&refused).contains("name the database itself"),
        "{}",
        said(&refused)
    );
    listening.make_keys(&programs());
    listening.start_all(&programs()).await;
    let agent = assert_works(&listening).await;
    assert_hears(&listening).await;
    drop((agent, listening));

    let mut deaf = plane(pooler.url("postgres"), None).await;
    deaf.make_keys(&programs());
    deaf.start_all(&programs()).await;
    assert_deaf(&deaf).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_through_a_pooler_in_transaction_mode_finds_out_and_asks() {
    if !is_installed() {
        return;
    }
    let server = server();
    let pooler = Pooler::start(server.port(), Pooling::Transaction, &[]).unwrap();
    let mut replicas = plane(server.url("postgres"), Some(pooler.url("postgres"))).await;
    replicas.prepare(&programs());
    replicas.start_all(&programs()).await;
    assert_deaf(&replicas).await;
    let _agent = assert_works(&replicas).await;
    assert_deaf(&replicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_through_a_pooler_that_mixes_up_statements() {
    if !is_installed() {
        return;
    }
    let server = server();
    let settings: &[(&str, &str)] =
        if keeps_statements_apart() { &[("max_prepared_statements", "0")] } else { &[] };
    let pooler = Pooler::start(server.port(), Pooling::Transaction, settings).unwrap();
    plane(server.url("postgres"), None).await.prepare(&programs());
    let replicas = plane(pooler.url("postgres"), None).await;
    replicas.make_keys(&programs());
    for part in PARTS {
        // It ends by itself, and says what to do.
        let mut command = replicas.process(part, &programs());
        let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = tokio::time::timeout(SOON, ended).await.expect("it ends").unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains("max_prepared_statements = 500"), "{part}: {text}");
    }
    let looked = check(&replicas);
    assert!(!looked.status.success() && said(&looked).contains("pool_mode = session"), "{}", said(&looked));
    let migrated = replicas.run(&programs(), &["migrate"]);
    assert!(
        !migrated.status.success() && said(&migrated).contains("name the database itself"),
        "{}",
        said(&migrated)
    );
}
