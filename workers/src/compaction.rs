//! The compaction loop: makes room in the change log ahead of time, and drops what is older than is kept.
//!
//! Any process makes room when it finds none, so writes never depend on this loop; it only sees to it that
//! they need not wait, and that the past does not grow without end.

use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::Kind;
use horchestra_store::backend::Retention;
use horchestra_store::{Change, Store};

use crate::substrate::{PassError, PassReport, Reconciler, Term};

/// The loop.
pub struct Compaction {
    store: Store,
    retention: Retention,
}

impl Compaction {
    pub fn new(store: Store, retention: Retention) -> Compaction {
        Compaction { store, retention }
    }
}

impl Reconciler for Compaction {
    fn name(&self) -> &'static str {
        "compaction"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[]
    }

    fn wakes(&self, _: &Change) -> bool {
        false
    }

    fn resync(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn pass<'a>(&'a mut self, _: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(async move {
            let oldest = self.store.maintain(self.retention).await.map_err(PassError::Read)?;
            tracing::debug!(oldest, "compacted");
            Ok(PassReport::default())
        })
    }
}
