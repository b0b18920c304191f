//! Sealed bodies: never stored in the clear, replaced in place.

use std::collections::BTreeMap;

use bytes::Bytes;
use horchestra_core::kind::Kind;
use horchestra_core::object;
use horchestra_core::sealed::Seal;
use horchestra_store::sealing::{KeyUse, Place, Resealed, SealedBody};
use horchestra_store::{Backend, BackendError, Class, CommitError, HistoryOf, Op, Store};
use serde_json::json;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fixture::*;

/// The same with another key.
fn with_key(old: &SealedBody, key: &str) -> Resealed {
    let mut object = object::decode(&old.body, 0).expect("JSON");
    let seal = Seal::take(&mut object).expect("sealed");
    let contents = String::from_utf8(seal.payload).expect("text");
    let contents = contents.split_once(':').expect("as the fixture makes it").1;
    seal_of(key, contents).put(&mut object);
    Resealed { old: old.clone(), body: object::encode(old.key.kind, &object) }
}

fn key_of(body: &[u8]) -> String {
    Seal::of(body).expect("sealed").key
}

async fn heads(backend: &dyn Backend) -> Vec<SealedBody> {
    within(backend.sealed_heads(Kind::Secret, ("", ""), 100)).await.expect("listed")
}

async fn log(backend: &dyn Backend) -> Vec<SealedBody> {
    within(backend.sealed_log(Kind::Secret, 0, 1000)).await.expect("listed").bodies
}

async fn key_use(store: &Store) -> Vec<(String, u64)> {
    let used = within(store.key_use()).await.expect("counted");
    used.into_iter().map(|KeyUse { key_id, objects }| (key_id, objects)).collect()
}

