//! Writers while somebody else keeps an old snapshot open, as a dump or an analyst does.

use std::time::{Duration, Instant};

use anyhow::Result;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::report::{Section, median};
use super::server::Server;
use super::{BenchArgs, server, writes};

/// The same run again and again on one database: first without, then with the snapshot. The "comparison" is
/// ourselves without it.
pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let seconds = if args.quick { args.snapshot_seconds.min(60) } else { args.snapshot_seconds };
    let open_for = Duration::from_secs(seconds);
    let url = server.database().await?;
    let windows = args.pairs();
    let (mut many_before, mut one_before) = (Vec::new(), Vec::new());
    let session = Session::open(&url).await?;
    for _ in 0..windows {
        many_before.push(session.many(args.arm()).await?);
        one_before.push(session.one(args.arm()).await?);
    }
    let mut foreign = PgConnection::connect(&url).await?;
    let mut transaction = foreign.begin_with("begin isolation level repeatable read").await?;
    sqlx::query("select count(*) from horchestra.objects").execute(&mut *transaction).await?;
    let opened = Instant::now();
    let (mut many_during, mut one_during) = (Vec::new(), Vec::new());
    while opened.elapsed() < open_for {
        many_during.push(session.many(args.arm()).await?);
        one_during.push(session.one(args.arm()).await?);
    }
    transaction.rollback().await?;
    session.close().await;
    server.drop_database(&url).await?;

    let section = |name: &str, unit, before: &[f64], during: &[f64], aim: &str| Section {
        name: format!("{name}, foreign snapshot open for {seconds} s"),
        unit,
        comparison: "the same without the snapshot".into(),
        // The end is what tells: whatever a snapshot spoils gets worse with time.
        ours: during.iter().rev().take(windows).copied().collect(),
        theirs: before.iter().take(during.len().min(windows)).copied().collect(),
        aim: aim.into(),
        notes: vec![format!(
            "first window with it {:.2}, last {:.2}, median of all {:.2}",
            during.first().copied().unwrap_or(f64::NAN),
            during.last().copied().unwrap_or(f64::NAN),
            median(during)
        )],
    };
    Ok(vec![
        section("update, 64 writers", "writes/s", &many_before, &many_during, "≥ 0.8"),
        section("update, 1 writer", "ms per write", &one_before, &one_during, "≤ 1.2"),
    ])
}

/// One store and its objects over many runs.
struct Session {
    store: horchestra_store::Store,
    objects: tokio::sync::Mutex<Vec<writes::Object>>,
}

impl Session {
    async fn open(url: &str) -> Result<Session> {
        let store = server::store(url, "bench").await?;
        let objects = tokio::sync::Mutex::new(writes::prepare(&store).await?);
        Ok(Session { store, objects })
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
