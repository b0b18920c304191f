//! Objects, items and databases for the tests.

use std::any::Any;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_core::sealed::Seal;
use horchestra_store::{
    Attribution, Backend, Change, ChangeKind, Class, Columns, CommitError, Draft, Edge, Entry, Guard, Index,
    Item, Op, Refusal, Revision, Store, StoreOptions, Trace, Watcher,
};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

/// Nothing in these tests takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

type Connect = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Backend>> + Send + Sync>;

/// A database of its own, to which any number of processes can connect.
pub struct World {
    connect: Connect,
    /// Whatever has to live as long as the database.
    _keep: Box<dyn Any + Send + Sync>,
}

impl World {
    pub fn new(connect: Connect, keep: impl Any + Send + Sync) -> World {
        World { connect, _keep: Box::new(keep) }
    }

    /// A connection, as a process has one.
    pub async fn backend(&self) -> Arc<dyn Backend> {
        (self.connect)().await
    }

    /// A store of its own on a connection of its own, loaded.
    pub async fn store(&self) -> Store {
        self.store_with(StoreOptions::default()).await
    }

    pub async fn store_with(&self, options: StoreOptions) -> Store {
        let store = Store::open(self.backend().await, options);
        within(store.ready()).await;
        store
    }
}

/// Fails the test if it takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("this should not take so long")
}

/// A recorded trace.
pub const TRACE: Trace = Trace { id: [7; 16], span: NonZeroU64::new(u64::MAX - 7) };

pub fn who(verb: &str) -> Attribution {
    Attribution { user: "tester".into(), verb: verb.into(), audit_id: Uuid::new_v4(), trace: Some(TRACE) }
}

pub fn app(name: &str) -> Key {
    Key::namespaced(Kind::Application, "shop", name)
}

pub fn namespace(name: &str) -> Key {
    Key::cluster(Kind::Namespace, name)
}

pub fn node(name: &str) -> Key {
    Key::cluster(Kind::Node, name)
}

pub fn secret(name: &str) -> Key {
    Key::namespaced(Kind::Secret, "shop", name)
}

/// A draft of an object whose body says `value`.
pub fn draft(key: &Key, uid: Uuid, value: &str) -> Draft {
    let tree = json!({
        "metadata": {"name": key.name, "uid": uid.to_string(), "labels": {"value": value}},
        "spec": {"value": value},
    });
    let mut tree = Object::from_value(tree).expect("an object");
    if key.kind.namespaced() {
        tree.set_metadata("namespace", key.namespace.clone());
    }
    if key.kind.is_sealed() {
        seal_of(KEY_ID, value).put(&mut tree);
    }
    Draft {
        key: key.clone(),
        uid,
        generation: 1,
        deleting: false,
        body: object::encode(key.kind, &tree),
        managed: Some(Bytes::from_static(b"[]")),
        index: Index { labels: vec![("value".into(), value.into())], fields: Vec::new() },
        columns: Columns::default(),
        edges: Vec::new(),
    }
}

/// The key that objects of sealed kinds are made with here.
pub const KEY_ID: &str = "k1";

/// As far as the store can tell, contents sealed with this key.
pub fn seal_of(key: &str, contents: &str) -> Seal {
    let mut digest = [0; 32];
    digest[..contents.len().min(32)].copy_from_slice(&contents.as_bytes()[..contents.len().min(32)]);
    Seal { key: key.to_owned(), digest, payload: format!("{key}:{contents}").into_bytes() }
}

/// What a test says about an entry that it found.
pub fn value(entry: &Entry) -> &str {
    entry.index.label("value").unwrap_or_default()
}

pub fn placed(mut draft: Draft, on: &str, cpu: i64) -> Draft {
    draft.columns = Columns { node: Some(on.into()), phase: None, cpu, memory: 0 };
    draft
}

pub fn capacity(mut draft: Draft, cpu: i64) -> Draft {
    draft.columns = Columns { node: None, phase: None, cpu, memory: 0 };
    draft
}

pub fn referring(mut draft: Draft, edges: Vec<Edge>) -> Draft {
    draft.edges = edges;
    draft
}

pub fn item(ops: Vec<Op>) -> Item {
    guarded(ops, Vec::new())
}

pub fn guarded(ops: Vec<Op>, guards: Vec<Guard>) -> Item {
    Item { ops, guards, who: who("test") }
}

pub fn create(key: &Key, value: &str) -> Op {
    Op::Create(draft(key, Uuid::new_v4(), value))
}

/// An update of an object as it was found.
pub fn update(found: &Entry, value: &str) -> Op {
    Op::Update { draft: draft(&found.key, found.uid, value), expect: found.revision, class: Class::Core }
}

pub fn update_status(found: &Entry, value: &str) -> Op {
    Op::Update { draft: draft(&found.key, found.uid, value), expect: found.revision, class: Class::Status }
}

pub fn delete(found: &Entry) -> Op {
    Op::Delete { key: found.key.clone(), expect: found.revision }
}

/// Commits one operation and answers its revision.
pub async fn put(store: &Store, op: Op) -> Revision {
    within(store.commit(item(vec![op]))).await.expect("committed").revisions[0]
}

/// Creates and reads back.
pub async fn created(store: &Store, key: &Key, value: &str) -> Arc<Entry> {
    put(store, create(key, value)).await;
    found(store, key).await
}

pub async fn found(store: &Store, key: &Key) -> Arc<Entry> {
    within(store.fresh()).await.expect("fresh").get(key).expect("it exists")
}

/// Changes until one has this revision, which is included.
pub async fn changes_up_to(watcher: &mut Watcher, revision: Revision) -> Vec<Change> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &Change| last.revision < revision) {
        seen.extend(within(watcher.next()).await.expect("the watch goes on"));
    }
    seen
}

/// A change in short: what, where, at which revision, with which value.
pub fn brief(change: &Change) -> (ChangeKind, String, Revision, String) {
    (change.kind, change.key().name.clone(), change.revision, value(&change.entry).to_owned())
}

/// An entry as one would have it of an object that is not there.
pub fn placeholder(key: &Key) -> Entry {
    Entry::new(draft(key, Uuid::new_v4(), "none"), 1, 1)
}

/// Commits an item that must be refused.
pub async fn refusal(store: &Store, item: Item) -> Refusal {
    match within(store.commit(item)).await {
        Err(CommitError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The name of a claim space that no other test uses.
pub fn space(name: &str) -> String {
    format!("test-{name}")
}
