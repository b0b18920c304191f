//! Random batches, on PostgreSQL and on the in-memory backend: answers and state have to agree after each,
//! and items that shared a batch have to come out as if each had been alone.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_store::backend::{Done, HistoryOf, LogRow};
use horchestra_store::{
    Attribution, Backend, Class, Columns, Draft, Edge, Entry, Guard, Index, Item, MemoryDatabase, Op,
    Relation, Trace,
};
use proptest::prelude::*;
use serde_json::json;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::{KEY_ID, seal_of};

const KINDS: [Kind; 5] = [Kind::Namespace, Kind::Node, Kind::Application, Kind::Secret, Kind::Event];

/// Which revision an operation expects of its object.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Head,
    /// The head as it will be if exactly this many changes happen before.
    Ahead(i64),
    Stale,
}

#[derive(Clone, Debug)]
enum Plan {
    Create { key: Key, look: Look },
    Update { key: Key, look: Look, expect: Expect, status: bool },
    Delete { key: Key, expect: Expect },
    Claim { value: u8, owner: u8, shared: bool },
    Release { owner: u8 },
}

/// What a draft says.
#[derive(Clone, Debug)]
struct Look {
    value: u8,
    deleting: bool,
    node: Option<u8>,
    cpu: i64,
    refers: Vec<u8>,
    fresh_uid: bool,
}

#[derive(Clone, Debug)]
enum Ask {
    Exists(Key),
    Unchanged(Key, bool),
    Empty(u8),
    Events(u8, i64),
    NoEdge(u8),
    AtMost(u8, i64),
    Capacity(u8, bool),
    Lease(i64),
    Session(bool),
    Unclaimed(u8, u8, u8),
}

fn key() -> impl Strategy<Value = Key> {
    (0..KINDS.len(), 0..2u8, 0..3u8).prop_map(|(kind, namespace, name)| {
        let kind = KINDS[kind];
        let namespace = if kind.namespaced() { format!("ns{namespace}") } else { String::new() };
        let name = if kind == Kind::Namespace { format!("ns{}", name.min(1)) } else { format!("o{name}") };
        Key { kind, namespace, name }
    })
}

fn look() -> impl Strategy<Value = Look> {
    let refers = proptest::collection::vec(0..3u8, 0..3);
    (
        any::<u8>(),
        prop::bool::weighted(0.1),
        proptest::option::of(0..3u8),
        0..3i64,
        refers,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(value, deleting, node, cpu, refers, fresh_uid)| Look {
            value,
            deleting,
            node,
            cpu,
            refers,
            fresh_uid,
        })
}

fn expect() -> impl Strategy<Value = Expect> {
    prop_oneof![6 => Just(Expect::Head), 2 => (0..6i64).prop_map(Expect::Ahead), 1 => Just(Expect::Stale)]
}

fn plan() -> impl Strategy<Value = Plan> {
    prop_oneof![
        5 => (key(), look()).prop_map(|(key, look)| Plan::Create { key, look }),
        5 => (key(), look(), expect(), any::<bool>())
            .prop_map(|(key, look, expect, status)| Plan::Update { key, look, expect, status }),
        2 => (key(), expect()).prop_map(|(key, expect)| Plan::Delete { key, expect }),
        2 => (0..3u8, 0..4u8, any::<bool>())
            .prop_map(|(value, owner, shared)| Plan::Claim { value, owner, shared }),
        1 => (0..4u8).prop_map(|owner| Plan::Release { owner }),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        3 => key().prop_map(Ask::Exists),
        1 => (key(), any::<bool>()).prop_map(|(key, right)| Ask::Unchanged(key, right)),
        1 => (0..2u8).prop_map(Ask::Empty),
        1 => (0..2u8, 0..3i64).prop_map(|(namespace, limit)| Ask::Events(namespace, limit)),
        1 => (0..3u8).prop_map(Ask::NoEdge),
        1 => (0..3u8, 0..3i64).prop_map(|(target, limit)| Ask::AtMost(target, limit)),
        2 => (0..3u8, any::<bool>()).prop_map(|(node, open)| Ask::Capacity(node, open)),
        1 => (0..3i64).prop_map(Ask::Lease),
        1 => any::<bool>().prop_map(Ask::Session),
        2 => (0..3u8, 1..3u8, 0..4u8).prop_map(|(first, count, owner)| Ask::Unclaimed(first, count, owner)),
    ]
}

type Batch = Vec<(Vec<Plan>, Vec<Ask>)>;

fn batch() -> impl Strategy<Value = Batch> {
    let ops = prop_oneof![
        4 => proptest::collection::vec(plan(), 1..2),
        1 => proptest::collection::vec(plan(), 2..5),
    ];
    let asks = prop_oneof![
        3 => Just(Vec::new()),
        2 => proptest::collection::vec(ask(), 1..3),
    ];
    proptest::collection::vec((ops, asks), 1..9)
}

