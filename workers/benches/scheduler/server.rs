//! A PostgreSQL with durable commits, and a store on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use horchestra_core::kind::Kind;
use horchestra_store::Store;
use horchestra_store::postgres::{Options, PostgresBackend, migrate};
use horchestra_store::store::StoreOptions;
use horchestra_testkit::{Cluster, ClusterOptions};

pub struct Server {
    pub store: Store,
    pub statements: Statements,
    /// Ends with the value.
    _cluster: Cluster,
}

/// Statements that a store has run, by name.
#[derive(Clone, Default)]
pub struct Statements(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Statements {
    fn count(&self, name: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }

    /// What was run since it was last asked.
    pub fn take(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Server {
    pub async fn start() -> Result<Server> {
        let cluster = Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() })?;
        let url = cluster.url("postgres");
        migrate(&url).await.context("migrating")?;
        let statements = Statements::default();
        let counted = statements.clone();
        let options =
            Options { observer: Some(Arc::new(move |name, _| counted.count(name))), ..Options::default() };
        let backend = PostgresBackend::open(&url, options)?;
        let store =
            Store::open(backend, StoreOptions { kinds: Kind::ALL.to_vec(), ..StoreOptions::default() });
        store.ready().await;
        Ok(Server { store, statements, _cluster: cluster })
    }
}
