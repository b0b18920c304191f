//! Random histories of three processes on one in-memory database, with everything going wrong that can.
//!
//! Whatever happened, in the end: who was told "committed" finds the row at its revision, exactly once; who
//! was told "not committed" finds nothing; every process's current view is what the database says; every
//! watcher has either followed to the same state or been told to list again, and the latter only if
//! something happened that takes the log away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::memory::{Backup, CommitFault};
use horchestra_store::{
    Backend, Change, ChangeKind, CommitError, MemoryBackend, MemoryDatabase, Op, Snapshot, Store,
    StoreOptions, WatchEnd, Watcher,
};
use proptest::prelude::*;
use tokio::time::timeout;

use crate::fixture::*;

const PROCESSES: usize = 3;
const KEYS: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    /// These processes write at the same time: (process, key).
    Write(Vec<(usize, usize)>),
    Watch(usize),
    /// A watcher takes what there is.
    Follow(usize),
    CutOff(usize, bool),
    Deaf(usize, bool),
    Break(usize, CommitFault),
    DeliverLate(usize),
    Slow(usize, u64),
    SkipRow(usize),
    Compact(i64),
    Backup,
    Restore,
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    let process = || 0..PROCESSES;
    let fault =
        prop_oneof![Just(CommitFault::LoseAnswer), Just(CommitFault::LoseRequest), Just(CommitFault::Late)];
    prop_oneof![
        12 => proptest::collection::vec((process(), 0..KEYS), 1..8).prop_map(Step::Write),
        3 => process().prop_map(Step::Watch),
        3 => any::<usize>().prop_map(Step::Follow),
        2 => (process(), any::<bool>()).prop_map(|(at, cut)| Step::CutOff(at, cut)),
        1 => (process(), any::<bool>()).prop_map(|(at, deaf)| Step::Deaf(at, deaf)),
        2 => (process(), fault).prop_map(|(at, fault)| Step::Break(at, fault)),
        1 => process().prop_map(Step::DeliverLate),
        1 => (process(), 0..3u64).prop_map(|(at, latency)| Step::Slow(at, latency)),
        1 => process().prop_map(Step::SkipRow),
        1 => (0..20i64).prop_map(Step::Compact),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
        3 => Just(Step::Pause),
    ]
}

type State = BTreeMap<String, (i64, String)>;

fn state(snapshot: &Snapshot) -> State {
    let list = snapshot.list(Kind::Application, None);
    list.map(|entry| (entry.key.name.clone(), (entry.revision, value(entry).to_owned()))).collect()
}

fn advance(state: &mut State, changes: &[Change]) {
    for change in changes {
        let name = change.key().name.clone();
        match change.kind {
            ChangeKind::Deleted => state.remove(&name),
            _ => state.insert(name, (change.revision, value(&change.entry).to_owned())),
        };
    }
}

struct Watching {
    watcher: Watcher,
    state: State,
    cursor: i64,
    ended: bool,
    small: bool,
}

impl Watching {
    /// Follows for a moment; up to `end`, if that is given, for as long as it takes.
    async fn follow(&mut self, end: Option<i64>) {
        let patience = if end.is_some() { PATIENCE } else { Duration::from_millis(1) };
        while !self.ended && end.is_none_or(|end| self.cursor < end) {
            match timeout(patience, self.watcher.next()).await {
                Ok(Ok(changes)) => {
                    for change in &changes {
                        assert!(change.revision > self.cursor, "in order, once");
                        self.cursor = change.revision;
                    }
                    advance(&mut self.state, &changes);
                }
                Ok(Err(WatchEnd::Expired { .. })) => self.ended = true,
                Ok(Err(WatchEnd::Closed)) => panic!("the store still runs"),
                Err(_) => {
                    assert!(end.is_none(), "a watcher starves at {} of {end:?}", self.cursor);
                    return;
                }
            }
        }
    }
}

/// What a write was told: its value, and the revision if it was committed (`None`: certainly not).
struct Told {
    value: String,
    revision: Option<i64>,
}

