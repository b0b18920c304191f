use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use horchestra_agent::units::ledger::{StopRequest, UnitDirectory};
use horchestra_agent::units::procfs;
use horchestra_proto::node::v1::LogRequest;
use horchestra_proto::node::v1::node_message::Body as Up;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::apps::{Running, TestApp, running};
use crate::gateway::{FakeGateway, FakeSession, SOON};
use crate::pki::Pki;

/// A place for a node's state. Whatever happens in a test, nothing of it keeps running.
pub struct State(TempDir);

impl State {
    pub fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o711))
            .expect("sets the mode");
        Self(scratch)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn unit(&self, app: &TestApp) -> UnitDirectory {
        UnitDirectory::at(self.path().join("units").join(app.uid().to_string()))
    }

    pub fn work(&self, app: &TestApp, file: &str) -> PathBuf {
        self.unit(app).work().join(file)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.path().join("units")).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            let supervisor = UnitDirectory::at(entry.path()).state().map(|state| state.supervisor);
            if let Some(supervisor) = supervisor.filter(|supervisor| supervisor.is_alive()) {
                let _ = kill(Pid::from_raw(supervisor.pid), Signal::SIGKILL);
            }
            for pid in of_unit(&uid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// Processes that a unit has, by the mark in their environment.
fn of_unit(uid: &str) -> Vec<i32> {
    procfs::marked(&format!("HORCHESTRA_UNIT={uid}"), None)
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(20)).await;
    }
}

fn logs(app: &TestApp) -> LogRequest {
    LogRequest { id: Uuid::new_v4().to_string(), app: app.uid().to_string(), ..LogRequest::default() }
}

/// A gateway, a node that runs commands, and their session.
pub async fn begin(pki: &Pki, state: &State) -> (FakeGateway, Running, FakeSession) {
    let mut gateway = FakeGateway::start(pki).await;
    let node = Running::start(&gateway, pki, running(state.path()));
    let session = gateway.session().await;
    (gateway, node, session)
}

#[tokio::test]
async fn a_command_runs_with_its_environment_and_its_output_is_the_log() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web")
        .shell("echo out $GREETING; echo err >&2; pwd; env | sort; exec sleep 1000")
        .env("GREETING", "hello  world");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    let follow = LogRequest { follow: true, ..logs(&app) };
    let text = session.log(follow, |text| text.contains("PWD=")).await;
    assert!(text.contains("out hello world\n") && text.contains("err\n"), "{text}");
    assert!(text.contains(&format!("{}\n", state.unit(&app).work().display())), "{text}");
    assert!(text.contains("GREETING=hello  world\n"), "{text}");
    assert!(!text.contains("CARGO"), "nothing of the agent's own environment: {text}");

    let metrics = session
        .until(|up| match up {
            Up::AppMetrics(metrics) if metrics.memory_bytes > 0 => Some(metrics),
            _ => None,
        })
        .await;
    assert_eq!((metrics.name.as_str(), metrics.pids), ("web", 1));
    assert!(metrics.memory_peak_bytes >= metrics.memory_bytes);

    session.push([]).await;
    session.idle().await;
    assert!(of_unit(&app.uid().to_string()).is_empty());
    assert!(!state.unit(&app).path().exists(), "nothing is left behind");
    node.stop().await;
}

