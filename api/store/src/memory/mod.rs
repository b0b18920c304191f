//! The in-memory backend: the port for tests and simulations, and the oracle for the other one.
//!
//! It is written to be evidently right rather than fast. A [`MemoryDatabase`] is one value of persistent
//! collections under one mutex: an item is applied to a copy, which replaces the original only if everything
//! in the item succeeded, so "all or nothing" and "one after the other" hold by construction. References,
//! namespace contents and node sums are not kept but counted anew for every guard.
//!
//! A process's connection is a [`MemoryBackend`]; several of them on one database stand for several
//! processes. Faults ([`Faults`]) belong to the connection: being cut off, losing the answer of a commit,
//! a commit that arrives late, standing still, hearing nothing. What happens to the database as a whole (a
//! restored backup, a replacement, time, compaction) is done to the database.
//!
//! Time is tokio's, plus [`MemoryDatabase::advance`], so a paused runtime makes it deterministic.
//!
//! Nothing survives the process, and nothing here is meant for production.

mod addresses;
mod faults;
mod presence;
mod pushes;
mod sealing;
mod tables;

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::FutureExt;
use horchestra_core::kind::{Key, Kind};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::announce::Announcement;
use crate::backend::{
    Answer, Backend, BackendError, Changes, ClaimRow, Done, Head, Hint, HistoryOf, HistoryRow, Identity,
    Loaded, OwnedClaim, Pruned, Retention, Settings, Undone, Upkeep,
};
use crate::presence::{
    DeniedCertificates, Heartbeat, HeartbeatRow, Lease, Samples, SamplesRow, SeenSession, SessionClaim,
    SessionGrant, SessionRow, TokenForm,
};
use crate::pushes::{Holds, Loss, PushChange, PushRecord, beyond_all, reason};
use crate::sealing::{KeyUse, Resealed, SealedBody, SealedStretch};
use crate::types::{Committed, Item, Revision};

pub use faults::{CommitFault, Faults};
use presence::Presence;
use pushes::Pushes;
use tables::Tables;

/// How far [`Backend::begin_epoch`] moves revisions on.
pub const EPOCH_JUMP: Revision = 1 << 20;

/// A database shared by any number of connections. Cloning gives another handle on the same one.
#[derive(Clone)]
pub struct MemoryDatabase {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    listeners: Mutex<Vec<Weak<Listener>>>,
    /// The clock's origin on both scales.
    started: (Instant, i64),
}

#[derive(Clone)]
struct State {
    tables: Tables,
    presence: Presence,
    pushes: Pushes,
    /// Of the server.
    timeline: u32,
    /// Where the data was last known to be complete: system, database, timeline.
    home: Option<(String, String, u32)>,
    born: i64,
    /// Microseconds that the clock was advanced by.
    advanced: i64,
}

struct Listener {
    hint: watch::Sender<Hint>,
    leases: watch::Sender<u64>,
    faults: RwLock<Faults>,
    stalled: watch::Sender<bool>,
    /// Whether answers are held, and how many are.
    held: watch::Sender<(bool, usize)>,
}

/// A copy of a whole database, as a backup is.
#[derive(Clone)]
pub struct Backup(State);

impl Default for MemoryDatabase {
    fn default() -> Self {
        MemoryDatabase::new()
    }
}

