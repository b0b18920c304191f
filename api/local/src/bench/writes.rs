//! Concurrent writers, beside pgbench.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use horchestra_core::kind::Kind;
use horchestra_store::{Revision, Store, WatchEnd};
use horchestra_testkit::TempDir;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::pgbench::{self, Throughput};
use super::report::{Section, percentile};
use super::server::{Server, own_cpu, store};
use super::{BenchArgs, object};

/// How many objects there are to be updated.
pub const OBJECTS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Every write makes a new object.
    Create,
    /// Every write changes one of [`OBJECTS`].
    Update,
}

/// Name, uid and revision of an object that is updated.
pub type Object = (String, Uuid, Revision);

/// What a run of ours gave.
pub struct Ours {
    pub per_second: f64,
    /// Mean size of batches, and mean milliseconds that the database took for one.
    pub batch: (f64, f64),
    /// Of single writes, in milliseconds, sorted.
    pub latencies: Vec<f64>,
    pub writes: u64,
}

impl Ours {
    #[allow(clippy::cast_precision_loss)]
    pub fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len() as f64
    }
}

pub async fn measure(server: &Server, args: &BenchArgs, load: Load, writers: usize) -> Result<Section> {
    let folder = TempDir::new()?;
    let (mut ours, mut theirs, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.pairs() {
        let url = server.database().await?;
        let cpu = (own_cpu(), server.cpu());
        let run = run_ours(&url, load, writers, args.arm()).await?;
        let used = (own_cpu() - cpu.0, server.cpu() - cpu.1);
        server.drop_database(&url).await?;

        let url = server.database().await?;
        if load == Load::Update {
            fill(&url).await?;
        }
        let before = server.cpu();
        let script = pgbench::script(load);
        pgbench::run(folder.path(), &url, &script, writers, args.warm_up()).await?;
        let Throughput { per_second, latency } =
            pgbench::run(folder.path(), &url, &script, writers, args.arm()).await?;
        let theirs_used = server.cpu() - before;
        server.drop_database(&url).await?;

        // A lone writer is about latency, many are about throughput.
        if writers == 1 {
            ours.push(run.mean());
            theirs.push(latency);
        } else {
            ours.push(run.per_second);
            theirs.push(per_second);
        }
        notes.push(format!(
            "{:.0} writes/s, p50 {:.2} ms, p99 {:.2} ms, batches of {:.0} in {:.2} ms; CPU: this process {:.1} s, PostgreSQL {:.1} s; pgbench \
             {per_second:.0}/s at {latency:.2} ms, PostgreSQL {theirs_used:.1} s",
            run.per_second,
            percentile(&run.latencies, 0.5),
            percentile(&run.latencies, 0.99),
            run.batch.0,
            run.batch.1,
            used.0,
            used.1,
        ));
    }
    let verb = if load == Load::Create { "create" } else { "update" };
    let (unit, aim) = match writers {
        1 => ("ms per write", "≤ 1.8"),
        64 => ("writes/s", "≥ 1.5"),
        _ => ("writes/s", ""),
    };
    Ok(Section {
        name: format!("{verb}, {writers} writers"),
        unit,
        comparison: format!("pgbench, {writers} clients, same rows, unordered"),
        ours,
        theirs,
        aim: aim.into(),
        notes,
    })
}

/// Writers in a closed loop on one store, with its tail, its cache and a watcher.
async fn run_ours(url: &str, load: Load, writers: usize, time: Duration) -> Result<Ours> {
    let store = store(url, "bench").await?;
    let objects = if load == Load::Update { prepare(&store).await? } else { Vec::new() };
    let start = store.not_older_than(last_of(&objects)).await?.revision();
    let (written, total) = oneshot::channel();
    let mut watcher = JoinSet::new();
    watcher.spawn(watch(store.clone(), start, total));
    let (ours, _) = drive(&store, objects, writers, time).await?;
    let _ = written.send(ours.writes);
    watcher.join_next().await.context("nothing was watched")?.context("the watcher ended badly")??;
    check(url, start, ours.writes).await?;
    store.shutdown().await;
    Ok(ours)
}

fn last_of(objects: &[Object]) -> Revision {
    objects.iter().map(|object| object.2).max().unwrap_or(0)
}

/// Lets writers create objects, or update those given, each its own share; answers the objects as they are
/// afterwards.
pub async fn drive(
    store: &Store,
    objects: Vec<Object>,
    writers: usize,
    time: Duration,
) -> Result<(Ours, Vec<Object>)> {
    let warm_up = time.div_f64(5.0).max(Duration::from_secs(1));
    let (measuring, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writes = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let share = objects.len().div_ceil(writers.max(1)).max(1);
    let mut shares = objects.chunks(share);
    for number in 0..writers {
        let own = shares.next().unwrap_or_default().to_vec();
        let writer = Writer { number, store: store.clone(), own, next: 0 };
        let (measuring, stop, writes) = (Arc::clone(&measuring), Arc::clone(&stop), Arc::clone(&writes));
        tasks.spawn(writer.run(measuring, stop, writes));
    }
    tokio::time::sleep(warm_up).await;
    measuring.store(true, Ordering::Relaxed);
    let (began, first) = (Instant::now(), writes.load(Ordering::Relaxed));
    tokio::time::sleep(time).await;
    measuring.store(false, Ordering::Relaxed);
    let (measured, elapsed) = (writes.load(Ordering::Relaxed) - first, began.elapsed());
    stop.store(true, Ordering::Relaxed);
    let (mut latencies, mut after) = (Vec::new(), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (own_latencies, own) = ended.context("a writer ended badly")??;
        latencies.extend(own_latencies);
        after.extend(own);
    }
    latencies.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss)]
    let per_second = measured as f64 / elapsed.as_secs_f64();
    let metrics = store.metrics();
    let mean = |histogram: &horchestra_store::Histogram| histogram.sum() as f64 / histogram.count() as f64;
    let batch = (mean(&metrics.batch_items), mean(&metrics.batch_time) / 1000.0);
    Ok((Ours { per_second, batch, latencies, writes: writes.load(Ordering::Relaxed) }, after))
}

