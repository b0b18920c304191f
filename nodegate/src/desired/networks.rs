//! The addresses of workloads that have a network of their own, as far as they are known here.
//!
//! An address once known does not change as long as its Application exists, so what is known is good until then,
//! whichever gateway found it out. A node is not pushed to while one of its workloads lacks an address that it could
//! have: an agent does not start a workload without one, and does not wire it anew when it gets one later.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use horchestra_core::kind::Key;
use horchestra_proto::node::v1::WorkloadNetwork;
use horchestra_store::{AddressLease, Leased};
use uuid::Uuid;

use super::form::Form;

/// The gateway of every workload, which each node has itself.
const GATEWAY: &str = "169.254.1.1";

/// Why a workload has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Without {
    /// The cluster has no range for them.
    Range,
    /// All are in use.
    Room,
}

/// The networks of a node's workloads, as they are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNetworks {
    /// In the order of the Applications.
    pub addresses: Vec<(Uuid, Ipv4Addr)>,
    /// Those that have none.
    pub without: Vec<(Key, Uuid, Without)>,
}

impl NodeNetworks {
    /// These, and what of `others` is about other workloads.
    pub fn with(&self, others: NodeNetworks) -> NodeNetworks {
        let mut all = self.clone();
        let known: Vec<Uuid> = all.addresses.iter().map(|(uid, _)| *uid).collect();
        let new = |uid: &Uuid| !known.contains(uid);
        all.addresses.extend(others.addresses.into_iter().filter(|(uid, _)| new(uid)));
        all.without = others.without.into_iter().filter(|(_, uid, _)| new(uid)).collect();
        all
    }

    pub fn encoded(&self) -> Vec<WorkloadNetwork> {
        let network = |(workload, address): &(Uuid, Ipv4Addr)| WorkloadNetwork {
            workload: workload.to_string(),
            address: format!("{address}/32"),
            gateway: GATEWAY.to_owned(),
            mtu: 0,
        };
        self.addresses.iter().map(network).collect()
    }
}

/// What is known.
#[derive(Default)]
pub(super) struct Networks {
    /// There is a range.
    offered: bool,
    known: HashMap<Uuid, Ipv4Addr>,
    /// Those that there was no address for.
    exhausted: HashMap<Uuid, Key>,
}

impl Networks {
    /// `leases`: of Applications that exist. `None`: there is no range.
    pub fn new(leases: Option<Vec<AddressLease>>) -> Networks {
        let offered = leases.is_some();
        let leases = leases.into_iter().flatten();
        let known = leases.map(|lease| (lease.holder, lease.address)).collect();
        Networks { offered, known, exhausted: HashMap::new() }
    }

    /// The networks for a node that is sent these; the error lists the workloads that should be asked for first.
    pub fn of<'a>(&self, forms: impl Iterator<Item = &'a Form>) -> Result<NodeNetworks, Vec<(Key, Uuid)>> {
        let (mut networks, mut missing) = (NodeNetworks::default(), Vec::new());
        for form in forms.filter(|form| form.isolated) {
            let uid = form.signature.uid;
            match self.known.get(&uid) {
                Some(address) => networks.addresses.push((uid, *address)),
                // It is only to be ended.
                None if form.signature.deleting => {}
                None if !self.offered => networks.without.push((form.key.clone(), uid, Without::Range)),
                None if self.exhausted.contains_key(&uid) => {
                    networks.without.push((form.key.clone(), uid, Without::Room));
                }
                None => missing.push((form.key.clone(), uid)),
            }
        }
        if missing.is_empty() { Ok(networks) } else { Err(missing) }
    }

    /// Notes an answer about an Application; returns whether it is another one than before.
    pub fn note(&mut self, key: &Key, leased: &Leased) -> bool {
        match leased.address {
            Some(address) => {
                self.exhausted.remove(&leased.holder);
                self.known.insert(leased.holder, address) != Some(address)
            }
            None => self.exhausted.insert(leased.holder, key.clone()).is_none(),
        }
    }

    /// The Application is gone from here.
    pub fn forget(&mut self, uid: Uuid) {
        self.known.remove(&uid);
        self.exhausted.remove(&uid);
    }

    /// Those that there was no address for.
    pub fn exhausted(&self) -> Vec<(Key, Uuid)> {
        self.exhausted.iter().map(|(uid, key)| (key.clone(), *uid)).collect()
    }
}
