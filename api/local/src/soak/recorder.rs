//! Follows the log from its very beginning and shows every row to the checker.
//!
//! It reads as any tail does, from the last row that it knows, so it misses nothing whatever happens to the
//! database in between, and judges while the storm goes on: the log is compacted after a while. What it saw is
//! written to a file, a line a row, for those who want to know how it came to a violation.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_core::kind::Kind;
use horchestra_store::backend::LogRow;
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::{Backend, Entry, Revision};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::checker::Checker;

/// Rows that are read at a time.
const STRETCH: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(50);
/// How long the database may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// Somebody else who is shown every row.
pub trait Watcher: Send + 'static {
    fn observe(&mut self, row: &LogRow);
    /// Rules that were broken so far.
    fn violations(&self) -> usize;
}

/// Nobody.
impl Watcher for () {
    fn observe(&mut self, _: &LogRow) {}

    fn violations(&self) -> usize {
        0
    }
}

/// What was seen.
pub struct Record<W> {
    pub checker: Checker,
    pub watcher: W,
    /// By loop: when it wrote, in microseconds since the epoch by the clock of the database, ascending.
    pub writes: HashMap<String, Vec<i64>>,
    /// All objects that are stored in the end.
    pub stored: Vec<Arc<Entry>>,
}

/// The checker and the watcher with all that they were shown, and when each loop wrote.
type Followed<W> = (Checker, W, HashMap<String, Vec<i64>>);

/// A recording under way.
pub struct Recorder<W = ()> {
    backend: Arc<PostgresBackend>,
    task: JoinSet<Result<Followed<W>>>,
    stop: CancellationToken,
    seen: watch::Receiver<Seen>,
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub revision: Revision,
    pub violations: usize,
}

impl<W: Watcher> Recorder<W> {
    /// Begins with the first row of the log.
    pub fn begin(url: &str, file: &Path, watcher: W) -> Result<Recorder<W>> {
        let options = Options { application: "soak".to_owned(), ..Options::default() };
        let backend = PostgresBackend::open(url, options)?;
        let file = File::create(file).with_context(|| format!("creating {}", file.display()))?;
        let (news, seen) = watch::channel(Seen::default());
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(follow(Arc::clone(&backend), BufWriter::new(file), watcher, news, stop.clone()));
        Ok(Recorder { backend, task, stop, seen })
    }

    pub fn seen(&self) -> Seen {
        *self.seen.borrow()
    }

    /// The newest revision of the store.
    pub async fn head(&self) -> Result<Revision> {
        Ok(self.backend.head().await?.revision)
    }

    /// Everything that is stored now.
    pub async fn stored(&self) -> Result<Vec<Arc<Entry>>> {
        Ok(self.backend.load(&Kind::ALL).await?.entries)
    }

    /// Ends the recording once it has caught up.
    pub async fn end(mut self) -> Result<Record<W>> {
        let loaded = self.backend.load(&Kind::ALL).await?;
        let mut seen = self.seen.clone();
        let caught_up = seen.wait_for(|seen| seen.revision >= loaded.head.revision);
        let caught_up = tokio::time::timeout(PATIENCE, caught_up).await.is_ok_and(|seen| seen.is_ok());
        self.stop.cancel();
        let (checker, watcher, writes) = self.task.join_next().await.context("nobody recorded")???;
        self.backend.close().await;
        if !caught_up || checker.seen() != loaded.head.revision {
            bail!("the recording ends at {}, the log at {}", checker.seen(), loaded.head.revision);
        }
        Ok(Record { checker, watcher, writes, stored: loaded.entries })
    }
}

async fn follow<W: Watcher>(
    backend: Arc<PostgresBackend>,
    mut file: BufWriter<File>,
    mut watcher: W,
    news: watch::Sender<Seen>,
    stop: CancellationToken,
) -> Result<Followed<W>> {
    let mut checker = Checker::default();
    let mut writes: HashMap<String, Vec<i64>> = HashMap::new();
    let mut answered = Instant::now();
    while !stop.is_cancelled() {
        let rows = match backend.changes(checker.seen(), STRETCH).await {
            Ok(changes) => changes.rows,
            Err(error) if answered.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        answered = Instant::now();
        for row in &rows {
            writeln!(file, "{}", line(row))?;
            let before = checker.violations().len();
            checker.observe(row);
            watcher.observe(row);
            for violation in &checker.violations()[before..] {
                writeln!(file, "!!! {violation}")?;
            }
            if let Some(name) = row.who.user.strip_prefix("system:loop:") {
                writes.entry(name.to_owned()).or_default().push(row.at);
            }
        }
        news.send_replace(Seen {
            revision: checker.seen(),
            violations: checker.violations().len() + watcher.violations(),
        });
        if rows.is_empty() {
            file.flush()?;
            sleep(PAUSE).await;
        }
    }
    file.flush()?;
    Ok((checker, watcher, writes))
}

/// A row in short.
fn line(row: &LogRow) -> String {
    let (change, entry) = (&row.change, &row.change.entry);
    let columns = &entry.columns;
    format!(
        "{} {} {} {} {:?} {} uid={} generation={}{} node={} phase={}",
        change.revision,
        row.at,
        row.who.user,
        row.who.verb,
        change.kind,
        entry.key,
        entry.uid,
        entry.generation,
        if entry.deleting { " deleting" } else { "" },
        columns.node.as_deref().unwrap_or("-"),
        columns.phase.as_deref().unwrap_or("-"),
    )
}
