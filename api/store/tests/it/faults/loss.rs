//! A database that is away, stands still, or is not what it was.

use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::pushes::reason;
use horchestra_store::{
    Backend, CommitError, Guard, MemoryDatabase, ReadError, Store, StoreOptions, WatchEnd,
};
use uuid::Uuid;

use super::{open, open_with, until, without_poll};
use crate::fixture::*;

#[tokio::test]
async fn without_notifications_the_log_is_looked_at_now_and_then() {
    let database = MemoryDatabase::new();
    let ((writer, _), (reader, backend)) = (open(&database).await, open(&database).await);
    backend.set_deaf(true);
    let written = put(&writer, create(&app("web"), "1")).await;
    assert_eq!(within(reader.changed_since(written - 1)).await, written);
    assert!(reader.snapshot().get(&app("web")).is_some());
}

#[tokio::test]
async fn a_notification_is_enough_to_read_at_once() {
    let database = MemoryDatabase::new();
    let (writer, _) = open(&database).await;
    let (reader, _) = open_with(&database, without_poll()).await;
    for n in 0..20 {
        let written = put(&writer, create(&app(&n.to_string()), "1")).await;
        assert_eq!(within(reader.changed_since(written - 1)).await, written);
    }
}

#[tokio::test]
async fn while_the_database_is_away_the_cache_goes_on_and_then_catches_up() {
    let database = MemoryDatabase::new();
    let ((writer, _), (store, backend)) = (open(&database).await, open(&database).await);
    let made = created(&writer, &app("web"), "1").await;
    within(store.not_older_than(made.revision)).await.expect("caught up");
    let mut watcher = store.watch(Kind::Application, made.revision).expect("a watch");

    backend.set_cut_off(true);
    until(|| !store.health().disconnected_for.is_zero()).await;
    assert!(store.snapshot().get(&app("web")).is_some());
    assert!(store.health().loaded);
    let fresh = within(store.fresh()).await.map(|_| ());
    assert!(matches!(fresh, Err(ReadError::Unavailable)), "{fresh:?}");
    let write = within(store.commit(item(vec![create(&app("b"), "1")]))).await;
    assert!(matches!(write, Err(CommitError::Unavailable)), "{write:?}");
    let lease = within(store.acquire_lease("l", Uuid::new_v4(), Duration::from_secs(1))).await;
    assert!(matches!(lease, Err(ReadError::Unavailable)), "{lease:?}");
    put(&writer, update(&made, "2")).await;
    let last = put(&writer, create(&app("c"), "1")).await;

    backend.set_cut_off(false);
    let changes = changes_up_to(&mut watcher, last).await;
    assert_eq!(changes.len(), 2, "nothing was lost, and nothing came twice");
    until(|| store.health().disconnected_for.is_zero()).await;
    put(&store, create(&app("b"), "1")).await;
    assert_eq!((store.health().losses, store.metrics().resyncs.get()), (0, 0));
}

#[tokio::test]
async fn a_store_that_starts_without_a_database_waits_for_it() {
    let database = MemoryDatabase::new();
    let (writer, _) = open(&database).await;
    put(&writer, create(&app("web"), "1")).await;
    let backend = database.connect();
    backend.set_cut_off(true);
    let store = Store::open(backend.clone(), Default::default());
    let fresh = within(store.fresh()).await.map(|_| ());
    assert!(matches!(fresh, Err(ReadError::Unavailable)), "{fresh:?}");
    assert!(!store.health().loaded);
    backend.set_cut_off(false);
    within(store.ready()).await;
    assert!(store.snapshot().get(&app("web")).is_some());
}

/// What everybody has to agree on after a loss.
async fn recovered(store: &Store, before: i64, names: &[&str]) {
    until(|| store.health().losses == 1 && store.health().loaded).await;
    let fresh = within(store.fresh()).await.expect("fresh");
    assert!(fresh.revision() > before + 1000, "{} after {before}", fresh.revision());
    let found: Vec<String> =
        fresh.list(Kind::Application, None).map(|entry| entry.key.name.clone()).collect();
    assert_eq!(found, names);
}

