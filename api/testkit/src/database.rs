//! A database per test, copied from a template that was migrated once.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::shared;

/// A migrated database that serves as the original of others.
#[derive(Clone, Debug)]
pub struct Template {
    name: String,
}

impl Template {
    /// Runs `migrate` on a fresh database, once for every `content` (all the migrations' text, say) on this
    /// server; whoever comes second waits and reuses the result. `migrate` gets the database's address and
    /// must have closed its connections when it returns.
    pub async fn prepare(
        name: &str,
        content: &[u8],
        migrate: impl AsyncFnOnce(String) -> anyhow::Result<()>,
    ) -> anyhow::Result<Template> {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let hash = hasher.finish();
        let label: String = name.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let template = format!("ht_template_{}_{hash:016x}", label.to_ascii_lowercase());

        let mut server = PgConnection::connect(&server_url("postgres").await?).await?;
        // One migrates, the others wait; the lock goes with the session.
        sqlx::query("SELECT pg_advisory_lock($1)").bind(hash.cast_signed()).execute(&mut server).await?;
        let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&template)
            .fetch_one(&mut server)
            .await?;
        if !exists {
            // Under another name until it is complete, so that a failed attempt is never taken for it.
            let draft = format!("{template}_draft");
            execute(&mut server, format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await?;
            execute(&mut server, format!("CREATE DATABASE {draft} TEMPLATE template0")).await?;
            migrate(server_url(&draft).await?)
                .await
                .with_context(|| format!("the template database {name} could not be migrated"))?;
            sqlx::query("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1")
                .bind(&draft)
                .execute(&mut server)
                .await?;
            execute(&mut server, format!("ALTER DATABASE {draft} RENAME TO {template}")).await?;
            execute(&mut server, format!("ALTER DATABASE {template} ALLOW_CONNECTIONS false")).await?;
        }
        server.close().await?;
        Ok(Template { name: template })
    }

    /// A new copy.
    pub async fn database(&self) -> anyhow::Result<TestDatabase> {
        TestDatabase::create(&self.name).await
    }
}

/// A database with nothing in it.
pub async fn empty_database() -> anyhow::Result<TestDatabase> {
    TestDatabase::create("template0").await
}

/// The address of a database of the server that tests share: the one that `TEST_DATABASE_URL` names, or the
/// private one, which this starts if need be.
pub async fn server_url(database: &str) -> anyhow::Result<String> {
    if let Some(url) = env::var_os("TEST_DATABASE_URL")
        && !url.is_empty()
    {
        let url = url.to_str().context("TEST_DATABASE_URL is not a text")?;
        return with_database(url, database);
    }
    let port = tokio::task::spawn_blocking(shared::port).await??;
    Ok(format!("postgres://postgres@127.0.0.1:{port}/{database}"))
}

/// Replaces the database in `scheme://authority/database?parameters`.
fn with_database(url: &str, database: &str) -> anyhow::Result<String> {
    let (scheme, rest) = url.split_once("://").context("TEST_DATABASE_URL is not a postgres:// address")?;
    let (place, parameters) = rest.split_once('?').map_or((rest, ""), |(place, query)| (place, query));
    let authority = place.split('/').next().unwrap_or_default();
    let mark = if parameters.is_empty() { "" } else { "?" };
    Ok(format!("{scheme}://{authority}/{database}{mark}{parameters}"))
}

/// A database that one test owns. Dropped with the value, whoever is still connected.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: String,
}

impl TestDatabase {
    async fn create(original: &str) -> anyhow::Result<TestDatabase> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ht_{}_{count}_{nanos:x}", std::process::id());
        let mut server = PgConnection::connect(&server_url("postgres").await?).await?;
        execute(&mut server, format!("CREATE DATABASE {name} TEMPLATE {original}")).await?;
        server.close().await?;
        Ok(TestDatabase { url: server_url(&name).await?, name })
    }

    /// Its address, as its owner.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A destructor cannot wait on the runtime it may be running in.
        let dropper = std::thread::spawn(move || -> anyhow::Result<()> {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
                let mut server = PgConnection::connect(&server_url("postgres").await?).await?;
                execute(&mut server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
                server.close().await?;
                Ok(())
            })
        });
        let _ = dropper.join();
    }
}

/// Runs a statement that takes no parameters. Every name in it was made here of letters and digits.
async fn execute(connection: &mut PgConnection, statement: String) -> anyhow::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_of_an_address_is_replaced_and_the_rest_stays() {
        for (given, expected) in [
            ("postgres://u:p@host:1/old", "postgres://u:p@host:1/new"),
            ("postgresql://host", "postgresql://host/new"),
            ("postgres://host/old?sslmode=require", "postgres://host/new?sslmode=require"),
            ("postgres:///old?host=/run/pg", "postgres:///new?host=/run/pg"),
        ] {
            assert_eq!(with_database(given, "new").unwrap(), expected);
        }
        assert!(with_database("host/old", "new").is_err());
    }
}
