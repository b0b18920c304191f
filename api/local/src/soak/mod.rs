//! The storm: a whole stack under load, whose processes are killed again and again, and a checker that reads every
//! single change.
//!
//! Four parts that know nothing of each other:
//!
//! * the [`load`]: clients that make, edit and delete Applications and sets and cordon nodes, patiently, and
//!   remember what they were told;
//! * the [`nemesis`]: one blow after the other, each when the last one has been got over;
//! * the [`recorder`]: follows the change log from its first row, whatever happens to the database;
//! * the [`checker`]: a pure piece that judges every row by what was stored when it was made.
//!
//! The [`gateways`] have a storm of their own, and so has [`everything`] together, with the same recorder and checker.
//!
//! When the storm is over, what was wished for comes about, every loop gets a new leader, and from then on nothing
//! may be written. A storm that tried nothing fails: it would have found nothing.

mod checker;
mod deck;
pub mod everything;
pub mod gateways;
mod leaders;
mod load;
mod nemesis;
mod processes;
mod recorder;
mod report;
mod rest;
mod site;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use horchestra_testkit::TempDir;
use serde_json::json;
use tokio::time::Instant;

use crate::say;
use everything::EverythingArgs;
use gateways::GatewaysArgs;
use load::{Load, Manner};
use nemesis::{Nemesis, Struck};
use recorder::Recorder;
use report::Report;
use site::Site;

/// How long the storm lasts, and where it leaves what it saw.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SoakArgs {
    /// Something else than leaders.
    #[command(subcommand)]
    pub part: Option<Part>,
    /// Minutes that the storm lasts.
    #[arg(long, default_value_t = 30.0)]
    pub minutes: f64,
    /// Leaders to kill, however long it takes; instead of a time.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Number of nodes.
    #[arg(long, default_value_t = 4)]
    pub nodes: usize,
    /// Folder for the history that was read and for logs of a storm that was not weathered.
    #[arg(long, default_value = "target/soak")]
    pub out: PathBuf,
}

/// The other storms.
#[derive(Subcommand, Clone, Debug)]
pub enum Part {
    /// Kill, stop, restart and cut off everything there is, in any order, and measure how long it takes to get over.
    Everything(EverythingArgs),
    /// Kill gateways, stop them, cut them off and crash the database under them, with a fleet of nodes.
    Gateways(GatewaysArgs),
}

/// From this length on, a storm has to kill at least [`LEAST`] leaders.
const LONG: f64 = 10.0;
const LEAST: usize = 15;

/// Runs the storm; fails when a rule was broken or nothing was tried.
pub async fn run(args: SoakArgs) -> Result<()> {
    match args.part {
        Some(Part::Everything(everything)) => return Box::pin(everything::run(everything)).await,
        Some(Part::Gateways(gateways)) => return Box::pin(gateways::run(gateways)).await,
        None => {}
    }
    horchestra_runtime::crypto::install()?;
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let home = TempDir::new()?;
    let site = Site::up(home.path(), &args).await?;
    let outcome = weather(&site, &args).await;
    let well = matches!(&outcome, Ok(report) if report.violations.is_empty());
    if !well {
        keep_logs(&site.logs(), &args.out.join("logs"))?;
        say(&format!("what was seen: {}, and logs beside it", history(&args.out).display()));
    }
    let report = outcome?;
    say(&report.to_string());
    let untried = report.untried();
    if !report.violations.is_empty() {
        bail!("{} rules were broken", report.violations.len());
    }
    if !untried.is_empty() {
        bail!("the storm tried too little: {}", untried.join(", "));
    }
    if args.rounds.is_none() && args.minutes >= LONG && report.struck.len() < LEAST {
        bail!("only {} leaders were killed, {LEAST} at least were meant to be", report.struck.len());
    }
    Ok(())
}

fn history(out: &Path) -> PathBuf {
    out.join("history.txt")
}

async fn weather(site: &Site, args: &SoakArgs) -> Result<Report> {
    let recorder = Recorder::begin(site.url(), &history(&args.out), ())?;
    let mut load = Load::begin(std::slice::from_ref(site.client()), json!({}), Manner::Outright).await?;
    let began = Instant::now();
    let struck = storm(site, args, &mut load, &recorder).await?;
    let elapsed = began.elapsed();
    say("The storm is over; waiting for everything to come to rest …");
    let acknowledged = load.end().await?;
    let head = rest::come_to_rest(&recorder).await?;
    let mut violations: Vec<String> = Vec::new();
    violations.extend(rest::one_more_pass(site, &recorder, head).await?);
    if args.rounds.is_none() {
        violations.extend(rest::resyncs(&recorder, head).await?);
    }
    let mut record = recorder.end().await?;
    record.checker.conclude(&record.stored, &acknowledged);
    violations.extend(record.checker.violations().iter().map(ToString::to_string));
    Ok(Report {
        elapsed,
        hand_overs: report::hand_overs(&struck, &record.writes),
        struck,
        counts: record.checker.counts(),
        violations,
    })
}

/// Blow after blow.
async fn storm(site: &Site, args: &SoakArgs, load: &mut Load, recorder: &Recorder) -> Result<Vec<Struck>> {
    let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let goes_on = |struck: &[Struck]| match args.rounds {
        Some(rounds) => struck.len() < rounds,
        None => Instant::now() < end,
    };
    let mut nemesis = Nemesis::begin(site).await?;
    let mut struck = Vec::new();
    while goes_on(&struck) {
        let blow = nemesis.choose();
        let done = nemesis.strike(blow).await?;
        let (process, led) = (&done.process, done.led.join(", "));
        let seen = recorder.seen();
        say(&format!(
            "  {:>3}. {process} killed, which led {led}; {} changes so far, {} violations",
            struck.len() + 1,
            seen.revision,
            seen.violations
        ));
        struck.push(done);
        load.check()?;
    }
    Ok(struck)
}

/// Keeps the logs of a stack that is about to go.
fn keep_logs(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
