//! Where it all takes place: a whole stack of processes, each of which is started again a second after it ended, as
//! systemd would. Nothing else is ever started again.
//!
//! The soak supervises them itself, so that it knows of every process that ends, and gives each worker a name that the
//! database sees. Clients come to the API directly, through a balancer, and through the address of the nodes.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_auth::pki::{LocalPki, Process};
use hyper::{Method, StatusCode};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::gateways::front::Front;
use super::super::gateways::net::Network;
use super::super::gateways::places::Places;
use super::super::gateways::witness as of_gateways;
use super::super::processes::{Processes, ready_nodes, until};
use super::witness;
use crate::client::Client;
use crate::down;
use crate::layout::{Layout, write_private};
use crate::process::{Ended, Endings, Spec};
use crate::stack::{Programs, Shared};
use crate::up::{self, Running};

pub const APIS: usize = 3;
pub const WORKERS: usize = 3;
pub const GATEWAYS: usize = 2;
/// Agents in processes of their own, with workloads that are processes.
pub const AGENTS: usize = 3;

const NODES: &str = "/apis/horchestra.io/v1/nodes";
/// Label of the nodes with agents of their own: few enough to be filled.
const ROOM: (&str, &str) = ("room", "small");
/// What a node has of its own, real or played.
const CPU: &str = "2";
const MEMORY: &str = "4Gi";

/// A client of the API, and which way it takes.
#[derive(Clone)]
pub struct Way {
    pub name: String,
    pub client: Client,
}

pub struct Site {
    layout: Layout,
    running: Option<Running>,
    url: String,
    nodes: usize,
    /// The replicas in their order, the balancer, the address of the nodes.
    ways: Vec<Way>,
    apis: Front,
    gates: Front,
    places: Places,
    /// What passes connections on for gateways.
    tasks: TaskTracker,
    stop: CancellationToken,
    endings: Endings,
    /// Processes that were told to end.
    told: Mutex<HashSet<i32>>,
}

impl Site {
    /// Everything, with so many nodes besides those of the agents.
    pub async fn up(home: &Path, nodes: usize) -> Result<Site> {
        let layout = Layout::create(&home.join("stack"))?;
        let mut running = Running::new(layout.clone(), true);
        let (mut site, keys) = Box::pin(Site::build(&layout, &mut running, nodes)).await?;
        site.running = Some(running);
        site.start_nodes(&keys).await?;
        Ok(site)
    }

    async fn build(layout: &Layout, running: &mut Running, nodes: usize) -> Result<(Site, Keys)> {
        running.stage();
        let url = up::start_postgres(running).await?;
        write_private(&layout.database_url(), format!("{url}\n").as_bytes())?;
        let keys = Keys { programs: Programs::find()?, pki: layout.ensure_keys()? };
        let (authority, authority_key) = (keys.pki.authority(), keys.pki.authority_key());
        let shared = keys.shared(layout, &url, &authority, &authority_key);
        up::migrate(&shared).await?;
        of_gateways::install(&url).await?;
        witness::install(&url).await?;

        running.stage();
        let (serving, peer) = (keys.pki.serving(), keys.pki.controller(Process::Api));
        let mut replicas = Vec::new();
        for index in 0..APIS {
            let port = up::port_for(layout, &api(index))?;
            let metrics = up::port_for(layout, &format!("{}.metrics", api(index)))?;
            running.start(shared.api(u16::try_from(index)?, port, metrics, &serving, &peer))?;
            replicas.push(SocketAddr::from(([127, 0, 0, 1], port)));
        }
        let apis = Front::of(&replicas).await?;
        let mut ways = Vec::new();
        for (index, replica) in replicas.iter().enumerate() {
            let way = keys.way(&api(index), *replica)?;
            let asked = &way.client;
            up::ask_until_yes("the API", layout, &api(index), async || up::ready(asked).await).await?;
            ways.push(way);
        }
        ways.push(keys.way("balancer", apis.address())?);

        running.stage();
        for index in 0..WORKERS {
            let metrics = up::port_for(layout, &format!("{}.metrics", worker(index)))?;
            let named = witness::named(&url, &worker(index));
            let shared = keys.shared(layout, &named, &authority, &authority_key);
            running.start(shared.workers(u16::try_from(index)?, metrics))?;
        }

        running.stage();
        let places = Places::make(u8::try_from(GATEWAYS)?)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        for index in 0..GATEWAYS {
            let database = places.database(index, &url, &tasks, &stop).await?;
            let replicas = places.servers(index, &replicas, &tasks, &stop).await?;
            let shared = keys.shared(layout, &database, &authority, &authority_key);
            running.start(places.spec(index, &shared, &keys.pki, &replicas)?)?;
        }
        let gates = Front::of(&places.addresses()).await?;
        ways.push(keys.way("one address", gates.address())?);
        let site = Site {
            layout: layout.clone(),
            running: None,
            url,
            nodes: nodes + AGENTS,
            ways,
            apis,
            gates,
            places,
            tasks,
            stop,
            endings: running.endings().clone(),
            told: Mutex::default(),
        };
        Ok((site, keys))
    }

