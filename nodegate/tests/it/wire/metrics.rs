//! What nodes measure, from the stream to what is kept.

use horchestra_core::usage::row::NodeUsage as Row;
use horchestra_core::usage::{FRESH, Measured};
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{AppMetrics, NodeUsage};
use horchestra_testkit::eventually;
use serde_json::json;

use super::client::Node;
use super::stage::Stage;
use crate::world::{NAMESPACE, SOON};

const SECOND: i64 = 1_000_000_000;

/// By a node's clock, so many seconds from now.
fn clock(seconds: i64) -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap() + seconds * SECOND
}

fn sample(name: &str, at: i64, cpu_usec: i64) -> AppMetrics {
    AppMetrics {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        cpu_usec,
        cpu_throttled_usec: 4,
        memory_bytes: 5 << 20,
        memory_peak_bytes: 9 << 20,
        pids: 3,
        oom_kills: 2,
        timestamp_unix_nano: at,
    }
}

fn usage(at: i64, cpu_usec: i64) -> NodeUsage {
    NodeUsage { cpu_usec, memory_used_bytes: 2 << 30, memory_total_bytes: 8 << 30, timestamp_unix_nano: at }
}

/// What is kept of a node.
async fn kept(stage: &Stage, node: &str) -> Row {
    let rows = stage.world.operator.store().samples(&[node.to_owned()], FRESH).await.unwrap();
    rows.first().map(|row| Row::decode(&row.body, row.age)).unwrap_or_default()
}

async fn kept_of(stage: &Stage, node: &str, app: &str) -> Option<Measured> {
    kept(stage, node).await.apps.into_iter().find(|kept| kept.name == app).map(|kept| kept.usage.measured)
}

/// Says it, and waits until it counts.
async fn measures(stage: &Stage, node: &Node, sample: AppMetrics) -> Measured {
    let (name, cpu) = (sample.name.clone(), sample.cpu_usec);
    node.say(Up::AppMetrics(sample)).await;
    eventually(SOON, async || kept_of(stage, &node.name, &name).await.filter(|kept| kept.now.cpu_usec == cpu))
        .await
}

#[tokio::test]
async fn what_is_measured_is_kept_as_it_was_said() {
    let stage = Stage::new().await;
    let node = stage.serving("n1", &[("web", json!({}))]).await;
    let measured = measures(&stage, &node, sample("web", clock(0), 11)).await.now;
    assert_eq!(
        (measured.cpu_usec, measured.cpu_throttled_usec, measured.pids, measured.oom_kills),
        (11, 4, 3, 2)
    );
    assert_eq!((measured.memory_bytes, measured.memory_peak_bytes), (5_242_880, 9_437_184));
    // Of the machine: what is in use, and what there is.
    node.say(Up::NodeUsage(usage(clock(0), 7))).await;
    let row =
        eventually(SOON, async || Some(kept(&stage, "n1").await).filter(|row| row.node.is_some())).await;
    let machine = row.node.unwrap().measured.now;
    assert_eq!((machine.memory_bytes, machine.memory_peak_bytes), (2_147_483_648, 8_589_934_592));
    assert_eq!(machine.cpu_usec, 7);
    // A gateway that is gone takes none of it along; what nobody renews is too old some time.
    stage.gateway.gateway.shutdown().await;
    assert!(kept_of(&stage, "n1", "web").await.is_some());
    stage.world.advance(FRESH + std::time::Duration::from_secs(1));
    assert!(kept_of(&stage, "n1", "web").await.is_none());
}

/// What is measured when, in seconds and microseconds of CPU, and the rate that comes of it, in thousandths.
const SERIES: &[(&str, i64, i64, Option<i64>)] = &[
    ("the first", 0, 7_000_000, None),
    ("the second", 15, 10_000_000, Some(200)),
    ("started again", 30, 10, None),
    ("measured twice since", 45, 1_500_010, Some(100)),
];

#[tokio::test]
async fn a_rate_is_made_of_two_samples_of_one_run() {
    let stage = Stage::new().await;
    let node = stage.serving("n1", &[("web", json!({}))]).await;
    let start = clock(-120);
    for (what, seconds, cpu, rate) in SERIES {
        let measured = measures(&stage, &node, sample("web", start + seconds * SECOND, *cpu)).await;
        assert_eq!(measured.rate().map(|rate| rate.milli_cpu), *rate, "{what}");
    }
    // The same moment, a nanosecond later, no moment at all, and the end of time: no rate out of nothing.
    for (number, at) in [start, start + 1, 0, i64::MAX, i64::MIN].into_iter().enumerate() {
        let measured =
            measures(&stage, &node, sample("web", at, 1_600_000 + i64::try_from(number).unwrap())).await;
        assert!(measured.rate().is_none_or(|rate| (0..100_000).contains(&rate.milli_cpu)), "{measured:?}");
    }
    assert_eq!(stage.gateway.gateway.gate.metrics.samples_dropped_for("impossible"), 0);
}

#[tokio::test]
async fn samples_that_say_nothing_or_cannot_be_do_not_count() {
    let stage = Stage::new().await;
    stage.world.create_node("n2").await;
    stage.world.create_app("theirs", "n2", json!({})).await;
    let node = stage.serving("n1", &[("web", json!({}))]).await;
    let good = || sample("web", clock(0), 1);
    for wrong in [
        AppMetrics { name: String::new(), ..good() },
        AppMetrics { namespace: String::new(), ..good() },
        AppMetrics { namespace: "other".to_owned(), ..good() },
        sample("theirs", clock(0), 1),
        sample("missing", clock(0), 1),
        AppMetrics { cpu_usec: -1, ..good() },
        AppMetrics { memory_bytes: -1, ..good() },
        AppMetrics { memory_bytes: 1 << 47, ..good() },
        AppMetrics { pids: i64::MAX, ..good() },
        AppMetrics { oom_kills: -1, ..good() },
    ] {
        node.say(Up::AppMetrics(wrong)).await;
    }
    for wrong in [
        NodeUsage { memory_total_bytes: 0, ..usage(clock(0), 1) },
        NodeUsage { memory_used_bytes: 9 << 30, ..usage(clock(0), 1) },
        NodeUsage { cpu_usec: -1, ..usage(clock(0), 1) },
    ] {
        node.say(Up::NodeUsage(wrong)).await;
    }
    // What comes next counts, and is all there is.
    measures(&stage, &node, sample("web", clock(0), 42)).await;
    let row = kept(&stage, "n1").await;
    assert_eq!((row.apps.len(), row.node), (1, None));
    let names: Vec<String> = kept(&stage, "n2").await.apps.into_iter().map(|app| app.name).collect();
    assert!(names.is_empty(), "{names:?}");
}
