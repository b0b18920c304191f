//! The notification channel. Does nothing but remember the newest revision that was announced, and that leases
//! were given up: a listener that worked would fill the server's queue when it is slow.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::lanes::CALL_LIMIT;
use super::statements;
use crate::backend::Hint;

const CHANNEL: &str = "horchestra";
/// What is announced when a lease was given up; anything else is a revision.
const LEASE: &str = "lease";
/// How long nothing may be heard before the connection is asked whether it lives: it sends nothing of its
/// own, so it would never find out that the server vanished.
const QUIET_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Where it is put down.
pub(super) struct Heard {
    pub hint: Arc<watch::Sender<Hint>>,
    pub leases: Arc<watch::Sender<u64>>,
}

pub(super) async fn listen(connect: PgConnectOptions, heard: Heard, stop: CancellationToken) {
    let hint = &*heard.hint;
    let mut pause = FIRST_PAUSE;
    while !stop.is_cancelled() {
        let stood = tokio::select! {
            () = stop.cancelled() => return,
            stood = listen_once(&connect, &heard) => stood,
        };
        hint.send_modify(|hint| hint.connected = false);
        if stood {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks; whether it ever stood.
async fn listen_once(connect: &PgConnectOptions, heard: &Heard) -> bool {
    // Its own connection, never one that other work waits for.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5))
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(connect.clone());
    let listening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let mut listener = match listening.await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::debug!(%error, "cannot listen for changes");
            return false;
        }
    };
    heard.hint.send_modify(|hint| {
        hint.connected = true;
        hint.connections += 1;
    });
    loop {
        match timeout(QUIET_LIMIT, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => {
                let payload = notification.payload();
                if payload == LEASE {
                    heard.leases.send_modify(|released| *released += 1);
                } else if let Ok(latest) = payload.parse() {
                    heard.hint.send_modify(|hint| hint.latest = latest);
                }
            }
            // A lost connection. What was missed meanwhile is read by those who see `connections` grow.
            Ok(Ok(None) | Err(_)) => return true,
            Err(_) => {
                let asked = sqlx::query(statements::ALIVE.sql).execute(&mut listener);
                if !matches!(timeout(CALL_LIMIT, asked).await, Ok(Ok(_))) {
                    tracing::debug!("the connection that listens for changes is dead");
                    return true;
                }
            }
        }
    }
}
