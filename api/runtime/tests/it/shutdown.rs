use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use horchestra_runtime::args::ShutdownArgs;
use horchestra_runtime::{Checks, Metrics, Shutdown, Tasks};
use horchestra_testkit::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::DEADLINE;

fn args(delay: Duration) -> ShutdownArgs {
    ShutdownArgs { shutdown_delay: delay, shutdown_timeout: DEADLINE }
}

fn tasks() -> Tasks {
    Tasks::new(&Metrics::new("test", "0", None))
}

/// `ExitCode` can only be compared by what it prints.
fn same(left: ExitCode, right: ExitCode) -> bool {
    format!("{left:?}") == format!("{right:?}")
}

#[tokio::test]
async fn a_signal_begins_the_end_and_everything_ends_well() {
    let tasks = tasks();
    let shutdown = Shutdown::install(&args(Duration::ZERO), &tasks).unwrap();
    let stopping = shutdown.stopping().clone();
    tasks.spawn("worker", async move { stopping.cancelled().await });
    assert!(!shutdown.draining().is_cancelled());
    kill(Pid::this(), Signal::SIGTERM).unwrap();
    let code = tokio::time::timeout(DEADLINE, shutdown.finish(&tasks)).await.unwrap();
    assert!(same(code, ExitCode::SUCCESS));
}

/// In a process of its own: this same test, started again.
#[tokio::test]
async fn a_second_signal_ends_a_process_that_hangs() {
    if std::env::var_os("RUNTIME_HANGS").is_some() {
        let tasks = tasks();
        let shutdown = Shutdown::install(&args(Duration::ZERO), &tasks).unwrap();
        tasks.spawn("deaf", std::future::pending());
        // The parent reads these two lines.
        std::io::stdout().write_all(b"ready\n").unwrap();
        shutdown.draining().cancelled().await;
        std::io::stdout().write_all(b"draining\n").unwrap();
        shutdown.finish(&tasks).await;
        unreachable!("cut off by the deadline, not by the second signal");
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shutdown::a_second_signal_ends_a_process_that_hangs", "--nocapture"])
        .env("RUNTIME_HANGS", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for said in ["ready", "draining"] {
        assert!(lines.any(|line| line.unwrap().ends_with(said)), "it never said {said}");
        kill(pid, Signal::SIGTERM).unwrap();
    }
    let status = eventually(DEADLINE / 2, async || child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(130));
}

#[tokio::test]
async fn readiness_goes_before_service_does() {
    let tasks = tasks();
    // Longer than the test waits for anything: only the steps are looked at.
    let shutdown = Shutdown::without_signals(&args(DEADLINE * 10), &tasks);
    let checks = Checks::new();
    checks.draining(shutdown.draining());
    assert!(checks.ready());
    let (ending, of) = (shutdown.clone(), tasks.clone());
    let end = tokio::spawn(async move { ending.finish(&of).await });
    shutdown.begin("test");
    eventually(DEADLINE, async || !checks.ready()).await;
    assert!(!shutdown.stopping().is_cancelled());
    end.abort();
}

#[tokio::test]
async fn a_process_that_lost_an_essential_task_ends_with_a_failure() {
    type Work = fn() -> Result<(), &'static str>;
    let fails: [(&str, Work); 3] =
        [("returns", || Ok(())), ("fails", || Err("on purpose")), ("panics", || panic!("on purpose"))];
    for (how, work) in fails {
        let tasks = tasks();
        // A failed process does not wait the delay out.
        let shutdown = Shutdown::without_signals(&args(DEADLINE * 10), &tasks);
        tasks.essential("listener", &shutdown, async move { work() });
        let code = tokio::time::timeout(DEADLINE, shutdown.finish(&tasks)).await.expect(how);
        assert!(same(code, ExitCode::FAILURE), "{how}");
    }
}

#[tokio::test]
async fn a_process_ends_with_a_vital_task_that_panics_and_not_with_one_that_ends() {
    let tasks = tasks();
    let shutdown = Shutdown::without_signals(&args(DEADLINE * 10), &tasks);
    tasks.spawn("visitor", async { panic!("on purpose") });
    tasks.vital("errand", async {});
    eventually(DEADLINE, async || tasks.names().is_empty()).await;
    assert!(!shutdown.draining().is_cancelled());
    tasks.vital("heartbeats", async { panic!("on purpose") });
    let code = tokio::time::timeout(DEADLINE, shutdown.finish(&tasks)).await.unwrap();
    assert!(same(code, ExitCode::FAILURE));
}

#[tokio::test]
async fn an_essential_task_may_end_once_the_process_is_stopping() {
    let tasks = tasks();
    let shutdown = Shutdown::without_signals(&args(Duration::ZERO), &tasks);
    let stopping = shutdown.stopping().clone();
    tasks.essential("listener", &shutdown, async move {
        stopping.cancelled().await;
        Err("closed")
    });
    shutdown.begin("test");
    let code = tokio::time::timeout(DEADLINE, shutdown.finish(&tasks)).await.unwrap();
    assert!(same(code, ExitCode::SUCCESS));
}
