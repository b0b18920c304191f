//! The API's binary.

use std::process::ExitCode;

use horchestra_api::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::from_args(std::env::args()).unwrap_or_else(|error| error.exit());
    horchestra_runtime::crypto::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(cli::run(cli))
}
