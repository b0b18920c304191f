//! A whole stack on one machine: a private PostgreSQL, certificates, every binary of the product and a few
//! node agents, all on loopback.
//!
//! One supervisor owns the stack. It starts what is missing, restarts what dies after a second, stops
//! everything in the order in which it is needed (agents first, the database last), and leaves nothing
//! running behind. What it knows is in files (pids, ports, logs), so `down` and `status` need no
//! connection to it, and a supervisor that was killed is cleaned up after by the next `up` or `down`.

pub mod balancer;
pub mod bench;
pub mod cli;
pub mod cookbook;
pub mod soak;

mod client;
mod down;
mod ground;
mod journal;
mod layout;
pub mod nodes;
pub mod pki;
mod postgres;
mod process;
mod stack;
pub mod status;
mod up;

use std::io::Write as _;
use std::process::ExitCode;

use cli::{Cli, Command};

/// Runs the command; what went wrong is said on standard error.
pub fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Up(args) if args.detach => up::detach(&cli.home, &args),
        Command::Up(args) => up::foreground(&cli.home, &args),
        Command::Down => down::down(&cli.home),
        Command::Status(args) => block_on(status::run(&cli.home, &args)),
        Command::Pki(args) => pki::run(&args),
        Command::Nodes(args) => block_on(nodes::run(args)),
        Command::Bench(args) => block_on(bench::run(args)),
        Command::Soak(args) => block_on(soak::run(args)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Progress and answers go to standard output: this is a program for people. Whoever closes it has read enough.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[allow(clippy::print_stderr)]
fn say_error(text: &str) {
    eprintln!("error: {text}");
}
