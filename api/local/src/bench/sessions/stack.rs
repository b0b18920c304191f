//! A fleet of simulated nodes on one gateway: what an idle session costs, and how soon all are back after the
//! gateway was killed.
//!
//! The gateway is one of a whole stack, with a database that commits durably and workers that judge whether
//! nodes are ready. The nodes are admitted and have nothing to run; they report every five seconds, and dial
//! again five seconds after their stream ended, as those of existing fleets do. They live in one process beside
//! everything else, so on a small machine the times say as much about them as about the gateway.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use horchestra_testkit::{TempDir, free_port};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::BenchArgs;
use super::report::Section;
use crate::cli::UpArgs;
use crate::client::Client;
use crate::layout::Layout;
use crate::stack::{PROGRAMS, Programs};
use crate::{down, process, say, up};

const NODES: &str = "/apis/horchestra.io/v1/nodes";
const GATEWAY: &str = "nodegate-0";
/// Seconds between two reports of a node.
const HEARTBEAT: u64 = 5;
/// How long a fleet may take to be there.
const PATIENCE: Duration = Duration::from_secs(300);
/// What a session may cost above the gateway without any, in KiB.
const MEMORY_BOUND: f64 = 50.0;
/// Within how many seconds all have to be back.
const RETURN_BOUND: f64 = 20.0;
/// Share of a core, in percent, for five thousand nodes without Applications.
const CPU_BOUND: f64 = 10.0;
const STATEMENTS_BOUND: f64 = 1.0;

/// Brings a fleet up, leaves it alone, kills its gateway.
pub async fn measure(args: &BenchArgs) -> Result<Vec<Section>> {
    let home = TempDir::new()?;
    let stack = Stack::up(&home).await?;
    let count = args.sessions;
    stack.answers().await?;
    stack.make_nodes(count).await?;
    sleep(Duration::from_secs(5)).await;
    let base = stack.look().await?;
    let fleet = stack.fleet(count)?;
    let began = Instant::now();
    stack.all_there(count).await?;
    say(&format!("{count} sessions after {:.1} s", began.elapsed().as_secs_f64()));
    stack.all_ready().await?;
    // Until the first desired states have gone out and buffers are what they are in the long run.
    sleep(Duration::from_secs(3 * HEARTBEAT)).await;

    let before = stack.look().await?;
    let window = args.arm().max(Duration::from_secs(2 * HEARTBEAT));
    sleep(window).await;
    let after = stack.look().await?;
    let seconds = window.as_secs_f64();
    let of_fleet = f64::from(count);
    let memory = (after.memory - base.memory) / of_fleet / 1024.0;
    let cpu = (after.cpu - before.cpu) / seconds * 100.0;
    let beats = after.heartbeats - before.heartbeats;
    let statements = (after.statements - before.statements) / seconds;

    say(&format!("{memory:.1} KiB a session, {cpu:.1} % of a core, {statements:.2} statements/s"));

    let killed = SystemTime::now();
    let began = Instant::now();
    kill(stack.pid(GATEWAY)?, Signal::SIGKILL).context("killing the gateway")?;
    stack.answers().await?;
    let started = began.elapsed().as_secs_f64();
    stack.all_there(count).await?;
    let back = began.elapsed().as_secs_f64();
    say(&format!("all back after {back:.1} s, of which {started:.1} s without a gateway"));
    let unready = stack.unready_since(killed).await?;
    if unready > 0 {
        bail!("{unready} of {count} nodes were judged not ready while the gateway was away");
    }
    drop(fleet);
    let section = |name: &str, unit, ours: f64, bound: f64, notes: Vec<String>| Section {
        name: format!("{name}, {count} sessions"),
        unit,
        comparison: "the bound".into(),
        ours: vec![ours],
        theirs: vec![bound],
        aim: "ours < bound".into(),
        notes,
    };
    let mib = |bytes: f64| bytes / 1024.0 / 1024.0;
    Ok(vec![
        section(
            "memory of an idle session",
            "KiB",
            memory,
            MEMORY_BOUND,
            vec![format!(
                "resident: {:.1} MiB without, {:.1} MiB with them",
                mib(base.memory),
                mib(after.memory)
            )],
        ),
        section(
            "all back after kill -9",
            "s",
            back,
            RETURN_BOUND,
            vec![
                format!("{started:.1} s of it until the gateway was started again; nodes dial after 5 s"),
                "no node was judged not ready".into(),
            ],
        ),
        section(
            "CPU for heartbeats",
            "% of a core",
            cpu,
            CPU_BOUND * of_fleet / 5000.0,
            vec![format!(
                "{:.0} heartbeats/s, {:.0} µs each",
                beats / seconds,
                (after.cpu - before.cpu) / beats.max(1.0) * 1e6
            )],
        ),
        section(
            "statements of the gateway",
            "1/s",
            statements,
            STATEMENTS_BOUND,
            stack.statements(seconds, &before, &after),
        ),
    ])
}

