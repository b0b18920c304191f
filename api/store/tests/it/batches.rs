//! What may share a batch: items of which none looks at what another writes. So each has to fare in its
//! batch as it would have fared alone, on the state before the batch.

use horchestra_core::kind::{Key, Kind};
use horchestra_store::batch::Batch;
use horchestra_store::memory::Backup;
use horchestra_store::{
    Backend, Class, Committed, Edge, Entry, Guard, Item, MemoryDatabase, Op, Refusal, Relation,
};
use proptest::prelude::*;
use std::sync::Arc;
use uuid::Uuid;

use crate::fixture::*;

#[derive(Clone, Debug)]
struct Planned {
    key: Key,
    /// What to do if the object is there; a create otherwise.
    delete: bool,
    /// Expect the head, or something that it is not.
    right: bool,
    refers_to: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Asked {
    Exists(Key),
    Head(Key, bool),
    Empty(u8),
    Events(u8, i64),
    Unreferred(u8, i64),
}

fn key() -> impl Strategy<Value = Key> {
    let name = |n: u8| format!("o{n}");
    prop_oneof![
        2 => (0..2u8).prop_map(|n| Key::cluster(Kind::Namespace, format!("ns{n}"))),
        4 => (0..2u8, 0..4u8).prop_map(move |(ns, n)| {
            Key::namespaced(Kind::Application, format!("ns{ns}"), name(n))
        }),
        2 => (0..3u8).prop_map(target),
        1 => (0..2u8, 0..2u8).prop_map(move |(ns, n)| {
            Key::namespaced(Kind::Event, format!("ns{ns}"), name(n))
        }),
    ]
}

fn target(n: u8) -> Key {
    Key::namespaced(Kind::Secret, "ns0", format!("o{n}"))
}

fn planned() -> impl Strategy<Value = Planned> {
    (key(), any::<bool>(), prop::bool::weighted(0.8), proptest::collection::vec(0..3u8, 0..2))
        .prop_map(|(key, delete, right, refers_to)| Planned { key, delete, right, refers_to })
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        key().prop_map(Asked::Exists),
        (key(), any::<bool>()).prop_map(|(key, right)| Asked::Head(key, right)),
        (0..2u8).prop_map(Asked::Empty),
        (0..2u8, 0..3i64).prop_map(|(namespace, limit)| Asked::Events(namespace, limit)),
        (0..3u8, 0..2i64).prop_map(|(secret, limit)| Asked::Unreferred(secret, limit)),
    ]
}

type Plan = (Vec<Planned>, Vec<Asked>);

fn plan() -> impl Strategy<Value = Plan> {
    (proptest::collection::vec(planned(), 1..3), proptest::collection::vec(asked(), 0..3))
}

fn guard(asked: &Asked, heads: &[Arc<Entry>]) -> Guard {
    match asked {
        Asked::Exists(key) => Guard::Exists(key.clone()),
        Asked::Head(key, right) => {
            let head = heads.iter().find(|entry| entry.key == *key).map_or(0, |entry| entry.revision);
            Guard::Unchanged(key.clone(), if *right { head } else { 999 })
        }
        Asked::Empty(namespace) => Guard::NamespaceEmpty(format!("ns{namespace}")),
        Asked::Events(namespace, limit) => {
            Guard::EventsAtMost { namespace: format!("ns{namespace}"), limit: *limit }
        }
        Asked::Unreferred(secret, 0) => Guard::NoEdge { relation: Relation::Secret, target: target(*secret) },
        Asked::Unreferred(secret, limit) => {
            Guard::EdgesAtMost { relation: Relation::Secret, target: target(*secret), limit: *limit }
        }
    }
}

fn op(planned: &Planned, heads: &[Arc<Entry>]) -> Op {
    let head = heads.iter().find(|entry| entry.key == planned.key);
    let edges = planned.refers_to.iter();
    let edges = edges.map(|n| Edge { relation: Relation::Secret, target: target(*n) }).collect();
    let draft = |uid| referring(draft(&planned.key, uid, "1"), edges);
    match head {
        None => Op::Create(draft(Uuid::new_v4())),
        Some(head) => {
            let expect = if planned.right { head.revision } else { 999 };
            match planned.delete {
                true => Op::Delete { key: planned.key.clone(), expect },
                false => Op::Update { draft: draft(head.uid), expect, class: Class::Core },
            }
        }
    }
}

async fn commit(state: &Backup, items: &[Item]) -> Vec<Result<Committed, Refusal>> {
    let database = MemoryDatabase::new();
    database.restore(state);
    database.connect().commit(items, Uuid::new_v4()).await.expect("answered").items
}

async fn each_fares_as_alone(before: Vec<Planned>, plans: Vec<Plan>) {
    let database = MemoryDatabase::new();
    let backend = database.connect();
    for planned in before {
        let items = [item(vec![op(&Planned { delete: false, ..planned }, &[])])];
        backend.commit(&items, Uuid::new_v4()).await.expect("answered");
    }
    let heads = backend.load(&Kind::ALL).await.expect("loaded").entries;
    let state = database.backup();
    let items: Vec<Item> = plans
        .iter()
        .map(|(ops, guards)| {
            let ops = ops.iter().map(|planned| op(planned, &heads)).collect();
            guarded(ops, guards.iter().map(|asked| guard(asked, &heads)).collect())
        })
        .filter(|item| item.check().is_ok())
        .collect();
    let mut batch = Batch::default();
    let fits = items.iter().take_while(|item| batch.admit(item)).count();
    let together = commit(&state, &items[..fits]).await;
    for (item, in_batch) in items.iter().zip(together) {
        let alone = commit(&state, std::slice::from_ref(item)).await.remove(0);
        match (&alone, &in_batch) {
            (Ok(_), Ok(_)) => {}
            (Err(alone), Err(in_batch)) => assert_eq!(alone, in_batch),
            _ => panic!("alone {alone:?}, in its batch {in_batch:?}: {item:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_item_fares_in_its_batch_as_it_would_alone(
        before in proptest::collection::vec(planned(), 0..8),
        plans in proptest::collection::vec(plan(), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(each_fares_as_alone(before, plans));
    }
}
