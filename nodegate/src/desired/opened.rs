//! Secrets in the clear, for as short a time as is reasonable.
//!
//! A Secret is opened when a push needs it. What was opened is kept, since one Secret is often used by many nodes and
//! every push of a node carries all of its Secrets; but no more than a certain amount, none that nobody has asked for
//! for a while, and none that has changed since. What is let go of is wiped once the last message with it has been
//! handed to the transport; what the transport and TLS have copied by then is beyond reach here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use horchestra_core::kind::Key;
use horchestra_core::object::Object;
use horchestra_service::Service;
use horchestra_service::sealing::Unusable;
use horchestra_store::Entry;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use zeroize::{Zeroize, Zeroizing};

use super::form::without_bookkeeping;

/// How long something is kept that nobody asks for.
const KEPT: Duration = Duration::from_secs(600);

struct Kept {
    /// What it was opened from.
    entry: Arc<Entry>,
    bytes: Bytes,
    used: Instant,
}

#[derive(Default)]
struct State {
    kept: HashMap<Key, Kept>,
    size: usize,
}

/// What was opened.
pub struct Opened {
    state: Mutex<State>,
    /// Bytes that are kept at most.
    limit: usize,
}

impl Opened {
    pub fn new(limit: usize) -> Opened {
        Opened { state: Mutex::default(), limit }
    }

    /// A Secret as nodes are sent it.
    pub fn get(&self, service: &Service, entry: &Arc<Entry>) -> Result<Bytes, Unusable> {
        let now = Instant::now();
        if let Some(kept) = self.state.lock().kept.get_mut(&entry.key)
            && Arc::ptr_eq(&kept.entry, entry)
        {
            kept.used = now;
            return Ok(kept.bytes.clone());
        }
        let bytes = wire_bytes(service, entry)?;
        self.state
            .lock()
            .keep(Kept { entry: Arc::clone(entry), bytes: bytes.clone(), used: now }, self.limit);
        Ok(bytes)
    }

    /// Lets go of what nobody has asked for for a while, now and then until `stop`.
    pub async fn sweep(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(sleep(KEPT / 2)).await.is_some() {
            self.state.lock().drop_stale(Instant::now());
        }
    }

    /// The Secret is another by now, or gone.
    pub fn forget(&self, key: &Key) {
        self.state.lock().remove(key);
    }

    /// How many bytes are kept.
    pub fn size(&self) -> usize {
        self.state.lock().size
    }
}

impl State {
    fn keep(&mut self, new: Kept, limit: usize) {
        let key = new.entry.key.clone();
        self.remove(&key);
        if new.bytes.len() > limit {
            return;
        }
        self.drop_stale(new.used);
        while self.size + new.bytes.len() > limit {
            let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone())
            else {
                break;
            };
            self.remove(&oldest);
        }
        self.size += new.bytes.len();
        self.kept.insert(key, new);
    }

    fn drop_stale(&mut self, now: Instant) {
        let stale = |kept: &Kept| now.saturating_duration_since(kept.used) > KEPT;
        let old: Vec<Key> =
            self.kept.iter().filter(|(_, kept)| stale(kept)).map(|(key, _)| key.clone()).collect();
        for key in old {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(gone) = self.kept.remove(key) {
            self.size -= gone.bytes.len();
        }
    }
}

fn wire_bytes(service: &Service, entry: &Entry) -> Result<Bytes, Unusable> {
    let mut object = service.open_object(entry)?;
    // What was applied last repeats the values.
    without_bookkeeping(&mut object);
    // The stored form is larger, so nothing grows: what a growing buffer leaves behind would not be wiped.
    let bytes = wiped_bytes(&mut object, entry.body.len() + 256);
    for value in object.0.values_mut() {
        wipe(value);
    }
    bytes.ok_or(Unusable::Shape)
}

fn wiped_bytes(object: &mut Object, capacity: usize) -> Option<Bytes> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    serde_json::to_writer(&mut *bytes, &object.0).ok()?;
    Some(Bytes::from_owner(bytes))
}

/// Overwrites every text in a tree.
pub(super) fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(values) => values.iter_mut().for_each(wipe),
        Value::Object(members) => members.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use horchestra_core::kind::Kind;
    use horchestra_store::{Columns, Draft, Index};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn kept(name: &str, size: usize, used: Instant) -> Kept {
        let draft = Draft {
            key: Key::namespaced(Kind::Secret, "shop", name),
            uid: Uuid::from_u128(7),
            generation: 1,
            deleting: false,
            body: Bytes::new(),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        let bytes = Bytes::from(vec![b'x'; size]);
        Kept { entry: Arc::new(Entry::new(draft, 1, 1)), bytes, used }
    }

    #[test]
    fn no_more_is_kept_than_is_allowed_and_nothing_for_long() {
        let mut state = State::default();
        let start = Instant::now();
        let later = |seconds: u64| start + Duration::from_secs(seconds);
        let names = |state: &State| {
            let mut names: Vec<String> = state.kept.keys().map(|key| key.name.clone()).collect();
            names.sort();
            names.join(" ")
        };
        for (what, new, expected, size) in [
            ("the first", kept("a", 40, start), "a", 40),
            ("another", kept("b", 40, later(1)), "a b", 80),
            ("the same again, larger", kept("a", 50, later(2)), "a b", 90),
            ("one too many: what was asked for least lately goes", kept("c", 30, later(3)), "a c", 80),
            ("one that is larger than all there may be", kept("d", 101, later(4)), "a c", 80),
            ("after a long time", kept("e", 10, later(1000)), "e", 10),
        ] {
            state.keep(new, 100);
            assert_eq!((names(&state).as_str(), state.size), (expected, size), "{what}");
        }
        state.remove(&Key::namespaced(Kind::Secret, "shop", "e"));
        assert_eq!(state.size, 0);
    }

    #[test]
    fn every_text_of_a_tree_is_wiped() {
        let mut tree = json!({"a": "hunter2", "b": ["hunter2", {"c": "hunter2"}], "d": 7});
        wipe(&mut tree);
        assert_eq!(tree, json!({"a": "", "b": ["", {"c": ""}], "d": 7}));
    }
}
