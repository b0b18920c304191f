//! What a client of an API replica gets, TLS, authorization, admission and JSON included, beside what
//! PostgreSQL alone does with the same rows. Client, replica and PostgreSQL share the machine.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use horchestra_auth::pki::Process;
use horchestra_testkit::{TempDir, free_port};
use http_body_util::{BodyExt, Empty};
use hyper::Method;
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::task::JoinSet;

use super::pgbench::Throughput;
use super::report::{Section, percentile};
use super::server::Server;
use super::watches::{RATE, Schedule, millis, notified};
use super::writes::{Load, OBJECTS, fill};
use super::{BenchArgs, lists, object, pgbench};
use crate::client::Client;
use crate::layout::Layout;
use crate::stack::{Programs, Shared};

pub const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
/// Connections of the workloads about throughput.
pub const CONNECTIONS: usize = 32;

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    for load in [Load::Create, Load::Update] {
        for connections in [1, CONNECTIONS] {
            sections.push(writes(server, args, load, connections).await?);
        }
    }
    sections.push(reads(server, args).await?);
    sections.push(listings(server, args).await?);
    sections.extend(deliveries(server, args).await?);
    Ok(sections)
}

/// One API replica on a database, and nothing else of a stack.
pub struct Replica {
    pub client: Client,
    process: Child,
    metrics: u16,
    // Holds its certificates and its log.
    _home: TempDir,
}

impl Replica {
    pub async fn start(url: &str) -> Result<Replica> {
        Replica::start_in(url, &[]).await
    }

    /// As [`Replica::start`], with these variables.
    pub async fn start_in(url: &str, environment: &[(&str, String)]) -> Result<Replica> {
        let home = TempDir::new()?;
        let layout = Layout::create(home.path())?;
        let pki = layout.ensure_keys()?;
        let (authority, authority_key) = (pki.authority(), pki.authority_key());
        let programs = Programs::find()?;
        let shared = Shared {
            layout: &layout,
            programs: &programs,
            database_url: url,
            authority: &authority,
            authority_key: &authority_key,
            feature_gates: None,
            routed_cidr: None,
        };
        let (port, metrics) = (free_port()?, free_port()?);
        let peer = pki.controller(Process::Api);
        let api = shared.api(0, port, metrics, &pki.serving(), &peer);
        let api = environment.iter().fold(api, |api, (name, value)| api.env(name, value.clone()));
        let mut process = api.spawn(&layout)?;
        let admin = pki.admin();
        let client = Client::new(([127, 0, 0, 1], port).into(), &authority, &admin.certificate, &admin.key)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = process.try_wait()? {
                bail!("the replica ended with {status}:\n{}", fs::read_to_string(layout.log_of("api-0"))?);
            }
            match client.call(Method::GET, "/readyz", None).await {
                Ok((status, _)) if status.is_success() => {
                    return Ok(Replica { client, process, metrics, _home: home });
                }
                other => ensure!(Instant::now() < deadline, "the replica is not ready: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Its own page of metrics.
    pub async fn metrics(&self) -> Result<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.metrics)).await?;
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut carried = JoinSet::new();
        carried.spawn(driver);
        let request =
            hyper::Request::get("/metrics").header("host", "localhost").body(Empty::<Bytes>::new())?;
        let page = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.process.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        }
        self.process.wait().await?;
        Ok(())
    }
}

/// What a client sends.
pub type Request = (Method, String, Bytes);

/// What a closed loop gave.
pub struct Run {
    pub per_second: f64,
    /// In milliseconds, sorted.
    latencies: Vec<f64>,
}

