//! From the first signal to the exit.
//!
//! Ending has three steps, and every part of a process can wait for the one that concerns it:
//!
//! 1. **draining**: readiness says no and everything else goes on, for the configured delay, so that a
//!    balancer stops sending before the listener closes;
//! 2. **stopping**: no new connections, watches and streams end with a proper goodbye, loops hand back their
//!    leases;
//! 3. the **deadline**: what has not ended by then is named in the log and cut off.
//!
//! SIGTERM and SIGINT begin it; a second one ends the process at once. A task that the process cannot do
//! without begins it too, through [`Shutdown::fail`], and then the exit code tells.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::ShutdownArgs;
use crate::tasks::Tasks;

#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    #[error("cannot listen for signals")]
    Signals {
        #[source]
        source: std::io::Error,
    },
}

/// The end of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    draining: CancellationToken,
    stopping: CancellationToken,
    failure: Mutex<Option<String>>,
    delay: Duration,
    timeout: Duration,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on, by a task of `tasks`.
    pub fn install(args: &ShutdownArgs, tasks: &Tasks) -> Result<Shutdown, ShutdownError> {
        let listen = |kind| signal(kind).map_err(|source| ShutdownError::Signals { source });
        let signals = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let shutdown = Shutdown::without_signals(args, tasks);
        tasks.detached("signals", watch_signals(shutdown.clone(), signals));
        Ok(shutdown)
    }

    /// The same steps, begun only by [`Shutdown::begin`] and [`Shutdown::fail`]: for tests. `tasks` is what
    /// stops in the second step, and what fails with a vital task.
    pub fn without_signals(args: &ShutdownArgs, tasks: &Tasks) -> Shutdown {
        let state = State {
            draining: CancellationToken::new(),
            stopping: tasks.stopping().clone(),
            failure: Mutex::new(None),
            delay: args.shutdown_delay,
            timeout: args.shutdown_timeout,
        };
        let shutdown = Shutdown { state: Arc::new(state) };
        tasks.end_with(&shutdown);
        shutdown
    }

    /// Cancelled in the first step.
    pub fn draining(&self) -> &CancellationToken {
        &self.state.draining
    }

    /// Cancelled in the second step. The same token as [`Tasks::stopping`].
    pub fn stopping(&self) -> &CancellationToken {
        &self.state.stopping
    }

    /// Begins the end.
    pub fn begin(&self, reason: &str) {
        if !self.state.draining.is_cancelled() {
            tracing::info!(reason, "shutting down");
            self.state.draining.cancel();
        }
    }

    /// Begins the end because something necessary broke; the exit code will not be 0.
    pub fn fail(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(reason, "cannot go on");
        self.state.failure.lock().get_or_insert(reason);
        self.state.draining.cancel();
    }

    /// Waits for the beginning, then walks through the steps. `main` returns what this returns.
    pub async fn finish(&self, tasks: &Tasks) -> ExitCode {
        self.state.draining.cancelled().await;
        // A failed process has nothing to drain for.
        if self.state.failure.lock().is_none() {
            tokio::time::sleep(self.state.delay).await;
        }
        self.state.stopping.cancel();
        let unfinished = tasks.finish(self.state.timeout).await;
        if !unfinished.is_empty() {
            tracing::warn!(
                tasks = unfinished.join(", "),
                timeout_seconds = self.state.timeout.as_secs_f64(),
                "cut off what did not end in time"
            );
        }
        if self.state.failure.lock().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

async fn watch_signals(shutdown: Shutdown, (mut terminate, mut interrupt): (Signal, Signal)) {
    let mut wait = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let first = wait().await;
    shutdown.begin(first);
    let second = wait().await;
    tracing::warn!(signal = second, "second signal: leaving at once");
    std::process::exit(130);
}
