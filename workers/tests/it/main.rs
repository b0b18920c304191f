//! Integration tests of the loops.

mod certificates;
mod expiry;
mod fleet;
mod garbage;
mod lifecycle;
mod oracle;
mod placement;
mod scheduling;
mod sets;
mod substrate;
