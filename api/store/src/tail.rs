//! The tail: the one task that keeps the cache in step with the log.
//!
//! # What it guarantees
//!
//! * Rows reach the cache in order, each once, none left out: it only ever asks for what follows the last
//!   row that the cache has.
//! * It reads at once when the backend hints at something new, when a reader or the committer knows of a
//!   newer revision ([`Tail::nudge`]), and otherwise about once a second: hints may get lost without harm.
//! * Every read also shows that the log is still the one that the cache was built from: same identity,
//!   not shorter than the cache, same row where the cache ends. If not, history was lost or replaced: the
//!   tail engages the hold on pushes and begins a new epoch in the database where nobody has yet, so that
//!   revisions given out before are never given out again, and a new era in the cache.
//! * While the database is away it keeps trying, and the cache keeps answering those who do not ask for
//!   freshness.
//! * A read that takes too long is tried again for fewer rows: a process that gets little time, with much to catch up
//!   with, gets on all the same instead of failing at the same stretch again and again. For the same reason a load
//!   does without the rows before it when they cannot be had; those who watch from there read them from the log themselves.
//!
//! # What it does not
//!
//! A database that loses history between two reads **and** has grown back to exactly the same row is not
//! told apart (the row's audit id is random, so that takes more than bad luck). A lost stretch that this
//! process never saw is for those processes to show that did.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use horchestra_trace::{Role, Span, attribute};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BackendError, Changes, Hint, Identity, LogRow};
use crate::cache::{Cache, Position};
use crate::pushes::Loss;
use crate::types::Revision;

/// Rows asked for at a time, at most and at least.
const STRETCH: usize = 1000;
const LEAST_STRETCH: usize = 50;
/// A read that takes longer has failed.
const READ_LIMIT: Duration = Duration::from_secs(6);
/// A read that takes longer than this is a sign that the database is away.
const SLOW_READ: Duration = Duration::from_secs(1);
/// How long a hint waits for the answer of this process's own batch under way.
const OWN_BATCH_LIMIT: Duration = Duration::from_millis(3);
/// How often it is made sure that the data is where it was. Less than those wait who have not seen it there.
const LOOK_HOME_EVERY: Duration = Duration::from_secs(4);
/// A load may take longer.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// The tail as others see it.
pub(crate) struct Tail {
    wake: Notify,
    own: watch::Sender<Own>,
    contact: Mutex<Contact>,
    home: Mutex<Home>,
}

/// Whether the data is where it was; see [`crate::pushes`].
#[derive(Clone, Copy)]
enum Home {
    /// This process has not seen it before; until then others may vouch for it.
    Open {
        until: Instant,
    },
    Settled {
        checked: Instant,
    },
}

/// This process's own batches, counted.
#[derive(Clone, Copy, Default)]
struct Own {
    sent: u64,
    answered: u64,
}

struct Contact {
    /// The last successful read began then.
    last: Instant,
    /// The database has been answering since then.
    since: Option<Instant>,
    failing: bool,
    /// A read is under way since then.
    asking: Option<Instant>,
    /// The cache held everything that had been committed by then.
    complete: Instant,
}

/// What a read of the log showed.
enum Reading {
    Current,
    /// The log no longer has all that follows the cache.
    FellBehind,
    /// There is a hole where there cannot be one.
    Hole,
    /// The log is not the one that the cache was built from.
    Lost(Identity),
}

impl Tail {
    pub fn new() -> Tail {
        Tail {
            wake: Notify::new(),
            own: watch::Sender::new(Own::default()),
            contact: Mutex::new(Contact {
                last: Instant::now(),
                since: None,
                failing: true,
                asking: None,
                complete: Instant::now(),
            }),
            home: Mutex::new(Home::Open { until: Instant::now() }),
        }
    }

    /// Makes the tail read now.
    pub fn nudge(&self) {
        self.wake.notify_one();
    }

    /// Tells that a batch of this process is on its way.
    pub fn batch_sent(&self) {
        self.own.send_modify(|own| own.sent += 1);
    }

    /// Tells that it was answered, and put on the cache if it could be.
    pub fn batch_answered(&self) {
        self.own.send_modify(|own| own.answered += 1);
    }

    /// The hint of one's own commit tends to overtake its answer. Reading the rows back would be work for
    /// nothing, so the answer is waited for, but not for long: the hint may be about others' commits.
    async fn own_batch(&self) {
        let mut own = self.own.subscribe();
        let sent = own.borrow_and_update().sent;
        // Ends at once where nothing is on its way.
        let _ = timeout(OWN_BATCH_LIMIT, own.wait_for(|own| own.answered >= sent)).await.map(|_| ());
    }

