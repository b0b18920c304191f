//! When a connection last had something to do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Counts the requests of a connection, up to the last byte of each answer.
#[derive(Debug)]
pub struct Activity {
    running: AtomicUsize,
    quiet_since: Mutex<Instant>,
}

/// One running request.
#[derive(Debug)]
pub struct Running(Arc<Activity>);

impl Activity {
    pub fn new() -> Arc<Activity> {
        Arc::new(Activity { running: AtomicUsize::new(0), quiet_since: Mutex::new(Instant::now()) })
    }

    pub fn enter(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::SeqCst);
        Running(Arc::clone(self))
    }

    /// How long nothing has been running; zero while something is.
    pub fn idle(&self) -> Duration {
        if self.running.load(Ordering::SeqCst) > 0 {
            Duration::ZERO
        } else {
            self.quiet_since.lock().elapsed()
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.quiet_since.lock() = Instant::now();
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body that keeps something until it was sent or dropped.
#[derive(Debug)]
pub struct Held<B, G> {
    body: B,
    _held: G,
}

impl<B, G> Held<B, G> {
    pub fn new(body: B, held: G) -> Held<B, G> {
        Held { body, _held: held }
    }
}

impl<B: Body + Unpin, G: Unpin> Body for Held<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
