//! The log itself, and what can be had of the past.

use std::collections::BTreeMap;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_store::{ChangeKind, HistoryOf};
use uuid::Uuid;

use crate::fixture::*;

pub async fn the_log_is_read_in_stretches_with_anchors(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    let base = store.snapshot().revision();
    for n in 0..7 {
        put(&store, create(&app(&n.to_string()), "1")).await;
    }
    let all = within(backend.changes(base, 100)).await.expect("read");
    assert_eq!(all.head.revision, base + 7);
    let revisions: Vec<i64> = all.rows.iter().map(|row| row.change.revision - base).collect();
    assert_eq!(revisions, [1, 2, 3, 4, 5, 6, 7]);
    let row = &all.rows[0];
    assert_eq!((row.previous_revision, row.who.user.as_str(), row.who.verb.as_str()), (0, "tester", "test"));
    assert_eq!(row.who.trace, Some(TRACE));
    assert!(row.at > 0);

    let mut after = base;
    let mut seen = Vec::new();
    let mut last = None;
    loop {
        let read = within(backend.changes(after, 3)).await.expect("read");
        assert_eq!(read.anchor, last, "the row before, as it was read before");
        assert!(read.rows.len() <= 3);
        let Some(row) = read.rows.last() else { break };
        last = Some(row.fingerprint());
        after = row.change.revision;
        seen.extend(read.rows.iter().map(|row| row.change.revision - base));
    }
    assert_eq!(seen, revisions);
    let beyond = within(backend.changes(base + 100, 3)).await.expect("read");
    assert!(beyond.rows.is_empty() && beyond.anchor.is_none());
}

pub async fn a_load_is_of_one_moment(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    // Two objects that always say the same: each item updates both.
    let (left, right) = (app("left"), app("right"));
    let both = item(vec![create(&left, "0"), create(&right, "0")]);
    within(store.commit(both)).await.expect("committed");
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 1..200 {
                let (a, b) = (found(&store, &app("left")).await, found(&store, &app("right")).await);
                let value = n.to_string();
                let both = item(vec![update(&a, &value), update(&b, &value)]);
                within(store.commit(both)).await.expect("committed");
            }
        })
    };
    let mut loads = 0;
    while !writer.is_finished() || loads == 0 {
        let loaded = within(backend.load(&[Kind::Application, Kind::Node])).await.expect("loaded");
        let values: Vec<&str> = loaded.entries.iter().map(|entry| value(entry)).collect();
        assert_eq!(values.len(), 2);
        assert_eq!(values[0], values[1]);
        let newest = loaded.entries.iter().map(|entry| entry.revision).max();
        assert_eq!(newest, Some(loaded.head.revision));
        assert!(loaded.anchor.is_some());
        loads += 1;
    }
    writer.await.expect("the writer");
    assert!(within(backend.load(&[Kind::Node])).await.expect("loaded").entries.is_empty());
}

pub async fn undo_rebuilds_every_state(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    let base = store.snapshot().revision();
    let a = created(&store, &app("a"), "a1").await;
    let b = created(&store, &app("b"), "b1").await;
    put(&store, update(&a, "a2")).await;
    put(&store, create(&secret("c"), "c1")).await;
    put(&store, delete(&b)).await;
    put(&store, create(&app("b"), "b2")).await;
    put(&store, update_status(&*found(&store, &app("a")).await, "a3")).await;
    let now = within(store.fresh()).await.expect("fresh").revision();
    assert_eq!(now, base + 7);
    let states: [&[(&str, &str)]; 8] = [
        &[],
        &[("a", "a1")],
        &[("a", "a1"), ("b", "b1")],
        &[("a", "a2"), ("b", "b1")],
        &[("a", "a2"), ("b", "b1")],
        &[("a", "a2")],
        &[("a", "a2"), ("b", "b2")],
        &[("a", "a3"), ("b", "b2")],
    ];
    for from in 0..states.len() {
        for to in 0..=from {
            let offset = |n: usize| base + i64::try_from(n).expect("small");
            let undone = within(backend.undo(Kind::Application, offset(from), offset(to))).await;
            let mut state: BTreeMap<String, String> =
                states[from].iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            for (key, before) in undone.expect("answered").expect("within the log") {
                match before {
                    Some(entry) => {
                        assert!(entry.revision <= offset(to) && entry.core_revision <= entry.revision);
                        state.insert(key.name, value(&entry).to_owned())
                    }
                    None => state.remove(&key.name),
                };
            }
            let expected: BTreeMap<String, String> =
                states[to].iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            assert_eq!(state, expected, "from {from} to {to}");
        }
    }
}

