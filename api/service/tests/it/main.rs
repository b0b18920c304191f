//! The service on the in-memory store: what clients, loops and gateways see of it.

mod admission;
mod apply;
mod away;
mod contests;
mod create;
mod delete;
mod doors;
mod events;
mod examples;
mod list;
mod managers;
mod nodes;
mod patch;
mod property;
mod races;
mod requests;
mod sealing;
mod secrets;
mod services;
mod sets;
mod status;
mod support;
mod update;
mod volumes;
mod watch;
