//! The store's behaviour, on every backend, and what only one of them can be made to do.

mod batches;
mod behaviour;
mod faults;
mod fixture;
mod memory;
mod migrations;
mod postgres;
mod recovery;
mod simulation;
mod vanished;
