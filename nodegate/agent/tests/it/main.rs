//! The agent against a gateway that a test plays by hand.

mod apps;
mod fleet;
mod gateway;
mod jobs;
mod logs;
mod pki;
mod processes;
mod secrets;
mod session;
mod stream;
mod supervisor;
