//! Who owns whom, kept up to date from view to view.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::metadata::{FOREGROUND, NODE_TEARDOWN, ORPHAN};
use horchestra_core::owners::{self, Owner};
use horchestra_store::{Entry, Revision, Snapshot};
use uuid::Uuid;

use super::KINDS;

/// An object that the collection has to do with.
#[derive(Clone, Debug)]
pub(super) struct Linked {
    pub entry: Arc<Entry>,
    /// One for each reference; `None` for those of which nothing can be said.
    pub owners: Vec<Option<Owner>>,
    pub finalizers: Vec<String>,
}

impl Linked {
    fn of(entry: &Arc<Entry>) -> Option<Linked> {
        let (owned, deleting) = (names_owners(entry), entry.deleting);
        if !owned && !deleting {
            return None;
        }
        // What cannot be read is left alone.
        let object = entry.object().ok()?;
        let owners = owners::owners(&entry.key, &object);
        if owners.is_empty() && !deleting {
            return None;
        }
        let finalizers = object.finalizers().into_iter().map(str::to_owned).collect();
        Some(Linked { entry: Arc::clone(entry), owners, finalizers })
    }

    pub fn holds(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| held == finalizer)
    }

    /// Being deleted, and held by this finalizer among others.
    pub fn waits(&self, finalizer: &str) -> bool {
        self.entry.deleting && self.holds(finalizer)
    }
}

/// Whether the object may have owner references, without parsing it.
pub(super) fn names_owners(entry: &Entry) -> bool {
    const MEMBER: &[u8] = b"\"ownerReferences\"";
    // Members of the metadata come before the spec; a body is some kilobytes.
    entry.body.windows(MEMBER.len()).any(|window| window == MEMBER)
}

struct Known {
    revision: Revision,
    linked: Option<Arc<Linked>>,
}

/// All objects that own, are owned, or are being deleted.
#[derive(Default)]
pub(super) struct Graph {
    known: HashMap<Uuid, Known>,
    /// In the order of their keys.
    pub linked: Vec<Arc<Linked>>,
    /// By the uid of the owner: positions in `linked`.
    dependents: HashMap<Uuid, Vec<usize>>,
    /// Owners that are being deleted and wait for dependents.
    waiting: HashSet<Uuid>,
}

impl Graph {
    /// Takes over a newer view. Only what has changed is read.
    pub fn follow(&mut self, view: &Snapshot) {
        let mut known = HashMap::with_capacity(self.known.len());
        self.linked.clear();
        self.dependents.clear();
        self.waiting.clear();
        for kind in KINDS {
            for entry in view.list(kind, None) {
                let before = self.known.remove(&entry.uid).filter(|known| known.revision == entry.revision);
                let now = before.unwrap_or_else(|| Known {
                    revision: entry.revision,
                    linked: Linked::of(entry).map(Arc::new),
                });
                if let Some(linked) = &now.linked {
                    self.link(Arc::clone(linked));
                }
                known.insert(entry.uid, now);
            }
        }
        self.known = known;
    }

    fn link(&mut self, linked: Arc<Linked>) {
        let at = self.linked.len();
        for owner in linked.owners.iter().flatten() {
            if let Ok(uid) = owner.uid.parse::<Uuid>() {
                let dependents = self.dependents.entry(uid).or_default();
                if dependents.last() != Some(&at) {
                    dependents.push(at);
                }
            }
        }
        if [FOREGROUND, ORPHAN].iter().any(|policy| linked.waits(policy)) {
            self.waiting.insert(linked.entry.uid);
        }
        self.linked.push(linked);
    }

    pub fn get(&self, uid: &Uuid) -> Option<&Arc<Linked>> {
        self.known.get(uid)?.linked.as_ref()
    }

    /// What names this object as an owner, with the reference.
    pub fn dependents<'a>(&'a self, owner: &'a Entry) -> impl Iterator<Item = (&'a Arc<Linked>, &'a Owner)> {
        let uid = owner.uid.to_string();
        let named = self.dependents.get(&owner.uid).into_iter().flatten().map(|at| &self.linked[*at]);
        named.filter_map(move |linked| {
            let mut references = linked.owners.iter().flatten();
            references.find(|named| named.uid == uid && named.key == owner.key).map(|named| (linked, named))
        })
    }

    pub fn has_dependents(&self, owner: &Entry) -> bool {
        self.dependents(owner).next().is_some()
    }

    /// Whether anything may have to be done now that this object is gone.
    pub fn is_missed(&self, gone: &Entry) -> bool {
        self.dependents.contains_key(&gone.uid)
            || gone.key.kind == Kind::Node
            || (!self.waiting.is_empty() && names_owners(gone))
    }

    /// Owners that are named and not there.
    pub fn absent_owners(&self, view: &Snapshot) -> HashSet<Uuid> {
        let owners = self.linked.iter().flat_map(|linked| linked.owners.iter().flatten());
        let absent = owners.filter(|owner| present(view, owner).is_none());
        absent.filter_map(|owner| owner.uid.parse().ok()).collect()
    }

    /// Nodes that deleting Applications wait for and that are not there.
    pub fn missing_nodes(&self, view: &Snapshot) -> BTreeSet<String> {
        let apps = self.linked.iter().filter_map(|linked| waits_for_node(linked));
        apps.filter(|node| view.get(&Key::cluster(Kind::Node, *node)).is_none()).map(str::to_owned).collect()
    }
}

/// The owner, if this very object is there.
pub(super) fn present(view: &Snapshot, owner: &Owner) -> Option<Arc<Entry>> {
    view.get(&owner.key).filter(|entry| entry.uid.to_string() == owner.uid)
}

/// The node that a deleting Application waits for.
pub(super) fn waits_for_node(linked: &Linked) -> Option<&str> {
    let waits = linked.entry.key.kind == Kind::Application && linked.waits(NODE_TEARDOWN);
    linked.entry.columns.node.as_deref().filter(|_| waits)
}
