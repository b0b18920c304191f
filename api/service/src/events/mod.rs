//! Telling people what happened: the recorder of Events.
//!
//! A component says [`Recorder::record`] at a transition and goes on. What that guarantees: the call never
//! waits, never fails and costs one place in a bounded queue; so a database that is away, or a component that
//! runs wild, slows nobody. What it does not guarantee: that the Event is ever written. Events that are not are
//! counted by what became of them ([`Fate`]), and that is all.
//!
//! Behind the queue one task per process
//!
//! * holds every subject to a budget per component (a burst, then one in five minutes),
//! * takes many similar messages about one subject together ([`correlate`]),
//! * merges what waits about the same thing, and writes it through a door of its own, as
//!   [`Caller::Recorder`], a few at a time.
//!
//! All observations of one thing (subject, reason, message, component) go to one object, whose name follows
//! from them. So the stored object is the only memory that matters: a recorder that starts anew, or another
//! process that sees the same, goes on counting where the last one stopped. What is kept here on top of it
//! (budgets, what was similar) is bounded and may be lost.
//!
//! Refused: writing in the caller's own item (a report of a node would then fail for an Event's sake), and
//! fencing by the caller's term. An Event of a component that was deposed a moment ago is no harm, and was true.

mod correlate;
mod task;

use std::sync::Arc;

use horchestra_core::kind::Key;
use horchestra_core::kinds::event::{DEFAULT_NAMESPACE, ObjectReference, name_of};
use horchestra_core::reasons::EventReason;
use horchestra_store::Entry;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::service::Service;

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject(pub(crate) ObjectReference);

impl Subject {
    /// The object as it is stored.
    pub fn of(entry: &Entry) -> Subject {
        Subject(ObjectReference {
            kind: entry.key.kind.name().to_owned(),
            namespace: entry.key.namespace.clone(),
            name: entry.key.name.clone(),
            uid: entry.uid.to_string(),
            api_version: entry.key.kind.api_version().to_owned(),
            resource_version: entry.revision.to_string(),
            field_path: String::new(),
        })
    }

    /// An object that is not stored, or of which nothing but its address is known.
    pub fn named(key: &Key) -> Subject {
        Subject(ObjectReference {
            kind: key.kind.name().to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            api_version: key.kind.api_version().to_owned(),
            ..ObjectReference::default()
        })
    }

    fn namespace(&self) -> &str {
        if self.0.namespace.is_empty() { DEFAULT_NAMESPACE } else { &self.0.namespace }
    }
}

/// Observations of one thing that are to be written.
#[derive(Clone, Debug)]
pub struct EventRecord {
    pub subject: Subject,
    pub reason: &'static EventReason,
    pub message: String,
    /// Which of several processes of the component saw it first.
    pub instance: Arc<str>,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u32,
    /// Messages that differ are counted together.
    pub(crate) combined: bool,
}

impl EventRecord {
    /// The Event that all observations of this thing go to.
    pub fn key(&self) -> Key {
        let ObjectReference { kind, namespace, name, uid, field_path, .. } = &self.subject.0;
        let message = if self.combined { "" } else { &self.message };
        let combined = if self.combined { "combined" } else { "" };
        let EventReason { word, by, .. } = self.reason;
        let identity = [kind, namespace, name, uid, field_path, *word, *by, message, combined];
        let event = name_of(name, &identity);
        Key::namespaced(horchestra_core::Kind::Event, self.subject.namespace(), event)
    }

    /// As whom it is written.
    pub(crate) fn caller(&self) -> Caller {
        Caller::Recorder { component: self.reason.by }
    }
}

/// What became of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Stored, in an Event of its own or counted in one.
    Written,
    /// Dropped: more was observed than is taken in.
    QueueFull,
    /// Dropped: its subject's budget is used up.
    OverBudget,
    /// Dropped: the store does not take it (the namespace is gone, for one).
    Refused,
    /// Dropped: the store was away for too long.
    Unavailable,
}

impl Fate {
    pub const fn word(self) -> &'static str {
        match self {
            Fate::Written => "written",
            Fate::QueueFull => "queue_full",
            Fate::OverBudget => "over_budget",
            Fate::Refused => "refused",
            Fate::Unavailable => "unavailable",
        }
    }
}

/// Is told what became of observations, and of how many; for metrics.
pub type Observer = Arc<dyn Fn(Fate, u64) + Send + Sync>;

/// An observation on its way.
struct Observation {
    subject: Subject,
    reason: &'static EventReason,
    message: String,
    at: Timestamp,
}

/// Observations that wait for the task.
const QUEUE: usize = 4096;

/// The callers' end. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Observation>,
    observer: Observer,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder, and the task that writes for it until the last clone of the recorder is gone or `stop` is
    /// cancelled (and then, for a moment, what waits). `instance` tells this process from others of its sort.
    pub fn new(
        service: Service,
        instance: &str,
        observer: Observer,
        stop: CancellationToken,
    ) -> (Recorder, impl Future<Output = ()> + Send + use<>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let task = task::Task::new(service, Arc::from(instance), Arc::clone(&observer), waiting);
        (Recorder { queue, observer }, task.run(stop))
    }

    /// Tells what happened to `subject`. Neither waits nor fails.
    pub fn record(&self, subject: Subject, reason: &'static EventReason, message: impl Into<String>) {
        let observation = Observation { subject, reason, message: message.into(), at: Timestamp::now() };
        if self.queue.try_send(observation).is_err() {
            (self.observer)(Fate::QueueFull, 1);
        }
    }
}
