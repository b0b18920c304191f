//! What each node is to run, kept current from the change log.
//!
//! One index per gateway serves all its sessions: a push looks at the Applications of one node only,
//! however many there are in all. All of a push is taken from the index under one lock, so it is of one
//! moment. Changes that no node needs to hear of (status, labels, annotations) end here.
//!
//! What cannot be sent ([`super::form`]): as long as this process has seen a version of that Application
//! that could be, that one stays in force. If it has not, and the node may be running the Application,
//! nothing at all is pushed to that node, since a push without it would tear it down; an Application that
//! never ran is simply left out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::node::Node;
use horchestra_store::{Change, ChangeKind, Entry, Snapshot};
use parking_lot::RwLock;
use uuid::Uuid;

use super::form::{Form, Judged, judge};

/// How much a node hurries to hear of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hurry {
    /// An edit.
    Normal,
    /// A placement, a deletion, a node that is admitted.
    Urgent,
}

/// A node that has to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    pub node: String,
    pub hurry: Hurry,
}

/// What a node is to be sent.
#[derive(Debug)]
pub enum View {
    /// The index is not loaded.
    Unknown,
    /// There is no Node of that name.
    Absent,
    /// The Node is not admitted.
    Held,
    /// An Application that may be running there cannot be sent.
    Blocked { application: Key, why: String },
    /// In list order.
    Complete { applications: Vec<Arc<Form>> },
}

#[derive(Debug)]
enum Shape {
    Send(Arc<Form>),
    Finished,
    /// Cannot be sent and never ran.
    LeftOut,
    /// Cannot be sent and may be running.
    Blocked(String),
}

#[derive(Debug)]
struct Placed {
    node: String,
    uid: Uuid,
    shape: Shape,
    last_good: Option<Arc<Form>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeFacts {
    uid: Uuid,
    admitted: bool,
}

#[derive(Default)]
struct State {
    loaded: bool,
    nodes: HashMap<String, NodeFacts>,
    applications: HashMap<Key, Placed>,
    by_node: HashMap<String, BTreeSet<Key>>,
}

/// The index.
#[derive(Default)]
pub struct Index {
    state: RwLock<State>,
}

impl Index {
    /// Replaces everything by what `snapshot` holds. Forms that were good before are remembered for
    /// Applications that cannot be sent now.
    pub fn load(&self, snapshot: &Snapshot) {
        let mut fresh = State { loaded: true, ..State::default() };
        let mut state = self.state.write();
        for entry in snapshot.list(Kind::Node, None) {
            fresh.nodes.insert(entry.key.name.clone(), node_facts(entry));
        }
        for entry in snapshot.list(Kind::Application, None) {
            let last_good = state.applications.get(&entry.key).and_then(|placed| placed.last_good.clone());
            fresh.put(entry, last_good);
        }
        *state = fresh;
    }

    pub fn is_loaded(&self) -> bool {
        self.state.read().loaded
    }

    /// Takes a change in; returns who has to hear of it.
    pub fn apply(&self, change: &Change) -> Vec<Ring> {
        match change.object_kind() {
            Kind::Node => self.apply_node(change),
            Kind::Application => self.apply_application(change),
            _ => Vec::new(),
        }
    }

    fn apply_node(&self, change: &Change) -> Vec<Ring> {
        let mut state = self.state.write();
        let name = &change.key().name;
        let now = (change.kind != ChangeKind::Deleted).then(|| node_facts(&change.entry));
        let before = match now {
            Some(facts) => state.nodes.insert(name.clone(), facts),
            None => state.nodes.remove(name),
        };
        if before == now { Vec::new() } else { vec![Ring { node: name.clone(), hurry: Hurry::Urgent }] }
    }

    fn apply_application(&self, change: &Change) -> Vec<Ring> {
        let mut state = self.state.write();
        let key = change.key();
        let before = state.take(key);
        if change.kind != ChangeKind::Deleted {
            let last_good = before.as_ref().and_then(|placed| placed.last_good.clone());
            state.put(&change.entry, last_good);
        }
        rings(before.as_ref(), state.applications.get(key))
    }

