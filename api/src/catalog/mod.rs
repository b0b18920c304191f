//! The catalog of services, in the shape of Consul's: what can be reached where, and how it is doing.
//!
//! # What is listed
//!
//! Services with the Applications that join them, and nodes with what declares ports on them ([`instance`]). Nothing
//! of it is stored. Health comes from what nodes report of workloads and from the one verdict on each node, never
//! from the age of anything: a node that falls silent makes its instances `warning`, and the verdict that it is lost
//! makes them `critical`. Since that verdict is never given for an absence of ours, such an absence changes nothing.
//!
//! # Indexes
//!
//! Every answer has an index: the revision of the last change that could have made it another answer. A heartbeat, a
//! message in a status, another service or another namespace do not move it. A client that sends the index back is
//! answered when there is a higher one, or when its time is up, with the index that it sent. As revisions are those
//! of the one change log, an index means the same to every replica, and no client that sends one ever gets a lower
//! one back, whichever replica answers; only one that is above everything that has happened is taken for nonsense
//! and answered at once.
//!
//! # How it is kept
//!
//! One task follows the change log ([`follow`]) and keeps what is listed by name ([`index`]). It starts with the
//! first question, so a replica that nobody asks pays nothing. Why not compute answers from the watch cache: that is
//! ordered by namespace and name, so whatever joins a Service would have to be searched for among all Applications
//! of its namespace, and nothing would tell which parked questions a change concerns. Here a change costs what it
//! touches and an answer what it shows.
//!
//! A parked question is an entry in the list of those who wait for a topic ([`topics`]): no statement, no task of
//! ours, no look at anything until a change of that very topic. Questions that do not wait see every write that was
//! acknowledged before, as all reads of the API do, unless they say `stale`.
//!
//! # When we are at fault
//!
//! What cannot be known is a 503 and never an empty list, which clients would take for "nothing runs any more".

mod answers;
mod facts;
pub mod filter;
mod follow;
mod index;
mod instance;
mod metrics;
pub mod query;
mod topics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use horchestra_core::status::Status;
use horchestra_store::{ReadError, Revision, Store};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use answers::{Check, Entry, HealthEntry, Node, NodeServices};
pub use answers::{DATACENTER, SELF};
use facts::NodeFacts;
use filter::{Filter, Shape};
use follow::{Followed, State};
use instance::{Health, Instance};
pub use metrics::CatalogMetrics;
use query::Asked;
use topics::Topic;

/// The longest that a question waits for the catalog to be as current as it has to be.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked, of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Names with their tags.
    Services,
    /// What is listed under a name.
    Service(String),
    /// The same with health.
    Health(String),
    /// The health of everything that is `passing`, `warning`, `critical`, or (`any`) whatever.
    State(String),
    /// The nodes that the namespace has instances on, or all.
    Nodes { all: bool },
    /// A node and what the namespace has on it; `any`: also if that is nothing.
    Node { name: String, any: bool },
}

/// The catalog of this process.
pub struct Catalog {
    store: Store,
    followed: Arc<Followed>,
    started: AtomicBool,
}

/// An answer and its index.
#[derive(Debug)]
pub struct Answer {
    pub index: Revision,
    pub body: Body,
}

/// Why a question need not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Changed,
    /// Its time is up.
    Elapsed,
    /// This replica ends.
    Ended,
}

impl Woken {
    pub const fn word(self) -> &'static str {
        match self {
            Woken::Changed => "changed",
            Woken::Elapsed => "elapsed",
            Woken::Ended => "ended",
        }
    }
}

impl Question {
    /// The shape of what a filter chooses from.
    pub fn shape(&self) -> Shape {
        match self {
            Question::Services | Question::Service(_) => filter::ENTRY,
            Question::Health(_) => filter::HEALTH,
            Question::State(_) => filter::CHECK,
            Question::Nodes { .. } => filter::NODE,
            Question::Node { .. } => filter::SERVICE,
        }
    }

