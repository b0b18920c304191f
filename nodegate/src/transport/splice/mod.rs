//! Passing a connection on to the API, still encrypted.
//!
//! Fleets know one address. A connection that is no node's stream is carried to an API replica byte for byte,
//! so the TLS session and the identity in it stay between the client and the API; all that is added is a
//! PROXY header in front, which says where the connection comes from.
//!
//! What holds:
//!
//! - Until the first byte of an answer has come back, nothing has happened that another replica could not do
//!   as well: a replica that does not accept, hangs up, or says nothing for a while (it was stopped, its host
//!   has gone) is passed over, and asked last for the next seconds. After that the connection stands or falls
//!   with its replica.
//! - A replica that answers with a TLS alert takes offence at the client's first message, or does not believe our
//!   header and takes that for the message. Which one it is, the next replica shows; if all are of one mind, the
//!   client is told.
//! - Connections carried at a time are bounded apart from sessions, so that clients of the API do not take
//!   the places of nodes. Each costs two sockets, and no memory while nothing moves.
//! - Each direction ends by itself, and the other goes on; a reader that is slow slows its writer, and nobody
//!   else; one that stands still is cut off ([`pump`]).
//! - A gateway that leaves lets requests that are under way be answered.

mod backends;
mod pump;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use horchestra_runtime::proxy;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use backends::{Backend, BadBackend};

use self::backends::{Backends, Replica};
use super::metrics::TransportMetrics;
use super::socket;

/// The first byte of a TLS alert.
const ALERT: u8 = 21;

/// Times and bounds of carried connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At a time.
    pub connections: usize,
    /// For a replica to accept.
    pub connect: Duration,
    /// For a replica to begin an answer to the client's first message.
    pub answer: Duration,
    /// For how long a replica that failed is asked last.
    pub shun: Duration,
    pub pump: pump::Limits,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(5),
            shun: Duration::from_secs(10),
            pump: pump::Limits::default(),
        }
    }
}

/// Why a connection was not carried.
#[derive(Debug, thiserror::Error)]
pub enum NotCarried {
    #[error("as many connections as may be are carried to the API already")]
    Full,
    #[error("no replica of the API answers; the last one that was asked: {0}")]
    NoReplica(io::Error),
}

impl NotCarried {
    pub fn word(&self) -> &'static str {
        match self {
            NotCarried::Full => "full",
            NotCarried::NoReplica(_) => "no_replica",
        }
    }
}

/// What a replica said to a client's first message.
enum Answer {
    Taken(TcpStream),
    /// With the alert in it.
    Refused(TcpStream),
}

/// Carries connections to the replicas of the API.
pub struct Splicer {
    backends: Backends,
    limits: Limits,
    places: Semaphore,
    metrics: TransportMetrics,
}

impl Splicer {
    /// `None` when there is nowhere to carry anything.
    pub fn new(backends: &[Backend], limits: Limits, metrics: TransportMetrics) -> Option<Arc<Splicer>> {
        (!backends.is_empty()).then(|| {
            Arc::new(Splicer {
                backends: Backends::new(backends, limits.shun),
                limits,
                places: Semaphore::new(limits.connections),
                metrics,
            })
        })
    }

    /// Carries the connection of the client at `from`, of which `hello` was read, until it ends, or until it may end
    /// after `leaving`.
    pub async fn carry(
        &self,
        client: TcpStream,
        hello: Bytes,
        from: SocketAddr,
        leaving: &CancellationToken,
    ) -> Result<io::Result<()>, NotCarried> {
        let _place = self.places.try_acquire().map_err(|_| NotCarried::Full)?;
        let to = client.local_addr().map_err(NotCarried::NoReplica)?;
        let mut head = proxy::header(from, to);
        head.extend_from_slice(&hello);
        drop(hello);
        let server = tokio::select! {
            // Nothing has happened yet that the client could not do elsewhere.
            () = leaving.cancelled() => return Ok(Ok(())),
            reached = self.reach(&head) => reached.map_err(NotCarried::NoReplica)?,
        };
        drop(head);
        self.metrics.spliced.inc();
        let _open = self.metrics.splice_open();
        Ok(pump::both_ways(client, server, &self.limits.pump, leaving).await)
    }

    /// A connection to a replica that has begun to answer `head`.
    async fn reach(&self, head: &[u8]) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        let mut refusals: Vec<(&Replica, TcpStream)> = Vec::new();
        for backend in self.backends.in_order() {
            match self.ask(backend.address(), head).await {
                Ok(Answer::Taken(stream)) => {
                    backend.answered();
                    for (other, _) in refusals {
                        self.pass_over(
                            other,
                            "it refuses what others take: name this gateway in its --proxy-from",
                        );
                    }
                    return Ok(stream);
                }
                Ok(Answer::Refused(stream)) => refusals.push((backend, stream)),
                Err(error) => {
                    self.pass_over(backend, &error);
                    last = error;
                }
            }
        }
        if !refusals.is_empty() {
            tracing::info!(
                "every replica of the API refuses the first message of a client: either is what it says no good, or no \
                 replica believes this gateway (--proxy-from)"
            );
        }
        refusals.into_iter().next().map(|(_, stream)| stream).ok_or(last)
    }

    fn pass_over(&self, replica: &Replica, why: impl Display) {
        self.metrics.splice_retries.inc();
        tracing::info!(replica = replica.address(), %why, "a replica of the API was passed over");
        replica.failed();
    }

    async fn ask(&self, address: &str, head: &[u8]) -> io::Result<Answer> {
        let late = |what: &str| io::Error::new(io::ErrorKind::TimedOut, what.to_owned());
        let mut stream = timeout(self.limits.connect, TcpStream::connect(address))
            .await
            .map_err(|_| late("it does not accept"))??;
        socket::prepare(&stream)?;
        let mut first = [0];
        let heard = timeout(self.limits.answer, async {
            stream.write_all(head).await?;
            stream.peek(&mut first).await
        });
        match heard.await.map_err(|_| late("it does not answer"))?? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
            _ if first[0] == ALERT => Ok(Answer::Refused(stream)),
            _ => Ok(Answer::Taken(stream)),
        }
    }
}
