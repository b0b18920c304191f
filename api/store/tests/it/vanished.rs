//! A database whose host is gone without a word: no reset, no answer, connections that look open.

use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::{CommitError, Store, StoreOptions};
use horchestra_testkit::{Link, eventually};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::fixture::*;
use crate::postgres::database::{connect, database};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_host_costs_seconds_and_is_found_again() {
    let database = database().await;
    let direct: PgConnectOptions = database.url().parse().expect("a well-formed URL");
    let target = format!("{}:{}", direct.get_host(), direct.get_port()).parse().expect("an address");
    let link = Link::to(target).await.expect("a link");
    let through = direct.host("127.0.0.1").port(link.address().port()).to_url_lossy();
    let backend = PostgresBackend::open(through.as_str(), Options::default()).expect("a well-formed URL");
    let store = Store::open(backend, StoreOptions::default());
    within(store.ready()).await;
    let other = Store::open(connect(&database), StoreOptions::default());
    within(other.ready()).await;
    put(&store, create(&app("before"), "0")).await;

    link.cut();
    // More than there are connections, so that none is left over.
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let store = store.clone();
        calls.spawn(async move {
            let written = store.commit(item(vec![create(&app(&format!("during-{number}")), "0")])).await;
            assert!(!matches!(written, Ok(_) | Err(CommitError::Refused(_))), "{written:?}");
            assert!(store.fresh().await.is_err(), "a read was answered");
        });
    }
    within(async {
        while let Some(call) = calls.join_next().await {
            call.expect("no call hangs");
        }
    })
    .await;

    link.mend();
    eventually(Duration::from_secs(30), async || store.fresh().await.is_ok()).await;
    put(&store, create(&app("after"), "0")).await;
    // Nothing of what was given up comes after.
    let head = within(other.fresh()).await.expect("fresh");
    let names: Vec<String> =
        head.list(Kind::Application, Some("shop")).map(|entry| entry.key.name.clone()).collect();
    assert_eq!(names, ["after", "before"]);

    // It listens again: the change of another process comes by notification.
    let mut watcher = store.watch(Kind::Application, store.snapshot().revision()).expect("a watch");
    let revision = put(&other, create(&app("elsewhere"), "0")).await;
    assert_eq!(changes_up_to(&mut watcher, revision).await.len(), 1);
    store.shutdown().await;
    other.shutdown().await;
}
