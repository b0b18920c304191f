//! A client that watches, loses its connection at random, and goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::Value;

use crate::client::{Client, Lines, Next, patiently};

use super::judge::event_of;
use super::writer::LAST;
use super::{GROUP, NAMESPACES, collection, key, revision};

const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

/// A change as a watch shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: String,
    pub key: String,
    pub revision: i64,
    pub object: Value,
}

/// What happened to a watcher.
#[derive(Clone, Debug)]
pub enum Step {
    Event(Event),
    Bookmark(i64),
    /// It went on from here.
    Reconnect(i64),
    /// What it had put together, at the revision of its last frame.
    State {
        revision: i64,
        objects: BTreeMap<String, i64>,
    },
}

/// Label selectors, and what they select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    Everything,
    TierA,
    TierAOrB,
    NotTierA,
    NoTier,
}

impl Selector {
    const ALL: [Selector; 5] =
        [Selector::Everything, Selector::TierA, Selector::TierAOrB, Selector::NotTierA, Selector::NoTier];

    fn query(self) -> &'static str {
        match self {
            Selector::Everything => "",
            Selector::TierA => "&labelSelector=tier%3Da",
            Selector::TierAOrB => "&labelSelector=tier+in+(a,b)",
            Selector::NotTierA => "&labelSelector=tier!%3Da",
            Selector::NoTier => "&labelSelector=!tier",
        }
    }

    fn matches(self, tier: Option<&str>) -> bool {
        match self {
            Selector::Everything => true,
            Selector::TierA => tier == Some("a"),
            Selector::TierAOrB => matches!(tier, Some("a" | "b")),
            Selector::NotTierA => tier != Some("a"),
            Selector::NoTier => tier.is_none(),
        }
    }
}

/// How a watcher learns what there is before it follows the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// A list, in pages.
    Pages,
    /// The watch itself, with a bookmark at the end of the state.
    Streaming,
    /// The watch itself, without a mark: the newest state, or any.
    Newest,
    Any,
}

/// What a watcher wants to see.
#[derive(Clone, Debug)]
pub struct Plan {
    number: u64,
    namespace: Option<&'static str>,
    selector: Selector,
    start: Start,
    bookmarks: bool,
    pub metadata_only: bool,
}

impl Plan {
    pub fn selects(&self, key: &str, object: &Value) -> bool {
        self.namespace.is_none_or(|namespace| key.starts_with(&format!("{namespace}/")))
            && self.selector.matches(object["metadata"]["labels"]["tier"].as_str())
    }

    fn path(&self) -> String {
        self.namespace.map_or_else(|| format!("{GROUP}/applications"), collection)
    }

    /// The last object that it will see.
    fn last_key(&self) -> String {
        let namespace = self.namespace.unwrap_or(NAMESPACES[NAMESPACES.len() - 1]);
        let name = LAST.iter().rev().find(|(_, tier)| self.selector.matches(*tier)).expect("one for each").0;
        format!("{namespace}/{name}")
    }
}

/// Where the changes begin.
#[derive(Clone, Debug)]
pub enum Begin {
    After(i64),
    /// The state of some moment in between.
    Unmarked {
        low: i64,
        high: i64,
    },
}

/// Everything that a watcher saw.
pub struct Watched {
    pub plan: Plan,
    pub begin: Begin,
    pub steps: Vec<Step>,
    /// What it was to see at least.
    pub end: i64,
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watcher {} {:?}", self.plan.number, self.plan)
    }
}

/// A watcher at work.
pub struct Watching {
    plan: Plan,
    random: StdRng,
    replicas: [Client; 2],
    end: Arc<AtomicI64>,
    begin: Begin,
    steps: Vec<Step>,
    /// Of the last frame, 0 while it is not known.
    revision: i64,
    objects: BTreeMap<String, i64>,
    /// Whether the state is complete: before that there is no revision to go on from.
    live: bool,
    ended: bool,
}

