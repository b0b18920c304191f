//! States of the past, for pages that continue at their revision.
//!
//! A kind that has not changed since the revision asked for *is* that state. Otherwise the current state is
//! taken and every change after the revision is undone from the log; the result is kept for a while, since
//! the next pages of the same listing will ask for it again.

use std::collections::VecDeque;
use std::sync::Arc;

use horchestra_core::kind::Kind;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::view::{KindView, View, slot};
use super::{Cache, PATIENCE, Snapshot};
use crate::backend::{Backend, BackendError, Identity};
use crate::store::ReadError;
use crate::types::Revision;

/// States kept; a state shares nearly all of its memory with the current one.
const KEPT: usize = 64;

struct State {
    of: Arc<Identity>,
    kind: Kind,
    revision: Revision,
    objects: KindView,
}

impl State {
    fn is(&self, of: &Arc<Identity>, kind: Kind, revision: Revision) -> bool {
        Arc::ptr_eq(&self.of, of) && self.kind == kind && self.revision == revision
    }
}

#[derive(Default)]
pub(super) struct Past {
    kept: Mutex<VecDeque<State>>,
}

impl Past {
    pub fn forget(&self) {
        self.kept.lock().clear();
    }

    fn find(&self, of: &Arc<Identity>, kind: Kind, revision: Revision) -> Option<KindView> {
        let kept = self.kept.lock();
        let found = kept.iter().find(|state| state.is(of, kind, revision))?;
        Some(found.objects.clone())
    }

    fn keep(&self, state: State) {
        let mut kept = self.kept.lock();
        kept.retain(|held| !held.is(&state.of, state.kind, state.revision));
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(state);
    }
}

impl Cache {
    /// Keeps the kind as this view has it, for pages to come.
    pub fn keep(&self, kind: Kind, snapshot: &Snapshot) {
        if let Some(objects) = snapshot.view.kind(kind) {
            let of = Arc::clone(&snapshot.view.identity);
            self.past.keep(State { of, kind, revision: snapshot.view.revision, objects: objects.clone() });
        }
    }

    /// The kind as it was at `revision`, which is not above the current one.
    pub async fn exactly_at(
        &self,
        backend: &dyn Backend,
        kind: Kind,
        revision: Revision,
    ) -> Result<Snapshot, ReadError> {
        let view = self.view.load_full();
        let current = view.kind(kind).ok_or(ReadError::NotCached(kind))?;
        let alone = |state: KindView| {
            let mut alone = View::empty(&[], Arc::clone(&view.identity));
            alone.revision = revision;
            alone.kinds[slot(kind)] = Some(state);
            Snapshot { view: Arc::new(alone) }
        };
        if current.changed <= revision {
            return Ok(alone(current.clone()));
        }
        if let Some(state) = self.past.find(&view.identity, kind, revision) {
            return Ok(alone(state));
        }
        let undone = match timeout(PATIENCE, backend.undo(kind, view.revision, revision)).await {
            Ok(Ok(undone)) => undone,
            Ok(Err(BackendError::Rejected(_))) => None,
            Ok(Err(_)) | Err(_) => return Err(ReadError::Unavailable),
        };
        // A database that was replaced meanwhile has undone something else.
        let same = Arc::ptr_eq(&view.identity, &self.identity()) && self.progress().loaded;
        let Some(undone) = undone.filter(|_| same) else {
            return Err(ReadError::Expired { asked: revision, oldest: self.oldest() });
        };
        self.metrics.rebuilt.add(1);
        let mut state = current.clone();
        for (key, before) in undone {
            match before {
                Some(entry) => state.put(entry),
                None => state.remove(&key),
            }
        }
        state.changed = revision;
        let of = Arc::clone(&view.identity);
        self.past.keep(State { of, kind, revision, objects: state.clone() });
        Ok(alone(state))
    }
}
