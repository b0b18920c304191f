//! What the scheduler knows while it decides: nodes with what already runs on them, and Applications that
//! wait for a place.

use std::collections::BTreeMap;
use std::sync::Arc;

use horchestra_core::kind::Key;
use horchestra_core::kinds::application::Application;
use uuid::Uuid;

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

/// Every node by name, in byte order.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeInfo>,
}

impl Cluster {
    pub fn new(nodes: impl IntoIterator<Item = NodeInfo>) -> Cluster {
        Cluster { nodes: nodes.into_iter().map(|node| (node.name.clone(), node)).collect() }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.values()
    }

    /// The nodes in the topology domain of `node` under a label: those with an equal value; of a node without
    /// the label, itself alone. Nothing for an unknown node.
    pub fn domain<'a>(&'a self, node: &str, key: &str) -> Vec<&'a NodeInfo> {
        let Some(node) = self.nodes.get(node) else { return Vec::new() };
        match node.labels.get(key) {
            None => vec![node],
            Some(value) => self.nodes.values().filter(|other| other.labels.get(key) == Some(value)).collect(),
        }
    }

    /// Counts an Application on its node; an unknown node counts nothing.
    pub fn place(&mut self, node: &str, placed: Placed) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.used = node.used.saturating_add(placed.requests);
            node.placed.push(placed);
        }
    }

    /// Takes back what [`Cluster::place`] counted.
    pub fn displace(&mut self, node: &str, key: &Key) {
        if let Some(node) = self.nodes.get_mut(node)
            && let Some(at) = node.placed.iter().position(|placed| &placed.key == key)
        {
            let placed = node.placed.remove(at);
            node.used = node.used.saturating_sub(placed.requests);
        }
    }
}