    /// How long the database has not answered; zero while it does.
    pub fn disconnected_for(&self) -> Duration {
        let contact = self.contact.lock();
        let silent = contact.asking.is_some_and(|asked| asked.elapsed() > SLOW_READ);
        if contact.failing || silent { contact.last.elapsed() } else { Duration::ZERO }
    }

    /// For how long the database has been answering; zero while it does not.
    pub fn connected_for(&self) -> Duration {
        if matches!(*self.home.lock(), Home::Open { .. }) {
            return Duration::ZERO;
        }
        let since = self.contact.lock().since;
        since.filter(|_| self.disconnected_for().is_zero()).map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn asks(&self) -> Instant {
        let now = Instant::now();
        self.contact.lock().asking = Some(now);
        now
    }

    fn answered(&self, asked: Instant) {
        let mut contact = self.contact.lock();
        let since = contact.since.filter(|_| !contact.failing).or_else(|| Some(Instant::now()));
        let answered =
            Contact { last: asked, since, failing: false, asking: None, complete: contact.complete };
        let before = std::mem::replace(&mut *contact, answered);
        drop(contact);
        if before.failing {
            tracing::info!(away_ms = before.last.elapsed().as_millis() as u64, "store.tail.database_back");
        }
    }

    /// How long ago the cache is known to have held everything.
    pub fn incomplete_for(&self) -> Duration {
        self.contact.lock().complete.elapsed()
    }

    /// The read that was answered last left nothing to be read.
    fn complete(&self) {
        let mut contact = self.contact.lock();
        contact.complete = contact.last;
    }

    /// Whether it is the first failure after an answer.
    fn failed(&self) -> bool {
        let mut contact = self.contact.lock();
        contact.asking = None;
        !std::mem::replace(&mut contact.failing, true)
    }
}

/// Runs until `stop`.
pub(crate) async fn run(
    tail: Arc<Tail>,
    cache: Arc<Cache>,
    backend: Arc<dyn Backend>,
    settings: Settings,
    stop: CancellationToken,
) {
    let follower = Follower { tail, cache, backend, settings, stretch: AtomicUsize::new(STRETCH) };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follower.follow() => {}
    }
}

/// How many times as often the log is asked by who is told nothing.
const DEAF: u32 = 10;

/// How to follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The time between two reads for which there was no hint; jittered.
    pub poll: Duration,
    /// Rows from before the load to fill the rings with.
    pub prefill: usize,
    /// How long to wait for others to vouch for the database.
    pub vouch: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// There is nothing yet.
    First,
    /// The cache could not be brought forward, but the log is the same.
    Again,
    /// Revisions from before are void.
    NewEra,
}

struct Follower {
    tail: Arc<Tail>,
    cache: Arc<Cache>,
    backend: Arc<dyn Backend>,
    settings: Settings,
    /// Rows to ask for next.
    stretch: AtomicUsize,
}

