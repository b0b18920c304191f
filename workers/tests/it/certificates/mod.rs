//! Certificates for nodes: the rules, the loop, and the signers.

mod ages;
mod fake;
mod flags;
mod holding;
mod issuing;
mod policy;
mod rotation;
mod signers;
pub mod support;
mod vault;
