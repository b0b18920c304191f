//! Networks of their own for gateways, whose cables can be pulled.
//!
//! A gateway lives in a network namespace with two cables to this machine: one that nodes come over, one to the
//! database. A cable that is pulled is silent: nobody is told, and what was sent waits. It takes root; without, the
//! storm goes on with what else can happen.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;
use rand::Rng;

/// One of a gateway's cables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cable {
    Nodes,
    Database,
}

const CABLES: [Cable; 2] = [Cable::Nodes, Cable::Database];

/// The network of one gateway; it goes with the value.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Of the /24s that this storm uses.
    block: u8,
    index: u8,
}

/// Networks for so many gateways, or why there can be none.
pub fn make(count: u8) -> Result<Vec<Network>> {
    if !geteuid().is_root() {
        bail!("it takes root to make networks");
    }
    let block = rand::rng().random();
    (0..count).map(|index| Network::make(block, index)).collect()
}

impl Network {
    fn make(block: u8, index: u8) -> Result<Network> {
        let network = Network { name: format!("hz{block}g{index}"), block, index };
        ip(&["netns", "add", &network.name])?;
        // From here on the value takes it away again.
        ip(&["-n", &network.name, "link", "set", "lo", "up"])?;
        for cable in CABLES {
            let (outer, inner) = (network.outer(cable), network.inner(cable));
            ip(&["link", "add", &outer, "type", "veth", "peer", "name", inner, "netns", &network.name])?;
            ip(&["addr", "add", &format!("{}/30", network.here(cable)), "dev", &outer])?;
            ip(&["-n", &network.name, "addr", "add", &format!("{}/30", network.there(cable)), "dev", inner])?;
            ip(&["link", "set", &outer, "up"])?;
            ip(&["-n", &network.name, "link", "set", inner, "up"])?;
        }
        Ok(network)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address of this machine at the end of the cable.
    pub fn here(&self, cable: Cable) -> Ipv4Addr {
        self.address(cable, 1)
    }

    /// Address of the gateway at the other end.
    pub fn there(&self, cable: Cable) -> Ipv4Addr {
        self.address(cable, 2)
    }

    pub fn pull(&self, cable: Cable) -> Result<()> {
        ip(&["link", "set", &self.outer(cable), "down"])
    }

    pub fn plug(&self, cable: Cable) -> Result<()> {
        ip(&["link", "set", &self.outer(cable), "up"])
    }

    fn address(&self, cable: Cable, end: u8) -> Ipv4Addr {
        let which = self.index * 2 + u8::from(cable == Cable::Database);
        Ipv4Addr::new(10, 231, self.block, which * 4 + end)
    }

    fn outer(&self, cable: Cable) -> String {
        format!("{}{}", self.name, self.inner(cable).chars().next().unwrap_or_default())
    }

    #[allow(clippy::unused_self)]
    fn inner(&self, cable: Cable) -> &'static str {
        match cable {
            Cable::Nodes => "nodes",
            Cable::Database => "database",
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for cable in CABLES {
            let _ = ip(&["link", "del", &self.outer(cable)]);
        }
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("running ip (of iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
