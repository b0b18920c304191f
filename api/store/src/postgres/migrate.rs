//! Bringing the schema up to date.
//!
//! Migrations are embedded, only ever go forward, and each runs in one transaction. Any number of processes
//! may do this at once: the first takes an advisory lock, the others wait and find nothing left to do. An
//! older program on a newer schema is fine (a rolling update has that for a while): migrations that it does
//! not know are ignored.
//!
//! A change of a table waits until nobody uses the table, and everybody who comes later waits behind it: one dump
//! that is under way would hold up the whole control plane. So a migration waits for a lock for a moment only, is
//! taken back as a whole, and comes again.

use std::borrow::Cow;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use serde_json::json;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row, SqlSafeStr};
use uuid::Uuid;

use super::{MigrateError, Options, PostgresBackend, between};
use crate::backend::{Backend, BackendError};
use crate::types::{Attribution, Columns, Draft, Guard, Index, Item, Op};

/// Number, name and text of each migration, in their order.
pub const MIGRATIONS: &[(i64, &str, &str)] = &[
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
    (16, "put_back", include_str!("../../../../migrations/0016_put_back.sql")),
    (17, "unseen_gateways", include_str!("../../../../migrations/0017_unseen_gateways.sql")),
    (18, "failover", include_str!("../../../../migrations/0018_failover.sql")),
];

/// Held while migrating; another than the driver's own, which does not cover the making of its table.
const LOCK: i64 = 7_239_181_146_252_903;

/// How long a statement of a migration waits for a lock.
const LOCK_WAIT: &str = "select set_config('lock_timeout', '1s', false)";
/// How often a migration that has to wait for locks comes again, and how long it leaves the others alone in between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_secs(2);

/// Gives the roles what is theirs; with every migration.
pub(super) const GRANT: &str = "select horchestra.grant_roles()";
/// Whether anything was ever stored.
pub(super) const HEAD: &str = "select horchestra.head()";

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

/// Brings an older schema up to the migration of this number, as the version that had no later ones did.
pub async fn migrate_schema_to(url: &str, newest: i64) -> Result<(), MigrateError> {
    let mut connection = locked(url).await?;
    let migrated = patiently(&mut connection, Some(newest)).await;
    close(connection, migrated).await
}

/// A connection that holds the lock until it is closed.
async fn locked(url: &str) -> Result<PgConnection, MigrateError> {
    let options: PgConnectOptions = url.parse().map_err(MigrateError::Url)?;
    // The lock below is a session's.
    if between::find_out(&options).await.map_err(MigrateError::Connect)?.lends {
        return Err(MigrateError::Pooled);
    }
    let mut connection = options.connect().await.map_err(MigrateError::Connect)?;
    sqlx::query("select pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut connection)
        .await
        .map_err(MigrateError::Statement)?;
    // From now on: who else migrates is waited for.
    sqlx::query(LOCK_WAIT).execute(&mut connection).await.map_err(MigrateError::Statement)?;
    Ok(connection)
}

async fn close(connection: PgConnection, result: Result<(), MigrateError>) -> Result<(), MigrateError> {
    let closed = connection.close().await;
    result?;
    closed.map_err(MigrateError::Statement)
}

async fn run(connection: &mut PgConnection) -> Result<(), MigrateError> {
    patiently(connection, None).await?;
    // Of tables that are new, and in case the roles could not be made before.
    let granted = sqlx::query(GRANT).execute(connection).await;
    granted.map(drop).map_err(MigrateError::Statement)
}

/// Runs what is missing, again and again where somebody has locked what it changes.
async fn patiently(connection: &mut PgConnection, target: Option<i64>) -> Result<(), MigrateError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let error = match migrator().run_direct(target, connection, false).await {
            Ok(()) => return Ok(()),
            Err(error) => MigrateError::of_run(error),
        };
        if !matches!(error, MigrateError::Busy(_)) || attempts == ATTEMPTS {
            return Err(error);
        }
        if attempts == 1 {
            tracing::warn!(
                "a migration waits for somebody's transaction, and is tried again every few seconds"
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn migrator() -> Migrator {
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
    migrator
}

async fn seed_if_new(url: &str, connection: &mut PgConnection) -> Result<(), MigrateError> {
    let row = sqlx::query(HEAD).fetch_one(connection).await;
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
