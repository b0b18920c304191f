//! The notification channel. Does nothing but remember the newest revision that was announced, and that leases
//! were given up: a listener that worked would fill the server's queue when it is slow.
//!
//! A connection may take the order to listen and yet never hear anything: through a pooler that lends servers for one
//! transaction at a time, or to another database by mistake. So each new one is tried out with an announcement of
//! our own, made the way that commits go. Only that announcement shows anything, and only in time: such a pooler leaves
//! the order with some server, and lets through what comes from there while it happens to lend it to this connection.
//! One that stays deaf is said to be, once, and goes on: nothing relies on being told, and the log is then asked more
//! often. It is tried out again now and then, since whoever is in a hurry may have been slow and not deaf.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::between::Way;
use super::lanes::CALL_LIMIT;
use super::statements::{self, CHANNEL, LEASE_GIVEN_UP};
use crate::backend::Hint;
use crate::tail::jittered;

/// How long nothing may be heard before the connection is asked whether it lives: it sends nothing of its
/// own, so it would never find out that the server vanished.
const QUIET_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Jittered, it is a second at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// How long an announcement of our own may take to come back.
const TRIAL_LIMIT: Duration = Duration::from_secs(3);
/// How long until a connection that was not shown to hear is tried out again.
const TRIAL_PAUSE: Duration = Duration::from_secs(30);

/// How the database is reached.
pub(super) struct Ways {
    /// By the connection that listens.
    pub listening: PgConnectOptions,
    /// By everything else.
    pub announcing: Arc<Way>,
}

/// Where it is put down.
pub(super) struct Heard {
    pub hint: Arc<watch::Sender<Hint>>,
    pub leases: Arc<watch::Sender<u64>>,
}

pub(super) async fn listen(ways: Ways, heard: Heard, stop: CancellationToken) {
    let hint = &*heard.hint;
    let mut pause = FIRST_PAUSE;
    while !stop.is_cancelled() {
        let stood = tokio::select! {
            () = stop.cancelled() => return,
            stood = listen_once(&ways, &heard) => stood,
        };
        hint.send_modify(|hint| hint.connected = false);
        if stood {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(pause)) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks; whether it ever stood.
async fn listen_once(ways: &Ways, heard: &Heard) -> bool {
    let mut listener = match timeout(CALL_LIMIT, listener(&ways.listening)).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(error)) => {
            tracing::debug!(%error, "cannot listen for changes");
            return false;
        }
        Err(_) => {
            tracing::debug!("cannot listen for changes: no answer");
            return false;
        }
    };
    heard.hint.send_modify(|hint| {
        hint.connected = true;
        hint.connections += 1;
    });
    // Some may have been given up while nobody listened.
    heard.leases.send_modify(|released| *released += 1);
    let mut trial: Option<Trial<'_>> = None;
    let mut next_trial = Some(Instant::now());
    let mut quiet_until = Instant::now() + QUIET_LIMIT;
    loop {
        if next_trial.is_some_and(|due| due <= Instant::now()) {
            trial = Some(Trial::begin(&ways.announcing));
            next_trial = Some(Instant::now() + TRIAL_PAUSE);
        }
        let ends = trial.as_ref().and_then(|trial| trial.ends);
        let wake = [ends, next_trial].into_iter().flatten().fold(quiet_until, Instant::min);
        // What others say is heard while the announcement is made, however long that takes.
        let received = tokio::select! {
            () = announced(&mut trial) => continue,
            received = timeout_at(wake, listener.try_recv()) => received,
        };
        match received {
            Ok(Ok(Some(notification))) => {
                quiet_until = Instant::now() + QUIET_LIMIT;
                let payload = notification.payload();
                if trial.as_ref().is_some_and(|trial| trial.said == payload) {
                    (trial, next_trial) = (None, None);
                    if heard.hint.send_if_modified(|hint| std::mem::take(&mut hint.deaf)) {
                        tracing::info!("notifications arrive on the connection that listens");
                    }
                } else if payload == LEASE_GIVEN_UP {
                    heard.leases.send_modify(|released| *released += 1);
                } else if let Ok(latest) = payload.parse() {
                    heard.hint.send_modify(|hint| hint.latest = latest);
                }
            }
            // A lost connection. What was missed meanwhile is read by those who see `connections` grow.
            Ok(Ok(None) | Err(_)) => return true,
            Err(_) if ends.is_some_and(|ends| ends <= Instant::now()) => {
                trial = None;
                if heard.hint.send_if_modified(|hint| !std::mem::replace(&mut hint.deaf, true)) {
                    heard.leases.send_modify(|released| *released += 1);
                    tracing::warn!(
                        "notifications do not arrive on the connection that listens, as through a pooler in \
                         transaction mode: changes are found by asking, which takes longer and costs more. Name a \
                         direct way with --database-listen-url"
                    );
                }
            }
            Err(_) if quiet_until <= Instant::now() => {
                // Nothing is prepared: through a pooler, that might be on somebody else's server.
                let asked = sqlx::raw_sql(statements::ALIVE.sql).execute(&mut listener);
                if !matches!(timeout(CALL_LIMIT, asked).await, Ok(Ok(_))) {
                    tracing::debug!("the connection that listens for changes is dead");
                    return true;
                }
                quiet_until = Instant::now() + QUIET_LIMIT;
            }
            Err(_) => {}
        }
    }
}