pub async fn history_keeps_core_revisions_and_tombstones(world: &World) {
    let store = world.store().await;
    let first = created(&store, &app("web"), "1").await;
    put(&store, update_status(&first, "status")).await;
    put(&store, update(&*found(&store, &app("web")).await, "2")).await;
    let second = found(&store, &app("web")).await;
    let gone = put(&store, delete(&second)).await;
    let third = created(&store, &app("web"), "3").await;
    let event = created(&store, &Key::namespaced(Kind::Event, "shop", "e"), "1").await;

    let of = async |of| {
        let rows = within(store.history(of)).await.expect("history");
        rows.into_iter().map(|row| (row.revision, row.deleted)).collect::<Vec<_>>()
    };
    let old = [(gone, true), (second.revision, false), (first.revision, false)];
    assert_eq!(of(HistoryOf::Uid(first.uid)).await, old);
    let all = [(third.revision, false), old[0], old[1], old[2]];
    assert_eq!(of(HistoryOf::Key(app("web"))).await, all);
    assert_eq!(of(HistoryOf::Uid(event.uid)).await, [], "events have none");
    assert_eq!(of(HistoryOf::Uid(Uuid::new_v4())).await, []);

    let rows = within(store.history(HistoryOf::Uid(first.uid))).await.expect("history");
    assert_eq!(rows[0].body, second.body, "a tombstone keeps the last state");
    assert_eq!((rows[0].who.user.as_str(), rows[0].key.clone()), ("tester", app("web")));
}

pub async fn settings_are_written_by_whoever_saw_the_last_version(world: &World) {
    let store = world.store().await;
    assert_eq!(within(store.settings()).await.expect("read"), None);
    let (one, two) = (Bytes::from_static(br#"{"a":1}"#), Bytes::from_static(br#"{"a":2}"#));
    assert!(within(store.write_settings(one.clone(), 0)).await.expect("written"));
    assert!(!within(store.write_settings(two.clone(), 0)).await.expect("refused"));
    let read = within(store.settings()).await.expect("read").expect("some");
    assert_eq!((read.version, read.body), (1, one));
    assert!(within(store.write_settings(two.clone(), 1)).await.expect("written"));
    let read = within(store.settings()).await.expect("read").expect("some");
    assert_eq!((read.version, read.body), (2, two));
}

pub async fn a_new_epoch_moves_revisions_on(world: &World) {
    let backend = world.backend().await;
    let batch = [item(vec![create(&app("a"), "1")])];
    within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");
    let before = within(backend.head()).await.expect("head");
    let known = before.revision + 100;
    let after = within(backend.begin_epoch(&before.identity, known)).await.expect("begun");
    assert_ne!(after.identity, before.identity);
    assert!(after.revision > known);
    assert_eq!(after.oldest, after.revision, "the log begins anew");
    let again = within(backend.begin_epoch(&before.identity, known)).await.expect("answered");
    assert_eq!(again, after, "once is enough");

    let batch = [item(vec![create(&app("b"), "1")])];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("committed");
    assert_eq!(done.items[0].as_ref().expect("committed").revisions, [after.revision + 1]);
    let read = within(backend.changes(after.revision, 10)).await.expect("read");
    assert_eq!(read.rows.len(), 1);
    assert_eq!(read.rows[0].change.kind, ChangeKind::Added);
    let loaded = within(backend.load(&[Kind::Application])).await.expect("loaded");
    assert_eq!(loaded.entries.len(), 2, "objects stay");
    let undone = within(backend.undo(Kind::Application, after.revision + 1, before.revision)).await;
    assert!(undone.expect("answered").is_none(), "the log before is gone");
}
