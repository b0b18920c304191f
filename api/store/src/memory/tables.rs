//! Objects, log, history and claims, and what a commit does to them.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_trace::Trace;
use imbl::{OrdMap, Vector};
use uuid::Uuid;

use super::addresses::Addresses;
use super::presence::Presence;
use super::{EPOCH_JUMP, micros};
use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::backend::{
    BackendError, Changes, ClaimRow, Done, Fingerprint, Head, HistoryOf, HistoryRow, Identity, Loaded,
    LogRow, OwnedClaim, Retention, Settings, Undone, Upkeep,
};
use crate::batch::counts_as_content;
use crate::sealing;
use crate::types::{
    Attribution, Change, ChangeKind, Class, Committed, Draft, Edge, Entry, Guard, Item, Op, Refusal,
    Relation, Revision, numbers,
};

/// How long the outcome of an attempt is remembered, in microseconds.
const OUTCOMES_KEPT: i64 = 10 * 60 * 1_000_000;

#[derive(Clone)]
pub(super) struct Tables {
    pub identity: Identity,
    pub revision: Revision,
    /// Rows above this one are in the log.
    pub oldest: Revision,
    pub settings: Option<Settings>,
    pub(super) objects: OrdMap<Key, Arc<Stored>>,
    /// The row of revision `oldest + 1` first.
    pub(super) log: Vector<Logged>,
    history: OrdMap<Uuid, Vector<HistoryRow>>,
    claims: OrdMap<(String, String), Vec<(Uuid, bool)>>,
    /// When claims were given back.
    released: OrdMap<(String, String), i64>,
    addresses: Addresses,
    outcomes: OrdMap<Uuid, Outcome>,
}

pub(super) struct Stored {
    pub entry: Arc<Entry>,
    pub edges: Vec<Edge>,
}

#[derive(Clone)]
pub(super) struct Logged {
    pub row: LogRow,
    pub previous: Option<Arc<Entry>>,
}

#[derive(Clone)]
struct Outcome {
    at: i64,
    /// `None`: settled as never to be committed.
    items: Option<Vec<Option<Committed>>>,
}