impl Watching {
    pub fn random(number: u64, mut random: StdRng, replicas: &[Client; 2], end: &Arc<AtomicI64>) -> Watching {
        let plan = Plan {
            number,
            namespace: *[None, Some("default"), Some("team-a")].choose(&mut random).unwrap(),
            selector: *Selector::ALL.choose(&mut random).unwrap(),
            start: [Start::Pages, Start::Streaming, Start::Newest, Start::Any][number as usize % 4],
            bookmarks: random.random_bool(0.6),
            metadata_only: random.random_bool(0.25),
        };
        Watching {
            plan,
            random,
            replicas: replicas.clone(),
            end: Arc::clone(end),
            begin: Begin::After(0),
            steps: Vec::new(),
            revision: 0,
            objects: BTreeMap::new(),
            live: false,
            ended: false,
        }
    }

    pub async fn run(mut self) -> Watched {
        // Some come late.
        let wait = self.random.random_range(0..400);
        tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        let mut lines = self.start().await;
        self.ended = self.objects.contains_key(&self.plan.last_key());
        while !self.ended {
            let frames = self.random.random_range(1..40);
            self.follow(&mut lines, frames).await;
            drop(lines);
            if self.ended {
                break;
            }
            self.check_state().await;
            let replica = self.random.random_range(0..2);
            self.steps.push(Step::Reconnect(self.revision));
            lines = self.open(replica, &format!("&resourceVersion={}", self.revision)).await;
        }
        let end = self.end.load(Ordering::SeqCst);
        Watched { plan: self.plan, begin: self.begin, steps: self.steps, end }
    }

    async fn open(&mut self, replica: usize, query: &str) -> Lines {
        let bookmarks = if self.plan.bookmarks { "&allowWatchBookmarks=true" } else { "" };
        let path = format!("{}?watch=1{bookmarks}{}{query}", self.plan.path(), self.plan.selector.query());
        let accept = if self.plan.metadata_only { METADATA } else { "application/json" };
        self.replicas[replica].lines(&path, &[("accept", accept)]).await
    }

    async fn start(&mut self) -> Lines {
        let replica = self.random.random_range(0..2);
        match self.plan.start {
            Start::Pages => {
                self.list(replica).await;
                let query = format!("&resourceVersion={}", self.revision);
                let other = self.random.random_range(0..2);
                self.open(other, &query).await
            }
            Start::Streaming => {
                self.plan.bookmarks = true;
                let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
                let mut lines = self.open(replica, query).await;
                loop {
                    let frame = lines.frame().await;
                    let object = &frame["object"];
                    if frame["type"] == "BOOKMARK" {
                        assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
                        self.revision = revision(object);
                        break;
                    }
                    assert_eq!(frame["type"], "ADDED", "{frame}");
                    let twice = self.objects.insert(key(object), revision(object));
                    assert_eq!(twice, None, "{frame}");
                }
                self.begin = Begin::After(self.revision);
                self.note_state();
                lines
            }
            Start::Newest | Start::Any => {
                let newest = self.plan.start == Start::Newest;
                let low = if newest { self.known_revision().await } else { 0 };
                let query = if newest { "" } else { "&resourceVersion=0" };
                let lines = self.open(replica, query).await;
                // The answer has begun, so its moment is over.
                let high = self.known_revision().await;
                self.begin = Begin::Unmarked { low, high };
                lines
            }
        }
    }

    /// A revision that has been reached.
    async fn known_revision(&self) -> i64 {
        revision(&patiently(&self.replicas[0], &format!("{GROUP}/applications?limit=1")).await.json())
    }

