//! Accepting connections and carrying requests over them.
//!
//! Own loop rather than a framework's, for what that has to guarantee: the identity of a connection is the
//! certificate that its handshake verified and nothing else; a handshake, a request head, a write that
//! stands still and an idle connection each have a limit, so a stranger cannot hold resources for free; and
//! a shutdown ends everything in an order that clients understand (no new connections, GOAWAY or
//! `Connection: close`, watches ended with their last bookmark, and only then the axe).

mod accept;
mod activity;
mod connection;
pub mod io;

pub use accept::{Limits, Listener};
pub use activity::{Activity, Held};
pub use connection::Peer;