    /// Makes the nodes and starts their agents, and one process that plays the rest of them.
    async fn start_nodes(&mut self, keys: &Keys) -> Result<()> {
        let agents: Vec<String> = (1..=AGENTS).map(|number| format!("node-{number}")).collect();
        let played = self.nodes - AGENTS;
        let (key, value) = ROOM;
        for agent in &agents {
            self.make_node(agent, &json!({key: value})).await?;
        }
        for number in 1..=played {
            self.make_node(&format!("sim-{number}"), &json!({})).await?;
        }
        let (authority, authority_key) = (keys.pki.authority(), keys.pki.authority_key());
        let shared = keys.shared(&self.layout, &self.url, &authority, &authority_key);
        let gates = self.gates.address();
        let running = self.running.as_mut().context("nothing runs")?;
        running.stage();
        for (index, node) in agents.iter().enumerate() {
            let spec = shared.agent(index, node, gates.port(), 5, &keys.pki.node(node)?);
            running.start(spec.args(["--cpu", CPU, "--memory", MEMORY]))?;
        }
        if played > 0 {
            let (authority, key) = (authority.display().to_string(), authority_key.display().to_string());
            let journal = self.layout.run().join("journal").display().to_string();
            let spec = Spec::new("agent-fleet", &keys.programs.agent)
                .args(["fleet", "--server", &gates.to_string(), "--nodes", &played.to_string()])
                .args(["--heartbeat", "5s", "--ramp", "2s", "--job-duration", "2s", "--log", "warn"])
                .args(["--cpu", CPU, "--memory", MEMORY, "--datapath", "--journal", &journal])
                .args(["--ca", &authority, "--client-ca", &authority, "--client-ca-key", &key]);
            running.start(spec)?;
        }
        self.all_served().await?;
        self.all_ready().await
    }

    async fn make_node(&self, name: &str, labels: &Value) -> Result<()> {
        let body = json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
        let (status, answer) = self.balanced().call(Method::POST, NODES, Some(&body)).await?;
        if status != StatusCode::CREATED {
            bail!("making Node {name}: {status} {answer}");
        }
        Ok(())
    }

    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// The client of one replica of the API.
    pub fn direct(&self, replica: usize) -> &Client {
        &self.ways[replica].client
    }

    /// The client of the balancer.
    pub fn balanced(&self) -> &Client {
        &self.ways[APIS].client
    }

    /// The balancer in front of the API.
    pub fn apis(&self) -> &Front {
        &self.apis
    }

    /// The balancer in front of the gateways.
    pub fn gates(&self) -> &Front {
        &self.gates
    }

