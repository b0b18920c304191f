//! What each node is to run, kept current from the change log.
//!
//! One index per gateway serves all its sessions: a push looks at the Applications of one node only,
//! however many there are in all. All of a push is taken from the index under one lock, so it is of one
//! moment. Changes that no node needs to hear of (status, labels, annotations) end here.
//!
//! What all nodes are sent alike ([`super::fleet`]) is kept up to date here as well, and sent as it was published
//! last. Addresses of workloads ([`super::networks`]) are no objects: they are asked for when they are first needed.
//!
//! What cannot be sent ([`super::form`]): as long as this process has seen a version of that Application
//! that could be, that one stays in force. If it has not, and the node may be running the Application,
//! nothing at all is pushed to that node, since a push without it would tear it down; an Application that
//! never ran is simply left out.

pub mod survey;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::node::Node;
use horchestra_store::{AddressLease, Change, ChangeKind, Entry, Leased, Revision, Snapshot};
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::fleet::{Fleet, Part};
use super::form::{Form, Judged, judge};
use super::networks::{Networks, NodeNetworks};
use super::secrets::{Secrets, Supplies};
use super::tokens::{TOKEN_VOLUMES, as_secrets};
use super::volumes::{List, Volumes};

/// How much a node hurries to hear of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hurry {
    /// What all nodes are sent has changed.
    Fleet,
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
    NotAdmitted,
    /// An Application that may be running there cannot be sent.
    Blocked { application: Key, why: String },
    /// These Applications have to be leased addresses first.
    Unleased(Vec<(Key, Uuid)>),
    /// In list order.
    Complete {
        applications: Vec<Arc<Form>>,
        volumes: List,
        supplies: Supplies,
        networks: NodeNetworks,
        fleet: Arc<Part>,
    },
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

impl Shape {
    /// What the node is sent.
    fn form(&self) -> Option<&Arc<Form>> {
        match self {
            Shape::Send(form) => Some(form),
            Shape::Finished | Shape::LeftOut | Shape::Blocked(_) => None,
        }
    }
}

#[derive(Debug)]
struct Placed {
    node: String,
    uid: Uuid,
    shape: Shape,
    last_good: Option<Arc<Form>>,
    /// Why agents would not decode it as it is now.
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeFacts {
    uid: Uuid,
    admitted: bool,
    /// As people see it: what is in force is asked of the database.
    held: bool,
    /// What an operator says about token volumes.
    tokens_as_secrets: Option<bool>,
}

#[derive(Default)]
struct State {
    loaded: bool,
    nodes: HashMap<String, NodeFacts>,
    applications: HashMap<Key, Placed>,
    by_node: HashMap<String, BTreeSet<Key>>,
    volumes: Volumes,
    secrets: Secrets,
    networks: Networks,
    fleet: Fleet,
    /// What nodes are sent of the fleet, which follows it at a distance.
    published: Arc<Part>,
}

/// The index.
#[derive(Default)]
pub struct Index {
    state: RwLock<State>,
    /// Every change up to here is in; `None` while the index is not loaded.
    reached: watch::Sender<Option<Revision>>,
    /// Somebody waits for `reached` to move on.
    asked: Notify,
    /// How often it was loaded.
    loads: AtomicU64,
    /// The fleet is no longer as it was published.
    moved: Notify,
}

impl Index {
    /// Replaces everything by what `snapshot` holds. Forms that were good before are remembered for
    /// Applications that cannot be sent now. `leases`: the addresses of workloads; `None`: there are none to be had.
    /// `room`: the most bytes for what all nodes are sent.
    pub fn load(&self, snapshot: &Snapshot, leases: Option<Vec<AddressLease>>, room: usize) {
        let mut fresh = State { loaded: true, fleet: Fleet::of(snapshot), ..State::default() };
        let mut state = self.state.write();
        for entry in snapshot.list(Kind::Node, None) {
            fresh.nodes.insert(entry.key.name.clone(), node_facts(entry));
        }
        // While nobody uses them yet, nothing has to be looked up for it.
        for entry in snapshot.list(Kind::Secret, None) {
            fresh.secrets.put(&entry.key, Some(entry));
        }
        for entry in snapshot.list(Kind::SecretStore, None) {
            fresh.secrets.put_store(&entry.key, Some(entry));
        }
        for entry in snapshot.list(Kind::Application, None) {
            let last_good = state.applications.get(&entry.key).and_then(|placed| placed.last_good.clone());
            fresh.put(entry, last_good);
        }
        for entry in snapshot.list(Kind::PersistentVolume, None) {
            fresh.volumes.put(&entry.key, Some(entry));
        }
        let uids: HashSet<Uuid> = fresh.applications.values().map(|placed| placed.uid).collect();
        let here = |leases: Vec<AddressLease>| {
            leases.into_iter().filter(|lease| uids.contains(&lease.holder)).collect()
        };
        fresh.networks = Networks::new(leases.map(here));
        fresh.published = Arc::new(fresh.fleet.part(&state.published, room));
        *state = fresh;
        drop(state);
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.reached.send_replace(Some(snapshot.revision()));
    }

