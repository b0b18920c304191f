//! What keeps workloads running on this machine, apart from any control plane.
//!
//! A node agent does not run workloads itself: it tells a unit manager to, and asks
//! it what it holds. Here there are two. [`process`] runs commands as children of a
//! small supervisor each, which outlives the agent; [`simulated`] holds workloads
//! that are nothing but a start time. Both answer the same questions, so that what
//! the agent decides and reports does not depend on what runs underneath.

pub mod ledger;
pub mod process;
pub mod procfs;
mod projected;
pub mod shim;
pub mod simulated;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::desired::RestartPolicy;
use crate::units::process::Processes;
use crate::units::simulated::Simulation;

/// Why a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It ended by itself.
    Exit,
    /// It was stopped because its time was up.
    Deadline,
    /// It ended too often in too short a time.
    StartLimit,
    /// It was stopped on request.
    Stopped,
    /// Nobody saw how it ended: the machine or its supervisor went down.
    Lost,
}

/// How a unit ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Exit code; 128 + n when signal n killed it.
    pub code: i32,
    /// When, in nanoseconds since the epoch.
    pub at_unix_nano: i64,
    /// Why.
    pub why: Why,
}

impl Ending {
    /// It ended by itself, and well.
    pub fn succeeded(&self) -> bool {
        self.code == 0 && self.why == Why::Exit
    }
}

/// What is held of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// Running, or on the way to or from it.
    Active,
    /// Over, and not started again by the unit manager.
    Ended(Ending),
}

/// A look at one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What is held.
    pub state: Held,
    /// Digest of the configuration that it was started with.
    pub digest: String,
    /// Runs counted when it was started; 0 for services.
    pub runs: i32,
    /// Seconds between asking it to stop and killing it.
    pub grace_seconds: i64,
    /// When it was started, in nanoseconds since the epoch.
    pub since_unix_nano: i64,
}

impl Observation {
    /// A unit in this state about which nothing else is known.
    pub fn new(state: Held) -> Self {
        Self {
            state,
            digest: String::new(),
            runs: 0,
            grace_seconds: DEFAULT_GRACE_SECONDS,
            since_unix_nano: 0,
        }
    }
}

/// No deadline and no grace counts beyond this: a hundred years. Whatever is added to
/// a clock stays below what clocks can say, in nanoseconds as well.
pub const LONGEST_SECONDS: u64 = 100 * 365 * 86_400;

/// A time of so many seconds, a hundred years at most.
pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(LONGEST_SECONDS))
}

/// Grace of a unit about which nothing is known.
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// How to run a workload. Written down beside it, so it holds no secret value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSpec {
    /// uid of the Application.
    pub uid: Uuid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Program and arguments; empty = simulate.
    pub argv: Vec<String>,
    /// When to start it again.
    pub restart: RestartPolicy,
    /// Seconds between asking it to stop and killing it.
    pub grace_seconds: i64,
    /// Longest run, in seconds.
    pub deadline_seconds: Option<u64>,
    /// User to run as, where the supervisor may choose; never root, see
    /// [`shim::identity`].
    pub user: Option<u32>,
    /// Group to run as, where the supervisor may choose.
    pub group: Option<u32>,
    /// Digest of everything whose change calls for a restart.
    pub digest: String,
    /// Runs that a job has spent, this one included; 0 for services.
    pub runs: i32,
}

/// Variables of a workload, in order.
pub type Environment = Vec<(String, String)>;

/// Files of a workload: content by relative path.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What a workload is given, some of it secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Its variables.
    pub env: Environment,
    /// Files with keys of Secrets and with tokens.
    pub files: Files,
}

impl std::fmt::Debug for Inputs {
    /// Without values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        let paths: Vec<&PathBuf> = self.files.keys().collect();
        f.debug_struct("Inputs").field("env", &names).field("files", &paths).finish()
    }
}

/// Resources that a unit used since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time.
    pub cpu_usec: i64,
    /// Resident memory now.
    pub memory_bytes: i64,
    /// Most resident memory seen.
    pub memory_peak_bytes: i64,
    /// Threads now.
    pub pids: i64,
}

/// Why the unit manager did not do something.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// A file of the unit.
    #[error("cannot {what} of unit {uid}")]
    File {
        /// Which unit.
        uid: Uuid,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The supervisor did not come up.
    #[error("the supervisor of unit {0} did not start")]
    NotStarted(Uuid),
    /// It outlived even a kill, or its supervisor has not said which process it is.
    #[error("unit {0} does not go away")]
    Stuck(Uuid),
    /// The session ended in between; what was begun goes on by itself.
    #[error("interrupted")]
    Interrupted,
}

