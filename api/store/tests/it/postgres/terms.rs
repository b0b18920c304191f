//! Terms are prolonged whatever else a process asks of the database.

use std::sync::Arc;
use std::time::Duration;

use horchestra_store::Backend;
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_testkit::eventually;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::database::database;

const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_is_prolonged_while_every_other_connection_waits() {
    let database = database().await;
    let options = Options { connections: 2, ..Options::default() };
    let backend = PostgresBackend::open(database.url(), options).expect("a well-formed URL");
    let (gateway, holder) = (Uuid::new_v4(), Uuid::new_v4());
    backend.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered");
    let lease = backend.acquire_lease("loop", holder, LONG).await.expect("answered").expect("free");

    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for statement in ["begin", "lock table horchestra.samples in access exclusive mode"] {
        sqlx::query(statement).execute(&mut connection).await.expect("locked");
    }
    let reads: Vec<_> = (0..4)
        .map(|_| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { backend.samples(&["node".to_owned()], LONG).await })
        })
        .collect();
    eventually(SOON, async || {
        let pools = backend.pools();
        pools
            .iter()
            .any(|pool| pool.pool == "general" && pool.open == 2 && pool.idle == 0 && pool.waiting > 0)
    })
    .await;
    assert!(backend.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered"));
    assert!(backend.renew_lease(&lease, LONG).await.expect("answered"));
    assert!(reads.iter().any(|read| !read.is_finished()), "nothing waits any more: this shows nothing");
    sqlx::query("rollback").execute(&mut connection).await.expect("unlocked");
    backend.close().await;
}
