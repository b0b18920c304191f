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
struct Followed<W> {
    checker: Checker,
    watcher: W,
    writes: HashMap<String, Vec<i64>>,
    newest: Revision,
    file: BufWriter<File>,
}

impl<W: Watcher> Followed<W> {
    fn observe(&mut self, row: &LogRow) -> Result<()> {
        writeln!(self.file, "{}", line(row))?;
        let before = self.checker.violations().len();
        self.checker.observe(row);
        self.watcher.observe(row);
        if row.who.verb != "expire" {
            self.newest = row.change.revision;
        }
        for violation in &self.checker.violations()[before..] {
            writeln!(self.file, "!!! {violation}")?;
        }
        if let Some(name) = row.who.user.strip_prefix("system:loop:") {
            self.writes.entry(name.to_owned()).or_default().push(row.at);
        }
        Ok(())
    }
}

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
    /// Of the last change but for Events that were let go of when their time was over, or when there were too many.
    pub newest: Revision,
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
        let (checker, writes) = (Checker::default(), HashMap::new());
        let followed = Followed { checker, watcher, writes, newest: 0, file: BufWriter::new(file) };
        task.spawn(follow(Arc::clone(&backend), followed, news, stop.clone()));
        Ok(Recorder { backend, task, stop, seen })
    }

    pub fn seen(&self) -> Seen {
        *self.seen.borrow()
    }

    /// The newest revision of the store, but for Events that are let go of: that goes on while everybody rests.
    pub async fn newest(&self) -> Result<Revision> {
        Ok(self.caught_up().await?.newest)
    }

    /// Waits until everything has been seen that is stored by now.
    async fn caught_up(&self) -> Result<Seen> {
        let head = self.backend.head().await?.revision;
        let mut seen = self.seen.clone();
        let waiting = tokio::time::timeout(PATIENCE, seen.wait_for(|seen| seen.revision >= head)).await;
        match waiting {
            Ok(Ok(seen)) => Ok(*seen),
            _ => bail!("the recording ends at {}, the log at {head}", self.seen().revision),
        }
    }

    /// Everything that is stored now.
    pub async fn stored(&self) -> Result<Vec<Arc<Entry>>> {
        Ok(self.backend.load(&Kind::ALL).await?.entries)
    }

    /// Ends the recording once it has caught up, with all that is stored at that very moment: Events are let go of when
    /// their time is over, whoever rests.
    pub async fn end(mut self) -> Result<Record<W>> {
        let caught_up = self.caught_up().await;
        self.stop.cancel();
        let mut followed = self.task.join_next().await.context("nobody recorded")???;
        caught_up?;
        let loaded = self.backend.load(&Kind::ALL).await?;
        let end = loaded.head.revision;
        while followed.checker.seen() < end {
            let rows = self.backend.changes(followed.checker.seen(), STRETCH).await?.rows;
            let until_then: Vec<_> = rows.iter().filter(|row| row.change.revision <= end).collect();
            if until_then.is_empty() {
                break;
            }
            for row in until_then {
                followed.observe(row)?;
            }
        }
        followed.file.flush()?;
        self.backend.close().await;
        if followed.checker.seen() != end {
            bail!("the recording ends at {}, the log at {end}", followed.checker.seen());
        }
        let Followed { checker, watcher, writes, .. } = followed;
        Ok(Record { checker, watcher, writes, stored: loaded.entries })
    }
}

async fn follow<W: Watcher>(
    backend: Arc<PostgresBackend>,
    mut followed: Followed<W>,
    news: watch::Sender<Seen>,
    stop: CancellationToken,
) -> Result<Followed<W>> {
    let mut answered = Instant::now();
    while !stop.is_cancelled() {
        let rows = match backend.changes(followed.checker.seen(), STRETCH).await {
            Ok(changes) => changes.rows,
            Err(error) if answered.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        answered = Instant::now();
        for row in &rows {
            followed.observe(row)?;
        }
        news.send_replace(Seen {
            revision: followed.checker.seen(),
            newest: followed.newest,
            violations: followed.checker.violations().len() + followed.watcher.violations(),
        });
        if rows.is_empty() {
            followed.file.flush()?;
            sleep(PAUSE).await;
        }
    }
    Ok(followed)
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
