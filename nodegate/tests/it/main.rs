//! Gateways over the in-memory store, with real TLS and nodes that do what the test says.

mod address;
mod deletion;
mod desired;
mod events;
mod gateways;
mod hold;
mod logs;
mod networks;
mod postgres;
mod registration;
mod reports;
mod routes;
mod samples;
mod secrets;
mod services;
mod sessions;
mod threats;
mod tokens;
mod transport;
mod wire;
mod world;