#[tokio::test]
async fn a_restored_backup_is_noticed_and_everything_starts_anew() {
    let database = MemoryDatabase::new();
    let ((one, _), (two, _)) = (open(&database).await, open(&database).await);
    put(&one, create(&app("kept"), "1")).await;
    let backup = database.backup();
    put(&one, create(&app("lost"), "1")).await;
    let before = put(&one, create(&app("lost too"), "1")).await;
    within(two.not_older_than(before)).await.expect("caught up");
    let mut watchers: Vec<_> =
        [&one, &two].map(|store| store.watch(Kind::Application, before).expect("a watch")).into();
    let identity = within(one.backend().head()).await.expect("head").identity;

    database.restore(&backup);
    for store in [&one, &two] {
        recovered(store, before, &["kept"]).await;
    }
    assert_ne!(within(one.backend().head()).await.expect("head").identity, identity);
    let hold = within(two.holds()).await.expect("answered").cluster.expect("engaged with the epoch");
    assert_eq!(hold.reason, reason::HISTORY_LOST);
    for watcher in &mut watchers {
        let end = within(watcher.next()).await.expect_err("its revisions mean nothing");
        assert!(matches!(end, WatchEnd::Expired { .. }), "{end:?}");
    }
    let mut old = one.watch(Kind::Application, before).expect("a watch");
    assert!(matches!(within(old.next()).await, Err(WatchEnd::Expired { .. })));
    let old = within(one.exactly_at(Kind::Application, before)).await.map(|_| ());
    assert!(matches!(old, Err(ReadError::Expired { .. })), "{old:?}");

    // Both go on, on one history.
    let next = put(&two, create(&app("next"), "1")).await;
    let now = within(one.fresh()).await.expect("fresh");
    assert_eq!(now.revision(), next);
    let mut live = one.watch(Kind::Application, next - 1).expect("a watch");
    assert_eq!(changes_up_to(&mut live, next).await.len(), 1);
    assert_eq!((one.health().losses, two.health().losses), (1, 1));
}

#[tokio::test]
async fn a_history_that_has_grown_again_is_told_from_the_one_before() {
    let database = MemoryDatabase::new();
    let (store, backend) = open_with(&database, without_poll()).await;
    put(&store, create(&app("kept"), "1")).await;
    let backup = database.backup();
    put(&store, create(&app("lost"), "1")).await;
    let before = put(&store, create(&app("lost too"), "1")).await;
    backend.set_deaf(true);
    database.restore(&backup);
    // Others write, as many rows as were lost and one more, before this process looks.
    let other = database.connect();
    for n in 0..3 {
        let write = [item(vec![create(&app(&format!("new {n}")), "1")])];
        within(other.commit(&write, Uuid::new_v4())).await.expect("committed");
    }
    assert!(within(other.head()).await.expect("head").revision > before);
    backend.set_deaf(false);
    put(&store, create(&app("own"), "1")).await;
    recovered(&store, before, &["kept", "new 0", "new 1", "new 2", "own"]).await;
}

#[tokio::test]
async fn own_commits_are_not_put_on_a_cache_of_another_history() {
    let database = MemoryDatabase::new();
    let (store, backend) = open_with(&database, without_poll()).await;
    put(&store, create(&app("kept"), "1")).await;
    let backup = database.backup();
    let before = put(&store, create(&app("lost"), "1")).await;
    backend.set_deaf(true);
    database.restore(&backup);
    // The head stands exactly where the cache does, by another row.
    let other = database.connect();
    let write = [item(vec![create(&app("new"), "1")])];
    within(other.commit(&write, Uuid::new_v4())).await.expect("committed");
    let own = put(&store, create(&app("own"), "1")).await;
    assert_eq!(own, before + 1, "the numbers would fit");
    recovered(&store, before, &["kept", "new", "own"]).await;
}

#[tokio::test]
async fn a_fresh_read_does_not_answer_from_a_cache_that_is_ahead() {
    let database = MemoryDatabase::new();
    let (store, backend) = open_with(&database, without_poll()).await;
    put(&store, create(&app("kept"), "1")).await;
    let backup = database.backup();
    put(&store, create(&app("lost"), "1")).await;
    backend.set_deaf(true);
    database.restore(&backup);
    let fresh = within(store.fresh()).await.expect("fresh");
    assert!(fresh.get(&app("lost")).is_none() && fresh.get(&app("kept")).is_some());
}

