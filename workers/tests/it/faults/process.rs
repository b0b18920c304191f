//! A process that runs every loop, one pass of each at a time.

use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::Metrics;
use horchestra_service::Service;
use horchestra_store::{Change, MemoryBackend, Retention, StoreOptions};
use horchestra_workers::certificates::metrics::CertificateMetrics;
use horchestra_workers::certificates::reconcile::NodeCertificates;
use horchestra_workers::compaction::Compaction;
use horchestra_workers::expiry::EventRetention;
use horchestra_workers::gc::{GarbageCollection, Limits};
use horchestra_workers::holds::{HoldMetrics, PushHolds};
use horchestra_workers::lifecycle::NodeLifecycle;
use horchestra_workers::scheduler::metrics::SchedulerMetrics;
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};
use horchestra_workers::scheduler::reconcile::Scheduler;
use horchestra_workers::sets::{SetMetrics, Sets};
use horchestra_workers::substrate::{PassError, Reconciler, Term};
use uuid::Uuid;

use super::plane::{Plane, connect};

/// Every loop, by the name of its lease.
pub const LOOPS: [&str; 7] = [
    "scheduler",
    "applicationset",
    "node-lifecycle",
    "push-holds",
    "node-csr",
    "garbage-collection",
    "compaction",
];

/// Nobody takes a lease by itself within a test.
const TERM: Duration = Duration::from_secs(100 * 24 * 3600);

pub struct Process {
    pub backend: Arc<MemoryBackend>,
    pub service: Service,
    /// Whether it makes sure before it looks that it knows of everything.
    pub careful: bool,
    loops: Vec<(Box<dyn Reconciler>, Term)>,
}

/// One of each, with nothing in mind.
pub fn loops(plane: &Plane, service: &Service) -> [Box<dyn Reconciler>; 7] {
    loops_on(plane, service, &Metrics::new("test", "0", None))
}

/// The same, shown on this page.
pub fn loops_on(plane: &Plane, service: &Service, metrics: &Metrics) -> [Box<dyn Reconciler>; 7] {
    let recorder = plane.recorder.clone();
    let at = || service.clone();
    let profile = default_profile(Strategy::Spread).unwrap();
    let certificates = CertificateMetrics::new(metrics);
    [
        Box::new(Scheduler::new(at(), profile, recorder.clone(), SchedulerMetrics::new(metrics))),
        Box::new(Sets::new(at(), recorder.clone(), SetMetrics::new(metrics))),
        Box::new(NodeLifecycle::new(at(), recorder.clone())),
        Box::new(PushHolds::new(at(), recorder.clone(), HoldMetrics::new(metrics))),
        Box::new(NodeCertificates::new(at(), recorder, Some(plane.signer.clone()), certificates)),
        Box::new(GarbageCollection::new(at(), Limits::default(), metrics)),
        Box::new(Compaction::new(at(), Retention::default(), EventRetention::default(), metrics)),
    ]
}

/// The process was killed.
#[derive(Debug)]
pub struct Died;

impl Process {
    /// A process that leads every loop.
    pub async fn start(plane: &Plane) -> Process {
        Process::on(plane, plane.database.connect()).await
    }

    pub async fn on(plane: &Plane, backend: Arc<MemoryBackend>) -> Process {
        let mut terms = Vec::new();
        for name in LOOPS {
            let lease = plane.store().acquire_lease(name, Uuid::new_v4(), TERM).await.unwrap();
            terms.push(Term { lease: lease.expect("nobody else leads") });
        }
        Process::with(plane, backend, terms).await
    }

    /// Another process that takes itself for the leader just as this one does, and that no fence keeps out.
    pub async fn double(&self, plane: &Plane) -> Process {
        let terms = self.loops.iter().map(|(_, term)| term.clone()).collect();
        Process::with(plane, plane.database.connect(), terms).await
    }

    async fn with(plane: &Plane, backend: Arc<MemoryBackend>, terms: Vec<Term>) -> Process {
        // It hears of changes, or asks; a look at the log now and then would help it out of every ignorance.
        let options = StoreOptions { poll: Duration::from_secs(24 * 3600), ..StoreOptions::default() };
        let service = connect(Arc::clone(&backend), options).await;
        let loops = loops(plane, &service).into_iter().zip(terms).collect();
        Process { backend, service, careful: true, loops }
    }

    /// One pass of every loop. A loop whose lease is another's, or that cannot reach the database, does nothing.
    pub async fn pass(&mut self) -> Result<usize, Died> {
        let backend = Arc::clone(&self.backend);
        tokio::select! {
            biased;
            () = backend.died() => Err(Died),
            written = self.look() => Ok(written),
        }
    }

    async fn look(&mut self) -> usize {
        let mut written = 0;
        for (reconciler, term) in &mut self.loops {
            if self.careful {
                let _ = self.service.store().fresh().await;
            }
            match reconciler.pass(term).await {
                Ok(report) => written += report.writes,
                Err(PassError::Deposed | PassError::Read(_)) => {}
                Err(error) => panic!("{}: {error}", reconciler.name()),
            }
        }
        written
    }

    /// Whether a change leads to a pass of a loop.
    pub fn wakes(&self, name: &str, change: &Change) -> bool {
        let found = self.loops.iter().find(|(reconciler, _)| reconciler.name() == name);
        found.expect("a loop").0.wakes(change)
    }

    /// The term of a loop.
    pub fn term(&self, name: &str) -> &Term {
        &self.loops.iter().find(|(_, term)| term.lease.name == name).expect("a loop").1
    }

    /// Its leases are free again, as when their time is over.
    pub async fn leave(&self, plane: &Plane) {
        for (_, term) in &self.loops {
            plane.store().release_lease(&term.lease).await.unwrap();
        }
    }
}
