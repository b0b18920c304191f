//! Nobody is told of anything: looking at the log now and then is enough.

use std::time::Duration;

use horchestra_runtime::Metrics;
use horchestra_store::StoreOptions;
use horchestra_workers::substrate::{LoopMetrics, Runner, RunnerOptions};
use tokio_util::sync::CancellationToken;

use super::crash::{assert_same, undisturbed};
use super::plane::{Plane, connect};
use super::process::loops;
use super::story::{CHAPTERS, NODES, state, tell};

#[tokio::test(start_paused = true)]
async fn without_a_single_notification_everything_comes_about() {
    let expected = undisturbed();
    let mut plane = Plane::new(&NODES).await;
    let backend = plane.database.connect();
    backend.set_deaf(true);
    let options = StoreOptions { poll: Duration::from_secs(20), ..StoreOptions::default() };
    let service = connect(backend, options).await;
    let (shutdown, metrics) = (CancellationToken::new(), Metrics::new("test", "0", None));
    let metrics = LoopMetrics::new(&metrics);
    let running: Vec<_> = loops(&plane, &service)
        .into_iter()
        .map(|reconciler| {
            let store = service.store().clone();
            let runner = Runner::new(reconciler, store, RunnerOptions::default(), metrics.clone());
            tokio::spawn(runner.run(shutdown.clone()))
        })
        .collect();
    for (chapter, expected) in expected.iter().enumerate().take(CHAPTERS) {
        tell(&mut plane, chapter).await;
        // Longer than the log is not looked at, and than loops rest.
        let mut quiet = 0;
        while quiet < 16 {
            plane.round(&mut []).await;
            quiet = if plane.has_news().await { 0 } else { quiet + 1 };
        }
        assert_same(&state(&plane).await, expected, &format!("chapter {chapter}"));
    }
    shutdown.cancel();
    for task in running {
        task.await.unwrap();
    }
}
