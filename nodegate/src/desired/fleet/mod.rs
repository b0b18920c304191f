//! What every node is sent of all others: routes to workloads that have an address of their own, and rules for the
//! addresses of Services.
//!
//! A node's helper takes a table as a whole or not at all, so one bad entry would stop updates on every node. Hence
//! each entry is judged here on its own, and what a helper would not take is left out: addresses that are not IPv4
//! or mean another place on each machine, ports that are none, a second entry for the same address. Whoever can mend it
//! is told by an Event ([`Fleet::faults`]). Helpers take tables up to a size ([`ROUTES`], [`RULES`]); beyond it the
//! rest is left out as well.
//!
//! The tables are kept up to date from change to change: one costs the entries that it is about. A Service
//! is looked through when it is asked for the next time ([`Fleet::settle`]), so that many of its members may come
//! and go at the cost of once. The result is the same as if all was computed anew.
//!
//! An address in `status` is believed here: only gateways write it, and only the one that was leased to the
//! Application. Should two have the same all the same, the first by name keeps it.

mod facts;
mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_proto::netd::v1::{Backend, Route, ServiceRule};
use horchestra_store::{Entry, Snapshot};

use super::encoded;
pub use facts::host_address;
use facts::{Member, Place, Virtual};
use table::{Limits, Table};

/// Addresses of other nodes' workloads that a helper takes.
const ROUTES: Limits = Limits { entries: 65_536, weight: usize::MAX };
/// Rules that a helper takes, and members behind all of them.
const RULES: Limits = Limits { entries: 4_096, weight: 65_536 };

/// Both tables as they are sent: a part of a desired state.
#[derive(Debug, Default)]
pub struct Part {
    pub pieces: Vec<Bytes>,
    pub len: usize,
    /// Another one for every other content.
    pub revision: u64,
    pub routes: usize,
    pub rules: usize,
    /// Entries that helpers, or agents, would not take any more.
    pub left_out: usize,
}

impl Part {
    /// As much of it, from the beginning, as takes no more than so many bytes; and how many bytes are left out.
    pub fn within(&self, room: usize) -> (&[Bytes], usize) {
        let mut taken = 0;
        let fits = |piece: &&Bytes| {
            taken += piece.len();
            taken <= room
        };
        let kept =
            if self.len <= room { self.pieces.len() } else { self.pieces.iter().take_while(fits).count() };
        (&self.pieces[..kept], self.pieces[kept..].iter().map(Bytes::len).sum())
    }
}

/// All that the tables rest on, and the tables.
#[derive(Default)]
pub struct Fleet {
    members: HashMap<Key, Member>,
    by_node: HashMap<String, BTreeSet<Key>>,
    /// By the key of the Service.
    by_service: HashMap<Key, BTreeSet<Key>>,
    places: HashMap<String, Place>,
    services: HashMap<Key, Virtual>,
    /// Who is at an address.
    nodes_at: HashMap<Ipv4Addr, BTreeSet<String>>,
    members_at: HashMap<Ipv4Addr, BTreeSet<Key>>,
    services_at: HashMap<Ipv4Addr, BTreeSet<Key>>,
    routes: Table,
    rules: Table,
    /// The names of each Service's rules.
    rules_of: HashMap<Key, Vec<String>>,
    /// Services whose rules have to be looked through.
    unsettled: HashSet<Key>,
    /// Something is not as it was sent last, or somebody is to be told of a fault.
    moved: bool,
    odd_services: BTreeMap<Key, String>,
    odd_members: BTreeSet<Key>,
    odd_places: BTreeSet<String>,
    /// Addresses that a node shares with a workload or a Service.
    clashes: BTreeSet<Ipv4Addr>,
}

impl Fleet {
    /// Computed from nothing.
    pub fn of(snapshot: &Snapshot) -> Fleet {
        let mut fleet = Fleet::default();
        for kind in [Kind::Node, Kind::Service, Kind::Application] {
            snapshot.list(kind, None).for_each(|entry| fleet.put(&entry.key, Some(entry)));
        }
        fleet
    }

    /// Takes an object in (`None`: it is gone).
    pub fn put(&mut self, key: &Key, entry: Option<&Entry>) {
        match key.kind {
            Kind::Application => self.put_member(key, entry.and_then(facts::member)),
            Kind::Service => self.put_service(key, entry.and_then(facts::virtual_of)),
            Kind::Node => self.put_place(&key.name, entry.map_or(Place::Unknown, facts::place)),
            _ => {}
        }
    }

    /// Whether there may be something to send.
    pub fn has_moved(&self) -> bool {
        self.moved || !self.unsettled.is_empty()
    }

