//! What answers depend on, when that last changed, and who waits for it to change.
//!
//! Every answer depends on a few topics, and its index is the revision of the last change to any of them. Only what
//! changed since the catalog was built is known one by one; everything else last changed not later than that, so
//! the revision of the building (the floor) stands for it. That is more than the truth, never less: a client that
//! comes from another replica asks once more than necessary, and misses nothing.

use std::collections::HashMap;
use std::sync::Arc;

use horchestra_store::Revision;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Changed topics that are known one by one. When there are more, the floor is raised and they are forgotten.
const MOST: usize = 1 << 18;

/// Something that an answer depends on. Texts are names: of a namespace first, then of a service or node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Which services a namespace has, and their tags.
    Services(Arc<str>),
    /// The instances of a service.
    Instances(Arc<str>, Arc<str>),
    /// The same with their health.
    Health(Arc<str>, Arc<str>),
    /// The health of everything in a namespace.
    Checks(Arc<str>),
    /// The instances of a namespace on a node.
    Placed(Arc<str>, Arc<str>),
    /// On which nodes a namespace has instances.
    Used(Arc<str>),
    /// Which nodes there are, and their addresses.
    Nodes,
    /// Whether a node is there, and its address.
    Node(Arc<str>),
}

/// The last change of each topic.
#[derive(Debug)]
pub struct Changes {
    floor: Revision,
    last: HashMap<Topic, Revision>,
    /// How many of `last` there may be.
    most: usize,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes::since(0)
    }
}

impl Changes {
    /// Nothing is known to have changed after `floor`.
    pub fn since(floor: Revision) -> Changes {
        Changes { floor, last: HashMap::new(), most: MOST }
    }

    /// Notes a change.
    pub fn note(&mut self, topic: Topic, at: Revision) {
        if self.last.len() >= self.most && !self.last.contains_key(&topic) {
            self.floor = self.last.values().copied().fold(self.floor, Revision::max);
            self.last.clear();
        }
        let last = self.last.entry(topic).or_insert(at);
        *last = (*last).max(at);
    }

    /// The last change to any of these topics.
    pub fn index(&self, topics: &[Topic]) -> Revision {
        let known = topics.iter().filter_map(|topic| self.last.get(topic).copied());
        known.fold(self.floor, Revision::max)
    }
}

/// Who waits for which topics.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    topics: HashMap<Topic, HashMap<u64, Arc<Notify>>>,
}

/// A place among those that wait, for as long as it lives.
#[derive(Debug)]
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    id: u64,
    topics: Vec<Topic>,
    bell: Arc<Notify>,
}

impl Waiters {
    /// Waits for these topics from now on. What changed before has to be looked at after this.
    pub fn enter(&self, topics: Vec<Topic>) -> Waiter<'_> {
        let bell = Arc::new(Notify::new());
        let mut waiting = self.0.lock();
        let id = waiting.next;
        waiting.next += 1;
        for topic in &topics {
            waiting.topics.entry(topic.clone()).or_default().insert(id, Arc::clone(&bell));
        }
        Waiter { waiters: self, id, topics, bell }
    }

    /// Wakes those that wait for any of these.
    pub fn wake<'a>(&self, topics: impl IntoIterator<Item = &'a Topic>) {
        let waiting = self.0.lock();
        for topic in topics {
            waiting
                .topics
                .get(topic)
                .into_iter()
                .flat_map(HashMap::values)
                .for_each(|bell| bell.notify_one());
        }
    }

    /// Wakes everybody.
    pub fn wake_all(&self) {
        self.0.lock().topics.values().flat_map(HashMap::values).for_each(|bell| bell.notify_one());
    }
}

impl Waiter<'_> {
    /// Resolves after a wake since it was last asked.
    pub async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        for topic in &self.topics {
            if let Some(bells) = waiting.topics.get_mut(topic) {
                bells.remove(&self.id);
                if bells.is_empty() {
                    waiting.topics.remove(topic);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn service(name: &str) -> Topic {
        Topic::Instances("default".into(), name.into())
    }

    #[test]
    fn the_index_is_that_of_the_last_change_and_the_floor_stands_for_what_is_not_known() {
        let mut changes = Changes::since(100);
        assert_eq!(changes.index(&[service("a")]), 100);
        changes.note(service("a"), 120);
        changes.note(service("a"), 110);
        changes.note(service("b"), 130);
        for (topics, index) in [
            (vec![service("a")], 120),
            (vec![service("b")], 130),
            (vec![service("c")], 100),
            (vec![service("c"), service("a"), Topic::Nodes], 120),
        ] {
            assert_eq!(changes.index(&topics), index, "{topics:?}");
        }
    }

    #[test]
    fn what_is_forgotten_raises_the_floor() {
        let mut changes = Changes { most: 3, ..Changes::since(1) };
        for (name, at) in [("a", 2), ("b", 3), ("c", 4), ("a", 5)] {
            changes.note(service(name), at);
        }
        let index = |changes: &Changes, name: &str| changes.index(&[service(name)]);
        assert_eq!(["a", "b", "c", "d"].map(|name| index(&changes, name)), [5, 3, 4, 1]);
        changes.note(service("d"), 6);
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| index(&changes, name)),
            [5, 5, 5, 6],
            "not less than it was"
        );
    }

    #[test]
    fn those_who_wait_hear_of_their_topics_alone_and_leave_nothing_behind() {
        let waiters = Waiters::default();
        let a = waiters.enter(vec![service("a"), Topic::Nodes]);
        let b = waiters.enter(vec![service("b")]);
        waiters.wake(&[service("c")]);
        assert!(a.woken().now_or_never().is_none() && b.woken().now_or_never().is_none());
        waiters.wake(&[service("a"), Topic::Nodes]);
        assert!(a.woken().now_or_never().is_some(), "also if nobody was looking");
        assert!(a.woken().now_or_never().is_none(), "once");
        assert!(b.woken().now_or_never().is_none());
        waiters.wake_all();
        assert!(a.woken().now_or_never().is_some() && b.woken().now_or_never().is_some());
        drop((a, b));
        assert!(waiters.0.lock().topics.is_empty());
    }
}
