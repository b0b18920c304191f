//! The immutable view: ordered maps of entries at one revision.

use std::ops::Bound;
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use imbl::OrdMap;
use uuid::Uuid;

use crate::backend::Identity;
use crate::types::{Change, ChangeKind, Entry, Revision};

/// Kind numbers start at one.
pub(super) const SLOTS: usize = Kind::ALL.len() + 1;

pub(super) fn slot(kind: Kind) -> usize {
    usize::from(kind.number().unsigned_abs())
}

/// Namespace and name in one string that orders as (namespace, name) does: NUL sorts before anything that
/// a name may hold.
fn place(namespace: &str, name: &str) -> String {
    let mut place = String::with_capacity(namespace.len() + name.len() + 1);
    place.push_str(namespace);
    place.push('\0');
    place.push_str(name);
    place
}

/// Everything of one kind.
#[derive(Clone, Default)]
pub(super) struct KindView {
    objects: OrdMap<Arc<str>, Arc<Entry>>,
    /// The last change of this kind that is in here.
    pub changed: Revision,
}

impl KindView {
    pub fn put(&mut self, entry: Arc<Entry>) {
        self.objects.insert(place(&entry.key.namespace, &entry.key.name).into(), entry);
    }

    pub fn remove(&mut self, key: &Key) {
        self.objects.remove(place(&key.namespace, &key.name).as_str());
    }

    fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.objects.get(place(&key.namespace, &key.name).as_str())
    }

    fn range(&self, namespace: Option<&str>, after: Option<String>) -> Entries<'_> {
        let first = namespace.map(|namespace| place(namespace, ""));
        // One past everything that begins with `namespace NUL`.
        let last = namespace.map(|namespace| format!("{namespace}\u{1}"));
        let start = match (&after, &first) {
            // A start before the namespace (a continuation from elsewhere) still begins with the namespace.
            (Some(after), Some(first)) if after < first => Bound::Included(first.as_str()),
            (Some(after), _) => Bound::Excluded(after.as_str()),
            (None, Some(first)) => Bound::Included(first.as_str()),
            (None, None) => Bound::Unbounded,
        };
        let end = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) = (start, end) else {
            return Box::new(self.objects.range::<_, str>((start, end)).map(|(_, entry)| entry));
        };
        if from >= to {
            return Box::new(std::iter::empty());
        }
        Box::new(self.objects.range::<_, str>((start, end)).map(|(_, entry)| entry))
    }
}

type Entries<'a> = Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a>;

/// All cached kinds at one revision.
#[derive(Clone)]
pub(super) struct View {
    pub revision: Revision,
    pub identity: Arc<Identity>,
    /// By [`slot`]; `None`: not cached.
    pub kinds: Vec<Option<KindView>>,
}

impl View {
    pub fn empty(kinds: &[Kind], identity: Arc<Identity>) -> View {
        let mut slots = vec![None; SLOTS];
        for kind in kinds {
            slots[slot(*kind)] = Some(KindView::default());
        }
        View { revision: 0, identity, kinds: slots }
    }

    pub fn kind(&self, kind: Kind) -> Option<&KindView> {
        self.kinds.get(slot(kind))?.as_ref()
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.kind(key.kind)?.get(key)
    }

    pub fn apply(&mut self, change: &Change) {
        self.revision = change.revision;
        let Some(Some(kind)) = self.kinds.get_mut(slot(change.object_kind())) else { return };
        kind.changed = change.revision;
        match change.kind {
            ChangeKind::Added | ChangeKind::Modified => kind.put(Arc::clone(&change.entry)),
            ChangeKind::Deleted => kind.remove(change.key()),
        }
    }
}

/// An immutable view of every cached kind at one revision. Cloning is cheap.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) view: Arc<View>,
}

impl Snapshot {
    /// The revision this view is of.
    pub fn revision(&self) -> Revision {
        self.view.revision
    }

    /// The last change of any of these kinds that is in here, and the epoch of the database that its revision
    /// counts in. Whenever what the view holds of these kinds differs, so does this. `None`: nothing was
    /// loaded yet.
    pub fn last_change(&self, kinds: &[Kind]) -> Option<(Uuid, Revision)> {
        let epoch = self.view.identity.epoch;
        let changed = kinds.iter().filter_map(|kind| self.view.kind(*kind)).map(|kind| kind.changed);
        (!epoch.is_nil()).then(|| (epoch, changed.max().unwrap_or_default()))
    }

    /// The object with this key; kinds that are not cached have none.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.view.get(key).cloned()
    }

    /// Entries of a kind in list order (namespace, then name, bytewise); `namespace` `None` = all.
    pub fn list<'a>(
        &'a self,
        kind: Kind,
        namespace: Option<&'a str>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a> {
        self.range(kind, namespace, None)
    }

    /// As [`Snapshot::list`], starting behind `after` = (namespace, name).
    pub fn list_after<'a>(
        &'a self,
        kind: Kind,
        namespace: Option<&'a str>,
        after: (&str, &str),
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a> {
        self.range(kind, namespace, Some(place(after.0, after.1)))
    }

    /// How many objects of the kind there are (in the namespace).
    pub fn count(&self, kind: Kind, namespace: Option<&str>) -> usize {
        match (self.view.kind(kind), namespace) {
            (None, _) => 0,
            (Some(kind), None) => kind.objects.len(),
            (Some(kind), Some(_)) => kind.range(namespace, None).count(),
        }
    }

    fn range(&self, kind: Kind, namespace: Option<&str>, after: Option<String>) -> Entries<'_> {
        match self.view.kind(kind) {
            None => Box::new(std::iter::empty()),
            Some(kind) => kind.range(namespace, after),
        }
    }
}
