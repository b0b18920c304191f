//! The committer: one task per process that sends this process's writes to the database in batches.
//!
//! # What it guarantees
//!
//! * Every caller gets the result of its own item. A refused neighbour, a neighbour that the database
//!   cannot digest, a neighbour that hung up: none of them changes it.
//! * No timer: what has queued up while the batch before was under way goes together. A lone write goes at
//!   once, alone.
//! * A batch means what its items one by one would mean; it ends at the first item for which that is
//!   not sure ([`crate::batch`]).
//! * The queue is bounded; beyond it callers are told to come back ([`CommitError::Busy`]).
//! * If the answer of a batch is lost, its outcome is looked up before anybody is told anything. An attempt
//!   that is shown not to have happened is void for good (it cannot arrive late), so it may be repeated.
//!   Only if the database stays silent is a caller told that the outcome is not known. Others do not wait
//!   for that: the next batch goes on meanwhile.
//! * A caller that drops its future before its item was sent withdraws it; after that the item is committed
//!   or refused all the same, and nobody is told.
//! * What was committed is put on this process's cache before the caller is answered, where it continues
//!   the cache; otherwise the tail is woken.
//! * An item that was made in a recorded trace is stored with the span of its commit, so that whoever acts because
//!   of the change goes on from there. The span of a batch has links to those of its items, and they to it.
//!
//! # What was refused
//!
//! A timer that waits for company (a lone write would pay for it), several batches in flight (they would
//! only wait for each other at the ordering lock), fairness between users (the API bounds what one caller
//! may have in flight).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use horchestra_trace::{Role, Span, attribute};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use horchestra_core::kind::Key;

use crate::backend::{Backend, BackendError, Done};
use crate::batch::{Batch, MAX_ITEMS};
use crate::cache::Cache;
use crate::metrics::StoreMetrics;
use crate::tail::Tail;
use crate::types::{CommitError, Committed, Item};

/// A batch that was not answered by then counts as lost.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
/// How often a batch whose answer was lost is sent again.
const ATTEMPTS: u32 = 3;

type Outcome = Result<Committed, CommitError>;

struct Pending {
    item: Item,
    reply: Reply,
}

/// To whom an outcome goes.
struct Reply {
    sender: oneshot::Sender<Outcome>,
    span: Span,
}

/// The end that callers hold.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: mpsc::Sender<Pending>,
    metrics: Arc<StoreMetrics>,
}

impl Queue {
    /// How many items wait, and how many may.
    pub fn length(&self) -> (usize, usize) {
        let limit = self.sender.max_capacity();
        (limit - self.sender.capacity(), limit)
    }

    pub async fn commit(&self, mut item: Item) -> Outcome {
        item.check().map_err(CommitError::Rejected)?;
        let began = Instant::now();
        let (sender, outcome) = oneshot::channel();
        let reply = Reply { sender, span: span_of(&mut item) };
        self.sender.try_send(Pending { item, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.metrics.busy.add(1);
                CommitError::Busy
            }
            mpsc::error::TrySendError::Closed(_) => CommitError::Unavailable,
        })?;
        // Without an answer the committer ended: what it had sent may have been committed.
        let outcome = outcome.await.unwrap_or(Err(CommitError::Unknown));
        self.metrics.commit_time.record_time(began.elapsed());
        match &outcome {
            Ok(_) => self.metrics.committed.add(1),
            Err(CommitError::Refused(_)) => self.metrics.refused.add(1),
            Err(_) => {}
        }
        outcome
    }
}

/// The end that sends batches.
pub(crate) struct Committer {
    queue: mpsc::Receiver<Pending>,
    sender: Arc<Sender>,
    tracker: TaskTracker,
}

/// A queue of `capacity` waiting items, and the committer that empties it.
pub(crate) fn channel(capacity: usize, sender: Sender, tracker: TaskTracker) -> (Queue, Committer) {
    let (queued, queue) = mpsc::channel(capacity);
    let metrics = Arc::clone(&sender.metrics);
    (Queue { sender: queued, metrics }, Committer { queue, sender: Arc::new(sender), tracker })
}

