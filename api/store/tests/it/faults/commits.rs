//! The committer when something goes wrong.

use std::time::Duration;

use futures::future::join_all;
use horchestra_core::kind::Kind;
use horchestra_store::memory::CommitFault;
use horchestra_store::{Backend, CommitError, Guard, MemoryDatabase, Refusal, StoreOptions};
use tokio::time::timeout;

use super::{open, open_with, until};
use crate::fixture::*;

#[tokio::test]
async fn a_lone_write_goes_alone_and_waiting_ones_go_together() {
    let (store, backend) = open(&MemoryDatabase::new()).await;
    put(&store, create(&app("alone"), "1")).await;
    let metrics = store.metrics();
    assert_eq!((metrics.batch_items.count(), metrics.batch_items.sum()), (1, 1));

    backend.set_latency(Duration::from_millis(50));
    let writes = (0..100).map(|n| store.commit(item(vec![create(&app(&n.to_string()), "1")])));
    let results = within(join_all(writes)).await;
    assert!(results.iter().all(Result::is_ok));
    assert!(metrics.batch_items.count() <= 4, "{metrics:?}");
    assert_eq!(metrics.batch_items.sum(), 101);
    assert_eq!(metrics.tail_rows.get(), 0, "nothing was read back");
    assert_eq!(store.snapshot().revision(), 101, "and yet it is on the cache");
}

#[tokio::test]
async fn writes_that_look_at_each_other_take_effect_in_their_order() {
    let (store, backend) = open(&MemoryDatabase::new()).await;
    backend.set_latency(Duration::from_millis(5));
    let exists = || vec![Guard::Exists(namespace("shop"))];
    let made = placeholder(&namespace("shop"));
    let results = within(async {
        tokio::join!(
            store.commit(guarded(vec![create(&app("early"), "1")], exists())),
            store.commit(item(vec![create(&namespace("shop"), "1")])),
            store.commit(guarded(vec![create(&app("late"), "1")], exists())),
            store.commit(guarded(
                vec![horchestra_store::Op::Delete { key: made.key, expect: 1 }],
                vec![Guard::NamespaceEmpty("shop".into())],
            )),
        )
    })
    .await;
    let (early, shop, late, gone) = results;
    assert!(matches!(early, Err(CommitError::Refused(Refusal::Guard { index: 0, .. }))), "{early:?}");
    assert_eq!(shop.expect("free").revisions, [1]);
    assert_eq!(late.expect("the namespace is there").revisions, [2]);
    assert!(matches!(gone, Err(CommitError::Refused(Refusal::Guard { index: 0, .. }))), "{gone:?}");
}

#[tokio::test]
async fn lost_answers_are_looked_up_and_lost_requests_sent_again() {
    for fault in [CommitFault::LoseAnswer, CommitFault::LoseRequest, CommitFault::Late] {
        let database = MemoryDatabase::new();
        let (store, backend) = open(&database).await;
        put(&store, create(&app("taken"), "1")).await;
        backend.break_commits([fault]);
        backend.set_latency(Duration::from_millis(5));
        let results = within(async {
            tokio::join!(
                store.commit(item(vec![create(&app("a"), "1")])),
                store.commit(item(vec![create(&app("taken"), "2")])),
                store.commit(item(vec![create(&app("b"), "1"), create(&app("c"), "1")])),
            )
        })
        .await;
        let (a, taken, bc) = results;
        let mut revisions = a.expect("committed").revisions;
        revisions.extend(bc.expect("committed").revisions);
        revisions.sort_unstable();
        assert_eq!(revisions, [2, 3, 4], "{fault:?}");
        let clash = Refusal::AlreadyExists(app("taken"));
        assert!(matches!(taken, Err(CommitError::Refused(refusal)) if refusal == clash), "{fault:?}");
        assert!(store.metrics().settled.get() > 0);

        backend.deliver_late();
        assert_eq!(within(backend.head()).await.expect("head").revision, 4, "{fault:?}: exactly once");
        let fresh = within(store.fresh()).await.expect("fresh");
        assert_eq!(fresh.count(Kind::Application, None), 4);
    }
}

#[tokio::test]
async fn a_write_is_of_unknown_outcome_only_while_the_database_stays_silent() {
    let options = StoreOptions { settle: Duration::from_secs(1), ..StoreOptions::default() };
    let (store, backend) = open_with(&MemoryDatabase::new(), options).await;
    backend.break_commits([CommitFault::LoseAnswer]);
    backend.set_answers_held(true);
    let unknown = tokio::spawn({
        let store = store.clone();
        async move { store.commit(item(vec![create(&app("a"), "1")])).await }
    });
    // Committed, and cut off before anybody can ask.
    until(|| backend.held_answers() > 0).await;
    backend.set_cut_off(true);
    backend.set_answers_held(false);
    let unknown = within(unknown).await.expect("joined");
    assert!(matches!(unknown, Err(CommitError::Unknown)), "{unknown:?}");
    let next = within(store.commit(item(vec![create(&app("b"), "1")]))).await;
    assert!(matches!(next, Err(CommitError::Unavailable)), "certainly nothing was stored: {next:?}");

    backend.set_cut_off(false);
    let fresh = within(store.fresh()).await.expect("fresh");
    assert!(fresh.get(&app("a")).is_some() && fresh.get(&app("b")).is_none());
    backend.break_commits([CommitFault::LoseRequest; 10]);
    let never = within(store.commit(item(vec![create(&app("c"), "1")]))).await;
    assert!(matches!(never, Err(CommitError::Unavailable)), "shown not to have happened: {never:?}");
    assert!(within(store.fresh()).await.expect("fresh").get(&app("c")).is_none());
}

