//! Child processes: started in a process group of their own, known by a pid file, restarted when they die.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::layout::Layout;

/// How one process is started.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name of its pid and log files, e.g. `api-0`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// User and group to run as; `None` = ours.
    pub user: Option<(u32, u32)>,
    /// The signal that asks it to end.
    pub stop_signal: Signal,
    /// How long it may take to end before it is killed.
    pub stop_within: Duration,
}

impl Spec {
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Spec {
        Spec {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            user: None,
            stop_signal: Signal::SIGTERM,
            stop_within: Duration::from_secs(10),
        }
    }

    pub fn args<I: IntoIterator<Item = S>, S: Into<String>>(mut self, args: I) -> Spec {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Spec {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Starts the process; its output is appended to its log.
    pub fn spawn(&self, layout: &Layout) -> Result<Child> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(layout.log_of(&self.name))
            .with_context(|| format!("opening the log of {}", self.name))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            // Where an error was made is of use to nobody who reads its log.
            .env("RUST_LIB_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A group of its own: Ctrl-C at the terminal reaches the supervisor alone, which then stops
            // its children in order.
            .process_group(0)
            .kill_on_drop(false);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {} ({})", self.name, self.program.display()))?;
        let pid = child.id().context("the process ended at once")?;
        let kept = layout.pid_of(&self.name);
        if let Err(error) = fs::write(&kept, format!("{pid}\n")) {
            // Nobody would find it again.
            let _ = child.start_kill();
            return Err(error).with_context(|| format!("writing {}", kept.display()));
        }
        Ok(child)
    }
}

/// A process that ended although its supervisor had not told it to.
#[derive(Clone, Debug)]
pub struct Ended {
    pub process: String,
    pub pid: i32,
    /// How, for people.
    pub status: String,
}

/// The processes of a stack that have ended by themselves.
#[derive(Clone, Debug, Default)]
pub struct Endings(Arc<Mutex<Vec<Ended>>>);

impl Endings {
    /// Those since they were taken for the last time.
    pub fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut self.0.lock())
    }

    /// Until a process turns out not to stay up; its name. One that is not started again has to end once only. Others are
    /// given some seconds: a port that was free when it was chosen may be some passing connection's for a moment.
    pub async fn again_and_again(&self, restart: bool) -> String {
        let enough = if restart { 8 } else { 1 };
        loop {
            let mut times: BTreeMap<String, u32> = BTreeMap::new();
            for ended in self.0.lock().iter() {
                *times.entry(ended.process.clone()).or_default() += 1;
            }
            if let Some((name, _)) = times.into_iter().find(|(_, times)| *times >= enough) {
                return name;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Keeps one process running until `stop`, then ends it.
pub async fn supervise(
    spec: Spec,
    layout: Layout,
    restart: bool,
    stop: CancellationToken,
    first: Child,
    endings: Endings,
) {
    let mut child = first;
    loop {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        tokio::select! {
            status = child.wait() => {
                let _ = fs::remove_file(layout.pid_of(&spec.name));
                let status = describe(status.as_ref().ok());
                tracing::warn!(process = spec.name, status, "ended by itself");
                if let Some(pid) = pid {
                    endings.0.lock().push(Ended { process: spec.name.clone(), pid, status });
                }
                if !restart {
                    return;
                }
                match start_again(&spec, &layout, &stop).await {
                    Some(started) => child = started,
                    None => return,
                }
            }
            () = stop.cancelled() => {
                end(&spec, &mut child).await;
                let _ = fs::remove_file(layout.pid_of(&spec.name));
                return;
            }
        }
    }
}

/// Starts the process again a second after it died, as often as it takes.
async fn start_again(spec: &Spec, layout: &Layout, stop: &CancellationToken) -> Option<Child> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        match spec.spawn(layout) {
            Ok(child) => {
                tracing::info!(process = spec.name, "started again");
                return Some(child);
            }
            Err(error) => tracing::error!(process = spec.name, error = format!("{error:#}"), "cannot start"),
        }
    }
}

async fn end(spec: &Spec, child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = kill(Pid::from_raw(pid), spec.stop_signal);
    }
    if tokio::time::timeout(spec.stop_within, child.wait()).await.is_err() {
        tracing::warn!(process = spec.name, "does not end; killing it");
        let _ = child.kill().await;
    }
}

fn describe(status: Option<&ExitStatus>) -> String {
    match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown".to_owned(),
        },
        None => "unknown".to_owned(),
    }
}

/// The process that a pid file names, if it runs and is one of ours (a pid can be used again by somebody
/// else's process).
pub fn running(pid_file: &Path, programs: &[&str]) -> Option<i32> {
    let pid: i32 = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // The kernel keeps 15 characters of a name.
    let ours = programs.iter().any(|program| program.chars().take(15).eq(name.trim_end().chars()));
    (ours && !is_over(pid)).then_some(pid)
}

/// Whether the process has ended, although its parent (who may be this very process) has not been told yet.
fn is_over(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// Ends a process that nobody here waits for: asks, looks, kills.
pub fn stop_foreign(pid: i32, signal: Signal, within: Duration) -> io::Result<()> {
    let target = Pid::from_raw(pid);
    let _ = kill(target, signal);
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if kill(target, None).is_err() || is_over(pid) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(target, Signal::SIGKILL).map_err(io::Error::from)
}
