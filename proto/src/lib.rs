//! Wire messages of the node stream and of the log relay.
