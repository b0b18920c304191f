//! Watching.

use std::collections::BTreeMap;
use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_store::{Change, ChangeKind, Entry, Snapshot, Store, StoreOptions, WatchEnd};

use crate::fixture::*;

type State = BTreeMap<String, (i64, String)>;

fn state(snapshot: &Snapshot) -> State {
    let row = |entry: &Arc<Entry>| (entry.key.name.clone(), (entry.revision, value(entry).to_owned()));
    snapshot.list(Kind::Application, None).map(row).collect()
}

fn advance(state: &mut State, changes: &[Change]) {
    for change in changes {
        let name = change.key().name.clone();
        let before = match change.kind {
            ChangeKind::Deleted => state.remove(&name),
            ChangeKind::Added | ChangeKind::Modified => {
                state.insert(name, (change.revision, value(&change.entry).to_owned()))
            }
        };
        let previous = change.previous.as_ref().and_then(|index| index.label("value")).map(str::to_owned);
        assert_eq!(before.map(|(_, value)| value), previous, "at {}", change.revision);
        assert_eq!(change.previous.is_none(), change.kind == ChangeKind::Added);
    }
}

/// Creates, updates and deletes a few objects over and over.
async fn churn(store: &Store, rounds: usize) {
    for n in 0..rounds {
        let key = app(&(n * 7 % 5).to_string());
        let op = match within(store.fresh()).await.expect("fresh").get(&key) {
            None => create(&key, &n.to_string()),
            Some(found) if n % 3 == 2 => delete(&found),
            Some(found) => update(&found, &n.to_string()),
        };
        put(store, op).await;
    }
}

pub async fn a_list_and_the_changes_after_it_make_the_state(world: &World) {
    let (writer, reader) = (world.store().await, world.store().await);
    let writing = {
        let writer = writer.clone();
        tokio::spawn(async move { churn(&writer, 300).await })
    };
    let mut watches = Vec::new();
    while !writing.is_finished() {
        let list = within(reader.fresh()).await.expect("fresh");
        let watcher = reader.watch(Kind::Application, list.revision()).expect("a watch");
        if watches.len() < 100 {
            watches.push((state(&list), watcher));
        }
        tokio::task::yield_now().await;
    }
    within(writing).await.expect("joined");
    let end = put(&writer, create(&app("end"), "end")).await;
    let expected = state(&within(reader.fresh()).await.expect("fresh"));
    for (mut state, mut watcher) in watches {
        let changes = changes_up_to(&mut watcher, end).await;
        advance(&mut state, &changes);
        assert_eq!(state, expected);
        assert_eq!(watcher.progress(), end);
    }
}

pub async fn watches_opened_anywhere_see_the_same_order(world: &World) {
    let (writer, reader) = (world.store().await, world.store().await);
    let base = reader.snapshot().revision();
    let mut first = reader.watch(Kind::Application, base).expect("a watch");
    churn(&writer, 60).await;
    let end = put(&writer, create(&app("end"), "end")).await;
    let all: Vec<_> = changes_up_to(&mut first, end).await.iter().map(brief).collect();
    let revisions: Vec<i64> = all.iter().map(|(_, _, revision, _)| *revision).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b));
    for (n, (_, _, from, _)) in all.iter().enumerate().filter(|(_, change)| change.2 < end) {
        for store in [&writer, &reader] {
            let mut watcher = store.watch(Kind::Application, *from).expect("a watch");
            let rest: Vec<_> = changes_up_to(&mut watcher, end).await.iter().map(brief).collect();
            assert_eq!(rest, all[n + 1..], "from {from}");
        }
    }
}

pub async fn a_watch_that_started_before_the_ring_reads_the_log(world: &World) {
    let small = StoreOptions { ring_events: 4, prefill: 2, ..StoreOptions::default() };
    let (writer, reader) = (world.store().await, world.store_with(small.clone()).await);
    let base = writer.snapshot().revision();
    churn(&writer, 50).await;
    put(&writer, create(&secret("other"), "1")).await;
    let end = put(&writer, create(&app("end"), "end")).await;
    let mut full = writer.watch(Kind::Application, base).expect("a watch");
    let all: Vec<_> = changes_up_to(&mut full, end).await.iter().map(brief).collect();
    assert_eq!(all.len(), 51);
    for reader in [reader, world.store_with(small).await] {
        within(reader.not_older_than(end)).await.expect("caught up");
        let mut watcher = reader.watch(Kind::Application, base).expect("a watch");
        let seen: Vec<_> = changes_up_to(&mut watcher, end).await.iter().map(brief).collect();
        assert_eq!(seen[..all.len()], all);
        let next = put(&writer, create(&app(&format!("next-{}", uuid::Uuid::new_v4())), "1")).await;
        let live = changes_up_to(&mut watcher, next).await;
        assert_eq!(live.last().map(|change| change.revision), Some(next), "and goes on live");
    }
}

pub async fn a_watch_from_the_future_ends(world: &World) {
    let (writer, reader) = (world.store().await, world.store().await);
    let made = created(&writer, &app("web"), "1").await;
    // Just ahead of this process is no future.
    let mut soon = reader.watch(Kind::Application, made.revision + 1).expect("a watch");
    put(&writer, update(&made, "2")).await;
    let next = put(&writer, create(&app("next"), "1")).await;
    let seen = changes_up_to(&mut soon, next).await;
    assert_eq!(seen.iter().map(|change| change.revision).collect::<Vec<_>>(), [next]);

    let mut never = reader.watch(Kind::Application, next + 1000).expect("a watch");
    let end = within(never.next()).await.expect_err("not silence");
    assert!(matches!(end, WatchEnd::Expired { asked, .. } if asked == next + 1000), "{end:?}");
}

pub async fn progress_moves_on_with_other_kinds(world: &World) {
    let (writer, reader) = (world.store().await, world.store().await);
    let made = created(&writer, &app("web"), "1").await;
    let mut watcher = reader.watch(Kind::Application, made.revision - 1).expect("a watch");
    assert_eq!(watcher.progress(), made.revision - 1, "nothing was delivered yet");
    changes_up_to(&mut watcher, made.revision).await;
    let other = put(&writer, create(&secret("s"), "1")).await;
    within(reader.not_older_than(other)).await.expect("caught up");
    within(async {
        while watcher.progress() < other {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(watcher.progress(), other);
    let next = put(&writer, update(&made, "2")).await;
    within(reader.not_older_than(next)).await.expect("caught up");
    assert!(watcher.progress() <= other, "not beyond what was delivered");
    changes_up_to(&mut watcher, next).await;
    within(async {
        while watcher.progress() < next {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub async fn a_restarted_process_serves_watches_from_before(world: &World) {
    let writer = world.store().await;
    let base = writer.snapshot().revision();
    churn(&writer, 40).await;
    let middle = writer.snapshot().revision();
    let reader = world.store().await;
    churn(&writer, 20).await;
    let end = put(&writer, create(&app("end"), "end")).await;
    for from in [base, base + 1, middle - 1, middle, middle + 1] {
        let mut one = writer.watch(Kind::Application, from).expect("a watch");
        let mut other = reader.watch(Kind::Application, from).expect("a watch");
        let seen: Vec<_> = changes_up_to(&mut other, end).await.iter().map(brief).collect();
        let expected: Vec<_> = changes_up_to(&mut one, end).await.iter().map(brief).collect();
        assert_eq!(seen, expected, "from {from}");
    }
    assert_eq!(reader.metrics().watchers_expired.get(), 0);
}
