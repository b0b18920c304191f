//! Which numbers the objects of a view hold, kept up to date from one view to the next.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::{Service, folded};
use horchestra_core::ranges::Network;
use horchestra_store::{Entry, Snapshot};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::services::ADDRESSES;
use super::REST;
use super::blocks::{self, block_of};
use super::ids;
use super::pool::Pool;

/// Kinds whose objects hold something.
const KINDS: [Kind; 4] = [Kind::Namespace, Kind::Application, Kind::Service, Kind::Node];

/// The numbers of all spaces, as of the newest view that was asked about.
#[derive(Debug)]
pub(super) struct Held {
    /// The range that addresses are counted in; without one nobody holds any.
    addresses: Option<Network>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: Option<Snapshot>,
    pools: HashMap<String, Pool>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pools", &self.pools).finish_non_exhaustive()
    }
}

impl Held {
    pub fn new(addresses: Option<Network>) -> Held {
        Held { addresses, state: Mutex::default() }
    }

    /// Sets aside the lowest number of the range that nobody holds or is about to.
    pub fn choose(
        self: &Arc<Self>,
        view: &Snapshot,
        space: &str,
        range: &RangeInclusive<u128>,
    ) -> Option<(u128, Reserved)> {
        let mut state = self.state.lock();
        state.follow(view, self.addresses);
        let number = state.pools.entry(space.to_owned()).or_default().choose(range, Instant::now())?;
        Some((number, Reserved { held: Arc::clone(self), space: space.to_owned(), number }))
    }

    /// Takes in what objects hold as of the view, so that what they let go from then on is noticed.
    pub fn see(&self, view: &Snapshot) {
        self.state.lock().follow(view, self.addresses);
    }

    /// Puts addresses to rest that were given back a while ago.
    pub fn rest(&self, addresses: &[String]) {
        let mut state = self.state.lock();
        let pool = state.pools.entry(ADDRESSES.to_owned()).or_default();
        let number = |text: &String| self.addresses?.number(folded(text.parse::<IpAddr>().ok()?));
        addresses.iter().filter_map(number).for_each(|number| pool.rest(number, Instant::now() + REST));
    }

    /// Whether somebody holds the number.
    pub fn is_held(&self, view: &Snapshot, space: &str, number: u128) -> bool {
        let mut state = self.state.lock();
        state.follow(view, self.addresses);
        state.pools.get(space).is_some_and(|pool| pool.is_held(number))
    }
}

impl State {
    /// Takes in what has changed since the view before. A view that is older than what was seen already tells
    /// nothing; one of another history tells everything anew.
    fn follow(&mut self, view: &Snapshot, addresses: Option<Network>) {
        let last = self.seen.as_ref().map(|seen| seen.last_change(&KINDS));
        let next = view.last_change(&KINDS);
        match (last.flatten(), next) {
            (Some((epoch, seen)), Some((now, revision))) if epoch == now => {
                if revision <= seen {
                    return;
                }
            }
            (None, None) => return,
            _ => {
                self.seen = None;
                self.pools.values_mut().for_each(Pool::forget);
            }
        }
        let seen = self.seen.replace(view.clone());
        for kind in KINDS {
            match &seen {
                Some(seen) => {
                    for (before, after) in view.differences(seen, kind) {
                        self.moved(before, after, addresses);
                    }
                }
                None => view.list(kind, None).for_each(|entry| self.moved(None, Some(entry), addresses)),
            }
        }
    }

    fn moved(&mut self, before: Option<&Arc<Entry>>, after: Option<&Arc<Entry>>, addresses: Option<Network>) {
        if let (Some(before), Some(after)) = (before, after)
            && before.key.kind != Kind::Node
            && (before.uid, before.core_revision) == (after.uid, after.core_revision)
        {
            // Only nodes hold something by their status.
            return;
        }
        // What it goes on to hold has a holder all the time.
        if let Some((space, numbers)) = after.and_then(|entry| numbers_of(entry, addresses)) {
            let pool = self.pools.entry(space).or_default();
            numbers.for_each(|number| pool.hold(number));
        }
        if let Some((space, numbers)) = before.and_then(|entry| numbers_of(entry, addresses)) {
            let Some(pool) = self.pools.get_mut(&space) else { return };
            let rests = before.is_some_and(|before| before.key.kind == Kind::Service);
            numbers.for_each(|number| {
                pool.let_go(number);
                if rests {
                    pool.rest(number, Instant::now() + REST);
                }
            });
            if pool.holds_nothing() {
                self.pools.remove(&space);
            }
        }
    }
}

/// What an object holds. Nothing, if it cannot be read.
fn numbers_of(entry: &Entry, addresses: Option<Network>) -> Option<(String, std::ops::Range<u128>)> {
    let address = |address: &str| {
        let number = addresses?.number(folded(address.parse::<IpAddr>().ok()?))?;
        Some((ADDRESSES.to_owned(), number..number.checked_add(1)?))
    };
    match entry.key.kind {
        Kind::Namespace => {
            let numbers = block_of(entry)?.numbers();
            Some((blocks::SPACE.to_owned(), numbers.start as u128..numbers.end as u128))
        }
        Kind::Application => {
            // Not the typed form, which would be kept with every Application.
            let slim: Slim = serde_json::from_slice(&entry.body).ok()?;
            let id = u128::try_from(slim.spec?.security_context?.run_as_user?).ok()?;
            Some((ids::space(&entry.key.namespace), id..id + 1))
        }
        Kind::Service => address(&entry.typed::<Service>().ok()?.spec.cluster_ip),
        Kind::Node => address(&entry.typed::<Node>().ok()?.status.ip),
        _ => None,
    }
}

/// The part of an Application that matters here.
#[derive(Deserialize)]
struct Slim {
    spec: Option<SlimSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimSpec {
    security_context: Option<SlimContext>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimContext {
    run_as_user: Option<i64>,
}

/// Keeps a chosen number set aside.
#[derive(Debug)]
pub(crate) struct Reserved {
    held: Arc<Held>,
    space: String,
    number: u128,
}

impl Reserved {
    pub(in super::super) fn is_of(&self, space: &str) -> bool {
        self.space == space
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.held.state.lock();
        if let Some(pool) = state.pools.get_mut(&self.space) {
            pool.give_back(self.number);
            if pool.holds_nothing() {
                state.pools.remove(&self.space);
            }
        }
    }
}
