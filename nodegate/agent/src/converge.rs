//! Makes a node run what a push says, one pass at a time.
//!
//! A pass goes through everything in a fixed order (routes and rules, volumes, applications in random
//! order, units that nobody wants, data of volumes that are gone) and holds against
//! whatever it finds: it may be the first after a restart or the thousandth without
//! a change. A failure of one application is logged and stops no other; it never
//! becomes a message in a status.
//!
//! By default applications are handled one after the other, so that one slow pull
//! or one workload that does not want to stop delays all others on the node. That
//! is how deployed agents behave, and anything faster makes measurements of the
//! control plane look better than they will be. `Order::Parallel` is there for
//! people who are in a hurry.
//!
//! What a pass has learnt lives as long as the process: the generation that it
//! applied, the runs it counted and the pace of restarts. After a restart of the
//! agent the first is unknown until the next success, although workloads run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::datapath::Datapath;
use crate::desired::{Amounts, App, Desired, RestartPolicy, Source, volume_id};
use crate::journal::{NodeJournal, Stopped};
use crate::render::{self, ApplyError};
use crate::status::{self, Memory};
use crate::units::{self, DEFAULT_GRACE_SECONDS, Held, Inputs, Observation, UnitError, Units, Why};
use crate::volumes::Volumes;

/// Pause before each restart by the agent; the last one repeats.
const PACE: [u64; 8] = [0, 0, 15, 30, 60, 120, 240, 300];
/// A run this long makes up for all failures before it.
const LONG_RUN: Duration = Duration::from_secs(600);

/// How many applications are handled at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Order {
    /// One after the other.
    #[default]
    Serial,
    /// All at once.
    Parallel,
}

/// How a pass behaves.
#[derive(Debug, Clone, Default)]
pub struct ConvergeOptions {
    /// How many applications at a time.
    pub order: Order,
    /// How long an image takes that is not known yet.
    pub pull_delay: Duration,
    /// Every this many passes the unit manager cannot be reached; 0 = never.
    pub init_flap: u32,
    /// Workloads can have networks of their own (nothing is wired, though).
    pub routed_network: bool,
    /// Volumes with tokens are refused, as agents of the 0.9 line do.
    pub no_token_volumes: bool,
    /// Routes and rules for Services are judged (nothing is programmed, though).
    pub datapath: bool,
}

/// When the agent restarts a unit that its manager has given up.
#[derive(Debug, Clone, Default)]
struct Pace {
    digest: String,
    restarts: usize,
    /// Set when a failure has been seen that no restart has answered yet.
    next: Option<Instant>,
}

#[derive(Debug, Default)]
struct Known {
    memory: HashMap<Uuid, Memory>,
    pace: HashMap<Uuid, Pace>,
    images: HashSet<String>,
    passes: u32,
    reachable: bool,
    allocated: Amounts,
}

/// Brings a node to what is wanted, and reports what came of it.
#[derive(Debug)]
pub struct Converger {
    options: ConvergeOptions,
    units: Arc<Units>,
    volumes: Volumes,
    /// What workloads with a token are to believe the control plane by (PEM).
    trusted: Vec<u8>,
    datapath: Datapath,
    journal: NodeJournal,
    known: Mutex<Known>,
}

impl Converger {
    /// A converger that has learnt nothing yet.
    pub fn new(options: ConvergeOptions, units: Arc<Units>, volumes: Volumes, trusted: Vec<u8>) -> Self {
        let (datapath, known, journal) = (Datapath::default(), Mutex::default(), NodeJournal::default());
        Self { options, units, volumes, trusted, datapath, journal, known }
    }

    /// With what happens written down.
    pub fn with_journal(self, journal: NodeJournal) -> Self {
        Self { journal, ..self }
    }

    /// What has happened.
    pub fn journal(&self) -> &NodeJournal {
        &self.journal
    }

