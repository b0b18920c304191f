//! How the store of a process is doing.

use std::time::Duration;

use crate::types::Revision;

/// How far a cache is behind.
pub(crate) struct TailLag {
    /// Known to have been committed and not yet in the cache.
    pub revisions: Revision,
    /// How long ago nothing was missing for certain.
    pub since: Duration,
    /// Whether notifications can be heard.
    pub listening: bool,
}

/// How the store of this process is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The cache is loaded, and of the database as it is now.
    pub loaded: bool,
    /// The revision of the cache.
    pub revision: Revision,
    /// How long the tail has been without the database; zero while connected.
    pub disconnected_for: Duration,
    /// For how long the database has been answering; zero while it does not, or while it is not clear yet whether it is
    /// the one that it was.
    pub connected_for: Duration,
    /// How often the database turned out not to hold what this process had already seen (restored, replaced,
    /// failed over with loss).
    pub losses: u64,
}
