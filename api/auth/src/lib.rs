//! Who the caller is and what it may do.
