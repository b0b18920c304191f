//! Readers that go away.

use std::time::Duration;

use horchestra_store::{Backend, HistoryOf};
use horchestra_testkit::eventually;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::database::{connect, database};
use crate::fixture::*;

/// Server processes that wait for a lock on behalf of a reader.
async fn waiting(connection: &mut PgConnection) -> Vec<i32> {
    sqlx::query(
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
         and query like '%horchestra.history%'",
    )
    .fetch_all(connection)
    .await
    .expect("the activity")
    .iter()
    .map(|row| row.get(0))
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_nobody_waits_for_any_more_ends_with_its_connection() {
    let database = database().await;
    let backend = connect(&database);
    let mut observer = PgConnection::connect(database.url()).await.expect("a connection");
    let mut holder = PgConnection::connect(database.url()).await.expect("a connection");
    let lock = "begin; lock table horchestra.history in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.expect("locked");

    let reader = tokio::spawn({
        let backend = backend.clone();
        async move { backend.history(HistoryOf::Key(app("a"))).await }
    });
    let pid =
        eventually(Duration::from_secs(20), async || waiting(&mut observer).await.first().copied()).await;
    reader.abort();
    // Were the connection only handed back, its server process would be there for ever.
    eventually(Duration::from_secs(20), async || {
        let found =
            sqlx::query("select 1 from pg_stat_activity where pid = $1").bind(pid).fetch_all(&mut observer);
        found.await.expect("the activity").is_empty()
    })
    .await;
    sqlx::raw_sql("rollback").execute(&mut holder).await.expect("unlocked");
    assert!(backend.history(HistoryOf::Key(app("a"))).await.expect("an answer").is_empty());
    backend.close().await;
}