    /// Changes may have been missed: nothing is pushed from this index until it is loaded anew. What it
    /// holds stays, since the forms that were good are still wanted then.
    pub fn unload(&self) {
        self.state.write().loaded = false;
        self.reached.send_replace(None);
    }

    /// Everything up to `revision` has been applied.
    pub fn note_reached(&self, revision: Revision) {
        self.reached.send_if_modified(|reached| match reached {
            Some(before) if *before < revision => {
                *before = revision;
                true
            }
            _ => false,
        });
    }

    /// Waits until everything up to `revision` is in a loaded index. May miss that for a moment when only
    /// kinds were written that the index does not follow; who waits longer asks again.
    pub async fn reach(&self, revision: Revision) {
        let mut reached = self.reached.subscribe();
        self.asked.notify_one();
        // The sender lives as long as `self`.
        let _ = reached.wait_for(|reached| reached.is_some_and(|reached| reached >= revision)).await;
    }

    /// How often the index was loaded: what was known before the last time may be of another database.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Waits until somebody asks how far the index is.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    pub fn is_loaded(&self) -> bool {
        self.state.read().loaded
    }

    /// Takes changes in, all at once; returns who has to hear of them.
    pub fn apply(&self, changes: &[Change]) -> Vec<Ring> {
        let mut state = self.state.write();
        let rings = changes.iter().flat_map(|change| state.apply(change)).collect();
        if state.fleet.has_moved() {
            self.moved.notify_one();
        }
        rings
    }

    /// Takes in what became of asking for addresses; returns who has to hear of it.
    pub fn note_leases(&self, asked: &[(Key, Uuid)], leased: &[Leased]) -> Vec<Ring> {
        let mut state = self.state.write();
        let leased: HashMap<Uuid, &Leased> = leased.iter().map(|leased| (leased.holder, leased)).collect();
        let mut rings = Vec::new();
        for (key, uid) in asked {
            let State { applications, networks, .. } = &mut *state;
            let placed = applications.get(key).filter(|placed| placed.uid == *uid);
            if let (Some(placed), Some(leased)) = (placed, leased.get(uid))
                && networks.note(key, leased)
            {
                rings.push(Ring { node: placed.node.clone(), hurry: Hurry::Urgent });
            }
        }
        rings
    }

    /// Applications that there was no address for.
    pub fn exhausted(&self) -> Vec<(Key, Uuid)> {
        self.state.read().networks.exhausted()
    }

    /// Addresses that no workload may be given.
    pub fn taken(&self) -> Vec<Ipv4Addr> {
        self.state.read().fleet.taken().collect()
    }

    /// Waits until what all nodes are sent is no longer as it was published.
    pub async fn fleet_moved(&self) {
        self.moved.notified().await;
    }

    /// Publishes what all nodes are sent, in at most `room` bytes. Returns whether that is anything new.
    pub fn publish(&self, room: usize) -> bool {
        let mut state = self.state.write();
        if !state.loaded || !state.fleet.has_moved() {
            return false;
        }
        let State { fleet, published, .. } = &mut *state;
        let part = fleet.part(published, room);
        let new = part.revision != published.revision;
        *published = Arc::new(part);
        new
    }

    /// What was published last.
    pub fn published(&self) -> Arc<Part> {
        Arc::clone(&self.state.read().published)
    }

    /// What of the fleet cannot be sent, or is in the way of something else, each with why.
    pub fn fleet_faults(&self) -> BTreeMap<Key, String> {
        self.state.read().fleet.faults()
    }

    /// The Applications of `node` that agents would not decode, each with why.
    pub fn faults(&self, node: &str) -> Vec<(Key, String)> {
        let state = self.state.read();
        let keys = state.by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| Some((key.clone(), state.applications.get(key)?.fault.clone()?))).collect()
    }

    /// Whether `node` is sent token volumes, and what an operator says about how.
    pub fn token_volumes(&self, node: &str) -> (bool, Option<bool>) {
        let state = self.state.read();
        let keys = state.by_node.get(node).into_iter().flatten();
        let has_some = |key: &Key| {
            let form = state.applications.get(key).and_then(|placed| placed.shape.form());
            form.is_some_and(|form| !form.uses.audiences.is_empty())
        };
        match state.nodes.get(node) {
            Some(facts) if facts.admitted => (keys.into_iter().any(has_some), facts.tokens_as_secrets),
            _ => (false, None),
        }
    }

    /// What belongs to these Applications.
    pub fn supplies(&self, applications: &[Arc<Form>]) -> Supplies {
        self.state.read().secrets.supplies(applications)
    }

    /// What `node` is to be sent now.
    pub fn view(&self, node: &str) -> View {
        self.state.read().view(node)
    }
}

