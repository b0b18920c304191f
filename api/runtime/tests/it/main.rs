//! The runtime's parts against the real thing: sockets, handshakes, signals.

mod health;
mod shutdown;
mod tasks;
mod tls;

use std::time::Duration;

/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(20);