#[tokio::test]
async fn exit_codes_of_jobs() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let job = |name: &str| TestApp::new(name).lifecycle(json!({"restartPolicy": "Never"}));
    let deadline =
        json!({"restartPolicy": "Never", "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1});
    let apps = [
        job("zero").shell("true"),
        job("seven").shell("exit 7"),
        job("signal").shell("kill -9 $$"),
        job("missing").spec("command", json!(["/nowhere/to/be/found"])),
        job("unrunnable").spec("command", json!(["/etc/passwd"])),
        job("arguments")
            .spec("command", json!(["/bin/sh", "-c"]))
            .spec("args", json!(["exit $(( $1 + $2 ))", "sh", "3", "8"])),
        job("unhurried").shell("sleep 1000 & exit 3").lifecycle(json!({
            "restartPolicy": "Never",
            "activeDeadlineSeconds": i64::MAX,
            "terminationGracePeriodSeconds": i64::MAX,
        })),
        TestApp::new("late").shell("sleep 1000").lifecycle(deadline.clone()),
        TestApp::new("stubborn").shell("trap '' TERM; while :; do sleep 0.1; done").lifecycle(deadline),
    ];
    session.push(apps.clone().map(|app| app.0)).await;
    for (name, phase, code) in [
        ("zero", "Succeeded", 0),
        ("seven", "Failed", 7),
        ("signal", "Failed", 137),
        ("missing", "Failed", 127),
        ("unrunnable", "Failed", 126),
        ("arguments", "Failed", 11),
        ("unhurried", "Failed", 3),
        ("late", "Failed", 143),
        ("stubborn", "Failed", 137),
    ] {
        let end = session.finished(name).await;
        assert_eq!((end.phase.as_str(), end.exit_code, end.attempts), (phase, code, 1), "{name}");
        let late = ["late", "stubborn"].contains(&name);
        assert_eq!(end.message.starts_with("DeadlineExceeded"), late, "{name}: {}", end.message);
    }
    let text = session.log(logs(&apps[3]), |_| false).await;
    assert!(text.contains("cannot run \"/nowhere/to/be/found\""), "{text}");
    node.stop().await;
}

#[tokio::test]
async fn a_failing_job_is_retried_and_its_log_goes_on() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let limit = |limit: i32| json!({"restartPolicy": "Never", "backoffLimit": limit});
    let app = TestApp::new("job").shell("echo run; exit 3").lifecycle(limit(3));
    session.push([app.0.clone()]).await;
    // Twice at once, then the fourth run has to wait; until then there is one left.
    let waiting = session
        .until(|up| match up {
            Up::AppStatus(status) if status.attempts == 3 && status.phase == "Failed" => Some(status),
            _ => None,
        })
        .await;
    assert_eq!((waiting.exit_code, waiting.finished_at_unix_nano, waiting.message.as_str()), (0, 0, ""));
    assert_eq!(session.log(logs(&app), |_| false).await, "run\nrun\nrun\n");

    // Another configuration has runs of its own.
    session.push([app.lifecycle(limit(2)).generation(2).0]).await;
    let end = session.finished("job").await;
    assert_eq!((end.exit_code, end.attempts, end.observed_generation), (3, 3, 2));
    assert!(end.message.starts_with("BackoffLimitExceeded"), "{}", end.message);
    node.stop().await;
}

#[tokio::test]
async fn the_log_of_a_job_outlives_its_unit() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("job").shell("echo done").lifecycle(json!({"restartPolicy": "Never"}));
    session.push([app.0.clone()]).await;
    session.phase("job", "Succeeded").await;
    session.push([]).await;
    session.idle().await;
    assert!(!state.unit(&app).path().exists());
    for follow in [false, true] {
        let text = session.log(LogRequest { follow, ..logs(&app) }, |_| false).await;
        assert_eq!(text, "done\n", "follow: {follow}");
    }
    // When it runs once more, its log goes on.
    session.push([app.0.clone()]).await;
    session.phase("job", "Succeeded").await;
    assert_eq!(session.log(logs(&app), |_| false).await, "done\ndone\n");
    node.stop().await;
}

#[tokio::test]
async fn services_are_restarted_as_their_policy_says() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let policy = |name: &str| json!({"restartPolicy": name});
    let apps = [
        // Ends twice, then stays.
        TestApp::new("always").shell("echo x >> n; [ $(wc -l < n) -gt 2 ] && exec sleep 1000; true"),
        TestApp::new("on-failure")
            .shell("echo x >> n; [ $(wc -l < n) -gt 2 ] && exec sleep 1000; false")
            .lifecycle(policy("OnFailure")),
        TestApp::new("done").shell("echo x >> n").lifecycle(policy("OnFailure")),
        TestApp::new("crashing").shell("echo x >> n; exit 1"),
    ];
    session.push(apps.clone().map(|app| app.0)).await;
    let starts =
        |app: &TestApp| std::fs::read_to_string(state.work(app, "n")).unwrap_or_default().lines().count();
    eventually("restarts", || starts(&apps[0]) == 3 && starts(&apps[1]) == 3).await;
    session.phase("always", "Running").await;
    session.phase("on-failure", "Running").await;

    // A clean end is not answered with a restart under OnFailure.
    let done = session.phase("done", "Failed").await;
    assert_eq!((done.exit_code, done.finished_at_unix_nano, done.attempts), (0, 0, 0));
    assert_eq!(starts(&apps[2]), 1);

    // Five starts, then the agent's turn: at once, at once again, then it waits.
    eventually("a crash loop", || starts(&apps[3]) == 15).await;
    let crashed = session.phase("crashing", "Failed").await;
    assert_eq!((crashed.exit_code, crashed.finished_at_unix_nano, crashed.attempts), (0, 0, 0));
    session.push([]).await;
    session.idle().await;
    node.stop().await;
}

