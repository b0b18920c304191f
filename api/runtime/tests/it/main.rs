//! The runtime's parts against the real thing: sockets, handshakes, signals.
