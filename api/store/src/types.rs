//! What goes into the store and what comes out of it.

use std::any::Any;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_trace::Trace;
use uuid::Uuid;

use crate::backend::Unwritable;
use crate::sealing;

/// A position in the one global sequence of changes. The first change of a database is 1; 0 is "before
/// everything".
pub type Revision = i64;

/// What selectors look at, kept beside the body so that nothing has to parse bodies. Both lists are sorted
/// by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    pub labels: Vec<(String, String)>,
    /// Selectable fields by their path, e.g. `("spec.placement.nodeName", "node-1")`.
    pub fields: Vec<(String, String)>,
}

impl Index {
    pub fn label(&self, key: &str) -> Option<&str> {
        lookup(&self.labels, key)
    }

    pub fn field(&self, path: &str) -> Option<&str> {
        lookup(&self.fields, path)
    }
}

fn lookup<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok().map(|at| pairs[at].1.as_str())
}

/// The few facts about an object that SQL (guards, views) needs as columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Application: the node it is placed on. Others: `None`.
    pub node: Option<String>,
    /// `status.phase` where the kind has one.
    pub phase: Option<String>,
    /// Nano-cores. Application: the effective request while it occupies capacity, else 0. Node: its capacity.
    pub cpu: i64,
    /// Bytes; as `cpu`.
    pub memory: i64,
}

/// How one object refers to another; part of what guards read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum Relation {
    /// An Application mounts a PersistentVolume.
    Mounts = 1,
    /// An Application needs a Secret.
    Secret = 2,
    /// An Application uses a Secret if it is there.
    SecretOptional = 3,
    /// An Application names a Service.
    Service = 4,
    /// An Application is placed on a Node.
    Node = 5,
    /// An object is owned by another, whose uid follows its name in `name`, behind a slash.
    Owner = 6,
    /// A binding names a role.
    Role = 7,
}

/// A reference from the object that carries it to `target`. The target need not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    pub relation: Relation,
    pub target: Key,
}

/// An object as a write stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub key: Key,
    pub uid: Uuid,
    pub generation: i64,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Canonical bytes from [`object::encode`].
    pub body: Bytes,
    /// `metadata.managedFields` as JSON, kept apart from the body.
    pub managed: Option<Bytes>,
    pub index: Index,
    pub columns: Columns,
    pub edges: Vec<Edge>,
}

/// Whether an update touches anything but `status`. Status updates move neither the core revision nor the
/// history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Core,
    Status,
}

/// One operation of an [`Item`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key must be free.
    Create(Draft),
    /// The head must be exactly at `expect`. `class` says what changed.
    Update { draft: Draft, expect: Revision, class: Class },
    /// The head must be exactly at `expect`. Takes a revision, releases the object's claims, leaves a
    /// tombstone.
    Delete { key: Key, expect: Revision },
    /// Takes `value` of `space` for `owner` (an object uid); refused while another owner holds it, unless
    /// both claims are shared. Claiming again what one holds is fine. A value that is a number, or a range of
    /// numbers, can be asked for with [`Guard::Unclaimed`].
    Claim { space: String, value: String, owner: Uuid, shared: bool },
    /// Gives back what `owner` holds of `space`; nothing held is fine.
    Release { space: String, owner: Uuid },
}

/// A condition that must hold, under the ordering lock, for the item to be committed. Guards are judged
/// before the item's own operations, except [`Guard::Capacity`], which is judged after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The object exists and is not being deleted.
    Exists(Key),
    /// The head of the object is exactly at this revision (0: it does not exist).
    Unchanged(Key, Revision),
    /// No object of any namespaced kind but Event lives in this namespace.
    NamespaceEmpty(String),
    /// At most `limit` Events live in this namespace: whoever deletes that many deletes them all.
    EventsAtMost { namespace: String, limit: i64 },
    /// No object refers to `target` by `relation`.
    NoEdge { relation: Relation, target: Key },
    /// Nobody but `owner` holds a number of `space` that is in `value`, which is one number (`7`) or a range of
    /// them (`<first>/<count>`). Ranges that are held in one space must not overlap each other.
    Unclaimed { space: String, value: String, owner: Uuid },
    /// At most `limit` objects refer to `target` by `relation`.
    EdgesAtMost { relation: Relation, target: Key, limit: i64 },
    /// After this item, the Applications placed on `node` fit its capacity. `zero_is_unbounded`: a node
    /// that reports no capacity takes anything (writes of authors); else it takes nothing (scheduler).
    Capacity { node: String, zero_is_unbounded: bool },
    /// The node's live session is this one.
    SessionIs { node: String, epoch: i64, session: Uuid },
    /// The lease is held in this epoch.
    LeaseIs { name: String, epoch: i64 },
}