#[tokio::test]
async fn another_database_in_its_place_is_noticed() {
    let database = MemoryDatabase::new();
    let ((one, _), (two, _)) = (open(&database).await, open(&database).await);
    let before = put(&one, create(&app("old"), "1")).await;
    within(two.not_older_than(before)).await.expect("caught up");
    database.replace();
    for store in [&one, &two] {
        recovered(store, before, &[]).await;
    }
    let hold = within(one.holds()).await.expect("answered").cluster.expect("engaged with the epoch");
    assert_eq!(hold.reason, reason::DATABASE_REPLACED);
    put(&one, create(&app("new"), "1")).await;
    assert!(found(&two, &app("new")).await.revision > before);
}

#[tokio::test]
async fn a_loss_that_could_not_be_recorded_at_once_is_found_again() {
    let database = MemoryDatabase::new();
    let (store, backend) = open_with(&database, without_poll()).await;
    put(&store, create(&app("kept"), "1")).await;
    let backup = database.backup();
    let before = put(&store, create(&app("lost"), "1")).await;
    backend.set_deaf(true);
    database.restore(&backup);
    // As many rows as were lost: nothing but the last one shows it.
    let other = database.connect();
    let write = [item(vec![create(&app("new"), "1")])];
    within(other.commit(&write, Uuid::new_v4())).await.expect("committed");
    // The answer of the read that finds it arrives, and then the connection breaks.
    backend.set_answers_held(true);
    let reader = tokio::spawn({
        let store = store.clone();
        async move { store.not_older_than(before + 1).await.map(|_| ()) }
    });
    until(|| backend.held_answers() > 0).await;
    backend.set_cut_off(true);
    backend.set_answers_held(false);
    until(|| !store.health().disconnected_for.is_zero()).await;
    assert_eq!(within(other.holds()).await.expect("answered").cluster, None);
    backend.set_cut_off(false);
    backend.set_deaf(false);
    recovered(&store, before, &["kept", "new"]).await;
    assert!(within(store.holds()).await.expect("answered").cluster.is_some());
    let _ = within(reader).await.expect("joined");
}

#[tokio::test]
async fn another_timeline_needs_somebody_who_vouches_for_it() {
    let database = MemoryDatabase::new();
    let hold =
        async |store: &Store| within(store.holds()).await.expect("answered").cluster.map(|hold| hold.reason);
    let settled = async |store: &Store| until(|| !store.health().connected_for.is_zero()).await;
    let hasty = StoreOptions { vouch: Duration::from_millis(300), ..StoreOptions::default() };
    let patient = StoreOptions { vouch: Duration::from_secs(3600), ..StoreOptions::default() };
    let (first, _) = open(&database).await;
    settled(&first).await;
    assert_eq!(hold(&first).await, None, "where it is first is its home");

    // Whoever has seen it all before says so, and who comes waits for that.
    database.promote();
    let (newcomer, _) = open_with(&database, patient).await;
    settled(&newcomer).await;
    assert_eq!(hold(&newcomer).await, None);

    let known = created(&first, &app("web"), "1").await.revision;
    within(newcomer.not_older_than(known)).await.expect("the same history");

    // Nobody is left who could. What may be lost had revisions, which mean nothing from now on.
    for store in [&first, &newcomer] {
        store.shutdown().await;
    }
    database.promote();
    let (newcomer, _) = open_with(&database, hasty.clone()).await;
    settled(&newcomer).await;
    assert_eq!(hold(&newcomer).await.as_deref(), Some(reason::HISTORY_UNPROVEN));
    let anew = async |store: &Store| {
        until(|| store.health().losses == 1 && store.snapshot().revision() > known).await;
        let end = match store.watch(Kind::Application, known) {
            Ok(mut watcher) => within(watcher.next()).await.map(|_| ()).expect_err("it is gone"),
            Err(end) => end,
        };
        assert!(matches!(end, WatchEnd::Expired { .. }), "{end:?}");
        assert_eq!(within(store.fresh()).await.expect("fresh").count(Kind::Application, None), 1);
    };
    anew(&newcomer).await;
    within(newcomer.release_hold(None)).await.expect("released");
    let (another, _) = open_with(&database, hasty.clone()).await;
    settled(&another).await;
    assert_eq!(hold(&another).await, None, "it was looked at once");

    // The same data in another database.
    for store in [&newcomer, &another] {
        store.shutdown().await;
    }
    database.rehome();
    let (newcomer, _) = open_with(&database, hasty).await;
    settled(&newcomer).await;
    assert_eq!(hold(&newcomer).await.as_deref(), Some(reason::DATABASE_REPLACED));
    anew(&newcomer).await;
}

