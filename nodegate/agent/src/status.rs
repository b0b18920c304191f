//! What a node says of an application, from what it holds of it.
//!
//! A pure function. The words are those that deployed agents use, mistakes of
//! theirs included: a workload that is wanted but not held is `Failed`, and when
//! the unit manager cannot be asked, nothing looks held.

use horchestra_proto::node::v1::AppStatus;

use crate::desired::App;
use crate::units::{Held, Observation, Why};

/// The workload runs, is being started, stopped or restarted.
pub const RUNNING: &str = "Running";
/// A job ended well.
pub const SUCCEEDED: &str = "Succeeded";
/// It ended badly, or nothing is held of it.
pub const FAILED: &str = "Failed";
/// To be deleted and still there.
pub const TERMINATING: &str = "Terminating";
/// To be deleted and gone.
pub const TERMINATED: &str = "Terminated";
/// Held still on request.
pub const FROZEN: &str = "Frozen";

/// What this agent process remembers of an application.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Generation last applied with success by this process; 0 = none.
    pub applied: i64,
    /// Runs that a job has spent, as counted here.
    pub runs: i32,
}

/// Whether nothing more will come of it.
pub fn is_terminal(app: &App, phase: &str, attempts: i32) -> bool {
    phase == SUCCEEDED || (phase == FAILED && app.is_job() && attempts.max(1) > app.backoff_limit)
}

/// Runs that a job has spent: as counted here or as the control plane knows, the
/// larger; a finished run that nobody counted is one.
pub fn attempts(app: &App, held: Option<&Observation>, counted: i32) -> i32 {
    if !app.is_job() {
        return 0;
    }
    let known = counted.max(app.pushed_attempts).max(0);
    let finished = held.is_some_and(|unit| matches!(unit.state, Held::Ended(_)));
    if finished { known.max(1) } else { known }
}