    /// One pass. Returns early when interrupted; what is done already stays done.
    pub async fn pass(&self, desired: &Desired, interrupt: &CancellationToken) {
        let reachable = {
            let mut known = self.known.lock();
            known.passes = known.passes.wrapping_add(1);
            let flap = self.options.init_flap;
            known.reachable = flap == 0 || !known.passes.is_multiple_of(flap);
            known.reachable
        };
        if self.options.datapath
            && let Err(error) = self.datapath.program(&desired.routes, &desired.services)
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot program the network");
        }
        if let Err(error) = self.volumes.provision(&desired.volumes) {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot make a volume");
        }
        let mut apps = desired.apps.clone();
        apps.shuffle(&mut rand::rng());
        let at_once = match self.options.order {
            Order::Serial => 1,
            Order::Parallel => 64,
        };
        let applied = futures::stream::iter(&apps).for_each_concurrent(at_once, async |app| {
            if interrupt.is_cancelled() {
                return;
            }
            if let Err(error) = self.apply(app, desired, reachable, interrupt).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, namespace = app.namespace, name = app.name, "not applied");
            }
        });
        applied.await;
        if reachable && !interrupt.is_cancelled() {
            self.remove_unwanted(desired, interrupt).await;
            match self.volumes.reclaim(desired) {
                Ok(gone) => gone.iter().for_each(|(id, kept)| self.journal.volume_gone(id, *kept)),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot remove a volume's data");
                }
            }
        }
        self.settle(desired);
    }

    /// Routes and rules, as far as this node has a use for them.
    pub fn datapath(&self) -> &Datapath {
        &self.datapath
    }

    /// Sums up what is allocated, as far as this pass has seen.
    fn settle(&self, desired: &Desired) {
        let mut allocated = Amounts::default();
        for app in &desired.apps {
            let status = self.status(app, desired);
            if !status::is_terminal(app, &status.phase, status.attempts) {
                allocated = allocated.plus(&app.effective);
            }
        }
        self.known.lock().allocated = allocated;
    }

    /// Requests of everything wanted that is not over, as of the last pass.
    pub fn allocated(&self) -> Amounts {
        self.known.lock().allocated
    }

    /// The report on one application.
    pub fn status(&self, app: &App, desired: &Desired) -> horchestra_proto::node::v1::AppStatus {
        let (memory, reachable) = {
            let known = self.known.lock();
            (known.memory.get(&app.uid).copied().unwrap_or_default(), known.reachable)
        };
        let held = if reachable { self.units.observe(app.uid) } else { None };
        let address = desired.addresses.get(&app.uid).map(String::as_str);
        status::derive(app, held.as_ref(), memory, address)
    }

    async fn apply(
        &self,
        app: &App,
        desired: &Desired,
        reachable: bool,
        interrupt: &CancellationToken,
    ) -> Result<(), ApplyError> {
        if !reachable {
            return Err(ApplyError::Unreachable);
        }
        if app.deleting {
            let held = self.units.holds(app.uid);
            self.units.stop(app.uid, removal_grace(app.grace_seconds), interrupt).await?;
            if held {
                self.journal.stopped(app.uid, Stopped::Deleting);
            }
            self.forget(app.uid);
            return Ok(());
        }
        if !self.fits(app, desired) {
            return Ok(());
        }
        if self.options.no_token_volumes && mounts_token(app) {
            return Err(ApplyError::Token);
        }
        let inputs = Inputs {
            files: render::files(app, desired, &self.trusted)?,
            env: render::environment(app, desired)?,
        };
        self.pull(&app.image, interrupt).await?;
        if app.isolated && !(self.options.routed_network && desired.addresses.contains_key(&app.uid)) {
            return Err(ApplyError::Network);
        }
        self.run(app, inputs, interrupt).await?;
        if self.units.observe(app.uid).is_some() {
            self.units.freeze(app.uid, app.frozen);
        }
        self.known.lock().memory.entry(app.uid).or_default().applied = app.generation;
        Ok(())
    }

    /// Starts, restarts, replaces or leaves alone.
    async fn run(&self, app: &App, inputs: Inputs, interrupt: &CancellationToken) -> Result<(), ApplyError> {
        let digest = render::digest(app, &inputs.env);
        let held = self.units.observe(app.uid);
        let counted = self.known.lock().memory.get(&app.uid).map_or(0, |memory| memory.runs);
        match &held {
            Some(unit) if unit.digest != digest => {
                if unit.state == Held::Active {
                    let grace = units::seconds(unit.grace_seconds.max(0).unsigned_abs());
                    self.units.stop(app.uid, grace, interrupt).await?;
                }
                self.forget(app.uid);
                self.start(app, inputs, digest, app.pushed_attempts.max(0)).await
            }
            Some(unit) => {
                let counted = counted.max(unit.runs);
                let spent = status::attempts(app, held.as_ref(), counted);
                self.known.lock().memory.entry(app.uid).or_default().runs = spent;
                if self.should_restart(app, unit, spent) {
                    self.start(app, inputs, digest, spent).await
                } else {
                    Ok(self.units.refresh(app.uid, &inputs)?)
                }
            }
            None => {
                let spent = status::attempts(app, None, counted);
                if app.frozen || (app.is_job() && spent > app.backoff_limit) {
                    return Ok(());
                }
                self.start(app, inputs, digest, spent).await
            }
        }
    }

    fn should_restart(&self, app: &App, unit: &Observation, spent: i32) -> bool {
        let Held::Ended(ending) = &unit.state else { return false };
        let allowed = match app.restart {
            RestartPolicy::Never => !ending.succeeded() && spent <= app.backoff_limit,
            RestartPolicy::OnFailure => !ending.succeeded(),
            RestartPolicy::Always => true,
        };
        if !allowed || app.frozen {
            return false;
        }
        let now = Instant::now();
        let mut known = self.known.lock();
        let pace = known.pace.entry(app.uid).or_default();
        if pace.digest != unit.digest {
            *pace = Pace { digest: unit.digest.clone(), ..Pace::default() };
        }
        let ran = ending.at_unix_nano.saturating_sub(unit.since_unix_nano);
        if pace.next.is_none()
            && ending.why != Why::Lost
            && u128::try_from(ran).unwrap_or(0) > LONG_RUN.as_nanos()
        {
            pace.restarts = 0;
        }
        let pause = Duration::from_secs(PACE[pace.restarts.min(PACE.len() - 1)]);
        if *pace.next.get_or_insert(now + pause) > now {
            return false;
        }
        pace.next = None;
        pace.restarts += 1;
        true
    }

    /// Starts a unit. A run of a job counts from here on, whatever comes of it.
    async fn start(&self, app: &App, inputs: Inputs, digest: String, spent: i32) -> Result<(), ApplyError> {
        let runs = if app.is_job() { spent + 1 } else { 0 };
        self.known.lock().memory.entry(app.uid).or_default().runs = runs;
        let spec = render::unit(app, digest, runs);
        Ok(self.units.start(spec, inputs).await?)
    }

    /// All of its volumes are on this node.
    fn fits(&self, app: &App, desired: &Desired) -> bool {
        app.mounts.iter().all(|mount| match &mount.source {
            Source::Volume { name, .. } => {
                let id = volume_id(&app.namespace, name);
                desired.volumes.iter().any(|volume| volume.id == id)
            }
            _ => true,
        })
    }

    async fn pull(&self, image: &str, interrupt: &CancellationToken) -> Result<(), ApplyError> {
        if self.options.pull_delay.is_zero() || self.known.lock().images.contains(image) {
            return Ok(());
        }
        let pulled = interrupt.run_until_cancelled(tokio::time::sleep(self.options.pull_delay)).await;
        pulled.ok_or(UnitError::Interrupted)?;
        self.known.lock().images.insert(image.to_owned());
        Ok(())
    }

    async fn remove_unwanted(&self, desired: &Desired, interrupt: &CancellationToken) {
        let wanted: HashSet<Uuid> = desired.apps.iter().map(|app| app.uid).collect();
        let unwanted: Vec<Uuid> = self.units.list().into_iter().filter(|uid| !wanted.contains(uid)).collect();
        for uid in unwanted {
            // Nothing says any more how long it may take.
            let grace = removal_grace(None);
            match self.units.stop(uid, grace, interrupt).await {
                Ok(()) => {
                    self.journal.stopped(uid, Stopped::Unwanted);
                    tracing::info!(%uid, "removed a unit that nobody wants");
                }
                Err(error) => {
                    tracing::warn!(%uid, error = &error as &dyn std::error::Error, "a unit was not removed");
                }
            }
        }
        let mut known = self.known.lock();
        known.memory.retain(|uid, _| wanted.contains(uid));
        known.pace.retain(|uid, _| wanted.contains(uid));
    }

    fn forget(&self, uid: Uuid) {
        let mut known = self.known.lock();
        known.memory.remove(&uid);
        known.pace.remove(&uid);
    }
}

