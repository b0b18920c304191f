//! Clients that list and watch, as informers do: they go on from the last revision that they know, whatever happens to
//! the replica that they are connected to, and list anew only when they are told that it is gone.
//!
//! Each writes down everything that it is told, so that it can be held against the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_core::kind::Kind;
use horchestra_store::{ChangeKind, Revision};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::site::{Site, Way};

/// How long an answer may take to begin.
const ANSWER: Duration = Duration::from_secs(10);
/// How long nothing may come, not even a bookmark, until the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);
/// How long they may take to catch up in the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kinds besides Applications, each by one of the ways.
const OTHERS: [Kind; 5] =
    [Kind::Secret, Kind::ApplicationSet, Kind::Service, Kind::Node, Kind::PersistentVolume];

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub revision: Revision,
    pub what: ChangeKind,
    pub uid: Uuid,
}

/// A list and what came after it.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    pub listed_at: Revision,
    pub listed: BTreeMap<Uuid, Revision>,
    pub events: Vec<Told>,
    /// All is known up to this revision, as far as it was told.
    pub through: Revision,
}

/// All that an informer was told.
#[derive(Clone, Debug)]
pub struct Informed {
    pub way: String,
    pub kind: Kind,
    pub stretches: Vec<Stretch>,
    pub reconnects: usize,
}

impl Informed {
    pub fn events(&self) -> usize {
        self.stretches.iter().map(|stretch| stretch.events.len()).sum()
    }

    pub fn relists(&self) -> usize {
        self.stretches.len().saturating_sub(1)
    }
}

/// How far one is.
struct Seen {
    kind: Kind,
    through: watch::Receiver<Revision>,
}

pub struct Informers {
    tasks: JoinSet<Result<Informed>>,
    stop: CancellationToken,
    seen: Vec<Seen>,
    odd: Arc<AtomicUsize>,
}

impl Informers {
    /// One for Applications by each way, and one for each other kind.
    pub fn begin(site: &Site) -> Informers {
        let mut informers = Informers {
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
            seen: Vec::new(),
            odd: Arc::default(),
        };
        for (way, other) in site.ways().iter().zip(OTHERS.iter().cycle()) {
            informers.add(way, Kind::Application);
            informers.add(way, *other);
        }
        informers
    }

    fn add(&mut self, way: &Way, kind: Kind) {
        let (news, through) = watch::channel(0);
        self.seen.push(Seen { kind, through });
        let informer = Informer { way: way.clone(), kind, news, odd: Arc::clone(&self.odd) };
        self.tasks.spawn(informer.run(self.stop.clone()));
    }

    /// Nobody has given up.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            Some(ended) => bail!("an informer ended: {:?}", ended?.map(|informed| informed.way)),
            None => Ok(()),
        }
    }

    /// Events that came twice or out of order so far.
    pub fn odd(&self) -> usize {
        self.odd.load(Ordering::Relaxed)
    }

    /// Waits until everyone who watches Applications knows of a revision of one.
    pub async fn all_see(&self, revision: Revision) -> Result<()> {
        for seen in self.seen.iter().filter(|seen| seen.kind == Kind::Application) {
            let mut through = seen.through.clone();
            let reached = timeout(PATIENCE, through.wait_for(|through| *through >= revision)).await;
            reached.with_context(|| format!("an informer does not see revision {revision}"))??;
        }
        Ok(())
    }

    /// Lets them catch up with the last change of each kind; all that they were told. Who has missed the last changes
    /// is found by the checker.
    pub async fn end(mut self, last: &BTreeMap<Kind, Revision>) -> Result<Vec<Informed>> {
        for seen in &mut self.seen {
            let last = last.get(&seen.kind).copied().unwrap_or_default();
            let _ = timeout(PATIENCE, seen.through.wait_for(|through| *through >= last)).await;
        }
        self.stop.cancel();
        let mut all = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            all.push(ended??);
        }
        Ok(all)
    }
}

