//! How long a change takes from its commit to the node that it concerns.
//!
//! The database says when a change was made, just before its commit; the node when a desired state with it came in.
//! Both go by the clock of this machine. Changes come at fixed times over several connections, so that a slow answer
//! does not put the next ones off.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_core::kind::Kind;
use horchestra_store::Backend;
use horchestra_store::Revision;
use horchestra_store::postgres::{Options, PostgresBackend};
use hyper::{Method, StatusCode};
use serde_json::json;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use super::stack::{APPLICATIONS, Stack, WRITERS};
use crate::journal::{Event, Reader};

/// Changes a second.
pub const RATE: u32 = 100;
/// How long the last of them may take.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// What came of it.
pub struct Pushes {
    /// From commit to node, in milliseconds, ascending.
    pub taken: Vec<f64>,
    /// Changes that no node was told of, nor of a later one.
    pub lost: usize,
}

/// Changes one Application after the other, for so long.
pub async fn measure(stack: &Stack, prefix: &str, nodes: u32, time: Duration) -> Result<Pushes> {
    let backend = PostgresBackend::open(
        stack.url(),
        Options { application: "bench".to_owned(), ..Options::default() },
    )?;
    let from = backend.head().await?.revision;
    let mut journal = Reader::new(stack.journal());
    journal.skip_to_end();
    change(stack, prefix, nodes, time).await?;
    let committed = committed(&backend, from).await?;
    backend.close().await;
    sleep(AFTERWARDS).await;
    let mut received: HashMap<Uuid, Vec<(i64, i64)>> = HashMap::new();
    for line in journal.news()? {
        if let Event::Received { uid, generation } = line.event {
            received.entry(uid).or_default().push((generation, line.at));
        }
    }
    // Two changes of one Application may come in one message.
    let arrival = |uid: &Uuid, generation: i64| {
        received.get(uid)?.iter().filter(|(received, _)| *received >= generation).map(|(_, at)| *at).min()
    };
    #[allow(clippy::cast_precision_loss)]
    let time_of =
        |(uid, generation, at): &(Uuid, i64, i64)| Some((arrival(uid, *generation)? - at) as f64 / 1000.0);
    let mut taken: Vec<f64> = committed.iter().filter_map(time_of).collect();
    taken.sort_by(f64::total_cmp);
    Ok(Pushes { lost: committed.len() - taken.len(), taken })
}

async fn change(stack: &Stack, prefix: &str, nodes: u32, time: Duration) -> Result<()> {
    let count = u32::try_from(time.as_secs()).unwrap_or(u32::MAX).saturating_mul(RATE);
    let (due, dues) = mpsc::channel(count as usize + 1);
    let dues = Arc::new(Mutex::new(dues));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (client, dues, prefix) = (stack.client().clone(), Arc::clone(&dues), prefix.to_owned());
        writers.spawn(async move {
            let mut connection = client.open().await?;
            loop {
                let next = dues.lock().await.recv().await;
                let Some(number) = next else { return anyhow::Ok(()) };
                let path = format!("{APPLICATIONS}/{prefix}-{}", number % nodes + 1);
                let patch = json!({"spec": {"image": format!("registry.example/demo:change-{number}")}});
                let (status, answer) = connection.call(Method::PATCH, &path, Some(&patch)).await?;
                if status != StatusCode::OK {
                    bail!("PATCH {path}: {status} {answer}");
                }
            }
        });
    }
    let mut rhythm = interval(Duration::from_secs(1) / RATE);
    rhythm.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..count {
        rhythm.tick().await;
        due.send(number).await.context("nobody writes any more")?;
    }
    drop(due);
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Applications that people changed after this revision: uid, generation, and when, in microseconds since the epoch.
async fn committed(backend: &PostgresBackend, from: Revision) -> Result<Vec<(Uuid, i64, i64)>> {
    let (mut at, mut all) = (from, Vec::new());
    loop {
        let rows = backend.changes(at, 1000).await?.rows;
        let Some(last) = rows.last() else { return Ok(all) };
        at = last.change.revision;
        let changed = rows
            .iter()
            .filter(|row| row.change.object_kind() == Kind::Application && row.who.verb == "patch");
        all.extend(changed.map(|row| (row.change.entry.uid, row.change.entry.generation, row.at)));
    }
}
