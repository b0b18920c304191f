//! The test kit against real servers, and the rules of the workspace.

mod cluster;
mod database;
mod shared;
mod workspace;
