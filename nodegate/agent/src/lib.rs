//! The node end of the stream for local stacks and tests.
