//! What a database says, through the views that are for people.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::time::timeout;

/// How long the database may take to answer everything.
const PATIENCE: Duration = Duration::from_secs(10);

/// How things stand. Field names are what `-o json` shows.
#[derive(Debug, Default, Serialize)]
pub struct Database {
    pub overview: Overview,
    pub processes: Vec<Process>,
    pub leases: Vec<Lease>,
    pub gateways: Vec<Gateway>,
    pub held_nodes: Vec<Held>,
    pub silent_nodes: Vec<Silent>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Overview {
    /// Newest revision, and how many are kept in the log.
    pub head: i64,
    pub revisions_kept: i64,
    pub database_bytes: i64,
    pub server_version: String,
    /// Number of the newest migration.
    pub migration: i64,
    pub nodes: i64,
    pub nodes_ready: i64,
    pub nodes_held: i64,
    pub sessions: i64,
    pub applications: i64,
    pub running: i64,
    pub pending: i64,
    pub failed: i64,
    pub oldest_transaction_seconds: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Process {
    pub program: String,
    pub place: String,
    pub version: String,
    pub live: bool,
    pub started_at: String,
    pub seen_seconds: f64,
    /// Changes that it had not read when it was last seen, and for how long.
    pub behind: i64,
    pub behind_seconds: f64,
    pub leads: Vec<String>,
    pub nodes: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Lease {
    pub name: String,
    pub holder_place: Option<String>,
    pub epoch: i64,
    pub live: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Gateway {
    pub name: Option<String>,
    pub internal_address: String,
    pub live: bool,
    pub nodes: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Held {
    pub node: String,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Silent {
    pub node: String,
    pub silent_seconds: f64,
}

const OVERVIEW: &str = "select o.*, current_setting('server_version') as server_version, \
    (select max(m.version) from inspect.migrations m) as migration, \
    extract(epoch from o.oldest_transaction)::float8 as oldest_transaction_seconds from inspect.overview o";
const PROCESSES: &str = "select p.*, extract(epoch from now() - p.seen_at)::float8 as seen_seconds, \
    extract(epoch from p.behind_for)::float8 as behind_seconds from inspect.processes p \
    order by p.program, p.place, p.started_at";
const LEASES: &str = "select * from inspect.leases order by name";
const GATEWAYS: &str = "select * from inspect.gateways order by name, id";
const HELD: &str = "select * from inspect.held_nodes order by node";
const SILENT: &str = "select name as node, extract(epoch from silent_for)::float8 as silent_seconds from inspect.nodes \
    where silent_for > interval '1 minute' order by silent_for desc, name";

/// Asks the database.
pub async fn ask(url: &str) -> Result<Database> {
    timeout(PATIENCE, read(url)).await.context("the database did not answer within ten seconds")?
}

async fn read(url: &str) -> Result<Database> {
    let mut connection = PgConnection::connect(url)
        .await
        .context("the database cannot be reached: see whether PostgreSQL runs and the URL is right")?;
    let overview = rows(&mut connection, OVERVIEW).await.context(
        "the database has no views to read: bring it up to date (`horchestra-api migrate`), or ask as a user in the \
         role horchestra_reader",
    )?;
    let answer = Database {
        overview: overview.into_iter().next().context("the database was never migrated to its end")?,
        processes: rows(&mut connection, PROCESSES).await?,
        leases: rows(&mut connection, LEASES).await?,
        gateways: rows(&mut connection, GATEWAYS).await?,
        held_nodes: rows(&mut connection, HELD).await?,
        silent_nodes: rows(&mut connection, SILENT).await?,
    };
    connection.close().await?;
    Ok(answer)
}

async fn rows<T: DeserializeOwned>(connection: &mut PgConnection, query: &'static str) -> Result<Vec<T>> {
    let wrapped = AssertSqlSafe(format!("select to_jsonb(q)::text from ({query}) q"));
    let rows = sqlx::raw_sql(wrapped).fetch_all(connection).await?;
    rows.iter().map(|row| Ok(serde_json::from_str(&row.try_get::<String, _>(0)?)?)).collect()
}