/// Sends what `next` says (of connection and turn) on every connection, one after the other.
pub async fn drive<N>(client: &Client, connections: usize, args: &BenchArgs, next: N) -> Result<Run>
where
    N: Fn(usize, usize) -> Request + Clone + Send + Sync + 'static,
{
    let (measuring, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let answers = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..connections {
        let mut connection = client.open().await?;
        let (measuring, stop, answers) = (Arc::clone(&measuring), Arc::clone(&stop), Arc::clone(&answers));
        let next = next.clone();
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                let (method, path, body) = next(number, turn);
                turn += 1;
                let counts = measuring.load(Ordering::Relaxed);
                let began = Instant::now();
                let (status, answer) = connection.exchange(method, &path, body).await?;
                if !status.is_success() {
                    bail!("{path}: {status}: {}", String::from_utf8_lossy(&answer));
                }
                if counts {
                    latencies.push(millis(began.elapsed()));
                }
                answers.fetch_add(1, Ordering::Relaxed);
            }
            Ok(latencies)
        });
    }
    tokio::time::sleep(args.warm_up()).await;
    measuring.store(true, Ordering::Relaxed);
    let (began, first) = (Instant::now(), answers.load(Ordering::Relaxed));
    tokio::time::sleep(args.arm()).await;
    let (measured, elapsed) = (answers.load(Ordering::Relaxed) - first, began.elapsed());
    stop.store(true, Ordering::Relaxed);
    let mut latencies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        latencies.extend(ended.context("a client ended badly")??);
    }
    latencies.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss)]
    let per_second = measured as f64 / elapsed.as_secs_f64();
    Ok(Run { per_second, latencies })
}

/// A number that moves through the objects as if by chance.
fn some_object(connection: usize, turn: usize) -> usize {
    (connection.wrapping_mul(7919) + turn).wrapping_mul(2_654_435_761) % OBJECTS
}

