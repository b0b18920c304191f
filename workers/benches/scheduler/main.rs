//! How fast the scheduler is: decisions a second of the pure core, and bindings a second that are committed to a
//! PostgreSQL on this machine, in the fleets of Kubernetes' scheduler_perf.
//!
//! The numbers to compare with are the floors below which Kubernetes lets its own continuous integration fail (Pods
//! scheduled a second, with its API server and etcd); they are no records. A third part shows what a fleet costs in
//! which nothing happens. `make bench-scheduler` runs it (`PART=steady`: one part); its parts are `decisions`, `binds`
//! and `steady`. `PART='steady 50'` is for trying it out: everything is a fiftieth of its size.

// What it prints is what it is for.
#![allow(clippy::print_stdout)]

mod binds;
mod fleet;
mod server;
mod steady;
mod world;

use std::time::Instant;

use horchestra_workers::scheduler::cycle::{self, Outcome};
use horchestra_workers::scheduler::plugins::{Strategy, default_profile};

use fleet::Scenario;

fn main() -> anyhow::Result<()> {
    // Built and started by `cargo test --all-targets` as well, which is not meant to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let mut words = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let part = words.next();
    let scale = words.next().map_or(Ok(1), |word| word.parse())?;
    let wanted = |name: &str| part.as_ref().is_none_or(|part| part == name);
    if wanted("decisions") {
        println!("decisions of the core, median of {ROUNDS} rounds");
        println!(
            "{:<44} {:>7} {:>7} {:>14} {:>8} {:>8}",
            "", "nodes", "apps", "decisions/s", "floor", "ratio"
        );
        fleet::scenarios().iter().for_each(decisions);
    }
    if wanted("binds") {
        println!("\nbindings that are committed to PostgreSQL");
        binds::measure(scale)?;
    }
    if wanted("steady") {
        println!("\na fleet at rest, on PostgreSQL");
        steady::measure(scale)?;
    }
    Ok(())
}

const ROUNDS: usize = 3;

fn decisions(scenario: &Scenario) {
    let profile = default_profile(Strategy::Spread).expect("the profile that ships");
    let mut rates = Vec::new();
    let mut placed = 0;
    for _ in 0..ROUNDS {
        let (mut cluster, waiting) = scenario.fleet();
        let count = waiting.len();
        let began = Instant::now();
        let decided = cycle::plan(&profile, &mut cluster, waiting);
        rates.push(count as f64 / began.elapsed().as_secs_f64());
        placed = decided.iter().filter(|it| matches!(it.outcome, Outcome::Bind(_))).count();
    }
    rates.sort_by(f64::total_cmp);
    let rate = rates[ROUNDS / 2];
    let Scenario { name, nodes, apps, floor, .. } = scenario;
    println!("{name:<44} {nodes:>7} {apps:>7} {rate:>14.0} {floor:>8} {:>8.1}", rate / f64::from(*floor));
    let expected = scenario.placed;
    assert_eq!(placed, expected, "{name}: so many of {apps} find a place");
}
