//! The storm over gateways: two of them, a fleet of nodes, people who want things, and everything that can happen to a
//! gateway.
//!
//! * the [`site`]: gateways in [networks](net) of their own behind a [balancer](front), as far as this machine lets us;
//! * the [`load`]: Applications that come, change and go;
//! * the [`nemesis`]: what is done to the gateways, drawn at random;
//! * the [`witness`]: triggers in the database that look at who writes for which node;
//! * the [`checker`]: judges what nodes did by what is on record.
//!
//! Beside them the recorder and the checker of the other storm look at every change. When all is over, everything comes
//! to rest, and then nothing may be written any more.

pub(super) mod checker;
pub(super) mod front;
mod load;
mod nemesis;
pub(super) mod net;
pub(super) mod places;
mod report;
mod site;
pub(super) mod witness;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use horchestra_testkit::TempDir;
use rand::Rng;
use tokio::time::{Instant, sleep};

use self::checker::Judge;
use self::load::Load;
use self::nemesis::{Nemesis, Struck};
use self::report::Report;
use self::site::Site;
use super::recorder::Recorder;
use super::{history, keep_logs, rest};
use crate::journal::Reader;
use crate::say;

/// After everything has come to rest: so long nothing may be written, through several reports of every node.
const QUIET: Duration = Duration::from_secs(12);

/// How long the storm over gateways lasts, and over how many nodes.
#[derive(Args, Clone, Debug)]
pub struct GatewaysArgs {
    /// Minutes that the storm lasts.
    #[arg(long, default_value_t = 30.0)]
    pub minutes: f64,
    /// Number of faults, however long they take; instead of a time.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Number of nodes.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: u32,
    /// Seconds that one fault lasts at most.
    #[arg(long, default_value_t = 300)]
    pub longest: u64,
    /// What the faults are drawn with, to have the same ones again [default: another one each time].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder for the history that was read, and for logs of a storm that was not weathered.
    #[arg(long, default_value = "target/soak-gateways")]
    pub out: PathBuf,
}

/// Runs the storm; fails when a rule was broken or nothing was tried.
pub async fn run(args: GatewaysArgs) -> Result<()> {
    horchestra_runtime::crypto::install()?;
    horchestra_runtime::raise_file_limit();
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let home = TempDir::new()?;
    let mut site = Site::up(home.path(), args.nodes).await?;
    let outcome = weather(&mut site, &args).await;
    let well = matches!(&outcome, Ok(report) if report.violations.is_empty());
    if !well {
        keep_logs(&site.logs(), &args.out.join("logs"))?;
        let _ = fs::copy(site.journal(), args.out.join("journal"));
        say(&format!("what was seen: {}, and logs beside it", history(&args.out).display()));
    }
    site.down().await?;
    let report = outcome?;
    say(&report.to_string());
    let untried = report.untried();
    if !report.violations.is_empty() {
        bail!("{} rules were broken", report.violations.len());
    }
    if !untried.is_empty() {
        bail!("the storm tried too little: {}", untried.join(", "));
    }
    Ok(())
}

async fn weather(site: &mut Site, args: &GatewaysArgs) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    if let Some(why) = site.without_networks() {
        say(&format!("Nobody is cut off: {why}"));
    }
    let recorder = Recorder::begin(site.url(), &history(&args.out), Judge::default())?;
    site.start_fleet().await?;
    say(&format!("{} nodes are served; the storm begins (seed {seed})", args.nodes));
    let mut load = Load::begin(site.client(), (args.nodes / 20).clamp(4, 16));
    let began = Instant::now();
    let struck = storm(site, args, seed, &mut load, &recorder).await?;
    let elapsed = began.elapsed();
    say("The storm is over; waiting for everything to come to rest …");
    let acknowledged = load.end().await?;
    let head = rest::come_to_rest(&recorder).await?;
    sleep(QUIET).await;
    let mut violations: Vec<String> =
        rest::still_at(&recorder, head, "everybody at rest").await?.into_iter().collect();
    let mut record = recorder.end().await?;
    record.checker.conclude(&record.stored, &acknowledged);
    violations.extend(record.checker.violations().iter().map(ToString::to_string));
    let testimony = witness::testimony(site.url()).await?;
    violations.extend(testimony.strays.iter().cloned());
    let journal = Reader::new(site.journal()).news()?;
    record.watcher.conclude(&journal, &record.stored, &testimony.leases);
    let counts = record.watcher.counts();
    violations.extend(record.watcher.into_violations());
    Ok(Report {
        nodes: args.nodes,
        seed,
        elapsed,
        struck,
        changes: record.checker.counts().changes,
        acknowledged: acknowledged.len(),
        counts,
        testimony,
        without_networks: site.without_networks().cloned(),
        violations,
    })
}

/// One fault after the other.
async fn storm(
    site: &Site,
    args: &GatewaysArgs,
    seed: u64,
    load: &mut Load,
    recorder: &Recorder<Judge>,
) -> Result<Vec<Struck>> {
    let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let goes_on = |struck: &[Struck]| match args.rounds {
        Some(rounds) => struck.len() < rounds,
        None => Instant::now() < end,
    };
    let mut nemesis =
        Nemesis::new(seed, Duration::from_secs(args.longest), site.without_networks().is_none());
    let mut struck = Vec::new();
    while goes_on(&struck) {
        let done = nemesis.strike(site).await?;
        let who = done.gateway.map_or(String::new(), |gateway| format!("gateway {gateway} "));
        let seen = recorder.seen();
        say(&format!(
            "  {:>3}. {who}{} ({:.0} s); all served {:.1} s later, {} sessions taken over; {} changes, {} violations",
            struck.len() + 1,
            done.fault,
            done.lasted.as_secs_f64(),
            done.recovered.as_secs_f64(),
            done.taken_over,
            seen.revision,
            seen.violations
        ));
        struck.push(done);
        load.check()?;
    }
    Ok(struck)
}