/// The uids are a function of the key and how often it was replaced, so that both backends get the same.
fn uid_of(key: &Key, generation: u8) -> Uuid {
    let mut bytes = [0; 16];
    bytes[0] = key.kind.number() as u8;
    bytes[1] = key.namespace.bytes().last().unwrap_or(0);
    bytes[2] = key.name.bytes().last().unwrap_or(0);
    bytes[3] = generation;
    Uuid::from_bytes(bytes)
}

fn body(key: &Key, value: u8) -> Bytes {
    let mut object = Object::from_value(json!({"value": value})).expect("an object");
    if key.kind.is_sealed() {
        seal_of(KEY_ID, &value.to_string()).put(&mut object);
    }
    Bytes::from(object.into_value().to_string())
}

struct Run {
    heads: BTreeMap<Key, Arc<Entry>>,
    revision: i64,
    session: (i64, Uuid),
    audit: u128,
}

impl Run {
    fn draft(&self, key: &Key, look: &Look) -> Draft {
        let uid = match self.heads.get(key) {
            // The history of a name follows uids; of Applications it is compared.
            _ if key.kind == Kind::Application => uid_of(key, 0),
            Some(held) if !look.fresh_uid => held.uid,
            _ => uid_of(key, look.value),
        };
        let secret = |n: &u8| Edge {
            relation: Relation::Secret,
            target: Key::namespaced(Kind::Secret, "ns0", format!("o{n}")),
        };
        Draft {
            key: key.clone(),
            uid,
            generation: i64::from(look.value),
            deleting: look.deleting,
            body: body(key, look.value),
            managed: look.value.is_multiple_of(2).then(|| Bytes::from_static(b"[]")),
            index: Index { labels: vec![("value".into(), look.value.to_string())], fields: Vec::new() },
            columns: Columns {
                node: look.node.map(|node| format!("o{node}")),
                phase: Some("Running".into()),
                cpu: look.cpu,
                memory: i64::from(look.value % 3),
            },
            edges: look.refers.iter().map(secret).collect(),
        }
    }

    fn expected(&self, key: &Key, expect: Expect) -> i64 {
        let head = self.heads.get(key).map_or(1, |entry| entry.revision);
        match expect {
            Expect::Head => head,
            Expect::Ahead(by) => self.revision + by,
            Expect::Stale => head - 1,
        }
    }

    fn op(&self, plan: &Plan) -> Op {
        match plan {
            Plan::Create { key, look } => Op::Create(self.draft(key, look)),
            Plan::Update { key, look, expect, status } => Op::Update {
                draft: self.draft(key, look),
                expect: self.expected(key, *expect),
                class: if *status { Class::Status } else { Class::Core },
            },
            Plan::Delete { key, expect } => {
                Op::Delete { key: key.clone(), expect: self.expected(key, *expect) }
            }
            Plan::Claim { value, owner, shared } => Op::Claim {
                space: "ports".into(),
                value: value.to_string(),
                owner: self.owner(*owner),
                shared: *shared,
            },
            Plan::Release { owner } => Op::Release { space: "ports".into(), owner: self.owner(*owner) },
        }
    }

    /// Some claims belong to objects, so that deletions release them.
    fn owner(&self, number: u8) -> Uuid {
        self.heads.values().nth(usize::from(number)).map_or(Uuid::from_u128(u128::from(number)), |e| e.uid)
    }

    fn guard(&self, ask: &Ask) -> Guard {
        let secret = |n: u8| Key::namespaced(Kind::Secret, "ns0", format!("o{n}"));
        match ask {
            Ask::Exists(key) => Guard::Exists(key.clone()),
            Ask::Unchanged(key, right) => {
                let head = self.heads.get(key).map_or(0, |entry| entry.revision);
                Guard::Unchanged(key.clone(), if *right { head } else { head + 1 })
            }
            Ask::Empty(namespace) => Guard::NamespaceEmpty(format!("ns{namespace}")),
            Ask::Events(namespace, limit) => {
                Guard::EventsAtMost { namespace: format!("ns{namespace}"), limit: *limit }
            }
            Ask::NoEdge(target) => Guard::NoEdge { relation: Relation::Secret, target: secret(*target) },
            Ask::AtMost(target, limit) => {
                Guard::EdgesAtMost { relation: Relation::Secret, target: secret(*target), limit: *limit }
            }
            Ask::Capacity(node, open) => {
                Guard::Capacity { node: format!("o{node}"), zero_is_unbounded: *open }
            }
            Ask::Unclaimed(first, count, owner) => Guard::Unclaimed {
                space: "ports".into(),
                value: format!("{first}/{count}"),
                owner: self.owner(*owner),
            },
            Ask::Lease(epoch) => Guard::LeaseIs { name: "loop".into(), epoch: *epoch },
            Ask::Session(right) => Guard::SessionIs {
                node: "n".into(),
                epoch: self.session.0,
                session: if *right { self.session.1 } else { Uuid::nil() },
            },
        }
    }

