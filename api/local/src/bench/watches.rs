//! From the start of a write to a watcher on another connection's store, beside a bare NOTIFY.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use horchestra_core::kind::Kind;
use parking_lot::Mutex;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgListener};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::report::{Section, percentile};
use super::server::{Server, store};
use super::writes::ended;
use super::{BenchArgs, object};

/// Events per second, at fixed times: a slow answer does not put off the next event.
pub const RATE: u32 = 100;

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = [("p50", 0.5), ("p99", 0.99)]
        .map(|(name, _)| Section {
            name: format!("watch delivery at {RATE}/s, {name}"),
            unit: "ms",
            comparison: "NOTIFY to a listener".into(),
            ours: Vec::new(),
            theirs: Vec::new(),
            aim: String::new(),
            notes: Vec::new(),
        })
        .into();
    for _ in 0..args.pairs() {
        let url = server.database().await?;
        let ours = watched(&url, args.arm()).await?;
        let theirs = notified(&url, args.arm()).await?;
        server.drop_database(&url).await?;
        for (section, share) in sections.iter_mut().zip([0.5, 0.99]) {
            section.ours.push(percentile(&ours, share));
            section.theirs.push(percentile(&theirs, share));
        }
    }
    Ok(sections)
}

/// Intended send times, one per event.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub began: Instant,
    pub events: u32,
}

impl Schedule {
    pub fn of(time: Duration) -> Schedule {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Schedule { began: Instant::now(), events: (time.as_secs_f64() * f64::from(RATE)) as u32 }
    }

    pub fn time_of(&self, event: u32) -> Instant {
        self.began + Duration::from_secs(1) * event / RATE
    }
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Written through one store, seen by a watcher of another, which reads the log from the database.
async fn watched(url: &str, time: Duration) -> Result<Vec<f64>> {
    let (writer, reader) = (store(url, "bench-writer").await?, store(url, "bench-reader").await?);
    let mut watcher = reader.watch(Kind::Application, reader.snapshot().revision()).map_err(ended)?;
    let schedule = Schedule::of(time);
    let events = schedule.events;
    let sent: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let to_send = Arc::clone(&sent);
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        for event in 0..events {
            tokio::time::sleep_until(schedule.time_of(event).into()).await;
            let name = format!("app-{event}");
            to_send.lock().insert(name.clone(), schedule.time_of(event));
            writer.commit(object::item(&name, Uuid::new_v4(), None)).await?;
        }
        writer.shutdown().await;
        Ok::<_, horchestra_store::CommitError>(())
    });
    let mut latencies = Vec::new();
    while latencies.len() < events as usize {
        let changes = tokio::time::timeout(Duration::from_secs(30), watcher.next());
        for change in changes.await.context("an event is missing")?.map_err(ended)? {
            let sent = sent.lock().remove(&change.key().name);
            latencies.push(millis(sent.context("an event came twice")?.elapsed()));
        }
    }
    sending.join_next().await.context("nothing was sent")?.context("the writer ended badly")??;
    reader.shutdown().await;
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// NOTIFY on one connection, heard on another.
pub async fn notified(url: &str, time: Duration) -> Result<Vec<f64>> {
    let mut listener = PgListener::connect(url).await?;
    listener.listen("bench").await?;
    let mut sender = PgConnection::connect(url).await?;
    let schedule = Schedule::of(time);
    let (events, began) = (schedule.events, schedule.began);
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        for event in 0..events {
            tokio::time::sleep_until(schedule.time_of(event).into()).await;
            let payload = (schedule.time_of(event) - schedule.began).as_nanos().to_string();
            sqlx::query("select pg_notify('bench', $1)").bind(payload).execute(&mut sender).await?;
        }
        Ok::<_, sqlx::Error>(())
    });
    let mut latencies = Vec::new();
    while latencies.len() < events as usize {
        let heard = tokio::time::timeout(Duration::from_secs(30), listener.recv());
        let sent = heard.await.context("a notification is missing")??.payload().parse()?;
        latencies.push(millis(began.elapsed().saturating_sub(Duration::from_nanos(sent))));
    }
    sending.join_next().await.context("nothing was sent")?.context("the sender ended badly")??;
    ensure!(!latencies.is_empty(), "nothing was heard");
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}
