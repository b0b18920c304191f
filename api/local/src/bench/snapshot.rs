//! Writers while somebody else keeps an old snapshot open, as a dump or an analyst does.

use std::time::{Duration, Instant};

use anyhow::Result;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::report::{Section, median};
use super::server::Server;
use super::{BenchArgs, server, writes};

/// Two databases of one server take turns, one with a foreign snapshot and one without, for as long as the
/// snapshot stays open. (A snapshot keeps dead rows of its own database only.) Long runs get slower for other
/// reasons too, files that grow and a disk that has to catch up; those hit both.
pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let seconds = if args.quick { args.snapshot_seconds.min(60) } else { args.snapshot_seconds };
    let open_for = Duration::from_secs(seconds);
    let (held_url, free_url) = (server.database().await?, server.database().await?);
    let (held, free) = (Session::open(&held_url).await?, Session::open(&free_url).await?);
    let mut foreign = PgConnection::connect(&held_url).await?;
    let mut transaction = foreign.begin_with("begin isolation level repeatable read").await?;
    sqlx::query("select count(*) from horchestra.objects").execute(&mut *transaction).await?;
    let opened = Instant::now();
    let (mut many, mut one) = (Arms::default(), Arms::default());
    while opened.elapsed() < open_for {
        many.held.push(held.many(args.arm()).await?);
        many.free.push(free.many(args.arm()).await?);
        one.held.push(held.one(args.arm()).await?);
        one.free.push(free.one(args.arm()).await?);
    }
    transaction.rollback().await?;
    held.close().await;
    free.close().await;
    server.drop_database(&held_url).await?;
    server.drop_database(&free_url).await?;
    Ok(vec![
        many.section("update, 64 writers", "writes/s", seconds, args.pairs(), "≥ 0.8"),
        one.section("update, 1 writer", "ms per write", seconds, args.pairs(), "≤ 1.2"),
    ])
}

/// Windows with the snapshot and without, one after the other.
#[derive(Default)]
struct Arms {
    held: Vec<f64>,
    free: Vec<f64>,
}

impl Arms {
    /// The end is what tells: whatever a snapshot spoils gets worse with time.
    fn section(&self, name: &str, unit: &'static str, seconds: u64, last: usize, aim: &str) -> Section {
        let tail = |values: &[f64]| values[values.len().saturating_sub(last)..].to_vec();
        Section {
            name: format!("{name}, foreign snapshot open for {seconds} s"),
            unit,
            comparison: "the same without the snapshot, in turns".into(),
            ours: tail(&self.held),
            theirs: tail(&self.free),
            aim: aim.into(),
            notes: vec![format!(
                "windows: {}; the median of all is {:.2} with it, {:.2} without",
                self.held.len(),
                median(&self.held),
                median(&self.free)
            )],
        }
    }
}

/// One store and its objects over many runs.
struct Session {
    store: horchestra_store::Store,
    objects: tokio::sync::Mutex<Vec<writes::Object>>,
}

impl Session {
    async fn open(url: &str) -> Result<Session> {
        let store = server::store(url, "bench").await?;
        let mut objects = writes::prepare(&store).await?;
        // Few, so that each soon has many versions that the snapshot keeps.
        objects.truncate(1_024);
        Ok(Session { store, objects: tokio::sync::Mutex::new(objects) })
    }

    async fn many(&self, time: Duration) -> Result<f64> {
        Ok(self.run(64, time).await?.per_second)
    }

    async fn one(&self, time: Duration) -> Result<f64> {
        Ok(self.run(1, time).await?.mean())
    }

    async fn run(&self, writers: usize, time: Duration) -> Result<writes::Ours> {
        let mut objects = self.objects.lock().await;
        let (ours, after) = writes::drive(&self.store, std::mem::take(&mut *objects), writers, time).await?;
        *objects = after;
        Ok(ours)
    }

    async fn close(self) {
        self.store.shutdown().await;
    }
}