    fn topics(&self, namespace: &str) -> Vec<Topic> {
        let namespace: Arc<str> = namespace.into();
        match self {
            Question::Services => vec![Topic::Services(namespace)],
            Question::Service(name) => vec![Topic::Instances(namespace, name.as_str().into())],
            Question::Health(name) => vec![Topic::Health(namespace, name.as_str().into())],
            Question::State(_) => vec![Topic::Checks(namespace)],
            Question::Nodes { all: true } => vec![Topic::Nodes],
            Question::Nodes { all: false } => vec![Topic::Nodes, Topic::Used(namespace)],
            Question::Node { name, .. } => {
                let name: Arc<str> = name.as_str().into();
                vec![Topic::Node(Arc::clone(&name)), Topic::Placed(namespace, name)]
            }
        }
    }
}

impl Catalog {
    pub fn new(store: Store) -> Catalog {
        Catalog { store, followed: Arc::default(), started: AtomicBool::new(false) }
    }

    /// Begins to follow the log, if that has not begun yet.
    pub fn start(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let (followed, store) = (Arc::clone(&self.followed), self.store.clone());
            tasks.spawn(follow::follow(followed, store, stop.clone()));
        }
    }

    /// How long the database has been away.
    pub fn last_contact(&self) -> Duration {
        self.store.health().disconnected_for
    }

    /// Waits until the catalog is as current as the question wants it. The answer is the index to wait from, zero
    /// where there is nothing to wait for.
    pub async fn catch_up(&self, asked: &Asked) -> Result<Revision, Status> {
        let away = || Status::unavailable("the database is not available, try again later", 2);
        let (at_least, index) = match asked.index {
            0 if asked.stale => (0, 0),
            0 => (self.store.fresh().await.map_err(|_| away())?.revision(), 0),
            index if index <= self.followed.revision() => (0, index),
            // Another replica is ahead, or there is no such revision.
            index => match self.store.not_older_than(index).await {
                Ok(_) => (index, index),
                Err(ReadError::TooLarge { .. }) => (0, 0),
                Err(_) => return Err(away()),
            },
        };
        let reached = tokio::time::timeout(PATIENCE, self.followed.reach(at_least)).await;
        reached.map_err(|_| Status::unavailable("the catalog is being loaded, try again later", 1))?;
        Ok(index)
    }

    /// Waits until the answer has a higher index than this.
    pub async fn changed(
        &self,
        question: &Question,
        namespace: &str,
        index: Revision,
        until: Instant,
        stop: &CancellationToken,
    ) -> Woken {
        let topics = question.topics(namespace);
        let waiter = self.followed.waiters.enter(topics.clone());
        let elapsed = tokio::time::sleep_until(until);
        tokio::pin!(elapsed);
        loop {
            // In this order: whatever changes after this look rings the bell.
            if self.followed.look(|state| state.changes.index(&topics)) > index {
                return Woken::Changed;
            }
            tokio::select! {
                () = waiter.woken() => {}
                () = &mut elapsed => return Woken::Elapsed,
                () = stop.cancelled() => return Woken::Ended,
            }
        }
    }

    /// The answer as things are now. A client that knows an index gets none below it.
    pub fn answer(&self, question: &Question, namespace: &str, asked: &Asked, known: Revision) -> Answer {
        let topics = question.topics(namespace);
        self.followed.look(|state| Answer {
            index: state.changes.index(&topics).max(known.min(state.revision)).max(1),
            body: body(state, question, namespace, asked),
        })
    }
}

/// Instances, each with the name that it is listed under.
type Listed = Vec<(Arc<str>, Arc<Instance>)>;

/// What an answer is made of, taken out of the state; to be written once nobody waits for that.
#[derive(Debug)]
pub struct Body {
    question: Question,
    namespace: String,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Services(BTreeMap<String, Vec<String>>),
    Instances(Listed),
    Nodes(Vec<Arc<NodeFacts>>),
    Node(Option<Arc<NodeFacts>>, Listed),
}