#[tokio::test]
async fn everything_that_a_workload_started_is_stopped_with_it() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    // Children, grandchildren in sessions of their own, and one whose parent is gone.
    let app = TestApp::new("web")
        .shell("setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' & (setsid sleep 1000 &) ; sleep 1000")
        .lifecycle(json!({"terminationGracePeriodSeconds": 1}));
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    let uid = app.uid().to_string();
    eventually("all processes", || of_unit(&uid).len() >= 6).await;
    session.push([app.deleting().0]).await;
    session.phase("web", "Terminated").await;
    assert_eq!(of_unit(&uid), [0; 0], "what was started is gone when that is said");
    node.stop().await;
}

#[tokio::test]
async fn a_workload_has_its_grace_and_no_more() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let polite = TestApp::new("polite")
        .shell("trap 'sleep 0.3; echo bye; exit 0' TERM; while :; do sleep 0.05; done")
        .lifecycle(json!({"terminationGracePeriodSeconds": 20}));
    let stubborn = TestApp::new("stubborn")
        .shell("trap '' TERM; while :; do sleep 0.05; done")
        .lifecycle(json!({"terminationGracePeriodSeconds": 1}));
    session.push([polite.0.clone(), stubborn.0.clone()]).await;
    session.phase("polite", "Running").await;
    session.phase("stubborn", "Running").await;
    session
        .send(horchestra_proto::node::v1::controller_message::Body::LogRequest(LogRequest {
            follow: true,
            ..logs(&polite)
        }))
        .await;
    let begun = Instant::now();
    session.push([polite.deleting().0, stubborn.deleting().0]).await;
    let mut last_words = String::new();
    session
        .until(|up| match up {
            Up::LogChunk(chunk) => {
                last_words += &String::from_utf8_lossy(&chunk.data);
                chunk.eof.then_some(())
            }
            _ => None,
        })
        .await;
    assert!(last_words.ends_with("bye\n"), "{last_words}");
    session.phase("polite", "Terminated").await;
    session.phase("stubborn", "Terminated").await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "a kill only after the grace");
    node.stop().await;
}

#[tokio::test]
async fn a_changed_configuration_restarts_and_an_unchanged_one_does_not() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web").shell("exec sleep 1000");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    let main = |app: &TestApp| state.unit(app).state().and_then(|state| state.main);
    let first = main(&app);
    assert!(first.is_some());

    session.push([app.clone().spec("values", json!({"any": 1})).generation(2).0]).await;
    session
        .until(|up| matches!(up, Up::AppStatus(status) if status.observed_generation == 2).then_some(()))
        .await;
    assert_eq!(main(&app), first, "nothing that matters has changed");

    session.push([app.clone().env("NEW", "1").generation(3).0]).await;
    let status = session
        .until(|up| match up {
            Up::AppStatus(status) if status.observed_generation == 3 => Some(status),
            _ => None,
        })
        .await;
    assert_eq!(status.phase, "Running");
    assert!(main(&app).is_some() && main(&app) != first);
    node.stop().await;
}

#[tokio::test]
async fn a_frozen_workload_is_held_still() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web").shell("while :; do echo x >> n; sleep 0.02; done");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    session.push([app.clone().spec("frozen", json!(true)).0]).await;
    session.phase("web", "Frozen").await;
    let main = state.unit(&app).state().and_then(|state| state.main).expect("a process");
    eventually("it stands still", || procfs::is_held_still(main.pid)).await;
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    eventually("it goes on", || !procfs::is_held_still(main.pid)).await;
    // Also a frozen one can be deleted.
    session.push([app.clone().spec("frozen", json!(true)).0]).await;
    session.phase("web", "Frozen").await;
    session.push([app.deleting().0]).await;
    session.phase("web", "Terminated").await;
    node.stop().await;
}

/// The agent as a process of its own, which a test can kill.
struct AgentProcess(std::process::Child);