/// The report for one application.
pub fn derive(app: &App, held: Option<&Observation>, memory: Memory, address: Option<&str>) -> AppStatus {
    let ending = held.and_then(|unit| match &unit.state {
        Held::Ended(ending) => Some(ending),
        Held::Active => None,
    });
    let phase = match (app.deleting, held.map(|unit| &unit.state)) {
        (true, Some(_)) => TERMINATING,
        (true, None) => TERMINATED,
        (false, Some(Held::Active)) if app.frozen => FROZEN,
        (false, Some(Held::Active)) => RUNNING,
        (false, Some(Held::Ended(ending))) if app.is_job() && ending.succeeded() => SUCCEEDED,
        (false, _) => FAILED,
    };
    let attempts = attempts(app, held, memory.runs);
    let terminal = is_terminal(app, phase, attempts);
    let (exit_code, finished_at_unix_nano) = match ending {
        // The wire carries microseconds in a field of nanoseconds.
        Some(ending) if terminal => (ending.code, ending.at_unix_nano / 1000 * 1000),
        _ => (0, 0),
    };
    let message = match ending {
        Some(ending) if app.is_job() && phase == FAILED => {
            if ending.why == Why::Deadline {
                let seconds = app.deadline_seconds.unwrap_or_default();
                format!("DeadlineExceeded: the run was stopped after {seconds} s")
            } else if terminal && app.backoff_limit > 0 {
                format!("BackoffLimitExceeded: all {attempts} runs failed")
            } else {
                String::new()
            }
        }
        _ => String::new(),
    };
    AppStatus {
        namespace: app.namespace.clone(),
        name: app.name.clone(),
        phase: phase.to_owned(),
        message,
        observed_generation: memory.applied,
        exit_code,
        finished_at_unix_nano,
        attempts,
        address: match address {
            Some(address) if app.isolated && phase == RUNNING => address.to_owned(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use horchestra_proto::node::v1::DesiredState;
    use serde_json::{Value, json};

    use super::*;
    use crate::desired::Desired;
    use crate::units::Ending;

    fn app(lifecycle: Value, extra: impl FnOnce(&mut Value)) -> Arc<App> {
        let mut body = json!({
            "metadata": {"uid": "6f1c0c2e-9a3b-4f6e-8a55-0d6f4f1f2a01", "name": "web", "namespace": "shop"},
            "spec": {"placement": {"nodeName": "n1"}, "lifecycle": lifecycle},
        });
        extra(&mut body);
        let state = DesiredState { applications: vec![body.to_string().into()], ..DesiredState::default() };
        Desired::read(&state, "n1").apps.remove(0)
    }

    fn active() -> Option<Observation> {
        Some(Observation::new(Held::Active))
    }

    fn ended(code: i32, why: Why) -> Option<Observation> {
        Some(Observation::new(Held::Ended(Ending { code, at_unix_nano: 1_234_567_899, why })))
    }

    #[test]
    fn phases() {
        let service = json!({});
        let job = json!({"restartPolicy": "Never"});
        let deleting =
            |body: &mut Value| body["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let frozen = |body: &mut Value| body["spec"]["frozen"] = json!(true);
        for (what, app, held, phase) in [
            ("active service", app(service.clone(), |_| ()), active(), RUNNING),
            ("ended service", app(service.clone(), |_| ()), ended(0, Why::Exit), FAILED),
            ("service not held", app(service.clone(), |_| ()), None, FAILED),
            ("service past its start limit", app(service.clone(), |_| ()), ended(1, Why::StartLimit), FAILED),
            ("active job", app(job.clone(), |_| ()), active(), RUNNING),
            ("good job", app(job.clone(), |_| ()), ended(0, Why::Exit), SUCCEEDED),
            ("bad job", app(job.clone(), |_| ()), ended(3, Why::Exit), FAILED),
            (
                "job stopped at its deadline, code 0",
                app(job.clone(), |_| ()),
                ended(0, Why::Deadline),
                FAILED,
            ),
            ("job not held", app(job.clone(), |_| ()), None, FAILED),
            ("deleting, held", app(service.clone(), deleting), active(), TERMINATING),
            ("deleting, ended", app(job.clone(), deleting), ended(0, Why::Exit), TERMINATING),
            ("deleting, gone", app(service.clone(), deleting), None, TERMINATED),
            ("frozen", app(service.clone(), frozen), active(), FROZEN),
            ("frozen, not held", app(service, frozen), None, FAILED),
        ] {
            assert_eq!(derive(&app, held.as_ref(), Memory::default(), None).phase, phase, "{what}");
        }
    }

    #[test]
    fn exit_code_and_time_only_when_nothing_more_will_come() {
        for (what, lifecycle, held, runs, expected) in [
            ("running", json!({"restartPolicy": "Never"}), active(), 1, (0, 0)),
            ("succeeded", json!({"restartPolicy": "Never"}), ended(0, Why::Exit), 1, (0, 1_234_567_000)),
            ("no budget", json!({"restartPolicy": "Never"}), ended(7, Why::Exit), 1, (7, 1_234_567_000)),
            (
                "retry left",
                json!({"restartPolicy": "Never", "backoffLimit": 1}),
                ended(7, Why::Exit),
                1,
                (0, 0),
            ),
            (
                "spent",
                json!({"restartPolicy": "Never", "backoffLimit": 1}),
                ended(7, Why::Exit),
                2,
                (7, 1_234_567_000),
            ),
            ("service", json!({}), ended(7, Why::StartLimit), 0, (0, 0)),
        ] {
            let status = derive(&app(lifecycle, |_| ()), held.as_ref(), Memory { applied: 4, runs }, None);
            assert_eq!((status.exit_code, status.finished_at_unix_nano), expected, "{what}");
            assert_eq!(status.observed_generation, 4, "{what}");
        }
    }

    #[test]
    fn reasons() {
        let job =
            |limit: i32| json!({"restartPolicy": "Never", "backoffLimit": limit, "activeDeadlineSeconds": 9});
        for (what, lifecycle, held, runs, reason) in [
            ("deadline", job(0), ended(143, Why::Deadline), 1, "DeadlineExceeded"),
            ("deadline with a retry left", job(1), ended(143, Why::Deadline), 1, "DeadlineExceeded"),
            ("budget spent", job(1), ended(1, Why::Exit), 2, "BackoffLimitExceeded"),
            ("retry left", job(1), ended(1, Why::Exit), 1, ""),
            ("no budget", job(0), ended(1, Why::Exit), 1, ""),
            ("success", job(1), ended(0, Why::Exit), 2, ""),
            ("a service", json!({}), ended(1, Why::StartLimit), 0, ""),
        ] {
            let status = derive(&app(lifecycle, |_| ()), held.as_ref(), Memory { applied: 0, runs }, None);
            let matches = if reason.is_empty() {
                status.message.is_empty()
            } else {
                status.message.starts_with(reason)
            };
            assert!(matches, "{what}: {:?}", status.message);
        }
    }

    #[test]
    fn runs_of_a_job() {
        let job = json!({"restartPolicy": "Never", "backoffLimit": 2});
        let pushed = |n: i32| move |body: &mut Value| body["status"] = json!({"attempts": n});
        for (what, app, held, counted, expected) in [
            ("a service spends none", app(json!({}), pushed(3)), ended(1, Why::Exit), 2, 0),
            ("nothing known, running", app(job.clone(), |_| ()), active(), 0, 0),
            ("nothing known, finished", app(job.clone(), |_| ()), ended(1, Why::Exit), 0, 1),
            ("pushed lags", app(job.clone(), pushed(1)), active(), 2, 2),
            ("pushed leads", app(job.clone(), pushed(3)), active(), 1, 3),
            ("not held", app(job, pushed(2)), None, 0, 2),
        ] {
            assert_eq!(attempts(&app, held.as_ref(), counted), expected, "{what}");
        }
    }

    #[test]
    fn the_address_only_while_running_on_an_own_network() {
        let own = |body: &mut Value| body["spec"]["hostNetwork"] = json!(false);
        for (app, held, expected) in [
            (app(json!({}), own), active(), "10.0.0.1/32"),
            (app(json!({}), own), ended(1, Why::StartLimit), ""),
            (app(json!({}), |_| ()), active(), ""),
        ] {
            assert_eq!(derive(&app, held.as_ref(), Memory::default(), Some("10.0.0.1/32")).address, expected);
        }
    }
}
