//! The loop of ApplicationSets.

mod crash;
mod model;
mod pieces;
mod races;
mod rollout;
mod status;
mod teardown;
mod world;