struct World {
    database: MemoryDatabase,
    truth: Arc<MemoryBackend>,
    processes: Vec<(Store, Arc<MemoryBackend>)>,
    watching: Vec<Watching>,
    told: Vec<Told>,
    /// Value and revision of every row that was ever seen in the log.
    log: Vec<(i64, String)>,
    read: i64,
    backup: Option<(Backup, i64)>,
    lost_history: bool,
    lost_log: bool,
    writes: usize,
}

impl World {
    async fn new() -> World {
        let database = MemoryDatabase::new();
        let mut processes = Vec::new();
        for process in 0..PROCESSES {
            let backend = database.connect();
            let options = StoreOptions {
                poll: Duration::from_millis(20),
                settle: Duration::from_millis(60),
                // The first one's ring is so small that watchers start below it, and fall off it.
                ring_events: if process == 0 { 4 } else { 10_000 },
                prefill: if process == 0 { 2 } else { 10_000 },
                ..StoreOptions::default()
            };
            let store = Store::open(backend.clone(), options);
            within(store.ready()).await;
            processes.push((store, backend));
        }
        World {
            truth: database.connect(),
            database,
            processes,
            watching: Vec::new(),
            told: Vec::new(),
            log: Vec::new(),
            read: 0,
            backup: None,
            lost_history: false,
            lost_log: false,
            writes: 0,
        }
    }

    /// Reads what is new in the log, before anything can take it away.
    async fn record(&mut self) {
        let read = self.truth.changes(self.read, usize::MAX).await.expect("the truth is never cut off");
        for row in read.rows {
            self.read = row.change.revision;
            if row.change.kind != ChangeKind::Deleted {
                self.log.push((self.read, value(&row.change.entry).to_owned()));
            }
        }
        self.read = self.read.max(read.head.oldest);
    }