/// What a gateway says of itself.
struct Look {
    sessions: f64,
    heartbeats: f64,
    statements: f64,
    /// Bytes.
    memory: f64,
    /// Seconds.
    cpu: f64,
    page: String,
}

/// The sum of a metric over its labels.
fn sum(page: &str, name: &str) -> f64 {
    page.lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// How often each statement was run, by name.
fn by_statement(page: &str) -> impl Iterator<Item = (&str, f64)> {
    page.lines().filter_map(|line| {
        let rest = line.strip_prefix("horchestra_sql_statement_seconds_count{statement=\"")?;
        let (name, count) = rest.split_once("\"} ")?;
        Some((name, count.trim().parse().ok()?))
    })
}

/// A stack without nodes of its own.
struct Stack {
    layout: Layout,
    client: Client,
}

impl Stack {
    async fn up(home: &TempDir) -> Result<Stack> {
        let path = home.path().join("stack");
        let args = UpArgs {
            nodes: 0,
            api_replicas: 1,
            worker_replicas: 1,
            nodegate_replicas: 1,
            api_port: Some(free_port()?),
            nodegate_port: Some(free_port()?),
            feature_gates: None,
            database_url: None,
            restart: 1,
            detach: true,
            heartbeat: HEARTBEAT,
        };
        let at = path.clone();
        tokio::task::spawn_blocking(move || up::detach(&at, &args)).await??;
        let layout = Layout::open(&path).context("the stack has no folder")?;
        let pki = |file: &str| layout.pki().join(file);
        let api = port(&layout, "api-0")?;
        let client =
            Client::new(([127, 0, 0, 1], api).into(), &pki("ca.crt"), &pki("admin.crt"), &pki("admin.key"))?;
        Ok(Stack { layout, client })
    }

    /// Nodes that an operator made are admitted.
    async fn make_nodes(&self, count: u32) -> Result<()> {
        futures::stream::iter(1..=count)
            .map(async |number| {
                let body = json!({"metadata": {"name": format!("sim-{number}")}, "spec": {}});
                match self.client.call(Method::POST, NODES, Some(&body)).await? {
                    (StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()),
                    (status, answer) => bail!("creating a Node: {status} {answer}"),
                }
            })
            .buffer_unordered(8)
            .try_collect()
            .await
    }

    fn fleet(&self, count: u32) -> Result<Child> {
        let pki = |file: &str| self.layout.pki().join(file);
        let gateway = format!("127.0.0.1:{}", port(&self.layout, GATEWAY)?);
        let log = std::fs::File::create(self.layout.log_of("fleet"))?;
        let fleet = Command::new(Programs::find()?.agent)
            .args(["fleet", "--server", &gateway, "--nodes", &count.to_string()])
            .args(["--heartbeat", &format!("{HEARTBEAT}s"), "--log", "warn"])
            .arg("--ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca-key")
            .arg(pki("ca.key"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        fleet.context("starting the fleet")
    }

    async fn look(&self) -> Result<Look> {
        let address = ([127, 0, 0, 1], port(&self.layout, "nodegate-0.metrics")?);
        let stream = TcpStream::connect(std::net::SocketAddr::from(address)).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut carried = JoinSet::new();
        carried.spawn(connection);
        let request = Request::get("/metrics").header("host", "localhost").body(Empty::<Bytes>::new())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        let page = String::from_utf8_lossy(&body).into_owned();
        Ok(Look {
            sessions: sum(&page, "horchestra_gate_sessions"),
            heartbeats: sum(&page, "horchestra_gate_heartbeats_total"),
            statements: by_statement(&page).map(|(_, count)| count).sum(),
            memory: sum(&page, "horchestra_process_resident_memory_bytes"),
            cpu: sum(&page, "horchestra_process_cpu_seconds_total"),
            page,
        })
    }

    async fn all_there(&self, count: u32) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut there = 0.0;
        while Instant::now() < deadline {
            if let Ok(look) = self.look().await {
                there = look.sessions;
                if there >= f64::from(count) {
                    return Ok(());
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("only {there} of {count} nodes have a session after {} s", PATIENCE.as_secs())
    }

    fn pid(&self, process: &str) -> Result<Pid> {
        let pid = process::running(&self.layout.pid_of(process), &PROGRAMS);
        Ok(Pid::from_raw(pid.with_context(|| format!("{process} does not run"))?))
    }

    /// Waits until there is a gateway.
    async fn answers(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.look().await.is_err() {
            if Instant::now() > deadline {
                bail!("the gateway does not run");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits until the workers have judged every node ready.
    async fn all_ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let ever = SystemTime::now() + 10 * PATIENCE;
        while self.unready_since(ever).await? > 0 {
            if Instant::now() > deadline {
                bail!("nodes with a session are not judged ready");
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// How many nodes are not ready, or were not at some time since then.
    async fn unready_since(&self, moment: SystemTime) -> Result<usize> {
        let moment = jiff::Timestamp::try_from(moment)?;
        let listing = self.client.get(NODES).await?;
        let items = listing["items"].as_array().context("a list of nodes")?;
        let steady = |node: &&serde_json::Value| {
            node["status"]["conditions"].as_array().into_iter().flatten().any(|condition| {
                let since = condition["lastTransitionTime"].as_str().and_then(|text| text.parse().ok());
                condition["type"] == "Ready"
                    && condition["status"] == "True"
                    && since.is_none_or(|since: jiff::Timestamp| since < moment)
            })
        };
        Ok(items.iter().filter(|node| !steady(node)).count())
    }

    /// Which statements were run, and how often a second.
    fn statements(&self, seconds: f64, before: &Look, after: &Look) -> Vec<String> {
        let earlier: std::collections::HashMap<&str, f64> = by_statement(&before.page).collect();
        let mut rates: Vec<(&str, f64)> = by_statement(&after.page)
            .map(|(name, count)| (name, (count - earlier.get(name).copied().unwrap_or(0.0)) / seconds))
            .filter(|(_, rate)| *rate > 0.0)
            .collect();
        rates.sort_by(|a, b| b.1.total_cmp(&a.1));
        rates.into_iter().map(|(name, rate)| format!("{name}: {rate:.2}/s")).collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Err(error) = down::down(self.layout.root()) {
            say(&format!("the stack was not stopped: {error:#}"));
        }
    }
}

fn port(layout: &Layout, name: &str) -> Result<u16> {
    Ok(std::fs::read_to_string(layout.port_of(name))?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let page = "# TYPE a counter\na{b=\"c\"} 1\na{b=\"d e\"} 2.5\na_b 7\na 3\n\
            horchestra_sql_statement_seconds_count{statement=\"x\"} 4\n";
        assert!((sum(page, "a") - 6.5).abs() < 1e-9);
        assert!(sum(page, "nothing").abs() < 1e-9);
        assert_eq!(by_statement(page).collect::<Vec<_>>(), [("x", 4.0)]);
    }
}