struct Informer {
    way: Way,
    kind: Kind,
    news: watch::Sender<Revision>,
    odd: Arc<AtomicUsize>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It can be gone on with.
    Torn,
    /// What would come next is gone.
    Expired,
}

impl Informer {
    async fn run(self, stop: CancellationToken) -> Result<Informed> {
        let mut informed =
            Informed { way: self.way.name.clone(), kind: self.kind, stretches: Vec::new(), reconnects: 0 };
        let informing = Box::pin(self.inform(&mut informed));
        match stop.run_until_cancelled(informing).await {
            Some(Err(error)) => Err(error.context(format!("informer of {} by {}", self.kind, self.way.name))),
            Some(Ok(never)) => match never {},
            None => Ok(informed),
        }
    }

    async fn inform(&self, informed: &mut Informed) -> Result<std::convert::Infallible> {
        loop {
            let Ok(Ok(stretch)) = timeout(ANSWER, self.list()).await else {
                sleep(PAUSE).await;
                continue;
            };
            self.news.send_replace(stretch.through);
            informed.stretches.push(stretch);
            loop {
                let stretch = informed.stretches.last_mut().context("nothing was listed")?;
                match self.watch(stretch).await {
                    Ok(End::Expired) => break,
                    Ok(End::Torn) => {}
                    Err(error) if error.is::<serde_json::Error>() => return Err(error),
                    Err(_) => {}
                }
                informed.reconnects += 1;
                sleep(PAUSE).await;
            }
        }
    }

    fn path(&self) -> String {
        format!("/apis/{}/{}", self.kind.api_version(), self.kind.plural())
    }

    async fn list(&self) -> Result<Stretch> {
        let list = self.way.client.get(&self.path()).await?;
        let listed_at = revision(&list)?;
        let mut listed = BTreeMap::new();
        for item in list["items"].as_array().into_iter().flatten() {
            listed.insert(uid(item)?, revision(item)?);
        }
        Ok(Stretch { listed_at, listed, events: Vec::new(), through: listed_at })
    }

    async fn watch(&self, stretch: &mut Stretch) -> Result<End> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.path(),
            stretch.through
        );
        let mut connection = timeout(ANSWER, self.way.client.open()).await??;
        let answer = timeout(ANSWER, connection.send(Method::GET, &path, Bytes::new())).await??;
        match answer.status() {
            StatusCode::OK => self.follow(answer.into_body(), stretch).await,
            StatusCode::GONE => Ok(End::Expired),
            status => bail!("{status}"),
        }
    }

    async fn follow(&self, mut body: Incoming, stretch: &mut Stretch) -> Result<End> {
        let mut buffer = Vec::new();
        while let Some(frame) = timeout(SILENCE, body.frame()).await? {
            buffer.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line)?;
                let object = &event["object"];
                let what = match event["type"].as_str() {
                    Some("ADDED") => ChangeKind::Added,
                    Some("MODIFIED") => ChangeKind::Modified,
                    Some("DELETED") => ChangeKind::Deleted,
                    Some("BOOKMARK") => {
                        stretch.through = stretch.through.max(revision(object)?);
                        self.news.send_replace(stretch.through);
                        continue;
                    }
                    _ if object["code"] == 410 => return Ok(End::Expired),
                    _ => return Ok(End::Torn),
                };
                let told = Told { revision: revision(object)?, what, uid: uid(object)? };
                if told.revision <= stretch.through {
                    self.odd.fetch_add(1, Ordering::Relaxed);
                }
                stretch.events.push(told);
                stretch.through = stretch.through.max(told.revision);
                self.news.send_replace(stretch.through);
            }
        }
        Ok(End::Torn)
    }
}

fn revision(object: &Value) -> Result<Revision> {
    let text = object["metadata"]["resourceVersion"].as_str().context("no revision")?;
    Ok(text.parse()?)
}

fn uid(object: &Value) -> Result<Uuid> {
    Ok(object["metadata"]["uid"].as_str().context("no uid")?.parse()?)
}