/// Who made a change, kept in the log, the history and tombstones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// User name, `system:loop:<name>` or `system:node:<name>`.
    pub user: String,
    /// The API verb or what comes closest: `create`, `update`, `patch`, `delete`, `bind`, `status`, …
    pub verb: String,
    pub audit_id: Uuid,
    /// The trace that it was made in, where there is one. The log keeps all of it; the history and tombstones keep
    /// the id.
    pub trace: Option<Trace>,
}

/// A small transaction: all operations or none. At most 64 operations; at most one operation per key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub ops: Vec<Op>,
    pub guards: Vec<Guard>,
    pub who: Attribution,
}

/// The first and the last number of a claimed value, if it is one number or a range of them.
pub fn numbers(value: &str) -> Option<(i64, i64)> {
    let number = |text: &str| {
        let digits = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { text.parse::<i64>().ok() } else { None }
    };
    match value.split_once('/') {
        None => number(value).map(|number| (number, number)),
        Some((first, count)) => {
            number(first).zip(number(count)).map(|(first, count)| (first, first + count - 1))
        }
    }
}

/// The most operations an item may have.
pub const MAX_OPS: usize = 64;

impl Item {
    /// Whether the item is well-formed; the error says what is wrong. A committer asks this before anything
    /// else, so that backends need not.
    pub fn check(&self) -> Result<(), String> {
        if self.ops.is_empty() || self.ops.len() > MAX_OPS {
            return Err(format!("an item has 1 to {MAX_OPS} operations, not {}", self.ops.len()));
        }
        let mut keys = HashSet::with_capacity(self.ops.len());
        for op in &self.ops {
            if let Some(key) = op.key()
                && !keys.insert(key)
            {
                return Err(format!("two operations on {key} in one item"));
            }
            if let Op::Create(draft) | Op::Update { draft, .. } = op {
                sealing::check(draft)?;
            }
        }
        let odd = self.guards.iter().find_map(|guard| match guard {
            Guard::Unclaimed { value, .. } if numbers(value).is_none() => Some(value),
            _ => None,
        });
        match odd {
            Some(value) => Err(format!("{value:?} is no number and no range of numbers")),
            None => Ok(()),
        }
    }
}

impl Op {
    /// The object that the operation is about; claims and releases have none.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Op::Create(draft) | Op::Update { draft, .. } => Some(&draft.key),
            Op::Delete { key, .. } => Some(key),
            Op::Claim { .. } | Op::Release { .. } => None,
        }
    }
}

/// An item's success: the revision of each object operation in order (0 for claims and releases).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub revisions: Vec<Revision>,
}

/// Why an item was not committed. Nothing of it was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0} already exists")]
    AlreadyExists(Key),
    #[error("{0} does not exist")]
    NotFound(Key),
    /// `head` is the revision found.
    #[error("{key} is at revision {head}, not at the expected one")]
    Conflict { key: Key, head: Revision },
    /// `space`'s `value` is held by another owner.
    #[error("{value} of {space} is taken")]
    ClaimTaken { space: String, value: String },
    /// The guard with this index in [`Item::guards`] does not hold.
    #[error("guard {index} does not hold: {guard:?}")]
    Guard { index: usize, guard: Guard },
}

/// A commit that did not happen, or of which it is not known whether it did.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue of waiting writes is full; try again.
    #[error("too many writes are waiting")]
    Busy,
    /// The database cannot be reached; nothing was stored.
    #[error("the database is not available")]
    Unavailable,
    /// The database can be reached and takes no writes; nothing was stored.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// The connection was lost and the outcome could not be learnt.
    #[error("the outcome of the write is not known")]
    Unknown,
    /// The item itself is malformed, or makes the database raise an error.
    #[error("the write was rejected: {0}")]
    Rejected(String),
}

