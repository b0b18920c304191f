//! Frames of watches, encoded once for all who watch the same thing in the same form.
//!
//! A frame is a function of the change (its revision is unique in one history of the database), of the type under
//! which this watcher sees it, and of the form. Tables show ages, so theirs also depends on the second. The
//! memo is small and forgets the oldest first: watchers that keep up ask for the same revisions at nearly
//! the same time, and for one that lags encoding again is cheaper than keeping everything.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use horchestra_store::Revision;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::http::route::Alias;
use crate::render::Form;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl FrameType {
    const fn word(self) -> &'static str {
        match self {
            FrameType::Added => "ADDED",
            FrameType::Modified => "MODIFIED",
            FrameType::Deleted => "DELETED",
            FrameType::Bookmark => "BOOKMARK",
            FrameType::Error => "ERROR",
        }
    }
}

/// One line of a watch.
pub fn frame(kind: FrameType, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 40);
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.word().as_bytes());
    out.extend_from_slice(br#"","object":"#);
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    Bytes::from(out)
}

/// What makes two frames the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameKey {
    /// A database that is put back gives revisions away a second time, to other changes.
    pub era: u64,
    pub uid: Uuid,
    pub revision: Revision,
    pub kind: FrameType,
    pub form: Form,
    pub alias: Option<Alias>,
    /// Seconds since the epoch for forms that show ages, else 0.
    pub second: i64,
}

#[derive(Default)]
struct Kept {
    frames: HashMap<FrameKey, Bytes>,
    order: VecDeque<FrameKey>,
    bytes: usize,
}

/// The memo.
pub struct Frames {
    limit: usize,
    kept: Mutex<Kept>,
}

impl Frames {
    /// Keeps at most `limit` bytes of frames.
    pub fn new(limit: usize) -> Frames {
        Frames { limit, kept: Mutex::default() }
    }

    /// The frame, and whether it was there already. `make` runs outside the lock, so two watchers may both
    /// make it; the first one is kept.
    pub fn get<E>(&self, key: FrameKey, make: impl FnOnce() -> Result<Bytes, E>) -> Result<(Bytes, bool), E> {
        if let Some(frame) = self.kept.lock().frames.get(&key) {
            return Ok((frame.clone(), true));
        }
        let frame = make()?;
        if frame.len() > self.limit / 8 {
            return Ok((frame, false));
        }
        let mut kept = self.kept.lock();
        if kept.frames.insert(key, frame.clone()).is_none() {
            kept.order.push_back(key);
            kept.bytes += frame.len();
        }
        while kept.bytes > self.limit {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(dropped) = kept.frames.remove(&oldest) {
                kept.bytes -= dropped.len();
            }
        }
        Ok((frame, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::negotiate::Shape;
    use horchestra_core::table::Include;
    use std::convert::Infallible;

    #[test]
    fn frames_are_made_once_and_the_memo_stays_small() {
        let frames = Frames::new(4096);
        let key = |revision| FrameKey {
            era: 0,
            uid: Uuid::nil(),
            revision,
            kind: FrameType::Added,
            form: Form { shape: Shape::Plain, include: Include::Metadata },
            alias: None,
            second: 0,
        };
        let get = |revision| {
            frames
                .get(key(revision), || Ok::<_, Infallible>(frame(FrameType::Added, &[b'1'; 100])))
                .unwrap()
                .1
        };
        assert!(!get(1));
        assert!(get(1));
        for revision in 2..200 {
            assert!(!get(revision));
        }
        assert!(!get(1), "forgotten");
        let kept = frames.kept.lock();
        assert!(kept.bytes <= 4096 && kept.frames.len() == kept.order.len());
        assert_eq!(kept.bytes, kept.frames.values().map(Bytes::len).sum::<usize>());
    }
}
