//! `horchestra-workers`: see the library.

use std::process::ExitCode;

use clap::Parser;
use horchestra_workers::args::Args;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    horchestra_runtime::crypto::install()?;
    horchestra_workers::run::run(Args::parse()).await
}
