//! Everything can happen to everybody: a whole stack, a fleet, writers and informers, and a nemesis that kills, stops,
//! restarts and cuts off whatever there is, while somebody measures how long it takes to get over.
//!
//! * the [`site`]: a private PostgreSQL, three replicas of the API behind a balancer, three workers, two gateways behind
//!   the one address for nodes, agents in processes of their own and one process that plays the other nodes;
//! * the [`load`], beside that of the [other storm](super::load): writers of every kind, patient ones and strict ones;
//! * the [`informers`]: list and watch by every way to the API, and write down what they are told;
//! * the [`nemesis`]: one of the [`faults`] after the other, drawn with a seed, each when the last has been got over;
//! * the [`prober`]: measures, by what a client sees; what it should be at most stands beside it, and decides nothing.
//!
//! What must hold is looked for in places that know nothing of each other:
//!
//! * the change log, followed row by row by the recorder and the [checker](super::checker) of all storms: what was
//!   acknowledged is in it, an Application is bound once and where there is room (ports are declarations, which take
//!   none), and the store has what the log says;
//! * what [informers and strict writers](checker) were told, held against the log;
//! * [`witness`]es in the database: nobody writes for a loop that another one leads, nor for a node that another gateway
//!   serves, and no session is claimed twice;
//! * what nodes have [written down](super::gateways::checker), and what [runs](running) on them in the end;
//! * the supervisor: no process ends by itself.
//!
//! When the last fault has been got over, everything has to come about that was wished for, and then nothing may be
//! written any more.

mod checker;
mod faults;
mod informers;
mod load;
mod nemesis;
mod prober;
mod report;
mod running;
mod site;
mod witness;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::Application;
use horchestra_store::Entry;
use horchestra_testkit::TempDir;
use rand::Rng;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::checker::Kept;
use self::informers::Informers;
use self::load::Writers;
use self::nemesis::{Nemesis, Seers, Struck};
use self::prober::{Askers, Prober};
use self::report::Report;
use self::site::{AGENTS, Site};
use super::gateways::witness as of_gateways;
use super::load::{Author, Load, Manner};
use super::processes::Processes;
use super::recorder::Recorder;
use super::{history, keep_logs, rest};
use crate::client::Client;
use crate::journal::{Line, Reader};
use crate::say;

/// After everything has come to rest: so long nothing may be written, through several reports of every node.
const QUIET: Duration = Duration::from_secs(12);
/// How long everybody is left alone between two faults.
const MERCY: Duration = Duration::from_secs(2);

/// How long it lasts, and over how many nodes.
#[derive(Args, Clone, Debug)]
pub struct EverythingArgs {
    /// Minutes that the storm lasts.
    #[arg(long, default_value_t = 30.0)]
    pub minutes: f64,
    /// Number of faults, however long they take; instead of a time.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Number of nodes that one process plays, besides three with agents of their own.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub nodes: u32,
    /// What the faults are drawn with, to have the same ones again [default: another one each time].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Folder for the history that was read, and for logs of a storm that was not weathered.
    #[arg(long, default_value = "target/soak-everything")]
    pub out: PathBuf,
}

/// Runs it; fails when a rule was broken or nothing was tried.
pub async fn run(args: EverythingArgs) -> Result<()> {
    horchestra_runtime::crypto::install()?;
    horchestra_runtime::raise_file_limit();
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let home = TempDir::new()?;
    let site = tokio::select! {
        site = Box::pin(Site::up(home.path(), usize::try_from(args.nodes)?)) => site?,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
    };
    let outcome = tokio::select! {
        outcome = Box::pin(weather(&site, &args)) => outcome,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("interrupted")),
    };
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
        bail!("{} rules were broken (seed {})", report.violations.len(), report.seed);
    }
    if !untried.is_empty() {
        bail!("the storm tried too little: {}", untried.join(", "));
    }
    Ok(())
}

