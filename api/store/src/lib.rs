//! The ordered store.

pub mod backend;
pub mod batch;
mod cache;
mod committer;
mod fresh;
pub mod memory;
mod metrics;
pub mod postgres;
mod presence;
pub mod store;
mod tail;
pub mod types;

pub use backend::{Backend, BackendError, ClaimRow, HistoryOf, HistoryRow, Retention, Settings};
pub use memory::{MemoryBackend, MemoryDatabase};
pub use metrics::{Count, Histogram, StoreMetrics};
pub use store::*;
pub use types::*;
