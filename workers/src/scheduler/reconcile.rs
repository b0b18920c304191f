//! The loop around the pure core: snapshot in, guarded bindings and messages out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::persistent_volume::PersistentVolume;
use horchestra_core::reasons;
use horchestra_service::{Binding, DoorError, Recorder, RequestContext, Service, Subject};
use horchestra_store::{Change, ChangeKind, Entry, Revision, Snapshot};

use super::cluster::{Amounts, Cluster, Liveness, NodeInfo, Pending, Placed, VolumeInfo};
use super::cycle::{self, Outcome};
use super::metrics::SchedulerMetrics;
use super::profile::Profile;
use super::report;
use crate::heartbeats::{Heard, Heartbeats};
use crate::substrate::{PassError, PassReport, Reconciler, Term};

/// How many status messages are written at a time.
const CONCURRENT_WRITES: usize = 32;

/// How many bindings are handed over at a time; they share commits.
const BIND_BATCH: usize = 128;

/// How soon a pass follows one of which something was refused.
const AFTER_REFUSAL: Duration = Duration::from_millis(250);

/// The scheduler as a loop.
pub struct Scheduler {
    service: Service,
    recorder: Recorder,
    profile: Arc<Profile>,
    heartbeats: Heartbeats,
    /// The ready timeout.
    timeout: Duration,
    metrics: SchedulerMetrics,
}

impl Scheduler {
    pub fn new(
        service: Service,
        profile: Profile,
        recorder: Recorder,
        metrics: SchedulerMetrics,
    ) -> Scheduler {
        let timeout = service.config().ready_timeout;
        let (profile, heartbeats) = (Arc::new(profile), Heartbeats::new(timeout));
        Scheduler { service, recorder, profile, heartbeats, timeout, metrics }
    }

    async fn reconcile(&mut self, term: &Term) -> Result<PassReport, PassError> {
        let store = self.service.store().clone();
        let heard = self.heartbeats.refresh(&store).await.map_err(PassError::Read)?;
        let snapshot = store.snapshot();
        let begun = Instant::now();
        let View { mut cluster, pending, unprovided } = view(&snapshot, &heard);
        let begun = self.metrics.phase("view", begun);
        let unheard = cluster.nodes().any(|node| node.liveness == Liveness::Unheard);
        let waiting = !pending.is_empty();
        // Planning a large backlog takes a while and never yields: off the threads that renew leases.
        let profile = Arc::clone(&self.profile);
        let (cluster, decisions) = tokio::task::spawn_blocking(move || {
            let decisions = cycle::plan(&profile, &mut cluster, pending);
            (cluster, decisions)
        })
        .await
        .map_err(|_| PassError::Panicked)?;
        self.metrics.decided(&decisions);
        let begun = self.metrics.phase("plan", begun);

        let mut bindings = Vec::new();
        let mut messages = Vec::new();
        for decision in decisions {
            match decision.outcome {
                Outcome::Bind(node) => bindings.push((decision.app, node)),
                Outcome::Wait(message) => messages.push((decision.app, message)),
            }
        }
        let mut report = PassReport::default();
        self.provide(term, unprovided, &mut report).await?;
        for chunk in bindings.chunks(BIND_BATCH) {
            self.bind(term, &cluster, chunk, &mut report, &mut messages).await?;
        }
        let begun = self.metrics.phase("bind", begun);
        self.tell(term, messages, &mut report).await?;
        self.metrics.phase("tell", begun);
        report.again_in = if report.refused > 0 {
            // Planned from something that is no more: what replaced it may already be in the cache.
            Some(AFTER_REFUSAL)
        } else {
            // A silent node that reports again changes no object, so nothing would wake this loop.
            (waiting && unheard).then_some(Duration::from_secs(1))
        };
        Ok(report)
    }

    /// Volumes of those that their authors placed.
    async fn provide(
        &self,
        term: &Term,
        unprovided: Vec<(Key, Revision)>,
        report: &mut PassReport,
    ) -> Result<(), PassError> {
        let context = RequestContext::new(term.caller());
        for (key, revision) in unprovided {
            match self.service.provide_volumes(&context, &key, revision).await {
                Ok(provided) => {
                    report.writes += provided;
                    tracing::info!(application = %key, provided, "volumes of a placed application provided");
                }
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                Err(error) => {
                    report.refused += 1;
                    tracing::debug!(application = %key, %error, "volumes could not be provided");
                }
            }
        }
        Ok(())
    }

