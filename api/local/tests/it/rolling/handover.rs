//! How long nobody leads a loop, or serves a node, while processes are replaced: by the database's own word.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_millis(100);

/// What is led or served at this moment, and by a term that runs.
const HELD: &str = "select 'lease ' || name as what from inspect.leases where live union all \
    select 'node ' || s.node from horchestra.node_sessions s join horchestra.gateways g on g.id = s.gateway \
    where g.until > clock_timestamp()";

#[derive(Default)]
struct Pause {
    since: Option<Instant>,
    longest: Duration,
}

/// Watches until it is told to stop.
pub struct Handover {
    task: JoinHandle<BTreeMap<String, Duration>>,
    stop: Arc<AtomicBool>,
}

impl Handover {
    pub fn watch(database_url: String) -> Handover {
        let stop = Arc::new(AtomicBool::new(false));
        Handover { task: tokio::spawn(watch(database_url, Arc::clone(&stop))), stop }
    }

    /// The longest pause of each.
    pub async fn end(self) -> BTreeMap<String, Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn watch(database_url: String, stop: Arc<AtomicBool>) -> BTreeMap<String, Duration> {
    let mut connection = PgConnection::connect(&database_url).await.unwrap();
    let mut pauses: BTreeMap<String, Pause> = BTreeMap::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let rows = sqlx::query(HELD).fetch_all(&mut connection).await.unwrap();
        let held: Vec<String> = rows.iter().map(|row| row.get("what")).collect();
        let now = Instant::now();
        for what in &held {
            pauses.entry(what.clone()).or_default();
        }
        for (what, pause) in &mut pauses {
            if held.contains(what) {
                pause.since = None;
            } else {
                let since = *pause.since.get_or_insert(last);
                pause.longest = pause.longest.max(now.duration_since(since));
            }
        }
        last = now;
        tokio::time::sleep(EVERY).await;
    }
    pauses.into_iter().map(|(what, pause)| (what, pause.longest)).collect()
}
