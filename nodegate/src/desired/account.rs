//! The account of a session: what its node may hold, and what may become of it.
//!
//! What it may hold is what is on record, and what its agent said that it holds before it was told anything (not
//! every agent does). The record is read before the first push, and anew whenever the hold on the node is another than before or the
//! objects were loaded anew (possibly from another database); in between this session is the only one that writes it. What the index cannot tell of something that is to go, the
//! objects and the tombstones do.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::pushes::reason;
use horchestra_store::{Hold, Holding, PushRecord, Revision};
use parking_lot::Mutex;
use uuid::Uuid;

use super::decision::{Decision, Fate, Situation, Why, decide};
use super::form::Form;
use super::index::survey::Missing;
use super::volumes::List;
use crate::gate::Gate;
use crate::holds::Standing;
use crate::records::NotRecorded;
use crate::session::Session;

/// How many things a message lists.
const SHOWN: usize = 5;

/// Nothing can be said now; to be asked again.
#[derive(Debug, PartialEq, Eq)]
pub struct Later;

/// What the two ends of a push tell each other: the one that offers, and the transport that takes.
#[derive(Default)]
pub struct InFlight {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the push that was offered last.
    named: HashSet<Uuid>,
    /// Taken off the record by pushes that were taken.
    ended: Vec<Holding>,
}

impl InFlight {
    /// A push that names these is about to be offered; answers what earlier ones have ended meanwhile.
    fn offering(&self, named: HashSet<Uuid>) -> Vec<Holding> {
        let mut state = self.state.lock();
        state.named = named;
        std::mem::take(&mut state.ended)
    }

    fn take_ended(&self) -> Vec<Holding> {
        std::mem::take(&mut self.state.lock().ended)
    }

    /// A push without these was taken; answers those of them that go off the record. What the next push names
    /// again stays.
    pub fn taken_without(&self, ended: Vec<Holding>) -> Vec<Holding> {
        let mut state = self.state.lock();
        let gone: Vec<Holding> = ended.into_iter().filter(|held| !state.named.contains(&held.uid)).collect();
        state.ended.extend(gone.iter().cloned());
        gone
    }
}

/// See the module's essay.
#[derive(Default)]
pub struct Account {
    record: Option<PushRecord>,
    /// Nothing was ever sent to the node from here, and its certificate is older than the database.
    older: bool,
    /// The hold when the record was read.
    under: Option<Hold>,
    /// How often the index had been loaded then.
    loads: u64,
    /// What the node said itself that it holds, before it was told anything.
    told: Vec<Uuid>,
    /// That of it which is not on record, as far as it is known what it is.
    beyond: Vec<Holding>,
    /// Known to be deleted. That stays so as long as the record is the same.
    deleted: HashSet<Uuid>,
}

impl Account {
    /// An account with what the node says that it holds.
    pub fn of(told: Vec<Uuid>) -> Account {
        Account { told, ..Account::default() }
    }

    /// What the node may hold, by the record, which is read if need be, and by its own word.
    pub async fn current(
        &mut self,
        gate: &Gate,
        session: &Session,
        hold: Option<&Hold>,
    ) -> Result<Vec<Holding>, Later> {
        let ended = session.in_flight.take_ended();
        let loads = gate.index.loads();
        if self.record.is_none() || self.under.as_ref() != hold || self.loads != loads {
            self.loads = loads;
            self.record = None;
            let record = gate.records.load(&session.node).await.ok_or(Later)?;
            self.older = record.revision.is_none() && is_older(gate, session).await?;
            self.record = Some(record);
            self.deleted.clear();
            // Reading it may have shown another hold than the one that was asked about.
            let now = match gate.holds.of(&session.node) {
                Standing::Unknown => return Err(Later),
                Standing::Free => None,
                Standing::Held(hold) => Some(hold),
            };
            if self.under.is_some() && now.is_none() {
                // Whoever released it has taken note of what runs there.
                self.told.clear();
            }
            let as_asked = now.as_ref() == hold;
            self.under = now;
            self.look_up(gate);
            if !as_asked {
                return Err(Later);
            }
        }
        let record = self.record.as_mut().ok_or(Later)?;
        record.holdings.retain(|held| !ended.contains(held));
        self.beyond.retain(|held| !ended.contains(held));
        Ok(record.holdings.iter().chain(&self.beyond).cloned().collect())
    }