#[tokio::test]
async fn who_fell_behind_a_compacted_log_loads_anew() {
    let database = MemoryDatabase::new();
    let ((writer, _), (store, backend)) = (open(&database).await, open(&database).await);
    let made = created(&writer, &app("web"), "1").await;
    within(store.not_older_than(made.revision)).await.expect("caught up");
    let mut watcher = store.watch(Kind::Application, made.revision).expect("a watch");
    backend.set_cut_off(true);
    put(&writer, delete(&made)).await;
    for n in 0..10 {
        put(&writer, create(&app(&n.to_string()), "1")).await;
    }
    let head = writer.snapshot().revision();
    database.compact(head - 3);
    backend.set_cut_off(false);
    let end = within(watcher.next()).await.expect_err("some of its changes are gone");
    assert!(matches!(end, WatchEnd::Expired { .. }), "{end:?}");
    let now = within(store.fresh()).await.expect("fresh");
    assert_eq!((now.revision(), now.count(Kind::Application, None)), (head, 10));
    assert_eq!((store.metrics().resyncs.get(), store.health().losses), (1, 0));
    // The stretch that is left can be watched and paged.
    let mut rest = store.watch(Kind::Application, head - 3).expect("a watch");
    assert_eq!(changes_up_to(&mut rest, head).await.len(), 3);
    let exact = within(store.exactly_at(Kind::Application, head - 3)).await.expect("in the log");
    assert_eq!(exact.count(Kind::Application, None), 7);
    let older = within(store.exactly_at(Kind::Application, head - 4)).await.map(|_| ());
    assert!(matches!(older, Err(ReadError::Expired { .. })), "{older:?}");
}

#[tokio::test]
async fn a_hole_in_the_log_makes_everything_load_anew() {
    let database = MemoryDatabase::new();
    let ((writer, _), (store, backend)) = (open(&database).await, open(&database).await);
    let mut watcher = store.watch(Kind::Application, 0).expect("a watch");
    backend.set_cut_off(true);
    for n in 0..4 {
        put(&writer, create(&app(&n.to_string()), "1")).await;
    }
    backend.skip_once(2);
    backend.set_cut_off(false);
    let changes = changes_up_to(&mut watcher, 4).await;
    assert!(changes.iter().map(|change| change.revision).eq(1..=4), "watchers do not notice");
    assert_eq!(within(store.fresh()).await.expect("fresh").count(Kind::Application, None), 4);
    assert_eq!((store.metrics().holes.get(), store.metrics().resyncs.get()), (1, 1));
    assert_eq!(store.health().losses, 0);
}

