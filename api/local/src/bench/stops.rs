//! Writes through one replica while another process is stopped in the middle of what it was doing.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_testkit::{TempDir, free_port};
use hyper::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::BenchArgs;
use super::report::{Section, percentile};
use super::watches::millis;
use crate::cli::UpArgs;
use crate::client::Client;
use crate::layout::Layout;
use crate::{down, process, say, up};

/// One process of each kind that others could be found to wait for.
const VICTIMS: [&str; 3] = ["api-0", "workers-0", "nodegate-0"];
const WRITERS: u32 = 10;
/// From one write of a writer to its next; together they send 50 a second.
const EVERY: Duration = Duration::from_millis(200);
const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";

/// Everything twice on one machine, and the slowest hundredth of the writes through the second API replica
/// at a fixed rate, with and without the victim stopped. Each latency counts from when its write was due.
pub async fn measure(args: &BenchArgs) -> Result<Vec<Section>> {
    let home = TempDir::new()?;
    let stack = Stack::up(&home).await?;
    let mut sections = Vec::new();
    for victim in VICTIMS {
        let (mut stopped, mut running) = (Vec::new(), Vec::new());
        let mut slowest = 0.0_f64;
        for _ in 0..args.pairs() {
            running.push(percentile(&stack.window(args.arm()).await?, 0.99));
            let pid = stack.pid(victim)?;
            kill(pid, Signal::SIGSTOP).with_context(|| format!("stopping {victim}"))?;
            let latencies = stack.window(args.arm()).await;
            kill(pid, Signal::SIGCONT).with_context(|| format!("letting {victim} go on"))?;
            let latencies = latencies?;
            stopped.push(percentile(&latencies, 0.99));
            slowest = slowest.max(latencies.last().copied().unwrap_or_default());
            // It has to catch up with its own affairs before the next comparison.
            sleep(args.arm() / 5).await;
        }
        sections.push(Section {
            name: format!("p99 of writes over HTTPS, {victim} stopped"),
            unit: "ms",
            comparison: "nothing stopped, in turns".into(),
            ours: stopped,
            theirs: running,
            aim: "ours < 1000".into(),
            notes: vec![format!("slowest write of all while it was stopped: {slowest:.1} ms")],
        });
    }
    Ok(sections)
}

/// A whole stack in a folder of its own.
struct Stack {
    layout: Layout,
    client: Client,
}

impl Stack {
    async fn up(home: &TempDir) -> Result<Stack> {
        let path = home.path().join("stack");
        let args = UpArgs {
            nodes: 3,
            api_replicas: 2,
            worker_replicas: 2,
            nodegate_replicas: 2,
            api_port: Some(free_port()?),
            nodegate_port: Some(free_port()?),
            feature_gates: None,
            routed_cidr: None,
            database_url: None,
            restart: 0,
            detach: true,
            heartbeat: 5,
        };
        let at = path.clone();
        tokio::task::spawn_blocking(move || up::detach(&at, &args)).await??;
        let layout = Layout::open(&path).context("the stack has no folder")?;
        let port = std::fs::read_to_string(layout.port_of("api-1"))?.trim().parse::<u16>()?;
        let pki = |file: &str| layout.pki().join(file);
        let client =
            Client::new(([127, 0, 0, 1], port).into(), &pki("ca.crt"), &pki("admin.crt"), &pki("admin.key"))?;
        let stack = Stack { layout, client };
        for writer in 0..WRITERS {
            let body = json!({"metadata": {"name": format!("app-{writer}")}, "spec": {"image": "demo:1"}});
            let (status, answer) = stack.client.call(Method::POST, APPLICATIONS, Some(&body)).await?;
            if !status.is_success() {
                bail!("creating an Application: {status} {answer}");
            }
        }
        Ok(stack)
    }

    fn pid(&self, process: &str) -> Result<Pid> {
        let pid = process::running(&self.layout.pid_of(process), &crate::stack::PROGRAMS);
        Ok(Pid::from_raw(pid.with_context(|| format!("{process} does not run"))?))
    }

    /// Latencies of all writes of a window, sorted.
    async fn window(&self, time: Duration) -> Result<Vec<f64>> {
        let begin = Instant::now() + Duration::from_millis(100);
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write(self.client.clone(), writer, begin + EVERY * writer / WRITERS, begin + time));
        }
        let mut latencies = Vec::new();
        while let Some(ended) = writers.join_next().await {
            latencies.extend(ended??);
        }
        latencies.sort_by(f64::total_cmp);
        Ok(latencies)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Err(error) = down::down(self.layout.root()) {
            say(&format!("the stack was not stopped: {error:#}"));
        }
    }
}

/// Changes one object again and again, each time when it is due.
async fn write(client: Client, writer: u32, mut due: Instant, end: Instant) -> Result<Vec<f64>> {
    let mut connection = client.open().await?;
    let path = format!("{APPLICATIONS}/app-{writer}");
    let mut latencies = Vec::new();
    while due < end {
        sleep_until(due).await;
        let body = json!({"metadata": {"annotations": {"example.com/turn": format!("{due:?}")}}});
        let (status, answer) = connection.call(Method::PATCH, &path, Some(&body)).await?;
        if !status.is_success() {
            bail!("changing an Application: {status} {answer}");
        }
        latencies.push(millis(due.elapsed()));
        due += EVERY;
    }
    Ok(latencies)
}
