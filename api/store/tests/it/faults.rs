//! What only the in-memory backend can be made to do: lost answers, silence, loss, stalls.

mod commits;
mod loss;
mod watchers;

use std::sync::Arc;
use std::time::Duration;

use horchestra_store::{MemoryBackend, MemoryDatabase, Store, StoreOptions};

use crate::fixture::within;

/// A store and the connection that it stands on.
async fn open(database: &MemoryDatabase) -> (Store, Arc<MemoryBackend>) {
    open_with(database, StoreOptions::default()).await
}

async fn open_with(database: &MemoryDatabase, options: StoreOptions) -> (Store, Arc<MemoryBackend>) {
    let backend = database.connect();
    let store = Store::open(backend.clone(), options);
    within(store.ready()).await;
    (store, backend)
}

/// Options under which the tail reads only when it is told to.
fn without_poll() -> StoreOptions {
    StoreOptions { poll: Duration::from_secs(24 * 3600), ..StoreOptions::default() }
}

/// Waits until the condition holds.
async fn until(mut condition: impl FnMut() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
