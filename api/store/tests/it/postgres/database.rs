//! Databases for the tests, and connections to them.

use std::sync::Arc;

use futures::FutureExt;
use horchestra_store::Backend;
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_testkit::{Template, TestDatabase};

use crate::fixture::World;

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

/// The behaviour suite's world on a database of its own.
pub async fn world() -> World {
    let database = Arc::new(database().await);
    let connections = Arc::clone(&database);
    let connect = move || {
        let backend: Arc<dyn Backend> = connect(&connections);
        async move { backend }.boxed()
    };
    World::new(Box::new(connect), database)
}
