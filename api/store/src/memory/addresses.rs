//! Addresses of workloads, as the database keeps them.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

use super::micros;
use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Addresses {
    /// `None`: it was somebody's, or is kept free.
    owners: OrdMap<Ipv4Addr, Option<Uuid>>,
    held: OrdMap<Uuid, Ipv4Addr>,
    /// Those without an owner, by when they became free.
    free: OrdSet<(i64, Ipv4Addr)>,
    /// The range in use, and how far it has been given out.
    frontier: Option<(RangeInclusive<Ipv4Addr>, u64)>,
}

fn number(address: Ipv4Addr) -> u64 {
    u64::from(address.to_bits())
}

impl Addresses {
    /// `exists`: whether there is such an Application.
    pub fn lease(
        &mut self,
        demand: &AddressDemand,
        now: i64,
        exists: impl Fn(&horchestra_core::kind::Key, Uuid) -> bool,
    ) -> Vec<Leased> {
        let mut frontier = match &self.frontier {
            Some((range, next)) if *range == demand.range => *next,
            _ => number(*demand.range.start()),
        };
        let mut answers = Vec::new();
        for (key, uid) in &demand.holders {
            let address = match self.held.get(uid) {
                Some(held) => Some(*held),
                None if !exists(key, *uid) => continue,
                None => self.reuse(demand, now).or_else(|| self.advance(demand, now, &mut frontier)),
            };
            if let Some(address) = address {
                self.owners.insert(address, Some(*uid));
                self.held.insert(*uid, address);
            }
            answers.push(Leased { holder: *uid, address });
        }
        self.frontier = Some((demand.range.clone(), frontier));
        answers
    }

    /// The address that has been free for longest, if that is long enough.
    fn reuse(&mut self, demand: &AddressDemand, now: i64) -> Option<Ipv4Addr> {
        loop {
            let (since, address) = *self.free.get_min()?;
            if since >= now - micros(demand.hold_back) {
                return None;
            }
            self.free.remove(&(since, address));
            if !demand.range.contains(&address) {
                self.owners.remove(&address);
            } else if demand.skipped.iter().any(|skipped| skipped.contains(&address)) {
                self.free.insert((now, address));
            } else {
                return Some(address);
            }
        }
    }

    /// The lowest address that never was anybody's.
    fn advance(&mut self, demand: &AddressDemand, now: i64, frontier: &mut u64) -> Option<Ipv4Addr> {
        let last = number(*demand.range.end());
        while *frontier <= last {
            let address = Ipv4Addr::from_bits(u32::try_from(*frontier).ok()?);
            let skipped = demand.skipped.iter().filter(|skipped| skipped.contains(&address));
            let beyond = skipped.map(|skipped| number(*skipped.end())).max();
            *frontier = beyond.unwrap_or(*frontier).min(last) + 1;
            let known = self.owners.contains_key(&address);
            match beyond {
                None if !known => return Some(address),
                Some(end) if end == number(address) && !known => {
                    self.owners.insert(address, None);
                    self.free.insert((now, address));
                }
                _ => {}
            }
        }
        None
    }

    pub fn adopt(
        &mut self,
        known: &[KnownAddress],
        exists: impl Fn(&horchestra_core::kind::Key, Uuid) -> bool,
    ) -> Vec<Uuid> {
        let mut refused = Vec::new();
        for KnownAddress { key, uid, address } in known {
            let owner = self.owners.get(address).copied().flatten();
            if owner == Some(*uid) || !exists(key, *uid) {
                continue;
            }
            if owner.is_some() || self.held.contains_key(uid) {
                refused.push(*uid);
                continue;
            }
            let free = self.free.iter().find(|(_, free)| free == address).copied();
            if let Some(free) = free {
                self.free.remove(&free);
            }
            self.owners.insert(*address, Some(*uid));
            self.held.insert(*uid, *address);
        }
        refused
    }

    pub fn release(&mut self, owner: Uuid, now: i64) {
        if let Some(address) = self.held.remove(&owner) {
            self.owners.insert(address, None);
            self.free.insert((now, address));
        }
    }

    pub fn leases(&self) -> Vec<AddressLease> {
        let held = self.owners.iter().filter_map(|(address, owner)| Some((*address, (*owner)?)));
        held.map(|(address, holder)| AddressLease { address, holder }).collect()
    }
}
