//! Who the caller is and what it may do.

pub mod identity;

pub use identity::Identity;
