//! Addresses of workloads.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use horchestra_core::kind::Key;
use horchestra_store::{AddressDemand, AddressLease, Entry, KnownAddress, Op, Store};
use uuid::Uuid;

use crate::fixture::*;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 0, last)
}

/// A demand in a range that ends with this address, in which nothing is held back.
fn demand(entries: &[&Arc<Entry>], last: u8) -> AddressDemand {
    AddressDemand {
        holders: entries.iter().map(|entry| (entry.key.clone(), entry.uid)).collect(),
        range: ip(1)..=ip(last),
        skipped: Vec::new(),
        hold_back: Duration::ZERO,
    }
}

/// The last number of the address of each, in order; `None` without one.
async fn lease(store: &Store, demand: &AddressDemand) -> Vec<Option<u8>> {
    let leased = within(store.lease_addresses(demand)).await.expect("answered");
    let by_holder: HashMap<Uuid, _> = leased.iter().map(|leased| (leased.holder, leased.address)).collect();
    assert_eq!(leased.len(), by_holder.len(), "one answer each");
    let last = |(_, uid): &(Key, Uuid)| by_holder.get(uid).map(|address| address.map(|it| it.octets()[3]));
    demand.holders.iter().filter_map(last).collect()
}

async fn apps<const N: usize>(store: &Store, prefix: &str) -> [Arc<Entry>; N] {
    let mut made = Vec::new();
    for n in 0..N {
        made.push(created(store, &app(&format!("{prefix}{n}")), "1").await);
    }
    made.try_into().expect("as many")
}

pub async fn an_address_is_had_until_the_end(world: &World) {
    let (store, other) = (world.store().await, world.store().await);
    let [a, b, c] = apps(&store, "app").await;
    assert_eq!(lease(&store, &demand(&[&b, &a], 9)).await, [Some(1), Some(2)]);
    assert_eq!(lease(&other, &demand(&[&a, &c, &b], 9)).await, [Some(2), Some(3), Some(1)]);
    put(&store, update(&a, "2")).await;
    assert_eq!(lease(&other, &demand(&[&a], 9)).await, [Some(2)]);
    let elsewhere = AddressDemand { range: ip(100)..=ip(200), ..demand(&[&a], 9) };
    assert_eq!(lease(&other, &elsewhere).await, [Some(2)], "another range is for newcomers");
    let known = within(other.address_leases()).await.expect("answered");
    let lease = |last, holder: &Entry| AddressLease { address: ip(last), holder: holder.uid };
    assert_eq!(known, [lease(1, &b), lease(2, &a), lease(3, &c)]);
}

pub async fn only_what_exists_gets_an_address(world: &World) {
    let store = world.store().await;
    let [a, b] = apps(&store, "app").await;
    put(&store, delete(&a)).await;
    let mut wanted = demand(&[&a, &b], 9);
    wanted.holders.push((b.key.clone(), Uuid::new_v4()));
    assert_eq!(lease(&store, &wanted).await, [Some(1)]);
    let known = within(store.address_leases()).await.expect("answered");
    assert_eq!(known.len(), 1);
}

pub async fn what_is_taken_otherwise_is_skipped(world: &World) {
    let store = world.store().await;
    let [a, b, c, d] = apps(&store, "app").await;
    let skipping = |entry, skipped: &[(u8, u8)]| AddressDemand {
        skipped: skipped.iter().map(|(first, last)| ip(*first)..=ip(*last)).collect(),
        ..demand(&[entry], 9)
    };
    assert_eq!(lease(&store, &skipping(&a, &[(1, 1), (2, 4), (3, 3)])).await, [Some(5)]);
    assert_eq!(lease(&store, &skipping(&b, &[(1, 1), (6, 255)])).await, [None]);
    assert_eq!(lease(&store, &skipping(&b, &[(1, 1)])).await, [None], "a stretch is passed over for good");
    assert_eq!(lease(&store, &skipping(&b, &[])).await, [Some(1)], "a single address is not");
    put(&store, delete(&b)).await;
    assert_eq!(lease(&store, &skipping(&c, &[(1, 1)])).await, [None], "nor is one that was somebody's given");
    assert_eq!(lease(&store, &skipping(&d, &[])).await, [Some(1)]);
}

pub async fn a_range_can_be_used_up(world: &World) {
    let store = world.store().await;
    let [a, b, c] = apps(&store, "app").await;
    assert_eq!(lease(&store, &demand(&[&a, &b, &c], 2)).await, [Some(1), Some(2), None]);
    assert_eq!(lease(&store, &demand(&[&c, &a], 2)).await, [None, Some(1)]);
    put(&store, delete(&a)).await;
    assert_eq!(lease(&store, &demand(&[&c], 2)).await, [Some(1)]);
    let [d] = apps(&store, "more").await;
    let empty = AddressDemand { range: ip(2)..=ip(1), ..demand(&[&d], 2) };
    assert_eq!(lease(&store, &empty).await, [None], "a network of one has none to give");
}

