//! Stores on a PostgreSQL that is killed, frozen, cut off and rolled back under them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::{CommitError, ReadError, Store, StoreOptions, WatchEnd};
use horchestra_testkit::{Cluster, ClusterOptions, Shutdown};
use tokio::task::JoinHandle;

use crate::fixture::*;

/// A server of the test's own with a migrated database, and how processes connect to it.
struct Server {
    cluster: Cluster,
}

impl Server {
    async fn start() -> Server {
        let cluster = tokio::task::spawn_blocking(|| {
            Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() })
        });
        let cluster = cluster.await.expect("joined").expect("a server");
        postgres::migrate_schema(&cluster.url("postgres")).await.expect("migrated");
        Server { cluster }
    }

    async fn store(&self) -> Store {
        let backend = self.connect();
        let store = Store::open(backend, StoreOptions::default());
        within(store.ready()).await;
        store
    }

    fn connect(&self) -> Arc<PostgresBackend> {
        PostgresBackend::open(&self.cluster.url("postgres"), Options::default()).expect("a well-formed URL")
    }
}

/// Waits until the database answers this store again.
async fn answered(store: &Store) {
    within(async {
        while store.fresh().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// What the writers were told.
#[derive(Default)]
struct Told {
    committed: Vec<(String, i64)>,
    not_committed: Vec<String>,
    unknown: Vec<String>,
}

struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Told>>,
}

impl Writers {
    fn start(stores: &[Store]) -> Writers {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let write = |number: usize| {
            let store = stores[number % stores.len()].clone();
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            async move {
                let mut told = Told::default();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("{number}-{n}");
                    match within(store.commit(item(vec![create(&app(&name), "1")]))).await {
                        Ok(done) => {
                            written.fetch_add(1, Ordering::Relaxed);
                            told.committed.push((name, done.revisions[0]));
                        }
                        Err(CommitError::Unknown) => told.unknown.push(name),
                        Err(CommitError::Unavailable | CommitError::Busy) => {
                            told.not_committed.push(name);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Err(other) => panic!("{name}: {other:?}"),
                    }
                }
                told
            }
        };
        let tasks = (0..8).map(|number| tokio::spawn(write(number))).collect();
        Writers { stop, written, tasks }
    }

    /// Resolves when this many more writes were acknowledged.
    async fn go_on_for(&self, more: usize) {
        let enough = self.written.load(Ordering::Relaxed) + more;
        within(async {
            while self.written.load(Ordering::Relaxed) < enough {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    async fn stop(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Told::default();
        for task in self.tasks {
            let told = within(task).await.expect("joined");
            all.committed.extend(told.committed);
            all.not_committed.extend(told.not_committed);
            all.unknown.extend(told.unknown);
        }
        all
    }
}

/// Whatever was told is true, and every watcher has seen every row.
async fn nothing_was_lost(stores: &[Store], watchers: Vec<horchestra_store::Watcher>, told: &Told) {
    let end = put(&stores[0], create(&app("end"), "1")).await;
    for store in stores {
        let view = within(store.fresh()).await.expect("fresh");
        for (name, revision) in &told.committed {
            let entry = view.get(&app(name)).unwrap_or_else(|| panic!("{name} was acknowledged"));
            assert_eq!(entry.revision, *revision);
        }
        for name in &told.not_committed {
            assert!(view.get(&app(name)).is_none(), "{name} was said not to be stored");
        }
        let most = told.committed.len() + told.unknown.len() + 1;
        assert!(view.count(Kind::Application, None) <= most);
        assert_eq!((store.health().losses, store.metrics().resyncs.get()), (0, 0));
    }
    for mut watcher in watchers {
        let seen = changes_up_to(&mut watcher, end).await;
        let first = seen[0].revision;
        assert!(seen.iter().map(|change| change.revision).eq(first..=end), "every change, once, in order");
        assert_eq!(
            seen.len(),
            within(stores[0].fresh()).await.expect("fresh").count(Kind::Application, None)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_database_loses_nothing_that_was_acknowledged() {
    let mut server = Server::start().await;
    let stores = [server.store().await, server.store().await];
    let base = stores[0].snapshot().revision();
    let watchers =
        stores.iter().map(|store| store.watch(Kind::Application, base).expect("a watch")).collect();
    let writers = Writers::start(&stores);
    for _ in 0..3 {
        writers.go_on_for(50).await;
        server.cluster.kill().expect("killed");
        let failed = within(stores[0].fresh()).await.map(|_| ());
        assert!(matches!(failed, Err(ReadError::Unavailable)), "{failed:?}");
        assert!(stores[0].snapshot().count(Kind::Application, None) > 0, "the cache goes on");
        server.cluster.start_again().expect("started");
    }
    writers.go_on_for(50).await;
    let told = writers.stop().await;
    for store in &stores {
        answered(store).await;
    }
    nothing_was_lost(&stores, watchers, &told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_made_anew() {
    let server = Server::start().await;
    let stores = [server.store().await, server.store().await];
    let base = stores[0].snapshot().revision();
    let watchers =
        stores.iter().map(|store| store.watch(Kind::Application, base).expect("a watch")).collect();
    let writers = Writers::start(&stores);
    let pool = sqlx::PgPool::connect(&server.cluster.url("postgres")).await.expect("connected");
    for _ in 0..5 {
        writers.go_on_for(30).await;
        let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'horchestra' and pid <> pg_backend_pid()";
        sqlx::query(cut).execute(&pool).await.expect("cut");
    }
    writers.go_on_for(30).await;
    let told = writers.stop().await;
    for store in &stores {
        answered(store).await;
    }
    nothing_was_lost(&stores, watchers, &told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_database_is_waited_for() {
    let server = Server::start().await;
    let stores = [server.store().await, server.store().await];
    let base = stores[0].snapshot().revision();
    let watchers =
        stores.iter().map(|store| store.watch(Kind::Application, base).expect("a watch")).collect();
    let writers = Writers::start(&stores);
    writers.go_on_for(50).await;
    server.cluster.pause().expect("frozen");
    let failed = within(stores[1].fresh()).await.map(|_| ());
    assert!(matches!(failed, Err(ReadError::Unavailable)), "{failed:?}");
    server.cluster.resume().expect("thawed");
    writers.go_on_for(50).await;
    let told = writers.stop().await;
    for store in &stores {
        answered(store).await;
    }
    nothing_was_lost(&stores, watchers, &told).await;
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_volume_is_noticed() {
    let mut server = Server::start().await;
    let stores = [server.store().await, server.store().await];
    put(&stores[0], create(&app("kept"), "1")).await;
    let (data, kept) = (server.cluster.data(), server.cluster.folder().join("backup"));
    server.cluster.stop(Shutdown::Fast).expect("stopped");
    copy(&data, &kept);
    server.cluster.start_again().expect("started");
    answered(&stores[0]).await;
    put(&stores[0], create(&app("lost"), "1")).await;
    let before = put(&stores[0], create(&app("lost too"), "1")).await;
    within(stores[1].not_older_than(before)).await.expect("caught up");
    let identity = within(stores[0].backend().head()).await.expect("head").identity;
    let mut watchers =
        stores.each_ref().map(|store| store.watch(Kind::Application, before).expect("a watch"));

    server.cluster.stop(Shutdown::Immediate).expect("stopped");
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&kept, &data);
    server.cluster.start_again().expect("started");
    for (store, watcher) in stores.iter().zip(&mut watchers) {
        let end = within(watcher.next()).await.expect_err("its revisions mean nothing");
        assert!(matches!(end, WatchEnd::Expired { .. }), "{end:?}");
        answered(store).await;
        let view = within(store.fresh()).await.expect("fresh");
        assert!(view.revision() > before + 1000);
        let names: Vec<&str> =
            view.list(Kind::Application, None).map(|entry| entry.key.name.as_str()).collect();
        assert_eq!(names, ["kept"]);
        assert_eq!(store.health().losses, 1);
    }
    assert_ne!(within(stores[0].backend().head()).await.expect("head").identity, identity);
    let next = put(&stores[1], create(&app("next"), "1")).await;
    assert_eq!(found(&stores[0], &app("next")).await.revision, next);
}
