//! What the last released version asks of the schema, and that the present schema still grants it.
//!
//! During an update the programs of that version run on the new schema. What they send is written down in
//! `released.json`: every statement with the types of its parameters and columns, the functions behind them, the
//! notification channel, and the columns of the views that people read. The file is made anew when a version is
//! released, and never otherwise:
//!
//! ```sh
//! make record-release
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::Backend;
use horchestra_store::postgres::{MIGRATIONS, statements};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sqlx::postgres::{PgConnection, PgListener};
use sqlx::{AssertSqlSafe, Column, Connection, Either, Executor, Row, SqlSafeStr, Statement, TypeInfo};
use uuid::Uuid;

use super::database::{connect, database};
use super::roles::as_role;
use super::schema::parameters;
use crate::fixture::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/postgres/released.json");

/// A released version, as its database sees it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Release {
    pub version: String,
    pub migrations: Vec<Landed>,
    channel: String,
    lease_given_up: String,
    partition_span: i64,
    /// Numbers of the kinds that it knows.
    kinds: Vec<i16>,
    /// By signature, what they return.
    functions: BTreeMap<String, String>,
    /// By name, their columns with their types.
    views: BTreeMap<String, Vec<String>>,
    statements: Vec<Asked>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Landed {
    pub number: i64,
    pub name: String,
    pub sha256: String,
}

/// A statement, as its sender means it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Asked {
    name: String,
    /// Whether the runtime role may run it; the rest is for the owner.
    runtime: bool,
    parameters: Vec<String>,
    columns: Vec<String>,
    sql: String,
}

impl Release {
    /// The last one.
    pub fn last() -> Release {
        serde_json::from_str(include_str!("released.json")).expect("the record can be read")
    }
}

/// Every migration of this tree.
pub fn landed() -> Vec<Landed> {
    let sum = |sql: &str| Sha256::digest(sql).iter().map(|byte| format!("{byte:02x}")).collect();
    MIGRATIONS
        .iter()
        .map(|(number, name, sql)| Landed { number: *number, name: (*name).to_owned(), sha256: sum(sql) })
        .collect()
}

/// Every statement of this tree.
fn all_statements() -> Vec<(&'static str, &'static str)> {
    let catalogue = statements::ALL.iter().map(|statement| (statement.name, statement.sql));
    catalogue.chain(statements::BESIDE.iter().copied()).collect()
}

/// What the database makes of a statement, or why it does not.
async fn ask(connection: &mut PgConnection, name: &str, sql: &str) -> Result<Asked, String> {
    let text = AssertSqlSafe(sql.to_owned()).into_sql_str();
    let prepared = connection.prepare(text).await.map_err(|error| error.to_string())?;
    let parameters = match prepared.parameters() {
        Some(Either::Left(types)) => types.iter().map(|of| of.name().to_owned()).collect(),
        _ => Vec::new(),
    };
    let columns =
        prepared.columns().iter().map(|column| format!("{} {}", column.name(), column.type_info().name()));
    let columns = columns.collect();
    Ok(Asked {
        name: name.to_owned(),
        runtime: may(connection, sql).await,
        parameters,
        columns,
        sql: sql.to_owned(),
    })
}

/// Whether this connection may run a statement: rights are looked at before anything runs.
async fn may(connection: &mut PgConnection, sql: &str) -> bool {
    let prepare = format!("deallocate all; prepare asked as {sql}");
    let prepared = sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await;
    let arguments = vec!["null"; parameters(sql)].join(", ");
    let arguments = if arguments.is_empty() { arguments } else { format!("({arguments})") };
    let explain = format!("explain execute asked{arguments}");
    prepared.is_ok() && sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.is_ok()
}