pub async fn what_is_not_sealed_is_not_stored(world: &World) {
    let store = world.store().await;
    let backend = world.backend().await;
    let good = created(&store, &secret("good"), "1").await;
    let odd = [
        json!({"metadata": {"name": "s"}, "data": {"password": "aHVudGVyMg=="}}),
        json!({"metadata": {"name": "s"}, "sealed": {"key": "", "digest": "", "payload": ""}}),
        json!({"metadata": {"name": "s"}, "sealed": {"key": "k1", "payload": ""}}),
        json!({"metadata": {"name": "s"}, "sealed": "k1"}),
    ];
    for body in odd.iter().map(|body| Bytes::from(body.to_string())).chain([Bytes::from_static(b"hunter2")]) {
        let mut made = draft(&secret("s"), Uuid::new_v4(), "1");
        made.body = body.clone();
        let mut changed = draft(&secret("good"), good.uid, "1");
        changed.body = body;
        let update = Op::Update { draft: changed, expect: good.revision, class: Class::Core };
        for op in [Op::Create(made), update] {
            let by_committer = within(store.commit(item(vec![op.clone()]))).await;
            let Err(CommitError::Rejected(why)) = by_committer else { panic!("{by_committer:?}") };
            let by_backend = within(backend.commit(&[item(vec![op])], Uuid::new_v4())).await;
            let Err(BackendError::Rejected(reason)) = by_backend else { panic!("{by_backend:?}") };
            for text in [why, reason] {
                assert!(
                    text.contains("sealed") && !text.contains("hunter2") && !text.contains("aHVu"),
                    "{text}"
                );
            }
        }
    }
    let batch = [item(vec![create(&secret("a"), "1")]), item(vec![create(&app("b"), "1")])];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");
    assert!(done.items.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(found(&store, &secret("good")).await.revision, good.revision);
}

pub async fn the_past_of_sealed_objects_has_no_bodies(world: &World) {
    let store = world.store().await;
    let first = created(&store, &secret("db"), "1").await;
    put(&store, update(&first, "2")).await;
    put(&store, delete(&*found(&store, &secret("db")).await)).await;
    // Many at once take another way than one alone.
    let backend = world.backend().await;
    let batch: Vec<_> = (0..3).map(|n| item(vec![create(&secret(&format!("many-{n}")), "1")])).collect();
    within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");
    let many: Vec<_> = heads(&*backend).await;
    let batch: Vec<_> = many
        .iter()
        .map(|head| {
            let draft = draft(&head.key, head.uid, "2");
            item(vec![Op::Update { draft, expect: head.revision, class: Class::Core }])
        })
        .collect();
    within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");
    let batch: Vec<_> = heads(&*backend)
        .await
        .into_iter()
        .map(|head| item(vec![Op::Delete { key: head.key, expect: head.revision }]))
        .collect();
    within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");

    for uid in many.iter().map(|head| head.uid).chain([first.uid]) {
        let rows = within(store.history(HistoryOf::Uid(uid))).await.expect("history");
        assert_eq!(rows.iter().map(|row| row.deleted).collect::<Vec<_>>(), [true, false, false]);
        assert!(rows.iter().all(|row| row.body.is_empty() && row.who.user == "tester"), "{rows:?}");
    }
    assert_eq!(key_use(&store).await, [], "nothing is left to open");
}

pub async fn bodies_are_sealed_anew_without_a_revision(world: &World) {
    let store = world.store().await;
    let backend = world.backend().await;
    let first = created(&store, &secret("a"), "1").await;
    put(&store, update(&first, "2")).await;
    let before = found(&store, &secret("a")).await;
    created(&store, &secret("b"), "1").await;
    created(&store, &app("web"), "1").await;
    assert_eq!(key_use(&store).await, [("k1".to_owned(), 2)]);
    let head = within(backend.head()).await.expect("the head");

    let all: Vec<_> = heads(&*backend).await.into_iter().chain(log(&*backend).await).collect();
    assert!(all.iter().filter(|body| body.place == Place::Head).count() == 2);
    assert!(all.iter().filter(|body| body.place == Place::Log).count() == 3);
    let anew: Vec<_> = all.iter().map(|body| with_key(body, "k2")).collect();
    assert_eq!(within(backend.reseal(&anew)).await.expect("replaced"), all.len());
    assert_eq!(within(backend.reseal(&anew)).await.expect("asked"), 0, "once");

    assert_eq!(within(backend.head()).await.expect("the head"), head, "no change was made");
    assert_eq!(key_use(&store).await, [("k2".to_owned(), 2)]);
    let after: Vec<_> = heads(&*backend).await.into_iter().chain(log(&*backend).await).collect();
    assert!(after.iter().all(|body| key_of(&body.body) == "k2"), "{after:?}");
    let loaded = within(backend.load(&[Kind::Secret])).await.expect("loaded");
    for entry in &loaded.entries {
        let seal = Seal::of(&entry.body).expect("sealed");
        let said = if entry.key.name == "a" { "2" } else { "1" };
        assert_eq!((value(entry), seal.payload), (said, format!("k2:{said}").into_bytes()));
    }
    let undone = within(backend.undo(Kind::Secret, head.revision, first.revision)).await.expect("rebuilt");
    for entry in undone.expect("in the log").into_iter().filter_map(|(_, entry)| entry) {
        assert_eq!((value(&entry), key_of(&entry.body).as_str()), ("1", "k2"));
    }
    // Who has the old bytes in a cache writes on.
    put(&store, update(&before, "3")).await;
    assert_eq!(key_use(&store).await, [("k1".to_owned(), 1), ("k2".to_owned(), 1)]);
}

pub async fn a_body_that_changed_meanwhile_is_left_alone(world: &World) {
    let store = world.store().await;
    let backend = world.backend().await;
    let first = created(&store, &secret("a"), "1").await;
    created(&store, &secret("b"), "1").await;
    let anew: Vec<_> = heads(&*backend).await.iter().map(|body| with_key(body, "k2")).collect();
    put(&store, update(&first, "2")).await;
    assert_eq!(within(backend.reseal(&anew)).await.expect("asked"), 1, "only the other one");
    let now = heads(&*backend).await;
    assert_eq!(now.iter().map(|head| key_of(&head.body)).collect::<Vec<_>>(), ["k1", "k2"]);
    put(&store, delete(&*found(&store, &secret("a")).await)).await;
    assert_eq!(within(backend.reseal(&anew[..1])).await.expect("asked"), 0, "gone");
    assert_eq!(key_use(&store).await, [("k2".to_owned(), 1)]);
}

pub async fn nothing_but_the_seal_can_be_replaced(world: &World) {
    let store = world.store().await;
    let backend = world.backend().await;
    created(&store, &secret("a"), "1").await;
    let old = heads(&*backend).await.remove(0);
    let mut relabelled = object::decode(&old.body, 0).expect("JSON");
    relabelled.set_metadata("labels", json!({"value": "2"}));
    let mut open = relabelled.clone();
    Seal::take(&mut open).expect("sealed");
    for object in [relabelled, open] {
        let resealed = Resealed { old: old.clone(), body: object::encode(Kind::Secret, &object) };
        let answer = within(backend.reseal(&[resealed])).await;
        assert!(matches!(answer, Err(BackendError::Rejected(_))), "{answer:?}");
    }
    assert_eq!(heads(&*backend).await, [old]);
}

pub async fn sealed_bodies_are_listed_in_stretches(world: &World) {
    let store = world.store().await;
    let backend = world.backend().await;
    for name in ["c", "a", "b"] {
        created(&store, &secret(name), "1").await;
        created(&store, &app(name), "1").await;
    }
    let (mut after, mut names) = ((String::new(), String::new()), Vec::new());
    loop {
        let page = backend.sealed_heads(Kind::Secret, (&after.0, &after.1), 2);
        let page = within(page).await.expect("listed");
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 2);
        after = (last.key.namespace.clone(), last.key.name.clone());
        names.extend(page.into_iter().map(|head| head.key.name));
    }
    assert_eq!(names, ["a", "b", "c"]);

    let head = within(backend.head()).await.expect("the head").revision;
    let (mut after, mut names) = (0, Vec::new());
    while after < head {
        let stretch = within(backend.sealed_log(Kind::Secret, after, 1)).await.expect("listed");
        assert!(stretch.upto > after, "it moves on");
        after = stretch.upto;
        names.extend(stretch.bodies.into_iter().map(|body| body.key.name));
    }
    assert_eq!((names, after), (vec!["c".to_owned(), "a".into(), "b".into()], head));
}

