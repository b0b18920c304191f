//! A fleet of simulated nodes on one gateway: what a session costs, how soon all are back after the gateway was
//! killed, how long a change takes to its node, and what those who read logs do to everybody else.
//!
//! The gateway is one of a whole stack, with a database that commits durably and workers that judge whether nodes
//! are ready. The nodes are admitted, report as often as those of existing fleets do, and dial again five seconds
//! after their stream ended. They live in one process beside everything else, so on a small machine the times say
//! as much about them as about the gateway.
//!
//! Every figure has a bound, and those that are over are told at the end of the whole run, by its outcome too.

mod figures;
mod page;
mod push;
mod readers;
mod stack;
mod statements;

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use horchestra_testkit::TempDir;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::figures::Figure;
use self::page::Look;
use self::stack::{Fleet, GATEWAY, Stack};
use self::statements::{Counts, Rates};
use super::BenchArgs;
use super::report::{Section, percentile};
use super::server::Server;
use crate::say;

/// Seconds between two reports of a node of a fleet that was installed the documented way, and of one that was not.
const OFTEN: u64 = 5;
const SELDOM: u64 = 15;
/// The fleet that bounds are about; those that depend on how many nodes there are go with the number.
const FULL: f64 = 5_000.0;
/// What a session may cost above the gateway without any, in KiB.
const MEMORY_BOUND: f64 = 50.0;
/// Within how many seconds all have to be back.
const RETURN_BOUND: f64 = 20.0;
/// Share of a core, in percent, for nodes without Applications that report often, and for those that have
/// [`EACH`] and report seldom.
const IDLE_CPU_BOUND: f64 = 10.0;
const BUSY_CPU_BOUND: f64 = 60.0;
const EACH: u32 = 10;
const STATEMENTS_BOUND: f64 = 1.0;
/// Nodes among which changes are spread, and milliseconds from commit to node: median and 99 of 100.
const PUSHED: u32 = 1_000;
const PUSH_BOUNDS: [(&str, f64, f64); 2] = [("p50", 0.5, 20.0), ("p99", 0.99, 250.0)];
/// How much later the latest heartbeat in a hundred may be recorded with readers than without, in milliseconds: they are
/// recorded once in a while, and when is a matter of luck.
const READERS_BOUND: f64 = 1_000.0;

/// Everything, as sections of the report, and the names of the figures that are over their bounds.
pub async fn measure(server: &Server, args: &BenchArgs) -> Result<(Vec<Section>, Vec<String>)> {
    let home = TempDir::new()?;
    let url = server.database().await?;
    let stack = Stack::up(&home, url).await?;
    let count = args.sessions;
    stack.answers().await?;
    stack.make_nodes(count).await?;
    let mut figures = idle(&stack, args).await?;
    let nodes = count.min(PUSHED);
    let fleet = stack.fleet(Fleet { nodes, heartbeat: OFTEN, journal: true })?;
    stack.all_there(nodes).await?;
    figures.extend(with_one_each(&stack, args, nodes).await?);
    stack.end(fleet).await?;
    figures.push(with_many_each(&stack, args).await?);
    say(&figures::table(&figures));
    Ok((figures.iter().map(Figure::section).collect(), figures::over(&figures)))
}

