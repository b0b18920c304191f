//! Partitions of the log: made ahead, dropped behind, and every retained revision whole.

use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::postgres::PostgresBackend;
use horchestra_store::{Backend, ReadError, Retention, Store, StoreOptions};
use horchestra_testkit::{TestDatabase, eventually};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

/// Nothing is too young to be dropped.
const AT_ONCE: Retention = Retention { log: Duration::ZERO, versions: 10, tombstones: Duration::ZERO };

async fn commit(backend: &PostgresBackend, op: horchestra_store::Op) -> i64 {
    let done = backend.commit(&[item(vec![op])], Uuid::new_v4()).await.expect("an answer");
    done.items.into_iter().next().expect("one").expect("committed").revisions[0]
}

/// Moves the log on by whole partitions.
async fn jump(backend: &PostgresBackend) -> i64 {
    let head = backend.head().await.expect("a head");
    backend.begin_epoch(&head.identity, head.revision).await.expect("begun").revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_partitions_go_and_the_head_stays() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "1")).await;
    let begun = jump(&backend).await;
    assert!(begun > 1_000_000);
    let made = commit(&backend, create(&app("b"), "1")).await;
    assert_eq!(made, begun + 1);
    assert!(backend.headroom().await.expect("headroom") > 262_144);

    let kept = backend.maintain(AT_ONCE).await.expect("maintained");
    assert!(kept.partitions > 0 && kept.headroom > 262_144, "{kept:?}");
    assert_eq!(kept.oldest, begun, "the epoch began there, and everything since is kept");
    let changes = backend.changes(begun, 10).await.expect("the log");
    assert_eq!(changes.rows.len(), 1);
    assert_eq!(changes.rows[0].change.revision, made);
    // Asked to read from before the oldest, the log starts behind the oldest.
    let changes = backend.changes(1, 10).await.expect("the log");
    assert_eq!((changes.head.oldest, changes.rows.len(), changes.anchor), (begun, 1, None));
    assert!(backend.undo(Kind::Application, made, 1).await.expect("an answer").is_none());
    let again = backend.maintain(AT_ONCE).await.expect("again");
    assert_eq!((again.oldest, again.partitions, again.unfinished), (begun, 0, false));
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_updated_in_an_older_partition_can_still_be_undone() {
    let database = database().await;
    let backend = connect(&database);
    let first = commit(&backend, create(&app("a"), "old")).await;
    let begun = jump(&backend).await;
    let loaded = backend.load(&[Kind::Application]).await.expect("loaded");
    assert_eq!(loaded.entries[0].revision, first);
    let second = commit(&backend, update(&loaded.entries[0], "new")).await;
    backend.maintain(AT_ONCE).await.expect("maintained");
    let undone =
        backend.undo(Kind::Application, second, begun).await.expect("an answer").expect("in the log");
    let (key, was) = &undone[0];
    let was = was.as_ref().expect("it existed");
    assert_eq!((key, value(was), was.revision), (&app("a"), "old", first));
    assert_eq!(was.body, loaded.entries[0].body);
    assert_eq!(was.managed, loaded.entries[0].managed);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_finds_no_partition_makes_one() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "1")).await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    // As if nobody had looked after the log for long: the head is where the partitions end.
    sqlx::raw_sql(
        "insert into horchestra.commits (rv, nonce, at, revisions, items) \
         select 262144 * 100, gen_random_uuid(), now(), '{}', '{}'",
    )
    .execute(&mut connection)
    .await
    .expect("moved");
    assert_eq!(commit(&backend, create(&app("b"), "1")).await, 262_144 * 100 + 1);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_trimmed_and_tombstones_end() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "0")).await;
    for n in 1..15 {
        let loaded = backend.load(&[Kind::Application]).await.expect("loaded");
        commit(&backend, update(&loaded.entries[0], &n.to_string())).await;
    }
    let key = horchestra_store::HistoryOf::Key(app("a"));
    let done = backend.maintain(Retention::default()).await.expect("maintained");
    assert_eq!((done.versions, done.tombstones), (5, 0));
    let history = backend.history(key.clone()).await.expect("history");
    let revisions: Vec<i64> = history.iter().map(|row| row.revision).collect();
    assert_eq!(revisions, (6..=15).rev().collect::<Vec<i64>>());
    let loaded = backend.load(&[Kind::Application]).await.expect("loaded");
    commit(&backend, delete(&loaded.entries[0])).await;
    backend.maintain(Retention::default()).await.expect("maintained");
    let history = backend.history(key.clone()).await.expect("history");
    assert!(history[0].deleted);
    assert_eq!(history.len(), 11);
    let done = backend.maintain(AT_ONCE).await.expect("maintained");
    assert_eq!((done.tombstones, done.unfinished), (1, false));
    assert_eq!(backend.history(key).await.expect("history"), vec![]);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_is_bounded_and_says_what_it_leaves() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "1")).await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    // More deleted objects than one round forgets.
    sqlx::raw_sql(
        "insert into horchestra.tombstones \
         select gen_random_uuid(), n, 1, gen_random_uuid(), null, now() - interval '1 year', 3, 'default', \
         'gone' || n, 'somebody', 'delete', '' from generate_series(1, 40000) n",
    )
    .execute(&mut connection)
    .await
    .expect("written");
    let first = backend.maintain(Retention::default()).await.expect("maintained");
    assert!(first.unfinished && first.tombstones < 40_000, "{first:?}");
    let second = backend.maintain(Retention::default()).await.expect("maintained");
    assert_eq!((first.tombstones + second.tombstones, second.unfinished), (40_000, false));
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_from_before_the_oldest_revision_is_told() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "1")).await;
    jump(&backend).await;
    commit(&backend, create(&app("b"), "1")).await;
    let store = Store::open(backend, StoreOptions::default());
    within(store.ready()).await;
    let refused = within(store.exactly_at(Kind::Application, 1)).await;
    assert!(matches!(refused, Err(ReadError::Expired { asked: 1, .. })), "{:?}", refused.err());
    store.shutdown().await;
}