impl MemoryDatabase {
    /// An empty database.
    pub fn new() -> MemoryDatabase {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(wall.as_micros()).unwrap_or(i64::MAX);
        MemoryDatabase {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new(micros)),
                listeners: Mutex::new(Vec::new()),
                started: (Instant::now(), micros),
            }),
        }
    }

    /// A new connection, as a process has one.
    pub fn connect(&self) -> Arc<MemoryBackend> {
        let latest = self.shared.state.lock().tables.revision;
        let listener = Arc::new(Listener {
            hint: watch::Sender::new(Hint { latest, connected: true, connections: 1, deaf: false }),
            leases: watch::Sender::new(0),
            faults: RwLock::new(Faults::default()),
            stalled: watch::Sender::new(false),
            held: watch::Sender::new((false, 0)),
        });
        self.shared.listeners.lock().push(Arc::downgrade(&listener));
        Arc::new(MemoryBackend { database: self.clone(), listener })
    }

    /// Moves the database clock on.
    pub fn advance(&self, by: Duration) {
        self.shared.state.lock().advanced += micros(by);
    }

    /// Sets the database clock back.
    pub fn set_back(&self, by: Duration) {
        self.shared.state.lock().advanced -= micros(by);
    }

    pub fn backup(&self) -> Backup {
        Backup(self.shared.state.lock().clone())
    }

    /// Puts an old state back, as an operator who restores a backup (or a failover to a lagging standby)
    /// does. The identity is that of the backup, so nothing but the log itself shows it.
    pub fn restore(&self, backup: &Backup) {
        let mut state = self.shared.state.lock();
        let advanced = state.advanced;
        *state = State { advanced, ..backup.0.clone() };
        self.sever();
        self.hear(state.tables.revision);
    }

    /// Puts an empty database in this one's place.
    pub fn replace(&self) {
        let mut state = self.shared.state.lock();
        *state = State { advanced: state.advanced, ..State::new(self.now(&state)) };
        self.sever();
        self.hear(0);
    }

    /// Goes on on another timeline, as a standby does that is promoted, or a backup that is brought forward.
    pub fn promote(&self) {
        self.shared.state.lock().timeline += 1;
        self.sever();
    }

    /// Goes on in another place with the same contents, as a dump does that is read back.
    pub fn rehome(&self) {
        self.shared.state.lock().tables.identity.system = Uuid::new_v4().to_string();
        self.sever();
    }

    /// Drops log rows up to and including `upto`, whatever their age.
    pub fn compact(&self, upto: Revision) {
        self.shared.state.lock().tables.compact(upto);
    }

    fn now(&self, state: &State) -> i64 {
        let (instant, wall) = self.shared.started;
        wall + micros(instant.elapsed()) + state.advanced
    }

    /// What was on its way does not survive the connections that it was on.
    fn sever(&self) {
        for listener in self.shared.listeners.lock().iter().filter_map(Weak::upgrade) {
            listener.faults.write().late.clear();
        }
    }

    fn hear(&self, latest: Revision) {
        self.shared.listeners.lock().retain(|listener| {
            let Some(listener) = listener.upgrade() else { return false };
            if !listener.faults.read().deaf {
                listener.hint.send_modify(|hint| hint.latest = latest);
            }
            true
        });
    }

    fn tell_of_leases(&self) {
        for listener in self.shared.listeners.lock().iter().filter_map(Weak::upgrade) {
            if !listener.faults.read().deaf {
                listener.leases.send_modify(|released| *released += 1);
            }
        }
    }
}

impl State {
    fn new(born: i64) -> State {
        State {
            tables: Tables::new(),
            presence: Presence::default(),
            pushes: Pushes::default(),
            timeline: 1,
            home: None,
            born,
            advanced: 0,
        }
    }
}

