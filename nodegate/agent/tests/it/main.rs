//! The agent against a gateway that a test plays by hand.

mod gateway;
mod pki;
mod stream;
