//! Asking for the current revision on behalf of many readers at once.
//!
//! A reader that wants the current state needs to know a revision that is not older than any write
//! acknowledged before the reader came. So it may share a query with other readers, but only one that
//! **starts after** it arrived: an answer under way may have been computed before a write that this reader
//! knows of. One task asks; whoever arrives during a query waits for the next. A query is never waited for
//! by more than those that came before it, and there is at most one under way per process.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, Head};
use crate::metrics::StoreMetrics;

type Waiting = oneshot::Sender<Option<Head>>;

/// Where readers queue up.
#[derive(Clone)]
pub(crate) struct Asker {
    readers: mpsc::UnboundedSender<Waiting>,
}

impl Asker {
    /// The current head, or `None` if the database does not answer.
    pub async fn ask(&self) -> Option<Head> {
        let (reader, answer) = oneshot::channel();
        self.readers.send(reader).ok()?;
        answer.await.ok().flatten()
    }
}

/// The queue and its other end, for [`run`]. It is bounded by its readers: each waits for its answer.
pub(crate) fn channel() -> (Asker, mpsc::UnboundedReceiver<Waiting>) {
    let (readers, queue) = mpsc::unbounded_channel();
    (Asker { readers }, queue)
}

/// Answers readers until `stop`.
pub(crate) async fn run(
    mut queue: mpsc::UnboundedReceiver<Waiting>,
    backend: Arc<dyn Backend>,
    limit: Duration,
    metrics: Arc<StoreMetrics>,
    stop: CancellationToken,
) {
    let mut waiting = Vec::new();
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = queue.recv_many(&mut waiting, usize::MAX) => received,
        };
        if received == 0 {
            return;
        }
        // Everybody in `waiting` is here before the query starts; whoever comes now is in the queue.
        metrics.head_queries.add(1);
        metrics.fresh_reads.add(received as u64);
        let head = tokio::select! {
            () = stop.cancelled() => return,
            head = timeout(limit, backend.head()) => head.ok().and_then(Result::ok),
        };
        for reader in waiting.drain(..) {
            // A reader that went away needs no answer.
            let _ = reader.send(head.clone());
        }
    }
}
