//! Crashes, lost answers, takeovers, and objects that cannot be deleted.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_service::Propagation::{self, Background, Foreground, Orphan};
use horchestra_service::{DoorError, RequestContext};
use horchestra_store::memory::CommitFault;
use horchestra_store::{Change, ChangeKind, MemoryBackend, MemoryDatabase};
use horchestra_testkit::eventually;
use horchestra_workers::gc::{GarbageCollection, Limits};
use horchestra_workers::substrate::{
    LoopMetrics, PassError, PassReport, Reconciler, Runner, RunnerOptions, Term,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::world::{Namespaces, Ref, World, on_both, term};

const SOON: Duration = Duration::from_secs(20);

/// Something of everything: circles, chains, several owners, every policy.
const OBJECTS: &[(&str, &[(&str, Ref)])] = &[
    ("back", &[]),
    ("fore", &[]),
    ("leave", &[]),
    ("kept", &[]),
    ("back-1", &[("back", Ref::Plain)]),
    ("back-2", &[("back-1", Ref::Plain)]),
    ("fore-1", &[("fore", Ref::Blocks)]),
    ("fore-2", &[("fore-1", Ref::Blocks), ("ring-2", Ref::Plain)]),
    ("leave-1", &[("leave", Ref::Plain)]),
    ("leave-2", &[("leave-1", Ref::Plain), ("leave", Ref::Blocks)]),
    ("shared", &[("fore", Ref::Blocks), ("kept", Ref::Plain)]),
    ("ring-1", &[("ring-3", Ref::Blocks)]),
    ("ring-2", &[("ring-1", Ref::Blocks)]),
    ("ring-3", &[("ring-2", Ref::Blocks)]),
];
const DELETED: &[(&str, Propagation)] =
    &[("back", Background), ("fore", Foreground), ("leave", Orphan), ("ring-1", Foreground)];
const LEFT: &[(&str, &[&str])] =
    &[("kept", &[]), ("leave-1", &[]), ("leave-2", &["leave-1"]), ("shared", &["kept"])];

struct Scene {
    world: World,
    backend: Arc<MemoryBackend>,
    namespaces: Namespaces,
}

async fn scene() -> Scene {
    let backend = MemoryDatabase::new().connect();
    let world = World::on(backend.clone(), ()).await;
    let namespaces = world.namespaces(0).await;
    world.make(&namespaces, OBJECTS).await;
    for (name, policy) in DELETED {
        world.delete(&namespaces.key(name), *policy).await;
    }
    Scene { world, backend, namespaces }
}

fn expected() -> Vec<(String, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    LEFT.iter().map(|(name, owners)| ((*name).to_owned(), owned(owners))).collect()
}

/// One write per pass, so that a pass is a place to crash at.
fn step_by_step() -> Limits {
    Limits { writes: 1, ..Limits::default() }
}

#[tokio::test]
async fn a_crash_after_any_write_and_any_lost_answer_change_nothing_of_the_outcome() {
    let undisturbed = scene().await;
    undisturbed.world.take_over(step_by_step()).await;
    let writes = undisturbed.world.settle().await;
    assert_eq!(undisturbed.world.left(&undisturbed.namespaces).await, expected());
    assert!(writes > 10, "there is something to crash at: {writes}");

    for fault in [None, Some(CommitFault::LoseAnswer), Some(CommitFault::LoseRequest)] {
        for crash_at in 0..writes {
            let Scene { world, backend, namespaces } = scene().await;
            world.take_over(step_by_step()).await;
            for _ in 0..crash_at {
                world.pass().await;
            }
            backend.break_commits(fault);
            // What is under way, and then another process that remembers nothing of it.
            world.pass().await;
            world.take_over(Limits::default()).await;
            world.settle().await;
            assert_eq!(world.left(&namespaces).await, expected(), "{fault:?} at {crash_at}");
            assert_eq!(world.settle().await, 0, "{fault:?} at {crash_at}");
        }
    }
}

#[tokio::test]
async fn who_no_longer_leads_collects_nothing() {
    let Scene { world, namespaces, .. } = scene().await;
    let store = world.service.store();
    let mut old = term(store, "another").await;
    // The name of the loop with an epoch that is over.
    old.lease.name = "garbage-collection".to_owned();
    old.lease.epoch -= 1;
    let before = world.entry(&namespaces.key("back-1")).await.unwrap().revision;
    let mut gc =
        GarbageCollection::new(world.service.clone(), Limits::default(), &Metrics::new("t", "0", None));
    assert!(matches!(gc.pass(&old).await, Err(PassError::Deposed)));
    assert_eq!(world.entry(&namespaces.key("back-1")).await.unwrap().revision, before);
}

#[tokio::test]
async fn decisions_about_what_has_changed_since_are_dropped() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        world
            .make(
                &namespaces,
                &[("p", &[]), ("q", &[]), ("a", &[("p", Ref::Plain)]), ("b", &[("p", Ref::Plain)])],
            )
            .await;
        let (a, b) = (namespaces.key("a"), namespaces.key("b"));
        let (judged_a, judged_b) = (world.entry(&a).await.unwrap(), world.entry(&b).await.unwrap());
        let collector = RequestContext::new(term(world.service.store(), "another").await.caller());
        // Adopted meanwhile; and replaced by another of its name.
        let adopted = super::world::reference(&namespaces.key("q"), &world.uid(&namespaces.key("q")).await);
        world.merge(&a, json!({"metadata": {"ownerReferences": [adopted]}})).await;
        world.delete(&b, Background).await;
        world
            .create(Kind::PersistentVolume, &namespaces.own, json!({"metadata": {"name": "b"}, "spec": {}}))
            .await;
        assert!(matches!(
            world.service.collect(&collector, &judged_a, Background).await,
            Err(DoorError::Refused(_))
        ));
        assert!(matches!(
            world.service.collect(&collector, &judged_b, Background).await,
            Err(DoorError::Gone)
        ));
        let names: Vec<String> = world.left(&namespaces).await.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b", "p", "q"]);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_deleted_keeps_nothing_else_waiting() {
    let backend = MemoryDatabase::new().connect();
    let world = World::on(backend.clone(), ()).await;
    let namespaces = world.namespaces(0).await;
    world.make(&namespaces, &[("p", &[]), ("a", &[("p", Ref::Plain)]), ("z", &[("p", Ref::Plain)])]).await;
    // A Service that an Application declares cannot be deleted, whoever asks.
    let uid = world.uid(&namespaces.key("p")).await;
    let owner = super::world::reference(&namespaces.key("p"), &uid);
    let service =
        json!({"metadata": {"name": "s", "ownerReferences": [owner]}, "spec": {"ports": [{"port": 1}]}});
    let service = world.create(Kind::Service, &namespaces.own, service).await.key.clone();
    let app = json!({"metadata": {"name": "web"}, "spec": {"image": "x", "serviceName": "s"}});
    world.create(Kind::Application, &namespaces.own, app).await;
    // And one makes the database raise an error.
    backend.poison("a");

    world.take_over(step_by_step()).await;
    world.delete(&namespaces.key("p"), Background).await;
    let mut refused = 0;
    for _ in 0..6 {
        refused += world.pass().await.1;
    }
    assert!(world.get(&namespaces.key("z")).await.is_none(), "it goes although the others cannot");
    assert!(refused >= 2, "each was tried");
    assert!(world.get(&service).await.is_some());

    world.delete(&Key::namespaced(Kind::Application, namespaces.own.as_str(), "web"), Background).await;
    eventually(SOON, async || {
        world.pass().await;
        world.get(&service).await.is_none()
    })
    .await;
}