    fn put_member(&mut self, key: &Key, member: Option<Member>) {
        if self.members.get(key) == member.as_ref() {
            return;
        }
        if let Some(old) = self.members.remove(key) {
            forget(&mut self.by_node, &old.node, key);
            if let Some(service) = service_of(key, &old) {
                forget(&mut self.by_service, &service, key);
                self.unsettled.insert(service);
            }
            if let Some(address) = old.address {
                forget(&mut self.members_at, &address, key);
                self.look_at(address);
                self.moved |= self.routes.remove(&cidr(address), key);
            }
            self.moved |= self.odd_members.remove(key);
        }
        let Some(new) = member else { return };
        self.by_node.entry(new.node.clone()).or_default().insert(key.clone());
        if let Some(service) = service_of(key, &new) {
            self.by_service.entry(service.clone()).or_default().insert(key.clone());
            self.unsettled.insert(service);
        }
        if let Some(address) = new.address {
            self.members_at.entry(address).or_default().insert(key.clone());
            self.look_at(address);
        }
        if new.odd_address.is_some() {
            self.moved |= self.odd_members.insert(key.clone());
        }
        self.members.insert(key.clone(), new);
        self.put_route(key);
    }

    /// The route to a member, as things are.
    fn put_route(&mut self, key: &Key) {
        let Some(Member { address: Some(address), node, .. }) = self.members.get(key) else { return };
        let cidr = cidr(*address);
        self.moved |= match self.places.get(node).and_then(Place::address) {
            Some(place) => {
                let route = Route { cidr: cidr.clone(), node_ip: place.to_string() };
                self.routes.put(&cidr, key, encoded::message(encoded::ROUTES, &route), 0)
            }
            None => self.routes.remove(&cidr, key),
        };
    }

    fn put_place(&mut self, node: &str, place: Place) {
        let before = match place {
            Place::Unknown => self.places.remove(node),
            ref known => self.places.insert(node.to_owned(), known.clone()),
        };
        if before.as_ref().unwrap_or(&Place::Unknown) == &place {
            return;
        }
        if let Some(address) = before.as_ref().and_then(Place::address) {
            forget(&mut self.nodes_at, &address, node);
            self.look_at(address);
        }
        if let Some(address) = place.address() {
            self.nodes_at.entry(address).or_default().insert(node.to_owned());
            self.look_at(address);
        }
        self.moved |= match place {
            Place::Odd(_) => self.odd_places.insert(node.to_owned()),
            Place::At(_) | Place::Unknown => self.odd_places.remove(node),
        };
        for key in self.by_node.get(node).cloned().unwrap_or_default() {
            self.put_route(&key);
            if let Some(service) = self.members.get(&key).and_then(|member| service_of(&key, member)) {
                self.unsettled.insert(service);
            }
        }
    }

    fn put_service(&mut self, key: &Key, service: Option<Virtual>) {
        if self.services.get(key) == service.as_ref() {
            return;
        }
        let before = self.services.remove(key);
        if let Some(address) = before.and_then(|before| before.address) {
            forget(&mut self.services_at, &address, key);
            self.look_at(address);
        }
        if let Some(new) = service {
            if let Some(address) = new.address {
                self.services_at.entry(address).or_default().insert(key.clone());
                self.look_at(address);
            }
            self.services.insert(key.clone(), new);
        }
        self.unsettled.insert(key.clone());
    }

    /// Somebody has come to an address or left it.
    fn look_at(&mut self, address: Ipv4Addr) {
        let services = self.services_at.get(&address);
        self.unsettled.extend(services.into_iter().flatten().cloned());
        let shared = self.nodes_at.contains_key(&address)
            && (services.is_some() || self.members_at.contains_key(&address));
        self.moved |= match shared {
            true => self.clashes.insert(address),
            false => self.clashes.remove(&address),
        };
    }

    /// Looks through the Services that something has happened to.
    fn settle(&mut self) {
        for key in std::mem::take(&mut self.unsettled) {
            let (rules, fault) = self.rules(&key);
            match fault {
                Some(why) => self.odd_services.insert(key.clone(), why),
                None => self.odd_services.remove(&key),
            };
            let names: Vec<String> = rules.iter().map(|(name, _)| name.clone()).collect();
            for name in self.rules_of.get(&key).into_iter().flatten() {
                if !names.contains(name) {
                    self.moved |= self.rules.remove(name, &key);
                }
            }
            for (name, rule) in rules {
                let bytes = encoded::message(encoded::SERVICES, &rule);
                self.moved |= self.rules.put(&name, &key, bytes, rule.backends.len());
            }
            match names.is_empty() {
                true => self.rules_of.remove(&key),
                false => self.rules_of.insert(key, names),
            };
        }
    }

