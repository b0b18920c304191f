//! Samples: whose count, which are kept, and what rates are made of them.

use std::time::Duration;

use horchestra_agent::scripted::ScriptedNode;
use horchestra_core::usage::row::NodeUsage as Row;
use horchestra_core::usage::{FRESH, Measured};
use horchestra_proto::node::v1::{AppMetrics, NodeUsage, node_message};
use horchestra_testkit::eventually;
use serde_json::json;
use uuid::Uuid;

use crate::world::{NAMESPACE, SOON, TestGateway, World, app_key, end_of_pass, named, names, report};

const SECOND: i64 = 1_000_000_000;

/// By a node's clock, `seconds` from now.
fn clock(seconds: i64) -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap() + seconds * SECOND
}

fn sample(name: &str, at: i64, cpu_usec: i64) -> AppMetrics {
    AppMetrics {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        cpu_usec,
        memory_bytes: 5 << 20,
        memory_peak_bytes: 9 << 20,
        pids: 3,
        timestamp_unix_nano: at,
        ..AppMetrics::default()
    }
}

fn node_usage(at: i64, cpu_usec: i64) -> NodeUsage {
    NodeUsage { cpu_usec, memory_used_bytes: 2 << 30, memory_total_bytes: 8 << 30, timestamp_unix_nano: at }
}

async fn send(node: &ScriptedNode, sample: AppMetrics) {
    node.send(node_message::Body::AppMetrics(sample)).await.unwrap();
}

async fn send_usage(node: &ScriptedNode, usage: NodeUsage) {
    node.send(node_message::Body::NodeUsage(usage)).await.unwrap();
}

/// What is kept of a node.
async fn kept(world: &World, node: &str) -> Row {
    let rows = world.operator.store().samples(&[node.to_owned()], FRESH).await.unwrap();
    rows.first().map(|row| Row::decode(&row.body, row.age)).unwrap_or_default()
}

async fn kept_of(world: &World, node: &str, app: &str) -> Option<Measured> {
    kept(world, node).await.apps.into_iter().find(|kept| kept.name == app).map(|kept| kept.usage.measured)
}

fn milli_cpu(measured: &Measured) -> Option<i64> {
    measured.rate().map(|rate| rate.milli_cpu)
}

/// Waits until this much CPU was counted, and says what the rate is then.
async fn rate_at(world: &World, node: &str, app: &str, cpu_usec: i64) -> Option<i64> {
    let found = async || kept_of(world, node, app).await.filter(|kept| kept.now.cpu_usec == cpu_usec);
    milli_cpu(&eventually(SOON, found).await)
}

/// A node that was sent these Applications.
async fn serving(world: &World, gateway: &TestGateway, node: &str, apps: &[&str]) -> ScriptedNode {
    world.create_node(node).await;
    for app in apps {
        world.create_app(app, node, json!({})).await;
    }
    let mut scripted = world.connect(gateway, node).await;
    scripted.desired_where(SOON, |desired| names(desired).len() == apps.len()).await.unwrap();
    scripted
}

#[tokio::test]
async fn only_believable_samples_of_what_runs_there_count() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = serving(&world, &gateway, "n1", &["web"]).await;
    world.create_node("n2").await;
    world.create_app("elsewhere", "n2", json!({})).await;
    let metrics = &gateway.gateway.gate.metrics;
    let good = sample("web", clock(0), 1);
    for (what, why, wrong) in [
        ("no name", "nameless", AppMetrics { name: String::new(), ..good.clone() }),
        ("no namespace", "nameless", AppMetrics { namespace: String::new(), ..good.clone() }),
        ("nobody's", "not_sent", AppMetrics { name: "ghost".to_owned(), ..good.clone() }),
        ("another namespace's", "not_sent", AppMetrics { namespace: "other".to_owned(), ..good.clone() }),
        ("another node's", "not_sent", AppMetrics { name: "elsewhere".to_owned(), ..good.clone() }),
        ("a negative counter", "impossible", AppMetrics { cpu_usec: -1, ..good.clone() }),
        ("negative memory", "impossible", AppMetrics { memory_bytes: i64::MIN, ..good.clone() }),
        ("more memory than there is", "impossible", AppMetrics { memory_bytes: 1 << 47, ..good.clone() }),
        ("a negative peak", "impossible", AppMetrics { memory_peak_bytes: -1, ..good.clone() }),
        ("too many processes", "impossible", AppMetrics { pids: i64::MAX, ..good.clone() }),
        ("negative kills", "impossible", AppMetrics { oom_kills: -1, ..good.clone() }),
    ] {
        let before = metrics.samples_dropped_for(why);
        send(&node, wrong).await;
        eventually(SOON, async || metrics.samples_dropped_for(why) == before + 1).await;
        assert!(kept(&world, "n1").await.apps.is_empty(), "{what}");
    }
    let fine = node_usage(clock(0), 1);
    for (what, wrong) in [
        ("a machine without memory", NodeUsage { memory_total_bytes: 0, ..fine }),
        ("more in use than there is", NodeUsage { memory_used_bytes: 9 << 30, ..fine }),
        ("a negative counter", NodeUsage { cpu_usec: -1, ..fine }),
    ] {
        let before = metrics.samples_dropped_for("impossible");
        send_usage(&node, wrong).await;
        eventually(SOON, async || metrics.samples_dropped_for("impossible") == before + 1).await;
        assert_eq!(kept(&world, "n1").await.node, None, "{what}");
    }

    send(&node, good).await;
    send_usage(&node, fine).await;
    let row =
        eventually(SOON, async || Some(kept(&world, "n1").await).filter(|row| row.node.is_some())).await;
    let [web] = row.apps.as_slice() else { panic!("{row:?}") };
    assert_eq!((web.namespace.as_str(), web.name.as_str()), (NAMESPACE, "web"));
    assert_eq!(web.uid.to_string(), world.app("web").await["metadata"]["uid"].as_str().unwrap());
    let now = web.usage.measured.now;
    assert_eq!((now.cpu_usec, now.memory_bytes, now.memory_peak_bytes, now.pids), (1, 5 << 20, 9 << 20, 3));
    let machine = row.node.unwrap().measured.now;
    assert_eq!((machine.memory_bytes, machine.memory_peak_bytes), (2 << 30, 8 << 30));
}

