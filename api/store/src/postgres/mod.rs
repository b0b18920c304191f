//! The PostgreSQL backend.
//!
//! # How a batch is committed
//!
//! One execution of one prepared statement, which calls the function `commit_batch`, in the implicit
//! transaction of that statement. In it: take the ordering lock, number from the newest row of `commits`,
//! judge, write heads, log, history, references and claims, add a row to `commits`, notify once.
//!
//! * **Order without holes.** The lock is a transaction-scoped advisory lock. PostgreSQL gives such locks
//!   back after the transaction has become visible, so whoever numbers next sees every row below its own,
//!   and a reader that sees a row sees all below it. Only what succeeds is numbered.
//! * **Fresh eyes.** The function is volatile PL/pgSQL: each of its statements takes a new snapshot, hence
//!   one after the lock. A single statement with CTEs would go on with the snapshot from before it waited.
//! * **Nothing waits under the lock** for anything but the disk: no client round trip (a stopped client
//!   holds no lock: its statement runs to the end without it), no row lock that somebody outside the lock
//!   takes. All that guards read (heads, references, claims, lease epochs, sessions) is written under the
//!   lock only; terms, `last_seen` and heartbeats stand in tables that no guard reads.
//! * **No hot row.** A counter row would be rewritten by every batch, and while any snapshot in the cluster
//!   is old, its dead versions cannot be pruned and each read walks all of them. `commits` only grows, and
//!   its newest row is one index descent away whatever snapshots exist. Heads are found the same way, by
//!   name and newest revision.
//! * **In order.** A batch is cut into segments of items that do not meet ([`segments`]). A segment is
//!   judged and written as a set; segments follow each other. An item on its own goes a scalar way, which
//!   for one operation costs no subtransaction.
//! * **Lost answers.** The batch's nonce stands in `commits`. [`Backend::settle`] looks it up under the
//!   ordering lock and, if it is not there, spends it, so that an attempt still on its way fails.
//!
//! # What is not promised
//!
//! A superuser or the schema's owner can still write the tables by hand; who connects in the role
//! `horchestra_runtime` cannot, since these functions run as their owner and nothing else may write there (upkeep of
//! the log takes the owner). [`examine()`] finds what was written by hand.
//!
//! A pooler that lends connections for one transaction at a time has to keep prepared statements apart, as PgBouncer
//! does from 1.21 on; through one that does not nothing is sent ([`between`]). It passes no notifications on: the
//! connection that listens can go another way ([`Options::listen_url`]), and where it hears nothing the log is asked
//! more often ([`listen`]).
//!
//! A server that answers and takes no writes (a standby, a full disk) is said to be so, once ([`refusal`]).

mod addresses;
mod between;
mod commit;
mod connection;
mod encode;
mod errors;
mod examine;
mod fitness;
mod lanes;
mod listen;
mod log;
mod maintain;
mod migrate;
mod presence;
mod pushes;
mod refusal;
mod rows;
mod sealing;
mod segments;
pub mod statements;
mod survey;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use horchestra_core::kind::Kind;
use parking_lot::Mutex;
use sqlx::Row;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::announce::Announcement;
use crate::backend::{
    Answer, Backend, BackendError, Changes, ClaimRow, Done, Head, Hint, HistoryOf, HistoryRow, Identity,
    Loaded, OwnedClaim, Pruned, Retention, Settings, Undone, Unwritable, Upkeep,
};
use crate::presence::{
    DeniedCertificates, Heartbeat, HeartbeatRow, Lease, Samples, SamplesRow, SeenSession, SessionClaim,
    SessionGrant, SessionRow, TokenForm,
};
use crate::pushes::{Holds, Loss, PushChange, PushRecord};
use crate::readings::PoolUse;
use crate::schema::Schema;
use crate::sealing::{KeyUse, Resealed, SealedBody, SealedStretch};
use crate::survey::Survey;
use crate::types::{Committed, Item, Revision};

use between::Way;
pub use between::{Between, MIXED_UP};
pub use errors::MigrateError;
pub use examine::{Examination, ExamineError, NAMED, examine};
use lanes::Lanes;
pub use migrate::{MIGRATIONS, fingerprint, migrate, migrate_schema, migrate_schema_to};
use statements::Statement;

/// Told the name of every statement of the catalogue that was run, and how long it took.
pub type Observer = Arc<dyn Fn(&'static str, Duration) + Send + Sync>;

/// How a process uses its database.
#[derive(Clone)]
pub struct Options {
    /// Shown in `pg_stat_activity`. By it a process is found to be alive, so it should be the process's own where
    /// that matters (`name_gateway`).
    pub application: String,
    /// Connections besides the two of the committer and the one that listens.
    pub connections: u32,
    /// Another way to the same database for the connection that listens, where a pooler is in the first one.
    pub listen_url: Option<String>,
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Options { application: "horchestra".into(), connections: 6, listen_url: None, observer: None }
    }
}

