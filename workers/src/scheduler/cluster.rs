//! What the scheduler knows while it decides: nodes with what already runs on them, and Applications that
//! wait for a place.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use horchestra_core::kind::Key;
use horchestra_core::kinds::application::{Application, WorkloadAffinityTerm};
use uuid::Uuid;

use super::neighbours::{Neighbours, Peers, TermId};

/// CPU in nano-cores, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu: i64,
    pub memory: i64,
}

impl Amounts {
    pub fn saturating_add(self, other: Amounts) -> Amounts {
        Amounts { cpu: self.cpu.saturating_add(other.cpu), memory: self.memory.saturating_add(other.memory) }
    }

    pub fn saturating_sub(self, other: Amounts) -> Amounts {
        Amounts { cpu: self.cpu.saturating_sub(other.cpu), memory: self.memory.saturating_sub(other.memory) }
    }
}

/// Whether work may be put on a node, as far as its liveness goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Judged ready, and heard of since the control plane was last away.
    Ready,
    /// The judge says that it is not ready, or nobody has judged it yet.
    NotReady,
    /// Judged ready, but silent since the control plane was last away: a binding is for good, so wait.
    Unheard,
}

/// An Application that occupies its node.
#[derive(Clone, Debug)]
pub struct Placed {
    pub key: Key,
    pub requests: Amounts,
    pub app: Arc<Application>,
}

/// A node and its load.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub name: String,
    /// The revision that decisions are made from.
    pub revision: i64,
    /// The labels that placement sees: the operator's, overlaid by the derived ones.
    pub labels: BTreeMap<String, String>,
    pub unschedulable: bool,
    /// Not yet taken in by an operator: it is sent nothing, so nothing may be put there.
    pub admitted: bool,
    /// Nothing is sent to it until an operator admits it anew.
    pub held: bool,
    pub liveness: Liveness,
    pub capacity: Amounts,
    pub runtimes: Vec<String>,
    pub routed_network: bool,
    /// Sum over `placed`.
    pub used: Amounts,
    pub placed: Vec<Placed>,
}

/// An Application that waits for a node.
#[derive(Clone, Debug)]
pub struct Pending {
    pub key: Key,
    pub uid: Uuid,
    /// The revision that the decision is made from; the binding is refused at any other.
    pub revision: i64,
    /// Higher goes first.
    pub priority: i32,
    /// RFC 3339 in UTC with whole seconds, so that byte order is time order.
    pub created: String,
    pub requests: Amounts,
    pub app: Arc<Application>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The node that it lies on.
    pub node: Option<String>,
    pub deleting: bool,
}

/// Every node, in byte order of the names, and who is whose neighbour. Nodes go by their place in that order: what
/// is done for every node and every Application does not look names up.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: Vec<NodeInfo>,
    neighbours: Neighbours,
    volumes: HashMap<Key, VolumeInfo>,
}

impl Cluster {
    /// Nodes with what is placed on them; of two with one name the later counts.
    pub fn new(nodes: impl IntoIterator<Item = NodeInfo>) -> Cluster {
        let nodes: BTreeMap<String, NodeInfo> =
            nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        let mut cluster = Cluster { nodes: nodes.into_values().collect(), ..Cluster::default() };
        for at in 0..cluster.nodes.len() {
            for placed in std::mem::take(&mut cluster.nodes[at].placed) {
                cluster.neighbours.place(&cluster.nodes, at, &placed);
                cluster.nodes[at].placed.push(placed);
            }
        }
        cluster
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at a place of the order.
    pub fn at(&self, at: usize) -> &NodeInfo {
        &self.nodes[at]
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.position(name).map(|at| &self.nodes[at])
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.iter()
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()
    }

    /// Counts an Application on its node; an unknown node counts nothing.
    pub fn place(&mut self, node: &str, placed: Placed) {
        if let Some(at) = self.position(node) {
            self.neighbours.place(&self.nodes, at, &placed);
            let node = &mut self.nodes[at];
            node.used = node.used.saturating_add(placed.requests);
            node.placed.push(placed);
        }
    }

    /// Takes back what [`Cluster::place`] counted.
    pub fn displace(&mut self, node: &str, key: &Key) {
        if let Some(at) = self.position(node)
            && let Some(found) = self.nodes[at].placed.iter().position(|placed| &placed.key == key)
        {
            let placed = self.nodes[at].placed.remove(found);
            self.nodes[at].used = self.nodes[at].used.saturating_sub(placed.requests);
            self.neighbours.displace(at, &placed);
        }
    }

    pub fn volume(&self, key: &Key) -> Option<&VolumeInfo> {
        self.volumes.get(key)
    }

    /// What is known of a volume from now on (`None`: there is none); answers what was known before.
    pub fn put_volume(&mut self, key: Key, volume: Option<VolumeInfo>) -> Option<VolumeInfo> {
        match volume {
            Some(volume) => self.volumes.insert(key, volume),
            None => self.volumes.remove(&key),
        }
    }

    /// Keeps count of the peers of a term from now on.
    pub fn watch(&mut self, namespace: &str, term: &WorkloadAffinityTerm) -> TermId {
        self.neighbours.watch(&self.nodes, namespace, term)
    }

    /// The peers of a term, by domain.
    pub fn peers(&self, term: TermId) -> &Peers {
        self.neighbours.peers(term)
    }

    /// For every required anti-affinity in the namespace that is about these labels: the domains of those
    /// that have it.
    pub fn repelling<'a>(
        &'a self,
        namespace: &str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a Peers> {
        self.neighbours.repelling(namespace, labels)
    }
}