async fn weather(site: &Site, args: &EverythingArgs) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    if let Some(why) = site.without_networks() {
        say(&format!("No gateway is cut off: {why}"));
    }
    let recorder = Recorder::begin(site.url(), &history(&args.out), Kept::default())?;
    let mut informers = Informers::begin(site);
    let ways: Vec<Client> = site.ways().iter().map(|way| way.client.clone()).collect();
    let mut load = Load::begin(&ways, Site::room(), Manner::AsRead).await?;
    let mut writers = Writers::begin(site, load.told(), seed);
    say(&format!("{} nodes are served; the storm begins (seed {seed})", site.nodes()));
    let began = Instant::now();
    let mut everybody = Everybody { load: &mut load, writers: &mut writers, informers: &mut informers };
    let mut struck = Vec::new();
    let storm = Box::pin(storm(site, args, seed, &mut everybody, &recorder, &mut struck)).await;
    let elapsed = began.elapsed();
    // What does not recover is a violation, and no reason not to look for others.
    let ended = storm.err().map(|error| format!("{error:#}"));
    say(&match &ended {
        None => "The storm is over; waiting for everything to come to rest …".to_owned(),
        Some(why) => format!("The storm ends early ({why}); waiting for everything to come to rest …"),
    });
    let concluded: Result<Report> = Box::pin(async {
        let (attempts, stale) = writers.end().await?;
        let acknowledged = load.end().await?;
        let over = Instant::now();
        let head = rest::come_to_rest(&recorder).await?;
        let at_rest = over.elapsed();
        sleep(QUIET).await;
        let mut violations: Vec<String> = ended.clone().into_iter().collect();
        violations.extend(rest::still_at(&recorder, head, "everybody at rest").await?);
        let mut record = recorder.end().await?;
        record.checker.conclude(&record.stored, &acknowledged);
        violations.extend(record.checker.violations().iter().map(ToString::to_string));
        violations.extend(stale);
        let lines = &record.watcher.lines;
        let informed = informers.end(&checker::last_of_kinds(lines)).await?;
        violations.extend(informed.iter().flat_map(|informed| checker::informed(lines, informed)));
        let tried = checker::tried(lines, &attempts);
        violations.extend(tried.violations.iter().cloned());
        let testimony = of_gateways::testimony(site.url()).await?;
        violations.extend(testimony.strays.iter().cloned());
        let mut database = site.connect().await?;
        violations.extend(witness::violations(&mut database).await?);
        let hands = witness::changes_of_hands(&mut database).await?;
        let journal = if args.nodes > 0 { Reader::new(site.journal()).news()? } else { Vec::new() };
        let known =
            lines.iter().filter(|line| line.key.kind == Kind::Application).map(|line| line.uid).collect();
        violations.extend(runs(site, &journal, &record.stored, &known)?);
        let played: Vec<_> = record.stored.iter().filter(|entry| is_played(entry)).cloned().collect();
        let mut judge = record.watcher.judge;
        judge.conclude(&journal, &played, &testimony.leases);
        let of_nodes = judge.counts();
        violations.extend(judge.into_violations());
        violations.extend(site.deserters());
        Ok(Report {
            nodes: site.nodes(),
            seed,
            elapsed,
            struck,
            counts: record.checker.counts(),
            of_nodes,
            testimony,
            hands,
            tried,
            informers: informed.len(),
            events: informed.iter().map(informers::Informed::events).sum(),
            relists: informed.iter().map(informers::Informed::relists).sum(),
            reconnects: informed.iter().map(|informed| informed.reconnects).sum(),
            rest: at_rest,
            without_networks: site.without_networks().cloned(),
            violations,
        })
    })
    .await;
    match ended {
        // What did not recover may not come to rest either.
        Some(why) => concluded.context(why),
        None => concluded,
    }
}

/// Whether it is an Application on one of the nodes that are played.
fn is_played(entry: &Entry) -> bool {
    entry.key.kind == Kind::Application
        && entry.typed::<Application>().is_ok_and(|app| app.node_name().starts_with("sim-"))
}

/// What is wrong with what runs.
fn runs(
    site: &Site,
    journal: &[Line],
    stored: &[std::sync::Arc<Entry>],
    known: &BTreeSet<uuid::Uuid>,
) -> Result<Vec<String>> {
    let mut runs = running::played(journal);
    for number in 1..=AGENTS {
        let node = format!("node-{number}");
        let kept = running::kept(&site.layout().agent_state(&node))?;
        runs.insert(node, kept);
    }
    Ok(running::compare(stored, &runs, &running::processes()?, known))
}

/// Those who have to go on whatever happens.
struct Everybody<'a> {
    load: &'a mut Load,
    writers: &'a mut Writers,
    informers: &'a mut Informers,
}

impl Everybody<'_> {
    fn check(&mut self) -> Result<()> {
        self.load.check()?;
        self.writers.check()?;
        self.informers.check()
    }
}

/// One fault after the other.
async fn storm(
    site: &Site,
    args: &EverythingArgs,
    seed: u64,
    everybody: &mut Everybody<'_>,
    recorder: &Recorder<Kept>,
    struck: &mut Vec<Struck>,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let goes_on = |struck: &[Struck]| match args.rounds {
        Some(rounds) => struck.len() < rounds,
        None => Instant::now() < end,
    };
    let told = everybody.load.told().clone();
    // It goes on when everybody else is told to stop.
    let author = Author::new(site.balanced(), &told, &CancellationToken::new(), Manner::AsRead);
    let mut prober = Prober::new(author, &told);
    let askers = Askers::begin(site);
    let mut nemesis = Nemesis::new(seed, site.without_networks().is_none());
    while goes_on(struck) {
        sleep(MERCY).await;
        let informers = &*everybody.informers;
        let mut seers = Seers { prober: &mut prober, askers: &askers, informers };
        let done = Box::pin(nemesis.strike(site, &mut seers)).await?;
        say(&line(struck.len() + 1, &done, recorder, informers));
        struck.push(done);
        everybody.check()?;
    }
    Ok(())
}

/// What is said of a round.
fn line(round: usize, struck: &Struck, recorder: &Recorder<Kept>, informers: &Informers) -> String {
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let Struck { fault, victim, lasted, measured, recovered } = struck;
    let who = if victim.is_empty() { String::new() } else { format!(" ({victim})") };
    let lasted = if lasted.is_zero() { String::new() } else { format!(" for {}", seconds(*lasted)) };
    let measured: Vec<String> =
        measured.iter().map(|(measure, time)| format!("{measure}: {}; ", seconds(*time))).collect();
    let seen = recorder.seen();
    format!(
        "  {round:>3}. {fault}{who}{lasted}; {}in order {} later; {} changes, {} violations",
        measured.concat(),
        seconds(*recovered),
        seen.revision,
        seen.violations + informers.odd()
    )
}