/// A process's access to the database. See the module's essay.
pub struct PostgresBackend {
    way: Arc<Way>,
    application: String,
    /// Commits and what belongs to them.
    writer: Lanes,
    general: Lanes,
    writes: refusal::Writes,
    observer: Option<Observer>,
    hint: Arc<watch::Sender<Hint>>,
    leases: Arc<watch::Sender<u64>>,
    /// Newest revision seen by a commit of this process.
    newest: AtomicI64,
    /// First revision that has no partition yet, as far as this process knows.
    partitioned: Arc<AtomicI64>,
    /// Attempts without an answer so far, with a revision from before them: where settling starts to look.
    open: Mutex<HashMap<Uuid, Revision>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl PostgresBackend {
    /// Opens a database whose schema is migrated. Fails only on a malformed URL: a database that is away is
    /// the business of the calls.
    pub fn open(url: &str, options: Options) -> Result<Arc<PostgresBackend>, BackendError> {
        let parsed = |url: &str| {
            let connect: PgConnectOptions =
                url.parse().map_err(|error: sqlx::Error| BackendError::Rejected(error.to_string()))?;
            Ok::<_, BackendError>(
                connect.application_name(&options.application).statement_cache_capacity(200),
            )
        };
        let connect = parsed(url)?;
        let listening = options.listen_url.as_deref().map(parsed).transpose()?;
        let listening = listening.unwrap_or_else(|| connect.clone());
        let way = Arc::new(Way::new(connect));
        let backend = Arc::new(PostgresBackend {
            way: Arc::clone(&way),
            writer: Lanes::new(Arc::clone(&way), 2),
            general: Lanes::new(Arc::clone(&way), options.connections.max(2)),
            writes: refusal::Writes::default(),
            application: options.application.clone(),
            observer: options.observer,
            hint: Arc::new(watch::Sender::new(Hint::default())),
            leases: Arc::new(watch::Sender::new(0)),
            newest: AtomicI64::new(0),
            partitioned: Arc::new(AtomicI64::new(0)),
            open: Mutex::new(HashMap::new()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let heard = listen::Heard { hint: Arc::clone(&backend.hint), leases: Arc::clone(&backend.leases) };
        backend.tasks.spawn(between::settle(Arc::clone(&way), backend.stop.clone()));
        let ways = listen::Ways { listening, announcing: way };
        backend.tasks.spawn(listen::listen(ways, heard, backend.stop.clone()));
        Ok(backend)
    }

    /// Ends background work and closes the connections.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.writer.close().await;
        self.general.close().await;
    }

    async fn between(&self) -> Result<Between, BackendError> {
        let found = tokio::time::timeout(lanes::CALL_LIMIT, self.way.between()).await;
        let late = || BackendError::Unavailable("no answer".to_owned());
        found.map_err(|_| late())?.map_err(errors::of_connect)
    }

    async fn observed<T>(&self, statement: Statement, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let result = work.await;
        if let Some(observer) = &self.observer {
            observer(statement.name, started.elapsed());
        }
        result
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Backend for PostgresBackend {
    fn commit<'a>(&'a self, batch: &'a [Item], nonce: Uuid) -> Answer<'a, Done> {
        self.commit_batch(batch, nonce).boxed()
    }

    fn settle(&self, nonce: Uuid) -> Answer<'_, Option<Vec<Option<Committed>>>> {
        self.settle_nonce(nonce).boxed()
    }

    fn head(&self) -> Answer<'_, Head> {
        self.read_head().boxed()
    }

    fn changes(&self, after: Revision, limit: usize) -> Answer<'_, Changes> {
        self.read_changes(after, limit).boxed()
    }

    fn load<'a>(&'a self, kinds: &'a [Kind]) -> Answer<'a, Loaded> {
        self.load_kinds(kinds).boxed()
    }

    fn undo(&self, kind: Kind, from: Revision, to: Revision) -> Answer<'_, Option<Undone>> {
        self.undo_changes(kind, from, to).boxed()
    }

    fn hints(&self) -> watch::Receiver<Hint> {
        self.hint.subscribe()
    }

    fn begin_epoch<'a>(&'a self, seen: &'a Identity, known: Revision) -> Answer<'a, Head> {
        async move {
            let query = sqlx::query(statements::BEGIN_EPOCH.sql).bind(seen.epoch).bind(known);
            self.change(statements::BEGIN_EPOCH, query).await?;
            self.read_head().await
        }
        .boxed()
    }

    fn show_loss<'a>(&'a self, loss: &'a Loss) -> Answer<'a, ()> {
        self.write_loss(loss).boxed()
    }

    fn born(&self) -> Answer<'_, i64> {
        self.read_birth().boxed()
    }

