//! The shapes of requests and answers.

use std::sync::Arc;

use bytes::Bytes;
pub use horchestra_core::admit::FieldValidation;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application_set::ChildStatus;
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::status::Status;
use horchestra_store::{Entry, Revision};
use uuid::Uuid;

use crate::write::draft::spec_of;

/// The document of a write.
#[derive(Clone, Debug)]
pub enum Body {
    /// JSON as it came over the wire: duplicate keys and trailing bytes are judged.
    Json(Bytes),
    /// YAML as it came over the wire, judged alike.
    Yaml(Bytes),
    /// A tree that was built or decoded elsewhere.
    Object(Object),
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Everything is judged, nothing is stored.
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub field_manager: Option<String>,
    /// A `resourceVersion` must name the head exactly, also on the main resource.
    pub exact_resource_version: bool,
    /// The shape in which the document is written; `None`: as the kind is stored.
    pub written_as: Option<&'static KindSpec>,
}

impl WriteOptions {
    /// The entry of the shape in which a document of the kind is written.
    pub(crate) fn shape(&self, kind: Kind) -> Result<&'static KindSpec, Status> {
        match self.written_as {
            Some(shape) if shape.kind == kind => Ok(shape),
            _ => spec_of(kind),
        }
    }
}

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Everything but `status`.
    Main,
    /// `status` alone.
    Status,
}

/// The language of a patch document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
}

/// A patch as it came over the wire.
#[derive(Clone, Debug)]
pub struct Patch {
    pub kind: PatchType,
    pub document: Bytes,
}

/// What a manager applies. The manager is that of the options, which must name one.
#[derive(Clone, Debug)]
pub struct Apply {
    /// YAML or JSON.
    pub document: Bytes,
    /// Fields of other managers are taken over.
    pub force: bool,
    /// What is answered when there is no object yet; `None` for callers who may make one.
    pub refuse_create: Option<Status>,
}

/// What a door is told besides which object it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Rollback: the version to go back to.
    pub revision: Option<Revision>,
    /// Finalize: what to take off; `None`: all but what belongs to the system.
    pub finalizers: Option<Vec<String>>,
    /// As in the body of an update.
    pub resource_version: Option<String>,
    pub uid: Option<String>,
    /// Approve and deny: why.
    pub message: Option<String>,
}

/// The versions of an object that are kept.
#[derive(Clone, Debug)]
pub struct Revisions {
    /// Revision of the object's last change of any kind.
    pub revision: Revision,
    /// Newest first; the first is the current one.
    pub versions: Vec<Version>,
}

/// One version of an object: when it was written, by whom, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub revision: Revision,
    pub generation: i64,
    pub time: jiff::Timestamp,
    pub user: String,
    pub verb: String,
    pub audit_id: Uuid,
}

/// What becomes of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Conditions on the object that a delete finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    /// Must name the head exactly.
    pub resource_version: Option<String>,
}

/// Options of delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub preconditions: Preconditions,
    /// Seconds; not negative. For an Application it replaces the grace period of its spec for this removal.
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

/// A successful create, update or patch.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as stored (dry run: as it would have been; its revision is then the one it was read at,
    /// 0 for a create, which shows no resourceVersion).
    pub entry: Arc<Entry>,
    pub created: bool,
    /// The write removed the last finalizer of a deleting object, so the object is gone.
    pub erased: bool,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// A successful delete.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// Erased: the last state, at the revision of the deletion. Else the object, now being deleted.
    pub entry: Arc<Entry>,
    pub erased: bool,
    pub warnings: Vec<String>,
}

/// How fresh a single object must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Sees every write that was acknowledged before.
    Fresh,
    /// Whatever this process has.
    Any,
    /// Not older than a revision.
    NotOlderThan(Revision),
}

/// How much of objects of a sealed kind is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// The object as it was written.
    #[default]
    Opened,
    /// The clear part, with the contents still sealed: enough for metadata and most tables, and needs no keys.
    Sealed,
}

/// A listing as a client asks for it; parameters are raw, since judging them is part of the answer.
#[derive(Clone, Debug)]
pub struct ListRequest {
    pub kind: Kind,
    /// `None`: all namespaces (and the only choice for cluster-scoped kinds).
    pub namespace: Option<String>,
    pub label_selector: String,
    pub field_selector: String,
    pub limit: Option<u64>,
    pub continue_token: Option<String>,
    pub resource_version: Option<String>,
    pub resource_version_match: Option<String>,
    /// Only for telling clients that this belongs to watches.
    pub send_initial_events: Option<bool>,
    pub contents: Contents,
}

