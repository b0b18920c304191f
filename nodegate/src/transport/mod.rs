//! From a TCP connection to a gRPC call with a proven caller.
//!
//! Who the caller is stands in the client certificate that the TLS handshake verified, and nowhere else: no
//! message and no header carries an identity. The listener for nodes lets clients without a certificate
//! finish the handshake, so that they are told what is missing instead of a bare alert; the call is refused
//! then. Handshakes are paced; a connection that carries no call is closed after a while; a peer that no
//! longer answers HTTP/2 pings is gone.
//!
//! A connection that is not a node's belongs to the API. It is told by the first message of its TLS handshake
//! and passed on, still encrypted ([`splice`]), where this gateway knows replicas of the API; else it is served
//! just far enough to be told so.

pub mod arrivals;
pub mod hello;
pub mod listener;
pub mod metrics;
pub mod pace;
pub mod peer;
pub mod serve;
mod socket;
pub mod splice;