struct Writer {
    number: usize,
    store: Store,
    own: Vec<Object>,
    next: usize,
}

impl Writer {
    /// Latencies in milliseconds of what was written while `measuring`, and the objects as they are then.
    async fn run(
        mut self,
        measuring: Arc<AtomicBool>,
        stop: Arc<AtomicBool>,
        writes: Arc<AtomicU64>,
    ) -> Result<(Vec<f64>, Vec<Object>)> {
        let mut latencies = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            self.next += 1;
            let at = self.next % self.own.len().max(1);
            let item = match self.own.get(at) {
                Some((name, uid, revision)) => object::item(name, *uid, Some(*revision)),
                None => object::item(&format!("app-{}-{}", self.number, self.next), Uuid::new_v4(), None),
            };
            let counts = measuring.load(Ordering::Relaxed);
            let began = Instant::now();
            let committed = self.store.commit(item).await?;
            if counts {
                latencies.push(began.elapsed().as_secs_f64() * 1000.0);
            }
            writes.fetch_add(1, Ordering::Relaxed);
            if let Some(written) = self.own.get_mut(at) {
                written.2 = committed.revisions[0];
            }
        }
        Ok((latencies, self.own))
    }
}

pub fn ended(end: WatchEnd) -> anyhow::Error {
    anyhow::anyhow!("the watch ended: {end:?}")
}

/// Follows the log until it has seen as many changes as `total` will say; every one, once, in order.
async fn watch(store: Store, start: Revision, mut total: oneshot::Receiver<u64>) -> Result<()> {
    let mut watcher = store.watch(Kind::Application, start).map_err(ended)?;
    let (mut last, mut expected) = (start, None);
    loop {
        #[allow(clippy::cast_sign_loss)]
        if expected.is_some_and(|total: u64| (last - start) as u64 >= total) {
            return Ok(());
        }
        let changes = tokio::select! {
            changes = watcher.next() => changes.map_err(ended)?,
            told = &mut total, if expected.is_none() => {
                expected = Some(told.context("the run ended early")?);
                continue;
            }
            () = tokio::time::sleep(Duration::from_secs(30)) => {
                anyhow::bail!("nothing more came after revision {last}");
            }
        };
        for change in changes {
            ensure!(change.revision == last + 1, "revision {} came after {last}", change.revision);
            last = change.revision;
        }
    }
}

/// The log holds what was acknowledged, no more and no less.
async fn check(url: &str, start: Revision, total: u64) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    let row = sqlx::query("select count(*), coalesce(max(rv), 0) from horchestra.events where rv > $1")
        .bind(start)
        .fetch_one(&mut connection)
        .await?;
    let (rows, newest): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let total = i64::try_from(total)?;
    ensure!(rows == total, "{total} writes were acknowledged, the log has {rows}");
    ensure!(newest == start + total || total == 0, "the log ends at {newest}, not {}", start + total);
    Ok(())
}

/// Makes the objects that are updated.
pub async fn prepare(store: &Store) -> Result<Vec<Object>> {
    let mut tasks = JoinSet::new();
    for part in 0..64 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut made = Vec::new();
            for number in (part..OBJECTS).step_by(64) {
                let (name, uid) = (format!("app-{number}"), Uuid::new_v4());
                let committed = store.commit(object::item(&name, uid, None)).await?;
                made.push((name, uid, committed.revisions[0]));
            }
            Ok::<_, horchestra_store::CommitError>(made)
        });
    }
    let mut objects = Vec::with_capacity(OBJECTS);
    while let Some(made) = tasks.join_next().await {
        objects.extend(made.context("preparing ended badly")??);
    }
    objects.sort();
    Ok(objects)
}

/// The same objects for the comparison, which numbers from behind them.
pub async fn fill(url: &str) -> Result<()> {
    let store = store(url, "bench-fill").await?;
    prepare(&store).await?;
    store.shutdown().await;
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query("select setval('public.bench_rv', horchestra.head() + 1)").execute(&mut connection).await?;
    sqlx::query("analyze").execute(&mut connection).await?;
    Ok(())
}
