//! The immutable view: ordered maps of entries at one revision.

use std::ops::Bound;
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
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

    /// What differs from another view in the objects of a kind: (there, here) for each. Costs what changed between
    /// the two, not what they hold, if one came of the other.
    pub fn differences<'a>(
        &'a self,
        other: &'a Snapshot,
        kind: Kind,
    ) -> impl Iterator<Item = (Option<&'a Arc<Entry>>, Option<&'a Arc<Entry>>)> {
        let views = other.view.kind(kind).zip(self.view.kind(kind));
        views.into_iter().flat_map(|(there, here)| there.objects.diff(&here.objects)).map(|item| match item {
            DiffItem::Add(_, here) => (None, Some(here)),
            DiffItem::Update { old: (_, there), new: (_, here) } => (Some(there), Some(here)),
            DiffItem::Remove(_, there) => (Some(there), None),
        })
    }

    fn range(&self, kind: Kind, namespace: Option<&str>, after: Option<String>) -> Entries<'_> {
        match self.view.kind(kind) {
            None => Box::new(std::iter::empty()),
            Some(kind) => kind.range(namespace, after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Columns, Draft, Index};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn snapshot(objects: &KindView) -> Snapshot {
        let nowhere = Identity { system: String::new(), database: String::new(), epoch: Uuid::nil() };
        let mut view = View::empty(&[Kind::Secret], Arc::new(nowhere));
        view.kinds[slot(Kind::Secret)] = Some(objects.clone());
        Snapshot { view: Arc::new(view) }
    }

    fn key(number: u16) -> Key {
        Key::namespaced(Kind::Secret, ["a", "b"][usize::from(number % 2)], format!("{number:03}"))
    }

    fn entry(number: u16, revision: Revision) -> Arc<Entry> {
        let draft = Draft {
            key: key(number),
            uid: Uuid::from_u128(number.into()),
            generation: 1,
            deleting: false,
            body: Bytes::new(),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        Arc::new(Entry::new(draft, revision, revision))
    }

    proptest! {
        /// Enough objects for a tree of several levels, and changes from few to many.
        #[test]
        fn differences_are_what_a_comparison_of_all_objects_finds(
            first in proptest::collection::btree_set(0u16..400, 0..300),
            changes in proptest::collection::vec((0u16..400, any::<bool>()), 0..60),
        ) {
            let mut objects = KindView::default();
            for number in first {
                objects.put(entry(number, 1));
            }
            let before = snapshot(&objects);
            for ((number, stays), revision) in changes.into_iter().zip(2..) {
                if stays {
                    objects.put(entry(number, revision));
                } else {
                    objects.remove(&key(number));
                }
            }
            let after = snapshot(&objects);
            let revisions = |(there, here): (Option<&Arc<Entry>>, Option<&Arc<Entry>>)| {
                let key = there.or(here).map(|entry| entry.key.clone());
                (key, there.map(|entry| entry.revision), here.map(|entry| entry.revision))
            };
            let found: Vec<_> = after.differences(&before, Kind::Secret).map(revisions).collect();
            let keys = (0..400).map(key);
            let mut expected: Vec<_> = keys
                .map(|key| (before.view.get(&key), after.view.get(&key)))
                .filter(|(there, here)| there != here)
                .map(revisions)
                .collect();
            expected.sort_by_key(|(key, ..)| key.clone());
            prop_assert_eq!(found, expected);
        }
    }
}
