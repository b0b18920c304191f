//! Reading: lists, freshness, old states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use horchestra_core::kind::{Key, Kind};
use horchestra_store::{Entry, ReadError, Snapshot, Store, StoreOptions};

use crate::fixture::*;

fn names(list: Box<dyn Iterator<Item = &Arc<Entry>> + Send + '_>) -> Vec<String> {
    list.map(|entry| format!("{}/{}", entry.key.namespace, entry.key.name)).collect()
}

pub async fn lists_are_ordered_and_start_where_asked(world: &World) {
    let store = world.store().await;
    let places = [("b", "x"), ("a", "z"), ("a-b", "a"), ("a", "b"), ("a", "b-1"), ("a", "b.1"), ("c", "a")];
    for (namespace, name) in places {
        put(&store, create(&Key::namespaced(Kind::Application, namespace, name), "1")).await;
    }
    put(&store, create(&Key::namespaced(Kind::Secret, "a", "b"), "1")).await;
    let snapshot = within(store.fresh()).await.expect("fresh");
    let all = ["a/b", "a/b-1", "a/b.1", "a/z", "a-b/a", "b/x", "c/a"];
    assert_eq!(names(snapshot.list(Kind::Application, None)), all);
    assert_eq!(names(snapshot.list(Kind::Application, Some("a"))), all[..4]);
    assert_eq!(names(snapshot.list(Kind::Application, Some("nowhere"))), [""; 0]);
    assert_eq!(names(snapshot.list_after(Kind::Application, None, ("a", "b.1"))), all[3..]);
    assert_eq!(names(snapshot.list_after(Kind::Application, None, ("a", "zz"))), all[4..]);
    assert_eq!(names(snapshot.list_after(Kind::Application, Some("a"), ("a", "b"))), all[1..4]);
    assert_eq!(names(snapshot.list_after(Kind::Application, Some("a"), ("a", "z"))), [""; 0]);
    assert_eq!(names(snapshot.list_after(Kind::Application, Some("b"), ("a", "z"))), ["b/x"]);
    assert_eq!(names(snapshot.list_after(Kind::Application, Some("a"), ("b", "x"))), [""; 0]);
    assert_eq!(snapshot.count(Kind::Application, None), 7);
    assert_eq!(snapshot.count(Kind::Application, Some("a")), 4);
    assert_eq!(snapshot.count(Kind::Node, None), 0);
}

pub async fn a_fresh_read_sees_what_any_process_was_told(world: &World) {
    let stores = [world.store().await, world.store().await];
    let key = app("web");
    let mut entry = created(&stores[0], &key, "0").await;
    for n in 1..2000usize {
        let (writer, reader) = (&stores[n % 2], &stores[(n + 1) % 2]);
        let revision = put(writer, update(&entry, &n.to_string())).await;
        entry = found(reader, &key).await;
        assert!(entry.revision == revision && value(&entry) == n.to_string(), "{n}");
    }
}

pub async fn not_older_waits_and_gives_up_on_the_future(world: &World) {
    let (store, other) = (world.store().await, world.store().await);
    let made = created(&store, &app("web"), "1").await;
    let seen = within(other.not_older_than(made.revision)).await.expect("it happened");
    assert!(seen.revision() >= made.revision && seen.get(&app("web")).is_some());
    let waiting = {
        let other = other.clone();
        let next = made.revision + 1;
        tokio::spawn(async move { other.not_older_than(next).await })
    };
    put(&store, update(&made, "2")).await;
    let seen = within(waiting).await.expect("joined").expect("it happened meanwhile");
    assert_eq!(value(&seen.get(&app("web")).expect("there")), "2");
    let future = within(other.not_older_than(made.revision + 1000)).await;
    let Err(ReadError::TooLarge { asked, current }) = future.map(|_| ()) else { panic!("too large") };
    assert_eq!((asked, current), (made.revision + 1000, made.revision + 1));
    let future = within(other.exactly_at(Kind::Application, made.revision + 1000)).await;
    assert!(matches!(future.map(|_| ()), Err(ReadError::TooLarge { .. })));
}

/// Everything of a kind: name → (revision, value).
fn state(snapshot: &Snapshot, kind: Kind) -> BTreeMap<String, (i64, String)> {
    let row = |entry: &Arc<Entry>| (entry.key.name.clone(), (entry.revision, value(entry).to_owned()));
    snapshot.list(kind, None).map(row).collect()
}

pub async fn exactly_at_is_the_state_of_that_revision(world: &World) {
    let store = world.store().await;
    let mut states = vec![within(store.fresh()).await.expect("fresh")];
    for n in 0..60usize {
        let key = if n % 5 == 4 { secret(&(n % 3).to_string()) } else { app(&(n % 7).to_string()) };
        let current = states[n].get(&key);
        let op = match current {
            None => create(&key, &n.to_string()),
            Some(found) if n % 4 == 3 => delete(&found),
            Some(found) => update(&found, &n.to_string()),
        };
        put(&store, op).await;
        states.push(within(store.fresh()).await.expect("fresh"));
    }
    // One that saw it all, one that comes later, one with a ring that holds nearly nothing.
    let small = StoreOptions { ring_events: 2, prefill: 3, ..StoreOptions::default() };
    for reader in [store, world.store().await, world.store_with(small).await] {
        for expected in &states {
            for kind in [Kind::Application, Kind::Secret, Kind::Node] {
                let exact = within(reader.exactly_at(kind, expected.revision())).await.expect("in the log");
                assert_eq!(exact.revision(), expected.revision());
                assert_eq!(state(&exact, kind), state(expected, kind), "{kind} at {}", expected.revision());
            }
        }
    }
}

