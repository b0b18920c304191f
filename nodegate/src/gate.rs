//! One gateway: what all its sessions share.

use std::sync::Arc;

use horchestra_runtime::{Metrics, Tasks};
use horchestra_service::{Recorder, Service};
use horchestra_store::Store;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::addresses::{self, Addresses};
use crate::beats::{self, Beats};
use crate::desired::index::{Hurry, Index};
use crate::desired::opened::Opened;
use crate::desired::{feed, publish};
use crate::egress::Egress;
use crate::holds::{self, HoldsKnown};
use crate::logs::LogBudget;
use crate::metrics::{GateMetrics, Now};
use crate::records::{self, Records};
use crate::samples;
use crate::session::registry::Registry;
use crate::session::rows::{self, Rows};
use crate::session::told::Told;
use crate::settings::Settings;
use crate::term::{self, Standing, Term};
use crate::tokens::Tokens;
use crate::transport::pace::Pace;

/// A gateway. Its id is random and new with every start, so nobody ever mistakes it for an earlier one.
pub struct Gate {
    pub id: Uuid,
    pub settings: Arc<Settings>,
    pub service: Service,
    pub store: Store,
    pub term: Term,
    pub sessions: Registry,
    pub index: Index,
    pub opened: Opened,
    pub tokens: Tokens,
    pub addresses: Addresses,
    /// What is told to all nodes.
    pub egress: Egress,
    /// What people have been told of the fleet.
    pub fleet_told: Told,
    pub beats: Beats,
    pub holds: HoldsKnown,
    pub records: Records,
    pub logs: Arc<LogBudget>,
    pub claims: Pace,
    /// The rows of sessions, on their way to the database.
    pub rows: Rows,
    /// Reports that may be written at the same time.
    pub writes: Semaphore,
    pub metrics: GateMetrics,
    /// Tells people what happens to nodes and workloads.
    pub recorder: Recorder,
    recording: CancellationToken,
    pub tasks: Tasks,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Gate {
    pub fn new(
        service: Service,
        settings: Settings,
        tokens: Tokens,
        metrics: &Metrics,
        tasks: Tasks,
    ) -> Arc<Gate> {
        let id = Uuid::new_v4();
        let counters = GateMetrics::new(metrics);
        let recording = CancellationToken::new();
        let instance = format!("horchestra-nodegate-{}", id.simple());
        let (recorder, writing) =
            Recorder::new(service.clone(), &instance, counters.observer(), recording.clone());
        tasks.spawn("events", writing);
        let gate = Arc::new(Gate {
            id,
            store: service.store().clone(),
            service,
            term: Term::default(),
            sessions: Registry::default(),
            index: Index::default(),
            opened: Opened::new(settings.opened_limit),
            tokens,
            addresses: Addresses::new(settings.routed_range, settings.service_range),
            egress: Egress::bytes_per_second(settings.fleet_egress),
            fleet_told: Told::default(),
            beats: Beats::default(),
            holds: HoldsKnown::default(),
            records: Records::default(),
            logs: Arc::new(LogBudget::new(settings.log_streams)),
            claims: Pace::per_second(settings.claims_per_second),
            rows: Rows::default(),
            writes: Semaphore::new(settings.writes.max(1)),
            metrics: counters,
            recorder,
            recording,
            tasks,
            settings: Arc::new(settings),
        });
        metrics.collector(Box::new(Now(Arc::downgrade(&gate))));
        gate
    }

    /// Starts what runs for all sessions. It ends when `stop` is cancelled, which is to happen after the
    /// sessions have been sent away ([`Gate::drain`]). A gateway that lacks one of these serves nobody well; usage alone
    /// may be missing.
    pub fn start(self: &Arc<Self>, stop: &CancellationToken) {
        self.tasks.vital("term", term::renew(Arc::clone(self), stop.clone()));
        self.tasks.vital("term-supervision", term::supervise(Arc::clone(self), stop.clone()));
        self.tasks.vital("desired-state", feed::run(Arc::clone(self), stop.clone()));
        self.tasks.vital("holds", holds::run(Arc::clone(self), stop.clone()));
        self.tasks.vital("records", records::run(Arc::clone(self), stop.clone()));
        self.tasks.vital("fleet", publish::run(Arc::clone(self), stop.clone()));
        self.tasks.vital("addresses", addresses::run(Arc::clone(self), stop.clone()));
        let (gate, until) = (Arc::clone(self), stop.clone());
        self.tasks.vital("opened-secrets", async move { gate.opened.sweep(&until).await });
        self.tasks.vital("session-claims", rows::claim(Arc::clone(self), stop.clone()));
        self.tasks.vital("session-releases", rows::release(Arc::clone(self), stop.clone()));
        self.tasks.vital("heartbeats", beats::run(Arc::clone(self), stop.clone()));
        self.tasks.spawn("samples", samples::run(Arc::clone(self), stop.clone()));
    }

    /// Takes no new sessions and sends those that are open away, spread over time so that the other gateways
    /// are not overrun: the fewer there are, the sooner it is done.
    pub async fn drain(&self) {
        self.term.drain();
        let each = std::time::Duration::from_millis(20);
        let over = each.saturating_mul(u32::try_from(self.sessions.len()).unwrap_or(u32::MAX));
        term::send_away(self, over.min(self.settings.drain_over), "this gateway is shutting down").await;
        while !self.sessions.is_empty() {
            tokio::time::sleep(each).await;
        }
    }

    /// Something that every push is made with is another now: each session looks at its node again.
    pub fn look_again(&self) {
        for session in self.sessions.all() {
            session.bell.ring(Hurry::Normal);
        }
    }

    /// Ends the recording of Events; what waits is still written.
    pub fn stop_recording(&self) {
        self.recording.cancel();
    }

    /// Ends this gateway's term, so that what it could not give up can be claimed by others at once.
    pub async fn retire(&self) {
        match tokio::time::timeout(self.settings.claim_timeout, self.store.retire_gateway(self.id)).await {
            Ok(Ok(())) => tracing::info!("the gateway has retired"),
            _ => tracing::warn!("the gateway could not retire; its term will run out"),
        }
    }

    /// Whether this gateway should be sent nodes; the error says what is missing.
    pub fn readiness(&self) -> Result<(), String> {
        match self.term.standing() {
            Standing::Suspended => Err("the gateway's term is not in force".to_owned()),
            Standing::Draining => Err("shutting down".to_owned()),
            Standing::Active if !self.index.is_loaded() => Err("desired state is not loaded".to_owned()),
            Standing::Active => Ok(()),
        }
    }
}