impl Follower {
    async fn follow(&self) {
        let mut hints = self.backend.hints();
        let mut wanted = Some(Load::First);
        loop {
            // Seen before the read: whatever is hinted at from here on wakes us again.
            let hint = *hints.borrow_and_update();
            match self.step(wanted).await {
                Ok(next) => {
                    wanted = next;
                    if wanted.is_some() {
                        continue;
                    }
                    self.tail.complete();
                    wanted = self.look_home().await;
                    if wanted.is_some() {
                        continue;
                    }
                }
                Err(error) => {
                    if self.tail.failed() {
                        tracing::warn!(error = %error, "store.tail.database_away");
                    } else {
                        tracing::debug!(error = %error, "store.tail.read_failed");
                    }
                    self.pause(&mut hints).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.tail.wake.notified() => {}
                () = self.heard(&mut hints, hint) => {}
                () = sleep(jittered(self.settings.poll / if hint.deaf { DEAF } else { 1 })) => {}
            }
        }
    }

    /// Resolves when more is heard of than what was when `seen` was read, or the channel was interrupted.
    async fn heard(&self, hints: &mut watch::Receiver<Hint>, seen: Hint) {
        loop {
            if hints.changed().await.is_err() {
                // The backend is going away; the poll remains.
                std::future::pending::<()>().await;
            }
            let hint = *hints.borrow_and_update();
            if hint.connections != seen.connections {
                return;
            }
            if hint.latest > self.cache.position().revision {
                self.tail.own_batch().await;
                if hint.latest > self.cache.position().revision {
                    return;
                }
            }
        }
    }

    /// After a failure: a little patience, cut short by a reconnection.
    async fn pause(&self, hints: &mut watch::Receiver<Hint>) {
        let connections = hints.borrow().connections;
        let reconnected = async {
            if hints.wait_for(|hint| hint.connections != connections).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = reconnected => {}
            () = sleep(jittered(self.settings.poll / 4)) => {}
        }
    }

    /// Loads or reads on. Answers the load that has to come next.
    async fn step(&self, load: Option<Load>) -> Result<Option<Load>, BackendError> {
        // A cache that was voided, and whose new epoch could not be begun then, still has to be loaded.
        let load = load.or_else(|| (!self.cache.progress().loaded).then_some(Load::Again));
        if let Some(load) = load {
            return self.load(load).await;
        }
        let position = self.cache.position().revision;
        match self.read_on().await? {
            Reading::Current => return Ok(None),
            Reading::Lost(found) => return self.begin_epoch(&found).await.map(Some),
            Reading::FellBehind => tracing::warn!(position, "store.tail.fell_behind"),
            Reading::Hole => {
                tracing::error!(position, "store.tail.hole");
                self.cache.metrics.holes.add(1);
            }
        }
        self.cache.metrics.resyncs.add(1);
        Ok(Some(Load::Again))
    }

    /// After everything up to the head was read, or loaded: whoever has settled this before has just seen that nothing
    /// of what it knew is missing. Answers the load that has to come next: where nobody vouched for the data, a new
    /// epoch has begun.
    async fn look_home(&self) -> Option<Load> {
        let home = *self.tail.home.lock();
        let (vouches, patient) = match home {
            Home::Settled { checked } if checked.elapsed() < LOOK_HOME_EVERY => return None,
            Home::Settled { .. } => (true, false),
            Home::Open { until } => (false, Instant::now() < until),
        };
        match limited(READ_LIMIT, self.backend.settle_home(vouches, patient)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("store.tail.on_another_timeline");
                return None;
            }
            // The next read will show it.
            Err(error) => {
                tracing::debug!(error = %error, "store.tail.home_not_settled");
                return None;
            }
        }
        let mut anew = false;
        if !vouches {
            // Where that fails it stays open, and is asked again.
            let head = limited(READ_LIMIT, self.backend.head()).await.ok()?;
            anew = head.identity != *self.cache.identity();
        }
        *self.tail.home.lock() = Home::Settled { checked: Instant::now() };
        anew.then(|| self.start_anew())
    }

    async fn begin_epoch(&self, found: &Identity) -> Result<Load, BackendError> {
        let known = self.cache.position().revision;
        let same = *self.cache.identity() == *found;
        tracing::error!(known, same_identity = same, "store.tail.history_lost");
        let head = limited(READ_LIMIT, self.backend.head()).await?;
        // Also where somebody has begun an epoch already: which histories were known is what holds are about.
        let begins = same || head.revision <= known;
        let known_identity = Identity::clone(&self.cache.identity());
        let loss = Loss { known: known_identity, revision: known, found: found.clone(), begins };
        // Who has just come has nothing to tell of an epoch that began meanwhile: whoever began it has engaged the hold.
        let newcomer = matches!(*self.tail.home.lock(), Home::Open { .. });
        if begins || loss.other_database() || !newcomer {
            limited(READ_LIMIT, self.backend.show_loss(&loss)).await?;
        }
        // Not before it is recorded: should that fail, the next read finds the same again.
        Ok(self.start_anew())
    }

    /// Revisions from before mean nothing any more.
    fn start_anew(&self) -> Load {
        self.cache.void();
        self.cache.metrics.losses.add(1);
        self.cache.metrics.resyncs.add(1);
        Load::NewEra
    }

    async fn load(&self, load: Load) -> Result<Option<Load>, BackendError> {
        let asked = self.tail.asks();
        let loaded = limited(LOAD_LIMIT, self.backend.load(self.cache.kinds())).await?;
        let end = loaded.head.revision;
        let same = *self.cache.identity() == loaded.head.identity && end >= self.cache.position().revision;
        if load == Load::Again && !same {
            return self.begin_epoch(&loaded.head.identity).await.map(Some);
        }
        let prefill = Revision::try_from(self.settings.prefill).unwrap_or(Revision::MAX);
        let floor = loaded.head.oldest.max(end.saturating_sub(prefill));
        let recent = self.recent(floor, end, &loaded.head.identity).await?;
        // Compaction may have moved on meanwhile; what is contiguous up to the end is kept.
        let floor = recent.first().map_or(end, |row| row.change.revision - 1);
        if load == Load::First {
            *self.tail.home.lock() = Home::Open { until: Instant::now() + self.settings.vouch };
        }
        self.cache.replace(loaded, recent, floor, load == Load::NewEra);
        self.tail.answered(asked);
        Ok(None)
    }

