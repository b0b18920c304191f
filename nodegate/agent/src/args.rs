//! What can be said on the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use horchestra_core::quantity::Quantity;
use horchestra_runtime::args::{TelemetryArgs, duration};

use crate::controller::Controller;
use crate::converge::{ConvergeOptions, Order};
use crate::identity::{Identity, IdentityError};
use crate::journal::Journal;
use crate::kubeconfig;
use crate::machine::Machine;
use crate::mint::NodeIssuer;
use crate::node::{NodeOptions, RECONNECT};
use crate::units::simulated::SimulationOptions;

/// A node of horchestra. Runs the commands of Applications as processes of this
/// machine: whoever may create an Application runs commands here.
#[derive(Parser, Debug)]
#[command(
    name = "horchestra-agent",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    /// Something other than being a node.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to be a node.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What else this program does.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Plays many nodes in one process; all their workloads are simulated
    Fleet(Box<FleetArgs>),
    /// Stops every workload that an agent left running, and removes what is left of it
    StopUnits {
        /// State directory of that agent
        #[arg(long, value_name = "DIR")]
        state_dir: PathBuf,
    },
    /// Supervises one workload (started by the agent itself)
    #[command(hide = true)]
    RunUnit {
        /// Directory of the unit.
        directory: PathBuf,
    },
}

/// Being one node.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    identity: IdentityArgs,

    /// Where state is kept that must survive a restart of the agent
    #[arg(long, value_name = "DIR", required = true)]
    state_dir: Option<PathBuf>,

    /// Refuse to start unless the certificate is for a node of this name
    #[arg(long)]
    name: Option<String>,

    /// Simulate workloads with a command as well, instead of running it
    #[arg(long)]
    simulate: bool,

    /// File with the agent's own log, to be served on request
    #[arg(long, value_name = "FILE")]
    own_log: Option<PathBuf>,

    #[command(flatten)]
    behaviour: BehaviourArgs,

    /// What is logged, and how.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

#[derive(Args, Debug)]
struct IdentityArgs {
    /// Address of the control plane: host, host:port or an https URL; the port is 8443 unless given
    #[arg(long, value_name = "ADDRESS", required_unless_present = "kubeconfig")]
    server: Option<String>,

    /// File in the shape of a kubeconfig that names server, CA, certificate and key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cert", "key", "ca"])]
    kubeconfig: Option<PathBuf>,

    /// Client certificate, with its chain (PEM)
    #[arg(long, value_name = "FILE", required_unless_present = "kubeconfig")]
    cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", required_unless_present = "kubeconfig")]
    key: Option<PathBuf>,

    /// Authorities that the server is verified against (PEM)
    #[arg(long, value_name = "FILE", required_unless_present = "kubeconfig")]
    ca: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct BehaviourArgs {
    /// Time between heartbeats. Fleets report every 5s; 15s is what an agent does that was told nothing
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    heartbeat: Duration,

    /// Whether one slow application delays the others of its node
    #[arg(long, value_enum, default_value_t = Order::Serial)]
    converge: Order,

    /// How long it takes until an image is there that was not used before
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pull_delay: Duration,

    /// How long a simulated workload takes to stop
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    stop_delay: Duration,

    /// How long a simulated job runs
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    job_duration: Duration,

    /// Every how many passes the init system looks unreachable; 0 = never
    #[arg(long, default_value_t = 0, value_name = "PASSES")]
    init_flap: u32,

    /// Claim that workloads can have a network of their own (nothing is wired)
    #[arg(long)]
    routed_network: bool,

    /// Refuse volumes with tokens, as agents of the 0.9 line do
    #[arg(long)]
    no_token_volumes: bool,

    /// Judge routes and rules for Services as a node's network helper does (nothing is programmed)
    #[arg(long)]
    datapath: bool,

    /// CPUs to report, such as 4 or 2500m [default: those of the machine]
    #[arg(long, value_name = "QUANTITY")]
    cpu: Option<Quantity>,

    /// Memory to report, such as 8Gi [default: that of the machine]
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<Quantity>,
}

/// Being many nodes.
#[derive(Args, Debug)]
pub struct FleetArgs {
    /// Address of the control plane: host, host:port or an https URL; the port is 8443 unless given
    #[arg(long, value_name = "ADDRESS")]
    server: String,

    /// Authorities that the server is verified against (PEM)
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,

    /// How many nodes
    #[arg(long, default_value_t = 100)]
    nodes: u32,

    /// Names are this and a number, from 1 on
    #[arg(long, default_value = "sim-")]
    prefix: String,

    /// Directory with a NAME.crt and a NAME.key for each node
    #[arg(long, value_name = "DIR", required_unless_present = "client_ca_key")]
    certs: Option<PathBuf>,

    /// Key of the authority for clients, to make certificates with
    #[arg(long, value_name = "FILE", conflicts_with = "certs", requires = "client_ca")]
    client_ca_key: Option<PathBuf>,

    /// Certificate of the authority for clients
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,

