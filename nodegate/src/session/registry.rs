//! The sessions of this process, one per node.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::Session;

/// Sessions by node.
#[derive(Default)]
pub struct Registry {
    sessions: RwLock<HashMap<String, Arc<Session>>>,
}

impl Registry {
    /// Puts a session in the place of its node; returns the one that was there.
    pub fn insert(&self, session: Arc<Session>) -> Option<Arc<Session>> {
        self.sessions.write().insert(session.node.clone(), session)
    }

    /// Takes a session out, unless its place has been taken by another.
    pub fn remove(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.write();
        if sessions.get(&session.node).is_some_and(|found| Arc::ptr_eq(found, session)) {
            sessions.remove(&session.node);
        }
    }

    pub fn get(&self, node: &str) -> Option<Arc<Session>> {
        self.sessions.read().get(node).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Session>> {
        self.sessions.read().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.sessions.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
