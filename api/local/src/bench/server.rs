//! The private PostgreSQL that everything is measured on.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use horchestra_core::kind::Kind;
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::{Store, StoreOptions};
use horchestra_testkit::{Cluster, ClusterOptions};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::report::Environment;

const SHOWN: [&str; 6] =
    ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_compression"];

pub struct Server {
    cluster: Cluster,
    databases: AtomicUsize,
}

impl Server {
    pub fn start() -> Result<Server> {
        let mut settings = vec![
            ("max_wal_size", "2GB"),
            ("shared_buffers", "512MB"),
            ("checkpoint_timeout", "15min"),
            ("synchronous_commit", "on"),
        ];
        if counts_statements() {
            settings.push(("shared_preload_libraries", "pg_stat_statements"));
        }
        let options = ClusterOptions {
            fsync: true,
            max_connections: 400,
            settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        };
        Ok(Server { cluster: Cluster::start(options)?, databases: AtomicUsize::new(0) })
    }

    /// A new database with the schema and the namespace `default`; the log has room for a long run, and the
    /// last run's dirty pages are on disk.
    pub async fn database(&self) -> Result<String> {
        let name = format!("bench_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&self.cluster.url("postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await?;
        let url = self.cluster.url(&name);
        postgres::migrate(&url).await?;
        let mut inside = PgConnection::connect(&url).await?;
        sqlx::raw_sql("select horchestra.ensure_partitions(0, 24); create sequence public.bench_rv start 2")
            .execute(&mut inside)
            .await?;
        sqlx::raw_sql("checkpoint").execute(&mut admin).await?;
        Ok(url)
    }

    /// Drops a database that [`Server::database`] made.
    pub async fn drop_database(&self, url: &str) -> Result<()> {
        let name = url.rsplit('/').next().unwrap_or_default().split('?').next().unwrap_or_default();
        let mut admin = PgConnection::connect(&self.cluster.url("postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("drop database if exists {name} with (force)")))
            .execute(&mut admin)
            .await?;
        Ok(())
    }

    /// CPU seconds that the server's processes have used, those that ended included.
    pub fn cpu(&self) -> f64 {
        let Some(pid) = self.cluster.pid() else { return 0.0 };
        // Of the postmaster: its own and those of ended children; of living children: their own.
        let mut ticks = stat(&format!("{pid}")).map_or(0, |stat| stat.own + stat.children);
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(stat) = entry.file_name().to_str().and_then(stat)
                && stat.parent == pid
            {
                ticks += stat.own;
            }
        }
        seconds(ticks)
    }

    pub async fn environment(&self) -> Result<Environment> {
        let mut connection = PgConnection::connect(&self.cluster.url("postgres")).await?;
        let version = sqlx::query("select version()").fetch_one(&mut connection).await?;
        let mut settings = Vec::new();
        for name in SHOWN {
            let row = sqlx::query("select current_setting($1)").bind(name).fetch_one(&mut connection).await?;
            settings.push((name.to_owned(), row.try_get(0)?));
        }
        Ok(Environment {
            postgres: version.try_get(0)?,
            settings,
            revision: answer_of("git", &["rev-parse", "--short", "HEAD"]),
            kernel: answer_of("uname", &["-sr"]),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            profile: if cfg!(debug_assertions) { "development" } else { "release" },
        })
    }
}

/// Whether the server can count its statements: the library comes in a package of its own on some systems.
fn counts_statements() -> bool {
    let library = || {
        // What is on the path may be a link.
        let program =
            std::fs::canonicalize(horchestra_testkit::binaries::folder().ok()?.join("postgres")).ok()?;
        Some(program.parent()?.parent()?.join("lib/pg_stat_statements.so"))
    };
    library().is_some_and(|path| path.is_file())
}

struct Stat {
    parent: u32,
    own: u64,
    children: u64,
}

fn stat(pid: &str) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: number(11)? + number(12)?,
        children: number(13)? + number(14)?,
    })
}

/// CPU seconds that this process has used.
pub fn own_cpu() -> f64 {
    stat("self").map_or(0.0, |stat| seconds(stat.own))
}

#[allow(clippy::cast_precision_loss)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / 100.0
}

fn answer_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output
        .map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// pgbench, from the folder that the server's programs came from.
pub fn pgbench() -> Result<PathBuf> {
    horchestra_testkit::postgres_program("pgbench")
}

/// A store as a process has one: every kind cached.
pub async fn store(url: &str, name: &str) -> Result<Store> {
    let options = Options { application: name.into(), ..Options::default() };
    let backend: Arc<PostgresBackend> =
        PostgresBackend::open(url, options).context("cannot open the store")?;
    let store = Store::open(backend, StoreOptions { kinds: Kind::ALL.to_vec(), ..StoreOptions::default() });
    store.ready().await;
    Ok(store)
}
