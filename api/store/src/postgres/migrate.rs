//! Bringing the schema up to date.
//!
//! Migrations are embedded, only ever go forward, and each runs in one transaction. Any number of processes
//! may do this at once: the first takes an advisory lock, the others wait and find nothing left to do. An
//! older program on a newer schema is fine (a rolling update has that for a while): migrations that it does
//! not know are ignored.

use std::borrow::Cow;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use serde_json::json;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row, SqlSafeStr};
use uuid::Uuid;

use super::{MigrateError, Options, PostgresBackend};
use crate::backend::{Backend, BackendError};
use crate::types::{Attribution, Columns, Draft, Guard, Index, Item, Op};

const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "store", include_str!("../../../../migrations/0001_store.sql")),
    (2, "commit", include_str!("../../../../migrations/0002_commit.sql")),
    (3, "commit_batch", include_str!("../../../../migrations/0003_commit_batch.sql")),
    (4, "leases", include_str!("../../../../migrations/0004_leases.sql")),
    (5, "sealing", include_str!("../../../../migrations/0005_sealing.sql")),
    (6, "events_of_namespaces", include_str!("../../../../migrations/0006_events_of_namespaces.sql")),
    (7, "numbers", include_str!("../../../../migrations/0007_numbers.sql")),
    (8, "claims_along", include_str!("../../../../migrations/0008_claims_along.sql")),
    (9, "push_holds", include_str!("../../../../migrations/0009_push_holds.sql")),
    (10, "token_forms", include_str!("../../../../migrations/0010_token_forms.sql")),
    (11, "addresses", include_str!("../../../../migrations/0011_addresses.sql")),
    (12, "samples", include_str!("../../../../migrations/0012_samples.sql")),
    (13, "gateways", include_str!("../../../../migrations/0013_gateways.sql")),
    (14, "inspect", include_str!("../../../../migrations/0014_inspect.sql")),
    (15, "spans", include_str!("../../../../migrations/0015_spans.sql")),
];

/// Held while migrating; another than the driver's own, which does not cover the making of its table.
const LOCK: i64 = 7_239_181_146_252_903;

/// All migrations as bytes: changes when any of them does.
pub fn fingerprint() -> Vec<u8> {
    MIGRATIONS.iter().flat_map(|(_, _, sql)| sql.bytes()).collect()
}

/// Number of the newest migration.
pub(super) fn newest() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

/// Brings the schema up to date, and in a database that never stored anything creates the Namespace
/// `default` as its first object.
pub async fn migrate(url: &str) -> Result<(), MigrateError> {
    let mut connection = locked(url).await?;
    let migrated = run(&mut connection).await;
    let seeded = match migrated {
        Ok(()) => seed_if_new(url, &mut connection).await,
        Err(error) => Err(error),
    };
    close(connection, seeded).await
}

/// Brings the schema up to date and stores nothing.
pub async fn migrate_schema(url: &str) -> Result<(), MigrateError> {
    let mut connection = locked(url).await?;
    let migrated = run(&mut connection).await;
    close(connection, migrated).await
}

/// A connection that holds the lock until it is closed.
async fn locked(url: &str) -> Result<PgConnection, MigrateError> {
    let options: PgConnectOptions = url.parse().map_err(MigrateError::Url)?;
    let mut connection = options.connect().await.map_err(MigrateError::Connect)?;
    sqlx::query("select pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut connection)
        .await
        .map_err(MigrateError::Statement)?;
    Ok(connection)
}

async fn close(connection: PgConnection, result: Result<(), MigrateError>) -> Result<(), MigrateError> {
    let closed = connection.close().await;
    result?;
    closed.map_err(MigrateError::Statement)
}

async fn run(connection: &mut PgConnection) -> Result<(), MigrateError> {
    let migrations = MIGRATIONS
        .iter()
        .map(|(version, name, sql)| {
            Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql.into_sql_str(), false)
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.create_schema("horchestra");
    migrator.dangerous_set_table_name("horchestra.migrations");
    migrator.set_ignore_missing(true);
    migrator.run_direct(None, connection, false).await.map_err(MigrateError::Run)?;
    // Of tables that are new, and in case the roles could not be made before.
    let granted = sqlx::query("select horchestra.grant_roles()").execute(connection).await;
    granted.map(drop).map_err(MigrateError::Statement)
}

async fn seed_if_new(url: &str, connection: &mut PgConnection) -> Result<(), MigrateError> {
    let row = sqlx::query("select horchestra.head()").fetch_one(connection).await;
    let head = row.and_then(|row| row.try_get::<i64, _>(0)).map_err(MigrateError::Statement)?;
    if head == 0 { seed(url).await.map_err(MigrateError::Seed) } else { Ok(()) }
}

async fn seed(url: &str) -> Result<(), BackendError> {
    let uid = Uuid::new_v4();
    let key = Key::cluster(Kind::Namespace, "default");
    let created = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string();
    let object = Object::from_value(json!({
        "metadata": {"name": key.name, "uid": uid, "generation": 1, "creationTimestamp": created},
    }))
    .unwrap_or_default();
    let draft = Draft {
        uid,
        generation: 1,
        deleting: false,
        body: object::encode(key.kind, &object),
        managed: None,
        index: Index::default(),
        columns: Columns::default(),
        edges: Vec::new(),
        key: key.clone(),
    };
    let who = Attribution {
        user: "system:migration".into(),
        verb: "create".into(),
        audit_id: Uuid::new_v4(),
        trace: None,
    };
    let item = Item { ops: vec![Op::Create(draft)], guards: vec![Guard::Unchanged(key, 0)], who };
    let backend = PostgresBackend::open(
        url,
        Options { application: "horchestra-migrate".into(), ..Options::default() },
    )?;
    let done = backend.commit(&[item], Uuid::new_v4()).await;
    backend.close().await;
    done.map(drop)
}
