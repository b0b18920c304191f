//! The suite on the in-memory backend.

use futures::FutureExt;
use horchestra_store::{Backend, MemoryDatabase};
use std::sync::Arc;

use crate::fixture::World;

fn world() -> World {
    let database = MemoryDatabase::new();
    let connections = database.clone();
    let connect = move || {
        let backend: Arc<dyn Backend> = connections.connect();
        async move { backend }.boxed()
    };
    World::new(Box::new(connect), database)
}

pub async fn fresh_world() -> World {
    world()
}

crate::behaviour::suite!(crate::memory::fresh_world);