async fn writes(server: &Server, args: &BenchArgs, load: Load, connections: usize) -> Result<Section> {
    let folder = TempDir::new()?;
    let (mut ours, mut theirs, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.pairs() {
        let url = server.database().await?;
        if load == Load::Update {
            fill(&url).await?;
        }
        let replica = Replica::start(&url).await?;
        let run = match load {
            Load::Create => {
                drive(&replica.client, connections, args, |connection, turn| {
                    let name = format!("app-{connection}-{turn}");
                    (Method::POST, APPLICATIONS.to_owned(), object::manifest(&name))
                })
                .await?
            }
            Load::Update => {
                drive(&replica.client, connections, args, |connection, turn| {
                    let path = format!("{APPLICATIONS}/app-{}", some_object(connection, turn));
                    let body = format!(r#"{{"metadata":{{"labels":{{"turn":"{connection}-{turn}"}}}}}}"#);
                    (Method::PATCH, path, body.into())
                })
                .await?
            }
        };
        replica.stop().await?;
        server.drop_database(&url).await?;

        let url = server.database().await?;
        if load == Load::Update {
            fill(&url).await?;
        }
        let script = pgbench::script(load);
        pgbench::run(folder.path(), &url, &script, connections, args.warm_up()).await?;
        let Throughput { per_second, latency } =
            pgbench::run(folder.path(), &url, &script, connections, args.arm()).await?;
        server.drop_database(&url).await?;
        if connections == 1 {
            ours.push(percentile(&run.latencies, 0.5));
            theirs.push(latency);
        } else {
            ours.push(run.per_second);
            theirs.push(per_second);
        }
        notes.push(said(&run));
    }
    let verb = if load == Load::Create { "create" } else { "merge patch" };
    Ok(Section {
        name: format!("{verb} over HTTPS, {connections} connections"),
        unit: if connections == 1 { "ms, p50" } else { "writes/s" },
        comparison: format!("pgbench, {connections} clients, same rows, unordered"),
        ours,
        theirs,
        aim: if connections == 1 { String::new() } else { "≥ 0.35".into() },
        notes,
    })
}

async fn reads(server: &Server, args: &BenchArgs) -> Result<Section> {
    let folder = TempDir::new()?;
    let url = server.database().await?;
    fill(&url).await?;
    let replica = Replica::start(&url).await?;
    let (mut ours, mut theirs, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.pairs() {
        let run = drive(&replica.client, CONNECTIONS, args, |connection, turn| {
            let path = format!("{APPLICATIONS}/app-{}", some_object(connection, turn));
            (Method::GET, path, Bytes::new())
        })
        .await?;
        let script = pgbench::read_script();
        let rows = pgbench::run(folder.path(), &url, &script, CONNECTIONS, args.arm()).await?;
        ours.push(run.per_second);
        theirs.push(rows.per_second);
        notes.push(said(&run));
    }
    replica.stop().await?;
    server.drop_database(&url).await?;
    Ok(Section {
        name: format!("get over HTTPS, {CONNECTIONS} connections"),
        unit: "reads/s",
        comparison: format!("pgbench, {CONNECTIONS} clients, SELECT by key"),
        ours,
        theirs,
        aim: String::new(),
        notes,
    })
}

pub fn said(run: &Run) -> String {
    format!(
        "{:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
        run.per_second,
        percentile(&run.latencies, 0.5),
        percentile(&run.latencies, 0.99)
    )
}

async fn listings(server: &Server, args: &BenchArgs) -> Result<Section> {
    let url = server.database().await?;
    fill(&url).await?;
    let replica = Replica::start(&url).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&url).await?;
    let mut connection = replica.client.open().await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // One pair is a fraction of a second: more of them, the first not counted.
    for round in 0..=args.pairs() * 4 {
        let began = Instant::now();
        let (status, body) = connection.exchange(Method::GET, APPLICATIONS, Bytes::new()).await?;
        let listed = millis(began.elapsed());
        ensure!(status.is_success(), "the list was answered with {status}");
        let (copied, took) = lists::copy(&pool).await?;
        ensure!(body.len() > copied / 2, "the list has {} bytes, COPY gave {copied}", body.len());
        if round > 0 {
            ours.push(listed);
            theirs.push(took);
        }
    }
    pool.close().await;
    drop(connection);
    replica.stop().await?;
    server.drop_database(&url).await?;
    Ok(Section {
        name: format!("list of {OBJECTS} objects over HTTPS"),
        unit: "ms",
        comparison: "COPY of the bodies in order".into(),
        ours,
        theirs,
        aim: "≤ 2.5".into(),
        notes: Vec::new(),
    })
}

async fn deliveries(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let shares = [("p50", 0.5), ("p99", 0.99)];
    let mut sections = shares.map(|(name, _)| Section {
        name: format!("watch delivery over HTTPS at {RATE}/s, {name}"),
        unit: "ms",
        comparison: "NOTIFY to a listener".into(),
        ours: Vec::new(),
        theirs: Vec::new(),
        aim: String::new(),
        notes: Vec::new(),
    });
    for _ in 0..args.pairs() {
        let url = server.database().await?;
        let replica = Replica::start(&url).await?;
        let ours = watched(&replica.client, args.arm()).await?;
        replica.stop().await?;
        let theirs = notified(&url, args.arm()).await?;
        server.drop_database(&url).await?;
        for (section, (_, share)) in sections.iter_mut().zip(shares) {
            section.ours.push(percentile(&ours, share));
            section.theirs.push(percentile(&theirs, share));
        }
    }
    Ok(sections.into())
}

/// Created at a fixed rate, seen by a watch on another connection; milliseconds from when each was due.
async fn watched(client: &Client, time: Duration) -> Result<Vec<f64>> {
    let mut watching = client.open().await?;
    let path = format!("{APPLICATIONS}?watch=1&resourceVersion=0");
    let mut frames = watching.send(Method::GET, &path, Bytes::new()).await?.into_body();
    let mut connection = client.open().await?;
    let schedule = Schedule::of(time);
    let events = schedule.events;
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        for event in 0..events {
            tokio::time::sleep_until(schedule.time_of(event).into()).await;
            let body = object::manifest(&format!("app-{event}"));
            let (status, answer) = connection.exchange(Method::POST, APPLICATIONS, body).await?;
            ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    });
    let mut latencies = Vec::new();
    let mut buffer = Vec::new();
    while latencies.len() < events as usize {
        let frame = tokio::time::timeout(Duration::from_secs(30), frames.frame());
        let frame = frame.await.context("an event is missing")?.context("the watch ended")??;
        buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event: serde_json::Value = serde_json::from_slice(&line)?;
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            let number = name.trim_start_matches("app-").parse::<u32>().context("a foreign object")?;
            // One connection writes one after the other, so the events come in order.
            ensure!(number as usize == latencies.len(), "{name} came at place {}", latencies.len());
            latencies.push(millis(schedule.time_of(number).elapsed()));
        }
    }
    sending.join_next().await.context("nothing was sent")?.context("the writer ended badly")??;
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}
