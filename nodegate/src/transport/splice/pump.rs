//! Bytes in both directions between two sockets.
//!
//! An end of one direction is passed on and leaves the other open. What is read is written before more is
//! read, so a slow reader slows the writer at the other side and costs one piece of memory; while nothing
//! moves there is not even that. Nothing moves for ever is the exception: a peer that takes nothing, a half
//! that was left behind, and a connection that nobody uses each have a limit.
//!
//! When the gateway leaves, it takes nothing more from the client, so what is asked from then on was never asked, and
//! may be asked again; what was asked before is answered. Once nothing comes any more both sides are closed.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

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
    /// After the last piece of an answer, when leaving.
    pub rest: Duration,
    /// For everything, when leaving: a stream of events may never rest.
    pub leave: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            idle: Duration::from_secs(3600),
            half_closed: Duration::from_secs(300),
            stalled: Duration::from_secs(60),
            rest: Duration::from_millis(200),
            leave: Duration::from_secs(5),
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
    /// It moved from the client to the server: there may be an answer to come.
    asked: AtomicBool,
    up: Way,
    down: Way,
}

/// Carries bytes until both directions are over, one of them breaks, nothing has moved for too long, or what was asked
/// before `leaving` is answered.
pub async fn both_ways(
    mut client: TcpStream,
    mut server: TcpStream,
    limits: &Limits,
    leaving: &CancellationToken,
) -> io::Result<()> {
    let pump = Pump {
        began: Instant::now(),
        moved: AtomicU64::new(0),
        asked: AtomicBool::new(true),
        up: Way::default(),
        down: Way::default(),
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let carried = async {
        tokio::try_join!(
            pump.one_way(from_client, to_server, &pump.up, Some(leaving)),
            pump.one_way(from_server, to_client, &pump.down, None)
        )
    };
    tokio::select! {
        carried = carried => return carried.map(|_| ()),
        what = pump.stands_still(limits) => return Err(io::Error::new(io::ErrorKind::TimedOut, what)),
        () = pump.comes_to_rest(limits, leaving) => {}
    }
    client.shutdown().await
}

impl Pump {
    /// What is read after `leaving` goes nowhere.
    async fn one_way(
        &self,
        from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        way: &Way,
        leaving: Option<&CancellationToken>,
    ) -> io::Result<()> {
        loop {
            from.readable().await?;
            let mut piece = Vec::with_capacity(PIECE);
            match from.try_read_buf(&mut piece) {
                Ok(0) => break,
                Ok(_) if leaving.is_some_and(CancellationToken::is_cancelled) => continue,
                Ok(_) => self.note(way),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let mut left = piece.as_slice();
            way.blocked.store(true, Ordering::Relaxed);
            while !left.is_empty() {
                let count = to.write(left).await?;
                left = &left[count..];
                self.note(way);
            }
            way.blocked.store(false, Ordering::Relaxed);
        }
        to.shutdown().await?;
        way.over.store(true, Ordering::Relaxed);
        self.note(way);
        Ok(())
    }

    /// Returns when the gateway leaves and there is nothing to wait for.
    async fn comes_to_rest(&self, limits: &Limits, leaving: &CancellationToken) {
        leaving.cancelled().await;
        let last = Instant::now() + limits.leave;
        loop {
            let moved = self.began + Duration::from_millis(self.moved.load(Ordering::Relaxed));
            let rested =
                if self.asked.load(Ordering::Relaxed) { last } else { last.min(moved + limits.rest) };
            if Instant::now() >= rested {
                return;
            }
            // An answer may come at any time, and is waited for no longer than it takes.
            sleep_until(rested.min(Instant::now() + limits.rest)).await;
        }
    }

    /// Something moved.
    fn note(&self, way: &Way) {
        self.asked.store(std::ptr::eq(way, &self.up), Ordering::Relaxed);
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
        pumped_until(limits, CancellationToken::new()).await
    }

    async fn pumped_until(
        limits: Limits,
        leaving: CancellationToken,
    ) -> (TcpStream, TcpStream, JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pair = async || {
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            (near.unwrap(), far.unwrap().0)
        };
        let (client, from_client) = pair().await;
        let (to_server, server) = pair().await;
        let pump = tokio::spawn(async move { both_ways(from_client, to_server, &limits, &leaving).await });
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
    async fn what_was_asked_before_leaving_is_answered_and_nothing_else_is_asked() {
        let leaving = CancellationToken::new();
        let limits = Limits { leave: SOON * 2, ..Limits::default() };
        let (mut client, mut server, pump) = pumped_until(limits, leaving.clone()).await;
        client.write_all(b"question").await.unwrap();
        let mut asked = [0; 8];
        server.read_exact(&mut asked).await.unwrap();
        leaving.cancel();
        // Longer than an answer is waited for that has begun: this one has not.
        tokio::time::sleep(limits.rest * 2).await;
        client.write_all(b"another").await.unwrap();
        server.write_all(b"answer").await.unwrap();
        assert_eq!(rest(&mut client).await, b"answer");
        outcome(pump).await.unwrap();
        let mut more = Vec::new();
        let _ = server.read_to_end(&mut more).await;
        assert_eq!(more, b"");
    }

    #[tokio::test]
    async fn a_stream_that_never_rests_is_left_all_the_same() {
        let leaving = CancellationToken::new();
        let limits = Limits { leave: Duration::from_millis(500), ..Limits::default() };
        let (client, mut server, pump) = pumped_until(limits, leaving.clone()).await;
        leaving.cancel();
        let events = async {
            while server.write_all(b"event").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            ended = outcome(pump) => ended.unwrap(),
            () = events => {}
        }
        drop(client);
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
