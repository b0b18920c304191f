//! Integration tests of the loops.

mod fleet;
mod lifecycle;
mod placement;
mod scheduling;
mod substrate;
