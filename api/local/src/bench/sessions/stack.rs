//! A whole stack without nodes of its own, and fleets of simulated ones that come and go.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use horchestra_testkit::{TempDir, free_port};
use hyper::{Method, StatusCode};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::page::Look;
use crate::cli::UpArgs;
use crate::client::{Client, Connection};
use crate::layout::Layout;
use crate::stack::{PROGRAMS, Programs};
use crate::{down, process, say, up};

pub const API: &str = "/apis/horchestra.io/v1";
pub const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
pub const GATEWAY: &str = "nodegate-0";
/// How long a fleet may take to be there, or to run what it is given.
const PATIENCE: Duration = Duration::from_secs(900);
/// Connections that the load comes over.
pub const WRITERS: usize = 16;

/// How a fleet is.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub nodes: u32,
    /// Seconds between two reports of a node.
    pub heartbeat: u64,
    pub journal: bool,
}

pub struct Stack {
    layout: Layout,
    client: Client,
    url: String,
}

impl Stack {
    /// On this database.
    pub async fn up(home: &TempDir, url: String) -> Result<Stack> {
        let path = home.path().join("stack");
        let args = UpArgs {
            nodes: 0,
            api_replicas: 1,
            worker_replicas: 1,
            nodegate_replicas: 1,
            api_port: Some(free_port()?),
            nodegate_port: Some(free_port()?),
            feature_gates: None,
            routed_cidr: None,
            database_url: Some(url.clone()),
            restart: 1,
            detach: true,
            heartbeat: 5,
        };
        let at = path.clone();
        tokio::task::spawn_blocking(move || up::detach(&at, &args)).await??;
        let layout = Layout::open(&path).context("the stack has no folder")?;
        let pki = |file: &str| layout.pki().join(file);
        let api = port(&layout, "api-0")?;
        let client =
            Client::new(([127, 0, 0, 1], api).into(), &pki("ca.crt"), &pki("admin.crt"), &pki("admin.key"))?;
        Ok(Stack { layout, client, url })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn api(&self) -> Result<SocketAddr> {
        Ok(([127, 0, 0, 1], port(&self.layout, "api-0")?).into())
    }

    pub async fn connect(&self) -> Result<PgConnection> {
        PgConnection::connect(&self.url).await.context("connecting to the database of the stack")
    }

    pub fn journal(&self) -> PathBuf {
        self.layout.log_of("journal")
    }

    /// Nodes that an operator made are admitted.
    pub async fn make_nodes(&self, count: u32) -> Result<()> {
        let bodies = (1..=count).map(|number| json!({"metadata": {"name": node(number)}, "spec": {}}));
        self.make(&format!("{API}/nodes"), bodies.collect()).await
    }

    /// One Application on each of the nodes, under this prefix, with what else its spec is to say.
    pub async fn make_applications(&self, nodes: u32, prefix: &str, also: &Value) -> Result<()> {
        let application = |number: u32| {
            let mut spec =
                json!({"image": "registry.example/demo:1", "placement": {"nodeName": node(number)}});
            for (name, value) in also.as_object().into_iter().flatten() {
                spec[name] = value.clone();
            }
            json!({"metadata": {"name": format!("{prefix}-{number}")}, "spec": spec})
        };
        self.make(APPLICATIONS, (1..=nodes).map(application).collect()).await
    }

    /// Makes objects, those that are there already excepted.
    async fn make(&self, path: &str, bodies: Vec<Value>) -> Result<()> {
        let mut parts = vec![Vec::new(); WRITERS];
        for (at, body) in bodies.into_iter().enumerate() {
            parts[at % WRITERS].push(body);
        }
        futures::stream::iter(parts)
            .map(async |bodies| {
                let mut connection = self.client.open().await?;
                for body in bodies {
                    make_one(&mut connection, path, &body).await?;
                }
                anyhow::Ok(())
            })
            .buffer_unordered(WRITERS)
            .try_collect()
            .await
    }

    /// Starts the nodes from the first to the last of a fleet; they end with the value.
    pub fn fleet(&self, fleet: Fleet) -> Result<Child> {
        let pki = |file: &str| self.layout.pki().join(file);
        let gateway = format!("127.0.0.1:{}", port(&self.layout, GATEWAY)?);
        let log = std::fs::File::create(self.layout.log_of("fleet"))?;
        let mut command = Command::new(Programs::find()?.agent);
        command
            .args(["fleet", "--server", &gateway, "--nodes", &fleet.nodes.to_string()])
            .args(["--heartbeat", &format!("{}s", fleet.heartbeat), "--log", "warn"])
            .arg("--ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca-key")
            .arg(pki("ca.key"));
        if fleet.journal {
            command.arg("--journal").arg(self.journal());
        }
        command.stdout(log.try_clone()?).stderr(log).kill_on_drop(true).spawn().context("starting the fleet")
    }

    /// Ends a fleet and waits until its gateway has noticed.
    pub async fn end(&self, mut fleet: Child) -> Result<()> {
        fleet.kill().await?;
        self.until("the sessions of a fleet that is gone end", async |look| Ok(look.sessions < 1.0)).await
    }

    pub async fn look(&self) -> Result<Look> {
        Look::at(([127, 0, 0, 1], port(&self.layout, "nodegate-0.metrics")?).into()).await
    }

    pub async fn all_there(&self, count: u32) -> Result<()> {
        self.until("all nodes have a session", async |look| Ok(look.sessions >= f64::from(count))).await
    }

    /// Waits until there is a gateway.
    pub async fn answers(&self) -> Result<()> {
        self.until("the gateway runs", async |_| Ok(true)).await
    }

    /// Waits until the workers have judged every node of the fleet ready.
    pub async fn all_ready(&self, count: u32) -> Result<()> {
        let ever = SystemTime::now() + 10 * PATIENCE;
        self.until("all nodes are judged ready", async |_| Ok(self.unready_since(count, ever).await? == 0))
            .await
    }

    /// Waits until so many Applications run.
    pub async fn all_run(&self, count: u32) -> Result<()> {
        let mut database = self.connect().await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let running = "select count(*) from horchestra.objects where phase = 'Running'";
            let running: i64 = sqlx::query_scalar(running).fetch_one(&mut database).await?;
            if running >= i64::from(count) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{running} of {count} Applications run after {} s", PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn until(&self, what: &str, holds: impl AsyncFn(&Look) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let look = self.look().await;
            if let Ok(look) = &look
                && holds(look).await?
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                let seen = look
                    .map_or_else(|error| format!("{error:#}"), |look| format!("{} sessions", look.sessions));
                bail!("waited {} s until {what}: {seen}", PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn pid(&self, process: &str) -> Result<Pid> {
        let pid = process::running(&self.layout.pid_of(process), &PROGRAMS);
        Ok(Pid::from_raw(pid.with_context(|| format!("{process} does not run"))?))
    }

    /// How many of the first `count` nodes are not ready, or were not at some time since then.
    pub async fn unready_since(&self, count: u32, moment: SystemTime) -> Result<usize> {
        let moment = jiff::Timestamp::try_from(moment)?;
        let listing = self.client.get(&format!("{API}/nodes")).await?;
        let items = listing["items"].as_array().context("a list of nodes")?;
        let steady = |node: &&Value| {
            node["status"]["conditions"].as_array().into_iter().flatten().any(|condition| {
                let since = condition["lastTransitionTime"].as_str().and_then(|text| text.parse().ok());
                condition["type"] == "Ready"
                    && condition["status"] == "True"
                    && since.is_none_or(|since: jiff::Timestamp| since < moment)
            })
        };
        let number =
            |node: &Value| node["metadata"]["name"].as_str()?.strip_prefix("sim-")?.parse::<u32>().ok();
        let of_fleet = items.iter().filter(|node| number(node).is_some_and(|number| number <= count));
        Ok(of_fleet.filter(|node| !steady(node)).count())
    }
}

async fn make_one(connection: &mut Connection, path: &str, body: &Value) -> Result<()> {
    match connection.call(Method::POST, path, Some(body)).await? {
        (StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()),
        (status, answer) => bail!("making {}: {status} {answer}", body["metadata"]["name"]),
    }
}

pub fn node(number: u32) -> String {
    format!("sim-{number}")
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
