//! `horchestra-local`: see the library.

use std::process::ExitCode;

use clap::Parser;
use horchestra_local::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    horchestra_local::run(Cli::parse())
}
