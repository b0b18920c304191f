//! What every storm does to the processes of its stack, and how it waits.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::layout::Layout;
use crate::process::running;
use crate::stack::PROGRAMS;

/// How often is looked again.
const PAUSE: Duration = Duration::from_millis(50);
/// For how long one look may go on.
const LOOK: Duration = Duration::from_secs(5);

/// A stack whose processes are started again by somebody.
pub trait Processes {
    /// How long anything may take to be back, whatever happened.
    const PATIENCE: Duration;

    fn layout(&self) -> &Layout;

    /// Somebody is about to end this process.
    fn told(&self, _pid: Pid) {}

    /// The process of this name, while it runs.
    fn pid(&self, process: &str) -> Option<Pid> {
        running(&self.layout().pid_of(process), &PROGRAMS).map(Pid::from_raw)
    }

    /// Sends a signal to a process.
    fn signal(&self, process: &str, signal: Signal) -> Result<Pid> {
        let pid = self.pid(process).with_context(|| format!("{process} does not run"))?;
        if !matches!(signal, Signal::SIGSTOP | Signal::SIGCONT) {
            self.told(pid);
        }
        kill(pid, signal).with_context(|| format!("sending {signal} to {process}"))?;
        Ok(pid)
    }

    /// Waits until another process has taken the place of this one.
    async fn replaced(&self, process: &str, pid: Pid) -> Result<()> {
        let back = async || self.pid(process).is_some_and(|now| now != pid);
        until(Self::PATIENCE, &format!("{process} did not come back"), back).await
    }
}

/// Asks again and again until the answer is yes.
pub async fn until(patience: Duration, not: &str, asked: impl AsyncFn() -> bool) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        if timeout(LOOK, asked()).await == Ok(true) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("after {patience:?}: {not}");
        }
        sleep(PAUSE).await;
    }
}

/// How many Nodes of a list are judged ready.
pub fn ready_nodes(list: &Value) -> usize {
    let ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    list["items"].as_array().into_iter().flatten().filter(ready).count()
}