/// Functions of the store that occur in these statements, with their signatures.
async fn functions(connection: &mut PgConnection, sqls: &[&str]) -> BTreeMap<String, String> {
    let mut names = BTreeSet::new();
    for sql in sqls {
        for rest in sql.split("horchestra.").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if rest[name.len()..].starts_with('(') {
                names.insert(name);
            }
        }
    }
    let query = sqlx::query(
        "select p.oid::regprocedure::text, pg_get_function_result(p.oid) from pg_proc p \
         where p.pronamespace = 'horchestra'::regnamespace and p.proname = any ($1)",
    );
    let rows = query.bind(Vec::from_iter(names)).fetch_all(connection).await.expect("functions");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn views(connection: &mut PgConnection) -> BTreeMap<String, Vec<String>> {
    let query = sqlx::query(
        "select c.relname::text, array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) \
         order by a.attnum) from pg_class c join pg_attribute a on a.attrelid = c.oid \
         where c.relnamespace = 'inspect'::regnamespace and c.relkind = 'v' and a.attnum > 0 group by c.relname",
    );
    let rows = query.fetch_all(connection).await.expect("views");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn partition_span(connection: &mut PgConnection) -> i64 {
    let query = sqlx::query_scalar("select horchestra.partition_span()");
    query.fetch_one(connection).await.expect("the span of a partition")
}

/// What a version asks for and a database does not grant. `runtime` is in the role of the processes.
async fn missing(release: &Release, owner: &mut PgConnection, runtime: &mut PgConnection) -> Vec<String> {
    let mut missing = Vec::new();
    for asked in &release.statements {
        match ask(runtime, &asked.name, &asked.sql).await {
            Err(error) => missing.push(format!("statement {}: {error}", asked.name)),
            Ok(now) if now.parameters != asked.parameters || now.columns != asked.columns => {
                missing.push(format!(
                    "statement {}: takes {:?} and answers {:?}, where {:?} and {:?} are expected",
                    asked.name, now.parameters, now.columns, asked.parameters, asked.columns
                ));
            }
            Ok(now) if asked.runtime && !now.runtime => {
                missing.push(format!("statement {}: horchestra_runtime may not run it any more", asked.name));
            }
            Ok(_) => {}
        }
    }
    let asked: Vec<&str> = release.statements.iter().map(|asked| asked.sql.as_str()).collect();
    let present = functions(owner, &asked).await;
    for (signature, result) in &release.functions {
        match present.get(signature) {
            None => missing.push(format!("function {signature}: is gone")),
            Some(now) if now != result => {
                missing.push(format!("function {signature}: returns {now} instead of {result}"));
            }
            Some(_) => {}
        }
    }
    let present = views(owner).await;
    for (view, columns) in &release.views {
        let now = present.get(view).map_or(&[][..], Vec::as_slice);
        let gone: Vec<&String> = columns.iter().filter(|column| !now.contains(column)).collect();
        if !gone.is_empty() {
            missing.push(format!("view inspect.{view}: has not {gone:?}"));
        }
    }
    let span = partition_span(owner).await;
    if span != release.partition_span {
        missing.push(format!("partitions: span {span} revisions instead of {}", release.partition_span));
    }
    missing
}

/// Connections as the owner of a database, and in the role of the processes.
async fn connections(database: &horchestra_testkit::TestDatabase) -> (PgConnection, PgConnection) {
    let owner = PgConnection::connect(database.url()).await.expect("a connection");
    let runtime = as_role(database, "horchestra_runtime");
    (owner, PgConnection::connect(&runtime).await.expect("a connection"))
}

#[tokio::test]
async fn programs_of_the_last_release_get_what_they_ask_for() {
    let database = database().await;
    let (mut owner, mut runtime) = connections(&database).await;
    if std::env::var_os("RECORD_RELEASE").is_some() {
        return record(&mut owner, &mut runtime).await;
    }
    let missing = missing(&Release::last(), &mut owner, &mut runtime).await;
    assert_eq!(missing, Vec::<String>::new(), "{}", RULE);
}

const RULE: &str = "programs of the last release run on this schema during an update: add what is new beside what is \
    there, and take the old away in the release after the next (migrations/README.md)";

async fn record(owner: &mut PgConnection, runtime: &mut PgConnection) {
    let mut asked = Vec::new();
    for (name, sql) in all_statements() {
        asked.push(ask(runtime, name, sql).await.unwrap_or_else(|error| panic!("{name}: {error}")));
    }
    let sqls: Vec<&str> = asked.iter().map(|asked| asked.sql.as_str()).collect();
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        migrations: landed(),
        channel: statements::CHANNEL.to_owned(),
        lease_given_up: statements::LEASE_GIVEN_UP.to_owned(),
        partition_span: partition_span(owner).await,
        kinds: Kind::ALL.into_iter().map(Kind::number).collect(),
        functions: functions(owner, &sqls).await,
        views: views(owner).await,
        statements: asked,
    };
    let text = serde_json::to_string_pretty(&release).expect("JSON") + "\n";
    std::fs::write(Path::new(FILE), text).expect("the record is written");
}