    async fn bind(
        &self,
        term: &Term,
        cluster: &Cluster,
        chunk: &[(Pending, String)],
        report: &mut PassReport,
        messages: &mut Vec<(Pending, String)>,
    ) -> Result<(), PassError> {
        let context = RequestContext::new(term.caller());
        let bindings = chunk
            .iter()
            .map(|(app, node)| Binding {
                key: app.key.clone(),
                uid: app.uid,
                revision: app.revision,
                node: node.clone(),
                node_revision: cluster.node(node).map(|node| node.revision),
            })
            .collect();
        self.metrics.batch(chunk.len());
        let outcomes = self.service.bind(&context, bindings).await;
        for ((app, node), outcome) in chunk.iter().zip(outcomes) {
            if let Err(error) = &outcome {
                self.metrics.conflict(error);
            }
            match outcome {
                Ok(outcome) => {
                    report.writes += 1;
                    self.metrics.bound(app);
                    tracing::info!(application = %app.key, node, "bound");
                    let message = format!("bound to node {node}");
                    self.recorder.record(Subject::of(&outcome.entry), &reasons::SCHEDULED, message);
                }
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                // Somebody else changed it: there is nothing to say, the change brings it back here.
                Err(DoorError::Changed | DoorError::Gone) => report.refused += 1,
                Err(error) => {
                    report.refused += 1;
                    messages.push((app.clone(), report::not_placed(node, &error.to_string())));
                }
            }
        }
        Ok(())
    }

    /// Says of each Application why it waits, where it does not say so already.
    async fn tell(
        &self,
        term: &Term,
        messages: Vec<(Pending, String)>,
        report: &mut PassReport,
    ) -> Result<(), PassError> {
        let context = RequestContext::new(term.caller());
        let unsaid = messages.into_iter().filter(|(app, message)| !says(&app.app, message));
        let outcomes: Vec<_> = stream::iter(unsaid)
            .map(|(app, message)| {
                let context = &context;
                async move {
                    let told =
                        self.service.set_unschedulable(context, &app.key, app.revision, &message).await;
                    if let Ok(outcome) = &told
                        && outcome.changed
                    {
                        let subject = Subject::of(&outcome.entry);
                        self.recorder.record(subject, &reasons::FAILED_SCHEDULING, message);
                    }
                    told
                }
            })
            .buffer_unordered(CONCURRENT_WRITES)
            .collect()
            .await;
        for outcome in outcomes {
            match outcome {
                Ok(_) => report.writes += 1,
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                Err(_) => report.refused += 1,
            }
        }
        Ok(())
    }
}

fn says(app: &Application, message: &str) -> bool {
    app.status.phase == "Pending" && app.status.message == message
}

/// What is stored, as the core wants it.
struct View {
    cluster: Cluster,
    pending: Vec<Pending>,
    /// Placed Applications some of whose volumes are missing or lie nowhere.
    unprovided: Vec<(Key, Revision)>,
}

/// An object that cannot be read holds nobody else up.
fn view(snapshot: &Snapshot, heard: &Heard) -> View {
    let nodes = snapshot.list(Kind::Node, None).filter_map(|entry| {
        let node = readable::<Node>(entry)?;
        Some(node_info(entry, &node, heard))
    });
    let mut cluster = Cluster::new(nodes);
    for entry in snapshot.list(Kind::PersistentVolume, None) {
        let Some(volume) = readable::<PersistentVolume>(entry) else { continue };
        let node = Some(volume.spec.node.clone()).filter(|node| !node.is_empty());
        cluster.put_volume(entry.key.clone(), Some(VolumeInfo { node, deleting: entry.deleting }));
    }
    let (mut pending, mut unprovided) = (Vec::new(), Vec::new());
    for entry in snapshot.list(Kind::Application, None) {
        let requests = Amounts { cpu: entry.columns.cpu, memory: entry.columns.memory };
        let Some(app) = readable::<Application>(entry) else { continue };
        match &entry.columns.node {
            Some(_) if app.is_finished() => {}
            Some(node) => {
                if !entry.deleting && !app.spec.frozen && lacks_volumes(&cluster, &app, node) {
                    unprovided.push((entry.key.clone(), entry.revision));
                }
                cluster.place(node, Placed { key: entry.key.clone(), requests, app });
            }
            None if entry.deleting || app.spec.frozen => {}
            None => pending.push(Pending {
                key: entry.key.clone(),
                uid: entry.uid,
                revision: entry.revision,
                priority: app.spec.placement.as_ref().and_then(|placement| placement.priority).unwrap_or(0),
                created: app.metadata.creation_timestamp.map(|time| time.to_string()).unwrap_or_default(),
                requests,
                app,
            }),
        }
    }
    View { cluster, pending, unprovided }
}