#[tokio::test]
async fn a_leader_that_stood_still_past_its_term_writes_nothing() {
    let database = MemoryDatabase::new();
    let ((old, backend), (new, _)) = (open(&database).await, open(&database).await);
    let ttl = Duration::from_secs(10);
    let lease =
        within(old.acquire_lease("loop", Uuid::new_v4(), ttl)).await.expect("answered").expect("free");
    let fenced = |epoch| vec![Guard::LeaseIs { name: "loop".into(), epoch }];
    let write = |name: &str, epoch| guarded(vec![create(&app(name), "1")], fenced(epoch));
    within(old.commit(write("first", lease.epoch))).await.expect("it leads");

    backend.set_stalled(true);
    let delayed = tokio::spawn({
        let (old, write) = (old.clone(), write("delayed", lease.epoch));
        async move { old.commit(write).await }
    });
    until(|| old.metrics().batch_items.count() == 2).await;
    assert_eq!(within(new.acquire_lease("loop", Uuid::new_v4(), ttl)).await.expect("answered"), None);
    database.advance(ttl + Duration::from_secs(1));
    let next = within(new.acquire_lease("loop", Uuid::new_v4(), ttl)).await.expect("answered");
    let next = next.expect("the term has ended");
    within(new.commit(write("second", next.epoch))).await.expect("it leads, and nothing slows it down");

    backend.set_stalled(false);
    within(delayed).await.expect("joined").expect_err("fenced off");
    within(old.commit(write("third", lease.epoch))).await.expect_err("fenced off");
    assert!(!within(old.renew_lease(&lease, ttl)).await.expect("answered"));
    let fresh = within(old.fresh()).await.expect("fresh");
    let names: Vec<&str> = fresh.list(Kind::Application, None).map(|entry| entry.key.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[tokio::test]
async fn a_reader_never_joins_a_query_that_started_before_it() {
    let database = MemoryDatabase::new();
    let (writer, _) = open(&database).await;
    let (reader, backend) = open_with(&database, without_poll()).await;
    let first = created(&writer, &app("web"), "0").await;
    within(reader.not_older_than(first.revision)).await.expect("caught up");
    backend.set_deaf(true);
    let mut entry = first;
    for n in 1..20 {
        backend.set_answers_held(true);
        let early = tokio::spawn({
            let reader = reader.clone();
            async move { reader.fresh().await }
        });
        until(|| backend.held_answers() > 0).await;
        // The early query is answered, the answer is on its way; now something is written and acknowledged.
        let revision = put(&writer, update(&entry, &n.to_string())).await;
        let late = tokio::spawn({
            let reader = reader.clone();
            async move { reader.fresh().await }
        });
        tokio::task::yield_now().await;
        backend.set_answers_held(false);
        within(early).await.expect("joined").expect("fresh as of then");
        let seen = within(late).await.expect("joined").expect("fresh");
        assert!(seen.revision() >= revision, "{} < {revision}", seen.revision());
        entry = seen.get(&app("web")).expect("there");
    }
}

#[tokio::test]
async fn many_readers_share_queries() {
    let database = MemoryDatabase::new();
    let (store, backend) = open(&database).await;
    backend.set_latency(Duration::from_millis(20));
    let reads = (0..500).map(|_| store.fresh());
    for read in within(futures::future::join_all(reads)).await {
        read.expect("fresh");
    }
    assert_eq!(store.metrics().fresh_reads.get(), 500);
    assert!(store.metrics().head_queries.get() <= 3);
}

/// A process that gets little time takes the log in small pieces, and loads without the past where even those are
/// too much.
#[tokio::test]
async fn what_cannot_be_read_at_once_is_read_in_pieces() {
    let database = MemoryDatabase::new();
    let (writer, _) = open(&database).await;
    let before = put(&writer, create(&app("first"), "1")).await;
    for n in 0..150 {
        put(&writer, create(&app(&n.to_string()), "1")).await;
    }
    for longest in [60, 0] {
        let backend = database.connect();
        backend.set_longest_stretch(Some(longest));
        let store = Store::open(backend.clone(), StoreOptions::default());
        within(store.ready()).await;
        assert!(store.snapshot().get(&app("149")).is_some(), "loaded, {longest} rows at a time");
        let mut watcher = store.watch(Kind::Application, before).expect("a watch");

        // And what comes later, more than one piece of it.
        backend.set_deaf(true);
        let mut last = 0;
        for n in 0..150 {
            last = put(&writer, create(&app(&format!("{longest}-{n}")), "1")).await;
        }
        backend.set_longest_stretch(Some(60));
        within(store.not_older_than(last)).await.expect("caught up");
        backend.set_longest_stretch(None);
        let changes = changes_up_to(&mut watcher, last).await;
        let revisions: Vec<_> = changes.iter().map(|change| change.revision).collect();
        assert_eq!(revisions, (before + 1..=last).collect::<Vec<_>>(), "{longest} rows at a time");
    }
}
