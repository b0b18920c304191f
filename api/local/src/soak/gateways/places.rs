//! Where gateways live: each in a network of its own, as far as this machine lets us.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use horchestra_auth::pki::{LocalPki, Process};
use horchestra_testkit::free_port;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::net::{self, Cable, Network};
use crate::balancer;
use crate::process::Spec;
use crate::stack::{GatewayPorts, Shared};

/// Places for gateways, by number.
pub struct Places {
    networks: Vec<Network>,
    ports: Vec<GatewayPorts>,
    /// Why there are no networks.
    pub without_networks: Option<String>,
}

impl Places {
    pub fn make(count: u8) -> Result<Places> {
        let (networks, without_networks) = match net::make(count) {
            Ok(networks) => (networks, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let mut ports = Vec::new();
        for gateway in 0..usize::from(count) {
            ports.push(match networks.get(gateway) {
                // Both of its cables lead to addresses of its own.
                Some(_) => {
                    GatewayPorts { host: Ipv4Addr::UNSPECIFIED, nodes: 8444, internal: 9444, metrics: 9454 }
                }
                None => GatewayPorts {
                    host: Ipv4Addr::LOCALHOST,
                    nodes: free_port()?,
                    internal: free_port()?,
                    metrics: free_port()?,
                },
            });
        }
        Ok(Places { networks, ports, without_networks })
    }

    /// The network of a gateway, if it has one.
    pub fn network(&self, gateway: usize) -> Option<&Network> {
        self.networks.get(gateway)
    }

    /// Where this machine reaches the gateways.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let reached = |(at, ports): (usize, &GatewayPorts)| {
            let here = |network: &Network| network.there(Cable::Nodes);
            let host = self.networks.get(at).map_or(Ipv4Addr::LOCALHOST, here);
            SocketAddr::from((host, ports.nodes))
        };
        self.ports.iter().enumerate().map(reached).collect()
    }

    /// The database, at this machine's end of the gateway's cable.
    pub async fn database(
        &self,
        gateway: usize,
        url: &str,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<String> {
        let Some(network) = self.networks.get(gateway) else { return Ok(url.to_owned()) };
        let (before, after) = url.rsplit_once('@').context("the database has no address")?;
        let (address, name) = after.split_once('/').context("the database has no name")?;
        let here = passed_on(network.here(Cable::Database), address.parse()?, tasks, stop).await?;
        Ok(format!("{before}@{here}/{name}"))
    }

    /// Servers of this machine, at its end of the cable that nodes come over.
    pub async fn servers(
        &self,
        gateway: usize,
        servers: &[SocketAddr],
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Vec<SocketAddr>> {
        let Some(network) = self.networks.get(gateway) else { return Ok(servers.to_vec()) };
        let mut here = Vec::new();
        for server in servers {
            here.push(passed_on(network.here(Cable::Nodes), *server, tasks, stop).await?);
        }
        Ok(here)
    }

    /// How the gateway is started. `replicas` are those of the API, as it reaches them.
    pub fn spec(
        &self,
        gateway: usize,
        shared: &Shared<'_>,
        pki: &LocalPki,
        replicas: &[SocketAddr],
    ) -> Result<Spec> {
        let ports = *self.ports.get(gateway).context("there is no such gateway")?;
        let number = u16::try_from(gateway)?;
        let spec = shared
            .nodegate(number, ports, replicas, &pki.serving(), &pki.controller(Process::Nodegate))
            .args(["--name", &format!("gateway-{gateway}"), "--drain-over", "1s"]);
        let Some(network) = self.networks.get(gateway) else { return Ok(spec) };
        let advertised = SocketAddr::from((network.there(Cable::Nodes), ports.internal));
        Ok(inside(spec.args(["--internal-advertise", &advertised.to_string()]), network))
    }
}

/// An address of this machine that leads to another one.
async fn passed_on(
    at: Ipv4Addr,
    to: SocketAddr,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind((at, 0)).await?;
    let here = listener.local_addr()?;
    tasks.spawn(balancer::serve(listener, vec![to], stop.clone()));
    Ok(here)
}

/// The same process, in a network of its own.
fn inside(spec: Spec, network: &Network) -> Spec {
    let program = spec.program.display().to_string();
    let args = ["netns".to_owned(), "exec".to_owned(), network.name().to_owned(), program];
    Spec { program: "ip".into(), args: args.into_iter().chain(spec.args).collect(), ..spec }
}