#[tokio::test]
async fn it_is_woken_by_what_concerns_it_and_by_nothing_else() {
    let world = World::memory().await;
    let namespaces = world.namespaces(0).await;
    world.make(&namespaces, &[("p", &[]), ("a", &[("p", Ref::Blocks)]), ("free", &[])]).await;
    let store = world.service.store();
    let metrics = Metrics::new("test", "0", None);
    let mut collection = GarbageCollection::new(world.service.clone(), Limits::default(), &metrics);
    world.resign().await;
    let term = term(store, "garbage-collection").await;
    collection.pass(&term).await.unwrap();
    let mut watcher = store.watch(Kind::PersistentVolume, store.snapshot().revision()).unwrap();

    let (p, a, free) = (namespaces.key("p"), namespaces.key("a"), namespaces.key("free"));
    let owner = super::world::reference(&p, &world.uid(&p).await);
    world.merge(&free, json!({"metadata": {"labels": {"a": "b"}}})).await;
    world.merge(&free, json!({"metadata": {"ownerReferences": [owner]}})).await;
    world.merge(&free, json!({"metadata": {"ownerReferences": null}})).await;
    world.delete(&free, Background).await;
    world.make(&namespaces, &[("new", &[])]).await;
    world.merge(&a, json!({"metadata": {"ownerReferences": null}})).await;
    world.delete(&p, Background).await;
    let mut seen = Vec::new();
    while seen.len() < 7 {
        for change in watcher.next().await.unwrap() {
            seen.push((change.key().name.clone(), change.kind, collection.wakes(&change)));
        }
    }
    let expected = [
        ("a label", "free", ChangeKind::Modified, false),
        ("an owner", "free", ChangeKind::Modified, true),
        ("no owner any more, which it has not seen before", "free", ChangeKind::Modified, false),
        ("nobody owned it", "free", ChangeKind::Deleted, false),
        ("without owners", "new", ChangeKind::Added, false),
        ("it had an owner", "a", ChangeKind::Modified, true),
        ("it had dependents", "p", ChangeKind::Deleted, true),
    ];
    for ((what, name, kind, wakes), seen) in expected.into_iter().zip(seen) {
        assert_eq!(seen, (name.to_owned(), kind, wakes), "{what}");
    }
}

