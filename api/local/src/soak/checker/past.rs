//! What is stored, as of the last row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::{Amounts, Application};
use horchestra_core::kinds::node::Node;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry};

#[derive(Default)]
pub(super) struct Past {
    objects: BTreeMap<Key, Arc<Entry>>,
    /// By node: the Applications that are placed on it, and what they take.
    placed: HashMap<String, HashMap<Key, Amounts>>,
}

/// Where an Application is, and what it takes there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Place {
    pub node: Option<String>,
    pub takes: Amounts,
}

impl Place {
    pub fn of(app: &Application) -> Place {
        let node = Some(app.node_name().to_owned()).filter(|node| !node.is_empty());
        Place { node, takes: app.counted_request() }
    }
}

impl Past {
    pub fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.objects.get(key)
    }

    pub fn objects(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.objects.values()
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Arc<Entry>> {
        self.objects.values().filter(move |entry| entry.key.kind == kind)
    }

    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.objects.get(&Key::cluster(Kind::Node, name))?.typed().ok()
    }

    /// What is placed on a node, but for one Application.
    pub fn used(&self, node: &str, but: &Key) -> Amounts {
        let placed = self.placed.get(node).into_iter().flatten();
        placed.filter(|(key, _)| *key != but).fold(Amounts::default(), |sum, (_, takes)| sum.plus(takes))
    }

    pub fn apply(&mut self, row: &LogRow) {
        let key = row.change.key().clone();
        let before = match row.change.kind {
            ChangeKind::Deleted => self.objects.remove(&key),
            _ => self.objects.insert(key.clone(), Arc::clone(&row.change.entry)),
        };
        if key.kind != Kind::Application {
            return;
        }
        if let Some(node) = before.and_then(|entry| place(&entry)).and_then(|place| place.node)
            && let Some(placed) = self.placed.get_mut(&node)
        {
            placed.remove(&key);
        }
        if row.change.kind != ChangeKind::Deleted
            && let Some(Place { node: Some(node), takes }) = place(&row.change.entry)
        {
            self.placed.entry(node).or_default().insert(key, takes);
        }
    }
}

/// Of an Application that can be read.
pub(super) fn place(entry: &Entry) -> Option<Place> {
    entry.typed::<Application>().ok().map(|app| Place::of(&app))
}
