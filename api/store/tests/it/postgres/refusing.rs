//! A database that answers and takes no writes.

use std::sync::Arc;
use std::time::Duration;

use horchestra_store::{Backend, CommitError, Store, StoreOptions, Unwritable};
use horchestra_testkit::{TestDatabase, eventually};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::database::{connect, database};
use crate::fixture::*;

const SOON: Duration = Duration::from_secs(60);

async fn sql(database: &TestDatabase, statements: String) {
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await.expect("done");
    connection.close().await.expect("closed");
}

/// Writes are refused for this reason, reads are answered, and once `mend` has run all is as before.
async fn refuses(spoil: String, mend: String, why: Unwritable) {
    let database = database().await;
    let backend = connect(&database);
    sql(&database, spoil.replace("DATABASE", database.name())).await;
    let store = Store::open(Arc::clone(&backend) as Arc<dyn Backend>, StoreOptions::default());
    store.ready().await;
    let refused = store.commit(item(vec![create(&app("a"), "1")])).await;
    assert!(matches!(&refused, Err(CommitError::Unwritable(found)) if *found == why), "{refused:?}");
    assert_eq!(store.fresh().await.expect("a read").revision(), 0);
    assert_eq!(backend.unwritable(), Some(why));

    sql(&database, mend.replace("DATABASE", database.name())).await;
    let mut number = 0;
    eventually(SOON, async || {
        number += 1;
        store.commit(item(vec![create(&app(&format!("b{number}")), "1")])).await.is_ok()
            && backend.unwritable().is_none()
    })
    .await;
    store.shutdown().await;
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_read_only_is_found_out() {
    // What is connected already has to come anew, and does so by itself once it was refused.
    let again = "select pg_terminate_backend(pid) from pg_stat_activity \
        where datname = 'DATABASE' and pid <> pg_backend_pid()";
    refuses(
        format!("alter database DATABASE set default_transaction_read_only = on; {again}"),
        "set transaction_read_only = off; alter database DATABASE reset default_transaction_read_only"
            .to_owned(),
        Unwritable::ReadOnly,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_disk_is_full_is_found_out() {
    let full = "create function horchestra.full() returns trigger language plpgsql as \
        $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$; \
        create trigger full_disk before insert on horchestra.objects for each row execute function horchestra.full()";
    let room = "drop trigger full_disk on horchestra.objects";
    refuses(full.to_owned(), room.to_owned(), Unwritable::Full).await;
}
