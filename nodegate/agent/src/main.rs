//! The `horchestra-agent` binary.

use clap::Parser;
use horchestra_agent::args::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    horchestra_agent::run(Cli::parse())
}