pub async fn writers_lose_nothing_while_bodies_are_sealed_anew(world: &World) {
    const WRITES: usize = 25;
    let names = ["a", "b", "c"];
    let mut writers = JoinSet::new();
    for name in names {
        let store = world.store().await;
        created(&store, &secret(name), "0").await;
        writers.spawn(async move {
            for n in 1..=WRITES {
                let head = found(&store, &secret(name)).await;
                put(&store, update(&head, &n.to_string())).await;
            }
        });
    }
    let backend = world.backend().await;
    let mut round = 0;
    loop {
        let last = writers.is_empty();
        round += 1;
        let bodies: Vec<_> = heads(&*backend).await.into_iter().chain(log(&*backend).await).collect();
        let key = format!("r{round}");
        let anew: Vec<_> = bodies.iter().map(|body| with_key(body, &key)).collect();
        within(backend.reseal(&anew)).await.expect("replaced");
        while let Some(ended) = writers.try_join_next() {
            ended.expect("every write was committed");
        }
        if last {
            break;
        }
    }
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let changes = within(backend.changes(0, 1000)).await.expect("the log");
    for row in &changes.rows {
        let entry = &row.change.entry;
        let seal = Seal::of(&entry.body).expect("sealed");
        assert_eq!(
            seal.payload,
            format!("r{round}:{}", value(entry)).into_bytes(),
            "the last round was alone"
        );
        seen.entry(entry.key.name.clone()).or_default().push(value(entry).to_owned());
    }
    let all: Vec<String> = (0..=WRITES).map(|n| n.to_string()).collect();
    for name in names {
        assert_eq!(seen[name], all, "{name}");
    }
    let store = world.store().await;
    assert_eq!(key_use(&store).await, [(format!("r{round}"), 3)]);
    for name in names {
        assert_eq!(value(&*found(&store, &secret(name)).await), WRITES.to_string());
    }
}
