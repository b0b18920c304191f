//! Workloads that are nothing but a start time.
//!
//! Whether such a workload runs, how it ended, what it logged and what it used all
//! follow from when it started and what the clock says. So it costs no task, no
//! timer and no buffer, and thousands of nodes fit into one process.
//!
//! A service runs until it is stopped. A job succeeds after a while. The workload's
//! own environment can say otherwise: `SIM_RUN_SECONDS` is how long a run lasts
//! (then services end too), `SIM_EXIT_CODE` how it ends, `SIM_LOG_RATE` how many lines
//! a second it logs, `SIM_LOG_BACKLOG` how many it has logged when it starts.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::desired::RestartPolicy;
use crate::units::ledger::write_atomically;
use crate::units::{Ending, Environment, Held, Observation, UnitError, UnitSpec, Usage, Why, now_unix_nano};

const SECOND: i64 = 1_000_000_000;
/// How many logs of units that are gone are kept.
const KEPT_LOGS: usize = 16;

/// How simulated workloads behave.
#[derive(Debug, Clone)]
pub struct SimulationOptions {
    /// How long a job runs when it does not say.
    pub job_duration: Duration,
    /// How long stopping takes.
    pub stop_delay: Duration,
    /// Where running workloads are written down, so that a restarted agent finds
    /// them as it left them. `None`: in memory only.
    pub directory: Option<PathBuf>,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self { job_duration: Duration::from_secs(5), stop_delay: Duration::ZERO, directory: None }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Unit {
    spec: UnitSpec,
    since_unix_nano: i64,
    /// `None`: runs until it is stopped.
    run_nano: Option<i64>,
    exit_code: i32,
    #[serde(default = "one")]
    lines_per_second: u32,
    #[serde(default)]
    backlog: u32,
}

fn one() -> u32 {
    1
}

/// All simulated workloads of a node.
#[derive(Debug)]
pub struct Simulation {
    options: SimulationOptions,
    units: Mutex<HashMap<Uuid, Unit>>,
    /// Logs of units that are gone, oldest first.
    gone: Mutex<VecDeque<(Uuid, SimulatedLog)>>,
}

impl Simulation {
    /// Finds again what an earlier process wrote down.
    pub fn new(options: SimulationOptions) -> Self {
        let mut units = HashMap::new();
        let entries = options.directory.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten();
        for entry in entries.flatten() {
            let text = std::fs::read(entry.path()).unwrap_or_default();
            if let Ok(unit) = serde_json::from_slice::<Unit>(&text) {
                units.insert(unit.spec.uid, unit);
            }
        }
        Self { options, units: Mutex::new(units), gone: Mutex::default() }
    }

    pub(super) fn list(&self) -> Vec<Uuid> {
        self.units.lock().keys().copied().collect()
    }

    pub(super) fn observe(&self, uid: Uuid) -> Option<Observation> {
        self.units.lock().get(&uid).map(|unit| unit.observe(now_unix_nano()))
    }

    pub(super) fn start(&self, spec: UnitSpec, env: &Environment) -> Result<(), UnitError> {
        let setting =
            |name: &str| env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let number = |name: &str| setting(name).and_then(|value| value.parse::<u32>().ok());
        let seconds = number("SIM_RUN_SECONDS");
        let run = match (seconds, spec.restart) {
            (Some(seconds), _) => Some(Duration::from_secs(seconds.into())),
            (None, RestartPolicy::Never) => Some(self.options.job_duration),
            (None, _) => None,
        };
        let unit = Unit {
            since_unix_nano: now_unix_nano(),
            run_nano: run.map(|run| i64::try_from(run.as_nanos()).unwrap_or(i64::MAX)),
            exit_code: setting("SIM_EXIT_CODE").and_then(|value| value.parse().ok()).unwrap_or(0),
            lines_per_second: number("SIM_LOG_RATE").unwrap_or(1).clamp(1, 1_000_000),
            backlog: number("SIM_LOG_BACKLOG").unwrap_or(0),
            spec,
        };
        if let Some(path) = self.file(unit.spec.uid) {
            write_atomically(&path, &unit).map_err(|source| UnitError::File {
                uid: unit.spec.uid,
                what: "write the record",
                source,
            })?;
        }
        self.units.lock().insert(unit.spec.uid, unit);
        Ok(())
    }

