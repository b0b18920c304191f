//! [`Service`]: the verbs.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::SecretKeys;
use horchestra_core::doors::Door;
use horchestra_core::gates::Gates;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::ranges::Network;
use horchestra_core::status::Status;
use horchestra_store::{ClaimRow, Entry, Guard, Revision, Store};
use serde_json::Value;
use uuid::Uuid;

use crate::admission::allocation::Allocator;
use crate::caller::RequestContext;
use crate::events::EventRecord;
use crate::read::{Heartbeats, Watch};
use crate::request::*;
use crate::settings::{DEFAULT_CATALOG_NAMESPACE, DEFAULT_LOST_AFTER};
use crate::write::Queues;

/// What can be configured, with its defaults.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// After how long without a heartbeat a node counts as silent (45 s).
    pub ready_timeout: Duration,
    /// For how much longer a silent node has to be silent to count as lost (5 minutes).
    pub node_lost_after: Duration,
    /// The namespace that the catalog speaks of when it is asked about none (`default`).
    pub catalog_namespace: String,
    /// Largest object, in bytes, after admission (1.5 MiB).
    pub object_limit: usize,
    /// How long a continue token is good for (15 minutes).
    pub continue_ttl: Duration,
    /// How often a watch that asked for bookmarks gets one (50 s).
    pub bookmark_interval: Duration,
    /// How old the copy of the heartbeats that reads show may get (1 s).
    pub heartbeat_refresh: Duration,
    /// How long the approval of a certificate request waits for the certificate (10 s).
    pub signed_within: Duration,
    /// Features that are switched on (none).
    pub gates: Gates,
    /// Where Services get their addresses from; without, they get none.
    pub service_range: Option<Network>,
    /// Where workloads with a network of their own get their addresses from; without, none may have one.
    pub routed_range: Option<Network>,
    /// What Secrets are sealed and opened with; without it they can be neither read nor written.
    pub secret_keys: Option<Arc<SecretKeys>>,
}

impl Default for ServiceConfig {
    fn default() -> ServiceConfig {
        ServiceConfig {
            ready_timeout: Duration::from_secs(45),
            node_lost_after: DEFAULT_LOST_AFTER,
            catalog_namespace: DEFAULT_CATALOG_NAMESPACE.to_owned(),
            object_limit: 3 << 19,
            continue_ttl: Duration::from_secs(15 * 60),
            bookmark_interval: Duration::from_secs(50),
            heartbeat_refresh: Duration::from_secs(1),
            signed_within: Duration::from_secs(10),
            gates: Gates::default(),
            service_range: None,
            routed_range: None,
            secret_keys: None,
        }
    }
}

/// The one door for reads and writes. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) config: ServiceConfig,
    pub(crate) queues: Queues,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) allocator: Allocator,
}

