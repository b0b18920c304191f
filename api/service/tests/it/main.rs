//! The service on the in-memory store: what clients, loops and gateways see of it.

mod admission;
mod away;
mod create;
mod delete;
mod doors;
mod list;
mod nodes;
mod patch;
mod property;
mod races;
mod status;
mod support;
mod update;
mod watch;
