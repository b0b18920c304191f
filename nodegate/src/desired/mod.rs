//! What nodes are to run: judged, indexed by node, pushed.

pub mod account;
pub mod bell;
pub mod decision;
pub mod feed;
pub mod form;
pub mod index;
mod merge;
pub mod opened;
pub mod push;
pub mod rewrite;
pub mod secrets;
pub mod supply;
pub mod tokens;
pub mod volumes;