    fn items(&mut self, batch: &Batch) -> Vec<Item> {
        let mut items = Vec::new();
        for (plans, asks) in batch {
            self.audit += 1;
            let item = Item {
                ops: plans.iter().map(|plan| self.op(plan)).collect(),
                guards: asks.iter().map(|ask| self.guard(ask)).collect(),
                who: Attribution {
                    user: "tester".into(),
                    verb: "test".into(),
                    audit_id: Uuid::from_u128(self.audit),
                    trace: self.audit.is_multiple_of(2).then(|| Trace {
                        id: self.audit.to_be_bytes(),
                        span: NonZeroU64::new(self.audit as u64).filter(|span| span.get().is_multiple_of(4)),
                    }),
                },
            };
            if item.check().is_ok() {
                items.push(item);
            }
        }
        items
    }
}

fn entry(entry: &Entry) -> String {
    format!(
        "{} {} rv={} core={} gen={} deleting={} {:?} {:?} {:?} {:?}",
        entry.key,
        entry.uid,
        entry.revision,
        entry.core_revision,
        entry.generation,
        entry.deleting,
        entry.body,
        entry.managed,
        entry.index,
        entry.columns
    )
}

fn logged(row: &LogRow) -> String {
    let change = &row.change;
    format!(
        "{:?} {} previous={} {:?} {:?} {:?} | {}",
        change.kind,
        change.revision,
        row.previous_revision,
        change.previous,
        change.previous_columns,
        row.who,
        entry(&change.entry)
    )
}

/// Everything that the backend can tell of its state, in words.
async fn state(backend: &dyn Backend) -> String {
    let mut told = Vec::new();
    let head = backend.head().await.expect("a head");
    told.push(format!("head {} oldest {}", head.revision, head.oldest));
    let loaded = backend.load(&KINDS).await.expect("loaded");
    told.push(format!("loaded at {} {:?}", loaded.head.revision, loaded.anchor));
    let mut entries: Vec<String> = loaded.entries.iter().map(|e| entry(e)).collect();
    entries.sort();
    told.extend(entries);
    let half = head.revision / 2;
    for after in [0, half] {
        let changes = backend.changes(after, 10_000).await.expect("changes");
        told.push(format!("after {after}: {:?} head {}", changes.anchor, changes.head.revision));
        told.extend(changes.rows.iter().map(logged));
    }
    for kind in KINDS {
        let undone = backend.undo(kind, head.revision, half).await.expect("undo").expect("it is in the log");
        let mut undone: Vec<String> =
            undone.iter().map(|(key, was)| format!("{key} was {:?}", was.as_deref().map(entry))).collect();
        undone.sort();
        told.extend(undone);
    }
    for row in backend.claims("ports").await.expect("claims") {
        told.push(format!("{row:?}"));
    }
    for name in 0..3 {
        let key = Key::namespaced(Kind::Application, "ns0", format!("o{name}"));
        for mut row in backend.history(HistoryOf::Key(key)).await.expect("history") {
            row.at = 0;
            told.push(format!("{row:?}"));
        }
    }
    told.join("\n")
}

fn answer(done: &Done) -> String {
    format!("{:?} after {:?}", done.items, done.anchor)
}

async fn compare(batches: Vec<Batch>) {
    let database = database().await;
    let postgres = connect(&database);
    let memory = MemoryDatabase::new().connect();
    let single = MemoryDatabase::new().connect();

    let holder = Uuid::new_v4();
    let ttl = std::time::Duration::from_secs(600);
    for backend in [&*postgres as &dyn Backend, &*memory, &*single] {
        backend.acquire_lease("loop", holder, ttl).await.expect("an answer").expect("a lease");
    }
    // The first one of a lease is any; guards are told of this one.
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for table in ["lease_epochs", "leases"] {
        let first = format!("update horchestra.{table} set epoch = 1");
        sqlx::query(AssertSqlSafe(first)).execute(&mut connection).await.expect("set");
    }
    connection.close().await.expect("closed");
    let mut run = Run { heads: BTreeMap::new(), revision: 0, session: (1, Uuid::nil()), audit: 0 };
    for batch in batches {
        let items = run.items(&batch);
        let real = postgres.commit(&items, Uuid::new_v4()).await.expect("committed");
        let model = memory.commit(&items, Uuid::new_v4()).await.expect("committed");
        assert_eq!(answer(&real), answer(&model), "{items:#?}");
        for (number, item) in items.iter().enumerate() {
            let alone = single.commit(std::slice::from_ref(item), Uuid::new_v4()).await.expect("committed");
            assert_eq!(real.items[number], alone.items[0], "item {number} of {items:#?}");
        }
        let (told, expected) = (state(&*postgres).await, state(&*memory).await);
        assert_eq!(told, expected, "after {items:#?}");
        let loaded = memory.load(&KINDS).await.expect("loaded");
        run.revision = loaded.head.revision;
        run.heads = loaded.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
    }
    postgres.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_batch_does_what_its_items_do_one_by_one_on_either_backend(
        batches in proptest::collection::vec(batch(), 1..20),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(compare(batches));
    }
}
