//! The one door for every read and write.
