//! Measurements, each beside what the machine itself can do.
//!
//! Absolute numbers say little on a machine that somebody shares; a ratio of two arms that took turns says
//! something. So every workload has a comparison that does the same physical work without our guarantees,
//! both run alternately on one private PostgreSQL with durable commits (the workload about stopped processes
//! on a stack of its own), and the median of the pairs is reported with its range. A workload that loses, repeats or reorders anything fails, however quick it is.

mod fleet;
mod https;
mod inspect;
mod lists;
mod object;
mod pgbench;
mod rbac;
mod report;
mod server;
mod sessions;
mod snapshot;
mod stops;
mod tracing;
mod watches;
mod writes;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};

use crate::say;
use report::Report;
use server::Server;

/// What to measure, and for how long.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Seconds that an arm is measured for, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Pairs of arms (ours, comparison) per workload.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Three seconds and three pairs: a first impression in a few minutes.
    #[arg(long)]
    pub quick: bool,
    /// Seconds that a foreign snapshot stays open in the workload about it.
    #[arg(long, default_value_t = 600)]
    pub snapshot_seconds: u64,
    /// Only these workloads.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Workload>,
    /// Numbers of concurrent writers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    pub writers: Vec<usize>,
    /// Number of simulated nodes in the workload about sessions.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub sessions: u32,
    /// Folder for the report.
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Concurrent writers, beside pgbench writing the same rows without order.
    Writes,
    /// Writers while a foreign snapshot stays open.
    Snapshot,
    /// Listing 10,000 objects, beside COPY.
    List,
    /// From commit to watcher, beside bare NOTIFY.
    Watch,
    /// Creates, updates, reads, lists and watches through an API replica, beside bare PostgreSQL.
    Https,
    /// Writes over HTTPS while one process of a stack is stopped, beside none.
    Stops,
    /// Creates through an API replica that exports traces, beside one that does not.
    Tracing,
    /// Decisions by 10,000 lines of rules, beside a scan.
    Rbac,
    /// The views for people and every query of the cookbook on 50,000 Applications, beside COPY.
    Inspect,
    /// A fleet of nodes on one gateway, idle and busy, its return after kill -9, and the way of changes to its nodes,
    /// beside the bounds for it.
    Sessions,
    /// The metrics page of 50,000 Applications on 5,000 nodes, beside COPY of their samples.
    Fleet,
}

impl BenchArgs {
    /// Whether the workload is measured; says so, since some take minutes before there is anything to tell.
    fn begins(&self, workload: Workload) -> bool {
        let wanted = self.only.is_empty() || self.only.contains(&workload);
        if wanted {
            say(&format!("measuring {} …", format!("{workload:?}").to_lowercase()));
        }
        wanted
    }

    fn arm(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { self.seconds })
    }

    fn warm_up(&self) -> Duration {
        self.arm().div_f64(5.0).max(Duration::from_secs(1))
    }

    fn pairs(&self) -> usize {
        if self.quick { 3 } else { self.pairs }
    }
}

/// Runs what was asked for and writes the report.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    let server = Server::start()?;
    let mut report = Report::new(server.environment().await?);
    let mut over = Vec::new();
    if args.begins(Workload::Writes) {
        for load in [writes::Load::Create, writes::Load::Update] {
            for writers in &args.writers {
                report.add(writes::measure(&server, &args, load, *writers).await?);
            }
        }
    }
    if args.begins(Workload::Snapshot) {
        for section in snapshot::measure(&server, &args).await? {
            report.add(section);
        }
    }
    if args.begins(Workload::List) {
        report.add(lists::measure(&server, &args).await?);
    }
    if args.begins(Workload::Watch) {
        for section in watches::measure(&server, &args).await? {
            report.add(section);
        }
    }
    if args.begins(Workload::Https) {
        for section in https::measure(&server, &args).await? {
            report.add(section);
        }
    }
    if args.begins(Workload::Stops) {
        for section in stops::measure(&args).await? {
            report.add(section);
        }
    }
    if args.begins(Workload::Tracing) {
        report.add(tracing::measure(&server, &args).await?);
    }
    if args.begins(Workload::Rbac) {
        for section in rbac::measure(&args)? {
            report.add(section);
        }
    }
    if args.begins(Workload::Inspect) {
        for section in inspect::measure(&server, &args).await? {
            report.add(section);
        }
    }
    if args.begins(Workload::Sessions) {
        let (sections, missed) = sessions::measure(&server, &args).await?;
        sections.into_iter().for_each(|section| report.add(section));
        over = missed;
    }
    if args.begins(Workload::Fleet) {
        report.add(fleet::measure(&server, &args).await?);
    }
    report.write(&args.out)?;
    ensure!(over.is_empty(), "over the bound: {}", over.join("; "));
    Ok(())
}