/// Changes drive it, also those that no notification tells of.
#[tokio::test]
async fn a_cascade_goes_through_without_waiting_for_a_resync() {
    for deaf in [false, true] {
        let database = MemoryDatabase::new();
        let world = World::on(database.connect(), ()).await;
        let namespaces = world.namespaces(0).await;
        world.make(&namespaces, OBJECTS).await;
        world.resign().await;
        let backend = database.connect();
        backend.set_deaf(deaf);
        let other = World::on(backend, ()).await;
        other.resign().await;
        let metrics = Metrics::new("test", "0", None);
        let collection = Hourly(GarbageCollection::new(other.service.clone(), Limits::default(), &metrics));
        let shutdown = CancellationToken::new();
        let store = other.service.store().clone();
        let runner = Runner::new(collection, store, RunnerOptions::default(), LoopMetrics::new(&metrics));
        let running = tokio::spawn(runner.run(shutdown.clone()));
        for (name, policy) in DELETED {
            world.delete(&namespaces.key(name), *policy).await;
        }
        eventually(SOON, async || world.volumes(&namespaces).await == LEFT.len()).await;
        shutdown.cancel();
        running.await.unwrap();
        assert_eq!(world.left(&namespaces).await, expected(), "deaf: {deaf}");
    }
}

/// The collection, which nothing but changes drives.
struct Hourly(GarbageCollection);

impl Reconciler for Hourly {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn kinds(&self) -> &'static [Kind] {
        self.0.kinds()
    }

    fn wakes(&self, change: &Change) -> bool {
        self.0.wakes(change)
    }

    fn resync(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn begin_term(&mut self) {
        self.0.begin_term();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        self.0.pass(term)
    }
}
