//! Databases for the tests, and connections to them.

use std::sync::Arc;

use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_testkit::{Template, TestDatabase};

/// A database with the schema and nothing in it.
pub async fn database() -> TestDatabase {
    let schema = postgres::fingerprint();
    let template = Template::prepare("store", &schema, async |url| {
        postgres::migrate_schema(&url).await?;
        Ok(())
    });
    template.await.expect("a migrated template").database().await.expect("a database")
}

/// A connection, as a process has one.
pub fn connect(database: &TestDatabase) -> Arc<PostgresBackend> {
    PostgresBackend::open(database.url(), Options::default()).expect("a well-formed URL")
}
