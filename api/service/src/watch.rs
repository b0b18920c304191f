//! Watches.

use crate::request::WatchEvent;

/// An open watch.
pub struct Watch {
    pub(crate) pending: std::collections::VecDeque<WatchEvent>,
}

impl Watch {
    /// The next event; `None` when the stream has ended. Cancelling the future loses nothing.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.pending.pop_front()
    }

    /// The revision up to which everything was handed out, for a last bookmark; `None` before the stream
    /// has come that far (initial events still pending).
    pub fn progress(&self) -> Option<horchestra_store::Revision> {
        None
    }

    /// The events as a stream.
    pub fn into_stream(self) -> impl futures::Stream<Item = WatchEvent> + Send + 'static {
        futures::stream::unfold(self, |mut watch| async move {
            let event = watch.next().await?;
            Some((event, watch))
        })
    }
}
