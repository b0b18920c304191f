//! End-to-end tests: a whole stack of real processes on this machine.

mod address;
mod cascade;
mod certificates;
mod client;
mod faults;
mod forget;
mod freshness;
mod inspect;
mod keys;
mod leadership;
mod leaks;
mod lifecycle;
mod monitoring;
mod observing;
mod pki;
mod restore;
mod rotation;
mod secrets;
mod sets;
mod soak;
mod stack;
mod tour;
mod tracing;
mod volumes;