    /// The rules of a Service, and what keeps it from having more.
    fn rules(&self, key: &Key) -> (Vec<(String, ServiceRule)>, Option<String>) {
        let Some(service) = self.services.get(key) else { return (Vec::new(), None) };
        let text = &service.text;
        let Some(address) = service.address else {
            let why = format!("{text} is no address that nodes route to: it must be IPv4 and not local");
            return (Vec::new(), Some(why));
        };
        if let Some(member) = self.members_at.get(&address).and_then(BTreeSet::first) {
            let why = format!("{text} is the address of the workload of {member}");
            return (Vec::new(), Some(why));
        }
        let mut fault = None;
        let mut rules = Vec::new();
        for port in &service.ports {
            if !is_port(i64::from(port.port)) {
                fault = Some(format!("port {} is none", port.port));
                continue;
            }
            let mut backends = BTreeSet::new();
            for key in self.by_service.get(key).into_iter().flatten() {
                let Some(member) = self.members.get(key).filter(|member| member.serves) else { continue };
                let place = || self.places.get(&member.node).and_then(Place::address);
                let at = if member.isolated { member.address } else { place() };
                let Some(at) = at else { continue };
                let target = port.target(member.ports.iter().map(|(name, port)| (name.as_str(), *port)));
                match i32::try_from(target).ok().filter(|_| is_port(target)) {
                    Some(target) => drop(backends.insert((at.to_string(), target))),
                    None => fault = Some(format!("port {target} of {key} is none")),
                }
            }
            if backends.is_empty() {
                continue;
            }
            let protocol = port.protocol.as_str().to_owned();
            let name = format!("{address} {:05} {protocol}", port.port);
            let backends = backends.into_iter().map(|(address, port)| Backend { address, port }).collect();
            let rule = ServiceRule { cluster_ip: address.to_string(), port: port.port, protocol, backends };
            rules.push((name, rule));
        }
        // Ports of a stored Service differ; should they not, the first counts.
        rules.sort_by(|one, other| one.0.cmp(&other.0));
        rules.dedup_by(|later, first| later.0 == first.0);
        (rules, fault)
    }

    /// Both tables, in at most `room` bytes, as a part that follows on `last`.
    pub fn part(&mut self, last: &Part, room: usize) -> Part {
        self.settle();
        self.moved = false;
        let routes = self.routes.pieces(ROUTES, room);
        let rules = self.rules.pieces(RULES, room - routes.len);
        let (counts, len) = ((routes.entries, rules.entries), routes.len + rules.len);
        let left_out = routes.left_out + rules.left_out;
        let mut pieces = routes.bytes;
        pieces.extend(rules.bytes);
        let revision = last.revision + u64::from(pieces != last.pieces);
        Part { pieces, len, revision, routes: counts.0, rules: counts.1, left_out }
    }

    /// What is left out for its own fault, or stands in another one's way, and why. As of the last part.
    pub fn faults(&self) -> BTreeMap<Key, String> {
        let mut faults: BTreeMap<Key, String> = BTreeMap::new();
        for key in &self.odd_members {
            let odd = self.members.get(key).and_then(|member| member.odd_address.as_deref()).unwrap_or("");
            faults.insert(key.clone(), format!("{odd:?} is no address that nodes route to"));
        }
        for (key, why) in &self.odd_services {
            faults.insert(key.clone(), why.clone());
        }
        for (key, name) in self.routes.losers().chain(self.rules.losers()) {
            let name = name.split([' ', '/']).next().unwrap_or(name);
            faults.entry(key.clone()).or_insert_with(|| format!("another one has the address {name}, too"));
        }
        for name in self.odd_places.iter().filter(|name| self.by_node.contains_key(*name)) {
            if let Some(Place::Odd(text)) = self.places.get(name) {
                let why = format!("{text} is no IPv4 address, so nobody routes to workloads there");
                faults.insert(Key::cluster(Kind::Node, name.as_str()), why);
            }
        }
        for address in &self.clashes {
            let members = self.members_at.get(address).into_iter().flatten();
            let services = self.services_at.get(address).into_iter().flatten();
            let Some(other) = members.chain(services).next() else { continue };
            for name in self.nodes_at.get(address).into_iter().flatten() {
                let why = format!("{address} is the address of {other}, too");
                faults.insert(Key::cluster(Kind::Node, name.as_str()), why);
            }
        }
        faults
    }

    /// Addresses that no workload may be given.
    pub fn taken(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.nodes_at.keys().chain(self.services_at.keys()).copied()
    }
}

fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

fn cidr(address: Ipv4Addr) -> String {
    format!("{address}/32")
}

fn service_of(key: &Key, member: &Member) -> Option<Key> {
    let name = member.service.as_str();
    (!name.is_empty()).then(|| Key::namespaced(Kind::Service, key.namespace.as_str(), name))
}

/// Takes a value out of a set, and the set out of the map when it was the last.
fn forget<K, V, Q>(map: &mut HashMap<K, BTreeSet<V>>, at: &K, value: &Q)
where
    K: std::hash::Hash + Eq,
    V: Ord + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    if let Some(set) = map.get_mut(at) {
        set.remove(value);
        if set.is_empty() {
            map.remove(at);
        }
    }
}

#[cfg(test)]
mod tests;