#[tokio::test]
async fn a_rate_is_made_of_two_samples_and_starts_anew_when_the_workload_does() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = serving(&world, &gateway, "n1", &["web"]).await;
    let start = clock(-60);
    for (what, seconds, cpu_usec, expected) in [
        ("the first", 0, 7_000_000, None),
        ("the second", 15, 10_000_000, Some(200)),
        ("the same moment again", 15, 13_000_000, Some(400)),
        ("started again", 30, 10, None),
        ("and measured twice since", 45, 1_500_010, Some(100)),
    ] {
        send(&node, sample("web", start + seconds * SECOND, cpu_usec)).await;
        assert_eq!(rate_at(&world, "n1", "web", cpu_usec).await, expected, "{what}");
    }
    // A clock that is a year off is brought near, and the rate stays sane.
    send(&node, sample("web", i64::MAX, 1_500_011)).await;
    rate_at(&world, "n1", "web", 1_500_011).await;
    let kept = kept_of(&world, "n1", "web").await.unwrap();
    assert!((kept.now.at - clock(600)).abs() < 60 * SECOND, "{kept:?}");
}

#[tokio::test]
async fn samples_are_listed_by_name_however_they_come() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let apps = ["zebra", "alpha", "web"];
    let node = serving(&world, &gateway, "n1", &apps).await;
    for round in 0..3 {
        for app in apps {
            send(&node, sample(app, clock(round), round)).await;
        }
        let row = eventually(SOON, async || {
            let row = kept(&world, "n1").await;
            let all =
                row.apps.len() == 3 && row.apps.iter().all(|app| app.usage.measured.now.cpu_usec == round);
            all.then_some(row)
        })
        .await;
        let names: Vec<&str> = row.apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["alpha", "web", "zebra"]);
    }
}

#[tokio::test]
async fn an_application_that_moves_takes_nothing_along() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let one = serving(&world, &gateway, "n1", &["web"]).await;
    let mut two = serving(&world, &gateway, "n2", &[]).await;
    send(&one, sample("web", clock(-10), 1_000_000)).await;
    rate_at(&world, "n1", "web", 1_000_000).await;

    world.merge(&app_key("web"), json!({"spec": {"placement": {"nodeName": null}}})).await;
    world.merge(&app_key("web"), json!({"spec": {"placement": {"nodeName": "n2"}}})).await;
    two.desired_where(SOON, |desired| names(desired) == ["web"]).await.unwrap();
    let metrics = &gateway.gateway.gate.metrics;
    send(&one, sample("web", clock(0), 2_000_000)).await;
    eventually(SOON, async || metrics.samples_dropped_for("not_pinned_here") == 1).await;
    send(&two, sample("web", clock(0), 3_000_000)).await;
    assert_eq!(rate_at(&world, "n2", "web", 3_000_000).await, None, "of two nodes nothing is mixed");
    assert_eq!(kept_of(&world, "n1", "web").await.unwrap().now.cpu_usec, 1_000_000);
}