impl ListRequest {
    /// Everything of a kind, fresh.
    pub fn of(kind: Kind) -> ListRequest {
        ListRequest {
            kind,
            namespace: None,
            label_selector: String::new(),
            field_selector: String::new(),
            limit: None,
            continue_token: None,
            resource_version: None,
            resource_version_match: None,
            send_initial_events: None,
            contents: Contents::Opened,
        }
    }
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Listing {
    pub entries: Vec<Arc<Entry>>,
    /// The revision that the listing is of: `metadata.resourceVersion`.
    pub revision: Revision,
    /// Set when there is more.
    pub continue_token: Option<String>,
    /// How many objects follow this page; only known without selectors.
    pub remaining: Option<u64>,
    /// What its reader is told beside it.
    pub warnings: Vec<String>,
}

/// A watch as a client asks for it.
#[derive(Clone, Debug)]
pub struct WatchRequest {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub label_selector: String,
    pub field_selector: String,
    /// Absent or `0`: the state comes first, as `Added`.
    pub resource_version: Option<String>,
    pub resource_version_match: Option<String>,
    pub send_initial_events: Option<bool>,
    pub allow_bookmarks: bool,
    pub contents: Contents,
}

impl WatchRequest {
    /// Everything of a kind, the state first.
    pub fn of(kind: Kind) -> WatchRequest {
        WatchRequest {
            kind,
            namespace: None,
            label_selector: String::new(),
            field_selector: String::new(),
            resource_version: None,
            resource_version_match: None,
            send_initial_events: None,
            allow_bookmarks: false,
            contents: Contents::Opened,
        }
    }
}

/// One frame of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Arc<Entry>),
    Modified(Arc<Entry>),
    /// Deleted, or no longer selected: the last state before that, at the revision of that change.
    Deleted(Arc<Entry>),
    /// All changes up to `revision` have been sent.
    Bookmark {
        revision: Revision,
        /// This one ends the initial events.
        initial_events_end: bool,
    },
    /// The stream ends here; the client has to list again (410) or to come back later.
    Failed(Status),
}

/// One placement decision of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub key: Key,
    pub uid: Uuid,
    /// The revision that the decision was made from.
    pub revision: Revision,
    pub node: String,
    /// The revision of the Node that the decision was made from (`None`: it only has to exist). A binding is
    /// for good, so a Node that was cordoned, replaced or judged since wants another look.
    pub node_revision: Option<Revision>,
}

/// What a node says about one Application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationReport {
    pub phase: String,
    pub message: String,
    /// Generation that the node last converged on; never above the stored one.
    pub observed_generation: i64,
    /// Address in CIDR form.
    pub address: Option<String>,
    /// Only kept when the phase is terminal; 0 is success.
    pub exit_code: Option<i32>,
    /// Only kept when the phase is terminal.
    pub finished_at: Option<jiff::Timestamp>,
    pub attempts: i32,
}

/// What the one judge of readiness decided about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyVerdict {
    pub ready: Ready,
    /// CamelCase word.
    pub reason: String,
    pub message: String,
}

/// Why a node is held, as people are to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldVerdict {
    /// CamelCase word.
    pub reason: String,
    pub message: String,
}

/// How far an ApplicationSet has come, as its loop sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetReport {
    /// The generation that was looked at.
    pub generation: i64,
    pub phase: String,
    /// `None`: nobody knows, so what is stored stays.
    pub desired: Option<i64>,
    pub current: i64,
    pub scheduled: i64,
    pub running: i64,
    pub updated: i64,
    pub available: i64,
    /// By name.
    pub children: Vec<ChildStatus>,
    /// When a rollout with a deadline last got on.
    pub last_progress: Option<jiff::Timestamp>,
    /// Those that apply; others of the loop's are taken away.
    pub conditions: Vec<SetVerdict>,
}

/// One condition of an ApplicationSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetVerdict {
    pub kind: &'static str,
    pub status: ConditionStatus,
    /// CamelCase word.
    pub reason: &'static str,
    pub message: String,
}

/// The status of the `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    True,
    False,
    Unknown,
}

/// What became of a write through an internal door.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The object after the write (erased: its last state, at the revision of the deletion).
    pub entry: Arc<Entry>,
    /// False: the object already was as wanted, nothing was written.
    pub changed: bool,
    pub erased: bool,
}

/// Why an internal door did not write.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DoorError {
    /// The object does not exist, is another one of that name, or (where it matters) is being deleted.
    #[error("the object is gone")]
    Gone,
    /// The object is no longer the one that the decision was made from.
    #[error("the object has changed")]
    Changed,
    /// The node does not exist.
    #[error("the node does not exist")]
    NoNode,
    /// The node has no room.
    #[error("the node has no room for it")]
    NoCapacity,
    /// The caller's term (lease or session) has ended: stop writing.
    #[error("the caller's term has ended")]
    Fenced,
    /// The caller may not say this, or what it says makes no sense.
    #[error("refused: {0}")]
    Refused(Status),
    /// Not now; the same call may succeed later.
    #[error("not now: {0}")]
    Unavailable(Status),
}
