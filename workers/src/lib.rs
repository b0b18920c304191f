//! The loops that turn what was asked for into what should run where.

pub mod heartbeats;
pub mod lifecycle;
pub mod scheduler;
pub mod substrate;
