//! Asking the database for the addresses of workloads.
//!
//! Sessions say what is missing ([`Addresses::want`]) and go on; one task asks for all of it at a time, notes the
//! answers in the index, and rings the nodes. Two gateways that ask for the same workload are told the same, so a
//! workload that moves between nodes, and a node that moves between gateways, keeps its address. What there was no
//! address for is asked for again from time to time, since others are erased.
//!
//! Objects that are imported come with an address that they have already: that one is leased to them before anybody
//! could be given it.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::ranges::Network;
use horchestra_store::{
    AddressDemand, AddressLease, Change, ChangeKind, Entry, KnownAddress, Leased, MOST_LEASES, ReadError,
    Snapshot,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::desired::fleet::host_address;
use crate::events;
use crate::gate::Gate;

/// Pause after the database could not be asked.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Local to each link, whatever a range says.
const LINK_LOCAL: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(169, 254, 0, 0)..=Ipv4Addr::new(169, 254, 255, 255);

#[derive(Default)]
struct Waiting {
    wanted: HashMap<Uuid, Key>,
    imported: Vec<KnownAddress>,
}

/// What waits to be asked for.
pub struct Addresses {
    range: Option<RangeInclusive<Ipv4Addr>>,
    services: Option<RangeInclusive<Ipv4Addr>>,
    waiting: Mutex<Waiting>,
    more: Notify,
}

/// The addresses of a network that hosts can have; `None` for one of another family.
fn hosts(network: Network) -> Option<RangeInclusive<Ipv4Addr>> {
    let ends = (network.address(*network.hosts().start()), network.address(*network.hosts().end()));
    match ends {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some(first..=last),
        _ => None,
    }
}

impl Addresses {
    /// `routed`: where workloads get their addresses from; `services`: where Services do.
    pub fn new(routed: Option<Network>, services: Option<Network>) -> Addresses {
        Addresses {
            range: routed.and_then(hosts),
            services: services.and_then(hosts),
            waiting: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Asks for the addresses of these Applications.
    pub fn want(&self, missing: Vec<(Key, Uuid)>) {
        if missing.is_empty() {
            return;
        }
        self.waiting.lock().wanted.extend(missing.into_iter().map(|(key, uid)| (uid, key)));
        self.more.notify_one();
    }

    /// An object that comes into being with an address has it already.
    pub fn consider(&self, change: &Change) {
        if self.range.is_some()
            && change.kind == ChangeKind::Added
            && change.object_kind() == Kind::Application
            && let Some(known) = stored_address(&change.entry)
        {
            self.waiting.lock().imported.push(known);
            self.more.notify_one();
        }
    }

    fn take(&self) -> (Vec<(Key, Uuid)>, Vec<KnownAddress>) {
        let mut waiting = self.waiting.lock();
        let uids: Vec<Uuid> = waiting.wanted.keys().take(MOST_LEASES).copied().collect();
        let some = uids.into_iter().filter_map(|uid| Some((waiting.wanted.remove(&uid)?, uid))).collect();
        if !waiting.wanted.is_empty() {
            self.more.notify_one();
        }
        (some, std::mem::take(&mut waiting.imported))
    }

    fn put_back(&self, wanted: Vec<(Key, Uuid)>, imported: Vec<KnownAddress>) {
        self.waiting.lock().imported.extend(imported);
        self.want(wanted);
        self.more.notify_one();
    }
}

fn stored_address(entry: &Entry) -> Option<KnownAddress> {
    let application = entry.typed::<Application>().ok()?;
    let address = host_address(&application.status.address)?;
    let isolated = application.spec.host_network == Some(false);
    isolated.then(|| KnownAddress { key: entry.key.clone(), uid: entry.uid, address })
}

/// Every address that is leased, after those that objects have already were. `None`: the cluster has no range.
pub async fn known(gate: &Gate, snapshot: &Snapshot) -> Result<Option<Vec<AddressLease>>, ReadError> {
    if gate.addresses.range.is_none() {
        return Ok(None);
    }
    let stored = snapshot.list(Kind::Application, None).filter_map(|entry| stored_address(entry)).collect();
    adopt(gate, stored).await?;
    gate.store.address_leases().await.map(Some)
}

async fn adopt(gate: &Gate, stored: Vec<KnownAddress>) -> Result<(), ReadError> {
    let refused: BTreeSet<Uuid> = gate.store.adopt_addresses(&stored).await?.into_iter().collect();
    for KnownAddress { key, address, .. } in stored.iter().filter(|known| refused.contains(&known.uid)) {
        tracing::error!(application = %key, %address, "an Application reports an address that is not its own");
        events::address_disputed(gate, key, *address);
    }
    Ok(())
}

/// Asks for what waits, until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    let Some(range) = gate.addresses.range.clone() else { return };
    let mut again = interval(gate.settings.address_retry.max(Duration::from_millis(1)));
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = gate.addresses.more.notified() => {}
            _ = again.tick() => gate.addresses.want(gate.index.exhausted()),
        }
        gate.term.until_in_force().await;
        let (wanted, imported) = gate.addresses.take();
        if wanted.is_empty() && imported.is_empty() {
            continue;
        }
        match ask(&gate, &range, &wanted, imported.clone()).await {
            Ok(leased) => {
                gate.metrics
                    .addresses_leased
                    .inc_by(leased.iter().filter(|it| it.address.is_some()).count() as u64);
                for ring in gate.index.note_leases(&wanted, &leased) {
                    if let Some(session) = gate.sessions.get(&ring.node) {
                        session.bell.ring(ring.hurry);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "addresses of workloads could not be asked for");
                gate.addresses.put_back(wanted, imported);
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(AGAIN_AFTER) => {}
                }
            }
        }
    }
}

async fn ask(
    gate: &Gate,
    range: &RangeInclusive<Ipv4Addr>,
    wanted: &[(Key, Uuid)],
    imported: Vec<KnownAddress>,
) -> Result<Vec<Leased>, ReadError> {
    if !imported.is_empty() {
        adopt(gate, imported).await?;
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let stretches = gate.addresses.services.iter().cloned().chain([LINK_LOCAL]);
    let single = gate.index.taken().into_iter().map(|address| address..=address);
    let within =
        |skipped: &RangeInclusive<Ipv4Addr>| skipped.start() <= range.end() && range.start() <= skipped.end();
    let demand = AddressDemand {
        holders: wanted.to_vec(),
        range: range.clone(),
        skipped: stretches.chain(single).filter(within).collect(),
        hold_back: gate.settings.address_hold,
    };
    gate.store.lease_addresses(&demand).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_that_of_hosts_and_of_ipv4() {
        for (network, expected) in [
            ("10.244.0.0/16", Some("10.244.0.1..=10.244.255.254")),
            ("10.244.0.0/30", Some("10.244.0.1..=10.244.0.2")),
            ("fd00::/64", None),
        ] {
            let range = hosts(network.parse().unwrap()).map(|range| format!("{range:?}"));
            assert_eq!(range.as_deref(), expected, "{network}");
        }
        for small in ["10.244.0.0/31", "10.244.0.0/32"] {
            assert!(hosts(small.parse().unwrap()).unwrap().is_empty(), "{small} has no room");
        }
    }
}