async fn has_first_partition(connection: &mut PgConnection) -> bool {
    let found = sqlx::query("select 1 from pg_class where oid = to_regclass('horchestra.events_0')");
    found.fetch_optional(connection).await.expect("an answer").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_stays_open_only_puts_off_the_dropping() {
    let database = database().await;
    let backend = connect(&database);
    commit(&backend, create(&app("a"), "1")).await;
    jump(&backend).await;
    let mut foreign = PgConnection::connect(database.url()).await.expect("a connection");
    let mut transaction =
        foreign.begin_with("begin isolation level repeatable read").await.expect("a transaction");
    sqlx::query("select count(*) from horchestra.events").execute(&mut *transaction).await.expect("read");

    within(backend.maintain(AT_ONCE)).await.expect("maintained all the same");
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    assert!(has_first_partition(&mut connection).await);
    commit(&backend, create(&app("b"), "1")).await;

    transaction.rollback().await.expect("rolled back");
    within(backend.maintain(AT_ONCE)).await.expect("maintained");
    assert!(!has_first_partition(&mut connection).await);
    backend.close().await;
}

/// An object and where its head is.
struct Tracked(horchestra_core::kind::Key, Uuid, i64);

impl Tracked {
    fn update(&self) -> horchestra_store::Item {
        item(vec![horchestra_store::Op::Update {
            draft: draft(&self.0, self.1, "2"),
            expect: self.2,
            class: horchestra_store::Class::Core,
        }])
    }
}

/// Updates the objects, as a batch and one by one; answers how many pages of heads that touched.
async fn pages_of_updates(database: &TestDatabase, objects: &mut [Tracked], rounds: usize) -> i64 {
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let query = "select heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read \
         from pg_statio_user_tables where relname = 'objects'";
    let before: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await.expect("statistics");
    let backend = connect(database);
    for _ in 0..rounds {
        let batch: Vec<_> = objects.iter().map(Tracked::update).collect();
        let done = backend.commit(&batch, Uuid::new_v4()).await.expect("an answer");
        for (object, result) in objects.iter_mut().zip(done.items) {
            object.2 = result.expect("committed").revisions[0];
        }
        for object in objects.iter_mut() {
            let done = backend.commit(&[object.update()], Uuid::new_v4()).await.expect("an answer");
            object.2 = done.items[0].as_ref().expect("committed").revisions[0];
        }
    }
    // The statistics of a connection are complete once it has ended.
    backend.close().await;
    let open = "select count(*) from pg_stat_activity where application_name = 'horchestra' \
         and datname = current_database()";
    eventually(PATIENCE, async || {
        sqlx::query_scalar::<_, i64>(open).fetch_one(&mut connection).await.expect("a count") == 0
    })
    .await;
    let after: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await.expect("statistics");
    after - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_do_not_walk_the_versions_that_a_snapshot_keeps() {
    let database = database().await;
    let backend = connect(&database);
    let mut objects = Vec::new();
    for number in 0..60 {
        let (key, uid) = (app(&format!("a{number}")), Uuid::new_v4());
        let made = commit(&backend, horchestra_store::Op::Create(draft(&key, uid, "1"))).await;
        objects.push(Tracked(key, uid, made));
    }
    backend.close().await;
    let mut foreign = PgConnection::connect(database.url()).await.expect("a connection");
    let mut transaction =
        foreign.begin_with("begin isolation level repeatable read").await.expect("a transaction");
    sqlx::query("select count(*) from horchestra.objects").execute(&mut *transaction).await.expect("read");
    let early = pages_of_updates(&database, &mut objects, 5).await;
    pages_of_updates(&database, &mut objects, 40).await;
    // What autovacuum does by and by; plans are made anew after it.
    let mut upkeep = PgConnection::connect(database.url()).await.expect("a connection");
    sqlx::raw_sql("vacuum analyze horchestra.objects").execute(&mut upkeep).await.expect("vacuumed");
    let late = pages_of_updates(&database, &mut objects, 5).await;
    // Walking them would touch dozens of pages more for every update.
    assert!(late < early * 3, "{early} pages at first, {late} in the end");
    transaction.rollback().await.expect("rolled back");
}
