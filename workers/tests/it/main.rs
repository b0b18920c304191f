//! Integration tests of the loops.

mod expiry;
mod fleet;
mod lifecycle;
mod placement;
mod scheduling;
mod substrate;