impl Service {
    pub fn new(store: Store, config: ServiceConfig) -> Service {
        let (queues, heartbeats) = (Queues::new(), Heartbeats::default());
        let allocator = Allocator::new(config.service_range, config.routed_range.is_some());
        Service { inner: Arc::new(Inner { store, config, queues, heartbeats, allocator }) }
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub fn config(&self) -> &ServiceConfig {
        &self.inner.config
    }

    /// Creates an object. `namespace` is the one of the request, empty for cluster-scoped kinds.
    pub async fn create(
        &self,
        context: &RequestContext,
        kind: Kind,
        namespace: &str,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.create_object(context, kind, namespace, body, options).await
    }

    /// Replaces everything but `status`.
    pub async fn update(
        &self,
        context: &RequestContext,
        key: &Key,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.update_object(context, key, Part::Main, body, options).await
    }

    /// Replaces `status` alone.
    pub async fn update_status(
        &self,
        context: &RequestContext,
        key: &Key,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.update_object(context, key, Part::Status, body, options).await
    }

    /// Applies a patch to the main resource or to `status`.
    pub async fn patch(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        patch: Patch,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.patch_object(context, key, part, patch, options).await
    }

    /// Applies what a manager wants of the object, or of its `status`. An object that is not there is made.
    pub async fn apply(
        &self,
        context: &RequestContext,
        key: &Key,
        part: Part,
        request: Apply,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.apply_object(context, key, part, request, options).await
    }

    /// Marks an object for deletion, or erases it when nothing holds it.
    pub async fn delete(
        &self,
        context: &RequestContext,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        self.delete_object(context, key, options).await
    }

    /// Deletes everything that a listing selects; preconditions on a uid make no sense here and are ignored.
    pub async fn delete_collection(
        &self,
        context: &RequestContext,
        request: ListRequest,
        options: &DeleteOptions,
    ) -> Result<Vec<Deleted>, Status> {
        self.delete_listed(context, request, options).await
    }

    /// Reads one object.
    pub async fn get(&self, key: &Key, at: At) -> Result<Arc<Entry>, Status> {
        self.open(self.get_object(key, at).await?)
    }

    /// Reads one object, of a sealed kind its clear part alone.
    pub async fn get_clear(&self, key: &Key, at: At) -> Result<Arc<Entry>, Status> {
        self.get_object(key, at).await
    }

    /// Reads a page of a listing.
    pub async fn list(&self, request: ListRequest) -> Result<Listing, Status> {
        self.list_objects(request).await
    }

    /// Opens a watch. Everything that is wrong with the request itself is an error here; what goes wrong
    /// later (and a revision outside of the log) comes as an event.
    pub async fn watch(&self, request: WatchRequest) -> Result<Watch, Status> {
        self.open_watch(request).await
    }

    // ---- doors for people ---------------------------------------------------------------------------

    /// The versions of an object that are kept.
    pub async fn revisions(&self, key: &Key) -> Result<Revisions, Status> {
        self.list_revisions(key).await
    }

    /// Goes through a door, any but [`Door::Revisions`].
    pub async fn act(
        &self,
        context: &RequestContext,
        key: &Key,
        door: Door,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        self.act_through(context, key, door, order, options).await
    }

    /// Lets a node that registered itself take part, or one that is held take part again: it will be sent desired
    /// state.
    pub async fn admit(&self, context: &RequestContext, node: &str) -> Result<Written, Status> {
        self.act_on_node(context, node, Door::Admit).await
    }

    /// Sets or clears `spec.unschedulable`; clearing admits the node.
    pub async fn cordon(
        &self,
        context: &RequestContext,
        node: &str,
        unschedulable: bool,
    ) -> Result<Written, Status> {
        let door = if unschedulable { Door::Cordon } else { Door::Uncordon };
        self.act_on_node(context, node, door).await
    }

    // ---- doors for loops and gateways ---------------------------------------------------------------

    /// Places Applications, each on its own: one result per binding, in order. Nothing is retried: what has
    /// changed since the decision is for the scheduler to look at again.
    pub async fn bind(
        &self,
        context: &RequestContext,
        bindings: Vec<Binding>,
    ) -> Vec<Result<Outcome, DoorError>> {
        self.bind_applications(context, bindings).await
    }

    /// Makes the volumes that a placed Application mounts and that are missing, and fixes those that lie nowhere to
    /// its node; answers how many. [`Service::bind`] does that for those that it places.
    pub async fn provide_volumes(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
    ) -> Result<usize, DoorError> {
        self.provide_volumes_of(context, key, revision).await
    }

    /// Says why an Application is not placed (phase `Pending`, condition `Scheduled=False`).
    pub async fn set_unschedulable(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        message: &str,
    ) -> Result<Outcome, DoorError> {
        self.mark_unschedulable(context, key, revision, message).await
    }

    /// Stores what a node says about an Application that is placed on it.
    pub async fn report_application(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        report: ApplicationReport,
    ) -> Result<Outcome, DoorError> {
        self.store_report(context, key, uid, &report).await
    }

    /// The node holds nothing of this deleting Application any more: gives up the node's hold and, when no
    /// other holder is left, erases the object in the same item.
    pub async fn release_teardown(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
    ) -> Result<Outcome, DoorError> {
        self.release(context, key, uid).await
    }

    /// Creates the Node of a node that shows up for the first time: cordoned and not admitted. `status` is
    /// what the node reported. When the Node exists, this is [`Service::report_node`].
    pub async fn register_node(
        &self,
        context: &RequestContext,
        name: &str,
        status: &Value,
    ) -> Result<Outcome, DoorError> {
        self.register(context, name, status).await
    }

    /// Stores what a node reports about itself, heartbeat and allocation left out.
    pub async fn report_node(
        &self,
        context: &RequestContext,
        name: &str,
        status: &Value,
    ) -> Result<Outcome, DoorError> {
        self.report_status(context, name, status).await
    }

    /// Stores what a recorder has to tell: a new Event, or another observation in the one that there is.
    pub async fn record_event(&self, record: &EventRecord) -> Result<Outcome, DoorError> {
        self.store_event(record).await
    }

    /// Deletes Events that are old enough, in items of many, each Event unless it has changed since. Answers
    /// how many are gone by it.
    pub async fn expire_events(
        &self,
        context: &RequestContext,
        events: &[Arc<Entry>],
    ) -> Result<usize, DoorError> {
        self.expire(context, Kind::Event, events).await
    }

    /// As [`Service::expire_events`], for CertificateSigningRequests.
    pub async fn expire_certificate_requests(
        &self,
        context: &RequestContext,
        requests: &[Arc<Entry>],
    ) -> Result<usize, DoorError> {
        self.expire(context, Kind::CertificateSigningRequest, requests).await
    }

    /// Stores the certificate (PEM, the leaf first) that a CertificateSigningRequest was looked at for in this
    /// revision; phase and certificate come in one change.
    pub async fn issue_certificate(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        certificate: &str,
    ) -> Result<Outcome, DoorError> {
        self.store_certificate(context, key, revision, certificate).await
    }

    /// Turns down a CertificateSigningRequest that nobody could sign.
    pub async fn deny_certificate(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.turn_down(context, key, revision, why).await
    }

    /// Says why a CertificateSigningRequest waits; the first reason stays.
    pub async fn hold_certificate(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.hold(context, key, revision, why).await
    }

    /// Deletes an object because its owners are gone, or wait for it; unless it has changed since it was looked
    /// at. What is being deleted already stays as it is.
    pub async fn collect(
        &self,
        context: &RequestContext,
        judged: &Entry,
        propagation: Propagation,
    ) -> Result<Outcome, DoorError> {
        self.collect_object(context, judged, propagation).await
    }

    /// Takes the references to owners with these uids off an object.
    pub async fn disown(
        &self,
        context: &RequestContext,
        judged: &Entry,
        uids: &[String],
    ) -> Result<Outcome, DoorError> {
        self.disown_object(context, judged, uids).await
    }

    /// Ends what an owner that is being deleted waits for under this policy.
    pub async fn let_go(
        &self,
        context: &RequestContext,
        judged: &Entry,
        policy: Propagation,
    ) -> Result<Outcome, DoorError> {
        self.let_owner_go(context, judged, policy).await
    }

    /// Ends the wait for a node that was forgotten, for an Application that is being deleted; if there is a Node
    /// of that name again, nothing happens.
    pub async fn forget_teardown(
        &self,
        context: &RequestContext,
        judged: &Entry,
    ) -> Result<Outcome, DoorError> {
        self.give_up_teardown(context, judged).await
    }

    /// Gives back what owners hold that were deleted, each in its space. Answers how many such holds are gone.
    pub async fn release_claims(
        &self,
        context: &RequestContext,
        claims: &[ClaimRow],
    ) -> Result<usize, DoorError> {
        self.release_stray(context, claims).await
    }

    /// Says that a CertificateSigningRequest could not be signed yet; the first failure stays.
    pub async fn fail_certificate(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.tell_failure(context, key, revision, why).await
    }

    /// Sets the `Ready` condition of a Node.
    pub async fn set_node_ready(
        &self,
        context: &RequestContext,
        name: &str,
        verdict: ReadyVerdict,
    ) -> Result<Outcome, DoorError> {
        self.judge_node(context, name, &verdict).await
    }

    /// Sets the `Held` condition of a Node, or with `None` takes it off.
    pub async fn show_hold(
        &self,
        context: &RequestContext,
        name: &str,
        verdict: Option<HoldVerdict>,
    ) -> Result<Outcome, DoorError> {
        self.set_held(context, name, verdict.as_ref()).await
    }

    /// Creates what an ApplicationSet makes, while `conditions` hold. What is refused is not tried again.
    pub async fn create_owned(
        &self,
        context: &RequestContext,
        kind: Kind,
        object: Object,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        self.create_from_loop(context, kind, object, conditions).await
    }

    /// Replaces everything but `status` of an object of which exactly this version was looked at, while
    /// `conditions` hold. Taking the last finalizer off a deleting object erases it.
    pub async fn update_owned(
        &self,
        context: &RequestContext,
        entry: &Entry,
        object: Object,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        self.update_from_loop(context, entry, object, conditions).await
    }

    /// Deletes this very object (in this very revision, where one is given), while `conditions` hold.
    pub async fn delete_owned(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        revision: Option<Revision>,
        conditions: &[Guard],
    ) -> Result<Outcome, DoorError> {
        self.delete_from_loop(context, key, uid, revision, conditions).await
    }

    /// Stores how far an ApplicationSet has come, unless anything but its status has changed since
    /// `core_revision`.
    pub async fn report_set(
        &self,
        context: &RequestContext,
        key: &Key,
        uid: Uuid,
        core_revision: Revision,
        report: &SetReport,
    ) -> Result<Outcome, DoorError> {
        self.store_set_report(context, key, uid, core_revision, report).await
    }
}
