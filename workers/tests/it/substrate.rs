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
    Attribution, Change, Columns, CommitError, Draft, Guard, Index, Item, MemoryDatabase, Op, ReadError,
    Refusal, Store,
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
    AlwaysPanic,
    /// Passes never end.
    Hang,
    /// Looking at a change panics.
    PanicAtChanges,
    /// The database cannot be read.
    Away,
}

#[derive(Clone)]
struct Probe {
    passes: Arc<AtomicUsize>,
    terms: Arc<std::sync::Mutex<Vec<i64>>>,
    begun: Arc<AtomicUsize>,
    resync: Duration,
    behaviour: Behaviour,
}

impl Probe {
    fn new(resync: Duration) -> Probe {
        let (passes, terms, begun) = (Arc::default(), Arc::default(), Arc::default());
        Probe { passes, terms, begun, resync, behaviour: Behaviour::Succeed }
    }

    fn behaving(self, behaviour: Behaviour) -> Probe {
        Probe { behaviour, ..self }
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
        assert!(self.behaviour != Behaviour::PanicAtChanges, "as asked");
        change.key().name != "boring"
    }

    fn begin_term(&mut self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn resync(&self) -> Duration {
        self.resync
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(async move {
            self.terms.lock().unwrap().push(term.lease.epoch);
            let before = self.passes.fetch_add(1, Ordering::SeqCst);
            match self.behaviour {
                Behaviour::PanicOnce if before == 0 => panic!("as asked"),
                Behaviour::AlwaysPanic => panic!("as asked"),
                Behaviour::Hang => std::future::pending().await,
                Behaviour::Away => Err(PassError::Read(ReadError::Unavailable)),
                _ => Ok(PassReport::default()),
            }
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
        grace: Duration::from_millis(20),
        panics: 3,
    }
}

fn start(probe: &Probe, store: &Store) -> (JoinHandle<()>, CancellationToken) {
    start_with(probe, store, options(), &Metrics::new("test", "0", None))
}

fn start_with(
    probe: &Probe,
    store: &Store,
    options: RunnerOptions,
    metrics: &Metrics,
) -> (JoinHandle<()>, CancellationToken) {
    let shutdown = CancellationToken::new();
    let runner = Runner::new(probe.clone(), store.clone(), options, LoopMetrics::new(metrics));
    (tokio::spawn(runner.run(shutdown.clone())), shutdown)
}

/// Whose passes wait for nothing but being told.
fn patient() -> RunnerOptions {
    RunnerOptions { campaign_every: HOUR, lease_ttl: HOUR, ..options() }
}

async fn two_processes() -> (MemoryDatabase, [Store; 2]) {
    let database = MemoryDatabase::new();
    let stores = [0, 1].map(|_| Store::open(database.connect(), StoreOptions::default()));
    for store in &stores {
        store.fresh().await.unwrap();
    }
    (database, stores)
}

async fn two_connections() -> ([Arc<MemoryBackend>; 2], [Store; 2]) {
    let database = MemoryDatabase::new();
    let backends = [database.connect(), database.connect()];
    let stores = [0, 1].map(|at| Store::open(Arc::clone(&backends[at]) as Arc<_>, StoreOptions::default()));
    for store in &stores {
        store.fresh().await.unwrap();
    }
    (backends, stores)
}

/// The number behind a line of the metrics that begins so.
fn metric(metrics: &Metrics, line: &str) -> u64 {
    let text = metrics.encode().unwrap();
    let found = text.lines().find_map(|found| found.strip_prefix(line)).map(str::trim);
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn item(name: &str, guards: Vec<Guard>) -> Item {
    item_of(Key::namespaced(Kind::Application, "default", name), guards)
}

fn item_of(key: Key, guards: Vec<Guard>) -> Item {
    let draft = Draft {
        key,
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
        Attribution { user: "test".into(), verb: "create".into(), audit_id: Uuid::new_v4(), trace: None };
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
    store.commit(item_of(Key::cluster(Kind::Node, "interesting"), vec![])).await.unwrap();
    store.commit(item("interesting", vec![])).await.unwrap();
    eventually(SOON, async || probe.passes() == 2).await;
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("the loop ends when told to").unwrap();
    assert_eq!(probe.passes(), 2, "neither a change nor a kind that does not concern it led to a pass");
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
    let probe = Probe::new(HOUR).behaving(Behaviour::PanicOnce);
    let metrics = Metrics::new("test", "0", None);
    let (runner, shutdown) = start_with(&probe, &store, options(), &metrics);
    eventually(SOON, async || probe.passes() >= 2).await;
    assert_eq!(probe.begun.load(Ordering::SeqCst), 2, "it starts over with nothing remembered");
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("the loop survived").unwrap();
    for (line, count) in [
        ("horchestra_loop_passes_total{reconciler=\"probe\",outcome=\"panicked\"}", 1),
        ("horchestra_loop_passes_total{reconciler=\"probe\",outcome=\"ok\"}", 1),
        ("horchestra_loop_wakes_total{reconciler=\"probe\",source=\"term\"}", 1),
        ("horchestra_loop_wakes_total{reconciler=\"probe\",source=\"retry\"}", 1),
        ("horchestra_loop_panics_total{reconciler=\"probe\"}", 1),
        ("horchestra_loop_leading{reconciler=\"probe\"}", 0),
        ("horchestra_loop_epoch{reconciler=\"probe\"}", 1),
    ] {
        assert_eq!(metric(&metrics, line), count, "{line} in {}", metrics.encode().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_is_asked_every_second_and_no_more_often() {
    let store = loaded().await;
    let probe = Probe::new(HOUR).behaving(Behaviour::Away);
    let (_runner, shutdown) =
        start_with(&probe, &store, RunnerOptions::default(), &Metrics::new("test", "0", None));
    eventually(SOON, async || probe.passes() > 0).await;
    let before = probe.passes();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = probe.passes() - before;
    assert!((50..=70).contains(&asked), "{asked} times in a minute");
    shutdown.cancel();
}

#[tokio::test]
async fn a_change_that_cannot_be_judged_leads_to_a_pass() {
    let store = loaded().await;
    let probe = Probe::new(HOUR).behaving(Behaviour::PanicAtChanges);
    let (runner, shutdown) = start(&probe, &store);
    eventually(SOON, async || probe.passes() == 1).await;
    store.commit(item("boring", vec![])).await.unwrap();
    eventually(SOON, async || probe.passes() == 2).await;
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("the loop survived").unwrap();
}

#[tokio::test]
async fn who_panics_again_and_again_leaves_the_lease_to_others() {
    let (_database, stores) = two_processes().await;
    let (broken, sound) = (Probe::new(HOUR).behaving(Behaviour::AlwaysPanic), Probe::new(HOUR));
    let metrics = Metrics::new("test", "0", None);
    let (_broken, end) = start_with(&broken, &stores[0], patient(), &metrics);
    eventually(SOON, async || broken.passes() > 0).await;
    let (_sound, end_other) = start_with(&sound, &stores[1], patient(), &metrics);
    eventually(SOON, async || sound.passes() == 1).await;
    assert_eq!(broken.passes(), 3);
    end.cancel();
    end_other.cancel();
}

#[tokio::test]
async fn who_waits_for_a_lease_hears_when_it_is_given_up() {
    let (_database, stores) = two_processes().await;
    let (first, second) = (Probe::new(HOUR), Probe::new(HOUR));
    let metrics = Metrics::new("test", "0", None);
    let (leading, shutdown) = start_with(&first, &stores[0], patient(), &metrics);
    eventually(SOON, async || first.passes() == 1).await;
    let (_waiting, end) = start_with(&second, &stores[1], patient(), &metrics);
    // Neither of them asks again within an hour, nor does the lease run out.
    shutdown.cancel();
    leading.await.unwrap();
    eventually(SOON, async || second.passes() == 1).await;
    end.cancel();
}

#[tokio::test]
async fn a_pass_that_does_not_end_holds_nobody_up() {
    let (database, stores) = two_processes().await;
    let hanging = Probe::new(HOUR).behaving(Behaviour::Hang);
    let metrics = Metrics::new("test", "0", None);
    let (runner, shutdown) = start_with(&hanging, &stores[0], options(), &metrics);
    eventually(SOON, async || hanging.passes() == 1).await;
    // The lease runs out and another takes it for a moment: the pass is dropped and the loop campaigns anew.
    let thief = Uuid::new_v4();
    let stolen = eventually(SOON, async || {
        database.advance(options().lease_ttl);
        stores[1].acquire_lease("probe", thief, Duration::from_millis(1)).await.unwrap()
    })
    .await;
    stores[1].release_lease(&stolen).await.unwrap();
    eventually(SOON, async || hanging.passes() == 2).await;
    shutdown.cancel();
    tokio::time::timeout(SOON, runner).await.expect("it ends although its pass does not").unwrap();
    let next = stores[1].acquire_lease("probe", thief, HOUR).await.unwrap();
    assert!(next.is_some(), "the lease was given up");
    assert_eq!(metric(&metrics, "horchestra_loop_passes_total{reconciler=\"probe\",outcome=\"dropped\"}"), 2);
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

/// How long two processes are without a leader when the first is killed after having led for so long. Time is the
/// test's.
async fn without_leader(led: Duration) -> Duration {
    let (backends, stores) = two_connections().await;
    let metrics = Metrics::new("test", "0", None);
    let (first, second) = (Probe::new(HOUR), Probe::new(HOUR));
    let (_killed, end_killed) = start_with(&first, &stores[0], RunnerOptions::default(), &metrics);
    eventually(SOON, async || first.passes() == 1).await;
    let (_waiting, end) = start_with(&second, &stores[1], RunnerOptions::default(), &metrics);
    tokio::time::sleep(led).await;
    assert_eq!(second.passes(), 0, "one runs it, as long as it renews its term");
    backends[0].set_stalled(true);
    let killed = tokio::time::Instant::now();
    eventually(Duration::from_secs(60), async || second.passes() == 1).await;
    let waited = killed.elapsed();
    assert_eq!(first.passes(), 1);
    end.cancel();
    end_killed.cancel();
    waited
}

#[tokio::test(start_paused = true)]
async fn who_is_killed_has_a_successor_at_the_moment_its_term_is_over() {
    let RunnerOptions { lease_ttl, campaign_every, .. } = RunnerOptions::default();
    // A term is prolonged every third of it.
    let (least, most) = (lease_ttl * 2 / 3, lease_ttl + campaign_every / 4);
    assert!(most < Duration::from_secs(13), "{most:?}");
    for at in 0..12u32 {
        let waited = without_leader(Duration::from_secs(60) + lease_ttl / 12 * at).await;
        assert!(least <= waited + campaign_every && waited <= most, "{waited:?} at {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_that_is_not_answered_does_not_cost_a_term() {
    let (backends, stores) = two_connections().await;
    let metrics = Metrics::new("test", "0", None);
    let (first, second) = (Probe::new(HOUR), Probe::new(HOUR));
    let (_leading, end) = start_with(&first, &stores[0], RunnerOptions::default(), &metrics);
    eventually(SOON, async || first.passes() == 1).await;
    let (_waiting, end_other) = start_with(&second, &stores[1], RunnerOptions::default(), &metrics);
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        // What is asked now is answered when nobody waits for it any more.
        backends[0].set_latency(HOUR);
        tokio::time::sleep(Duration::from_secs(3)).await;
        backends[0].set_latency(Duration::ZERO);
    }
    assert_eq!((first.passes(), second.passes()), (1, 0), "the first led all the time");
    end.cancel();
    end_other.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_up_while_nobody_listened_is_asked_for_when_somebody_does() {
    let (backends, stores) = two_connections().await;
    let metrics = Metrics::new("test", "0", None);
    let (first, second) = (Probe::new(HOUR), Probe::new(HOUR));
    let (leading, shutdown) = start_with(&first, &stores[0], patient(), &metrics);
    eventually(SOON, async || first.passes() == 1).await;
    let (_waiting, end) = start_with(&second, &stores[1], patient(), &metrics);
    tokio::time::sleep(SOON).await;
    backends[1].set_deaf(true);
    shutdown.cancel();
    leading.await.unwrap();
    tokio::time::sleep(SOON).await;
    assert_eq!(second.passes(), 0, "it has not heard of it");
    backends[1].set_deaf(false);
    backends[1].set_cut_off(true);
    backends[1].set_cut_off(false);
    eventually(SOON, async || second.passes() == 1).await;
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
