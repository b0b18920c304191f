//! `horchestra-nodegate`: see the library.

use std::process::ExitCode;

use clap::Parser;
use horchestra_nodegate::args::{Args, METRICS_PORT};
use horchestra_runtime::probe;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = probe::asked::<METRICS_PORT>(std::env::args()) {
        return Ok(code);
    }
    horchestra_runtime::forgo_huge_pages();
    horchestra_runtime::crypto::install()?;
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(horchestra_nodegate::run::run(args))
}