pub async fn kinds_outside_the_cache_are_written_but_not_read(world: &World) {
    let narrow = StoreOptions { kinds: vec![Kind::Node], ..StoreOptions::default() };
    let (store, other) = (world.store_with(narrow).await, world.store().await);
    put(&store, create(&app("web"), "1")).await;
    let web = found(&other, &app("web")).await;
    put(&store, update(&web, "2")).await;
    put(&store, create(&node("n"), "1")).await;
    assert_eq!(value(&*found(&other, &app("web")).await), "2");
    let snapshot = within(store.fresh()).await.expect("fresh");
    assert!(snapshot.get(&app("web")).is_none() && snapshot.get(&node("n")).is_some());
    assert!(store.watch(Kind::Application, 0).is_err());
    let read = within(store.exactly_at(Kind::Application, snapshot.revision())).await;
    assert!(matches!(read.map(|_| ()), Err(ReadError::NotCached(Kind::Application))));
}

/// Writes its own objects until told to stop; answers the revisions that it was given.
async fn write(store: Store, writer: usize, done: Arc<AtomicBool>) -> Vec<i64> {
    let mut revisions = Vec::new();
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let ops = (0..1 + n % 3).map(|op| create(&app(&format!("{writer}-{n}-{op}")), "1")).collect();
        let clash = item(vec![create(&app(&format!("{writer}-{n}-0")), "2")]);
        revisions.extend(within(store.commit(item(ops))).await.expect("committed").revisions);
        within(store.commit(clash)).await.expect_err("it exists");
    }
    revisions
}

pub async fn concurrent_batches_from_several_processes_leave_no_hole(world: &World) {
    let stores = [world.store().await, world.store().await, world.store().await];
    let reader = world.backend().await;
    let base = within(reader.head()).await.expect("head").revision;
    let done = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..12).map(|n| tokio::spawn(write(stores[n % 3].clone(), n, Arc::clone(&done)))).collect();
    let mut watcher = stores[0].watch(Kind::Application, base).expect("a watch");
    // A reader as tight as can be: every row exactly once, in order, or it was visible too early.
    let mut seen = base;
    while seen < base + 3000 {
        let read = within(reader.changes(seen, 1000)).await.expect("read");
        for row in read.rows {
            assert_eq!(row.change.revision, seen + 1, "no hole");
            seen += 1;
        }
    }
    done.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.extend(within(writer).await.expect("joined"));
    }
    written.sort_unstable();
    let last = base + i64::try_from(written.len()).expect("few");
    assert!(written.iter().copied().eq(base + 1..=last), "numbered without holes");
    let watched = changes_up_to(&mut watcher, last).await;
    assert!(watched.iter().map(|change| change.revision).eq(base + 1..=last), "all watched, in order");
    let objects = within(stores[1].fresh()).await.expect("fresh").count(Kind::Application, None);
    assert_eq!(objects, written.len());
    for store in &stores {
        assert_eq!(store.metrics().holes.get(), 0);
        assert_eq!(store.metrics().resyncs.get(), 0);
    }
}

pub async fn pages_are_of_one_revision_on_any_process(world: &World) {
    const OBJECTS: usize = 2000;
    let stores = [world.store().await, world.store().await];
    let name = |n: usize| format!("a{n:05}");
    for first in (0..OBJECTS).step_by(50) {
        let ops = (first..first + 50).map(|n| create(&app(&name(n)), "old")).collect();
        within(stores[0].commit(item(ops))).await.expect("committed");
    }
    let first = within(stores[0].fresh()).await.expect("fresh");
    stores[0].keep_for_pages(Kind::Application, &first);
    let revision = first.revision();
    let mut seen: Vec<(String, String)> = Vec::new();
    for page in 0.. {
        // Behind and ahead of where the reader is, things go, come and change.
        let now = within(stores[1].fresh()).await.expect("fresh");
        for n in [page * 97 % OBJECTS, (page * 331 + 1) % OBJECTS] {
            if let Some(entry) = now.get(&app(&name(n))) {
                put(&stores[1], if n % 2 == 0 { delete(&entry) } else { update(&entry, "new") }).await;
            }
        }
        put(&stores[1], create(&app(&format!("b{page:05}")), "new")).await;

        let view = within(stores[page % 2].exactly_at(Kind::Application, revision)).await.expect("kept");
        assert_eq!(view.revision(), revision);
        let row = |entry: &Arc<Entry>| (entry.key.name.clone(), value(entry).to_owned());
        let rows: Vec<_> = match seen.last() {
            None => view.list(Kind::Application, None).take(100).map(row).collect(),
            Some((last, _)) => {
                view.list_after(Kind::Application, None, ("shop", last)).take(100).map(row).collect()
            }
        };
        if rows.is_empty() {
            break;
        }
        seen.extend(rows);
    }
    assert!(seen.into_iter().eq((0..OBJECTS).map(|n| (name(n), "old".to_owned()))));
    assert_eq!(stores[0].metrics().rebuilt.get(), 0, "kept for pages");
    assert_eq!(stores[1].metrics().rebuilt.get(), 1, "rebuilt once, then kept");
}
