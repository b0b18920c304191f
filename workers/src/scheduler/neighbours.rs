//! Who runs beside whom: for each term about neighbours that somebody asks about, how many of those that it means are in
//! each of its domains.
//!
//! A term is asked about for every node and every waiting Application, and hardly anything about it changes in
//! between: one more is placed. So a term's peers are counted when it is first asked about, and the count
//! is kept up to date by every placement after that. What placed Applications keep away from them is counted in the
//! same way, by term, since many have the same one. A question about a node is then one look-up.
//!
//! A domain is the nodes with an equal value of the term's label; a node without the label is a domain of its own.
//! Only Applications of one namespace are neighbours.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use horchestra_core::kinds::application::{Application, WorkloadAffinityTerm};

use super::cluster::{NodeInfo, Placed};

/// A term that is kept count of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermId(usize);

/// How many of somebody there are in each domain of a label.
#[derive(Clone, Debug)]
pub struct Peers {
    selector: BTreeMap<String, String>,
    /// The domain of each node.
    domains: Arc<Vec<usize>>,
    counts: HashMap<usize, u32>,
    total: u32,
}

impl Peers {
    /// Whether one is in the domain of the node.
    pub fn near(&self, node: usize) -> bool {
        self.total > 0 && self.counts.contains_key(&self.domains[node])
    }

    pub fn anywhere(&self) -> bool {
        self.total > 0
    }

    fn add(&mut self, node: usize) {
        *self.counts.entry(self.domains[node]).or_default() += 1;
        self.total += 1;
    }

    fn remove(&mut self, node: usize) {
        let domain = self.domains[node];
        if let Some(count) = self.counts.get_mut(&domain) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.counts.remove(&domain);
            }
        }
    }
}

/// An empty selector selects everybody.
pub fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The required terms of an Application: of those that it wants to be near, or away from.
pub fn required(app: &Application, away: bool) -> &[WorkloadAffinityTerm] {
    let affinity = app.spec.placement.as_ref().and_then(|placement| placement.affinity.as_ref());
    let terms = affinity.and_then(|affinity| match away {
        true => affinity.workload_anti_affinity.as_ref(),
        false => affinity.workload_affinity.as_ref(),
    });
    terms.map_or(&[], |terms| &terms.required_during_scheduling)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Neighbours {
    /// By label: the domain of each node, named by the first node in it.
    domains: HashMap<String, Arc<Vec<usize>>>,
    namespaces: HashMap<String, Namespace>,
    watched: Vec<Peers>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    /// Everybody who is placed, and where.
    placed: Vec<(usize, Arc<Application>)>,
    watched: HashMap<WorkloadAffinityTerm, TermId>,
    /// Those that have a required anti-affinity, by its term.
    repelling: HashMap<WorkloadAffinityTerm, Peers>,
}

impl Neighbours {
    pub fn place(&mut self, nodes: &[NodeInfo], at: usize, placed: &Placed) {
        if !self.namespaces.contains_key(&placed.key.namespace) {
            self.namespaces.insert(placed.key.namespace.clone(), Namespace::default());
        }
        let Some(namespace) = self.namespaces.get_mut(&placed.key.namespace) else { return };
        namespace.placed.push((at, Arc::clone(&placed.app)));
        for id in namespace.watched.values() {
            let peers = &mut self.watched[id.0];
            if selects(&peers.selector, &placed.app.metadata.labels) {
                peers.add(at);
            }
        }
        for term in required(&placed.app, true) {
            if !namespace.repelling.contains_key(term) {
                let peers = nobody(&mut self.domains, nodes, term);
                namespace.repelling.insert(term.clone(), peers);
            }
            if let Some(peers) = namespace.repelling.get_mut(term) {
                peers.add(at);
            }
        }
    }

    pub fn displace(&mut self, at: usize, placed: &Placed) {
        let Some(namespace) = self.namespaces.get_mut(&placed.key.namespace) else { return };
        let same = |(node, app): &(usize, Arc<Application>)| *node == at && Arc::ptr_eq(app, &placed.app);
        let Some(found) = namespace.placed.iter().rposition(same) else { return };
        namespace.placed.swap_remove(found);
        for id in namespace.watched.values() {
            let peers = &mut self.watched[id.0];
            if selects(&peers.selector, &placed.app.metadata.labels) {
                peers.remove(at);
            }
        }
        for term in required(&placed.app, true) {
            if let Some(peers) = namespace.repelling.get_mut(term) {
                peers.remove(at);
            }
        }
    }

    pub fn watch(&mut self, nodes: &[NodeInfo], namespace: &str, term: &WorkloadAffinityTerm) -> TermId {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.to_owned(), Namespace::default());
        }
        let known = self.namespaces.get(namespace).and_then(|namespace| namespace.watched.get(term));
        if let Some(id) = known {
            return *id;
        }
        let mut peers = nobody(&mut self.domains, nodes, term);
        let id = TermId(self.watched.len());
        if let Some(namespace) = self.namespaces.get_mut(namespace) {
            for (at, app) in &namespace.placed {
                if selects(&peers.selector, &app.metadata.labels) {
                    peers.add(*at);
                }
            }
            namespace.watched.insert(term.clone(), id);
        }
        self.watched.push(peers);
        id
    }

    pub fn peers(&self, term: TermId) -> &Peers {
        &self.watched[term.0]
    }

    pub fn repelling<'a>(
        &'a self,
        namespace: &str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a Peers> {
        let terms = self.namespaces.get(namespace).into_iter().flat_map(|it| it.repelling.values());
        terms.filter(|peers| peers.anywhere() && selects(&peers.selector, labels))
    }
}

fn nobody(
    domains: &mut HashMap<String, Arc<Vec<usize>>>,
    nodes: &[NodeInfo],
    term: &WorkloadAffinityTerm,
) -> Peers {
    let domains = domains.entry(term.topology_key.clone()).or_insert_with(|| {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let domain = |(at, node)| {
            let node: &NodeInfo = node;
            node.labels.get(&term.topology_key).map_or(at, |value| *first.entry(value).or_insert(at))
        };
        Arc::new(nodes.iter().enumerate().map(domain).collect())
    });
    Peers {
        selector: term.label_selector.clone(),
        domains: Arc::clone(domains),
        counts: HashMap::new(),
        total: 0,
    }
}
