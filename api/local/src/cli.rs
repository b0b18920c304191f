//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// A whole horchestra stack on one machine.
#[derive(Debug, Parser)]
#[command(name = "horchestra-local", version)]
pub struct Cli {
    /// Folder that holds the state of the stack.
    #[arg(long, env = "HORCHESTRA_HOME", default_value = ".horchestra", global = true)]
    pub home: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the stack (or go on with the data of the last one) and keep it running until Ctrl-C.
    Up(UpArgs),
    /// Stop the stack, its workloads included. Data is kept.
    Down,
    /// Say what runs, in which version, who leads, and what needs somebody.
    Status(crate::status::StatusArgs),
    /// Make certificates: of an authority, servers, operators, nodes and the control plane's own processes.
    Pki(crate::pki::PkiArgs),
    /// Make Nodes, so that their agents are admitted when they come.
    Nodes(crate::nodes::NodesArgs),
    /// Measure the store beside what the machine itself can do.
    Bench(crate::bench::BenchArgs),
    /// Kill leaders of the loops (or `everything`, or `gateways`) under load, again and again, and check every change
    /// that was stored.
    Soak(crate::soak::SoakArgs),
}

#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// Number of node agents, named node-1, node-2, …
    #[arg(long, env = "NODES", default_value_t = 3)]
    pub nodes: usize,
    /// Number of API replicas behind the API port.
    #[arg(long, env = "API_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub api_replicas: u16,
    /// Number of worker replicas; one of them leads.
    #[arg(long, env = "WORKER_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub worker_replicas: u16,
    /// Number of node gateways behind the node port.
    #[arg(long, env = "NODEGATE_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=16))]
    pub nodegate_replicas: u16,
    /// TCP port of the API on loopback [default: 8443, or a free one when that is taken].
    #[arg(long, env = "API_PORT")]
    pub api_port: Option<u16>,
    /// TCP port for node agents on loopback [default: 8444, or a free one when that is taken].
    #[arg(long, env = "NODEGATE_PORT")]
    pub nodegate_port: Option<u16>,
    /// URL of a PostgreSQL database to use instead of a private server.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Features that are off otherwise, as `<name>=true` separated by commas, for a new stack: it keeps the ones that it
    /// was made with.
    #[arg(long, env = "FEATURE_GATES", value_name = "GATES")]
    pub feature_gates: Option<String>,
    /// Where workloads with a network of their own get their addresses from, such as 10.244.0.0/16, for a new stack. The
    /// agents here wire no networks: such workloads are simulated ones.
    #[arg(long, env = "ROUTED_CIDR", value_name = "ADDRESS/BITS")]
    pub routed_cidr: Option<String>,
    /// Whether a process that dies is started again after a second (0 or 1).
    #[arg(long, env = "RESTART", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub restart: u8,
    /// Return once everything is ready and leave the stack running in the background.
    #[arg(long)]
    pub detach: bool,
    /// Seconds between the heartbeats of an agent.
    #[arg(long, env = "HEARTBEAT", default_value_t = 5)]
    pub heartbeat: u64,
}
