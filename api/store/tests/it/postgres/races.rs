//! Several processes at once, some of them stopped.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_store::{Backend, CommitError, Guard, Item, Op, Refusal, Store, StoreOptions};
use horchestra_testkit::{TempDir, TestDatabase, eventually, postgres_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

async fn stores(database: &TestDatabase, count: usize) -> Vec<Store> {
    let mut stores = Vec::new();
    for _ in 0..count {
        let store = Store::open(connect(database), StoreOptions::default());
        within(store.ready()).await;
        stores.push(store);
    }
    stores
}

async fn shut_down(stores: Vec<Store>) {
    for store in stores {
        store.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_never_deleted_under_a_creator() {
    let database = database().await;
    let stores = stores(&database, 2).await;
    for round in 0..30 {
        let name = format!("room{round}");
        let room = created(&stores[0], &namespace(&name), "1").await;
        let inside = horchestra_core::kind::Key::namespaced(Kind::Application, name.clone(), "web");
        let enter = guarded(vec![create(&inside, "1")], vec![Guard::Exists(room.key.clone())]);
        let close = guarded(vec![delete(&room)], vec![Guard::NamespaceEmpty(name)]);
        let (entered, closed) = tokio::join!(stores[0].commit(enter), stores[1].commit(close));
        assert!(entered.is_ok() != closed.is_ok(), "round {round}: {entered:?}, {closed:?}");
    }
    shut_down(stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_do_not_overfill_a_node() {
    let database = database().await;
    let stores = stores(&database, 2).await;
    put(&stores[0], Op::Create(capacity(draft(&node("n"), Uuid::new_v4(), "1"), 4))).await;
    let bind = |name: &str| {
        let app = placed(draft(&app(name), Uuid::new_v4(), "1"), "n", 3);
        let fits = Guard::Capacity { node: "n".into(), zero_is_unbounded: false };
        guarded(vec![Op::Create(app)], vec![fits])
    };
    let (one, other) = tokio::join!(stores[0].commit(bind("a")), stores[1].commit(bind("b")));
    assert!(one.is_ok() != other.is_ok(), "{one:?}, {other:?}");

    // The same in one batch, and in one batch with others around them.
    let backend = connect(&database);
    for batch in [vec![bind("c"), bind("d")], vec![item(vec![create(&app("x"), "1")]), bind("e"), bind("f")]]
    {
        let done = backend.commit(&batch, Uuid::new_v4()).await.expect("an answer");
        let refused = done.items.iter().filter(|result| matches!(result, Err(Refusal::Guard { .. }))).count();
        assert_eq!(refused, 2, "the node is full: {:?}", done.items);
    }
    backend.close().await;
    shut_down(stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_its_lease_writes_nothing_more() {
    let database = database().await;
    let stores = Arc::new(stores(&database, 2).await);
    let term = Duration::from_millis(50);
    let (me, other) = (Uuid::new_v4(), Uuid::new_v4());
    let mine = stores[0].acquire_lease("loop", me, term).await.expect("an answer").expect("free");
    let fenced = |n: usize, epoch: i64| -> Item {
        guarded(
            vec![create(&app(&format!("e{epoch}-{n}")), "1")],
            vec![Guard::LeaseIs { name: "loop".into(), epoch }],
        )
    };
    // Writes as fast as it can, without ever looking at its term.
    let mut writer = JoinSet::new();
    let stubborn = Arc::clone(&stores);
    let epoch = mine.epoch;
    writer.spawn(async move {
        let mut written = Vec::new();
        for n in 0.. {
            match stubborn[0].commit(fenced(n, epoch)).await {
                Ok(committed) => written.push(committed.revisions[0]),
                Err(error) => return (written, error),
            }
        }
        unreachable!("the loop has no other end")
    });
    let taken = loop {
        if let Some(lease) =
            stores[1].acquire_lease("loop", other, Duration::from_secs(60)).await.expect("an answer")
        {
            break lease;
        }
        tokio::task::yield_now().await;
    };
    assert!(taken.epoch > mine.epoch);
    let first = within(stores[1].commit(fenced(0, taken.epoch))).await.expect("the new holder writes");
    let (written, error) = within(writer.join_next()).await.expect("one").expect("no panic");
    assert!(matches!(error, CommitError::Refused(Refusal::Guard { .. })), "{error}");
    assert!(written.iter().all(|revision| *revision < first.revisions[0]));
    assert!(!stores[0].renew_lease(&mine, term).await.expect("an answer"));
    shut_down(Arc::into_inner(stores).expect("nobody else has them")).await;
}

/// Another process that commits without pause, by way of pgbench.
struct Foreign {
    child: Child,
    _folder: TempDir,
}

impl Foreign {
    fn start(database: &TestDatabase) -> Foreign {
        let folder = TempDir::new().expect("a folder");
        let script = folder.path().join("commits.sql");
        std::fs::write(
            &script,
            "\\set n random(1, 2000000000)\n\
             select * from horchestra.commit_one(gen_random_uuid(), 'foreign', 'create', gen_random_uuid(), null, \
             1::smallint, 3::smallint, 'shop', 'foreign-' || :n, gen_random_uuid(), 0, 1, false, null, null, 0, 0, \
             '{\"labels\":{},\"fields\":{}}'::bytea, null, '{}'::bytea, 0, null, null, null, null, null, null, null, \
             null, null, null, null);\n",
        )
        .expect("a script");
        let child = Command::new(postgres_program("pgbench").expect("PostgreSQL"))
            .args(["--no-vacuum", "--client=4", "--time=600", "--file"])
            .arg(&script)
            .arg(database.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbench");
        Foreign { child, _folder: folder }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("it runs");
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_holds_up_nobody() {
    let database = database().await;
    let stores = stores(&database, 1).await;
    let foreign = Foreign::start(&database);
    for round in 0..20 {
        // It is in the middle of its work whenever its number of objects grows.
        let before = stores[0].snapshot().count(Kind::Application, None);
        eventually(PATIENCE, async || stores[0].snapshot().count(Kind::Application, None) > before + 5).await;
        foreign.signal(Signal::SIGSTOP);
        let writes = async {
            for n in 0..20 {
                put(&stores[0], create(&app(&format!("r{round}-{n}")), "1")).await;
            }
        };
        // Far less than the five seconds after which the database would end a transaction that waits.
        tokio::time::timeout(Duration::from_secs(4), writes)
            .await
            .expect("nobody waits for a stopped process");
        foreign.signal(Signal::SIGCONT);
    }
    drop(foreign);
    shut_down(stores).await;
}
