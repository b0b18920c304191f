//! End-to-end tests: a whole stack of real processes on this machine.

mod client;
mod faults;
mod freshness;
mod leadership;
mod lifecycle;
mod stack;
mod tour;