impl Committer {
    /// Runs until `stop`, and then until the queue is empty.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut waiting: VecDeque<Pending> = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let next = tokio::select! {
                    biased;
                    next = self.queue.recv() => next,
                    () = stop.cancelled(), if !self.queue.is_closed() => {
                        self.queue.close();
                        continue;
                    }
                };
                let Some(next) = next else { return };
                waiting.push_back(next);
            }
            while waiting.len() < MAX_ITEMS
                && let Ok(next) = self.queue.try_recv()
            {
                waiting.push_back(next);
            }
            waiting.retain(|pending| !pending.reply.sender.is_closed());
            let mut batch = Batch::default();
            let fits = waiting.iter().take_while(|pending| batch.admit(&pending.item)).count();
            if fits > 0 {
                let (items, replies) =
                    waiting.drain(..fits).map(|pending| (pending.item, pending.reply)).unzip();
                self.send(items, replies).await;
                // Lets callers that were just answered queue their next write: otherwise they always miss
                // the batch that starts now, and two half-empty batches take turns.
                tokio::task::yield_now().await;
            }
        }
    }

    async fn send(&self, items: Vec<Item>, replies: Vec<Reply>) {
        let traces = items.iter().filter_map(|item| item.who.trace);
        let batch = horchestra_trace::linked("commit batch", Role::Client, traces);
        batch.set(|| {
            let operations: usize = items.iter().map(|item| item.ops.len()).sum();
            [
                attribute("db.operation.batch.size", count(items.len())),
                attribute("horchestra.operations", count(operations)),
            ]
        });
        match batch.around(self.sender.send(&items)).await {
            Sent::Known(outcomes) => answer(replies, outcomes, &batch),
            Sent::Lost(nonce) => {
                let sender = Arc::clone(&self.sender);
                self.tracker.spawn(async move {
                    let outcomes = batch.around(sender.settle(&items, nonce, ATTEMPTS)).await;
                    answer(replies, outcomes, &batch);
                });
            }
        }
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The span of a commit, which the change then carries.
fn span_of(item: &mut Item) -> Span {
    let span = horchestra_trace::child("commit", Role::Producer, item.who.trace);
    if let Some(trace) = span.trace() {
        item.who.trace = Some(trace);
        span.set(|| {
            let key = item.ops.iter().find_map(|op| op.key());
            let text = |text: fn(&Key) -> &str| key.map(text).unwrap_or_default().to_owned();
            [
                attribute("horchestra.verb", item.who.verb.clone()),
                attribute("horchestra.kind", text(|key| key.kind.name())),
                attribute("horchestra.namespace", text(|key| &key.namespace)),
                attribute("horchestra.name", text(|key| &key.name)),
            ]
        });
    }
    span
}

fn answer(replies: Vec<Reply>, outcomes: Vec<Outcome>, batch: &Span) {
    let size = count(replies.len());
    for (Reply { sender, span }, outcome) in replies.into_iter().zip(outcomes) {
        if let Some(batch) = batch.trace() {
            span.link(batch);
        }
        match &outcome {
            Ok(done) => span.set(|| {
                let revision = done.revisions.iter().copied().max().unwrap_or_default();
                [attribute("horchestra.batch.size", size), attribute("horchestra.revision", revision)]
            }),
            Err(error) => {
                span.set(|| [attribute("horchestra.batch.size", size)]);
                span.fail(|| error.to_string().into());
            }
        }
        // It has ended before its caller goes on. A caller that went away needs no answer.
        drop(span);
        let _ = sender.send(outcome);
    }
}

enum Sent {
    Known(Vec<Outcome>),
    /// The answer to the attempt with this nonce was lost.
    Lost(Uuid),
}

/// Sends batches and finds out what became of them.
pub(crate) struct Sender {
    pub backend: Arc<dyn Backend>,
    pub cache: Arc<Cache>,
    pub tail: Arc<Tail>,
    pub metrics: Arc<StoreMetrics>,
    /// How long the outcome of a lost batch is asked for.
    pub settle_limit: Duration,
}

impl Sender {
    /// Sends the items, splitting the batch for as long as the database rejects it.
    fn send<'a>(&'a self, items: &'a [Item]) -> BoxFuture<'a, Sent> {
        async move {
            let nonce = Uuid::new_v4();
            let began = Instant::now();
            self.metrics.batch_items.record(items.len() as u64);
            self.tail.batch_sent();
            let answer = timeout(ANSWER_LIMIT, self.backend.commit(items, nonce)).await;
            self.metrics.batch_time.record_time(began.elapsed());
            if let Ok(Ok(done)) = &answer {
                self.show(items, done);
            }
            self.tail.batch_answered();
            match answer {
                Ok(Ok(done)) => {
                    let outcomes = done.items.into_iter().map(|result| result.map_err(CommitError::from));
                    Sent::Known(outcomes.collect())
                }
                Ok(Err(BackendError::Unavailable(_))) => Sent::Known(all(items, &self.away())),
                Ok(Err(BackendError::Unknown(_))) | Err(_) => Sent::Lost(nonce),
                Ok(Err(BackendError::Rejected(reason))) => match items {
                    [_] => Sent::Known(all(items, &CommitError::Rejected(reason))),
                    _ => self.halve(items).await,
                },
            }
        }
        .boxed()
    }

    /// What is told of a batch that certainly was not stored.
    fn away(&self) -> CommitError {
        self.backend.unwritable().map_or(CommitError::Unavailable, CommitError::from)
    }

    async fn halve(&self, items: &[Item]) -> Sent {
        self.metrics.bisected.add(1);
        let (first, second) = items.split_at(items.len() / 2);
        let mut outcomes = Vec::with_capacity(items.len());
        for half in [first, second] {
            outcomes.extend(match self.send(half).await {
                Sent::Known(outcomes) => outcomes,
                Sent::Lost(nonce) => self.settle(half, nonce, ATTEMPTS).await,
            });
        }
        Sent::Known(outcomes)
    }

    /// Finds out what became of a lost attempt, and tries again what did not happen.
    fn settle<'a>(&'a self, items: &'a [Item], nonce: Uuid, attempts: u32) -> BoxFuture<'a, Vec<Outcome>> {
        async move {
            self.metrics.settled.add(1);
            let deadline = Instant::now() + self.settle_limit;
            let found = loop {
                match timeout(ANSWER_LIMIT, self.backend.settle(nonce)).await {
                    Ok(Ok(found)) => break found,
                    _ if Instant::now() >= deadline => return all(items, &CommitError::Unknown),
                    _ => sleep(SETTLE_PAUSE).await,
                }
            };
            self.tail.nudge();
            let found = found.unwrap_or_else(|| vec![None; items.len()]);
            let again: Vec<Item> = items
                .iter()
                .zip(&found)
                .filter(|(_, found)| found.is_none())
                .map(|(item, _)| item.clone())
                .collect();
            let mut repeated = self.again(&again, attempts).await.into_iter();
            let outcome = |found: Option<Committed>| match found {
                Some(committed) => Ok(committed),
                None => repeated.next().unwrap_or(Err(CommitError::Unavailable)),
            };
            found.into_iter().map(outcome).collect()
        }
        .boxed()
    }

    /// Sends items of which it is certain that nothing was stored.
    async fn again(&self, items: &[Item], attempts: u32) -> Vec<Outcome> {
        if items.is_empty() || attempts == 0 {
            return all(items, &CommitError::Unavailable);
        }
        match self.send(items).await {
            Sent::Known(outcomes) => outcomes,
            Sent::Lost(nonce) => self.settle(items, nonce, attempts - 1).await,
        }
    }

    /// Puts what was committed on the cache, or makes the tail read it.
    fn show(&self, items: &[Item], done: &Done) {
        let committed: Vec<Option<&Committed>> =
            done.items.iter().map(|result| result.as_ref().ok()).collect();
        let mut revisions = committed.iter().flatten().flat_map(|done| &done.revisions);
        if revisions.all(|revision| *revision == 0) {
            return;
        }
        if self.cache.apply_own(done.anchor, items, &committed) {
            self.metrics.applied_directly.add(1);
        } else {
            self.tail.nudge();
        }
    }
}

fn all(items: &[Item], error: &CommitError) -> Vec<Outcome> {
    items.iter().map(|_| Err(error.clone())).collect()
}
