//! The stack that the storm goes over: where its processes, its database and its folder are.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::SoakArgs;
use super::processes::Processes;
use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::layout::Layout;
use crate::{down, say, up};

/// Replicas of the loops: one that leads, one that takes over, and one more that wants to.
const WORKERS: u16 = 3;

/// A stack in a folder of its own; it ends with the value.
pub struct Site {
    layout: Layout,
    client: Client,
    url: String,
}

impl Site {
    pub async fn up(home: &Path, args: &SoakArgs) -> Result<Site> {
        let path = home.join("stack");
        let (api, gate) = (horchestra_testkit::free_port()?, horchestra_testkit::free_port()?);
        let line = format!(
            "horchestra-local up --detach --nodes {} --api-replicas 2 --worker-replicas {WORKERS} \
             --api-port {api} --nodegate-port {gate} --restart 1",
            args.nodes
        );
        let Command::Up(up) = Cli::try_parse_from(line.split_whitespace())?.command else {
            bail!("`up` is not understood")
        };
        // Whatever the environment says is about the stacks of people.
        let up = crate::cli::UpArgs { database_url: None, feature_gates: None, routed_cidr: None, ..up };
        let at = path.clone();
        tokio::task::spawn_blocking(move || up::detach(&at, &up)).await??;
        let layout = Layout::open(&path).context("the stack has no folder")?;
        let pki = |file: &str| layout.pki().join(file);
        let address = SocketAddr::from(([127, 0, 0, 1], api));
        let client = Client::new(address, &pki("ca.crt"), &pki("admin.crt"), &pki("admin.key"))?;
        let url = std::fs::read_to_string(layout.database_url())?.trim().to_owned();
        Ok(Site { layout, client, url })
    }

    /// Through the balanced port, as the administrator.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    pub async fn connect(&self) -> Result<PgConnection> {
        PgConnection::connect(&self.url).await.context("connecting to the database of the stack")
    }

    pub fn workers() -> impl Iterator<Item = String> {
        (0..WORKERS).map(|index| format!("workers-{index}"))
    }

    /// What the metrics page of a process says of a name with its labels; nothing while it cannot be asked.
    pub async fn metrics(&self, process: &str) -> Option<Metrics> {
        let port = std::fs::read_to_string(self.layout.port_of(&format!("{process}.metrics"))).ok()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.trim().parse().ok()?));
        let page = timeout(Duration::from_secs(2), page(address)).await;
        page.ok()?.ok().map(Metrics)
    }
}

impl Processes for Site {
    const PATIENCE: Duration = Duration::from_secs(60);

    fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = down::down(self.layout.root()) {
            say(&format!("the stack was not stopped: {error:#}"));
        }
    }
}

/// A metrics page.
pub struct Metrics(String);

impl Metrics {
    /// `name` with its labels, as the page has it.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

async fn page(address: SocketAddr) -> Result<String> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request =
        Request::builder().uri("/metrics").header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}
