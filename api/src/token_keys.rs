//! The folder of keys that tokens of workloads are signed with.
//!
//! A rotation is: `add` a key, and give the folder to every API replica and gateway; once no valid token is signed with
//! the old key, take its file away everywhere. Nothing is restarted, and each step leaves a system that works.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use horchestra_auth::tokens::{KeyFiles, Signs};
use jiff::Timestamp;

#[derive(Clone, Debug, Args)]
pub struct TokenKeysArgs {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Make a folder with one key; it must not exist yet, or be empty
    New { folder: PathBuf },
    /// Add a key that verifies, and signs a minute after it has appeared
    Add { folder: PathBuf },
    /// List the files of keys, the ids of the keys, and which one signs
    List { folder: PathBuf },
}

/// Makes or adds to a folder, and lists what is in it then.
pub fn change(action: &Action) -> anyhow::Result<ExitCode> {
    let (Action::New { folder } | Action::Add { folder } | Action::List { folder }) = action;
    let (files, now) = (KeyFiles::new(folder), Timestamp::now());
    match action {
        Action::New { .. } => drop(files.begin(now)?),
        Action::Add { .. } => drop(files.add(now)?),
        Action::List { .. } => {}
    }
    let mut out = std::io::stdout().lock();
    for key in files.list(now)? {
        let signs = match key.signs {
            Signs::Now => "  signs".to_owned(),
            Signs::From(moment) => format!("  signs from {moment:.0} on"),
            Signs::No => String::new(),
        };
        writeln!(out, "{}  {}{signs}", key.name, key.id)
            .with_context(|| format!("listing the keys in {}", folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
