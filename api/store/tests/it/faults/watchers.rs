//! Slow watchers, many watchers, small rings.

use horchestra_core::kind::Kind;
use horchestra_store::{MemoryDatabase, StoreOptions, WatchEnd};

use super::{open, open_with, until};
use crate::fixture::*;

#[tokio::test]
async fn a_slow_watcher_is_ended_and_holds_nobody_up() {
    let small = StoreOptions { ring_events: 10, ..StoreOptions::default() };
    let (store, _) = open_with(&MemoryDatabase::new(), small).await;
    let first = put(&store, create(&app("first"), "1")).await;
    let mut slow = store.watch(Kind::Application, 0).expect("a watch");
    let mut brisk = store.watch(Kind::Application, 0).expect("a watch");
    changes_up_to(&mut slow, first).await;
    changes_up_to(&mut brisk, first).await;
    assert_eq!(store.metrics().watchers.get(), 2);
    for n in 0..50 {
        let revision = put(&store, create(&app(&n.to_string()), "1")).await;
        assert_eq!(changes_up_to(&mut brisk, revision).await.len(), 1);
    }
    let end = within(slow.next()).await.expect_err("it fell behind");
    assert!(matches!(end, WatchEnd::Expired { asked, .. } if asked == first), "{end:?}");
    assert_eq!(store.metrics().watchers_expired.get(), 1);
    drop((slow, brisk));
    assert_eq!(store.metrics().watchers.get(), 0);
}

#[tokio::test]
async fn a_watch_from_below_the_log_ends_at_once() {
    let database = MemoryDatabase::new();
    let (writer, _) = open(&database).await;
    for n in 0..20 {
        put(&writer, create(&app(&n.to_string()), "1")).await;
    }
    database.compact(10);
    let (reader, _) = open(&database).await;
    for (from, works) in [(0, false), (9, false), (10, true), (15, true)] {
        let mut watcher = reader.watch(Kind::Application, from).expect("a watch");
        match within(watcher.next()).await {
            Ok(changes) => {
                assert!(works, "from {from}");
                assert_eq!(changes[0].revision, from + 1);
            }
            Err(end) => {
                assert!(!works, "from {from}");
                assert_eq!(end, WatchEnd::Expired { asked: from, oldest: 10 });
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_watchers_get_everything() {
    let (store, _) = open(&MemoryDatabase::new()).await;
    let watching: Vec<_> = (0..3000)
        .map(|_| {
            let mut watcher = store.watch(Kind::Application, 0).expect("a watch");
            tokio::spawn(async move {
                let changes = changes_up_to(&mut watcher, 50).await;
                changes.iter().map(|change| change.revision).eq(1..=50)
            })
        })
        .collect();
    until(|| store.metrics().watchers.get() == 3000).await;
    for n in 0..50 {
        put(&store, create(&app(&n.to_string()), "1")).await;
    }
    for watcher in watching {
        assert!(within(watcher).await.expect("joined"));
    }
    until(|| store.metrics().watchers.get() == 0).await;
}

#[tokio::test]
async fn dropping_a_wait_loses_nothing() {
    let (store, _) = open(&MemoryDatabase::new()).await;
    let mut watcher = store.watch(Kind::Application, 0).expect("a watch");
    let mut seen = Vec::new();
    for n in 0..30 {
        if n % 3 == 0 {
            // Polled once and dropped.
            let waiting = watcher.next();
            let polled = futures::future::select(Box::pin(waiting), std::future::ready(())).await;
            if let futures::future::Either::Left((changes, _)) = polled {
                seen.extend(changes.expect("the watch goes on"));
            }
        }
        put(&store, create(&app(&n.to_string()), "1")).await;
    }
    while seen.len() < 30 {
        seen.extend(within(watcher.next()).await.expect("the watch goes on"));
    }
    assert!(seen.iter().map(|change| change.revision).eq(1..=30));
}