/// A fleet that has nothing to run, and a gateway that is killed.
async fn idle(stack: &Stack, args: &BenchArgs) -> Result<Vec<Figure>> {
    let count = args.sessions;
    let window = args.arm().max(Duration::from_secs(4 * OFTEN));
    let seconds = window.as_secs_f64();
    let mut counts = Counts::of(stack.connect().await?).await;
    let base = without_sessions(stack, count).await?;
    let first = counts.calls().await?;
    sleep(window).await;
    let without = Rates::between(&first, &counts.calls().await?, seconds);

    let fleet = stack.fleet(Fleet { nodes: count, heartbeat: OFTEN, journal: false })?;
    let began = Instant::now();
    stack.all_there(count).await?;
    say(&format!("{count} sessions after {:.1} s", began.elapsed().as_secs_f64()));
    stack.all_ready(count).await?;
    // Until the first desired states have gone out and buffers are what they are in the long run.
    sleep(Duration::from_secs(4 * OFTEN)).await;
    let before = stack.look().await?;
    let first = counts.calls().await?;
    sleep(window).await;
    let with = Rates::between(&first, &counts.calls().await?, seconds);
    let after = stack.look().await?;
    let caused = with.without(&without);
    let mib = |bytes: f64| bytes / 1024.0 / 1024.0;
    let windows = |of: &str| after.sum(&format!("horchestra_gate_{of}_window_bytes")) / 1024.0;
    let mut statements = caused.largest(8);
    statements.insert(0, format!("counted by {}, less what was there without nodes", counts.what()));
    statements
        .extend(after.statements_since(&before, seconds).into_iter().map(|line| format!("gateway: {line}")));
    let mut figures = vec![
        Figure {
            name: format!("memory of an idle session, {count} sessions"),
            unit: "KiB",
            value: (after.memory - base.memory) / f64::from(count) / 1024.0,
            bound: MEMORY_BOUND,
            notes: vec![
                format!(
                    "resident: {:.1} MiB without, {:.1} MiB with them",
                    mib(base.memory),
                    mib(after.memory)
                ),
                format!(
                    "flow control: a node may send {:.0} KiB on its stream, {:.0} KiB on its connection before it is read",
                    windows("stream"),
                    windows("connection")
                ),
            ],
        },
        cpu(
            &format!("CPU for heartbeats every {OFTEN} s, {count} nodes"),
            IDLE_CPU_BOUND,
            count,
            &before,
            &after,
            seconds,
        ),
        Figure {
            name: format!("statements for heartbeats, {count} nodes"),
            unit: "1/s",
            value: caused.sum(),
            bound: STATEMENTS_BOUND,
            notes: statements,
        },
    ];
    figures.extend(killed(stack, count).await?);
    stack.end(fleet).await?;
    Ok(figures)
}

/// A gateway that has started anew, and knows of every node what it said of itself, but serves none: what is there once
/// the nodes have come back is there for their sessions.
async fn without_sessions(stack: &Stack, count: u32) -> Result<Look> {
    let fleet = stack.fleet(Fleet { nodes: count, heartbeat: OFTEN, journal: false })?;
    stack.all_there(count).await?;
    stack.all_ready(count).await?;
    stack.end(fleet).await?;
    kill(stack.pid(GATEWAY)?, Signal::SIGKILL).context("killing the gateway")?;
    stack.answers().await?;
    // Until it has read everything, and the workers have judged that the nodes are away.
    sleep(Duration::from_secs(60)).await;
    stack.look().await
}

/// Share of a core that the gateway used between two looks so many seconds apart.
fn cpu(name: &str, bound: f64, count: u32, before: &Look, after: &Look, seconds: f64) -> Figure {
    let (used, beats) = (after.cpu - before.cpu, after.heartbeats - before.heartbeats);
    Figure {
        name: name.to_owned(),
        unit: "% of a core",
        value: used / seconds * 100.0,
        bound: bound * f64::from(count) / FULL,
        notes: vec![format!(
            "{:.0} heartbeats/s, {:.0} µs each",
            beats / seconds,
            used / beats.max(1.0) * 1e6
        )],
    }
}

async fn killed(stack: &Stack, count: u32) -> Result<[Figure; 2]> {
    let moment = SystemTime::now();
    let began = Instant::now();
    kill(stack.pid(GATEWAY)?, Signal::SIGKILL).context("killing the gateway")?;
    stack.answers().await?;
    let started = began.elapsed().as_secs_f64();
    stack.all_there(count).await?;
    let back = began.elapsed().as_secs_f64();
    // Longer than a node may be silent before it is judged.
    sleep(Duration::from_secs(50)).await;
    let unready = stack.unready_since(count, moment).await?;
    Ok([
        Figure {
            name: format!("all back after kill -9, {count} nodes"),
            unit: "s",
            value: back,
            bound: RETURN_BOUND,
            notes: vec![format!(
                "{started:.1} s of it until the gateway, under the same name, had started; nodes dial after 5 s"
            )],
        },
        Figure {
            name: "nodes judged not ready meanwhile".to_owned(),
            unit: "nodes",
            value: f64::from(u32::try_from(unready).unwrap_or(u32::MAX)),
            bound: 0.0,
            notes: Vec::new(),
        },
    ])
}