    /// Finds out what those units are that the node told of and that are not on record.
    fn look_up(&mut self, gate: &Gate) {
        let recorded: HashSet<Uuid> =
            self.record.iter().flat_map(|record| &record.holdings).map(|held| held.uid).collect();
        let mut open: HashSet<Uuid> =
            self.told.iter().copied().filter(|unit| !recorded.contains(unit)).collect();
        self.beyond.clear();
        if open.is_empty() {
            return;
        }
        let snapshot = gate.store.snapshot();
        for entry in snapshot.list(Kind::Application, None) {
            if open.remove(&entry.uid) {
                self.beyond.push(Holding { key: entry.key.clone(), uid: entry.uid });
            }
        }
        // Of these not even the names are known.
        self.beyond.extend(open.into_iter().map(|uid| {
            let key = Key::namespaced(Kind::Application, "", uid.to_string());
            Holding { key, uid }
        }));
    }

    /// What may be sent, and what goes with that.
    pub async fn judge(
        &mut self,
        gate: &Gate,
        node: &str,
        missing: Vec<Missing>,
        sent_before: bool,
    ) -> Result<(Decision, Vec<Holding>), Later> {
        let missing = self.explain(gate, node, missing).await?;
        let record = self.record.as_ref().ok_or(Later)?;
        let head = gate.store.health().revision;
        let hold = self.under.as_ref();
        let situation = Situation { hold, sent_before, record, older: self.older, head, missing: &missing };
        let decision = decide(&situation);
        Ok((decision, missing.into_iter().map(|(held, _)| held).collect()))
    }

    /// Finds out what the index does not know.
    async fn explain(
        &mut self,
        gate: &Gate,
        node: &str,
        missing: Vec<Missing>,
    ) -> Result<Vec<(Holding, Fate)>, Later> {
        // Never older than the index.
        let snapshot = gate.store.snapshot();
        let mut fates: BTreeMap<Holding, Fate> = BTreeMap::new();
        let mut open = Vec::new();
        for (held, fate) in missing {
            let stored = snapshot.get(&held.key).filter(|stored| stored.uid == held.uid);
            let fate = match (fate, stored) {
                (Some(fate), _) => fate,
                (None, _) if self.deleted.contains(&held.uid) => Fate::Deleted,
                // It has come since: the index will have it in a moment.
                (None, Some(stored))
                    if held.key.kind == Kind::PersistentVolume
                        || stored.columns.node.as_deref() == Some(node) =>
                {
                    return Err(Later);
                }
                (None, Some(stored)) if stored.columns.node.is_some() => Fate::Moved,
                (None, Some(_)) => Fate::Unplaced,
                (None, None) => {
                    open.push(held);
                    continue;
                }
            };
            fates.insert(held, fate);
        }
        if !open.is_empty() {
            let uids: Vec<Uuid> = open.iter().map(|held| held.uid).collect();
            let tombstones = gate.store.tombstones(&uids).await.map_err(|_| Later)?;
            self.deleted.extend(tombstones.iter().map(|tombstone| tombstone.uid));
            fates.extend(open.into_iter().map(|held| {
                let fate = if self.deleted.contains(&held.uid) { Fate::Deleted } else { Fate::Unknown };
                (held, fate)
            }));
        }
        Ok(fates.into_iter().collect())
    }