    /// What `node` is to be sent now.
    pub fn view(&self, node: &str) -> View {
        let state = self.state.read();
        if !state.loaded {
            return View::Unknown;
        }
        let Some(facts) = state.nodes.get(node) else { return View::Absent };
        if !facts.admitted {
            return View::Held;
        }
        let mut applications = Vec::new();
        for key in state.by_node.get(node).into_iter().flatten() {
            match state.applications.get(key).map(|placed| &placed.shape) {
                Some(Shape::Send(form)) => applications.push(Arc::clone(form)),
                Some(Shape::Blocked(why)) => {
                    return View::Blocked { application: key.clone(), why: why.clone() };
                }
                Some(Shape::Finished | Shape::LeftOut) | None => {}
            }
        }
        View::Complete { applications }
    }
}

impl State {
    fn take(&mut self, key: &Key) -> Option<Placed> {
        let placed = self.applications.remove(key)?;
        if let Some(keys) = self.by_node.get_mut(&placed.node) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_node.remove(&placed.node);
            }
        }
        Some(placed)
    }

    fn put(&mut self, entry: &Arc<Entry>, last_good: Option<Arc<Form>>) {
        let Some(node) = entry.columns.node.clone() else { return };
        let last_good = last_good.filter(|form| form.signature.uid == entry.uid);
        let (shape, last_good) = match judge(entry) {
            Ok(Judged::Send(form)) => {
                let form = Arc::new(form);
                (Shape::Send(Arc::clone(&form)), Some(form))
            }
            Ok(Judged::Finished) => (Shape::Finished, last_good),
            Err(why) => {
                tracing::error!(application = %entry.key, %why, "agents would not decode this Application");
                match last_good {
                    Some(form) if entry.deleting => {
                        let form = Arc::new(form.deleted_like(entry));
                        (Shape::Send(Arc::clone(&form)), Some(form))
                    }
                    Some(form) => (Shape::Send(Arc::clone(&form)), Some(form)),
                    None if may_be_running(entry) => (Shape::Blocked(why.to_string()), None),
                    None => (Shape::LeftOut, None),
                }
            }
        };
        self.by_node.entry(node.clone()).or_default().insert(entry.key.clone());
        self.applications.insert(entry.key.clone(), Placed { node, uid: entry.uid, shape, last_good });
    }
}

/// A node has reported something about it, or it is being deleted (which is a thing to be confirmed).
fn may_be_running(entry: &Entry) -> bool {
    entry.deleting || entry.columns.phase.as_deref().is_some_and(|phase| !matches!(phase, "" | "Pending"))
}

fn node_facts(entry: &Entry) -> NodeFacts {
    // A Node that cannot be read is treated as one that must not be pushed to.
    let admitted = entry.typed::<Node>().is_ok_and(|node| node.admitted());
    NodeFacts { uid: entry.uid, admitted }
}

fn rings(before: Option<&Placed>, after: Option<&Placed>) -> Vec<Ring> {
    let ring = |node: &str, hurry| Ring { node: node.to_owned(), hurry };
    match (before, after) {
        (None, None) => Vec::new(),
        (Some(gone), None) => vec![ring(&gone.node, Hurry::Normal)],
        (None, Some(new)) => vec![ring(&new.node, Hurry::Urgent)],
        (Some(old), Some(new)) if old.node != new.node => {
            vec![ring(&old.node, Hurry::Urgent), ring(&new.node, Hurry::Urgent)]
        }
        (Some(old), Some(new)) => match (&old.shape, &new.shape) {
            (Shape::Send(a), Shape::Send(b)) if a.signature == b.signature => Vec::new(),
            (Shape::Send(a), Shape::Send(b)) => {
                let urgent = old.uid != new.uid || a.signature.deleting != b.signature.deleting;
                vec![ring(&new.node, if urgent { Hurry::Urgent } else { Hurry::Normal })]
            }
            (Shape::Finished, Shape::Finished) if old.uid == new.uid => Vec::new(),
            _ => vec![ring(&new.node, Hurry::Normal)],
        },
    }
}