    pub fn network(&self, gateway: usize) -> Option<&Network> {
        self.places.network(gateway)
    }

    /// Why nobody has a network of their own.
    pub fn without_networks(&self) -> Option<&String> {
        self.places.without_networks.as_ref()
    }

    /// Labels of the nodes that are few.
    pub fn room() -> Value {
        let (key, value) = ROOM;
        json!({key: value})
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    /// Where the nodes that are played write down what they do.
    pub fn journal(&self) -> PathBuf {
        self.layout.run().join("journal")
    }

    pub async fn connect(&self) -> Result<PgConnection> {
        connect(&self.url).await
    }

    /// Waits until a replica of the API says that it is ready.
    pub async fn answers(&self, replica: usize) -> Result<()> {
        let client = self.direct(replica);
        let asked = async || matches!(up::ready(client).await, Ok(true));
        until(Site::PATIENCE, &format!("{} is not ready", api(replica)), asked).await
    }

    /// Waits until every node has a session with a gateway that may act.
    pub async fn all_served(&self) -> Result<()> {
        let nodes = i64::try_from(self.nodes)?;
        let asked = async || matches!(self.served().await, Ok(served) if served >= nodes);
        until(Site::PATIENCE, "not every node has a session", asked).await
    }

    async fn served(&self) -> Result<i64> {
        of_gateways::served(&mut self.connect().await?).await
    }

    /// Waits until the workers have judged every node ready: placement goes by what nodes say of themselves before.
    async fn all_ready(&self) -> Result<()> {
        let asked = async || {
            self.balanced().get(NODES).await.is_ok_and(|listing| ready_nodes(&listing) >= self.nodes)
        };
        until(Site::PATIENCE, "not every node is ready", asked).await
    }

    /// Processes that have ended although nobody told them to.
    pub fn deserters(&self) -> Vec<String> {
        let told = self.told.lock();
        let deserted = self.endings.take().into_iter().filter(|ended| !told.contains(&ended.pid));
        deserted.map(|Ended { process, status, .. }| format!("{process} ended by itself: {status}")).collect()
    }

    /// Ends everything, nodes first.
    pub async fn down(mut self) -> Result<()> {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let layout = self.layout.clone();
        tokio::task::spawn_blocking(move || down::stop_leftovers(&layout)).await?
    }
}

impl Processes for Site {
    const PATIENCE: Duration = Duration::from_secs(120);

    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Nobody wonders why it ended.
    fn told(&self, pid: Pid) {
        self.told.lock().insert(pid.as_raw());
    }
}

/// What processes are started with.
struct Keys {
    programs: Programs,
    pki: LocalPki,
}

impl Keys {
    fn shared<'a>(
        &'a self,
        layout: &'a Layout,
        database_url: &'a str,
        authority: &'a Path,
        authority_key: &'a Path,
    ) -> Shared<'a> {
        let programs = &self.programs;
        let (feature_gates, routed_cidr) = (None, None);
        Shared { layout, programs, database_url, authority, authority_key, feature_gates, routed_cidr }
    }

    fn way(&self, name: &str, address: SocketAddr) -> Result<Way> {
        let admin = self.pki.admin();
        let client = Client::new(address, &self.pki.authority(), &admin.certificate, &admin.key)?;
        Ok(Way { name: name.to_owned(), client })
    }
}

pub fn api(index: usize) -> String {
    format!("api-{index}")
}

pub fn worker(index: usize) -> String {
    format!("workers-{index}")
}

pub fn gateway(index: usize) -> String {
    format!("nodegate-{index}")
}

pub fn agent(index: usize) -> String {
    format!("agent-{index}")
}

/// A connection, if there is one soon: a server that stands still accepts and says nothing.
pub async fn connect(url: &str) -> Result<PgConnection> {
    let connecting = timeout(Duration::from_secs(5), PgConnection::connect(url));
    Ok(connecting.await.context("no answer from the database")??)
}