impl State {
    fn view(&self, node: &str) -> View {
        if !self.loaded {
            return View::Unknown;
        }
        let Some(facts) = self.nodes.get(node) else { return View::Absent };
        if !facts.admitted {
            return View::NotAdmitted;
        }
        let mut applications = Vec::new();
        for key in self.by_node.get(node).into_iter().flatten() {
            match self.applications.get(key).map(|placed| &placed.shape) {
                Some(Shape::Send(form)) => applications.push(Arc::clone(form)),
                Some(Shape::Blocked(why)) => {
                    return View::Blocked { application: key.clone(), why: why.clone() };
                }
                Some(Shape::Finished | Shape::LeftOut) | None => {}
            }
        }
        let supplies = self.secrets.supplies(&applications);
        match self.networks.of(applications.iter().map(|form| &**form)) {
            Err(missing) => View::Unleased(missing),
            Ok(networks) => View::Complete {
                applications,
                volumes: self.volumes.list(node),
                supplies,
                networks,
                fleet: Arc::clone(&self.published),
            },
        }
    }

    fn apply(&mut self, change: &Change) -> Vec<Ring> {
        let key = change.key();
        let entry = (change.kind != ChangeKind::Deleted).then_some(&change.entry);
        let urgent = |node| Ring { node, hurry: Hurry::Urgent };
        if matches!(change.object_kind(), Kind::Node | Kind::Application | Kind::Service) {
            self.fleet.put(key, entry.map(|entry| &**entry));
        }
        match change.object_kind() {
            Kind::Node => self.apply_node(&key.name, entry),
            Kind::Application => self.apply_application(key, entry),
            Kind::PersistentVolume => {
                self.volumes.put(key, entry.map(|entry| &**entry)).into_iter().map(urgent).collect()
            }
            Kind::Secret => {
                let users = self.secrets.put(key, entry);
                self.nodes_of(&users)
            }
            Kind::SecretStore => {
                let users = self.secrets.put_store(key, entry);
                self.nodes_of(&users)
            }
            _ => Vec::new(),
        }
    }

    fn apply_node(&mut self, name: &str, entry: Option<&Arc<Entry>>) -> Vec<Ring> {
        let now = entry.map(|entry| node_facts(entry));
        let before = match now {
            Some(facts) => self.nodes.insert(name.to_owned(), facts),
            None => self.nodes.remove(name),
        };
        if before == now { Vec::new() } else { vec![Ring { node: name.to_owned(), hurry: Hurry::Urgent }] }
    }

    fn apply_application(&mut self, key: &Key, entry: Option<&Arc<Entry>>) -> Vec<Ring> {
        let before = self.take(key);
        if let Some(entry) = entry {
            let last_good = before.as_ref().and_then(|placed| placed.last_good.clone());
            self.put(entry, last_good);
        }
        let now = self.applications.get(key).map(|placed| placed.uid);
        if let Some(gone) = before.as_ref().filter(|before| Some(before.uid) != now) {
            self.networks.forget(gone.uid);
        }
        rings(before.as_ref(), self.applications.get(key))
    }

    /// The nodes of these Applications, each once.
    fn nodes_of(&self, applications: &[Key]) -> Vec<Ring> {
        let placed = applications.iter().filter_map(|key| self.applications.get(key));
        let nodes: BTreeSet<&str> = placed.map(|placed| placed.node.as_str()).collect();
        nodes.into_iter().map(|node| Ring { node: node.to_owned(), hurry: Hurry::Normal }).collect()
    }

    fn take(&mut self, key: &Key) -> Option<Placed> {
        let placed = self.applications.remove(key)?;
        if let Some(form) = placed.shape.form() {
            self.secrets.unused_by(form);
        }
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
        let mut fault = None;
        let (shape, last_good) = match judge(entry) {
            Ok(Judged::Send(form)) => (Shape::Send(Arc::clone(&form)), Some(form)),
            Ok(Judged::Finished) => (Shape::Finished, last_good),
            Err(why) => {
                tracing::error!(application = %entry.key, %why, "agents would not decode this Application");
                fault = Some(why.to_string());
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
        if let Some(form) = shape.form() {
            self.secrets.used_by(form);
        }
        self.by_node.entry(node.clone()).or_default().insert(entry.key.clone());
        self.applications.insert(entry.key.clone(), Placed { node, uid: entry.uid, shape, last_good, fault });
    }
}

/// A node has reported something about it, or it is being deleted (which is a thing to be confirmed).
fn may_be_running(entry: &Entry) -> bool {
    entry.deleting || entry.columns.phase.as_deref().is_some_and(|phase| !matches!(phase, "" | "Pending"))
}

fn node_facts(entry: &Entry) -> NodeFacts {
    // A Node that cannot be read is treated as one that must not be pushed to.
    let node = entry.decoded::<Node>().ok();
    let said = node.as_ref().and_then(|node| node.metadata.annotations.get(TOKEN_VOLUMES));
    NodeFacts {
        uid: entry.uid,
        admitted: node.as_ref().is_some_and(|node| node.admitted()),
        held: node.as_ref().is_some_and(|node| node.held()),
        tokens_as_secrets: said.and_then(|said| as_secrets(said)),
    }
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

#[cfg(test)]
mod tests;