/// Whether volumes are to be made for an Application that is placed, or fixed to its node. Of one that has a volume
/// elsewhere none are: it cannot run there.
fn lacks_volumes(cluster: &Cluster, app: &Application, node: &str) -> bool {
    let key = |name| Key::namespaced(Kind::PersistentVolume, app.metadata.namespace.clone(), name);
    let mut open = false;
    for name in app.volume_names() {
        match cluster.volume(&key(name)) {
            Some(VolumeInfo { deleting: true, .. }) => return false,
            Some(VolumeInfo { node: Some(home), .. }) if home != node => return false,
            Some(VolumeInfo { node: Some(_), .. }) => {}
            Some(VolumeInfo { node: None, .. }) | None => open = true,
        }
    }
    open
}

fn readable<T: serde::de::DeserializeOwned + Send + Sync + 'static>(entry: &Entry) -> Option<Arc<T>> {
    entry
        .typed::<T>()
        .inspect_err(|error| tracing::warn!(object = %entry.key, %error, "cannot be read; passed over"))
        .ok()
}

fn node_info(entry: &Entry, node: &Node, heard: &Heard) -> NodeInfo {
    let fresh = heard.is_fresh(&entry.key.name);
    let liveness = match node.ready() {
        Some(ConditionStatus::True) if fresh => Liveness::Ready,
        Some(ConditionStatus::True) => Liveness::Unheard,
        None if node.status.ready && fresh => Liveness::Ready,
        _ => Liveness::NotReady,
    };
    NodeInfo {
        name: entry.key.name.clone(),
        revision: entry.revision,
        labels: node.scheduling_labels(),
        unschedulable: node.spec.unschedulable || entry.deleting,
        admitted: node.admitted(),
        held: node.held(),
        liveness,
        capacity: Amounts { cpu: entry.columns.cpu, memory: entry.columns.memory },
        runtimes: node.status.runtimes.clone(),
        routed_network: node.status.routed_network,
        used: Amounts::default(),
        placed: Vec::new(),
    }
}

impl Reconciler for Scheduler {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Application, Kind::Node, Kind::PersistentVolume]
    }

    fn wakes(&self, change: &Change) -> bool {
        match change.object_kind() {
            Kind::Application => application_wakes(change),
            Kind::Node | Kind::PersistentVolume => true,
            _ => false,
        }
    }

    /// Often enough that a quiet spell of ours is not taken for an absence.
    fn resync(&self) -> Duration {
        (self.timeout / 3).min(Duration::from_secs(30))
    }

    fn begin_term(&mut self) {
        self.heartbeats.forget();
    }

    fn end_term(&mut self) {
        self.metrics.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}

/// An Application matters when it waits, or when what it takes of its node (or keeps off it) has changed.
/// Status reports of running Applications, by far the most frequent change, do not.
fn application_wakes(change: &Change) -> bool {
    let now = &change.entry;
    if change.kind != ChangeKind::Modified {
        return true;
    }
    if now.columns.node.is_none() {
        // Its own message coming back is no news.
        return now.core_revision == now.revision;
    }
    if now.core_revision == now.revision {
        return true;
    }
    let before = change.previous_columns.as_deref();
    before.is_none_or(|before| {
        (&before.phase, before.cpu, before.memory)
            != (&now.columns.phase, now.columns.cpu, now.columns.memory)
    }) || change.previous.as_deref().is_none_or(|before| before.labels != now.index.labels)
}
