//! The loops: scheduler and node lifecycle.
