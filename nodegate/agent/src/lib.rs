//! The node end of the stream, for local stacks and tests.

pub mod controller;
pub mod dial;
pub mod identity;
pub mod kubeconfig;
pub mod mint;
pub mod scripted;
