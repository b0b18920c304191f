//! The ordered store.

pub mod backend;
pub mod batch;
pub mod memory;
pub mod store;
pub mod types;

pub use backend::{Backend, BackendError};
pub use store::{Fetched, Page, PageRequest, ReadError, Snapshot, Store, WatchEnd, Watcher};
pub use types::*;