    /// Lists in pages, each from either replica.
    async fn list(&mut self, mut replica: usize) {
        let limit = self.random.random_range(1..6);
        let mut token = String::new();
        self.objects.clear();
        self.revision = 0;
        loop {
            let path = format!("{}?limit={limit}{}{token}", self.plan.path(), self.plan.selector.query());
            let reply = patiently(&self.replicas[replica], &path).await;
            assert_eq!(reply.status, 200, "{path}: {reply:?}");
            let page = reply.json();
            assert!(self.revision == 0 || self.revision == revision(&page), "the pages differ");
            self.revision = revision(&page);
            for object in page["items"].as_array().unwrap() {
                let twice = self.objects.insert(key(object), revision(object));
                assert_eq!(twice, None, "{object} is on two pages");
            }
            let Some(next) = page["metadata"]["continue"].as_str() else { break };
            let next: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
            token = format!("&continue={next}");
            replica = self.random.random_range(0..2);
        }
        self.begin = Begin::After(self.revision);
        self.note_state();
    }

    fn note_state(&mut self) {
        self.live = true;
        self.steps.push(Step::State { revision: self.revision, objects: self.objects.clone() });
    }

    /// Reads some frames: at least so many that there is a revision to go on from.
    async fn follow(&mut self, lines: &mut Lines, frames: usize) {
        let mut read = 0;
        while read < frames || !self.live {
            read += 1;
            // Before each read: what was written last may have come already.
            let end = self.end.load(Ordering::SeqCst);
            if self.plan.bookmarks && self.live && self.revision >= end {
                self.ended = true;
                return;
            }
            let frame = match lines.next().await {
                Next::Line(line) => serde_json::from_str::<Value>(&line).unwrap(),
                other => panic!("{:?}: the watch ended: {other:?}", self.plan),
            };
            let object = &frame["object"];
            // In the order of a list, an unmarked state has additions only.
            self.live |= frame["type"] != "ADDED";
            match frame["type"].as_str().unwrap_or("?") {
                "BOOKMARK" => {
                    assert!(self.plan.bookmarks, "{frame}: nobody asked for it");
                    assert!(object["kind"].is_string() && object["apiVersion"].is_string(), "{frame}");
                    self.revision = revision(object);
                    self.steps.push(Step::Bookmark(self.revision));
                }
                "DELETED" => {
                    assert!(self.objects.remove(&key(object)).is_some(), "{frame}: was not there");
                    self.revision = revision(object);
                    self.steps.push(Step::Event(event_of(&frame)));
                }
                "ADDED" | "MODIFIED" => {
                    self.objects.insert(key(object), revision(object));
                    self.revision = revision(object);
                    let last = key(object) == self.plan.last_key();
                    self.steps.push(Step::Event(event_of(&frame)));
                    if last {
                        self.ended = true;
                        return;
                    }
                }
                _ => panic!("{:?}: {frame}", self.plan),
            }
        }
    }

    /// What was put together is the list of the revision, whoever is asked.
    async fn check_state(&mut self) {
        let replica = self.random.random_range(0..2);
        let path = format!(
            "{}?resourceVersion={}&resourceVersionMatch=Exact{}",
            self.plan.path(),
            self.revision,
            self.plan.selector.query()
        );
        let reply = patiently(&self.replicas[replica], &path).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        let list = reply.json();
        assert_eq!(revision(&list), self.revision);
        let listed: BTreeMap<String, i64> =
            list["items"].as_array().unwrap().iter().map(|object| (key(object), revision(object))).collect();
        assert_eq!(self.objects, listed, "{:?} at {}", self.plan, self.revision);
        self.note_state();
    }
}

/// One that never loses its connection, sees everything, and ends when told to.
pub async fn observe(client: Client, from: i64, end: Arc<AtomicI64>) -> Vec<Event> {
    let path = format!("{GROUP}/applications?watch=1&allowWatchBookmarks=true&resourceVersion={from}");
    let mut lines = client.lines(&path, &[]).await;
    let mut events = Vec::new();
    loop {
        let frame = lines.frame().await;
        let at = revision(&frame["object"]);
        if frame["type"] != "BOOKMARK" {
            events.push(event_of(&frame));
        }
        if at >= end.load(Ordering::SeqCst) {
            return events;
        }
    }
}
