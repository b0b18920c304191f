//! The tools around sealed Secrets: key files, and sealing anew.
//!
//! A rotation is: `add` a key, give the file to every API replica and gateway and restart them (now all can
//! open what the new key seals); `use` the new key, give out the file again, restart; `reseal`; `remove` the
//! old key, give out the file, restart. Each step leaves a system that works, for as long as one likes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use horchestra_auth::KeyRing;
use horchestra_auth::sealing::RingFile;
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs};
use horchestra_service::sealing::{self, Resealing};
use horchestra_store::postgres::{Options, PostgresBackend};

#[derive(Clone, Debug, Args)]
pub struct SecretKeysArgs {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Make a file with one key; it must not exist yet
    New { file: PathBuf },
    /// List the ids of the keys, and which one seals
    List { file: PathBuf },
    /// Add a key that opens but does not seal yet
    Add { file: PathBuf },
    /// Let another key of the file seal
    Use { file: PathBuf, id: String },
    /// Take a key out of the file: what is still sealed with it is lost
    Remove { file: PathBuf, id: String },
}

#[derive(Clone, Debug, Args)]
pub struct ResealArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,

    /// File with the keys of sealed Secrets: the one that seals, and all that stored Secrets need
    #[arg(long, value_name = "FILE")]
    pub secret_keys: PathBuf,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Makes or changes a key file, and lists what is in it then.
pub fn change(action: &Action) -> anyhow::Result<ExitCode> {
    let (file, ring) = match action {
        Action::New { file } => {
            let ring = RingFile::generate()?;
            ring.create(file)?;
            (file, ring)
        }
        Action::List { file } => (file, RingFile::load(file)?),
        Action::Add { file } => (file, changed(file, |ring| ring.add().map(drop))?),
        Action::Use { file, id } => (file, changed(file, |ring| ring.seal_with(id))?),
        Action::Remove { file, id } => (file, changed(file, |ring| ring.remove(id))?),
    };
    let mut out = std::io::stdout().lock();
    for id in ring.ids() {
        let seals = if id == ring.sealing() { "  seals" } else { "" };
        writeln!(out, "{id}{seals}").with_context(|| format!("listing the keys in {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn changed(
    file: &std::path::Path,
    change: impl FnOnce(&mut RingFile) -> Result<(), horchestra_auth::sealing::RingError>,
) -> anyhow::Result<RingFile> {
    let mut ring = RingFile::load(file)?;
    change(&mut ring)?;
    ring.replace(file)?;
    Ok(ring)
}

/// Seals what is stored with the key that seals now.
pub async fn reseal(args: &ResealArgs) -> anyhow::Result<ExitCode> {
    let ring = KeyRing::load(&args.secret_keys).context("the keys of Secrets cannot be used")?;
    let options = Options { application: "horchestra-reseal".to_owned(), ..Options::default() };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("the database cannot be used")?;
    let done = sealing::reseal(&*backend, &ring).await;
    backend.close().await;
    let done = done.context("sealing anew stopped; it can be run again")?;
    report(&done, ring.sealing_key());
    if !done.complete() {
        bail!(
            "not everything is sealed with {:?}: see above, and run this again once no process seals with \
             another key",
            ring.sealing_key()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn report(done: &Resealing, key: &str) {
    let Resealing { objects, log, current, failed, failures, left } = done;
    for (what, why) in failures {
        tracing::error!("{what} does not open: {why}");
    }
    for used in left {
        tracing::warn!(key = used.key_id, secrets = used.objects, "still sealed with another key");
    }
    tracing::info!(
        key,
        resealed_secrets = objects,
        resealed_log_rows = log,
        unchanged = current,
        failed,
        "sealed anew"
    );
}