    /// Rows after `floor` up to `end`: a contiguous stretch that ends there, possibly shorter.
    async fn recent(
        &self,
        floor: Revision,
        end: Revision,
        identity: &Identity,
    ) -> Result<Vec<LogRow>, BackendError> {
        let mut rows: Vec<LogRow> = Vec::new();
        let mut after = floor;
        while after < end {
            let fewest = self.stretch.load(Ordering::Relaxed) == LEAST_STRETCH;
            let read = match self.changes(after).await {
                Ok((read, _)) => read,
                Err(_) if !fewest => continue,
                Err(error) => {
                    tracing::warn!(error = %error, after, end, "store.tail.no_past");
                    return Ok(Vec::new());
                }
            };
            if read.head.identity != *identity {
                return Err(BackendError::Unavailable("the database changed during the load".into()));
            }
            if read.head.oldest > after {
                rows.clear();
            }
            rows.extend(read.rows.into_iter().filter(|row| row.change.revision <= end));
            let Some(last) = rows.last() else { break };
            after = last.change.revision;
        }
        let contiguous = rows.first().is_none_or(|first| {
            rows.iter().zip(first.change.revision..).all(|(row, next)| row.change.revision == next)
                && after == end
        });
        if !contiguous {
            self.cache.metrics.holes.add(1);
            rows.clear();
        }
        Ok(rows)
    }

    /// The next rows, and whether there may be more of them.
    async fn changes(&self, after: Revision) -> Result<(Changes, bool), BackendError> {
        let stretch = self.stretch.load(Ordering::Relaxed);
        let read = limited(READ_LIMIT, self.backend.changes(after, stretch)).await;
        let next = if read.is_ok() { stretch * 2 } else { stretch / 4 };
        self.stretch.store(next.clamp(LEAST_STRETCH, STRETCH), Ordering::Relaxed);
        read.map(|read| {
            let full = read.rows.len() >= stretch;
            (read, full)
        })
    }

    async fn read_on(&self) -> Result<Reading, BackendError> {
        loop {
            let position = self.cache.position();
            let asked = self.tail.asks();
            let (read, full) = self.changes(position.revision).await?;
            if let Some(found) = self.lost(&position, &read) {
                return Ok(Reading::Lost(found));
            }
            self.cache.heard_oldest(read.head.oldest);
            if read.head.oldest > position.revision {
                return Ok(Reading::FellBehind);
            }
            self.cache.metrics.tail_rows.add(read.rows.len() as u64);
            self.tail.answered(asked);
            // The head is of the same moment as the rows: without a hole the rows lead up to it.
            let end = read.rows.last().map_or(position.revision, |row| row.change.revision);
            let _delivered = deliveries(&read.rows, asked.elapsed());
            if self.cache.apply(&read.rows).is_err() || (!full && end < read.head.revision) {
                return Ok(Reading::Hole);
            }
            if !full {
                return Ok(Reading::Current);
            }
        }
    }

    /// The identity found, if the log is not the one that the cache was built from.
    fn lost(&self, position: &Position, read: &Changes) -> Option<Identity> {
        let same_row = match (position.fingerprint, read.anchor) {
            (Some(known), Some(found)) => known == found,
            (Some(_), None) => read.head.oldest >= position.revision,
            (None, _) => true,
        };
        let same = *self.cache.identity() == read.head.identity
            && read.head.revision >= position.revision
            && same_row;
        (!same).then(|| read.head.identity.clone())
    }
}

/// Spans of the changes that were read, of those that are traced: each ends when its change is on the cache.
fn deliveries(rows: &[LogRow], took: Duration) -> Vec<Span> {
    if !horchestra_trace::enabled() {
        return Vec::new();
    }
    let now = jiff::Timestamp::now().as_microsecond();
    let traced = rows.iter().filter(|row| row.who.trace.is_some_and(|trace| trace.span.is_some()));
    let delivery = |row: &LogRow| {
        let span = horchestra_trace::child_since("deliver", Role::Consumer, row.who.trace, took);
        let key = row.change.key();
        span.set(|| {
            [
                attribute("horchestra.kind", key.kind.name()),
                attribute("horchestra.namespace", key.namespace.clone()),
                attribute("horchestra.name", key.name.clone()),
                attribute("horchestra.revision", row.change.revision),
                // By the clocks of two machines.
                attribute("horchestra.age_us", (now - row.at).max(0)),
            ]
        });
        span
    };
    traced.map(delivery).collect()
}

async fn limited<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(BackendError::Unavailable("no answer".into())))
}

/// Between 0.8 and 1.2 times the duration, so that processes started together do not ask together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    duration.mul_f64(0.8 + 0.0004 * random as f64)
}
