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
    /// Puts a session in the place of its node, unless one that was claimed later has it; returns the one
    /// that is left without a place. Claims of one node that run at the same time may end in either order.
    pub fn insert(&self, session: Arc<Session>) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.write();
        match sessions.get(&session.node) {
            Some(present) if present.grant.epoch > session.grant.epoch => Some(session),
            _ => sessions.insert(session.node.clone(), session),
        }
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use horchestra_store::store::SessionGrant;
    use uuid::Uuid;

    use super::*;

    fn session(epoch: i64) -> Arc<Session> {
        let grant = SessionGrant { epoch, session: Uuid::new_v4() };
        Arc::new(Session::new("n1".to_owned(), grant, SocketAddr::from(([127, 0, 0, 1], 1))))
    }

    #[test]
    fn the_later_claim_has_the_place_in_whichever_order_they_come() {
        for epochs in [[1, 2], [2, 1]] {
            let registry = Registry::default();
            assert!(registry.insert(session(epochs[0])).is_none());
            let loser = registry.insert(session(epochs[1])).unwrap();
            assert_eq!(loser.grant.epoch, 1);
            registry.remove(&loser);
            assert_eq!(registry.get("n1").unwrap().grant.epoch, 2);
        }
    }
}