impl AgentProcess {
    fn start(gateway: &FakeGateway, pki: &Pki, state: &State) -> Self {
        let minted = pki.nodes().mint("n1", &["system:nodes"]).expect("a certificate");
        let file = |name: &str, text: &str| {
            let path = state.path().join(name);
            std::fs::write(&path, text).expect("writes");
            path
        };
        let child = Command::new(env!("CARGO_BIN_EXE_horchestra-agent"))
            .args(["--server", &gateway.controller.to_string(), "--heartbeat", "100ms", "--name", "n1"])
            .arg("--cert")
            .arg(file("n1.crt", &minted.chain))
            .arg("--key")
            .arg(file("n1.key", &minted.key))
            .arg("--ca")
            .arg(file("ca.crt", &pki.ca))
            .arg("--state-dir")
            .arg(state.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("kills");
        self.0.wait().expect("ends");
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn workloads_do_not_notice_that_the_agent_was_killed() {
    let (pki, state) = (Pki::new(), State::new());
    let mut gateway = FakeGateway::start(&pki).await;
    let agent = AgentProcess::start(&gateway, &pki, &state);
    let mut session = gateway.session().await;
    let web = TestApp::new("web").shell("n=0; while :; do n=$((n+1)); echo line $n; sleep 0.05; done");
    let job = TestApp::new("job")
        .shell("until [ -e ../../../go ]; do sleep 0.02; done; exit 5")
        .lifecycle(json!({"restartPolicy": "Never", "backoffLimit": 0}));
    let crashing = TestApp::new("crashing").shell("echo x >> n; sleep 0.3; exit 1");
    let apps = [web.0.clone(), job.0.clone(), crashing.0.clone()];
    session.push(apps.clone()).await;
    for name in ["web", "job", "crashing"] {
        session.phase(name, "Running").await;
    }
    let main = state.unit(&web).state().and_then(|state| state.main).expect("a process");
    agent.kill();
    while session.recv().await.is_some() {}

    // Meanwhile the job ends, a service is restarted, and output is taken.
    let written = std::fs::metadata(state.unit(&web).log()).expect("a log").len();
    std::fs::write(state.path().join("go"), "").expect("writes");
    eventually("the job's end", || state.unit(&job).state().is_some_and(|state| state.ending.is_some()))
        .await;
    eventually("more output", || {
        std::fs::metadata(state.unit(&web).log()).is_ok_and(|log| log.len() > written)
    })
    .await;
    let starts = state.unit(&crashing).state().map_or(0, |state| state.starts);
    eventually("a restart", || state.unit(&crashing).state().is_some_and(|state| state.starts > starts))
        .await;

    let _agent = AgentProcess::start(&gateway, &pki, &state);
    let mut session = gateway.session().await;
    session.push(apps).await;
    session.phase("web", "Running").await;
    assert!(main.is_alive(), "the same process as before");
    let end = session.finished("job").await;
    assert_eq!((end.exit_code, end.attempts, end.observed_generation), (5, 1, 1));
    let text = session.log(logs(&web), |_| false).await;
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, format!("line {}", number + 1), "not a line is lost or there twice");
    }
    session.push([]).await;
    session.idle().await;
    assert!(!main.is_alive());
    let left: Vec<_> = std::fs::read_dir(state.path().join("units")).expect("lists").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_killed_supervisor_leaves_nothing_and_its_service_starts_again() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let service = TestApp::new("service").shell("setsid sleep 1000 & sleep 1000");
    let job = TestApp::new("job").shell("sleep 1000").lifecycle(json!({"restartPolicy": "Never"}));
    session.push([service.0.clone(), job.0.clone()]).await;
    session.phase("service", "Running").await;
    session.phase("job", "Running").await;
    let uid = service.uid().to_string();
    eventually("its processes", || of_unit(&uid).len() == 3).await;
    let before = of_unit(&uid);
    for app in [&service, &job] {
        let supervisor = state.unit(app).state().expect("a state").supervisor;
        kill(Pid::from_raw(supervisor.pid), Signal::SIGKILL).expect("kills");
    }
    eventually("new processes", || {
        let now = of_unit(&uid);
        now.len() == 3 && now.iter().all(|pid| !before.contains(pid))
    })
    .await;
    session.phase("service", "Running").await;
    let end = session.finished("job").await;
    assert_eq!((end.phase.as_str(), end.exit_code, end.attempts), ("Failed", 137, 1));
    session.push([]).await;
    session.idle().await;
    node.stop().await;
}

#[tokio::test]
async fn a_stop_that_hangs_is_ended_by_the_agent_without_a_gateway() {
    let (pki, state) = (Pki::new(), State::new());
    let (gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web").shell("sleep 1000");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    drop((gateway, session));
    // A supervisor that does not do its work, and a stop that was asked for long ago.
    let uid = app.uid().to_string();
    let supervisor = state.unit(&app).state().expect("a state").supervisor;
    kill(Pid::from_raw(supervisor.pid), Signal::SIGSTOP).expect("stops");
    let request = StopRequest { grace_seconds: 1, at_unix_nano: 0 };
    state.unit(&app).write_stop_request(&request).expect("writes");
    eventually("the end of it", || of_unit(&uid).is_empty() && !supervisor.is_alive()).await;
    node.stop().await;
}

#[tokio::test]
async fn units_can_be_stopped_without_an_agent() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web").shell("sleep 1000");
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    node.stop().await;
    let uid = app.uid().to_string();
    assert!(!of_unit(&uid).is_empty(), "stopping the agent stops no workload");
    let stopped = Command::new(env!("CARGO_BIN_EXE_horchestra-agent"))
        .args(["stop-units", "--state-dir"])
        .arg(state.path())
        .status()
        .expect("runs");
    assert!(stopped.success());
    assert!(of_unit(&uid).is_empty() && !state.unit(&app).path().exists());
}

#[tokio::test]
async fn two_agents_do_not_share_a_state_directory() {
    let (pki, state) = (Pki::new(), State::new());
    let mut gateway = FakeGateway::start(&pki).await;
    let first = AgentProcess::start(&gateway, &pki, &state);
    let _session = gateway.session().await;
    let mut second = AgentProcess::start(&gateway, &pki, &state);
    let mut code = None;
    eventually("the second gives up", || {
        code = second.0.try_wait().expect("waits");
        code.is_some()
    })
    .await;
    assert!(!code.expect("an end").success());
    first.kill();
}

#[tokio::test]
async fn a_workload_runs_as_its_user_where_the_agent_may_choose() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    // Its working directory must do although it could not walk to it: the test's
    // directory is closed to others.
    let app = TestApp::new("web")
        .shell("id -u; id -g; touch mine && echo wrote; id -G; exec sleep 1000")
        .spec("securityContext", json!({"runAsUser": 1000065540, "runAsGroup": 1000065536}));
    session.push([app.0.clone()]).await;
    session.phase("web", "Running").await;
    let follow = LogRequest { follow: true, ..logs(&app) };
    let text = session.log(follow, |text| text.lines().count() == 4).await;
    if nix::unistd::geteuid().is_root() {
        assert_eq!(text, "1000065540\n1000065536\nwrote\n1000065536\n");
    } else {
        let own = format!("{}\n{}\nwrote\n", nix::unistd::geteuid(), nix::unistd::getegid());
        assert!(text.starts_with(&own), "{text}");
    }
    session.push([]).await;
    session.idle().await;
    node.stop().await;
}