    pub(super) async fn stop(&self, uid: Uuid, interrupt: &CancellationToken) -> Result<(), UnitError> {
        let active = match self.observe(uid) {
            None => return Ok(()),
            Some(unit) => unit.state == Held::Active,
        };
        if active && !self.options.stop_delay.is_zero() {
            let wait = tokio::time::sleep(self.options.stop_delay);
            interrupt.run_until_cancelled(wait).await.ok_or(UnitError::Interrupted)?;
        }
        self.remove(uid);
        Ok(())
    }

    pub(super) fn remove(&self, uid: Uuid) {
        let Some(mut unit) = self.units.lock().remove(&uid) else { return };
        if let Some(path) = self.file(uid) {
            let _ = std::fs::remove_file(path);
        }
        // It wrote nothing after this moment.
        let ran = now_unix_nano().saturating_sub(unit.since_unix_nano);
        unit.run_nano = Some(unit.run_nano.map_or(ran, |run| run.min(ran)));
        let mut gone = self.gone.lock();
        gone.retain(|(other, _)| *other != uid);
        gone.push_back((uid, unit.log()));
        if gone.len() > KEPT_LOGS {
            gone.pop_front();
        }
    }

    /// Some plausible, steady use of a tenth of a core and 16 MiB.
    pub(super) fn usage(&self, uid: Uuid) -> Option<Usage> {
        let units = self.units.lock();
        let unit = units.get(&uid)?;
        let now = now_unix_nano();
        if unit.ended(now).is_some() {
            return None;
        }
        let elapsed = now.saturating_sub(unit.since_unix_nano).max(0);
        Some(Usage {
            cpu_usec: elapsed / 10_000,
            memory_bytes: 16 << 20,
            memory_peak_bytes: 16 << 20,
            pids: 1,
        })
    }

    pub(super) fn holds(&self, uid: Uuid) -> bool {
        self.units.lock().contains_key(&uid)
    }

    pub(super) fn log(&self, uid: Uuid) -> Option<SimulatedLog> {
        let held = self.units.lock().get(&uid).map(Unit::log);
        held.or_else(|| self.gone.lock().iter().find(|(gone, _)| *gone == uid).map(|(_, log)| log.clone()))
    }

    fn file(&self, uid: Uuid) -> Option<PathBuf> {
        Some(self.options.directory.as_ref()?.join(format!("{uid}.json")))
    }
}

impl Unit {
    fn log(&self) -> SimulatedLog {
        SimulatedLog {
            who: format!("{}/{}", self.spec.namespace, self.spec.name),
            since_unix_nano: self.since_unix_nano,
            run_nano: self.run_nano,
            pause_nano: SECOND / i64::from(self.lines_per_second.max(1)),
            backlog: self.backlog,
        }
    }

    fn observe(&self, now: i64) -> Observation {
        Observation {
            state: self.ended(now).map_or(Held::Active, Held::Ended),
            digest: self.spec.digest.clone(),
            runs: self.spec.runs,
            grace_seconds: self.spec.grace_seconds,
            since_unix_nano: self.since_unix_nano,
        }
    }