impl State {
    fn settle_home(&mut self, vouches: bool, patient: bool, now: i64) -> bool {
        let Identity { system, database, .. } = &self.tables.identity;
        let here = (system.clone(), database.clone(), self.timeline);
        let mut unproven = false;
        match self.home.as_ref().filter(|_| !vouches) {
            Some(home) if (&home.0, &home.1) != (&here.0, &here.1) => {
                let message = "this data was in another database before";
                self.pushes.engage(None, reason::DATABASE_REPLACED, message, now);
                unproven = true;
            }
            Some(home) if home.2 != here.2 => {
                if patient {
                    return false;
                }
                let message = "nobody who was there before says that nothing was lost";
                self.pushes.engage(None, reason::HISTORY_UNPROVEN, message, now);
                unproven = true;
            }
            _ => {}
        }
        if unproven {
            let identity = self.tables.identity.clone();
            self.tables.begin_epoch(&identity, beyond_all(self.tables.revision, now));
        }
        self.home = Some(here);
        true
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A connection to a [`MemoryDatabase`].
pub struct MemoryBackend {
    database: MemoryDatabase,
    listener: Arc<Listener>,
}

impl MemoryBackend {
    /// A connection to a database of its own.
    pub fn new() -> Arc<MemoryBackend> {
        MemoryDatabase::new().connect()
    }

    pub fn database(&self) -> &MemoryDatabase {
        &self.database
    }

    /// Waits while this connection stands still, then fails if it is cut off.
    async fn enter(&self) -> Result<(), BackendError> {
        let latency = self.listener.faults.read().latency;
        if latency.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(latency).await;
        }
        let mut stalled = self.listener.stalled.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = stalled.wait_for(|stalled| !stalled).await;
        if self.listener.faults.read().cut_off {
            return Err(BackendError::Unavailable("cut off".into()));
        }
        Ok(())
    }

    fn with<'a, T: Send + 'a>(&'a self, ask: impl FnOnce(&mut State, i64) -> T + Send + 'a) -> Answer<'a, T> {
        async move {
            self.enter().await?;
            let answer = {
                let mut state = self.database.shared.state.lock();
                let now = self.database.now(&state);
                ask(&mut state, now)
            };
            self.leave().await;
            Ok(answer)
        }
        .boxed()
    }

    fn apply(&self, batch: &[Item], nonce: Uuid) -> Result<Done, BackendError> {
        let mut state = self.database.shared.state.lock();
        let now = self.database.now(&state);
        let State { tables, presence, .. } = &mut *state;
        let before = tables.revision;
        let results = tables.commit(presence, batch, nonce, now)?;
        if tables.revision > before {
            self.database.hear(tables.revision);
        }
        Ok(results)
    }
}

impl Backend for MemoryBackend {
    fn commit<'a>(&'a self, batch: &'a [Item], nonce: Uuid) -> Answer<'a, Done> {
        async move {
            if let Err(error) = self.enter().await {
                self.listener.faults.write().commits_cut_off += 1;
                return Err(error);
            }
            if let Some(name) = self.poisoned(batch) {
                return Err(BackendError::Rejected(format!("{name} is poison")));
            }
            if let Some(arrives) = self.last_writes(batch.len()) {
                // Whoever sends smaller batches gets as far as this.
                if arrives > 0 {
                    let _ = self.apply(&batch[..arrives], nonce);
                }
                self.set_stalled(true);
                return std::future::pending().await;
            }
            let lost = || Err(BackendError::Unknown("answer lost".into()));
            let answer = match self.next_fault() {
                None => self.apply(batch, nonce),
                Some(CommitFault::LoseAnswer) => self.apply(batch, nonce).and_then(|_| lost()),
                Some(CommitFault::LoseRequest) => lost(),
                Some(CommitFault::Late) => {
                    self.listener.faults.write().late.push((batch.to_vec(), nonce));
                    lost()
                }
            };
            self.leave().await;
            answer
        }
        .boxed()
    }

