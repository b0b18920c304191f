//! What goes down to a node.
//!
//! Guarantees: nobody who has something to send ever waits. A desired state replaces the one that has not
//! been taken yet (a push replaces everything before it, so the older one is worth nothing); control
//! messages (log requests and cancels) queue ahead of it, bounded; the first end wins and nothing is sent
//! after it. What a session remembers as "sent" is recorded at the moment a push is handed to the
//! transport, not when it was offered.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::task::AtomicWaker;
use horchestra_proto::node::v1::ControllerMessage;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::outgoing::{Outgoing, Whole};

/// Control messages that may wait for a node that does not read. Each log stream needs two at most.
const CONTROL_LIMIT: usize = 1024;

/// A desired state on its way down, and what runs when it is taken.
pub struct Push {
    pub message: Whole,
    pub on_taken: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct State {
    control: VecDeque<(ControllerMessage, Option<oneshot::Sender<()>>)>,
    desired: Option<Push>,
    end: Option<Result<(), Status>>,
}

/// The sending half.
#[derive(Default)]
pub struct Outbound {
    state: Mutex<State>,
    waker: AtomicWaker,
    gone: CancellationToken,
}

/// The queue of control messages is full, or the stream has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct NotTaken;

impl Outbound {
    /// Offers a desired state; one that still waits is dropped.
    pub fn offer(&self, push: Push) {
        self.state.lock().desired = Some(push);
        self.waker.wake();
    }

    /// Queues a control message. The receiver resolves when the transport has taken it.
    pub fn control(&self, message: ControllerMessage) -> Result<oneshot::Receiver<()>, NotTaken> {
        let (taken, was_taken) = oneshot::channel();
        let mut state = self.state.lock();
        if state.end.is_some() || state.control.len() >= CONTROL_LIMIT {
            return Err(NotTaken);
        }
        state.control.push_back((message, Some(taken)));
        drop(state);
        self.waker.wake();
        Ok(was_taken)
    }

    /// Ends the stream with this outcome, unless it has ended already. Returns whether this call did it.
    pub fn end(&self, outcome: Result<(), Status>) -> bool {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return false;
        }
        state.end = Some(outcome);
        state.desired = None;
        state.control.clear();
        drop(state);
        self.waker.wake();
        true
    }

    /// Resolves when the transport has let go of the stream.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

/// The receiving half, which the transport polls. `on_drop` runs when the transport lets go of it.
pub struct Downstream {
    outbound: Arc<Outbound>,
    finished: bool,
    on_drop: Option<Box<dyn FnOnce() + Send>>,
}

impl Downstream {
    pub fn new(outbound: Arc<Outbound>, on_drop: impl FnOnce() + Send + 'static) -> Downstream {
        Downstream { outbound, finished: false, on_drop: Some(Box::new(on_drop)) }
    }
}

impl Stream for Downstream {
    type Item = Result<Outgoing, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.finished {
            return Poll::Ready(None);
        }
        self.outbound.waker.register(cx.waker());
        let outbound = Arc::clone(&self.outbound);
        let mut state = outbound.state.lock();
        if let Some(outcome) = &state.end {
            let last = outcome.clone();
            self.finished = true;
            return Poll::Ready(last.err().map(Err));
        }
        if let Some((message, taken)) = state.control.pop_front() {
            if let Some(taken) = taken {
                let _ = taken.send(());
            }
            return Poll::Ready(Some(Ok(message.into())));
        }
        if let Some(push) = state.desired.take() {
            drop(state);
            (push.on_taken)();
            return Poll::Ready(Some(Ok(Outgoing::Desired(push.message))));
        }
        Poll::Pending
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.outbound.gone.cancel();
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use horchestra_proto::node::v1::{DesiredState, LogCancel, controller_message::Body};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn push(apps: usize, taken: &Arc<AtomicUsize>) -> Push {
        let taken = Arc::clone(taken);
        let desired =
            DesiredState { applications: vec![bytes::Bytes::new(); apps], ..DesiredState::default() };
        Push {
            message: Whole { own: desired, shared: Vec::new() },
            on_taken: Box::new(move || {
                taken.fetch_add(1, Ordering::SeqCst);
            }),
        }
    }

    fn cancel(id: &str) -> ControllerMessage {
        Body::LogCancel(LogCancel { id: id.to_owned() }).into()
    }

    #[tokio::test]
    async fn control_goes_first_and_only_the_newest_state_is_taken() {
        let outbound = Arc::new(Outbound::default());
        let taken = Arc::new(AtomicUsize::new(0));
        outbound.offer(push(1, &taken));
        outbound.offer(push(2, &taken));
        let mut was_taken = outbound.control(cancel("a")).unwrap();
        assert!(was_taken.try_recv().is_err(), "not before the transport asks for it");
        let mut down = Downstream::new(Arc::clone(&outbound), || ());
        assert_eq!(down.next().await.unwrap().unwrap(), Outgoing::Control(cancel("a")));
        assert!(was_taken.await.is_ok());
        let Some(Ok(Outgoing::Desired(desired))) = down.next().await else {
            panic!("a desired state");
        };
        assert_eq!((desired.own.applications.len(), taken.load(Ordering::SeqCst)), (2, 1));
    }

    #[tokio::test]
    async fn the_first_end_wins_and_nothing_follows_it() {
        let outbound = Arc::new(Outbound::default());
        let taken = Arc::new(AtomicUsize::new(0));
        outbound.offer(push(1, &taken));
        assert!(outbound.end(Err(Status::aborted("superseded"))));
        assert!(!outbound.end(Ok(())));
        assert_eq!(outbound.control(cancel("a")).unwrap_err(), NotTaken);
        let dropped = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&dropped);
        let mut down = Downstream::new(outbound, move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(down.next().await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
        assert!(down.next().await.is_none());
        drop(down);
        assert_eq!((dropped.load(Ordering::SeqCst), taken.load(Ordering::SeqCst)), (1, 0));
    }

    #[tokio::test]
    async fn a_node_that_does_not_read_fills_a_bounded_queue() {
        let outbound = Outbound::default();
        let waiting: Vec<_> = (0..CONTROL_LIMIT).map(|_| outbound.control(cancel("x")).unwrap()).collect();
        assert_eq!(outbound.control(cancel("x")).unwrap_err(), NotTaken);
        drop(waiting);
    }
}