/// Everything that keeps workloads running here.
#[derive(Debug)]
pub struct Units {
    processes: Option<Processes>,
    simulation: Simulation,
}

impl Units {
    /// Without `processes`, commands are simulated too.
    pub fn new(processes: Option<Processes>, simulation: Simulation) -> Self {
        Self { processes, simulation }
    }

    /// uids of all units that are held.
    pub fn list(&self) -> Vec<Uuid> {
        let mut held = self.simulation.list();
        held.extend(self.processes.iter().flat_map(Processes::list));
        held
    }

    /// What is held of a unit, if anything.
    pub fn observe(&self, uid: Uuid) -> Option<Observation> {
        self.simulation.observe(uid).or_else(|| self.processes.as_ref()?.observe(uid))
    }

    /// Starts a unit that is not active, replacing what is left of its last run. Does
    /// not wait for the workload to do anything.
    pub async fn start(&self, spec: UnitSpec, inputs: Inputs) -> Result<(), UnitError> {
        match &self.processes {
            Some(processes) if !spec.argv.is_empty() => {
                self.simulation.remove(spec.uid);
                processes.start(spec, inputs).await
            }
            _ => {
                if let Some(processes) = &self.processes {
                    processes.remove(spec.uid)?;
                }
                self.simulation.start(spec, &inputs.env)
            }
        }
    }

    /// Takes new values to a unit: files change at once, variables count from its next start.
    pub fn refresh(&self, uid: Uuid, inputs: &Inputs) -> Result<(), UnitError> {
        match &self.processes {
            Some(processes) if processes.holds(uid) => processes.write_inputs(uid, inputs),
            _ => Ok(()),
        }
    }

    /// Asks a unit to stop, kills it after its grace, waits until it is over and
    /// forgets it, its log included.
    pub async fn stop(
        &self,
        uid: Uuid,
        grace: Duration,
        interrupt: &CancellationToken,
    ) -> Result<(), UnitError> {
        self.simulation.stop(uid, interrupt).await?;
        match &self.processes {
            Some(processes) => processes.stop(uid, grace, interrupt).await,
            None => Ok(()),
        }
    }

    /// Stops every unit, all at once, each after its own grace.
    pub async fn stop_all(&self) -> Result<(), UnitError> {
        let never = CancellationToken::new();
        let stops = self.list().into_iter().map(|uid| {
            let grace = self.observe(uid).map_or(DEFAULT_GRACE_SECONDS, |unit| unit.grace_seconds);
            self.stop(uid, seconds(grace.max(0).unsigned_abs()), &never)
        });
        futures::future::join_all(stops).await.into_iter().collect()
    }

    /// Holds a unit still, or lets it go on.
    pub fn freeze(&self, uid: Uuid, frozen: bool) {
        if let Some(processes) = &self.processes {
            processes.freeze(uid, frozen);
        }
    }

    /// Kills what was asked to stop and has outstayed its grace, whoever asked.
    pub fn reap_stalled(&self) {
        if let Some(processes) = &self.processes {
            processes.reap_stalled();
        }
    }

    /// Whether commands are run, not simulated.
    pub fn runs_commands(&self) -> bool {
        self.processes.is_some()
    }

    /// What a unit used, where that can be measured.
    pub fn usage(&self, uid: Uuid) -> Option<Usage> {
        self.simulation.usage(uid).or_else(|| self.processes.as_ref()?.usage(uid))
    }

    /// Whether there is anything of a unit.
    pub fn holds(&self, uid: Uuid) -> bool {
        self.simulation.holds(uid) || self.processes.as_ref().is_some_and(|processes| processes.holds(uid))
    }

    /// Where the log of a unit is, also of one that is gone since not long ago.
    pub fn log(&self, uid: Uuid) -> Option<LogSource> {
        self.simulation
            .log(uid)
            .map(LogSource::Simulated)
            .or_else(|| self.processes.as_ref()?.log_file(uid).map(LogSource::File))
    }
}

/// Where a log is read from.
#[derive(Debug, Clone)]
pub enum LogSource {
    /// A file, and the one before it.
    File(PathBuf),
    /// Lines that follow from the start time.
    Simulated(simulated::SimulatedLog),
}

/// Nanoseconds since the epoch, now.
pub(crate) fn now_unix_nano() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
