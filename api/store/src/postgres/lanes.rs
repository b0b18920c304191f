//! The connections of a process, kept between calls.
//!
//! A connection goes back to its lanes only when its call has ended with an answer. One that was left in the
//! middle, since its caller went away or waited for too long, is closed: what would come next on it is the
//! answer to somebody else's question. Every call is bounded, a little above what the server itself allows a
//! statement, so a server that vanished without a word (its host lost power, a firewall forgot the
//! connection) costs each connection one call, not the minutes that TCP takes to give up. When one turns out
//! dead, or its caller has waited in vain for a while, those that lie idle are closed too: they went the same way.
//!
//! A server that takes no writes may not be the right one any more (a name that leads elsewhere since, a standby), or
//! no connection of the right sort (a default that was changed since). So once writes were refused for that, connections
//! from before are used no more.
//!
//! Connections are made two at a time. After the database was away everybody wants all of theirs at once, and a server
//! that starts a hundred sessions together may finish none of them within anybody's patience: they would be given up
//! half made and begun again.
//!
//! Refused: the driver's own pool. It asks every connection that comes back whether it lives, for as long as
//! that takes. This costs a round trip per commit, and a vanished host takes the pool with it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use super::between::Way;
use super::{errors, statements};
use crate::backend::Unwritable;
use crate::readings::PoolUse;

/// How long a call waits for a connection, and for one to be made, before the database counts as away.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// How long a call may take: what the server allows a statement, and a little for the way.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(7);
/// The same for loading whole kinds.
pub(super) const LOAD_LIMIT: Duration = Duration::from_secs(65);

/// How many connections are being made at the same time.
const MADE_TOGETHER: usize = 2;

/// For how long a call waits in vain before those that lie idle are suspected of the same.
const IN_VAIN: Duration = Duration::from_millis(2500);

struct Connector {
    way: Arc<Way>,
    making: Semaphore,
}

/// A connection, and how often its way had been doubted when it was made.
struct Made {
    connection: PgConnection,
    doubts: u64,
}

impl managed::Manager for Connector {
    type Type = Made;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<Made, sqlx::Error> {
        // Never closed.
        let _making = self.making.acquire().await;
        let doubts = self.way.doubts();
        let mut connection = self.way.connect().await?;
        sqlx::query(statements::SESSION).execute(&mut connection).await?;
        Ok(Made { connection, doubts })
    }

    async fn recycle(&self, made: &mut Made, _: &Metrics) -> RecycleResult<sqlx::Error> {
        // Only what ended well came back.
        if made.doubts == self.way.doubts() {
            Ok(())
        } else {
            Err(RecycleError::message("made before its way was doubted"))
        }
    }
}

/// A bounded number of connections.
#[derive(Clone)]
pub(super) struct Lanes(managed::Pool<Connector>);

impl Lanes {
    /// `size` connections at most, made when they are needed.
    pub(super) fn new(way: Arc<Way>, size: u32) -> Lanes {
        let pool = managed::Pool::builder(Connector { way, making: Semaphore::new(MADE_TOGETHER) })
            .max_size(size as usize)
            // The one used last has its statements and their plans in the server's caches.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(CONNECT_LIMIT))
            .create_timeout(Some(CONNECT_LIMIT))
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .expect("a pool with time limits is given its runtime");
        Lanes(pool)
    }

    /// A connection for one call.
    pub(super) async fn lane(&self) -> Result<Lane, sqlx::Error> {
        match self.0.get().await {
            Ok(made) => Ok(Lane { made: Some(made), since: Instant::now(), lanes: self.clone() }),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Closed) => Err(sqlx::Error::PoolClosed),
            Err(PoolError::Timeout(_) | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_)) => {
                Err(sqlx::Error::PoolTimedOut)
            }
        }
    }

    pub(super) fn in_use(&self, pool: &'static str) -> PoolUse {
        let status = self.0.status();
        PoolUse {
            pool,
            open: status.size,
            idle: status.available,
            limit: status.max_size,
            waiting: status.waiting,
        }
    }

    /// Closes what lies idle and lets no call begin any more; what is in use is closed when its call ends.
    pub(super) async fn close(&self) {
        let idle = self.0.retain(|_, _| false).removed;
        self.0.close();
        for made in idle {
            // A farewell, so that the server does not log a lost client; it may well be gone itself.
            let _ = tokio::time::timeout(CONNECT_LIMIT, made.connection.close()).await;
        }
    }
}

/// A connection during one call. Dropped without [`Lane::end`] it is closed.
pub(super) struct Lane {
    made: Option<Object<Connector>>,
    since: Instant,
    lanes: Lanes,
}

impl Lane {
    /// Ends the call: gives the connection back if it is still good, and says what came of the call.
    pub(super) fn end<T>(
        mut self,
        outcome: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let outcome = outcome.unwrap_or_else(|_| Err(no_answer()));
        if let Err(error) = &outcome
            && errors::unwritable(error) == Some(Unwritable::ReadOnly)
        {
            self.lanes.0.manager().way.doubt();
        }
        if outcome.as_ref().err().is_none_or(answered) {
            drop(self.made.take());
        } else {
            self.lanes.0.retain(|_, _| false);
        }
        outcome
    }
}

/// Whether the server gave this error as an answer and goes on listening.
fn answered(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => !error.try_downcast_ref().is_some_and(errors::ends_session),
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database does not answer"))
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(made) = self.made.take() {
            // Taken out of its lanes; the socket closes with it.
            drop(Object::take(made));
            if self.since.elapsed() > IN_VAIN {
                self.lanes.0.retain(|_, _| false);
            }
        }
    }
}

impl Deref for Lane {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.made.as_ref().expect("a lane has its connection until it ends").connection
    }
}

impl DerefMut for Lane {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.made.as_mut().expect("a lane has its connection until it ends").connection
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sqlx::postgres::{PgConnectOptions, PgSslMode};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn connections_are_made_two_at_a_time_and_all_have_their_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (now, most, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), 10);
        let seen = (Arc::clone(&now), Arc::clone(&most));
        // A server that is slow, and then goes away.
        let server = tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            for _ in 0..all {
                let (stream, _) = listener.accept().await.unwrap();
                seen.1.fetch_max(seen.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let now = Arc::clone(&seen.0);
                served.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    drop(stream);
                });
            }
            served.join_all().await;
        });
        let way = PgConnectOptions::new().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        let lanes = Lanes::new(Arc::new(Way::known(way)), all);
        let asked = (0..all).map(|_| async { lanes.lane().await.is_err() });
        assert!(futures::future::join_all(asked).await.into_iter().all(|failed| failed));
        server.await.unwrap();
        assert_eq!(most.load(Ordering::SeqCst), MADE_TOGETHER);
    }
}