/// Changes on their way to nodes, and readers of logs, with an Application on each node.
async fn with_one_each(stack: &Stack, args: &BenchArgs, nodes: u32) -> Result<Vec<Figure>> {
    const PREFIX: &str = "load-0";
    let log = json!([
        {"name": "SIM_LOG_BACKLOG", "value": readers::BACKLOG.to_string()},
        {"name": "SIM_LOG_RATE", "value": readers::LINES.to_string()},
    ]);
    stack.make_applications(nodes, PREFIX, &json!({ "env": log })).await?;
    stack.all_run(nodes).await?;
    sleep(Duration::from_secs(2 * OFTEN)).await;
    let pushes = push::measure(stack, PREFIX, nodes, args.arm().max(Duration::from_secs(10))).await?;
    let (sent, rate) = (pushes.taken.len(), push::RATE);
    let mut figures: Vec<Figure> = PUSH_BOUNDS
        .map(|(name, share, bound)| Figure {
            name: format!("from commit to node, {nodes} sessions, {rate} changes/s, {name}"),
            unit: "ms",
            value: percentile(&pushes.taken, share),
            bound,
            notes: vec![format!(
                "{sent} changes, the slowest {:.0} ms",
                pushes.taken.last().copied().unwrap_or(f64::NAN)
            )],
        })
        .into();
    figures.push(Figure {
        name: "changes that no node heard of".to_owned(),
        unit: "changes",
        value: f64::from(u32::try_from(pushes.lost).unwrap_or(u32::MAX)),
        bound: 0.0,
        notes: Vec::new(),
    });
    stack.all_run(nodes).await?;
    let beats = readers::measure(stack, PREFIX, nodes).await?;
    let of = |times: &[f64]| {
        let at = |share| percentile(times, share);
        format!("p50 {:.0}, p99 {:.0}, max {:.0} ms ({} heartbeats)", at(0.5), at(0.99), at(1.0), times.len())
    };
    figures.push(Figure {
        name: format!("heartbeats recorded with 256 blocked readers, {nodes} nodes, p99"),
        unit: "ms",
        value: percentile(&beats.with, 0.99),
        bound: percentile(&beats.without, 0.99) + READERS_BOUND,
        notes: vec![
            format!("without readers: {}", of(&beats.without)),
            format!("with them: {}", of(&beats.with)),
            format!(
                "{:.0} logs were being read at the beginning, {:.0} at the end; {:.0} pieces dropped",
                beats.readers.0, beats.readers.1, beats.dropped
            ),
        ],
    });
    Ok(figures)
}

/// All nodes with several Applications each, which they report seldom.
async fn with_many_each(stack: &Stack, args: &BenchArgs) -> Result<Figure> {
    let count = args.sessions;
    for each in 0..EACH {
        stack.make_applications(count, &format!("load-{each}"), &Value::Null).await?;
    }
    let fleet = stack.fleet(Fleet { nodes: count, heartbeat: SELDOM, journal: false })?;
    stack.all_there(count).await?;
    stack.all_run(count * EACH).await?;
    sleep(Duration::from_secs(2 * SELDOM)).await;
    let before = stack.look().await?;
    let window = args.arm().max(Duration::from_secs(2 * SELDOM));
    sleep(window).await;
    let after = stack.look().await?;
    stack.end(fleet).await?;
    let name = format!("CPU for heartbeats every {SELDOM} s, {count} nodes with {EACH} Applications each");
    Ok(cpu(&name, BUSY_CPU_BOUND, count, &before, &after, window.as_secs_f64()))
}