/// A stored object at one revision, as caches hold it. Cheap to clone behind an `Arc`.
#[derive(Debug)]
pub struct Entry {
    pub key: Key,
    pub uid: Uuid,
    /// Revision of the last change of any kind.
    pub revision: Revision,
    /// Revision of the last change to anything but `status`.
    pub core_revision: Revision,
    pub generation: i64,
    pub deleting: bool,
    /// Canonical bytes, without `resourceVersion` and `managedFields`.
    pub body: Bytes,
    pub managed: Option<Bytes>,
    pub index: Arc<Index>,
    pub columns: Arc<Columns>,
    typed: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Entries are equal if they are one version of one object.
impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.revision == other.revision && self.uid == other.uid && self.key == other.key
    }
}

impl Eq for Entry {}

impl Entry {
    pub fn new(draft: Draft, revision: Revision, core_revision: Revision) -> Entry {
        Entry {
            key: draft.key,
            uid: draft.uid,
            revision,
            core_revision,
            generation: draft.generation,
            deleting: draft.deleting,
            body: draft.body,
            managed: draft.managed,
            index: Arc::new(draft.index),
            columns: Arc::new(draft.columns),
            typed: OnceLock::new(),
        }
    }

    /// The entry of the deletion of this one.
    pub fn deleted_at(&self, revision: Revision) -> Entry {
        Entry {
            key: self.key.clone(),
            uid: self.uid,
            revision,
            core_revision: revision,
            generation: self.generation,
            deleting: self.deleting,
            body: self.body.clone(),
            managed: self.managed.clone(),
            index: Arc::clone(&self.index),
            columns: Arc::clone(&self.columns),
            typed: OnceLock::new(),
        }
    }

    /// The same entry with another body, one that says the same (sealed, opened, sealed anew).
    pub fn with_body(&self, body: Bytes, managed: Option<Bytes>) -> Entry {
        Entry {
            key: self.key.clone(),
            uid: self.uid,
            revision: self.revision,
            core_revision: self.core_revision,
            generation: self.generation,
            deleting: self.deleting,
            body,
            managed,
            index: Arc::clone(&self.index),
            columns: Arc::clone(&self.columns),
            typed: OnceLock::new(),
        }
    }

    /// The bytes that readers of the object's content see, `resourceVersion` included, `managedFields` not.
    pub fn encoded(&self) -> Bytes {
        object::splice_revision(self.key.kind, &self.body, self.revision)
    }

    /// The bytes that clients of the API see, `resourceVersion` and `managedFields` included.
    pub fn shown(&self) -> Bytes {
        object::splice(self.key.kind, &self.body, self.revision, self.managed.as_deref())
    }

    /// The object as a tree, `resourceVersion` included, `managedFields` not.
    pub fn object(&self) -> Result<Object, serde_json::Error> {
        object::decode(&self.body, self.revision)
    }

    /// The object as a typed value, decoded once per entry and kept. One entry is only ever asked for one
    /// type; another type is decoded without being kept.
    pub fn typed<T>(&self) -> Result<Arc<T>, serde_json::Error>
    where
        T: serde::de::DeserializeOwned + Send + Sync + 'static,
    {
        if let Some(kept) = self.typed.get()
            && let Ok(found) = Arc::clone(kept).downcast::<T>()
        {
            return Ok(found);
        }
        let decoded: Arc<T> = Arc::new(self.decoded()?);
        let _ = self.typed.set(decoded.clone());
        Ok(decoded)
    }

    /// As [`Entry::typed`], without being kept: for those who look at very many entries, once each.
    pub fn decoded<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.encoded())
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One row of the change log as watchers see it.
#[derive(Clone, Debug)]
pub struct Change {
    pub kind: ChangeKind,
    pub revision: Revision,
    /// The object after the change; of a deletion the last state, at the revision of the deletion.
    pub entry: Arc<Entry>,
    /// Labels and selectable fields before the change (`None` for `Added`).
    pub previous: Option<Arc<Index>>,
    pub previous_columns: Option<Arc<Columns>>,
    /// The whole object before a modification that moved labels or selectable fields, where it was at hand;
    /// else [`Store::before`](crate::Store::before) has it.
    pub before: Option<Arc<Entry>>,
}

impl Change {
    pub fn key(&self) -> &Key {
        &self.entry.key
    }

    pub fn object_kind(&self) -> Kind {
        self.entry.key.kind
    }
}
