//! [`App`]: what all connections and requests share.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::Authorizer;
use horchestra_auth::tokens::Issuer;
use horchestra_core::registry;
use horchestra_runtime::Checks;
use horchestra_service::Service;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Catalog;
use crate::documents::Documents;
use crate::fleet::Fleets;
use crate::frames::Frames;
use crate::handlers::logs::LogSlots;
use crate::http::limits::{InFlight, Limits};
use crate::http::patience::Parking;
use crate::http::route::Served;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::usage::Usage;

/// Bytes of encoded watch frames that are kept for other watchers.
const FRAMES: usize = 16 << 20;

/// What an [`App`] is made of.
pub struct Parts {
    pub service: Service,
    pub authorizer: Arc<Authorizer>,
    /// `None`: workloads have no tokens, and nothing of an issuer is served.
    pub issuer: Option<Arc<Issuer>>,
    pub checks: Checks,
    pub metrics: Metrics,
    pub limits: Limits,
    /// `None`: logs are answered with 503.
    pub relay: Option<Relay>,
    /// Whether the logs of agents can be read.
    pub node_logs: bool,
    /// How long the client of a stream may take nothing while there is something for it.
    pub patience: Duration,
}

/// The usual [`Parts::patience`].
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The state behind every request.
pub struct App {
    parts: Parts,
    served: Served,
    documents: Documents,
    in_flight: Arc<InFlight>,
    parking: Parking,
    frames: Frames,
    log_slots: Arc<LogSlots>,
    usage: Usage,
    catalog: Catalog,
    fleets: Fleets,
    drain: CancellationToken,
    tasks: TaskTracker,
}

impl App {
    pub fn new(parts: Parts) -> Arc<App> {
        let served = Served::new(registry::served().iter().map(|spec| spec.kind));
        Arc::new(App {
            served: match &parts.issuer {
                Some(issuer) => served.with_issuer(issuer.is_address()),
                None => served,
            }
            .with_node_logs(parts.node_logs),
            documents: Documents::new(),
            in_flight: InFlight::new(parts.limits),
            parking: Parking::default(),
            frames: Frames::new(FRAMES),
            log_slots: Arc::default(),
            usage: Usage::new(parts.service.store().clone()),
            catalog: Catalog::new(parts.service.store().clone()),
            fleets: Fleets::default(),
            drain: CancellationToken::new(),
            tasks: TaskTracker::new(),
            parts,
        })
    }

    pub fn service(&self) -> &Service {
        &self.parts.service
    }

    pub fn authorizer(&self) -> &Arc<Authorizer> {
        &self.parts.authorizer
    }

    pub fn issuer(&self) -> Option<&Issuer> {
        self.parts.issuer.as_deref()
    }

    pub fn checks(&self) -> &Checks {
        &self.parts.checks
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub fn relay(&self) -> Option<&Relay> {
        self.parts.relay.as_ref()
    }

    pub fn patience(&self) -> Duration {
        self.parts.patience
    }

    pub fn served(&self) -> &Served {
        &self.served
    }

    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    pub fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    pub fn parking(&self) -> &Parking {
        &self.parking
    }

    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    pub fn log_slots(&self) -> &Arc<LogSlots> {
        &self.log_slots
    }

    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub fn fleets(&self) -> &Fleets {
        &self.fleets
    }

    /// The tasks that feed streams. They end with their streams, which end with the drain.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Begins the end: streams finish with their last frame.
    pub fn drain(&self) {
        self.drain.cancel();
        self.tasks.close();
    }

    pub fn draining(&self) -> &CancellationToken {
        &self.drain
    }
}