    async fn write(&mut self, who: &[(usize, usize)]) {
        let heads = self.truth.load(&[Kind::Application]).await.expect("loaded").entries;
        let mut writes = Vec::new();
        for (process, key) in who {
            self.writes += 1;
            let value = self.writes.to_string();
            let key: Key = app(&key.to_string());
            let op = match heads.iter().find(|entry| entry.key == key) {
                None => create(&key, &value),
                Some(head) if self.writes.is_multiple_of(4) => delete(head),
                Some(head) if self.writes.is_multiple_of(3) => update_status(head, &value),
                Some(head) => update(head, &value),
            };
            let told = !matches!(op, Op::Delete { .. });
            let store = &self.processes[*process].0;
            writes.push(async move { (told, value, store.commit(item(vec![op])).await) });
        }
        for (tell, value, result) in within(futures::future::join_all(writes)).await {
            let revision = match result {
                Ok(done) => Some(done.revisions[0]),
                Err(CommitError::Unknown) => continue,
                Err(_) => None,
            };
            if tell {
                self.told.push(Told { value, revision });
            }
        }
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Write(who) => self.write(who).await,
            Step::Watch(process) => {
                let (store, _) = &self.processes[*process];
                let view = store.snapshot();
                let watcher = store.watch(Kind::Application, view.revision()).expect("a watch");
                let cursor = view.revision();
                let (state, small) = (state(&view), *process == 0);
                self.watching.push(Watching { watcher, state, cursor, ended: false, small });
            }
            Step::Follow(at) => {
                let count = self.watching.len().max(1);
                if let Some(watching) = self.watching.get_mut(at % count) {
                    watching.follow(None).await;
                }
            }
            Step::CutOff(process, cut) => self.processes[*process].1.set_cut_off(*cut),
            Step::Deaf(process, deaf) => self.processes[*process].1.set_deaf(*deaf),
            Step::Break(process, fault) => self.processes[*process].1.break_commits([*fault]),
            Step::DeliverLate(process) => self.processes[*process].1.deliver_late(),
            Step::Slow(process, millis) => {
                self.processes[*process].1.set_latency(Duration::from_millis(*millis));
            }
            Step::SkipRow(process) => {
                self.lost_log = true;
                self.processes[*process].1.skip_once(self.read + 1);
            }
            Step::Compact(keep) => {
                self.lost_log = true;
                self.database.compact(self.read - keep);
            }
            Step::Backup => self.backup = Some((self.database.backup(), self.read)),
            Step::Restore => self.restore().await,
            Step::Pause => tokio::time::sleep(Duration::from_millis(5)).await,
        }
        self.record().await;
    }

    /// Puts the backup back, and lets everybody notice before the lost revisions are given out again:
    /// that is what separates a loss that can be shown from one that cannot.
    async fn restore(&mut self) {
        let Some((backup, at)) = &self.backup else { return };
        if *at == self.read {
            return;
        }
        for (_, backend) in &self.processes {
            backend.set_cut_off(false);
            backend.set_latency(Duration::ZERO);
        }
        // Everybody knows the newest row, and nobody has a write under way.
        for (store, _) in &self.processes {
            within(async { while store.fresh().await.is_err() {} }).await;
        }
        let before: Vec<u64> = self.processes.iter().map(|(store, _)| store.health().losses).collect();
        self.database.restore(backup);
        for ((store, _), before) in self.processes.iter().zip(before) {
            within(async {
                while store.health().losses == before || !store.health().loaded {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
        }
        self.lost_history = true;
        let at = *at;
        self.log.retain(|(revision, _)| *revision <= at);
        self.told.retain(|told| told.revision.is_none_or(|revision| revision <= at));
        self.read = self.truth.head().await.expect("head").oldest;
        self.backup = None;
    }

    async fn conclude(&mut self) {
        for (_, backend) in &self.processes {
            backend.set_cut_off(false);
            backend.set_deaf(false);
            backend.set_latency(Duration::ZERO);
        }
        self.record().await;
        for (_, backend) in &self.processes {
            backend.deliver_late();
        }
        let end = item(vec![create(&app("end"), "end")]);
        let done = self.truth.commit(&[end], uuid::Uuid::new_v4()).await.expect("committed");
        let end = done.items[0].as_ref().expect("committed").revisions[0];
        self.record().await;

        let mut values: Vec<&String> = self.log.iter().map(|(_, value)| value).collect();
        values.sort();
        assert!(values.windows(2).all(|pair| pair[0] != pair[1]), "nothing was committed twice");
        for told in &self.told {
            let found = self.log.iter().find(|(_, value)| *value == told.value);
            assert_eq!(found.map(|(revision, _)| *revision), told.revision, "write {}", told.value);
        }

        let loaded = self.truth.load(&[Kind::Application]).await.expect("loaded");
        let row = |entry: &Arc<horchestra_store::Entry>| {
            (entry.key.name.clone(), (entry.revision, value(entry).to_owned()))
        };
        let truth: State = loaded.entries.iter().map(row).collect();
        for (store, _) in &self.processes {
            let view = within(async {
                loop {
                    if let Ok(view) = store.fresh().await {
                        break view;
                    }
                }
            })
            .await;
            assert_eq!(view.revision(), end);
            assert_eq!(state(&view), truth);
            for key in (0..KEYS).map(|key| app(&key.to_string())) {
                let (cached, stored) = (view.get(&key), loaded.entries.iter().find(|e| e.key == key));
                assert_eq!(
                    cached.map(|entry| (entry.core_revision, entry.body.clone())),
                    stored.map(|entry| (entry.core_revision, entry.body.clone()))
                );
            }
        }
        for watching in &mut self.watching {
            watching.follow(Some(end)).await;
            if watching.ended {
                assert!(self.lost_history || self.lost_log || watching.small, "no reason to end");
            } else {
                assert_eq!(watching.state, truth);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everybody_ends_with_the_truth(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.take(step).await;
            }
            world.conclude().await;
        });
    }
}
