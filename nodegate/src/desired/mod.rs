//! What nodes are to run: judged, indexed by node, pushed.

pub mod account;
pub mod bell;
pub mod decision;
pub mod feed;
pub mod form;
pub mod index;
pub mod push;
pub mod volumes;
