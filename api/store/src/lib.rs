//! The ordered store.

pub mod store;
pub mod types;

pub use store::{Fetched, Page, PageRequest, ReadError, Snapshot, Store, WatchEnd, Watcher};
pub use types::*;
