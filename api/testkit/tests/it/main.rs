//! The test kit against real servers.

mod cluster;
mod database;
