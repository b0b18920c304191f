//! The page of a large fleet, from the samples in the database to the last byte at the scraper, beside COPY of those
//! samples.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::usage::row::{Aged, AppUsage, NodeUsage};
use horchestra_core::usage::{Before, Measured, Sample};
use horchestra_store::{Columns, Index, Item, Op, Samples, SessionClaim, SessionGrant, Store};
use hyper::Method;
use sqlx::postgres::{PgPool, PgPoolCopyExt, PgPoolOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::BenchArgs;
use super::https::Replica;
use super::object::{self, NAMESPACE};
use super::report::Section;
use super::server::{Server, store};
use super::watches::millis;

const NODES: usize = 5_000;
const APPLICATIONS_PER_NODE: usize = 10;
const SERIES: usize = NODES * (APPLICATIONS_PER_NODE * 6 + 3);
/// Longer than what was taken for one scraper is good for another.
const APART: Duration = Duration::from_secs(6);
/// Some moment of the nodes' clocks, in nanoseconds.
const MOMENT: i64 = 1_700_000_000_000_000_000;
const COPY: &str = "copy (select body from horchestra.samples order by node) to stdout (format binary)";

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Section> {
    let url = server.database().await?;
    let store = store(&url, "bench").await?;
    let fleet = Fleet::make(&store).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&url).await?;
    let replica = Replica::start(&url).await?;
    let mut connection = replica.client.open().await?;
    let before = memory(&replica)?;
    let (mut ours, mut theirs, mut most, mut bytes) = (Vec::new(), Vec::new(), 0.0_f64, 0);
    for round in 0..=args.pairs() {
        fleet.report(&store).await?;
        tokio::time::sleep(APART).await;
        let began = Instant::now();
        let (status, page) = connection.exchange(Method::GET, "/metrics", Bytes::new()).await?;
        let took = millis(began.elapsed());
        ensure!(status.is_success(), "the page was answered with {status}");
        let series = page.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"h")).count();
        ensure!(series == SERIES, "{series} of {SERIES} series are on the page");
        most = most.max(memory(&replica)?);
        bytes = page.len();
        let copied = copy(&pool).await?;
        if round > 0 {
            ours.push(took);
            theirs.push(copied);
        }
    }
    let began = Instant::now();
    let squeezed = connection.squeezed("/metrics").await?;
    let mut notes =
        vec![format!("compressed: {} of {bytes} bytes in {:.0} ms", squeezed.len(), millis(began.elapsed()))];
    notes.push(format!("four at a time: {:.0} ms", together(&replica, &mut most).await?));
    notes.push(format!("resident memory of the replica: {before:.0} MiB before, {most:.0} MiB at most"));
    let began = Instant::now();
    let page = replica.metrics().await?;
    let own = page.lines().filter(|line| !line.starts_with('#')).count();
    notes.push(format!("its own page: {own} series in {:.0} ms", millis(began.elapsed())));
    ensure!(own < 5_000, "the replica's own page has {own} series");
    let began = Instant::now();
    let path = "/apis/metrics.k8s.io/v1beta1/pods";
    let list = replica.client.get(path).await?;
    notes.push(format!("what kubectl top pod -A asks for: {:.0} ms", millis(began.elapsed())));
    let measured = list["items"].as_array().map_or(0, Vec::len);
    ensure!(measured == NODES * APPLICATIONS_PER_NODE, "{measured} Applications have a rate");

    pool.close().await;
    drop(connection);
    replica.stop().await?;
    store.shutdown().await;
    server.drop_database(&url).await?;
    Ok(Section {
        name: format!("page of {} Applications on {NODES} nodes", NODES * APPLICATIONS_PER_NODE),
        unit: "ms",
        comparison: "COPY of the samples".into(),
        ours,
        theirs,
        aim: "ours ≤ 3000 ms".into(),
        notes,
    })
}

/// Milliseconds until each of four scrapers has the whole page.
async fn together(replica: &Replica, most: &mut f64) -> Result<f64> {
    let mut scrapers = JoinSet::new();
    let began = Instant::now();
    for _ in 0..4 {
        let client = replica.client.clone();
        scrapers
            .spawn(async move { client.open().await?.exchange(Method::GET, "/metrics", Bytes::new()).await });
    }
    while let Some(scraped) = scrapers.join_next().await {
        let (status, _) = scraped.context("a scraper ended badly")??;
        ensure!(status.is_success(), "the page was answered with {status}");
        *most = most.max(memory(replica)?);
    }
    Ok(millis(began.elapsed()))
}

