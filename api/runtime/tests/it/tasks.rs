use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use horchestra_runtime::{Backoff, Metrics, Tasks};
use horchestra_testkit::eventually;

use crate::DEADLINE;

fn tasks() -> (Tasks, Metrics) {
    let metrics = Metrics::new("test", "0", None);
    (Tasks::new(&metrics), metrics)
}

fn shows(metrics: &Metrics, line: &str) -> bool {
    metrics.encode().unwrap().lines().any(|found| found == line)
}

fn quick() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(5))
}

#[tokio::test]
async fn a_supervised_task_is_run_again_after_errors_and_panics_until_it_succeeds() {
    let (tasks, metrics) = tasks();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    tasks.supervise("flaky", quick(), move || {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        // One panics before there is a future, one inside of it, one fails.
        assert!(run != 0, "on purpose");
        async move {
            assert!(run != 1, "on purpose");
            if run == 2 { Err("on purpose") } else { Ok(()) }
        }
    });
    eventually(DEADLINE, async || tasks.names().is_empty()).await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    for line in [
        "horchestra_task_panics_total{task=\"flaky\"} 2",
        "horchestra_task_restarts_total{task=\"flaky\"} 3",
        "horchestra_tasks_running{task=\"flaky\"} 0",
    ] {
        assert!(shows(&metrics, line), "no {line} in {}", metrics.encode().unwrap());
    }
}

#[tokio::test]
async fn a_panic_in_a_plain_task_is_counted_and_nothing_else_ends() {
    let (tasks, metrics) = tasks();
    let stopping = tasks.stopping().clone();
    tasks.spawn("other", async move { stopping.cancelled().await });
    tasks.spawn("doomed", async { panic!("on purpose") });
    eventually(DEADLINE, async || shows(&metrics, "horchestra_task_panics_total{task=\"doomed\"} 1")).await;
    eventually(DEADLINE, async || tasks.names() == ["other"]).await;
    assert!(!tasks.stopping().is_cancelled());
    assert!(tasks.finish(DEADLINE).await.is_empty());
}

#[tokio::test]
async fn finishing_waits_for_tasks_and_names_those_that_had_to_be_aborted() {
    let (tasks, _metrics) = tasks();
    let ended = Arc::new(AtomicU32::new(0));
    let (stopping, counted) = (tasks.stopping().clone(), ended.clone());
    tasks.spawn("polite", async move {
        stopping.cancelled().await;
        tokio::task::yield_now().await;
        counted.fetch_add(1, Ordering::SeqCst);
    });
    tasks.spawn("deaf", std::future::pending());
    // One that sits in its pause, and one that nobody waits for.
    tasks.supervise("retrying", Backoff::new(DEADLINE * 10, DEADLINE * 10), || async { Err("always") });
    tasks.detached("background", std::future::pending());
    assert_eq!(tasks.finish(Duration::from_millis(200)).await, ["deaf"]);
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    eventually(DEADLINE, async || tasks.names().is_empty()).await;
}

#[tokio::test]
async fn a_supervised_task_that_fails_while_stopping_is_left_alone() {
    let (tasks, metrics) = tasks();
    let stopping = tasks.stopping().clone();
    tasks.supervise("loop", quick(), move || {
        let stopping = stopping.clone();
        async move {
            stopping.cancelled().await;
            Err::<Infallible, _>("the connection was closed").map(|_| ())
        }
    });
    assert!(tasks.finish(DEADLINE).await.is_empty());
    assert!(!metrics.encode().unwrap().contains("horchestra_task_restarts_total{"));
}
