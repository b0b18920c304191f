//! A connection that listens and hears nothing: found out, said, and worked around.

use std::time::Duration;

use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::{Backend, Store, StoreOptions};
use horchestra_testkit::eventually;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

pub const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_hears_nothing_is_found_out_and_changes_are_seen_all_the_same() {
    let (database, elsewhere) = (database().await, database().await);
    // Notifications stay within a database, so this connection stands and hears nothing, as through a pooler.
    let options = Options { listen_url: Some(elsewhere.url().to_owned()), ..Options::default() };
    let hearing = connect(&database);
    let mut heard = hearing.hints();
    heard.wait_for(|hint| hint.connected).await.expect("a backend");
    let deaf = PostgresBackend::open(database.url(), options).expect("well-formed URLs");
    let mut hints = deaf.hints();
    tokio::time::timeout(SOON, hints.wait_for(|hint| hint.connected && hint.deaf))
        .await
        .expect("found out in time")
        .expect("a backend");
    assert!(!heard.borrow().deaf, "one that was opened before hears");

    let reader = Store::open(deaf, StoreOptions::default());
    reader.ready().await;
    let done =
        hearing.commit(&[item(vec![create(&app("a"), "1")])], Uuid::new_v4()).await.expect("an answer");
    let revision = done.items.into_iter().next().expect("one").expect("committed").revisions[0];
    eventually(SOON, async || reader.snapshot().revision() >= revision).await;
    reader.shutdown().await;
    hearing.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_say_does_not_show_that_a_connection_hears() {
    let (database, elsewhere) = (database().await, database().await);
    let options = Options { listen_url: Some(elsewhere.url().to_owned()), ..Options::default() };
    // What a pooler lets through now and then, from a server that it has lent to the listening connection before.
    let mut noise = PgConnection::connect(elsewhere.url()).await.expect("a connection");
    let noise = tokio::spawn(async move {
        loop {
            let said = sqlx::query("select pg_notify('horchestra', '5')").execute(&mut noise).await;
            said.expect("said");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let deaf = PostgresBackend::open(database.url(), options).expect("well-formed URLs");
    let mut hints = deaf.hints();
    tokio::time::timeout(SOON, hints.wait_for(|hint| hint.deaf && hint.latest == 5))
        .await
        .expect("found out in time")
        .expect("a backend");
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(hints.borrow().deaf, "it was taken in");
    }
    noise.abort();
    deaf.close().await;
}