#[tokio::test]
async fn no_workload_runs_as_root() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let cases = [
        ("nothing", json!({}), (65532, 65532)),
        ("root", json!({"runAsUser": 0, "runAsGroup": 0}), (65532, 65532)),
        ("only-user", json!({"runAsUser": 1000065540}), (1000065540, 65532)),
        ("only-group", json!({"runAsGroup": 1000065536}), (65532, 1000065536)),
    ];
    let app =
        |name: &str| TestApp::new(name).shell("id -u; id -g; touch mine && echo wrote; exec sleep 1000");
    let apps = cases.clone().map(|(name, context, _)| app(name).spec("securityContext", context));
    session.push(apps.clone().map(|app| app.0)).await;
    for ((name, _, ids), app) in cases.iter().zip(&apps) {
        session.phase(name, "Running").await;
        let follow = LogRequest { follow: true, ..logs(app) };
        let text = session.log(follow, |text| text.lines().count() == 3).await;
        let (user, group) = match nix::unistd::geteuid() {
            me if me.is_root() => *ids,
            me => (me.as_raw(), nix::unistd::getegid().as_raw()),
        };
        assert_eq!(text, format!("{user}\n{group}\nwrote\n"), "{name}");
    }
    session.push([]).await;
    session.idle().await;
    node.stop().await;
}

#[tokio::test]
async fn a_unit_that_never_came_to_life_is_not_held() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let job = TestApp::new("job").shell("exit 4").lifecycle(json!({"restartPolicy": "Never"}));
    session.push([job.0.clone()]).await;
    session.finished("job").await;
    node.stop().await;
    // As if the agent had been killed right before it started the supervisor.
    std::fs::remove_file(state.unit(&job).path().join("state.json")).expect("removes");
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    session.push([job.0.clone()]).await;
    let end = session.finished("job").await;
    assert_eq!((end.exit_code, end.attempts), (4, 1), "it runs, and what never ran does not count");
    node.stop().await;
}
