//! Workloads that are commands, each under its own supervisor.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::units::ledger::{LOG_NAME, StopRequest, UnitDirectory, UnitState};
use crate::units::projected::project;
use crate::units::shim::{self, UNIT_VARIABLE};
use crate::units::{
    Ending, Held, Inputs, Observation, UnitError, UnitSpec, Usage, Why, now_unix_nano, procfs,
};

/// How long the supervisor may take to start its command.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long past its grace a stop may take before the agent kills by itself, and
/// how long after that until it gives up.
const STOP_MARGIN: Duration = Duration::from_secs(10);
/// How many logs of units that are gone are kept.
const KEPT_LOGS: usize = 64;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Units that are processes of this machine.
#[derive(Debug)]
pub struct Processes {
    root: PathBuf,
    logs: PathBuf,
    program: PathBuf,
    peaks: Mutex<HashMap<Uuid, i64>>,
}

impl Processes {
    /// Keeps units below `root`, and logs of units that are gone below `logs`. `program` is started with `run-unit` to supervise
    /// one: the agent's own binary.
    pub fn open(root: PathBuf, logs: PathBuf, program: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&root)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&logs)?;
        // Supervisors work elsewhere.
        let root = root.canonicalize()?;
        Ok(Self { root, logs, program, peaks: Mutex::default() })
    }

    fn directory(&self, uid: Uuid) -> UnitDirectory {
        UnitDirectory::at(self.root.join(uid.to_string()))
    }

    pub(super) fn list(&self) -> Vec<Uuid> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        entries.flatten().filter_map(|entry| Uuid::parse_str(entry.file_name().to_str()?).ok()).collect()
    }

    pub(super) fn holds(&self, uid: Uuid) -> bool {
        self.directory(uid).path().exists()
    }

    /// The log of a unit that is held, or of one that was until not long ago.
    pub(super) fn log_file(&self, uid: Uuid) -> Option<PathBuf> {
        let directory = self.directory(uid);
        if directory.path().exists() {
            return Some(directory.log());
        }
        let kept = self.kept_logs(uid);
        kept.exists().then(|| kept.join(LOG_NAME))
    }

    fn kept_logs(&self, uid: Uuid) -> PathBuf {
        self.logs.join(uid.to_string())
    }

    /// Puts the log of a unit that goes away aside, and forgets the oldest of those.
    fn keep_log(&self, uid: Uuid, directory: &UnitDirectory) -> io::Result<()> {
        let kept = self.kept_logs(uid);
        match std::fs::rename(directory.log_directory(), &kept) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            moved => moved?,
        }
        let mut all: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(&self.logs)?
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        all.sort();
        let too_many = all.len().saturating_sub(KEPT_LOGS);
        all.into_iter().take(too_many).try_for_each(|(_, path)| std::fs::remove_dir_all(path))
    }

    /// Continues a log that was put aside.
    fn take_log_back(&self, uid: Uuid, directory: &UnitDirectory) -> io::Result<()> {
        let kept = self.kept_logs(uid);
        if !kept.exists() || directory.log_directory().exists() {
            return Ok(());
        }
        std::fs::create_dir_all(directory.path())?;
        std::fs::rename(kept, directory.log_directory())
    }

    pub(super) fn observe(&self, uid: Uuid) -> Option<Observation> {
        let directory = self.directory(uid);
        let spec = directory.spec()?;
        let state = directory.state();
        let held = match &state {
            Some(UnitState { ending: Some(ending), .. }) => Held::Ended(ending.clone()),
            Some(state) if state.is_supervised() => Held::Active,
            // The ending may have been written between the two looks.
            Some(_) => Held::Ended(self.settle(&directory)),
            None if directory.is_locked() => Held::Active,
            // Half made by an agent that was killed: it never ran.
            None => return None,
        };
        Some(Observation {
            state: held,
            digest: spec.digest,
            runs: spec.runs,
            grace_seconds: spec.grace_seconds,
            since_unix_nano: state.map_or(0, |state| state.since_unix_nano),
        })
    }

    /// A unit whose supervisor is gone: kills what is left of it, and writes down an
    /// ending where there is none.
    fn settle(&self, directory: &UnitDirectory) -> Ending {
        let Some(mut state) = directory.state() else { return lost() };
        if let Some(ending) = state.ending {
            return ending;
        }
        if let Some(spec) = directory.spec() {
            sweep(&state, spec.uid);
        }
        let ending = lost();
        state.ending = Some(ending.clone());
        state.main = None;
        if let Err(error) = directory.write_state(&state) {
            tracing::warn!(%error, path = %directory.path().display(), "cannot write down that a unit was lost");
        }
        ending
    }

    pub(super) async fn start(&self, spec: UnitSpec, inputs: Inputs) -> Result<(), UnitError> {
        let uid = spec.uid;
        let directory = self.directory(uid);
        let file = |what| move |source| UnitError::File { uid, what, source };
        let deadline = Instant::now() + START_TIMEOUT;
        // The last supervisor may be about to go. While it is there it is not robbed of
        // its files.
        while directory.is_locked() {
            if Instant::now() >= deadline {
                return Err(UnitError::NotStarted(uid));
            }
            sleep(LOOK).await;
        }
        if let Some(state) = directory.state()
            && !state.is_supervised()
        {
            self.settle(&directory);
        }
        self.peaks.lock().remove(&uid);
        self.take_log_back(uid, &directory).map_err(file("find the log"))?;
        shim::prepare(&directory, &spec).map_err(file("make the directory"))?;
        directory.clear_run().map_err(file("clear the last run"))?;
        directory.write_environment(&inputs.env).map_err(file("write the variables"))?;
        project(&directory.files(), &inputs.files, owner(&spec)).map_err(file("write the files"))?;
        directory.write_spec(&spec).map_err(file("write the configuration"))?;
        let mut supervisor = tokio::process::Command::new(&self.program)
            .arg("run-unit")
            .arg(directory.path())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(file("start the supervisor"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        // The handle is dropped at the end: the runtime waits for a supervisor that ends
        // while this agent lives, and the supervisor does not need it to.
        loop {
            let failed = supervisor.try_wait().is_ok_and(|end| end.is_some_and(|end| !end.success()));
            let late = Instant::now() >= deadline;
            match directory.state() {
                Some(state) if state.starts > 0 || state.ending.is_some() => return Ok(()),
                // The disk may have become full since: it is there, and looked after.
                Some(state) if late && state.is_supervised() => return Ok(()),
                _ if failed || late => return Err(UnitError::NotStarted(uid)),
                _ => sleep(LOOK).await,
            }
        }
    }

    pub(super) fn write_inputs(&self, uid: Uuid, inputs: &Inputs) -> Result<(), UnitError> {
        let directory = self.directory(uid);
        let file = |what| move |source| UnitError::File { uid, what, source };
        if directory.environment().as_ref() != Some(&inputs.env) {
            directory.write_environment(&inputs.env).map_err(file("write the variables"))?;
        }
        let Some(spec) = directory.spec() else { return Ok(()) };
        project(&directory.files(), &inputs.files, owner(&spec)).map_err(file("write the files"))
    }

    pub(super) async fn stop(
        &self,
        uid: Uuid,
        grace: Duration,
        interrupt: &CancellationToken,
    ) -> Result<(), UnitError> {
        let directory = self.directory(uid);
        let alive = || directory.state().filter(|state| state.ending.is_none() && state.is_supervised());
        // A supervisor that has written nothing yet, or is about to go, counts too.
        let supervised = || directory.is_locked() || alive().is_some();
        if supervised() {
            if directory.stop_request().is_none() {
                let request = StopRequest { grace_seconds: grace.as_secs(), at_unix_nano: now_unix_nano() };
                directory.write_stop_request(&request).map_err(|source| UnitError::File {
                    uid,
                    what: "ask for the stop",
                    source,
                })?;
            }
            // In this order: a supervisor first writes itself down and then looks whether
            // it is to stop, so one of the two reaches it.
            if let Some(state) = alive() {
                let _ = kill(Pid::from_raw(state.supervisor.pid), Signal::SIGTERM);
            }
        }
        let begun = Instant::now();
        let mut killed = false;
        while supervised() {
            let over = begun.elapsed().saturating_sub(grace);
            if over >= STOP_MARGIN * 2 {
                return Err(UnitError::Stuck(uid));
            }
            if over >= STOP_MARGIN
                && !killed
                && let Some(state) = alive()
            {
                killed = true;
                kill_unit(&state, uid);
            }
            interrupt.run_until_cancelled(sleep(LOOK)).await.ok_or(UnitError::Interrupted)?;
        }
        self.remove(uid)
    }

    /// Removes what is left of a unit that is over. One that has a supervisor is left
    /// alone: without its directory nobody would find it again.
    pub(super) fn remove(&self, uid: Uuid) -> Result<(), UnitError> {
        let directory = self.directory(uid);
        if !directory.path().exists() {
            return Ok(());
        }
        // Held until all is gone, so that no supervisor that is on its way takes it.
        let lock =
            directory.lock().map_err(|source| UnitError::File { uid, what: "lock the directory", source })?;
        let Some(_lock) = lock else { return Err(UnitError::Stuck(uid)) };
        self.settle(&directory);
        self.peaks.lock().remove(&uid);
        if let Err(error) = self.keep_log(uid, &directory) {
            tracing::warn!(%uid, %error, "the log of a unit was not kept");
        }
        std::fs::remove_dir_all(directory.path()).map_err(|source| UnitError::File {
            uid,
            what: "remove the directory",
            source,
        })
    }

    pub(super) fn reap_stalled(&self) {
        for uid in self.list() {
            let directory = self.directory(uid);
            let (Some(request), Some(state)) = (directory.stop_request(), directory.state()) else {
                continue;
            };
            let waited = Duration::from_nanos(
                u64::try_from(now_unix_nano().saturating_sub(request.at_unix_nano)).unwrap_or(0),
            );
            let allowed = Duration::from_secs(request.grace_seconds).saturating_add(STOP_MARGIN);
            if state.ending.is_none() && state.is_supervised() && waited > allowed {
                tracing::warn!(%uid, "a unit outstayed its stop and is killed");
                kill_unit(&state, uid);
            }
        }
    }

    pub(super) fn freeze(&self, uid: Uuid, frozen: bool) {
        let Some(state) = self.directory(uid).state().filter(UnitState::is_supervised) else { return };
        // What a workload stopped by itself stays so.
        if !frozen && !state.main.is_some_and(|main| procfs::is_held_still(main.pid)) {
            return;
        }
        let signal = if frozen { Signal::SIGSTOP } else { Signal::SIGCONT };
        for (pid, stat) in procfs::descendants(state.supervisor.pid) {
            if frozen != (stat.state == b'T') {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }

    pub(super) fn usage(&self, uid: Uuid) -> Option<Usage> {
        let state = self.directory(uid).state().filter(|state| state.ending.is_none())?;
        if !state.is_supervised() {
            return None;
        }
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
        let supervisor = procfs::stat(state.supervisor.pid)?;
        let mut usage = Usage::default();
        // What has ended and was waited for is in the sums of whoever waited.
        let mut ticks = supervisor.reaped_ticks;
        for (_, stat) in procfs::descendants(state.supervisor.pid) {
            ticks += stat.ticks + stat.reaped_ticks;
            usage.memory_bytes += stat.pages * page;
            usage.pids += stat.threads;
        }
        usage.cpu_usec = ticks * procfs::USEC_PER_TICK;
        let mut peaks = self.peaks.lock();
        let peak = peaks.entry(uid).or_insert(0);
        *peak = usage.memory_bytes.max(*peak);
        usage.memory_peak_bytes = *peak;
        Some(usage)
    }

    /// Where units are kept.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Who the files of a unit are for, where this agent may give them to others.
fn owner(spec: &UnitSpec) -> Option<(u32, u32)> {
    nix::unistd::geteuid().is_root().then(|| shim::identity(spec))
}

fn lost() -> Ending {
    Ending { code: 137, at_unix_nano: now_unix_nano(), why: Why::Lost }
}

/// Kills a unit together with its supervisor.
fn kill_unit(state: &UnitState, uid: Uuid) {
    for (pid, _) in procfs::descendants(state.supervisor.pid) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if state.supervisor.is_alive() {
        let _ = kill(Pid::from_raw(state.supervisor.pid), Signal::SIGKILL);
    }
    sweep(state, uid);
}

/// Kills what a supervisor that is gone left behind.
fn sweep(state: &UnitState, uid: Uuid) {
    if state.boot != procfs::boot_id() {
        return;
    }
    let variable = format!("{UNIT_VARIABLE}={uid}");
    for pid in procfs::marked(&variable, Some(state.supervisor)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
