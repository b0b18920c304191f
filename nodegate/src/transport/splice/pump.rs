//! Bytes in both directions between two sockets.
//!
//! An end of one direction is passed on and leaves the other open. What is read is written before more is
//! read, so a slow reader slows the writer at the other side and costs one piece of memory; while nothing
//! moves there is not even that. Nothing moves for ever is the exception: a peer that takes nothing, a half
//! that was left behind, and a connection that nobody uses each have a limit.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

/// Most that is read at once.
const PIECE: usize = 16 << 10;

/// How long nothing may move.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// While both directions are open and nobody has anything to say. The API ends what idles much sooner; this
    /// is for watches of quiet things, which it keeps.
    pub idle: Duration,
    /// After one side has said all it had to say.
    pub half_closed: Duration,
    /// While a side does not take what the other has sent.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(300),
            stalled: Duration::from_secs(60),
        }
    }
}

/// One direction.
#[derive(Default)]
struct Way {
    over: AtomicBool,
    /// It waits for its reader.
    blocked: AtomicBool,
}

struct Pump {
    began: Instant,
    /// When something moved last, in milliseconds since then.
    moved: AtomicU64,
    up: Way,
    down: Way,
}

/// Carries bytes until both directions are over, one of them breaks, or nothing has moved for too long.
pub async fn both_ways(mut client: TcpStream, mut server: TcpStream, limits: &Limits) -> io::Result<()> {
    let pump =
        Pump { began: Instant::now(), moved: AtomicU64::new(0), up: Way::default(), down: Way::default() };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let carried = async {
        tokio::try_join!(
            pump.one_way(from_client, to_server, &pump.up),
            pump.one_way(from_server, to_client, &pump.down)
        )
    };
    tokio::select! {
        carried = carried => carried.map(|_| ()),
        what = pump.stands_still(limits) => Err(io::Error::new(io::ErrorKind::TimedOut, what)),
    }
}

impl Pump {
    async fn one_way(&self, from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: &Way) -> io::Result<()> {
        loop {
            from.readable().await?;
            let mut piece = Vec::with_capacity(PIECE);
            match from.try_read_buf(&mut piece) {
                Ok(0) => break,
                Ok(_) => self.note(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let mut left = piece.as_slice();
            way.blocked.store(true, Ordering::Relaxed);
            while !left.is_empty() {
                let count = to.write(left).await?;
                left = &left[count..];
                self.note();
            }
            way.blocked.store(false, Ordering::Relaxed);
        }
        to.shutdown().await?;
        way.over.store(true, Ordering::Relaxed);
        self.note();
        Ok(())
    }

    /// Something moved.
    fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.store(now, Ordering::Relaxed);
    }

    /// Returns when nothing has moved for too long, and says what that was.
    async fn stands_still(&self, limits: &Limits) -> &'static str {
        // Looked at every now and then, since the state may change without anything moving.
        let look = limits.stalled.min(limits.half_closed).min(limits.idle) / 2;
        loop {
            sleep_until(Instant::now() + look).await;
            let any = |of: fn(&Way) -> &AtomicBool| {
                of(&self.up).load(Ordering::Relaxed) || of(&self.down).load(Ordering::Relaxed)
            };
            let (limit, what) = if any(|way| &way.blocked) {
                (limits.stalled, "a side takes nothing")
            } else if any(|way| &way.over) {
                (limits.half_closed, "half of it was left open")
            } else {
                (limits.idle, "it was not used")
            };
            let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
            if self.began.elapsed() >= moved + limit {
                return what;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Two ends with a pump between them.
    async fn pumped(limits: Limits) -> (TcpStream, TcpStream, JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pair = async || {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            (near.unwrap(), far.unwrap().0)
        };
        let (client, from_client) = pair().await;
        let (to_server, server) = pair().await;
        let pump = tokio::spawn(async move { both_ways(from_client, to_server, &limits).await });
        (client, server, pump)
    }

    async fn rest(stream: &mut TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        tokio::time::timeout(SOON, stream.read_to_end(&mut all)).await.expect("ends").expect("in order");
        all
    }

    async fn outcome(pump: JoinHandle<io::Result<()>>) -> io::Result<()> {
        tokio::time::timeout(SOON, pump).await.expect("ends").unwrap()
    }

    #[tokio::test]
    async fn one_direction_may_end_long_before_the_other() {
        for client_first in [true, false] {
            let (client, server, pump) = pumped(Limits::default()).await;
            let (mut first, mut second) = if client_first { (client, server) } else { (server, client) };
            first.write_all(b"question").await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(rest(&mut second).await, b"question");
            let large = vec![7; 3 << 20];
            let (answered, read) = tokio::join!(
                async {
                    second.write_all(&large).await?;
                    second.shutdown().await
                },
                rest(&mut first)
            );
            answered.unwrap();
            assert_eq!((read.len(), read == large), (large.len(), true));
            outcome(pump).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_stops_its_writer_and_is_cut_off_in_the_end() {
        let limits = Limits { stalled: Duration::from_secs(1), ..Limits::default() };
        let (client, mut server, pump) = pumped(limits).await;
        let mut sent = 0_usize;
        let piece = vec![1; 1 << 20];
        let writing = async {
            while let Ok(count @ 1..) = server.write(&piece).await {
                sent += count;
            }
        };
        tokio::select! {
            ended = outcome(pump) => assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut),
            () = writing => {}
        }
        assert!(sent < 64 << 20, "{sent} bytes were taken for somebody who reads nothing");
        drop(client);
    }

    #[tokio::test]
    async fn what_nobody_uses_is_closed() {
        let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
        let (mut client, mut server, pump) = pumped(limits).await;
        assert_eq!(outcome(pump).await.unwrap_err().to_string(), "it was not used");
        assert_eq!((rest(&mut client).await.len(), rest(&mut server).await.len()), (0, 0));

        let limits = Limits { half_closed: Duration::from_millis(300), ..Limits::default() };
        let (mut client, _server, pump) = pumped(limits).await;
        client.shutdown().await.unwrap();
        assert_eq!(outcome(pump).await.unwrap_err().to_string(), "half of it was left open");
    }

    #[tokio::test]
    async fn one_end_that_breaks_takes_the_other_along() {
        let (client, mut server, pump) = pumped(Limits::default()).await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert!(outcome(pump).await.is_err());
        let mut buffer = [0; 1];
        let read = tokio::time::timeout(SOON, server.read(&mut buffer)).await.expect("told");
        assert!(!matches!(read, Ok(1)), "{read:?}");
    }
}
