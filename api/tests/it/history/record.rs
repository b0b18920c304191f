//! What clients were told, with the time between question and answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

/// What an answer says about the history.
#[derive(Clone, Debug)]
pub enum Claim {
    /// This change was made, and by this request.
    Wrote { object: Value, condition: Condition },
    /// The object was so (`None`: there was none).
    Saw { key: String, object: Option<Value>, not_before: i64 },
    /// All objects of these namespaces were so.
    Listed { namespace: Option<String>, revision: i64, objects: BTreeMap<String, Value>, not_before: i64 },
    /// There was an object of that name.
    Existed { key: String },
    /// The object with this uid is gone or going, and was at `condition` when that was decided.
    Deleted { key: String, uid: String, condition: Condition },
    /// The condition did not hold.
    Refused { key: String, condition: Condition },
    /// Whether this write was made is not known.
    Unsure { key: String },
}

/// What a request wanted to be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    None,
    /// Nothing but status had changed since this revision of the object with this uid.
    Unchanged {
        uid: String,
        revision: i64,
    },
    /// The object was at this very revision.
    Exactly(i64),
    /// The object was the one with this uid.
    Uid(String),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Record {
    /// Turns of one clock: what ended before another one began comes before it.
    pub began: u64,
    pub ended: u64,
    pub what: String,
    pub claim: Claim,
}

/// Everything that all clients were told.
#[derive(Default)]
pub struct Records {
    clock: AtomicU64,
    list: Mutex<Vec<Record>>,
}

impl Records {
    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub fn add(&self, began: u64, what: String, claim: Claim) {
        let ended = self.now();
        self.list.lock().push(Record { began, ended, what, claim });
    }

    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.list.lock())
    }
}