/// What a migration must not do, and what is said then.
const BREAKING: &[(&str, &str)] = &[
    ("alter table horchestra.heartbeats drop column allocated_cpu", "statement heartbeats: "),
    ("alter table horchestra.settings rename column body to content", "statement settings: "),
    ("alter table horchestra.spans alter column span type int", "statement changes: takes"),
    ("drop function horchestra.settle_nonce(uuid, bigint)", "settle_nonce(uuid,bigint): is gone"),
    (
        "drop function horchestra.settle_home(boolean, boolean); \
         create function horchestra.settle_home(vouches boolean, patient boolean) returns int language sql as 'select 1'",
        "function horchestra.settle_home(boolean,boolean): returns integer instead of boolean",
    ),
    (
        "revoke select on horchestra.claims from horchestra_runtime",
        "statement claims: horchestra_runtime may not",
    ),
    ("drop view inspect.rollouts", "view inspect.rollouts: has not"),
    (
        "create or replace function horchestra.partition_span() returns bigint language sql immutable as 'select 7::bigint'",
        "partitions: span 7",
    ),
];

#[tokio::test]
async fn what_a_migration_takes_away_from_the_last_release_is_noticed() {
    let database = database().await;
    let release = Release::last();
    let mut admin = PgConnection::connect(database.url()).await.expect("a connection");
    for (statement, said) in BREAKING {
        sqlx::raw_sql(*statement).execute(&mut admin).await.expect(statement);
        let (mut owner, mut runtime) = connections(&database).await;
        let missing = missing(&release, &mut owner, &mut runtime).await;
        assert!(missing.iter().any(|one| one.contains(said)), "{said} in {missing:#?}");
    }
}

/// A program cannot follow a log with a kind of object in it that it has never heard of.
#[test]
fn programs_of_the_last_release_know_every_kind_that_is_stored() {
    let known = Release::last().kinds;
    for spec in horchestra_core::registry::served() {
        assert!(
            known.contains(&spec.kind.number()),
            "the last release does not know {}: release a version that knows it, and serve it in the one after",
            spec.kind.name()
        );
    }
}

#[tokio::test]
async fn programs_of_the_last_release_hear_what_is_announced() {
    let (database, release) = (database().await, Release::last());
    let mut listener = PgListener::connect(database.url()).await.expect("a connection");
    listener.listen(&release.channel).await.expect("listening");
    let backend = connect(&database);
    backend.commit(&[item(vec![create(&app("a"), "1")])], Uuid::new_v4()).await.expect("an answer");
    let lease = backend.acquire_lease("x", Uuid::new_v4(), Duration::from_secs(60)).await.expect("an answer");
    backend.release_lease(&lease.expect("nobody else has it")).await.expect("an answer");
    let mut heard = BTreeSet::new();
    while heard.len() < 2 {
        let said = tokio::time::timeout(Duration::from_secs(30), listener.recv())
            .await
            .expect("heard")
            .expect("heard");
        // Announcements that other programs try out whether they hear with are for nobody else.
        if Uuid::parse_str(said.payload()).is_err() {
            heard.insert(said.payload().to_owned());
        }
    }
    assert_eq!(heard, BTreeSet::from(["1".to_owned(), release.lease_given_up]));
    backend.close().await;
}