#[tokio::test]
async fn others_do_not_wait_for_a_lost_batch() {
    let (store, backend) = open(&MemoryDatabase::new()).await;
    backend.break_commits([CommitFault::Late]);
    backend.set_latency(Duration::from_millis(2));
    let lost = tokio::spawn({
        let store = store.clone();
        async move { store.commit(item(vec![create(&app("lost"), "1")])).await }
    });
    until(|| store.metrics().batch_items.count() > 0).await;
    put(&store, create(&app("next"), "1")).await;
    within(lost).await.expect("joined").expect("sent again");
}

#[tokio::test]
async fn what_the_database_cannot_digest_spoils_nobody_elses_write() {
    let (store, backend) = open(&MemoryDatabase::new()).await;
    backend.poison("poison-1");
    backend.poison("poison-2");
    backend.set_latency(Duration::from_millis(2));
    let writes = (0..50).map(|n| {
        let name = match n {
            17 => "poison-1".to_owned(),
            18 => "poison-2".to_owned(),
            n => n.to_string(),
        };
        store.commit(item(vec![create(&app(&name), "1")]))
    });
    let results = within(join_all(writes)).await;
    for (n, result) in results.iter().enumerate() {
        match n {
            17 | 18 => assert!(matches!(result, Err(CommitError::Rejected(_))), "{result:?}"),
            _ => assert!(result.is_ok(), "{n}: {result:?}"),
        }
    }
    assert!(store.metrics().bisected.get() > 0);
    let mut revisions: Vec<i64> = results.iter().flatten().flat_map(|done| done.revisions.clone()).collect();
    revisions.sort_unstable();
    assert!(revisions.into_iter().eq(1..=48));
}

#[tokio::test]
async fn callers_that_go_away_leave_the_others_alone() {
    let (store, backend) = open(&MemoryDatabase::new()).await;
    backend.set_latency(Duration::from_millis(20));
    let writes = (0..60u32).map(|n| {
        let store = store.clone();
        async move {
            let write = store.commit(item(vec![create(&app(&n.to_string()), "1")]));
            if n % 3 == 0 {
                let patience = Duration::from_millis(u64::from(n % 7));
                timeout(patience, write).await.ok()
            } else {
                Some(write.await)
            }
        }
    });
    let results = within(join_all(writes)).await;
    for (n, result) in results.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        assert!(matches!(result, Some(Ok(_))), "{n}: {result:?}");
    }
    let fresh = within(store.fresh()).await.expect("fresh");
    for n in 0..60 {
        let stored = fresh.get(&app(&n.to_string()));
        assert!(n % 3 == 0 || stored.is_some(), "{n}");
    }
}

#[tokio::test]
async fn a_full_queue_turns_writes_away() {
    let options = StoreOptions { queue: 4, ..StoreOptions::default() };
    let (store, backend) = open_with(&MemoryDatabase::new(), options).await;
    backend.set_stalled(true);
    let writes: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(item(vec![create(&app(&n.to_string()), "1")])).await })
        })
        .collect();
    until(|| store.metrics().busy.get() >= 10).await;
    backend.set_stalled(false);
    let results: Vec<_> =
        within(join_all(writes)).await.into_iter().map(|result| result.expect("joined")).collect();
    let stored = results.iter().filter(|result| result.is_ok()).count();
    let busy = results.iter().filter(|result| matches!(result, Err(CommitError::Busy))).count();
    assert_eq!(stored + busy, 20);
    assert!(stored >= 4 && busy >= 10, "{stored} {busy}");
    assert_eq!(within(store.fresh()).await.expect("fresh").count(Kind::Application, None), stored);
}

#[tokio::test]
async fn shutdown_commits_what_waits() {
    let database = MemoryDatabase::new();
    let (store, backend) = open(&database).await;
    backend.set_latency(Duration::from_millis(10));
    let writes: Vec<_> = (0..10)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(item(vec![create(&app(&n.to_string()), "1")])).await })
        })
        .collect();
    until(|| store.metrics().batch_items.count() > 0).await;
    within(store.shutdown()).await;
    for write in writes {
        within(write).await.expect("joined").expect("committed");
    }
    let late = within(store.commit(item(vec![create(&app("late"), "1")]))).await;
    assert!(matches!(late, Err(CommitError::Unavailable)), "{late:?}");
}