fn body(state: &State, question: &Question, namespace: &str, asked: &Asked) -> Body {
    let index = &state.index;
    let found = match question {
        // Tags and filters choose among instances.
        Question::Services if asked.filter.is_some() || !asked.tags.is_empty() => Found::Instances(
            index.all(namespace).map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect(),
        ),
        Question::Services => Found::Services(
            index
                .services(namespace)
                .map(|(name, tags)| (name.to_owned(), tags.map(str::to_owned).collect()))
                .collect(),
        ),
        Question::Service(name) | Question::Health(name) => {
            let name: Arc<str> = name.as_str().into();
            let found = index.service(namespace, &name);
            Found::Instances(found.map(|it| (Arc::clone(&name), Arc::clone(it))).collect())
        }
        Question::State(_) => Found::Instances(
            index.all(namespace).map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect(),
        ),
        Question::Nodes { all } => Found::Nodes(
            index.nodes().filter(|node| *all || index.uses(namespace, &node.name)).cloned().collect(),
        ),
        Question::Node { name, any } => {
            let listed = index.on_node(namespace, name);
            let known = index.node(name).filter(|_| *any || !listed.is_empty()).cloned();
            let node = known.or_else(|| listed.first().map(|(_, instance)| Arc::clone(&instance.node)));
            Found::Node(node, listed)
        }
    };
    Body { question: question.clone(), namespace: namespace.to_owned(), found }
}

impl Body {
    /// How much there is to write.
    pub fn len(&self) -> usize {
        match &self.found {
            Found::Services(services) => services.len(),
            Found::Instances(listed) | Found::Node(_, listed) => listed.len(),
            Found::Nodes(nodes) => nodes.len(),
        }
    }

    /// The answer as JSON.
    pub fn write(self, asked: &Asked) -> Result<Bytes, serde_json::Error> {
        let Body { question, namespace, found } = self;
        let namespace = namespace.as_str();
        let filter = asked.filter.as_ref();
        match (question, found) {
            (_, Found::Services(services)) => json(&services),
            (Question::Services, Found::Instances(listed)) => {
                let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for (name, instance) in choose(listed, namespace, asked) {
                    let entry = Entry::of(namespace, &name, &instance);
                    if keeps(filter, &entry)? {
                        services.entry(entry.service_name).or_default().extend(entry.service_tags);
                    }
                }
                for tags in services.values_mut() {
                    tags.sort_unstable();
                    tags.dedup();
                }
                json(&services)
            }
            (Question::Health(_), Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked)
                    .filter(|(_, it)| !asked.passing || it.health().0 == Health::Passing);
                list(filter, listed.map(|(name, it)| HealthEntry::of(namespace, &name, &it)))
            }
            (Question::State(wanted), Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked)
                    .filter(|(_, it)| wanted == "any" || it.health().0.word() == wanted);
                list(filter, listed.map(|(name, it)| Check::of(namespace, &name, &it)))
            }
            (_, Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked);
                list(filter, listed.map(|(name, it)| Entry::of(namespace, &name, &it)))
            }
            (_, Found::Nodes(mut nodes)) => {
                nodes.sort_by_key(|node| *node.name != *asked.near);
                list(filter, nodes.iter().map(|node| Node::of(node)))
            }
            (_, Found::Node(None, _)) => json(&Value::Null),
            (_, Found::Node(Some(node), listed)) => {
                let mut kept = Vec::new();
                for (name, instance) in listed {
                    if keeps(filter, &answers::Service::of(namespace, &name, &instance))? {
                        kept.push((name, instance));
                    }
                }
                let kept = kept.iter().map(|(name, instance)| (&**name, &**instance));
                json(&NodeServices::of(namespace, &node, kept))
            }
        }
    }
}

/// Those that have the tags, near ones first.
fn choose(
    mut listed: Listed,
    namespace: &str,
    asked: &Asked,
) -> impl Iterator<Item = (Arc<str>, Arc<Instance>)> {
    if !asked.tags.is_empty() {
        listed.retain(|(_, instance)| {
            let tags = instance.tags(namespace);
            asked.tags.iter().all(|tag| tags.contains(tag))
        });
    }
    if !asked.near.is_empty() {
        listed.sort_by_key(|(_, instance)| *instance.node.name != *asked.near);
    }
    listed.into_iter()
}

fn keeps(filter: Option<&Filter>, item: &impl Serialize) -> Result<bool, serde_json::Error> {
    filter.map_or(Ok(true), |filter| Ok(filter.chooses(&serde_json::to_value(item)?)))
}

fn list<T: Serialize>(
    filter: Option<&Filter>,
    items: impl Iterator<Item = T>,
) -> Result<Bytes, serde_json::Error> {
    let mut kept = Vec::new();
    for item in items {
        if keeps(filter, &item)? {
            kept.push(item);
        }
    }
    json(&kept)
}

fn json(value: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(value).map(Bytes::from)
}

#[cfg(test)]
mod tests;
