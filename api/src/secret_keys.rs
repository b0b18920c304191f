//! The tools around sealed Secrets: key files, and sealing anew.
//!
//! A rotation is: `add` a key, and give the file to every API replica and gateway (now all can open what the new
//! key seals); `use` the new key, and give out the file again; when its time has come, `reseal`; `remove` the
//! old key, and give out the file. Nothing is restarted, and each step leaves a system that works, for as long as
//! one likes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use horchestra_auth::KeyRing;
use horchestra_auth::sealing::{RingError, RingFile};
use horchestra_runtime::Progress;
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs, duration};
use horchestra_service::sealing::{self, Resealing};
use horchestra_store::postgres::{Options, PostgresBackend};
use jiff::Timestamp;

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
    /// Let another key of the file seal, from a moment on by which every process has read the file
    Use {
        file: PathBuf,
        id: String,
        /// How far ahead that moment lies; `0`: at once
        #[arg(long = "in", default_value = "1m", value_parser = duration, value_name = "DURATION")]
        after: Duration,
    },
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
        Action::Use { file, id, after } => {
            (file, changed(file, |ring| ring.seal_with_from(id, moment(*after)?))?)
        }
        Action::Remove { file, id } => (file, changed(file, |ring| ring.remove(id))?),
    };
    let mut out = std::io::stdout().lock();
    for id in ring.ids() {
        let seals = match ring.next() {
            _ if id == ring.sealing() => "  seals".to_owned(),
            Some((next, from)) if id == next => format!("  seals from {from} on"),
            _ => String::new(),
        };
        writeln!(out, "{id}{seals}").with_context(|| format!("listing the keys in {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// So far from now, in whole seconds.
fn moment(after: Duration) -> Result<Timestamp, RingError> {
    if after.is_zero() {
        return Ok(Timestamp::MIN);
    }
    let seconds = i64::try_from(after.as_secs_f64().ceil() as u64).map_err(|_| RingError::Moment)?;
    let from = Timestamp::now().as_second().checked_add(seconds);
    from.and_then(|from| Timestamp::from_second(from).ok()).ok_or(RingError::Moment)
}

fn changed(
    file: &std::path::Path,
    change: impl FnOnce(&mut RingFile) -> Result<(), RingError>,
) -> anyhow::Result<RingFile> {
    let mut ring = RingFile::load(file)?;
    change(&mut ring)?;
    ring.replace(file)?;
    Ok(ring)
}

/// Seals what is stored with the key that seals now.
pub async fn reseal(args: &ResealArgs) -> anyhow::Result<ExitCode> {
    let file = RingFile::load(&args.secret_keys).context("the keys of Secrets cannot be used")?;
    if let Some((next, from)) = file.next() {
        bail!(
            "the key {next:?} seals only from {from} on: until then there is nothing to seal anew, run this later"
        );
    }
    let ring = KeyRing::new(&file).context("the keys of Secrets cannot be used")?;
    let options = Options { application: "horchestra-reseal".to_owned(), ..Options::default() };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("the database cannot be used")?;
    let progress = Progress::new("sealing anew");
    let done = sealing::reseal_telling(&*backend, &ring, &|done, of| progress.at(done, of)).await;
    drop(progress);
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
