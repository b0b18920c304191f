//! Where the storm takes place: a stack without gateways of its own, two gateways in networks of their own where that
//! can be, a balancer in front of them, and a fleet.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use horchestra_testkit::free_port;
use hyper::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::processes::{Processes, ready_nodes, until};
use super::front::Front;
use super::net::Network;
use super::places::Places;
use super::witness;
use crate::cli::UpArgs;
use crate::client::Client;
use crate::layout::Layout;
use crate::process::{Endings, supervise};
use crate::stack::{Programs, Shared};
use crate::{down, say, up};

pub const GATEWAYS: u8 = 2;
const NODES: &str = "/apis/horchestra.io/v1/nodes";

pub struct Site {
    layout: Layout,
    client: Client,
    url: String,
    nodes: u32,
    front: Front,
    places: Places,
    fleet: Option<Child>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Site {
    pub async fn up(home: &Path, nodes: u32) -> Result<Site> {
        let path = home.join("stack");
        let args = UpArgs {
            nodes: 0,
            api_replicas: 1,
            worker_replicas: 1,
            nodegate_replicas: 0,
            api_port: Some(free_port()?),
            nodegate_port: Some(free_port()?),
            feature_gates: None,
            database_url: None,
            routed_cidr: Some("10.244.0.0/16".to_owned()),
            restart: 1,
            detach: true,
            heartbeat: 5,
        };
        let at = path.clone();
        tokio::task::spawn_blocking(move || up::detach(&at, &args)).await??;
        let layout = Layout::open(&path).context("the stack has no folder")?;
        let pki = |file: &str| layout.pki().join(file);
        let api = SocketAddr::from(([127, 0, 0, 1], port(&layout, "api-0")?));
        let client = Client::new(api, &pki("ca.crt"), &pki("admin.crt"), &pki("admin.key"))?;
        let url = fs::read_to_string(layout.database_url())?.trim().to_owned();
        witness::install(&url).await?;
        let places = Places::make(GATEWAYS)?;
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let front = Front::of(&places.addresses()).await?;
        let site = Site { layout, client, url, nodes, front, places, fleet: None, stop, tasks };
        for gateway in 0..usize::from(GATEWAYS) {
            site.gateway(gateway).await?;
        }
        Ok(site)
    }

    /// Starts a gateway, and again whenever it dies.
    async fn gateway(&self, gateway: usize) -> Result<()> {
        let pki = self.layout.ensure_keys()?;
        let database_url = self.places.database(gateway, &self.url, &self.tasks, &self.stop).await?;
        let (authority, authority_key) = (pki.authority(), pki.authority_key());
        let programs = Programs::find()?;
        let shared = Shared {
            layout: &self.layout,
            programs: &programs,
            database_url: &database_url,
            authority: &authority,
            authority_key: &authority_key,
            feature_gates: None,
            routed_cidr: None,
        };
        let spec = self.places.spec(gateway, &shared, &pki, &[])?;
        let child = spec.spawn(&self.layout)?;
        let (layout, stop) = (self.layout.clone(), self.stop.clone());
        self.tasks.spawn(supervise(spec, layout, true, stop, child, Endings::default()));
        Ok(())
    }

    /// Makes the nodes and starts them; they write down what they do.
    pub async fn start_fleet(&mut self) -> Result<()> {
        futures::stream::iter(1..=self.nodes)
            .map(async |number| {
                let body = json!({"metadata": {"name": format!("sim-{number}")}, "spec": {}});
                match self.client.call(Method::POST, NODES, Some(&body)).await? {
                    (StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()),
                    (status, answer) => bail!("creating a Node: {status} {answer}"),
                }
            })
            .buffer_unordered(8)
            .try_collect::<()>()
            .await?;
        let pki = |file: &str| self.layout.pki().join(file);
        let log = fs::File::create(self.layout.log_of("fleet"))?;
        let mut command = Command::new(Programs::find()?.agent);
        command
            .args([
                "fleet",
                "--server",
                &self.front.address().to_string(),
                "--nodes",
                &self.nodes.to_string(),
            ])
            .args(["--heartbeat", "5s", "--ramp", "3s", "--job-duration", "2s", "--log", "warn"])
            .args(["--cpu", "32", "--memory", "64Gi", "--routed-network", "--datapath"])
            .arg("--journal")
            .arg(self.journal())
            .arg("--ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca")
            .arg(pki("ca.crt"))
            .arg("--client-ca-key")
            .arg(pki("ca.key"));
        let child = command.stdout(log.try_clone()?).stderr(log).kill_on_drop(true).spawn();
        self.fleet = Some(child.context("starting the fleet")?);
        self.all_served().await?;
        self.all_judged().await
    }

    /// Waits until the workers have judged every node ready: placement goes by what nodes say of themselves before.
    async fn all_judged(&self) -> Result<()> {
        let nodes = usize::try_from(self.nodes)?;
        let asked = async || self.client.get(NODES).await.is_ok_and(|listing| ready_nodes(&listing) >= nodes);
        until(Site::PATIENCE, "not every node is judged ready", asked).await
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn front(&self) -> &Front {
        &self.front
    }

    /// That of a gateway, if it has one.
    pub fn network(&self, gateway: usize) -> Option<&Network> {
        self.places.network(gateway)
    }

    /// Why nobody has one.
    pub fn without_networks(&self) -> Option<&String> {
        self.places.without_networks.as_ref()
    }

    pub fn journal(&self) -> PathBuf {
        self.layout.run().join("journal")
    }

    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    pub async fn connect(&self) -> Result<PgConnection> {
        PgConnection::connect(&self.url).await.context("connecting to the database of the stack")
    }

    /// Waits until every node has a session with a gateway that may act.
    pub async fn all_served(&self) -> Result<()> {
        let nodes = i64::from(self.nodes);
        let asked = async || matches!(self.served().await, Ok(served) if served >= nodes);
        until(Site::PATIENCE, "not every node has a session", asked).await
    }

    async fn served(&self) -> Result<i64> {
        witness::served(&mut self.connect().await?).await
    }

    /// How many nodes a gateway serves, by its name.
    pub async fn served_by(&self, gateway: usize) -> Result<i64> {
        let mut database = self.connect().await?;
        let query = "select count(*) from horchestra.node_sessions s \
            join horchestra.gateways g on g.id = s.gateway where g.name = $1";
        Ok(sqlx::query_scalar(query).bind(format!("gateway-{gateway}")).fetch_one(&mut database).await?)
    }

    /// Ends everything, the fleet first.
    pub async fn down(mut self) -> Result<()> {
        if let Some(mut fleet) = self.fleet.take() {
            fleet.kill().await?;
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        Ok(())
    }
}

impl Processes for Site {
    /// All nodes are served again by then: TCP tries again ever more seldom.
    const PATIENCE: Duration = Duration::from_secs(420);

    fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
        // Those whose supervision ends with this process, however it ends.
        for gateway in 0..GATEWAYS {
            if let Some(pid) = self.pid(&format!("nodegate-{gateway}")) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        if let Err(error) = down::down(self.layout.root()) {
            say(&format!("the stack was not stopped: {error:#}"));
        }
    }
}

fn port(layout: &Layout, name: &str) -> Result<u16> {
    Ok(fs::read_to_string(layout.port_of(name))?.trim().parse()?)
}