    /// File to which what happens on the nodes is added: a line of JSON for everything that is received, reported,
    /// stopped or removed for the first time
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Spread the first connections over this time
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub ramp: Duration,

    #[command(flatten)]
    behaviour: BehaviourArgs,

    /// What is logged, and how.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl RunArgs {
    /// Who this is and where the control plane is.
    pub fn identity(&self) -> anyhow::Result<(Identity, Controller)> {
        let (identity, server) = match &self.identity {
            IdentityArgs { kubeconfig: Some(path), .. } => kubeconfig::load(path)?,
            IdentityArgs { server: Some(server), cert: Some(cert), key: Some(key), ca: Some(ca), .. } => {
                (Identity::from_files(cert, key, ca)?, Controller::parse(server)?)
            }
            _ => bail!("either --kubeconfig or --server, --cert, --key and --ca are needed"),
        };
        let server = self.identity.server.as_deref().map_or(Ok(server), Controller::parse)?;
        let name = identity.node_name()?;
        if let Some(wanted) = self.name.as_deref().filter(|wanted| *wanted != name) {
            let (wanted, actual) = (wanted.to_owned(), name.to_owned());
            return Err(IdentityError::OtherName { wanted, actual }.into());
        }
        Ok((identity, server))
    }

    /// Where state is kept.
    pub fn state(&self) -> anyhow::Result<&Path> {
        self.state_dir.as_deref().context("--state-dir is needed")
    }

    /// How to behave. `program` supervises workloads.
    pub fn options(&self, program: PathBuf) -> NodeOptions {
        NodeOptions {
            state: self.state_dir.clone(),
            supervisor: (!self.simulate).then_some(program),
            own_log: self.own_log.clone(),
            ..self.behaviour.options()
        }
    }
}

impl FleetArgs {
    /// Where the control plane is.
    pub fn controller(&self) -> anyhow::Result<Controller> {
        Ok(Controller::parse(&self.server)?)
    }

    /// How each node behaves.
    pub fn options(&self) -> anyhow::Result<NodeOptions> {
        let journal = self.journal.as_deref().map(|path| {
            Journal::open(path).with_context(|| format!("cannot write the journal {}", path.display()))
        });
        Ok(NodeOptions { journal: journal.transpose()?, ..self.behaviour.options() })
    }

    /// Who the nodes are.
    pub fn identities(&self) -> anyhow::Result<Vec<Identity>> {
        let names = (1..=self.nodes).map(|number| format!("{}{number}", self.prefix));
        if let (Some(key), Some(ca)) = (&self.client_ca_key, &self.client_ca) {
            let issuer = NodeIssuer::from_pem(&text(ca)?, &text(key)?, &text(&self.ca)?)?;
            return names.map(|name| Ok(issuer.node(&name)?)).collect();
        }
        let certs = self.certs.as_deref().context("either --certs or --client-ca-key is needed")?;
        names
            .map(|name| {
                let file = |end| certs.join(format!("{name}.{end}"));
                Ok(Identity::from_files(&file("crt"), &file("key"), &self.ca)?)
            })
            .collect()
    }
}

impl BehaviourArgs {
    fn options(&self) -> NodeOptions {
        let mut machine = Machine::here();
        if let Some(cpu) = &self.cpu {
            machine.cpu_milli = cpu.milli();
        }
        if let Some(memory) = &self.memory {
            machine.memory_bytes = memory.int();
        }
        NodeOptions {
            heartbeat: self.heartbeat,
            reconnect: RECONNECT,
            machine,
            converge: ConvergeOptions {
                order: self.converge,
                pull_delay: self.pull_delay,
                init_flap: self.init_flap,
                routed_network: self.routed_network,
                no_token_volumes: self.no_token_volumes,
                datapath: self.datapath,
            },
            simulation: SimulationOptions {
                job_duration: self.job_duration,
                stop_delay: self.stop_delay,
                directory: None,
            },
            ..NodeOptions::default()
        }
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = |line: &str| Cli::try_parse_from(line.split(' '));
        let run = cli("agent --server h:1 --cert a --key b --ca c --state-dir d").expect("parses");
        let options = run.run.options("agent".into());
        assert_eq!((options.heartbeat, options.reconnect), (Duration::from_secs(5), Duration::from_secs(5)));
        assert_eq!(options.converge.order, Order::Serial);
        assert!(
            cli("agent --kubeconfig k --state-dir d --heartbeat 15s --converge parallel --cpu 2500m").is_ok()
        );
        for bad in ["agent", "agent --server h --state-dir d", "agent --kubeconfig k --cert c --state-dir d"]
        {
            assert!(cli(bad).is_err(), "{bad}");
        }
        assert!(matches!(
            cli("agent fleet --server h --ca c --client-ca a --client-ca-key k").expect("parses").command,
            Some(Command::Fleet(_))
        ));
        assert!(cli("agent stop-units --state-dir d").is_ok() && cli("agent run-unit d").is_ok());
    }
}
