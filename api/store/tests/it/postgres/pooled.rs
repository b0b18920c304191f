//! What a pooler says of itself is not taken for an answer of its server.

use std::sync::Arc;
use std::time::Duration;

use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::{Backend, BackendError};
use horchestra_testkit::{Cluster, ClusterOptions, Pooler, Pooling, eventually};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::fixture::*;

const SOON: Duration = Duration::from_secs(60);
const WAITS: &str = "select exists (select 1 from pg_locks l where l.relation = 'horchestra.objects'::regclass and not l.granted)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn a_server_that_is_lost_behind_a_pooler_is_waited_for_and_what_it_did_is_not_known() {
    if Pooler::program().is_none() {
        eprintln!("NOTE: PgBouncer is not installed; this test is passed over");
        return;
    }
    let mut server = Cluster::start(ClusterOptions::default()).expect("a server");
    postgres::migrate_schema(&server.url("postgres")).await.expect("migrated");
    let pooler =
        Pooler::start(server.port(), Pooling::Session, &[("server_login_retry", "1")]).expect("a pooler");
    let open = || PostgresBackend::open(&pooler.url("postgres"), Options::default()).expect("a URL");
    let backend = open();
    let commit = |name: &'static str| {
        let backend = Arc::clone(&backend);
        async move { backend.commit(&[item(vec![create(&app(name), "1")])], Uuid::new_v4()).await }
    };
    commit("before").await.expect("stored");

    let mut direct = PgConnection::connect(&server.url("postgres")).await.expect("a connection");
    for statement in ["begin", "lock table horchestra.objects in access exclusive mode"] {
        sqlx::query(statement).execute(&mut direct).await.expect("locked");
    }
    let pending = tokio::spawn(commit("meanwhile"));
    eventually(SOON, async || {
        let mut watching = PgConnection::connect(&server.url("postgres")).await.expect("a connection");
        sqlx::query_scalar::<_, bool>(WAITS).fetch_one(&mut watching).await.expect("locks")
    })
    .await;
    server.kill().expect("killed");
    let lost = pending.await.expect("no panic");
    assert!(matches!(lost, Err(BackendError::Unknown(_))), "{lost:?}");

    // Who starts now waits, and has not found statements mixed up.
    let late = open();
    let found = late.mixes_statements().await;
    assert!(matches!(found, Err(BackendError::Unavailable(_))), "{found:?}; {}", pooler.log());
    server.start_again().expect("started");
    eventually(SOON, async || late.mixes_statements().await.is_ok_and(|mixes| !mixes)).await;
    eventually(SOON, async || commit("after").await.is_ok()).await;
    late.close().await;
    backend.close().await;
}
