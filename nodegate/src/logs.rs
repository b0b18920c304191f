//! Reading logs from nodes, through the sessions of this process.
//!
//! Guarantees: a reader that does not read costs its own log lines and nothing else. Each log has a buffer
//! of [`BUFFER_CHUNKS`]; what does not fit is dropped and counted, and the count comes with the next piece
//! that fits. A piece is a copy of at most [`PIECE_BYTES`]: what a node sends in larger ones is cut into such,
//! and nothing that waits keeps the message alive that it came in. A reader that takes nothing for a while is cut off. A slot in the gateway's budget is given back
//! exactly once, when the reader's half is dropped; the node is told to stop if it has not come to the end by
//! itself. Ids are never used twice, since an agent cannot cancel the earlier of two requests of one id.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use horchestra_proto::node::v1::{LogCancel, LogChunk, LogRequest, controller_message::Body};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use crate::app_status::cut;
use crate::gate::Gate;
use crate::session::Session;

/// Pieces that wait for a reader, of at most [`PIECE_BYTES`] each.
pub const BUFFER_CHUNKS: usize = 64;

/// What agents send at most in one piece.
pub const PIECE_BYTES: usize = 8 << 10;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Application(Uuid),
    /// The agent's own log.
    NodeUnit,
}

/// How a log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It came to its end.
    Eof,
    /// The node could not open or continue it.
    NodeError(String),
    /// The session ended.
    Disconnected,
    /// The reader took nothing for too long.
    Stalled,
}

/// A piece of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub data: Bytes,
    /// Pieces dropped right before this one.
    pub dropped: u64,
}

/// A log could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("too many logs are being read through this gateway")]
    Full,
    #[error("the node takes no request now")]
    NotTaken,
}

struct Sink {
    pieces: mpsc::Sender<Piece>,
    end: Arc<Mutex<Option<(End, u64)>>>,
    dropped: u64,
    full_since: Option<Instant>,
}

impl Sink {
    fn finish(self, end: End) {
        // Dropping the sender afterwards is what the reader notices.
        *self.end.lock() = Some((end, self.dropped));
    }
}

/// The logs that are read through one session.
#[derive(Default)]
pub struct SessionLogs {
    sinks: Mutex<HashMap<String, Sink>>,
}

/// The budget of this process.
#[derive(Debug)]
pub struct LogBudget {
    limit: usize,
    open: AtomicUsize,
    next_id: AtomicU64,
}

impl LogBudget {
    pub fn new(limit: usize) -> LogBudget {
        LogBudget { limit, open: AtomicUsize::new(0), next_id: AtomicU64::new(1) }
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn take(self: &Arc<Self>) -> Option<Slot> {
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < self.limit).then_some(open + 1))
            .ok()
            .map(|_| Slot(Arc::clone(self)))
    }
}

/// One log's share of the budget.
struct Slot(Arc<LogBudget>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The reader's half of a log.
pub struct LogReader {
    id: String,
    session: Arc<Session>,
    pieces: mpsc::Receiver<Piece>,
    end: Arc<Mutex<Option<(End, u64)>>>,
    _slot: Slot,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Piece(Piece),
    /// Last, with the number of pieces dropped before it.
    End(End, u64),
}

impl Gate {
    /// Asks the node of `session` for a log. Waits until the request is on its way.
    pub async fn open_log(
        &self,
        session: &Arc<Session>,
        source: Source,
        follow: bool,
        tail_lines: i64,
    ) -> Result<LogReader, OpenError> {
        let slot = self.logs.take().ok_or(OpenError::Full)?;
        let id = self.logs.next_id.fetch_add(1, Ordering::Relaxed).to_string();
        let (sender, pieces) = mpsc::channel(BUFFER_CHUNKS);
        let end = Arc::default();
        let sink = Sink { pieces: sender, end: Arc::clone(&end), dropped: 0, full_since: None };
        session.logs.sinks.lock().insert(id.clone(), sink);
        // From here on dropping the reader cleans up.
        let reader = LogReader { id: id.clone(), session: Arc::clone(session), pieces, end, _slot: slot };
        if session.has_ended() {
            return Err(OpenError::NotTaken);
        }
        let (app, node_unit) = match source {
            Source::Application(uid) => (uid.as_hyphenated().to_string(), false),
            Source::NodeUnit => (String::new(), true),
        };
        let request = LogRequest { id, app, follow, tail_lines: tail_lines.max(0), node_unit };
        let taken =
            session.outbound.control(Body::LogRequest(request).into()).map_err(|_| OpenError::NotTaken)?;
        match tokio::time::timeout(self.settings.log_open_timeout, taken).await {
            Ok(Ok(())) => {
                self.metrics.logs_opened.inc();
                Ok(reader)
            }
            _ => Err(OpenError::NotTaken),
        }
    }

    /// Hands a piece of a log to its reader. Never waits; of an unknown id it does nothing.
    pub fn log_chunk(&self, session: &Session, chunk: LogChunk) {
        let mut sinks = session.logs.sinks.lock();
        let Some(sink) = sinks.get_mut(&chunk.id) else { return };
        let ends = chunk.eof || !chunk.error.is_empty();
        let mut stalled = false;
        for part in chunk.data.chunks(PIECE_BYTES) {
            match sink.pieces.try_reserve() {
                Ok(place) => {
                    place.send(Piece { data: Bytes::copy_from_slice(part), dropped: sink.dropped });
                    sink.dropped = 0;
                    sink.full_since = None;
                    stalled = false;
                }
                Err(mpsc::error::TrySendError::Full(())) => {
                    sink.dropped += 1;
                    self.metrics.log_chunks_dropped.inc();
                    let since = *sink.full_since.get_or_insert_with(Instant::now);
                    stalled = since.elapsed() >= self.settings.log_stall;
                }
                // The reader is being dropped, which removes the entry.
                Err(mpsc::error::TrySendError::Closed(())) => {}
            }
        }
        if !ends && !stalled {
            return;
        }
        let Some(sink) = sinks.remove(&chunk.id) else { return };
        drop(sinks);
        if ends {
            sink.finish(if chunk.error.is_empty() { End::Eof } else { End::NodeError(cut(&chunk.error)) });
        } else {
            sink.finish(End::Stalled);
            cancel(session, chunk.id);
        }
    }

    /// Ends the logs of a session that has ended.
    pub fn close_logs(&self, session: &Session) {
        for (_, sink) in session.logs.sinks.lock().drain() {
            sink.finish(End::Disconnected);
        }
    }
}

fn cancel(session: &Session, id: String) {
    // Refused only when the session has ended or its node takes nothing at all.
    let _ = session.outbound.control(Body::LogCancel(LogCancel { id }).into());
}

impl Stream for LogReader {
    type Item = Read;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Read>> {
        match self.pieces.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(piece)) => Poll::Ready(Some(Read::Piece(piece))),
            Poll::Ready(None) => {
                Poll::Ready(self.end.lock().take().map(|(end, dropped)| Read::End(end, dropped)))
            }
        }
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        let running = self.session.logs.sinks.lock().remove(&self.id).is_some();
        if running {
            cancel(&self.session, std::mem::take(&mut self.id));
        }
    }
}
