//! A whole stack on one machine.
