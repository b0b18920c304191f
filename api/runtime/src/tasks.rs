//! Every task of a process, by name.
//!
//! A task that nobody knows of cannot be waited for, and one that died quietly is the worst kind of outage:
//! the process looks well and does nothing. So tasks are spawned here only. A panic is caught, logged with the
//! task's name and counted; what happens then is said where the task is spawned: nothing
//! ([`Tasks::spawn`]), a new attempt after a pause ([`Tasks::supervise`]), or the end of the process
//! ([`Tasks::vital`], and [`Tasks::essential`] for what may not even end in order).
//!
//! Not promised: a task that blocks its thread, or ignores the stopping token past the deadline, is only
//! named and aborted, and an abort takes effect at its next await.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::telemetry::panic_text;

/// A set of tasks. Cheap to clone; the clones are the same set.
#[derive(Clone, Debug)]
pub struct Tasks {
    set: Arc<Set>,
}

#[derive(Debug)]
struct Set {
    tracker: TaskTracker,
    background: TaskTracker,
    stopping: CancellationToken,
    running: Mutex<HashMap<u64, Running>>,
    next: AtomicU64,
    metrics: TaskMetrics,
    /// The end of the process that these tasks belong to.
    shutdown: OnceLock<Shutdown>,
}

#[derive(Debug)]
struct Running {
    name: &'static str,
    abort: Option<AbortHandle>,
    awaited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabels {
    task: &'static str,
}

#[derive(Clone, Debug)]
struct TaskMetrics {
    running: Family<TaskLabels, Gauge>,
    panics: Family<TaskLabels, Counter>,
    restarts: Family<TaskLabels, Counter>,
}

impl Tasks {
    pub fn new(metrics: &Metrics) -> Tasks {
        let metrics = TaskMetrics {
            running: metrics.gauges("tasks_running", "Tasks that run now"),
            panics: metrics.counters("task_panics", "Panics caught in tasks"),
            restarts: metrics.counters("task_restarts", "Tasks started again after an error or a panic"),
        };
        Tasks {
            set: Arc::new(Set {
                tracker: TaskTracker::new(),
                background: TaskTracker::new(),
                stopping: CancellationToken::new(),
                running: Mutex::default(),
                next: AtomicU64::new(0),
                metrics,
                shutdown: OnceLock::new(),
            }),
        }
    }

    /// Cancelled when the tasks should come to an end.
    pub fn stopping(&self) -> &CancellationToken {
        &self.set.stopping
    }

