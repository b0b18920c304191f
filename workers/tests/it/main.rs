//! Integration tests of the loops.

mod certificates;
mod expiry;
mod faults;
mod fleet;
mod garbage;
mod holds;
mod lifecycle;
mod oracle;
mod placement;
mod placing;
mod scheduling;
mod sets;
mod substrate;
