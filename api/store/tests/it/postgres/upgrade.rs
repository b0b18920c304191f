//! Programs and schemas of different versions, and migrating under people who use the database.

use std::sync::Arc;

use horchestra_store::postgres::{self, MIGRATIONS, MigrateError, Options, PostgresBackend, examine};
use horchestra_store::{Backend, Schema, SchemaFault};
use horchestra_testkit::{TestDatabase, empty_database, eventually};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::database::{connect, database};
use super::listening::SOON;
use super::roles::as_role;

fn known() -> i64 {
    MIGRATIONS.iter().map(|(number, ..)| *number).max().expect("there are migrations")
}

async fn run(database: &TestDatabase, statement: &str) -> PgConnection {
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.expect(statement);
    connection
}

/// Does as a later version that has migrated.
async fn migrate_further(database: &TestDatabase, number: i64, name: &str) {
    let statement = format!(
        "insert into horchestra.migrations (version, description, success, checksum, execution_time) \
         values ({number}, '{name}', true, '', 0)"
    );
    run(database, &statement).await;
}

/// What a process that starts on the database learns, in the role of processes.
async fn schema(database: &TestDatabase) -> Schema {
    let url = as_role(database, "horchestra_runtime");
    let backend = PostgresBackend::open(&url, Options::default()).expect("a well-formed URL");
    let schema = backend.schema().await.expect("an answer");
    backend.close().await;
    assert_eq!(
        examine(database.url(), None).await.expect("looked over").schema,
        schema,
        "check says the same"
    );
    schema
}

#[tokio::test]
async fn an_older_program_works_on_a_newer_schema_until_that_takes_away_what_it_uses() {
    let (database, known) = (database().await, known());
    assert_eq!(schema(&database).await, Schema { newest: Some(known), needed: 0, known });
    migrate_further(&database, known + 1, "from the future").await;
    let ahead = schema(&database).await;
    assert!(ahead.is_ahead() && ahead.newest == Some(known + 1), "{ahead:?}");
    postgres::migrate(database.url()).await.expect("nothing to do");

    migrate_further(&database, known + 2, &format!("contract_{known}_samples")).await;
    assert_eq!(schema(&database).await.fault(), None);
    migrate_further(&database, known + 3, &format!("contract_{}_samples", known + 1)).await;
    let fault = schema(&database).await.fault().expect("it cannot work there");
    assert_eq!(fault, SchemaFault::TooNew { needed: known + 1, known });
    assert!(fault.to_string().contains("install the version"), "{fault}");
}

#[tokio::test]
async fn a_newer_program_asks_for_the_migration_that_it_needs() {
    let database = empty_database().await.expect("a database");
    let never = connect(&database);
    let fault = never.schema().await.expect("an answer").fault().expect("nothing is there");
    assert!(fault.to_string().contains("`horchestra-api migrate`"), "{fault}");
    never.close().await;

    let before = known() - 1;
    postgres::migrate_schema_to(database.url(), before).await.expect("migrated");
    let backend = connect(&database);
    let fault = backend.schema().await.expect("an answer").fault().expect("something is missing");
    assert_eq!(fault, SchemaFault::Older { newest: before, known: known() });
    assert!(fault.to_string().contains("`horchestra-api migrate`"), "{fault}");
    backend.close().await;
    postgres::migrate(database.url()).await.expect("migrated");
    assert_eq!(schema(&database).await.fault(), None);
}

#[tokio::test]
async fn every_older_schema_can_be_looked_over() {
    let database = empty_database().await.expect("a database");
    for (number, ..) in MIGRATIONS {
        postgres::migrate_schema_to(database.url(), *number).await.expect("migrated");
        let found = examine(database.url(), None).await.expect("looked over");
        assert_eq!(found.schema.newest, Some(*number));
    }
}

/// A dump holds its locks for as long as it takes. A migration that queued up behind it would have everybody else queue
/// up behind the migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_waits_for_somebody_holds_up_nobody_else() {
    let database = Arc::new(empty_database().await.expect("a database"));
    // The next one changes the table of gateways.
    postgres::migrate_schema_to(database.url(), 12).await.expect("migrated");
    let mut dump = run(&database, "begin; lock table horchestra.gateways in access share mode").await;
    let migrating = {
        let database = Arc::clone(&database);
        tokio::spawn(async move { postgres::migrate_schema(database.url()).await })
    };
    let mut watching = PgConnection::connect(database.url()).await.expect("a connection");
    let waits = "select exists (select 1 from pg_locks l where l.relation = 'horchestra.gateways'::regclass and not l.granted)";
    eventually(SOON, async || {
        sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut watching).await.expect("locks")
    })
    .await;
    // As statements of processes do, this one gives up after five seconds.
    let read = "set statement_timeout = '5s'; select 1 from horchestra.gateways";
    run(&database, read).await;
    assert!(!migrating.is_finished(), "the dump is still under way");
    sqlx::raw_sql("commit").execute(&mut dump).await.expect("over");
    migrating.await.expect("no panic").expect("migrated");
    assert_eq!(schema(&database).await.fault(), None);
}

#[tokio::test]
async fn a_migration_that_cannot_run_says_what_to_do() {
    let database = empty_database().await.expect("a database");
    let said = |error: MigrateError, what: &str| {
        let text = error.to_string();
        assert!(text.contains(what), "{what} in {text}");
    };
    said(postgres::migrate("nonsense").await.expect_err("no URL"), "write it as postgres://");
    let away = postgres::migrate("postgres://x@127.0.0.1:1/none").await.expect_err("nobody is there");
    said(away, "see whether PostgreSQL runs");

    let stranger = format!("{}_stranger", database.name());
    run(&database, &format!("create role {stranger}")).await;
    let refused = postgres::migrate(&as_role(&database, &stranger)).await.expect_err("no rights");
    said(refused, "as the owner of the database");
    run(&database, &format!("drop role {stranger}")).await;

    postgres::migrate_schema(database.url()).await.expect("migrated");
    run(&database, "update horchestra.migrations set checksum = 'x' where version = 3").await;
    said(
        postgres::migrate(database.url()).await.expect_err("another file"),
        "migration 3 has run in this database in another form",
    );
}