    /// Runs `work` once. A panic is logged and counted, and that is all.
    pub fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, true, work);
    }

    /// As [`Tasks::spawn`], for what never ends by itself and needs no goodbye: [`Tasks::finish`] does not
    /// wait for it, and aborts it last.
    pub fn detached(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, false, work);
    }

    /// Runs what `attempt` makes, and runs it again after a pause when it failed or panicked. It is over
    /// when an attempt returns `Ok` or the set is stopping. Pauses grow with `backoff` and start over once
    /// an attempt has lasted longer than its cap.
    pub fn supervise<F, Fut, E>(&self, name: &'static str, mut backoff: Backoff, mut attempt: F)
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stopping, metrics) = (self.set.stopping.clone(), self.set.metrics.clone());
        self.start(name, true, async move {
            loop {
                let started = Instant::now();
                match AssertUnwindSafe(async { attempt().await }).catch_unwind().await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) if stopping.is_cancelled() => {
                        tracing::debug!(task = name, %error, "task ended while stopping");
                        return;
                    }
                    Ok(Err(error)) => tracing::warn!(task = name, %error, "task failed"),
                    Err(panic) => note_panic(name, &metrics, &*panic),
                }
                if started.elapsed() > backoff.cap() {
                    backoff.reset();
                }
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = tokio::time::sleep(backoff.pause()) => {}
                }
                metrics.restarts.get_or_create(&TaskLabels { task: name }).inc();
            }
        });
    }

    /// Runs `work` once, which may end by itself; should it panic before the process is stopping, the process ends, for
    /// somebody to start it again: what only looks alive helps nobody.
    pub fn vital(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let set = Arc::clone(&self.set);
        self.start(name, true, async move {
            let Err(panic) = AssertUnwindSafe(work).catch_unwind().await else { return };
            note_panic(name, &set.metrics, &*panic);
            if let Some(shutdown) = set.shutdown.get().filter(|_| !set.stopping.is_cancelled()) {
                shutdown.fail(format!("the task {name} panicked: {}", panic_text(&*panic)));
            }
        });
    }

    /// Whose end a panic of a [vital](Tasks::vital) task is; the first one that is said.
    pub(crate) fn end_with(&self, shutdown: &Shutdown) {
        let _ = self.set.shutdown.set(shutdown.clone());
    }

    /// Runs `work` once; should it end before the process is stopping, in whatever way, the process ends.
    pub fn essential<E: Display + Send + 'static>(
        &self,
        name: &'static str,
        shutdown: &Shutdown,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let (shutdown, metrics) = (shutdown.clone(), self.set.metrics.clone());
        self.start(name, true, async move {
            let outcome = AssertUnwindSafe(work).catch_unwind().await;
            let how = match outcome {
                Ok(Ok(())) => "ended".to_owned(),
                Ok(Err(error)) => format!("failed: {error}"),
                Err(panic) => {
                    note_panic(name, &metrics, &*panic);
                    format!("panicked: {}", panic_text(&*panic))
                }
            };
            if !shutdown.stopping().is_cancelled() {
                shutdown.fail(format!("the task {name} {how}"));
            }
        });
    }

    /// Cancels the stopping token and waits for all tasks. Returns the names of those that had to be aborted
    /// after `timeout`.
    pub async fn finish(&self, timeout: Duration) -> Vec<&'static str> {
        self.set.stopping.cancel();
        self.set.tracker.close();
        let all_ended = tokio::time::timeout(timeout, self.set.tracker.wait()).await.is_ok();
        let mut unfinished = Vec::new();
        for running in self.set.running.lock().values() {
            if running.awaited && !all_ended {
                unfinished.push(running.name);
            }
            if let Some(abort) = &running.abort {
                abort.abort();
            }
        }
        unfinished.sort_unstable();
        unfinished.dedup();
        unfinished
    }

    /// The names of the tasks that run now.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.set.running.lock().values().map(|running| running.name).collect();
        names.sort_unstable();
        names
    }

    fn start(&self, name: &'static str, awaited: bool, work: impl Future<Output = ()> + Send + 'static) {
        let id = self.set.next.fetch_add(1, Ordering::Relaxed);
        self.set.running.lock().insert(id, Running { name, abort: None, awaited });
        // Made before the task starts and owned by it: it ends with the task however that ends.
        let entry = Entry { set: self.set.clone(), id, name };
        self.set.metrics.running.get_or_create(&TaskLabels { task: name }).inc();
        // Shown from the start: what appears only when it has happened once shows no increase then.
        drop(self.set.metrics.panics.get_or_create(&TaskLabels { task: name }));
        let metrics = self.set.metrics.clone();
        let tracker = if awaited { &self.set.tracker } else { &self.set.background };
        // Not an async block: it would keep room for the work twice, and there may be several for each connection.
        let handle = tracker.spawn(AssertUnwindSafe(work).catch_unwind().map(move |outcome| {
            let _entry = entry;
            if let Err(panic) = outcome {
                note_panic(name, &metrics, &*panic);
            }
        }));
        if let Some(running) = self.set.running.lock().get_mut(&id) {
            running.abort = Some(handle.abort_handle());
        }
    }
}

struct Entry {
    set: Arc<Set>,
    id: u64,
    name: &'static str,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.set.running.lock().remove(&self.id);
        self.set.metrics.running.get_or_create(&TaskLabels { task: self.name }).dec();
    }
}

fn note_panic(name: &'static str, metrics: &TaskMetrics, panic: &(dyn std::any::Any + Send)) {
    metrics.panics.get_or_create(&TaskLabels { task: name }).inc();
    tracing::error!(task = name, "task panicked: {}", panic_text(panic));
}
