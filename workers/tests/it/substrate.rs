//! Leadership, wakes, resync, supervision and hand-over, with loops that only count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_store::memory::MemoryBackend;
use horchestra_store::store::StoreOptions;
use horchestra_store::{
    Attribution, Change, Columns, CommitError, Draft, Guard, Index, Item, Op, Refusal, Store,
};
use horchestra_testkit::eventually;
use horchestra_workers::substrate::{
    LoopMetrics, PassError, PassReport, Reconciler, Runner, RunnerOptions, Term,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(10);

/// What a counting loop does in its passes.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    Succeed,
    PanicOnce,
}

#[derive(Clone)]
struct Probe {
    passes: Arc<AtomicUsize>,
    terms: Arc<std::sync::Mutex<Vec<i64>>>,
    resync: Duration,
    behaviour: Behaviour,
}

impl Probe {
    fn new(resync: Duration) -> Probe {
        Probe { passes: Arc::default(), terms: Arc::default(), resync, behaviour: Behaviour::Succeed }
    }

    fn passes(&self) -> usize {
        self.passes.load(Ordering::SeqCst)
    }
}

impl Reconciler for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Application]
    }

    fn wakes(&self, change: &Change) -> bool {
        change.key().name != "boring"
    }

    fn resync(&self) -> Duration {
        self.resync
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(async move {
            self.terms.lock().unwrap().push(term.lease.epoch);
            let before = self.passes.fetch_add(1, Ordering::SeqCst);
            assert!(self.behaviour != Behaviour::PanicOnce || before > 0, "as asked");
            Ok(PassReport::default())
        })
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn options() -> RunnerOptions {
    RunnerOptions {
        holder: Uuid::new_v4(),
        lease_ttl: Duration::from_secs(2),
        campaign_every: Duration::from_millis(20),
        retry: Duration::from_millis(10),
    }
}

fn start(probe: &Probe, store: &Store) -> (JoinHandle<()>, CancellationToken) {
    let metrics = LoopMetrics::new(&Metrics::new("test", "0", None));
    let shutdown = CancellationToken::new();
    let runner = Runner::new(probe.clone(), store.clone(), options(), metrics);
    (tokio::spawn(runner.run(shutdown.clone())), shutdown)
}

fn item(name: &str, guards: Vec<Guard>) -> Item {
    let draft = Draft {
        key: Key::namespaced(Kind::Application, "default", name),
        uid: Uuid::new_v4(),
        generation: 1,
        deleting: false,
        body: Bytes::from_static(
            br#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"x"}}"#,
        ),
        managed: None,
        index: Index::default(),
        columns: Columns::default(),
        edges: Vec::new(),
    };
    let who =
        Attribution { user: "test".into(), verb: "create".into(), audit_id: Uuid::new_v4(), trace_id: None };
    Item { ops: vec![Op::Create(draft)], guards, who }
}

async fn loaded() -> Store {
    let store = Store::memory();
    store.fresh().await.unwrap();
    store
}

#[tokio::test]
async fn a_term_begins_with_a_pass_and_a_change_leads_to_another() {
    let store = loaded().await;
    let probe = Probe::new(HOUR);
    let (runner, shutdown) = start(&probe, &store);
    eventually(SOON, async || probe.passes() == 1).await;
    store.commit(item("boring", vec![])).await.unwrap();
    store.commit(item("interesting", vec![])).await.unwrap();
    eventually(SOON, async || probe.passes() == 2).await;
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("the loop ends when told to").unwrap();
    assert_eq!(probe.passes(), 2, "the change that does not concern it led to no pass");
}

#[tokio::test]
async fn without_changes_the_resync_drives_it() {
    let store = loaded().await;
    let probe = Probe::new(Duration::from_millis(20));
    let (_runner, shutdown) = start(&probe, &store);
    eventually(SOON, async || probe.passes() >= 5).await;
    shutdown.cancel();
}

#[tokio::test]
async fn a_pass_that_panics_is_tried_again() {
    let store = loaded().await;
    let probe = Probe { behaviour: Behaviour::PanicOnce, ..Probe::new(HOUR) };
    let (runner, shutdown) = start(&probe, &store);
    eventually(SOON, async || probe.passes() >= 2).await;
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("the loop survived").unwrap();
}

#[tokio::test]
async fn one_leads_and_the_other_follows_when_it_ends() {
    let backend = MemoryBackend::new();
    let stores = [0, 1].map(|_| Store::open(backend.clone(), StoreOptions::default()));
    for store in &stores {
        store.fresh().await.unwrap();
    }
    let (first, second) = (Probe::new(Duration::from_millis(20)), Probe::new(Duration::from_millis(20)));
    let (leading, shutdown) = start(&first, &stores[0]);
    eventually(SOON, async || first.passes() > 0).await;
    let (_waiting, end) = start(&second, &stores[1]);
    let seen = first.passes();
    eventually(SOON, async || first.passes() > seen + 5).await;
    assert_eq!(second.passes(), 0, "two lead at once");
    shutdown.cancel();
    leading.await.unwrap();
    eventually(SOON, async || second.passes() > 0).await;
    let (before, after) = (first.terms.lock().unwrap()[0], second.terms.lock().unwrap()[0]);
    assert!(after > before, "the epoch grows with every change of leader: {before}, {after}");
    end.cancel();
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing() {
    let store = loaded().await;
    let ttl = Duration::from_millis(50);
    let old = store.acquire_lease("probe", Uuid::new_v4(), ttl).await.unwrap().expect("nobody holds it");
    let fence = |epoch| vec![Guard::LeaseIs { name: "probe".into(), epoch }];
    store.commit(item("while-leading", fence(old.epoch))).await.unwrap();
    let successor = Uuid::new_v4();
    let new = eventually(SOON, async || store.acquire_lease("probe", successor, ttl).await.unwrap()).await;
    let refused = store.commit(item("afterwards", fence(old.epoch))).await;
    assert!(matches!(refused, Err(CommitError::Refused(Refusal::Guard { .. }))), "{refused:?}");
    store.commit(item("by-the-successor", fence(new.epoch))).await.unwrap();
}