    fn settle_home(&self, vouches: bool, patient: bool) -> Answer<'_, bool> {
        self.look_home(vouches, patient).boxed()
    }

    fn history(&self, of: HistoryOf) -> Answer<'_, Vec<HistoryRow>> {
        self.read_history(of).boxed()
    }

    fn tombstones<'a>(&'a self, uids: &'a [Uuid]) -> Answer<'a, Vec<HistoryRow>> {
        self.read_tombstones(uids).boxed()
    }

    fn claims<'a>(&'a self, space: &'a str) -> Answer<'a, Vec<ClaimRow>> {
        async move {
            let rows = self.read(statements::CLAIMS, sqlx::query(statements::CLAIMS.sql).bind(space)).await?;
            rows.iter().map(rows::claim).collect::<Result<_, _>>().map_err(errors::of_read)
        }
        .boxed()
    }

    fn all_claims<'a>(&'a self, after: Option<&'a ClaimRow>, limit: usize) -> Answer<'a, Vec<OwnedClaim>> {
        self.read_all_claims(after, limit).boxed()
    }

    fn maintain(&self, retention: Retention) -> Answer<'_, Upkeep> {
        self.maintain_log(retention).boxed()
    }

    fn sealed_heads<'a>(
        &'a self,
        kind: Kind,
        after: (&'a str, &'a str),
        limit: usize,
    ) -> Answer<'a, Vec<SealedBody>> {
        self.read_sealed_heads(kind, after, limit).boxed()
    }

    fn sealed_log(&self, kind: Kind, after: Revision, limit: usize) -> Answer<'_, SealedStretch> {
        self.read_sealed_log(kind, after, limit).boxed()
    }

    fn reseal<'a>(&'a self, bodies: &'a [Resealed]) -> Answer<'a, usize> {
        self.replace_seals(bodies).boxed()
    }

    fn key_use(&self) -> Answer<'_, Vec<KeyUse>> {
        self.read_key_use().boxed()
    }

    fn settings(&self) -> Answer<'_, Option<Settings>> {
        async move {
            let rows = self.read(statements::SETTINGS, sqlx::query(statements::SETTINGS.sql)).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let decode = || {
                let body: Vec<u8> = row.try_get("body")?;
                Ok(Some(Settings { version: row.try_get("version")?, body: Bytes::from(body) }))
            };
            decode().map_err(errors::of_read)
        }
        .boxed()
    }

    fn write_settings(&self, body: Bytes, expect: i64) -> Answer<'_, bool> {
        async move {
            let changed = if expect == 0 {
                let query = sqlx::query(statements::SETTINGS_FIRST.sql).bind(body.to_vec());
                self.change(statements::SETTINGS_FIRST, query).await?
            } else {
                let query = sqlx::query(statements::SETTINGS_NEXT.sql).bind(body.to_vec()).bind(expect);
                self.change(statements::SETTINGS_NEXT, query).await?
            };
            Ok(changed.rows_affected() > 0)
        }
        .boxed()
    }

    fn acquire_lease<'a>(&'a self, name: &'a str, holder: Uuid, ttl: Duration) -> Answer<'a, Option<Lease>> {
        self.take_lease(name, holder, ttl).boxed()
    }

    fn lease_left<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Duration>> {
        self.read_lease_left(name).boxed()
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, bool> {
        self.prolong_lease(lease, ttl).boxed()
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        self.give_up_lease(lease).boxed()
    }

    fn lease_hints(&self) -> watch::Receiver<u64> {
        self.leases.subscribe()
    }

    fn renew_gateway<'a>(
        &'a self,
        gateway: Uuid,
        internal_address: &'a str,
        ttl: Duration,
    ) -> Answer<'a, bool> {
        self.prolong_gateway(gateway, internal_address, ttl).boxed()
    }

    fn name_gateway<'a>(&'a self, gateway: Uuid, name: &'a str) -> Answer<'a, bool> {
        self.call_gateway(gateway, name).boxed()
    }

    fn retire_gateway(&self, gateway: Uuid) -> Answer<'_, ()> {
        self.end_gateway(gateway).boxed()
    }

    fn denied_certificates(&self) -> Answer<'_, Vec<DeniedCertificates>> {
        self.read_denied().boxed()
    }

    fn deny_certificates<'a>(&'a self, denied: &'a DeniedCertificates, reason: &'a str) -> Answer<'a, ()> {
        self.add_denied(denied, reason).boxed()
    }

    fn allow_certificates<'a>(&'a self, of: &'a str) -> Answer<'a, bool> {
        self.remove_denied(of).boxed()
    }

    fn announce<'a>(&'a self, announcement: &'a Announcement, revision: Revision) -> Answer<'a, ()> {
        self.write_announcement(announcement, revision).boxed()
    }

    fn withdraw(&self, id: Uuid) -> Answer<'_, ()> {
        self.remove_announcement(id).boxed()
    }

    fn claim_sessions(
        &self,
        claims: Vec<SessionClaim>,
        stale_after: Duration,
    ) -> Answer<'_, Vec<Option<SessionGrant>>> {
        self.open_sessions(claims, stale_after).boxed()
    }

    fn release_sessions<'a>(&'a self, sessions: &'a [(String, SessionGrant)]) -> Answer<'a, ()> {
        self.end_sessions(sessions).boxed()
    }

    fn touch_sessions<'a>(&'a self, gateway: Uuid, sessions: &'a [SeenSession]) -> Answer<'a, Vec<String>> {
        self.see_sessions(gateway, sessions).boxed()
    }

    fn session_of<'a>(&'a self, node: &'a str) -> Answer<'a, Option<SessionRow>> {
        self.read_session(node).boxed()
    }

    fn sessions(&self) -> Answer<'_, Vec<SessionRow>> {
        self.read_sessions().boxed()
    }

    fn prune_presence(&self, age: Duration, limit: usize) -> Answer<'_, Pruned> {
        self.remove_presence(age, limit).boxed()
    }

    fn record_heartbeats<'a>(&'a self, beats: &'a [Heartbeat]) -> Answer<'a, ()> {
        self.write_heartbeats(beats).boxed()
    }

    fn record_beats<'a>(&'a self, beats: &'a [(SessionGrant, Heartbeat)]) -> Answer<'a, Vec<String>> {
        self.write_beats(beats).boxed()
    }

    fn heartbeats(&self) -> Answer<'_, Vec<HeartbeatRow>> {
        self.read_heartbeats().boxed()
    }

    fn push_records<'a>(&'a self, nodes: &'a [String]) -> Answer<'a, (Vec<PushRecord>, Holds)> {
        self.read_push_records(nodes).boxed()
    }

    fn record_pushes<'a>(&'a self, changes: &'a [PushChange]) -> Answer<'a, Vec<String>> {
        self.write_pushes(changes).boxed()
    }

    fn holds(&self) -> Answer<'_, Holds> {
        self.read_holds().boxed()
    }

    fn engage_hold<'a>(&'a self, node: Option<&'a str>, reason: &'a str, message: &'a str) -> Answer<'a, ()> {
        self.write_hold(node, reason, message).boxed()
    }

    fn release_hold<'a>(&'a self, node: Option<&'a str>) -> Answer<'a, bool> {
        self.end_hold(node).boxed()
    }

    fn token_form<'a>(&'a self, node: &'a str) -> Answer<'a, Option<TokenForm>> {
        self.read_token_form(node).boxed()
    }

    fn choose_token_form<'a>(
        &'a self,
        node: &'a str,
        as_secrets: bool,
        overrule: bool,
    ) -> Answer<'a, TokenForm> {
        self.write_token_form(node, as_secrets, overrule).boxed()
    }

    fn lease_addresses<'a>(&'a self, demand: &'a AddressDemand) -> Answer<'a, Vec<Leased>> {
        self.give_addresses(demand).boxed()
    }

    fn adopt_addresses<'a>(&'a self, known: &'a [KnownAddress]) -> Answer<'a, Vec<Uuid>> {
        self.take_over_addresses(known).boxed()
    }

    fn address_leases(&self) -> Answer<'_, Vec<AddressLease>> {
        self.read_address_leases().boxed()
    }

    fn released_claims<'a>(&'a self, space: &'a str, within: Duration) -> Answer<'a, Vec<String>> {
        self.read_released(space, within).boxed()
    }

    fn record_samples<'a>(&'a self, samples: &'a [Samples]) -> Answer<'a, ()> {
        self.write_samples(samples).boxed()
    }

    fn samples<'a>(&'a self, nodes: &'a [String], within: Duration) -> Answer<'a, Vec<SamplesRow>> {
        self.read_samples(nodes, within).boxed()
    }

    fn pools(&self) -> Vec<PoolUse> {
        vec![self.writer.in_use("commit"), self.general.in_use("general")]
    }

    fn survey(&self) -> Answer<'_, Survey> {
        self.read_survey().boxed()
    }

    fn schema(&self) -> Answer<'_, Schema> {
        self.read_schema().boxed()
    }

    fn mixes_statements(&self) -> Answer<'_, bool> {
        async { self.between().await.map(|between| between.mixes) }.boxed()
    }

    fn unwritable(&self) -> Option<Unwritable> {
        self.writes.refused()
    }
}