#[tokio::test]
async fn a_new_bearer_of_a_name_is_measured_from_the_beginning() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = serving(&world, &gateway, "n1", &["web"]).await;
    send(&node, sample("web", clock(-10), 1_000_000)).await;
    rate_at(&world, "n1", "web", 1_000_000).await;
    let old = world.app("web").await["metadata"]["uid"].clone();
    world.delete(&app_key("web")).await;
    eventually(SOON, async || {
        node.app_status(report("web", "Terminated", 1)).await.unwrap();
        node.send(end_of_pass()).await.unwrap();
        world.app("web").await.is_null()
    })
    .await;
    let new = world.create_app("web", "n1", json!({})).await["metadata"]["uid"].clone();
    assert_ne!(old, new);
    let is_new = |app: &serde_json::Value| app["metadata"]["uid"] == new;
    node.desired_where(SOON, |desired| named(desired).iter().any(|(_, app)| is_new(app))).await.unwrap();
    send(&node, sample("web", clock(0), 2_000_000)).await;
    let uid: Uuid = new.as_str().unwrap().parse().unwrap();
    let measured = eventually(SOON, async || {
        kept(&world, "n1").await.apps.into_iter().find(|app| app.uid == uid).map(|app| app.usage.measured)
    })
    .await;
    assert_eq!((measured.now.cpu_usec, milli_cpu(&measured)), (2_000_000, None));
}

#[tokio::test]
async fn a_slow_database_costs_freshness_only() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let node = serving(&world, &gateway, "n1", &["web"]).await;
    send(&node, sample("web", clock(-30), 0)).await;
    rate_at(&world, "n1", "web", 0).await;
    let metrics = &gateway.gateway.gate.metrics;
    gateway.backend().set_stalled(true);
    let (before, received) = (metrics.samples_kept.get(), metrics.samples.get());
    for number in 1..=500 {
        send(&node, sample("web", clock(-15), number)).await;
        send_usage(&node, node_usage(clock(-15), number)).await;
    }
    eventually(SOON, async || metrics.samples.get() == received + 1000).await;
    gateway.backend().set_stalled(false);
    eventually(SOON, async || {
        let row = kept(&world, "n1").await;
        row.apps.first().is_some_and(|app| app.usage.measured.now.cpu_usec == 500)
            && row.node.is_some_and(|node| node.measured.now.cpu_usec == 500)
    })
    .await;
    // What was on its way when it stalled, what came while it did, and perhaps one in between.
    assert!(metrics.samples_kept.get() - before <= 3, "the newest of each thing, and no others");
}

#[tokio::test]
async fn a_node_that_comes_back_elsewhere_has_rates_at_once() {
    let world = World::new().await;
    let (one, two) = (world.gateway().await, world.gateway().await);
    let mut node = serving(&world, &one, "n1", &["web"]).await;
    send(&node, sample("web", clock(-20), 1_000_000)).await;
    send_usage(&node, node_usage(clock(-20), 1_000_000)).await;
    rate_at(&world, "n1", "web", 1_000_000).await;
    one.gateway.shutdown().await;
    node.ended(SOON).await.unwrap();

    let mut node = world.join(&two, "n1").await;
    node.desired(SOON).await.unwrap();
    send(&node, sample("web", clock(-10), 2_000_000)).await;
    send_usage(&node, node_usage(clock(-10), 3_000_000)).await;
    let rate = rate_at(&world, "n1", "web", 2_000_000).await.expect("a rate");
    assert!((95..=105).contains(&rate), "{rate}");
    let machine = kept(&world, "n1").await.node.expect("a node");
    assert!(milli_cpu(&machine.measured).is_some_and(|rate| (190..=210).contains(&rate)), "{machine:?}");
}

#[tokio::test]
async fn many_nodes_are_kept_with_few_statements_on_postgres() {
    const NODES: usize = 10;
    let world = World::on_postgres().await;
    let gateway = world.gateway_with(|settings| settings.sample_every = Duration::from_secs(1)).await;
    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(serving(&world, &gateway, &format!("n{number}"), &[&format!("app-{number}")]).await);
    }
    for (number, node) in nodes.iter().enumerate() {
        send(node, sample(&format!("app-{number}"), clock(0), 7)).await;
        send_usage(node, node_usage(clock(0), 7)).await;
    }
    let names: Vec<String> = (0..NODES).map(|number| format!("n{number}")).collect();
    eventually(SOON, async || world.operator.store().samples(&names, FRESH).await.unwrap().len() == NODES)
        .await;
    let rows = world.operator.store().samples(&names, FRESH).await.unwrap();
    for row in rows {
        let decoded = Row::decode(&row.body, row.age);
        assert_eq!((decoded.apps.len(), decoded.node.is_some()), (1, true), "{}", row.node);
    }
    let metrics = &gateway.gateway.gate.metrics;
    assert_eq!(metrics.samples.get(), 2 * NODES as u64);
    // A pass is kept as a whole, and not once for each message; one may have been interrupted by a tick.
    assert!(metrics.samples_kept.get() <= 2 * NODES as u64, "{}", metrics.samples_kept.get());
}
