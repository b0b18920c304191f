//! The Kubernetes-shaped HTTP API.
//!
//! A replica keeps no state of its own: it answers from the store's watch cache and writes through the
//! service layer, so any number of replicas can serve one cluster and any of them can die. This crate is the
//! part that speaks HTTP: connections ([`server`]), the pipeline that every request goes through
//! ([`http`]), and what lies behind the routes ([`handlers`]). What an object is, what a write means and
//! who may do what is decided in the packages below it.

mod access;
pub mod app;
mod catalog;
mod certificates;
mod check;
pub mod cli;
mod documents;
mod fleet;
mod frames;
mod handlers;
pub mod hold;
pub mod http;
pub mod import;
pub mod metrics;
pub mod relay;
mod render;
mod secret_keys;
pub mod serve;
pub mod server;
mod token_keys;
mod usage;

pub use access::{Known, Permit};
pub use handlers::health::add_checks;
