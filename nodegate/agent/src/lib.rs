//! The node end of the stream, for local stacks and tests.
//!
//! What is here, from the outside in: [`node`] keeps a [`session`] with the control
//! plane; a session hands each push to [`converge`], which brings [`units`] and
//! [`volumes`] to what [`desired`] says, and reports what [`status`] makes of it.
//! [`fleet`] is many such nodes in one process, [`scripted`] is a node without a
//! mind of its own, for tests of gateways.
//!
//! The agent behaves like the agents of existing fleets, down to what is slow about
//! them: tests and measurements against something nicer would prove nothing.

pub mod args;
pub mod controller;
pub mod converge;
pub mod datapath;
pub mod desired;
pub mod dial;
pub mod fleet;
pub mod identity;
pub mod journal;
pub mod kubeconfig;
mod lenient;
pub mod logs;
pub mod machine;
pub mod mint;
pub mod node;
mod render;
pub mod scripted;
pub mod session;
pub mod status;
pub mod units;
pub mod volumes;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::{Cli, Command, FleetArgs, RunArgs};
use crate::fleet::Fleet;
use crate::node::{Node, NodeOptions};

/// Does what the command line says.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        // Without a runtime: a supervisor has one thread and little memory.
        Some(Command::RunUnit { directory }) => units::shim::run(&directory),
        Some(Command::StopUnits { state_dir }) => block_on(stop_units(state_dir)),
        Some(Command::Fleet(args)) => block_on(run_fleet(*args)),
        None => block_on(run_node(cli.run)),
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

async fn run_node(args: RunArgs) -> anyhow::Result<()> {
    horchestra_runtime::telemetry::init(&args.telemetry)?;
    let (identity, controller) = args.identity()?;
    let _lock = lock(args.state()?)?;
    let node = Node::new(controller, identity, args.options(own_program()?))?;
    tracing::info!(node = node.name(), "starting");
    node.run(stop_on_signal()?).await;
    Ok(())
}

async fn run_fleet(args: FleetArgs) -> anyhow::Result<()> {
    horchestra_runtime::telemetry::init(&args.telemetry)?;
    // A fleet needs a file for each node.
    horchestra_runtime::raise_file_limit();
    let fleet = Fleet::new(&args.controller()?, args.identities()?, &args.options()?, args.ramp)?;
    tracing::info!(nodes = fleet.len(), "starting a fleet");
    fleet.run(stop_on_signal()?).await;
    Ok(())
}

async fn stop_units(state: PathBuf) -> anyhow::Result<()> {
    let _lock = lock(&state)?;
    let options =
        NodeOptions { state: Some(state), supervisor: Some(own_program()?), ..NodeOptions::default() };
    node::open_units(&options)?.stop_all().await.context("a workload was not stopped")
}

/// Two agents must not share a state directory.
fn lock(state: &Path) -> anyhow::Result<Flock<std::fs::File>> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(state)?;
    let file = OpenOptions::new().create(true).append(true).open(state.join("lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err(_) => bail!("another agent uses {}", state.display()),
    }
}

/// This binary, also after its file was replaced.
fn own_program() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(if program.exists() { program } else { "/proc/self/exe".into() })
}

fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopped = stop.clone();
    // Lives as long as the process; the second signal has its default effect on
    // nothing, so that a stop cannot be cut short by an impatient key.
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopped.cancel();
    });
    Ok(stop)
}