/// An announcement that is waited for. Nobody else can have made it, or make it again.
struct Trial<'a> {
    said: String,
    /// Until it is made.
    making: Option<BoxFuture<'a, bool>>,
    /// Once it is.
    ends: Option<Instant>,
}

impl Trial<'_> {
    fn begin(way: &Way) -> Trial<'_> {
        let said = Uuid::new_v4().to_string();
        Trial { making: Some(announce(way, said.clone()).boxed()), said, ends: None }
    }
}

/// Makes the announcement, and resolves when that is done. If it could not be made nothing is known, and there is none.
async fn announced(trial: &mut Option<Trial<'_>>) {
    let Some(Trial { making: Some(making), .. }) = trial else { return pending().await };
    if making.await {
        if let Some(trial) = trial {
            (trial.making, trial.ends) = (None, Some(Instant::now() + TRIAL_LIMIT));
        }
    } else {
        *trial = None;
    }
}

/// Whether an announcement arrives on a connection that listens, for whoever looks a database over; `None`: it could not
/// be tried.
pub(super) async fn hears(listening: &PgConnectOptions, announcing: &Way) -> Option<bool> {
    let mut listener = timeout(CONNECT_LIMIT, listener(listening)).await.ok()?.ok()?;
    let said = Uuid::new_v4().to_string();
    if !announce(announcing, said.clone()).await {
        return None;
    }
    let ends = Instant::now() + TRIAL_LIMIT;
    loop {
        match timeout_at(ends, listener.try_recv()).await {
            Ok(Ok(Some(notification))) if notification.payload() == said => return Some(true),
            Ok(Ok(Some(_))) => {}
            Ok(_) => return None,
            Err(_) => return Some(false),
        }
    }
}

/// A connection that listens: its own, never one that other work waits for.
async fn listener(way: &PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_LIMIT)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(way.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // A lost connection is told of at once. One that is made anew in silence would hide what was missed.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Says `trial` on the channel, the way that commits go; whether it was said.
async fn announce(way: &Way, trial: String) -> bool {
    let said = async {
        let mut connection: PgConnection = way.connect().await?;
        sqlx::query(statements::NOTIFY.sql).bind(CHANNEL).bind(trial).execute(&mut connection).await?;
        connection.close().await
    };
    match timeout(CALL_LIMIT, said).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::debug!(%error, "whether notifications arrive could not be tried");
            false
        }
        Err(_) => false,
    }
}