    /// Puts on record what the node may hold once it is sent these, before it is.
    pub async fn cover(
        &mut self,
        gate: &Gate,
        session: &Session,
        forms: &[Arc<Form>],
        volumes: &List,
    ) -> Result<(), Later> {
        let named: Vec<Holding> = forms
            .iter()
            .map(|form| Holding { key: form.key.clone(), uid: form.signature.uid })
            .chain(volumes.own.iter().map(|own| own.holding()))
            .collect();
        let ended = session.in_flight.offering(named.iter().map(|held| held.uid).collect());
        let record = self.record.as_mut().ok_or(Later)?;
        record.holdings.retain(|held| !ended.contains(held));
        let known: HashSet<(Kind, Uuid)> =
            record.holdings.iter().map(|held| (held.key.kind, held.uid)).collect();
        let new: Vec<Holding> =
            named.into_iter().filter(|held| !known.contains(&(held.key.kind, held.uid))).collect();
        if new.is_empty() && record.revision.is_some() {
            return Ok(());
        }
        let revision = gate.store.health().revision;
        match gate.records.add(session, revision, new.clone()).await {
            Ok(()) => {
                record.revision = Some(revision);
                record.holdings.extend(new);
                Ok(())
            }
            Err(NotRecorded::Lost) => {
                session.lost();
                Err(Later)
            }
            Err(NotRecorded::Unavailable) => {
                // Whether it was written is not known.
                self.record = None;
                Err(Later)
            }
        }
    }

    /// Engages the hold that a finding asks for, if it does; afterwards the node is held.
    pub async fn hold_for(&mut self, gate: &Gate, node: &str, why: &Why) -> Result<(), Later> {
        let engaged = match why {
            Why::Held(_) | Why::Unsendable(_) => return Ok(()),
            Why::RecordAhead(revision) => {
                // Another process may have seen more than this one has by now.
                let fresh = gate.store.fresh().await.map_err(|_| Later)?;
                if fresh.revision() >= *revision {
                    return Err(Later);
                }
                let message = format!(
                    "node {node} was sent a state of revision {revision}, and the database has reached {} only",
                    fresh.revision()
                );
                tracing::error!(node, %message, "the database has lost history; nothing is sent to any node");
                gate.store.engage_hold(None, reason::RECORD_AHEAD, &message).await
            }
            Why::Older => {
                let message = "the node's certificate is older than this database, which has never sent it anything: \
                               it may run what another control plane has told it";
                tracing::error!(node, message, "nothing is sent to the node");
                gate.store.engage_hold(Some(node), reason::OLDER_THAN_DATABASE, message).await
            }
            Why::Unexplained(held) => {
                let message = unexplained(held);
                tracing::error!(node, %message, "nothing is sent to the node");
                gate.store.engage_hold(Some(node), reason::UNEXPLAINED, &message).await
            }
        };
        engaged.map_err(|_| Later)?;
        gate.read_holds().await.map_err(|_| Later)
    }

    /// The revision that the record is of, for what is taken off it later.
    pub fn revision(&self) -> Revision {
        self.record.as_ref().and_then(|record| record.revision).unwrap_or_default()
    }
}

async fn is_older(gate: &Gate, session: &Session) -> Result<bool, Later> {
    let Some(since) = session.valid_since else { return Ok(false) };
    let born = gate.store.born().await.map_err(|_| Later)?;
    let margin = i64::try_from(gate.settings.older_by.as_micros()).unwrap_or(i64::MAX);
    Ok(since.saturating_add(margin) < born)
}

fn unexplained(held: &[Holding]) -> String {
    let name = |held: &Holding| match held.key.namespace.as_str() {
        "" => format!("{} with uid {}", held.key.kind, held.uid),
        _ => format!("{} with uid {}", held.key, held.uid),
    };
    let shown: Vec<String> = held.iter().take(SHOWN).map(name).collect();
    let more = if held.len() > SHOWN { ", …" } else { "" };
    format!(
        "the node may hold what the database neither names nor has a record of deleting: {}{more} ({} in all)",
        shown.join(", "),
        held.len()
    )
}