/// Resident memory of the replica, in MiB.
fn memory(replica: &Replica) -> Result<f64> {
    let pid = replica.pid().context("the replica has ended")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no resident memory")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
}

async fn copy(pool: &PgPool) -> Result<f64> {
    use futures::TryStreamExt;
    let began = Instant::now();
    let mut stream = pool.copy_out_raw(COPY).await?;
    while stream.try_next().await?.is_some() {}
    Ok(millis(began.elapsed()))
}

/// A node with its session, and names and uids of what is placed on it.
struct Node {
    name: String,
    grant: SessionGrant,
    apps: Vec<(String, Uuid)>,
}

struct Fleet {
    nodes: Vec<Node>,
}

impl Fleet {
    async fn make(store: &Store) -> Result<Fleet> {
        let gateway = Uuid::new_v4();
        store.renew_gateway(gateway, "127.0.0.1:1", Duration::from_secs(3600)).await?;
        let mut nodes = Vec::with_capacity(NODES);
        let names: Vec<String> = (0..NODES).map(|number| format!("node-{number:04}")).collect();
        for some in names.chunks(500) {
            let claims = some.iter().map(|node| SessionClaim {
                node: node.clone(),
                gateway,
                peer: "127.0.0.1:1".into(),
                certificate: "00".repeat(32),
            });
            let granted = store.claim_sessions(claims.collect(), Duration::ZERO).await?;
            for (name, grant) in some.iter().zip(granted) {
                let apps = (0..APPLICATIONS_PER_NODE).map(|n| (format!("app-{name}-{n}"), Uuid::new_v4()));
                let grant = grant.context("a node has a session already")?;
                nodes.push(Node { name: name.clone(), grant, apps: apps.collect() });
            }
        }
        let items: Vec<Item> = nodes
            .iter()
            .flat_map(|node| {
                let apps = node.apps.iter();
                let placed = apps.map(|(name, uid)| placed(object::item(name, *uid, None), &node.name));
                std::iter::once(node_item(&node.name)).chain(placed)
            })
            .collect();
        for some in items.chunks(512) {
            let written = some.iter().map(|item| store.commit(item.clone()));
            for outcome in futures::future::join_all(written).await {
                outcome?;
            }
        }
        Ok(Fleet { nodes })
    }

    /// Keeps new samples of everything, as gateways do.
    async fn report(&self, store: &Store) -> Result<()> {
        let usage = |number: i64| Aged {
            measured: Measured {
                now: Sample {
                    cpu_usec: 123_456_789 + number,
                    memory_bytes: 64 << 20,
                    memory_peak_bytes: 96 << 20,
                    pids: 7,
                    at: MOMENT,
                    ..Sample::default()
                },
                before: Some(Before { cpu_usec: 123_000_000, at: MOMENT - 5_000_000_000 }),
            },
            age: Duration::ZERO,
        };
        for some in self.nodes.chunks(500) {
            let samples = some.iter().map(|node| {
                let apps = node.apps.iter().zip(0..).map(|((name, uid), number)| AppUsage {
                    uid: *uid,
                    namespace: NAMESPACE.into(),
                    name: name.clone(),
                    usage: usage(number),
                });
                let row = NodeUsage { node: Some(usage(0)), apps: apps.collect() };
                Samples { node: node.name.clone(), grant: node.grant.clone(), body: row.encode().into() }
            });
            store.record_samples(&samples.collect::<Vec<_>>()).await?;
        }
        Ok(())
    }
}

/// The Application, on a node.
fn placed(mut item: Item, node: &str) -> Item {
    for op in &mut item.ops {
        if let Op::Create(draft) = op {
            draft.columns.node = Some(node.to_owned());
        }
    }
    item
}

fn node_item(name: &str) -> Item {
    let mut item = object::item(name, Uuid::new_v4(), None);
    item.guards.clear();
    for op in &mut item.ops {
        if let Op::Create(draft) = op {
            draft.key = Key::cluster(Kind::Node, name);
            draft.columns = Columns::default();
            draft.index = Index::default();
            draft.body = Bytes::from(format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#));
        }
    }
    item
}