fn mounts_token(app: &App) -> bool {
    app.mounts.iter().any(|mount| matches!(mount.source, Source::Token { .. }))
}

/// Removal cannot tell a grace of zero from none.
fn removal_grace(seconds: Option<i64>) -> Duration {
    let seconds = seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_GRACE_SECONDS);
    units::seconds(seconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use horchestra_proto::node::v1::DesiredState;
    use serde_json::json;

    use super::*;
    use crate::units::simulated::{Simulation, SimulationOptions};

    fn converger() -> Converger {
        let simulation = Simulation::new(SimulationOptions::default());
        let units = Arc::new(Units::new(None, simulation));
        Converger::new(ConvergeOptions::default(), units, Volumes::open(None).expect("opens"), Vec::new())
    }

    fn push(lifecycle: &serde_json::Value, image: &str) -> Desired {
        let app = json!({
            "metadata": {"uid": "6f1c0c2e-9a3b-4f6e-8a55-0d6f4f1f2a01", "name": "web", "generation": 1},
            "spec": {"image": image, "placement": {"nodeName": "n1"}, "lifecycle": lifecycle,
                     "env": [{"name": "SIM_RUN_SECONDS", "value": "0"}, {"name": "SIM_EXIT_CODE", "value": "1"}]},
        });
        let state = DesiredState { applications: vec![app.to_string().into()], ..DesiredState::default() };
        Desired::read(&state, "n1")
    }

    /// Seconds since the last start at which the unit was started again, by a pass
    /// each second.
    async fn restarts(converger: &Converger, desired: &Desired, count: usize) -> Vec<u64> {
        let uid = desired.apps[0].uid;
        let never = CancellationToken::new();
        let since = || converger.units.observe(uid).map(|unit| unit.since_unix_nano);
        let mut pauses = Vec::new();
        let mut pause = 0;
        let mut last = since();
        while pauses.len() < count {
            converger.pass(desired, &never).await;
            if since() == last {
                pause += 1;
                tokio::time::advance(Duration::from_secs(1)).await;
            } else {
                pauses.push(pause);
                pause = 0;
                last = since();
            }
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_slow_down_until_the_configuration_changes() {
        let converger = converger();
        let first = push(&json!({}), "a");
        let paces = [0, 0, 0, 15, 30, 60, 120, 240, 300, 300];
        assert_eq!(restarts(&converger, &first, paces.len()).await, paces);
        let changed = push(&json!({}), "b");
        assert_eq!(restarts(&converger, &changed, 5).await, [0, 0, 0, 15, 30]);
        // What was gone for a while starts from the beginning.
        converger.pass(&Desired::default(), &CancellationToken::new()).await;
        assert_eq!(restarts(&converger, &changed, 4).await, [0, 0, 0, 15]);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_of_a_job_keep_the_same_pace_and_end_with_its_budget() {
        let converger = converger();
        let job = push(&json!({"restartPolicy": "Never", "backoffLimit": 4}), "a");
        assert_eq!(restarts(&converger, &job, 5).await, [0, 0, 0, 15, 30]);
        let app = &job.apps[0];
        for _ in 0..1000 {
            converger.pass(&job, &CancellationToken::new()).await;
            assert_eq!(converger.status(app, &job).attempts, 5);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(converger.status(app, &job).exit_code, 1);
    }

    #[tokio::test]
    async fn an_interrupted_pass_removes_nothing() {
        let converger = converger();
        let desired = push(&json!({}), "a");
        let interrupt = CancellationToken::new();
        converger.pass(&desired, &interrupt).await;
        assert_eq!(converger.units.list().len(), 1);
        interrupt.cancel();
        converger.pass(&Desired::default(), &interrupt).await;
        assert_eq!(converger.units.list().len(), 1);
    }
}
