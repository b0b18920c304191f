//! What stands between a process and its server.
//!
//! Nothing says whether a pooler is there, so it is tried out, before anything else goes that way. What matters is
//! whether connections are *lent*, for one transaction at a time: then what is set, listened to or shown on a
//! connection is some server's, and two of ours may be the same server one after the other. That alone can be lived
//! with. A pooler that lends and does not keep the prepared statements of its clients apart cannot: every process names
//! them alike, so one would run what another has prepared, and be answered as if it were its own. Nothing is ever sent
//! that way.
//!
//! Two connections are opened. One prepares a statement that looks for itself among the server's; if the driver's own
//! name stands there, nobody keeps names apart, which is as it should be where a connection is a server's session. Then
//! it is seen whether the other one is given the same server, or the first one another. A pooler that gives a client a
//! server for good once it prepares something does not count as lending: the order is on purpose.
//!
//! What cannot be seen: a pooler so busy that it never lends the same server twice during the trial. It is found out
//! later, by the errors that it brings ([`is_mix_up`]).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::errors;

/// What the driver calls its statements.
const DRIVERS_NAMES: &str = "sqlx_s_";
/// How often two connections are compared. A pooler lends the server that was given back last, unless somebody else
/// comes in between.
const ROUNDS: usize = 4;

/// How long finding out may take. More than a call would wait for: a server that starts sessions slowly is not asked
/// from the beginning again and again.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(500);
/// When a second attempt begins beside the first: the server may be slow, or have vanished without a word.
const SLOW: Duration = Duration::from_secs(5);

/// How often a way is doubted at most: each time all connections are made anew.
const DOUBT_PAUSE: Duration = Duration::from_secs(5);

/// Why a process does not work through a pooler, and what to do.
pub const MIXED_UP: &str = "the database is reached through a pooler that lends connections for single transactions and \
    does not keep the prepared statements of its clients apart (PgBouncer before 1.21, or with max_prepared_statements = \
    0), so one process would run another one's statements. Let PgBouncer 1.21 or later keep them \
    (max_prepared_statements = 500), use pool_mode = session, or name a way around it with --database-url";

/// What was found on a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Connections are lent for one transaction at a time.
    pub lends: bool,
    /// And prepared statements of different clients are mixed up.
    pub mixes: bool,
}

/// How the database is reached, and what is in between, once that is known.
pub(super) struct Way {
    pub options: PgConnectOptions,
    found: OnceCell<Between>,
    doubts: Doubts,
}

#[derive(Default)]
struct Doubts {
    times: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Way {
    pub fn new(options: PgConnectOptions) -> Way {
        Way { options, found: OnceCell::new(), doubts: Doubts::default() }
    }

    /// How often it was doubted that this way leads to where writes are taken.
    pub fn doubts(&self) -> u64 {
        self.doubts.times.load(Ordering::Relaxed)
    }

    /// Connections made so far may be the wrong ones. What is refused again right after is no news.
    pub fn doubt(&self) {
        let mut last = self.doubts.last.lock();
        if last.is_none_or(|last| last.elapsed() > DOUBT_PAUSE) {
            *last = Some(Instant::now());
            self.doubts.times.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whoever asks first finds out.
    pub async fn between(&self) -> Result<Between, sqlx::Error> {
        // Boxed, for every call that may need a connection has room for this otherwise.
        self.found.get_or_try_init(|| Box::pin(find_out(&self.options))).await.copied()
    }

    /// A connection, unless nothing may go this way.
    pub async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        if self.between().await?.mixes {
            return Err(sqlx::Error::Configuration(MIXED_UP.into()));
        }
        self.options.connect().await
    }

    #[cfg(test)]
    pub fn known(options: PgConnectOptions) -> Way {
        let between = Between { lends: false, mixes: false };
        Way { options, found: OnceCell::new_with(Some(between)), doubts: Doubts::default() }
    }
}

/// Finds out in the background, so that whoever waits for it in vain does not put an end to it. Why the database cannot
/// be reached is said once.
pub(super) async fn settle(way: Arc<Way>, stop: CancellationToken) {
    let settled = async {
        let mut said = false;
        loop {
            match timeout(PATIENCE, way.between()).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) if !std::mem::replace(&mut said, true) => {
                    tracing::warn!(%error, "the database cannot be reached; trying on");
                }
                Ok(Err(_)) | Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = settled => {}
    }
}

/// Tries the way out.
pub(super) async fn find_out(options: &PgConnectOptions) -> Result<Between, sqlx::Error> {
    let mut first = pin!(find_out_once(options));
    if let Ok(found) = timeout(SLOW, &mut first).await {
        return found;
    }
    tokio::select! {
        found = first => found,
        found = find_out_once(options) => found,
    }
}

async fn find_out_once(options: &PgConnectOptions) -> Result<Between, sqlx::Error> {
    let mut one = options.connect().await?;
    let mut other = options.connect().await?;
    let found = try_out(&mut one, &mut other).await;
    // A farewell; what becomes of it is no matter.
    let _ = one.close().await;
    let _ = other.close().await;
    found
}

async fn try_out(one: &mut PgConnection, other: &mut PgConnection) -> Result<Between, sqlx::Error> {
    let name = match own_statement(one).await {
        Ok(name) => name.filter(|name| name.starts_with(DRIVERS_NAMES)),
        Err(error) if is_mix_up(&error) => return Ok(Between { lends: true, mixes: true }),
        Err(error) => return Err(error),
    };
    let lends = is_lent(one, other).await?;
    let mixes = lends && name.is_some();
    if let Some(name) = name.filter(|_| mixes) {
        // Whoever is lent that server next would stumble over it.
        let forget = format!("deallocate {name}");
        let _ = sqlx::raw_sql(AssertSqlSafe(forget)).execute(one).await;
    }
    Ok(Between { lends, mixes })
}

/// Under which name the server has a statement that was prepared on this connection.
async fn own_statement(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let mark = Uuid::new_v4();
    let query = format!("select name from pg_prepared_statements where statement like '%{mark}%'");
    // All of it on one server.
    sqlx::raw_sql("begin").execute(&mut *connection).await?;
    let found = sqlx::query_scalar(AssertSqlSafe(query)).fetch_optional(&mut *connection).await;
    sqlx::raw_sql("rollback").execute(connection).await?;
    found
}

async fn is_lent(one: &mut PgConnection, other: &mut PgConnection) -> Result<bool, sqlx::Error> {
    for _ in 0..ROUNDS {
        let before = server(one).await?;
        sqlx::raw_sql("begin").execute(&mut *other).await?;
        // Where there is one server only, nobody else is asked while it is lent.
        let lent = server(other).await? == before || server(one).await? != before;
        sqlx::raw_sql("rollback").execute(&mut *other).await?;
        if lent {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The process of the server that answers. Nothing is prepared for that.
async fn server(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

/// Whether this comes of statements that were mixed up: one is not there that was prepared, is there already, or takes
/// other parameters. Where a connection is a server's session, none of this happens.
pub(super) fn is_mix_up(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    error.is_some_and(|error| match error.code() {
        "26000" | "42P05" => true,
        // Whatever goes wrong with a pooler itself is called that by it too, as when its server is away. Only servers name
        // the routine that found out.
        "08P01" => error.routine().is_some() && !errors::ends_session(error),
        _ => false,
    })
}