pub async fn an_address_that_was_given_back_is_held_back(world: &World) {
    let store = world.store().await;
    let [a, b, c, d, e] = apps(&store, "app").await;
    assert_eq!(lease(&store, &demand(&[&a, &b, &c], 9)).await, [Some(1), Some(2), Some(3)]);
    // Two in one item, as a batch has them.
    within(store.commit(item(vec![delete(&b), delete(&a)]))).await.expect("committed");
    let patient = AddressDemand { hold_back: LONG, ..demand(&[&d], 9) };
    assert_eq!(lease(&store, &patient).await, [Some(4)]);
    assert_eq!(lease(&store, &demand(&[&d], 9)).await, [Some(4)], "who has one keeps it");
    let next = lease(&store, &demand(&[&e], 9)).await;
    assert!(next == [Some(1)] || next == [Some(2)], "{next:?}");
    // Another range has no use for what is left of this one.
    let [f] = apps(&store, "more").await;
    let elsewhere = AddressDemand { range: ip(100)..=ip(200), ..demand(&[&f], 9) };
    assert_eq!(lease(&store, &elsewhere).await, [Some(100)]);
}

pub async fn askers_at_the_same_time_never_share_an_address(world: &World) {
    let stores = [world.store().await, world.store().await, world.store().await];
    let apps = apps::<24>(&stores[0], "app").await;
    // Each is asked for by every process, in another order, while some are erased.
    let asking = (0..stores.len() * apps.len()).map(|n| {
        let (store, app) = (&stores[n % stores.len()], &apps[(n * 7) % apps.len()]);
        async move {
            if n % 11 == 0 {
                let _ = store.commit(item(vec![delete(app)])).await;
            }
            store.lease_addresses(&demand(&[app], 99)).await.expect("answered")
        }
    });
    let answers = within(join_all(asking)).await;
    let held = within(stores[0].address_leases()).await.expect("answered");
    let mut holders: Vec<Uuid> = held.iter().map(|lease| lease.holder).collect();
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), held.len(), "nobody has two");
    for leased in answers.into_iter().flatten() {
        if let Some(lease) = held.iter().find(|lease| lease.holder == leased.holder) {
            assert_eq!(leased.address, Some(lease.address), "everybody is told the same");
        }
    }
    let left = within(stores[1].fresh()).await.expect("fresh");
    for app in &apps {
        let exists = left.get(&app.key).is_some();
        assert_eq!(held.iter().any(|lease| lease.holder == app.uid), exists, "{}", app.key);
    }
}

pub async fn known_addresses_are_taken_over(world: &World) {
    let store = world.store().await;
    let [a, b, c, d, e] = apps(&store, "app").await;
    let known =
        |entry: &Entry, last| KnownAddress { key: entry.key.clone(), uid: entry.uid, address: ip(last) };
    let adopt = async |known: &[KnownAddress]| within(store.adopt_addresses(known)).await.expect("answered");
    let gone = KnownAddress { uid: Uuid::new_v4(), ..known(&a, 7) };
    assert_eq!(adopt(&[known(&a, 1), known(&b, 3), gone, known(&c, 3)]).await, [c.uid]);
    assert_eq!(adopt(&[known(&b, 3), known(&a, 2)]).await, [a.uid], "an address does not change");
    assert!(adopt(&[]).await.is_empty());
    assert_eq!(lease(&store, &demand(&[&a, &c, &d], 9)).await, [Some(1), Some(2), Some(4)]);
    put(&store, delete(&b)).await;
    let patient = AddressDemand { hold_back: LONG, ..demand(&[&e], 9) };
    assert!(adopt(&[known(&e, 3)]).await.is_empty(), "who has it already need not wait");
    assert_eq!(lease(&store, &patient).await, [Some(3)]);
}

pub async fn freed_addresses_of_services_are_remembered(world: &World) {
    let store = world.store().await;
    let space = "service-address".to_owned();
    let owner = Uuid::new_v4();
    let claim = |value: &str| Op::Claim { space: space.clone(), value: value.into(), owner, shared: false };
    let released = async |age| within(store.released_claims(&space, age)).await.expect("answered");
    within(store.commit(item(vec![claim("10.0.0.1"), claim("10.0.0.2")]))).await.expect("committed");
    assert_eq!(released(LONG).await, Vec::<String>::new());
    put(&store, Op::Release { space: space.clone(), owner }).await;
    assert_eq!(released(LONG).await, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(released(Duration::ZERO).await, Vec::<String>::new());
}
