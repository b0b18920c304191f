//! The store's behaviour, on every backend, and what only the in-memory one can be made to do.

mod behaviour;
mod fixture;
mod memory;
