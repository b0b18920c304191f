//! A node: sessions one after the other, for ever.
//!
//! Whatever ends a session, or keeps one from beginning, the answer is the same: log
//! it, wait a fixed time, dial again. There is no growing pause and no status that
//! means "do not come back". Workloads do not notice.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::converge::{ConvergeOptions, Converger};
use crate::datapath::Datapath;
use crate::dial::dial;
use crate::identity::{Identity, IdentityError};
use crate::journal::{Journal, NodeJournal};
use crate::machine::Machine;
use crate::session::{self, Parts};
use crate::units::Units;
use crate::units::process::Processes;
use crate::units::simulated::{Simulation, SimulationOptions};
use crate::volumes::Volumes;

/// Pause between the end of a session and the next dialing.
pub const RECONNECT: Duration = Duration::from_secs(5);
/// Heartbeat of fleets that are installed the documented way.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Why a node cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It has no name.
    #[error("this identity is not one of a node")]
    Identity(#[from] IdentityError),
    /// Its state cannot be kept.
    #[error("cannot use the state directory")]
    State(#[from] io::Error),
}

/// How a node behaves.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Between two heartbeats, and between two passes.
    pub heartbeat: Duration,
    /// Between the end of a session and the next dialing. Deployed agents take 5 s;
    /// anything else is for tests.
    pub reconnect: Duration,
    /// What the node says that it has.
    pub machine: Machine,
    /// How passes behave.
    pub converge: ConvergeOptions,
    /// How simulated workloads behave. Their directory is set from `state`.
    pub simulation: SimulationOptions,
    /// Where what must survive a restart is kept; `None` = nothing survives.
    pub state: Option<PathBuf>,
    /// Program that supervises workloads with commands, for `state`; `None` = such
    /// workloads are simulated, too.
    pub supervisor: Option<PathBuf>,
    /// The agent's own log.
    pub own_log: Option<PathBuf>,
    /// Where what happens is written down.
    pub journal: Option<Arc<Journal>>,
}

impl Default for NodeOptions {
    /// A simulated node on this machine that keeps nothing.
    fn default() -> Self {
        Self {
            heartbeat: HEARTBEAT,
            reconnect: RECONNECT,
            machine: Machine::here(),
            converge: ConvergeOptions::default(),
            simulation: SimulationOptions::default(),
            state: None,
            supervisor: None,
            own_log: None,
            journal: None,
        }
    }
}

/// A node that can be run.
pub struct Node {
    controller: Controller,
    identity: Identity,
    reconnect: Duration,
    parts: Arc<Parts>,
}

impl Node {
    /// Prepares a node. Workloads that an earlier process left running are found
    /// again, and judged by the first pass.
    pub fn new(controller: Controller, identity: Identity, options: NodeOptions) -> Result<Self, NodeError> {
        let name = identity.node_name()?.to_owned();
        let units = Arc::new(open_units(&options)?);
        let volumes = Volumes::open(options.state.as_ref().map(|state| state.join("volumes")))?;
        let mut machine = options.machine;
        machine.routed_network = options.converge.routed_network;
        let trusted = identity.authorities().to_vec();
        let journal = NodeJournal::new(options.journal, &name);
        let parts = Arc::new(Parts {
            name,
            machine,
            heartbeat: options.heartbeat,
            own_log: options.own_log,
            units: units.clone(),
            converger: Converger::new(options.converge, units, volumes, trusted).with_journal(journal),
        });
        Ok(Self { controller, identity, reconnect: options.reconnect, parts })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// What it would have programmed into its network.
    pub fn datapath(&self) -> &Datapath {
        self.parts.converger.datapath()
    }

    /// Keeps a session with the control plane until it is to stop. Workloads stay.
    pub async fn run(&self, stop: CancellationToken) {
        let sessions = self.sessions(&stop);
        // Also without a control plane, stops that were begun come to an end.
        let reaping = async {
            if !self.parts.units.runs_commands() {
                std::future::pending::<()>().await;
            }
            let mut rhythm = interval(self.parts.heartbeat.max(Duration::from_millis(1)));
            rhythm.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                rhythm.tick().await;
                self.parts.units.reap_stalled();
            }
        };
        tokio::select! {
            () = sessions => {}
            () = reaping => {}
        }
    }

    async fn sessions(&self, stop: &CancellationToken) {
        let name = self.name();
        while !stop.is_cancelled() {
            match stop.run_until_cancelled(dial(&self.controller, &self.identity)).await {
                None => return,
                Some(Err(error)) => {
                    tracing::warn!(node = name, error = &error as &dyn std::error::Error, "no connection");
                }
                Some(Ok(connection)) => {
                    tracing::info!(node = name, controller = %self.controller, "session opened");
                    let status = session::run(&self.parts, connection, stop).await;
                    let code = status.as_ref().map(tonic::Status::code);
                    let message = status.as_ref().map(tonic::Status::message);
                    tracing::info!(node = name, ?code, message, "session ended");
                }
            }
            stop.run_until_cancelled(tokio::time::sleep(self.reconnect)).await;
        }
    }
}

/// Opens what keeps workloads running, and finds what it holds already.
pub fn open_units(options: &NodeOptions) -> io::Result<Units> {
    let mut simulation = options.simulation.clone();
    let mut processes = None;
    if let Some(state) = &options.state {
        let simulated = state.join("simulated");
        std::fs::create_dir_all(&simulated)?;
        simulation.directory = Some(simulated);
        if let Some(program) = &options.supervisor {
            processes = Some(Processes::open(state.join("units"), state.join("logs"), program.clone())?);
        }
    }
    Ok(Units::new(processes, Simulation::new(simulation)))
}
