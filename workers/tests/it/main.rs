//! Integration tests of the loops.

mod expiry;
mod fleet;
mod lifecycle;
mod oracle;
mod placement;
mod scheduling;
mod substrate;
