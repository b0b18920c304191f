//! The API over real TLS connections, in process, on the in-memory store.

mod aliases;
mod apply;
mod authorization;
mod bad_input;
mod bodies;
mod client;
mod commands;
mod conformance;
mod connections;
mod crud;
mod discovery;
mod doors;
mod events;
mod forms;
mod history;
mod kinds;
mod kubectl;
mod leaks;
mod logs;
mod pages;
mod replicas;
mod request_log;
mod secrets;
mod seed;
mod stack;
mod watches;
