//! Listing 10,000 objects as the API does it, beside COPY of the same bodies.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::TryStreamExt;
use horchestra_core::kind::Kind;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool, PgPoolCopyExt, PgPoolOptions};

use super::BenchArgs;
use super::report::Section;
use super::server::{Server, store};
use super::watches::millis;
use super::writes::{OBJECTS, prepare};

const COPY: &str = "copy (select body from horchestra.objects where kind = 3 order by ns, name) to stdout";

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Section> {
    let url = server.database().await?;
    let store = store(&url, "bench").await?;
    prepare(&store).await?;
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::query("analyze horchestra.objects").execute(&mut connection).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&url).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // One pair is a fraction of a second: more of them, the first not counted.
    for round in 0..=args.pairs() * 4 {
        let began = Instant::now();
        let (count, bytes) = list(&store).await?;
        let listed = millis(began.elapsed());
        ensure!(count == OBJECTS, "{count} objects were listed");

        let (copied, took) = copy(&pool).await?;
        ensure!(copied >= bytes, "COPY gave {copied} bytes, the list {bytes}");
        if round > 0 {
            ours.push(listed);
            theirs.push(took);
        }
    }
    pool.close().await;
    store.shutdown().await;
    server.drop_database(&url).await?;
    Ok(Section {
        name: format!("list of {OBJECTS} objects"),
        unit: "ms",
        comparison: "COPY of the bodies in order".into(),
        ours,
        theirs,
        aim: String::new(),
        notes: vec![
            "ours: a fresh view (one round trip), then every object's bytes with its revision".into(),
        ],
    })
}

/// Bytes, and the milliseconds that they took.
pub async fn copy(pool: &PgPool) -> Result<(usize, f64)> {
    let began = Instant::now();
    let mut stream = pool.copy_out_raw(COPY).await?;
    let mut copied = 0;
    while let Some(chunk) = stream.try_next().await? {
        copied += chunk.len();
    }
    Ok((copied, millis(began.elapsed())))
}

async fn list(store: &horchestra_store::Store) -> Result<(usize, usize)> {
    let view = store.fresh().await?;
    let mut count = 0;
    let mut out = Vec::with_capacity(16 << 20);
    for entry in view.list(Kind::Application, None) {
        out.extend_from_slice(&entry.encoded());
        out.push(b',');
        count += 1;
    }
    Ok((count, out.len()))
}