/// Who does it, and when.
struct Act<'a> {
    who: &'a Attribution,
    now: i64,
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            identity: Identity {
                system: Uuid::new_v4().to_string(),
                database: "memory".into(),
                epoch: Uuid::new_v4(),
            },
            revision: 0,
            oldest: 0,
            settings: None,
            objects: OrdMap::new(),
            log: Vector::new(),
            history: OrdMap::new(),
            claims: OrdMap::new(),
            released: OrdMap::new(),
            addresses: Addresses::default(),
            outcomes: OrdMap::new(),
        }
    }

    // ---- commits --------------------------------------------------------------------------------------

    pub fn commit(
        &mut self,
        presence: &Presence,
        batch: &[Item],
        nonce: Uuid,
        now: i64,
    ) -> Result<Done, BackendError> {
        if self.outcomes.contains_key(&nonce) {
            return Err(BackendError::Rejected("this attempt was settled before".into()));
        }
        for op in batch.iter().flat_map(|item| &item.ops) {
            if let Op::Create(draft) | Op::Update { draft, .. } = op {
                sealing::check(draft).map_err(BackendError::Rejected)?;
            }
        }
        let before = self.revision;
        let mut results = Vec::with_capacity(batch.len());
        for item in batch {
            let mut attempt = self.clone();
            let result = attempt.apply(presence, item, now);
            if result.is_ok() {
                *self = attempt;
            }
            results.push(result);
        }
        if results.iter().any(Result::is_ok) {
            let items = Some(results.iter().map(|result| result.clone().ok()).collect());
            self.outcomes.insert(nonce, Outcome { at: now, items });
        }
        let anchor = if self.revision > before { self.anchor(before) } else { None };
        Ok(Done { items: results, anchor })
    }

    pub fn settle(&mut self, nonce: Uuid, now: i64) -> Option<Vec<Option<Committed>>> {
        let spent = Outcome { at: now, items: None };
        self.outcomes.entry(nonce).or_insert(spent).items.clone()
    }

    fn apply(&mut self, presence: &Presence, item: &Item, now: i64) -> Result<Committed, Refusal> {
        let act = Act { who: &item.who, now };
        let late = |guard: &Guard| matches!(guard, Guard::Capacity { .. });
        self.check(presence, item, |guard| !late(guard))?;
        let mut revisions = Vec::with_capacity(item.ops.len());
        for op in &item.ops {
            revisions.push(self.operate(op, &act)?);
        }
        self.check(presence, item, late)?;
        Ok(Committed { revisions })
    }

    fn check(&self, presence: &Presence, item: &Item, when: impl Fn(&Guard) -> bool) -> Result<(), Refusal> {
        for (index, guard) in item.guards.iter().enumerate() {
            if when(guard) && !self.holds(presence, guard) {
                return Err(Refusal::Guard { index, guard: guard.clone() });
            }
        }
        Ok(())
    }

    fn holds(&self, presence: &Presence, guard: &Guard) -> bool {
        match guard {
            Guard::Exists(key) => self.objects.get(key).is_some_and(|stored| !stored.entry.deleting),
            Guard::Unchanged(key, revision) => {
                self.objects.get(key).map_or(0, |stored| stored.entry.revision) == *revision
            }
            Guard::NamespaceEmpty(namespace) => {
                !self.objects.keys().any(|key| counts_as_content(key.kind) && key.namespace == *namespace)
            }
            Guard::EventsAtMost { namespace, limit } => {
                let events =
                    self.objects.keys().filter(|key| key.kind == Kind::Event && key.namespace == *namespace);
                i64::try_from(events.count()).is_ok_and(|count| count <= *limit)
            }
            Guard::Unclaimed { space, value, owner } => self.is_unclaimed(space, value, *owner),
            Guard::NoEdge { relation, target } => self.referring(*relation, target) == 0,
            Guard::EdgesAtMost { relation, target, limit } => self.referring(*relation, target) <= *limit,
            Guard::Capacity { node, zero_is_unbounded } => self.fits(node, *zero_is_unbounded),
            Guard::SessionIs { node, epoch, session } => presence.session_is(node, *epoch, *session),
            Guard::LeaseIs { name, epoch } => presence.lease_is(name, *epoch),
        }
    }

    fn is_unclaimed(&self, space: &str, value: &str, owner: Uuid) -> bool {
        let Some((first, last)) = numbers(value) else { return false };
        let others = self.claims.iter().filter(|((held, _), holders)| {
            held == space && holders.iter().any(|(holder, _)| *holder != owner)
        });
        let next = others.filter_map(|((_, held), _)| numbers(held)).filter(|held| held.1 >= first);
        next.min_by_key(|held| held.1).is_none_or(|held| held.0 > last)
    }

    /// How many objects refer to the target.
    fn referring(&self, relation: Relation, target: &Key) -> i64 {
        let refers = |stored: &&Arc<Stored>| {
            stored.edges.iter().any(|edge| edge.relation == relation && edge.target == *target)
        };
        i64::try_from(self.objects.values().filter(refers).count()).unwrap_or(i64::MAX)
    }

    fn fits(&self, node: &str, zero_is_unbounded: bool) -> bool {
        let Some(capacity) = self.objects.get(&Key::cluster(Kind::Node, node)) else { return false };
        let (mut cpu, mut memory) = (0i128, 0i128);
        for stored in self.objects.values() {
            let columns = &stored.entry.columns;
            if stored.entry.key.kind == Kind::Application && columns.node.as_deref() == Some(node) {
                cpu += i128::from(columns.cpu);
                memory += i128::from(columns.memory);
            }
        }
        let within = |used: i128, limit: i64| used <= i128::from(limit) || (limit == 0 && zero_is_unbounded);
        within(cpu, capacity.entry.columns.cpu) && within(memory, capacity.entry.columns.memory)
    }

    fn operate(&mut self, op: &Op, act: &Act<'_>) -> Result<Revision, Refusal> {
        match op {
            Op::Create(draft) => {
                if self.objects.contains_key(&draft.key) {
                    return Err(Refusal::AlreadyExists(draft.key.clone()));
                }
                Ok(self.put(draft, None, Class::Core, act))
            }
            Op::Update { draft, expect, class } => {
                let head = self.head_of(&draft.key, *expect)?;
                Ok(self.put(draft, Some(head), *class, act))
            }
            Op::Delete { key, expect } => {
                let head = self.head_of(key, *expect)?;
                Ok(self.delete(&head.entry, act))
            }
            Op::Claim { space, value, owner, shared } => {
                self.claim(space, value, *owner, *shared)?;
                Ok(0)
            }
            Op::Release { space, owner } => {
                self.release(*owner, act.now, |held| held == space);
                Ok(0)
            }
        }
    }

    fn head_of(&self, key: &Key, expect: Revision) -> Result<Arc<Stored>, Refusal> {
        let Some(stored) = self.objects.get(key) else { return Err(Refusal::NotFound(key.clone())) };
        if stored.entry.revision != expect {
            return Err(Refusal::Conflict { key: key.clone(), head: stored.entry.revision });
        }
        Ok(Arc::clone(stored))
    }

    fn put(&mut self, draft: &Draft, head: Option<Arc<Stored>>, class: Class, act: &Act<'_>) -> Revision {
        let previous = head.map(|stored| Arc::clone(&stored.entry));
        let revision = self.revision + 1;
        let core_revision = match (&previous, class) {
            (Some(previous), Class::Status) => previous.core_revision,
            _ => revision,
        };
        let entry = Arc::new(Entry::new(draft.clone(), revision, core_revision));
        let stored = Stored { entry: Arc::clone(&entry), edges: draft.edges.clone() };
        self.objects.insert(draft.key.clone(), Arc::new(stored));
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        if core_revision == revision {
            self.remember(&entry, false, act);
        }
        self.record(kind, entry, previous, act)
    }

    fn delete(&mut self, head: &Arc<Entry>, act: &Act<'_>) -> Revision {
        self.objects.remove(&head.key);
        self.release(head.uid, act.now, |_| true);
        if head.key.kind == Kind::Application {
            self.addresses.release(head.uid, act.now);
        }
        let entry = Arc::new(head.deleted_at(self.revision + 1));
        self.remember(&entry, true, act);
        self.record(ChangeKind::Deleted, entry, Some(Arc::clone(head)), act)
    }

    fn record(
        &mut self,
        kind: ChangeKind,
        entry: Arc<Entry>,
        previous: Option<Arc<Entry>>,
        act: &Act<'_>,
    ) -> Revision {
        let revision = entry.revision;
        self.revision = revision;
        let change = Change {
            kind,
            revision,
            entry,
            previous: previous.as_ref().map(|entry| Arc::clone(&entry.index)),
            previous_columns: previous.as_ref().map(|entry| Arc::clone(&entry.columns)),
            before: None,
        };
        let previous_revision = previous.as_ref().map_or(0, |entry| entry.revision);
        let row = LogRow { change, previous_revision, who: act.who.clone(), at: act.now };
        self.log.push_back(Logged { row, previous });
        revision
    }

    fn remember(&mut self, entry: &Entry, deleted: bool, act: &Act<'_>) {
        if entry.key.kind == Kind::Event {
            return;
        }
        let row = HistoryRow {
            key: entry.key.clone(),
            uid: entry.uid,
            revision: entry.revision,
            generation: entry.generation,
            deleted,
            body: if entry.key.kind.is_sealed() { Bytes::new() } else { entry.body.clone() },
            who: Attribution {
                trace: act.who.trace.map(|trace| Trace::unrecorded(trace.id)),
                ..act.who.clone()
            },
            at: act.now,
        };
        self.history.entry(entry.uid).or_default().push_back(row);
    }

    fn claim(&mut self, space: &str, value: &str, owner: Uuid, shared: bool) -> Result<(), Refusal> {
        let holders = self.claims.entry((space.to_owned(), value.to_owned())).or_default();
        if holders.iter().any(|(other, theirs)| *other != owner && !(shared && *theirs)) {
            return Err(Refusal::ClaimTaken { space: space.to_owned(), value: value.to_owned() });
        }
        holders.retain(|(holder, _)| *holder != owner);
        holders.push((owner, shared));
        Ok(())
    }

    fn release(&mut self, owner: Uuid, now: i64, of: impl Fn(&String) -> bool) {
        let holds = |holders: &Vec<(Uuid, bool)>| holders.iter().any(|(holder, _)| *holder == owner);
        let held = self.claims.iter().filter(|((space, _), holders)| of(space) && holds(holders));
        let held: Vec<(String, String)> = held.map(|(claim, _)| claim.clone()).collect();
        for claim in held {
            let holders = self.claims.entry(claim.clone()).or_default();
            holders.retain(|(holder, _)| *holder != owner);
            if holders.is_empty() {
                self.claims.remove(&claim);
            }
            self.released.insert(claim, now);
        }
    }

    // ---- reading --------------------------------------------------------------------------------------

    pub fn head(&self) -> Head {
        Head { revision: self.revision, oldest: self.oldest, identity: self.identity.clone() }
    }

    /// How many rows of the log are at or below the revision.
    pub(super) fn position(&self, revision: Revision) -> usize {
        usize::try_from(revision - self.oldest).unwrap_or(0).min(self.log.len())
    }

    fn anchor(&self, revision: Revision) -> Option<Fingerprint> {
        let row = &self.log.get(self.position(revision).checked_sub(1)?)?.row;
        (row.change.revision == revision).then(|| row.fingerprint())
    }

    pub fn changes(&self, after: Revision, limit: usize) -> Changes {
        let rows = self.log.iter().skip(self.position(after)).take(limit);
        Changes {
            anchor: self.anchor(after),
            rows: rows.map(|logged| logged.row.clone()).collect(),
            head: self.head(),
        }
    }

    pub fn load(&self, kinds: &[Kind]) -> Loaded {
        let wanted = |stored: &&Arc<Stored>| kinds.contains(&stored.entry.key.kind);
        Loaded {
            head: self.head(),
            anchor: self.anchor(self.revision),
            entries: self.objects.values().filter(wanted).map(|stored| Arc::clone(&stored.entry)).collect(),
        }
    }

    pub fn undo(&self, kind: Kind, from: Revision, to: Revision) -> Option<Undone> {
        if to < self.oldest {
            return None;
        }
        let mut before = OrdMap::new();
        // Backwards, so that the earliest change of a key has the last word.
        for logged in self.log.iter().take(self.position(from)).skip(self.position(to)).rev() {
            let key = logged.row.change.key();
            if key.kind == kind {
                before.insert(key.clone(), logged.previous.clone());
            }
        }
        Some(before.into_iter().collect())
    }

    pub fn history(&self, of: &HistoryOf) -> Vec<HistoryRow> {
        let mut rows: Vec<HistoryRow> = match of {
            HistoryOf::Uid(uid) => self.history.get(uid).into_iter().flatten().cloned().collect(),
            HistoryOf::Key(key) => {
                self.history.values().flatten().filter(|row| row.key == *key).cloned().collect()
            }
        };
        rows.sort_by_key(|row| std::cmp::Reverse(row.revision));
        rows
    }

    pub fn tombstones(&self, uids: &[Uuid]) -> Vec<HistoryRow> {
        let rows = uids.iter().filter_map(|uid| self.history.get(uid)).flatten();
        rows.filter(|row| row.deleted).cloned().collect()
    }

    fn held_claims(&self) -> impl Iterator<Item = ClaimRow> {
        self.claims.iter().flat_map(|((space, value), holders)| {
            holders.iter().map(|(owner, shared)| ClaimRow {
                space: space.clone(),
                value: value.clone(),
                owner: *owner,
                shared: *shared,
            })
        })
    }

    pub fn claims(&self, space: &str) -> Vec<ClaimRow> {
        let mut rows: Vec<ClaimRow> = self.held_claims().filter(|claim| claim.space == space).collect();
        rows.sort();
        rows
    }

    pub fn all_claims(&self, after: Option<&ClaimRow>, limit: usize) -> Vec<OwnedClaim> {
        let mut rows: Vec<ClaimRow> = self.held_claims().collect();
        rows.sort();
        let place = |claim: &ClaimRow| (claim.space.clone(), claim.value.clone(), claim.owner);
        let after = after.map(place);
        let behind = rows.into_iter().filter(|claim| Some(place(claim)) > after);
        let owned = behind.map(|claim| {
            let owner_deleted = !self.tombstones(&[claim.owner]).is_empty();
            OwnedClaim { claim, owner_deleted }
        });
        owned.take(limit).collect()
    }

    // ---- addresses ------------------------------------------------------------------------------------

    pub fn lease_addresses(&mut self, demand: &AddressDemand, now: i64) -> Vec<Leased> {
        let Tables { addresses, objects, .. } = self;
        addresses.lease(demand, now, |key, uid| objects.get(key).is_some_and(|held| held.entry.uid == uid))
    }

    pub fn adopt_addresses(&mut self, known: &[KnownAddress]) -> Vec<Uuid> {
        let Tables { addresses, objects, .. } = self;
        addresses.adopt(known, |key, uid| objects.get(key).is_some_and(|held| held.entry.uid == uid))
    }

    pub fn address_leases(&self) -> Vec<AddressLease> {
        self.addresses.leases()
    }

    pub fn released_claims(&self, space: &str, since: i64) -> Vec<String> {
        let released = self.released.iter().filter(|((of, _), at)| of == space && **at > since);
        released.map(|((_, value), _)| value.clone()).collect()
    }

    // ---- upkeep ---------------------------------------------------------------------------------------

    pub fn begin_epoch(&mut self, seen: &Identity, known: Revision) {
        if self.identity != *seen && self.revision > known {
            return;
        }
        self.identity.epoch = Uuid::new_v4();
        self.revision = self.revision.max(known) + EPOCH_JUMP;
        self.oldest = self.revision;
        self.log = Vector::new();
    }

    pub fn compact(&mut self, upto: Revision) {
        let dropped = self.position(upto);
        self.log = self.log.skip(dropped);
        self.oldest += Revision::try_from(dropped).unwrap_or(0);
    }

    /// `held`: what this was may still be held by a node, so its tombstone stays.
    pub fn maintain(&mut self, retention: Retention, now: i64, held: impl Fn(Uuid) -> bool) -> Upkeep {
        let mut done = Upkeep { headroom: Revision::MAX, ..Upkeep::default() };
        let horizon = now.saturating_sub(micros(retention.log));
        if let Some(last) = self.log.iter().take_while(|logged| logged.row.at < horizon).last() {
            self.compact(last.row.change.revision);
        }
        let horizon = now.saturating_sub(micros(retention.tombstones));
        let histories = std::mem::take(&mut self.history);
        for (uid, rows) in histories {
            let last = rows.last();
            if last.is_some_and(|last| last.deleted && last.at < horizon && !held(last.uid)) {
                done.tombstones += 1;
                continue;
            }
            // A tombstone is no version.
            let kept = retention.versions + usize::from(last.is_some_and(|last| last.deleted));
            let dropped = rows.len().saturating_sub(kept);
            done.versions += dropped;
            self.history.insert(uid, rows.skip(dropped));
        }
        let outcomes = std::mem::take(&mut self.outcomes);
        let before = outcomes.len();
        self.outcomes =
            outcomes.into_iter().filter(|(_, outcome)| outcome.at > now - OUTCOMES_KEPT).collect();
        Upkeep { oldest: self.oldest, outcomes: before - self.outcomes.len(), ..done }
    }
}