    fn ended(&self, now: i64) -> Option<Ending> {
        let deadline = self.spec.deadline_seconds.map(|seconds| {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            seconds.saturating_mul(SECOND)
        });
        let (run, why, code) = match (self.run_nano, deadline) {
            (None, None) => return None,
            (Some(run), Some(deadline)) if deadline < run => (deadline, Why::Deadline, 143),
            (None, Some(deadline)) => (deadline, Why::Deadline, 143),
            (Some(run), _) => (run, Why::Exit, self.exit_code),
        };
        let at_unix_nano = self.since_unix_nano.saturating_add(run);
        (at_unix_nano <= now).then_some(Ending { code, at_unix_nano, why })
    }
}

/// The log of a simulated workload: a line after each pause from its start.
#[derive(Debug, Clone)]
pub struct SimulatedLog {
    who: String,
    since_unix_nano: i64,
    run_nano: Option<i64>,
    pause_nano: i64,
    backlog: u32,
}

impl SimulatedLog {
    /// Lines that exist at this time.
    pub fn lines_at(&self, now_unix_nano: i64) -> u64 {
        let mut elapsed = now_unix_nano.saturating_sub(self.since_unix_nano);
        if let Some(run) = self.run_nano {
            elapsed = elapsed.min(run.saturating_sub(1));
        }
        let since = |elapsed| elapsed / self.pause_nano.unsigned_abs().max(1) + 1;
        u64::from(self.backlog) + u64::try_from(elapsed).map_or(0, since)
    }

    /// Line of this number, counted from 0, with its line break.
    pub fn line(&self, number: u64) -> String {
        let after_start = i64::try_from(number).unwrap_or(i64::MAX) - i64::from(self.backlog);
        let offset = after_start.saturating_mul(self.pause_nano);
        let at = self.since_unix_nano.saturating_add(offset);
        let at = jiff::Timestamp::from_nanosecond(at.into()).unwrap_or_default();
        format!("{at:.3} {} is alive, line {}\n", self.who, number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(run: Option<i64>, deadline: Option<u64>) -> Unit {
        let spec = UnitSpec {
            uid: Uuid::nil(),
            namespace: "shop".into(),
            name: "web".into(),
            argv: vec![],
            restart: RestartPolicy::Never,
            grace_seconds: 30,
            deadline_seconds: deadline,
            user: None,
            group: None,
            digest: String::new(),
            runs: 1,
        };
        Unit {
            spec,
            since_unix_nano: 100 * SECOND,
            run_nano: run.map(|s| s * SECOND),
            exit_code: 3,
            lines_per_second: 1,
            backlog: 0,
        }
    }

    #[test]
    fn the_end_follows_from_the_clock() {
        let ends = |unit: &Unit, at: i64| unit.ended(at * SECOND).map(|ending| (ending.code, ending.why));
        let service = unit(None, None);
        assert_eq!(ends(&service, 1_000_000), None);
        let job = unit(Some(5), None);
        assert_eq!(ends(&job, 104), None);
        assert_eq!(ends(&job, 105), Some((3, Why::Exit)));
        let hurried = unit(Some(5), Some(2));
        assert_eq!(ends(&hurried, 101), None);
        assert_eq!(ends(&hurried, 102), Some((143, Why::Deadline)));
        let patient = unit(None, Some(u64::MAX));
        assert_eq!(ends(&patient, 1_000_000), None);
    }

    #[test]
    fn a_line_a_second_until_the_end() {
        let log = |run: Option<i64>| SimulatedLog {
            who: "shop/web".into(),
            since_unix_nano: 0,
            run_nano: run.map(|s| s * SECOND),
            pause_nano: SECOND,
            backlog: 0,
        };
        for (run, now, lines) in [(None, -1, 0), (None, 0, 1), (None, 3, 4), (Some(2), 9, 2), (Some(0), 9, 0)]
        {
            assert_eq!(log(run).lines_at(now * SECOND), lines, "{run:?} {now}");
        }
        assert_eq!(log(None).line(1), "1970-01-01T00:00:01.000Z shop/web is alive, line 2\n");
        let fast = SimulatedLog { pause_nano: SECOND / 100, backlog: 1, ..log(None) };
        assert_eq!(fast.lines_at(3 * SECOND), 302);
        assert_eq!(fast.line(2), "1970-01-01T00:00:00.010Z shop/web is alive, line 3\n");
    }
}
