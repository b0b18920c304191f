//! Who no longer leads shows nothing of the world any more: its successor does.

use std::collections::BTreeSet;
use std::time::Duration;

use horchestra_runtime::Metrics;
use horchestra_store::StoreOptions;
use horchestra_testkit::eventually;
use horchestra_workers::substrate::{LoopMetrics, Runner, RunnerOptions};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::plane::{Plane, connect};
use super::process::{LOOPS, loops_on};
use super::story::{NODES, tell};

const SOON: Duration = Duration::from_secs(120);

/// The gauges on the page, but those of what the process itself is and of who leads.
fn shown(metrics: &Metrics) -> BTreeSet<String> {
    let page = metrics.encode().unwrap();
    let gauges: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge"))
        .filter(|name| name.starts_with("horchestra_"))
        .filter(|name| !["build_info", "loop_leading", "loop_epoch"].iter().any(|own| name.ends_with(own)))
        .collect();
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.filter(|name| gauges.contains(name)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn gauges_of_a_leader_go_with_its_term() {
    for deposed in [false, true] {
        let mut plane = Plane::new(&NODES).await;
        tell(&mut plane, 0).await;
        let service = connect(plane.database.connect(), StoreOptions::default()).await;
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::new("test", "0", None));
        let loop_metrics = LoopMetrics::new(&metrics);
        let running: Vec<_> = loops_on(&plane, &service, &metrics)
            .into_iter()
            .map(|reconciler| {
                let (store, loop_metrics) = (service.store().clone(), loop_metrics.clone());
                let runner = Runner::new(reconciler, store, RunnerOptions::default(), loop_metrics);
                tokio::spawn(runner.run(shutdown.clone()))
            })
            .collect();
        let expected = [
            "horchestra_applicationset_children",
            "horchestra_applicationsets",
            "horchestra_csr_held",
            "horchestra_csr_signer_expiry_seconds",
            "horchestra_csr_signer_files_unusable",
            "horchestra_garbage_waiting",
            "horchestra_held_nodes",
            "horchestra_log_headroom_revisions",
            "horchestra_log_oldest_revision",
            "horchestra_scheduler_pending",
            "horchestra_scheduler_unschedulable",
        ];
        eventually(SOON, async || expected.iter().all(|name| shown(&metrics).contains(*name))).await;
        assert_eq!(shown(&metrics), BTreeSet::from(expected.map(str::to_owned)));
        if deposed {
            // Their terms run out while nothing is answered, and others take over.
            plane.database.advance(RunnerOptions::default().lease_ttl);
            for name in LOOPS {
                let thief = plane.store().acquire_lease(name, Uuid::new_v4(), SOON * 10).await.unwrap();
                assert!(thief.is_some(), "{name}");
            }
            eventually(SOON, async || shown(&metrics).is_empty()).await;
        }
        shutdown.cancel();
        for task in running {
            task.await.unwrap();
        }
        assert_eq!(shown(&metrics), BTreeSet::new(), "deposed: {deposed}");
    }
}
