//! The loops that turn what was asked for into what should run where.

pub mod args;
pub mod certificates;
pub mod compaction;
pub mod expiry;
pub mod gc;
pub mod heartbeats;
pub mod holds;
pub mod lifecycle;
pub mod retries;
pub mod run;
pub mod scheduler;
pub mod sets;
pub mod substrate;
pub mod survey;
