//! `horchestra-workers`: see the library.

use std::process::ExitCode;

use clap::Parser;
use horchestra_runtime::probe;
use horchestra_workers::args::{Args, METRICS_PORT};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = probe::asked::<METRICS_PORT>(std::env::args()) {
        return Ok(code);
    }
    horchestra_runtime::crypto::install()?;
    horchestra_workers::run::run(Args::parse()).await
}
