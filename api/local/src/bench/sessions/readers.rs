//! Whether people who read logs, and then do not, hold up anybody's heartbeats.
//!
//! A heartbeat's time is from the moment at which the node is about to send it until the database has it, by the
//! clock of this machine.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_auth::pki::{Lifetime, LocalPki};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::page::Look;
use super::stack::Stack;
use crate::client::{Client, Connection};
use crate::journal::{Event, Reader};

pub const IDENTITIES: u32 = 32;
/// Logs that one identity may read at a time.
const LOGS_EACH: u32 = 8;
/// Lines that are there when reading begins: more than fits into all buffers on the way.
pub const BACKLOG: u32 = 50_000;
/// Lines a second from then on.
pub const LINES: u32 = 20;
/// How long heartbeats are looked at: readers that take nothing are sent away after half a minute.
const WINDOW: Duration = Duration::from_secs(20);

const RECORDED: &str = "select node, (extract(epoch from at) * 1000000)::bigint from horchestra.heartbeats";

/// Times of heartbeats without and with readers, in milliseconds, ascending.
pub struct Heartbeats {
    pub without: Vec<f64>,
    pub with: Vec<f64>,
    /// Pieces of logs that were dropped meanwhile: nobody took them.
    pub dropped: f64,
    /// Logs that were being read when the window began and when it ended: on a slow machine opening them takes so long
    /// that the first readers have been sent away by then.
    pub readers: (f64, f64),
}

/// With Applications `prefix-1` and so on, on so many nodes.
pub async fn measure(stack: &Stack, prefix: &str, nodes: u32) -> Result<Heartbeats> {
    let mut database = stack.connect().await?;
    let without = heartbeats(stack, &mut database).await?;
    let readers = block(stack, prefix, nodes).await?;
    let before = stack.look().await?;
    let with = heartbeats(stack, &mut database).await?;
    let after = stack.look().await?;
    drop(readers);
    let dropped = |look: &Look| look.sum("horchestra_gate_log_chunks_dropped_total");
    let open = |look: &Look| look.sum("horchestra_gate_log_streams");
    let dropped = dropped(&after) - dropped(&before);
    Ok(Heartbeats { without, with, dropped, readers: (open(&before), open(&after)) })
}

/// Everybody asks for logs and takes nothing of them.
async fn block(stack: &Stack, prefix: &str, nodes: u32) -> Result<Vec<(Connection, Response<Incoming>)>> {
    let pki = LocalPki::open(&stack.layout().pki())?;
    let folder = stack.layout().run();
    let mut opening = JoinSet::new();
    for identity in 0..IDENTITIES {
        let name = format!("reader-{identity}");
        let issued =
            pki.signer().client(&name, "system:masters", Lifetime::of(Duration::from_secs(3600))?)?;
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        std::fs::write(&certificate, &issued.certificate)?;
        std::fs::write(&key, &issued.key)?;
        let client = Client::new(stack.api()?, &pki.authority(), &certificate, &key)?;
        let applications = (0..LOGS_EACH).map(|log| (identity * LOGS_EACH + log) % nodes + 1);
        let paths: Vec<String> = applications
            .map(|number| {
                let log = format!("{prefix}-{number}/log?follow=true&tailLines={BACKLOG}");
                format!("/api/v1/namespaces/default/pods/{log}")
            })
            .collect();
        opening.spawn(async move {
            let mut open = Vec::new();
            for path in paths {
                let mut connection = client.open().await?;
                let answer =
                    connection.send(Method::GET, &path, Bytes::new()).await.context("reading a log")?;
                if answer.status() != StatusCode::OK {
                    bail!("GET {path}: {}", answer.status());
                }
                open.push((connection, answer));
            }
            Ok(open)
        });
    }
    let mut readers = Vec::new();
    while let Some(opened) = opening.join_next().await {
        readers.extend(opened??);
    }
    Ok(readers)
}

/// The times of what is recorded in the window.
async fn heartbeats(stack: &Stack, database: &mut PgConnection) -> Result<Vec<f64>> {
    let mut journal = Reader::new(stack.journal());
    // From a little earlier: what is recorded first was sent before the window.
    journal.skip_to_end();
    sleep(Duration::from_secs(5)).await;
    let seen: Vec<(String, i64)> = sqlx::query_as(RECORDED).fetch_all(&mut *database).await?;
    let mut recorded: BTreeSet<(String, i64)> = BTreeSet::new();
    let end = Instant::now() + WINDOW;
    while Instant::now() < end {
        sleep(Duration::from_secs(1)).await;
        let rows: Vec<(String, i64)> = sqlx::query_as(RECORDED).fetch_all(&mut *database).await?;
        recorded.extend(rows);
    }
    seen.iter().for_each(|row| {
        recorded.remove(row);
    });
    let mut sent: HashMap<String, BTreeSet<i64>> = HashMap::new();
    for line in journal.news()? {
        if line.event == Event::Beat {
            sent.entry(line.node).or_default().insert(line.at);
        }
    }
    #[allow(clippy::cast_precision_loss)]
    let time =
        |(node, at): &(String, i64)| Some((at - sent.get(node)?.range(..=at).next_back()?) as f64 / 1000.0);
    let mut times: Vec<f64> = recorded.iter().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}
