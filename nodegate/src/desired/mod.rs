//! What nodes are to run: judged, indexed by node, pushed.

pub mod account;
pub mod bell;
pub mod decision;
mod encoded;
pub mod feed;
pub mod fleet;
pub mod form;
pub mod index;
mod merge;
pub mod networks;
pub mod opened;
pub mod publish;
pub mod push;
pub mod rewrite;
pub mod secrets;
pub mod supply;
pub mod tokens;
pub mod volumes;
