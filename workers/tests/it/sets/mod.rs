//! The loop of ApplicationSets.

mod crash;
mod import;
pub mod model;
mod pieces;
mod postgres;
mod races;
mod rollout;
mod status;
mod teardown;
pub mod world;
