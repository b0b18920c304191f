//! The command that takes over the objects of another control plane of this API.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use horchestra_auth::KeyRing;
use horchestra_runtime::Progress;
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs};
use horchestra_service::import::{self, Dump, ImportError};
use horchestra_store::postgres::{Options, PostgresBackend};

/// Objects that are named of those that cannot be imported.
const NAMED: usize = 50;

#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// Files that `kubectl get … -A -o json` wrote; `-` is the standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    /// File with the keys that Secrets are sealed with; needed when there are any
    #[arg(long, value_name = "FILE")]
    pub secret_keys: Option<PathBuf>,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Imports what the files hold.
pub async fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let mut dump = Dump::default();
    for file in &args.files {
        let text = read(file).with_context(|| format!("{} cannot be read", file.display()))?;
        dump.read(&text).with_context(|| format!("{} cannot be imported", file.display()))?;
    }
    if dump.is_empty() {
        bail!("there is nothing to import in what was named");
    }
    let ring = match &args.secret_keys {
        Some(file) => Some(KeyRing::load(file).context("the keys of Secrets cannot be used")?),
        None => None,
    };
    let options = Options { application: "horchestra-import".to_owned(), ..Options::default() };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("the database cannot be used")?;
    let progress = Progress::new("importing");
    let outcome =
        import::import_telling(&*backend, ring.as_ref(), &dump, &|done, of| progress.at(done, of)).await;
    drop(progress);
    backend.close().await;
    let done = match outcome {
        Ok(done) => done,
        Err(ImportError::Faults(faults)) => {
            for fault in faults.iter().take(NAMED) {
                tracing::error!("{fault}");
            }
            bail!(
                "{} objects cannot be imported (see above); nothing was written: put them right in the file, or \
                 take them out of it",
                faults.len()
            );
        }
        Err(error) => return Err(error).context("the import stopped"),
    };
    tracing::info!(
        imported = done.written,
        already_there = done.present,
        addresses = done.addresses,
        events_left_out = dump.events(),
        revision = done.revision,
        "imported; nodes are sent nothing until they are admitted"
    );
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin().lock().read_to_end(&mut text)?;
        return Ok(text);
    }
    std::fs::read(file)
}