    fn settle(&self, nonce: Uuid) -> Answer<'_, Option<Vec<Option<Committed>>>> {
        self.with(move |state, now| state.tables.settle(nonce, now))
    }

    fn head(&self) -> Answer<'_, Head> {
        self.with(|state, _| state.tables.head())
    }

    fn changes(&self, after: Revision, limit: usize) -> Answer<'_, Changes> {
        if self.is_too_long(limit) {
            return async { Err(BackendError::Unavailable("so many rows take too long".to_owned())) }.boxed();
        }
        self.with(move |state, _| {
            let mut changes = state.tables.changes(after, limit);
            self.skip(&mut changes.rows);
            changes
        })
    }

    fn load<'a>(&'a self, kinds: &'a [Kind]) -> Answer<'a, Loaded> {
        self.with(|state, _| state.tables.load(kinds))
    }

    fn undo(&self, kind: Kind, from: Revision, to: Revision) -> Answer<'_, Option<Undone>> {
        self.with(move |state, _| state.tables.undo(kind, from, to))
    }

    fn hints(&self) -> watch::Receiver<Hint> {
        self.listener.hint.subscribe()
    }

    fn begin_epoch<'a>(&'a self, seen: &'a Identity, known: Revision) -> Answer<'a, Head> {
        self.with(move |state, _| {
            state.tables.begin_epoch(seen, known);
            self.database.hear(state.tables.revision);
            state.tables.head()
        })
    }

    fn show_loss<'a>(&'a self, loss: &'a Loss) -> Answer<'a, ()> {
        self.with(move |state, now| {
            state.pushes.show(loss, now);
            if loss.begins {
                state.tables.begin_epoch(&loss.found, loss.revision);
                self.database.hear(state.tables.revision);
            }
            state.settle_home(true, false, now);
        })
    }

    fn born(&self) -> Answer<'_, i64> {
        self.with(|state, _| state.born)
    }

    fn settle_home(&self, vouches: bool, patient: bool) -> Answer<'_, bool> {
        self.with(move |state, now| {
            let before = state.tables.revision;
            let settled = state.settle_home(vouches, patient, now);
            if state.tables.revision != before {
                self.database.hear(state.tables.revision);
            }
            settled
        })
    }

    fn history(&self, of: HistoryOf) -> Answer<'_, Vec<HistoryRow>> {
        self.with(move |state, _| state.tables.history(&of))
    }

    fn tombstones<'a>(&'a self, uids: &'a [Uuid]) -> Answer<'a, Vec<HistoryRow>> {
        self.with(|state, _| state.tables.tombstones(uids))
    }

    fn all_claims<'a>(&'a self, after: Option<&'a ClaimRow>, limit: usize) -> Answer<'a, Vec<OwnedClaim>> {
        self.with(move |state, _| state.tables.all_claims(after, limit))
    }

    fn claims<'a>(&'a self, space: &'a str) -> Answer<'a, Vec<ClaimRow>> {
        self.with(|state, _| state.tables.claims(space))
    }

    fn maintain(&self, retention: Retention) -> Answer<'_, Upkeep> {
        self.with(move |state, now| {
            let State { tables, pushes, .. } = state;
            let known = |node: &str| tables.objects.contains_key(&Key::cluster(Kind::Node, node));
            pushes.prune(now.saturating_sub(micros(retention.tombstones)), known);
            tables.maintain(retention, now, |uid| pushes.names(uid))
        })
    }

    fn sealed_heads<'a>(
        &'a self,
        kind: Kind,
        after: (&'a str, &'a str),
        limit: usize,
    ) -> Answer<'a, Vec<SealedBody>> {
        self.with(move |state, _| state.tables.sealed_heads(kind, after, limit))
    }

    fn sealed_log(&self, kind: Kind, after: Revision, limit: usize) -> Answer<'_, SealedStretch> {
        self.with(move |state, _| state.tables.sealed_log(kind, after, limit))
    }

    fn reseal<'a>(&'a self, bodies: &'a [Resealed]) -> Answer<'a, usize> {
        async move {
            bodies.iter().try_for_each(crate::sealing::check_resealed).map_err(BackendError::Rejected)?;
            self.with(|state, _| bodies.iter().filter(|body| state.tables.reseal(body)).count()).await
        }
        .boxed()
    }

    fn key_use(&self) -> Answer<'_, Vec<KeyUse>> {
        self.with(|state, _| state.tables.key_use())
    }

    fn settings(&self) -> Answer<'_, Option<Settings>> {
        self.with(|state, _| state.tables.settings.clone())
    }

    fn write_settings(&self, body: Bytes, expect: i64) -> Answer<'_, bool> {
        self.with(move |state, _| {
            let held = state.tables.settings.as_ref().map_or(0, |settings| settings.version);
            if held == expect {
                state.tables.settings = Some(Settings { version: held + 1, body });
            }
            held == expect
        })
    }

    fn acquire_lease<'a>(&'a self, name: &'a str, holder: Uuid, ttl: Duration) -> Answer<'a, Option<Lease>> {
        self.with(move |state, now| state.presence.acquire_lease(name, holder, now, micros(ttl)))
    }

    fn lease_left<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Duration>> {
        self.with(move |state, now| state.presence.lease_left(name, now))
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, bool> {
        self.with(move |state, now| state.presence.renew_lease(lease, now, micros(ttl)))
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.with(|state, _| {
            state.presence.release_lease(lease);
            self.database.tell_of_leases();
        })
    }

    fn lease_hints(&self) -> watch::Receiver<u64> {
        self.listener.leases.subscribe()
    }

    fn renew_gateway<'a>(
        &'a self,
        gateway: Uuid,
        internal_address: &'a str,
        ttl: Duration,
    ) -> Answer<'a, bool> {
        self.with(move |state, now| state.presence.renew_gateway(gateway, internal_address, now, micros(ttl)))
    }

    fn name_gateway<'a>(&'a self, gateway: Uuid, name: &'a str) -> Answer<'a, bool> {
        self.with(move |state, now| state.presence.name_gateway(gateway, name, now))
    }

    fn retire_gateway(&self, gateway: Uuid) -> Answer<'_, ()> {
        self.with(move |state, _| state.presence.retire_gateway(gateway))
    }

    fn denied_certificates(&self) -> Answer<'_, Vec<DeniedCertificates>> {
        self.with(|state, _| state.presence.denied())
    }

    fn deny_certificates<'a>(&'a self, denied: &'a DeniedCertificates, _reason: &'a str) -> Answer<'a, ()> {
        self.with(|state, _| state.presence.deny(denied))
    }

    fn allow_certificates<'a>(&'a self, of: &'a str) -> Answer<'a, bool> {
        self.with(|state, _| state.presence.allow(of))
    }

    /// Nobody looks at them here.
    fn announce<'a>(&'a self, _announcement: &'a Announcement, _revision: Revision) -> Answer<'a, ()> {
        self.with(|_, _| ())
    }

    fn withdraw(&self, _id: Uuid) -> Answer<'_, ()> {
        self.with(|_, _| ())
    }

    fn claim_sessions(
        &self,
        claims: Vec<SessionClaim>,
        stale_after: Duration,
    ) -> Answer<'_, Vec<Option<SessionGrant>>> {
        self.with(move |state, now| {
            let claimed = |claim| state.presence.claim_session(claim, now, micros(stale_after));
            claims.into_iter().map(claimed).collect()
        })
    }

    fn release_sessions<'a>(&'a self, sessions: &'a [(String, SessionGrant)]) -> Answer<'a, ()> {
        self.with(move |state, _| {
            for (node, grant) in sessions {
                state.presence.release_session(node, grant);
            }
        })
    }

    fn touch_sessions<'a>(&'a self, gateway: Uuid, sessions: &'a [SeenSession]) -> Answer<'a, Vec<String>> {
        self.with(move |state, now| state.presence.touch_sessions(gateway, sessions, now))
    }

    fn session_of<'a>(&'a self, node: &'a str) -> Answer<'a, Option<SessionRow>> {
        self.with(|state, now| state.presence.session_of(node, now))
    }

    fn sessions(&self) -> Answer<'_, Vec<SessionRow>> {
        self.with(|state, _| state.presence.sessions())
    }

    fn prune_presence(&self, age: Duration, limit: usize) -> Answer<'_, Pruned> {
        self.with(move |state, now| {
            let State { tables, presence, .. } = state;
            let known = |node: &str| tables.objects.contains_key(&Key::cluster(Kind::Node, node));
            presence.prune(now, micros(age), limit, known)
        })
    }

    fn record_heartbeats<'a>(&'a self, beats: &'a [Heartbeat]) -> Answer<'a, ()> {
        self.with(|state, now| state.presence.record_heartbeats(beats, now))
    }

    fn record_beats<'a>(&'a self, beats: &'a [(SessionGrant, Heartbeat)]) -> Answer<'a, Vec<String>> {
        self.with(|state, now| state.presence.record_beats(beats, now))
    }

    fn heartbeats(&self) -> Answer<'_, Vec<HeartbeatRow>> {
        self.with(|state, now| state.presence.heartbeats(now))
    }

    fn push_records<'a>(&'a self, nodes: &'a [String]) -> Answer<'a, (Vec<PushRecord>, Holds)> {
        self.with(|state, _| (state.pushes.records(nodes), state.pushes.holds()))
    }

    fn record_pushes<'a>(&'a self, changes: &'a [PushChange]) -> Answer<'a, Vec<String>> {
        self.with(|state, now| {
            let State { presence, pushes, .. } = state;
            let is_session =
                |node: &str, grant: &SessionGrant| presence.session_is(node, grant.epoch, grant.session);
            pushes.record(changes, is_session, now)
        })
    }

    fn holds(&self) -> Answer<'_, Holds> {
        self.with(|state, _| state.pushes.holds())
    }

    fn engage_hold<'a>(&'a self, node: Option<&'a str>, reason: &'a str, message: &'a str) -> Answer<'a, ()> {
        self.with(move |state, now| state.pushes.engage(node, reason, message, now))
    }

    fn release_hold<'a>(&'a self, node: Option<&'a str>) -> Answer<'a, bool> {
        self.with(move |state, now| {
            let State { tables, pushes, .. } = state;
            pushes.release(node, (tables.revision, now), |held| {
                let stored = tables.objects.get(&held.key);
                stored.is_some_and(|stored| stored.entry.uid == held.uid)
                    || !tables.tombstones(&[held.uid]).is_empty()
            })
        })
    }

    fn token_form<'a>(&'a self, node: &'a str) -> Answer<'a, Option<TokenForm>> {
        self.with(|state, _| state.presence.token_form(node))
    }

    fn choose_token_form<'a>(
        &'a self,
        node: &'a str,
        as_secrets: bool,
        overrule: bool,
    ) -> Answer<'a, TokenForm> {
        self.with(move |state, _| state.presence.choose_token_form(node, as_secrets, overrule))
    }

    fn lease_addresses<'a>(&'a self, demand: &'a AddressDemand) -> Answer<'a, Vec<Leased>> {
        self.with(|state, now| state.tables.lease_addresses(demand, now))
    }

    fn adopt_addresses<'a>(&'a self, known: &'a [KnownAddress]) -> Answer<'a, Vec<Uuid>> {
        self.with(|state, _| state.tables.adopt_addresses(known))
    }

    fn address_leases(&self) -> Answer<'_, Vec<AddressLease>> {
        self.with(|state, _| state.tables.address_leases())
    }

    fn released_claims<'a>(&'a self, space: &'a str, within: Duration) -> Answer<'a, Vec<String>> {
        self.with(move |state, now| state.tables.released_claims(space, now - micros(within)))
    }

    fn record_samples<'a>(&'a self, samples: &'a [Samples]) -> Answer<'a, ()> {
        self.with(|state, now| state.presence.record_samples(samples, now))
    }

    fn samples<'a>(&'a self, nodes: &'a [String], within: Duration) -> Answer<'a, Vec<SamplesRow>> {
        self.with(move |state, now| state.presence.samples(nodes, now, micros(within)))
    }
}
