//! Random lives of a set, with every write of the loop judged against the state that it met.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::application_set::{ApplicationSet, Child, SpreadNode, expand};
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_service::Propagation;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry, MemoryDatabase};
use horchestra_workers::substrate::Reconciler as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::crash::Limited;
use super::world::*;

/// Follows the log row by row, and judges what the loop wrote by what was stored at that very moment.
#[derive(Default)]
pub struct Checker {
    objects: BTreeMap<Key, Arc<Entry>>,
    seen: i64,
    /// How many changes of available children were judged.
    pub judged: usize,
}

impl Checker {
    pub async fn follow(&mut self, world: &World) {
        self.take(world.log(self.seen).await);
    }

    /// Goes on with these rows.
    pub fn take(&mut self, rows: Vec<LogRow>) {
        for row in rows {
            self.seen = row.change.revision;
            if row.who.user == LOOP && row.change.object_kind() == Kind::Application {
                self.judged += usize::from(self.judge(&row));
            }
            let key = row.change.key().clone();
            match row.change.kind {
                ChangeKind::Deleted => drop(self.objects.remove(&key)),
                _ => drop(self.objects.insert(key, row.change.entry)),
            }
        }
    }

    /// Whether an available child was changed under a budget.
    fn judge(&self, row: &LogRow) -> bool {
        let (after, key) = (&row.change.entry, row.change.key());
        let before = self.objects.get(key);
        let name = owner(after).or_else(|| before.and_then(owner)).expect("a child of a set");
        let set = self.objects.get(&set(&name)).unwrap_or_else(|| panic!("{key}: its set is there"));
        let typed = set.typed::<ApplicationSet>().unwrap();
        let nodes: Vec<SpreadNode> = self
            .objects
            .values()
            .filter(|entry| entry.key.kind == Kind::Node)
            .map(|entry| SpreadNode::from(&*entry.typed::<Node>().unwrap()))
            .collect();
        let expansion = expand(&set.object().unwrap(), &nodes).unwrap();
        let wanted = expansion.children.iter().find(|child| child.name() == key.name);
        match row.change.kind {
            ChangeKind::Added => {
                assert!(!set.deleting && !typed.spec.frozen, "{key} was made for a set that takes nothing");
                let wanted = wanted.unwrap_or_else(|| panic!("{key} was made, which nobody wants"));
                self.check_order(wanted, &expansion.children, key);
            }
            ChangeKind::Deleted => self.check_end(set, wanted, key),
            ChangeKind::Modified => {
                let before = before.expect("it was there");
                if after.deleting != before.deleting {
                    self.check_end(set, wanted, key);
                } else if owner(after).is_some() && after.generation != before.generation {
                    assert!(!set.deleting && !typed.spec.frozen && !typed.spec.rollout().paused, "{key}");
                    assert!(!before.typed::<Application>().unwrap().spec.frozen, "{key} is frozen");
                    let wanted = wanted.unwrap_or_else(|| panic!("{key} was changed, which nobody wants"));
                    self.check_order(wanted, &expansion.children, key);
                    return self.check_budget(&typed, &expansion.children, before);
                }
            }
        }
        false
    }

    /// Whatever goes is not wanted.
    fn check_end(&self, set: &Entry, wanted: Option<&Child>, key: &Key) {
        assert!(set.deleting || wanted.is_none(), "{key} was deleted, which is wanted");
    }

    /// Every step before it has come to the end of what the set says now.
    fn check_order(&self, wanted: &Child, children: &[Child], key: &Key) {
        let before = |child: &&Child| child.init && (!wanted.init || child.component < wanted.component);
        for step in children.iter().filter(before) {
            let stored = self.objects.get(&app(step.name()));
            let done = stored.is_some_and(|entry| {
                let it = entry.typed::<Application>().unwrap();
                it.is_finished()
                    && it.status.phase == "Succeeded"
                    && it.metadata.annotations.get("horchestra.io/appset-spec-hash") == Some(&step.hash)
            });
            assert!(done, "{key} came before {} was done", step.name());
        }
    }

    /// So many stay available as the budget says.
    fn check_budget(&self, set: &ApplicationSet, children: &[Child], changed: &Entry) -> bool {
        let kept: BTreeSet<&str> =
            children.iter().filter(|child| !child.init).map(|child| child.name()).collect();
        let Some(most) = set.spec.max_unavailable() else { return false };
        if !kept.contains(changed.key.name.as_str()) || !self.is_available(changed) {
            return false;
        }
        let available =
            |name: &&&str| self.objects.get(&app(name)).is_some_and(|entry| self.is_available(entry));
        let left = kept.iter().filter(available).count() - 1;
        assert!(left + most >= kept.len(), "{} was changed with {left} of {} left", changed.key, kept.len());
        true
    }

    fn is_available(&self, entry: &Entry) -> bool {
        let app = entry.typed::<Application>().unwrap();
        let node = self.objects.get(&Key::cluster(Kind::Node, app.node_name()));
        let ready =
            node.is_some_and(|node| node.typed::<Node>().unwrap().ready() == Some(ConditionStatus::True));
        let current = app.status.observed_generation == app.metadata.generation;
        ready && !entry.deleting && app.status.phase == "Running" && current
    }
}

fn owner(entry: &Arc<Entry>) -> Option<String> {
    let app = entry.typed::<Application>().unwrap();
    app.metadata.controller().map(|owner| owner.name.clone())
}

/// What can happen.
#[derive(Clone, Debug)]
enum Event {
    /// One look of the loop, stopped after so many writes.
    Look(usize),
    /// Two processes that both believe that they lead.
    TwoLooks,
    Schedule,
    /// All nodes do their work.
    Work,
    /// One child, by its place, is reported so.
    Report(usize, bool),
    Edit(Change),
    Judge(usize, bool),
    DeleteChild(usize),
    FreezeChild(usize, bool),
    Freeze(bool),
    DeleteSet(bool),
}

#[derive(Clone, Debug)]
enum Change {
    Image(usize),
    Replicas(usize, usize),
    Budget(usize),
    Paused(bool),
    Steps(usize),
    StepImage,
    Spread(bool),
}

/// What the author wants.
#[derive(Clone, Debug)]
struct Wish {
    images: [usize; 2],
    replicas: [usize; 2],
    budget: usize,
    paused: bool,
    steps: usize,
    step_image: usize,
    spread: bool,
}

impl Wish {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Image(at) => self.images[*at] += 1,
            Change::Replicas(at, count) => self.replicas[*at] = *count,
            Change::Budget(budget) => self.budget = *budget,
            Change::Paused(paused) => self.paused = *paused,
            Change::Steps(steps) => self.steps = *steps,
            Change::StepImage => self.step_image += 1,
            Change::Spread(spread) => self.spread = *spread,
        }
    }

    fn spec(&self) -> Value {
        let mut components = Vec::new();
        for at in 0..2 {
            components.push(replicas(&format!("s{at}"), &format!("i{}", self.images[at]), self.replicas[at]));
        }
        for at in 0..self.steps {
            components.push(step(&format!("t{at}"), &format!("i{}", self.step_image)));
        }
        if self.spread {
            let image = format!("i{}", self.images[0]);
            components.push(json!({"name": "n", "spec": {"image": image}, "scale": {"nodeSpread": {}}}));
        }
        json!({"applications": components, "rollout": {"maxUnavailable": self.budget, "paused": self.paused}})
    }
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0usize..2).prop_map(Change::Image),
        2 => (0usize..2, 1usize..5).prop_map(|(at, count)| Change::Replicas(at, count)),
        1 => (0usize..4).prop_map(Change::Budget),
        1 => any::<bool>().prop_map(Change::Paused),
        1 => (0usize..3).prop_map(Change::Steps),
        1 => Just(Change::StepImage),
        1 => any::<bool>().prop_map(Change::Spread),
    ]
}

fn happenings() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop_oneof![Just(usize::MAX), 0usize..6].prop_map(Event::Look),
        3 => Just(Event::TwoLooks),
        5 => Just(Event::Schedule),
        5 => Just(Event::Work),
        6 => (0usize..16, any::<bool>()).prop_map(|(at, well)| Event::Report(at, well)),
        6 => changes().prop_map(Event::Edit),
        3 => (0usize..3, any::<bool>()).prop_map(|(at, ready)| Event::Judge(at, ready)),
        1 => (0usize..16).prop_map(Event::DeleteChild),
        1 => (0usize..16, any::<bool>()).prop_map(|(at, frozen)| Event::FreezeChild(at, frozen)),
        1 => any::<bool>().prop_map(Event::Freeze),
        1 => any::<bool>().prop_map(Event::DeleteSet),
    ]
}

const NODES: [&str; 3] = ["n1", "n2", "n3"];

struct Life {
    world: World,
    checker: Checker,
    wish: Wish,
}

impl Life {
    async fn begin(database: Database) -> Life {
        let mut world = World::on(database, &NODES).await;
        let wish = Wish {
            images: [0, 0],
            replicas: [3, 2],
            budget: 1,
            paused: false,
            steps: 1,
            step_image: 0,
            spread: false,
        };
        world.put_set("web", wish.spec()).await;
        world.converge().await;
        Life { world, checker: Checker::default(), wish }
    }

    async fn child(&self, at: usize) -> Option<Arc<Entry>> {
        let snapshot = self.world.service.store().fresh().await.unwrap();
        let apps: Vec<&Arc<Entry>> = snapshot.list(Kind::Application, None).collect();
        (!apps.is_empty()).then(|| Arc::clone(apps[at % apps.len()]))
    }

    async fn happen(&mut self, event: &Event) {
        let world = &mut self.world;
        match event {
            Event::Look(writes) => {
                let mut sets = successor(&world.service, Limited::to(world.service.clone(), *writes)).await;
                let _ = sets.pass(&world.term).await;
            }
            Event::TwoLooks => {
                let other = connect(&world.database).await;
                let mut first = successor(&world.service, world.service.clone()).await;
                let mut second = successor(&other, other.clone()).await;
                let (a, b) = tokio::join!(first.pass(&world.term), second.pass(&world.term));
                a.and(b).unwrap();
            }
            Event::Schedule => world.schedule().await,
            Event::Work => world.run_nodes().await,
            Event::Report(at, well) => {
                let Some(child) = self.child(*at).await else { return };
                if child.columns.node.is_none() || child.deleting {
                    return;
                }
                let job = child.typed::<Application>().unwrap().is_job();
                let (phase, code) = match (job, well) {
                    (true, true) => ("Succeeded", Some(0)),
                    (false, true) => ("Running", None),
                    (_, false) => ("Failed", Some(1)),
                };
                self.world.report(&child.key.name, phase, code).await;
            }
            Event::Edit(change) => {
                self.wish.apply(change);
                let there = world.entry(&set("web")).await;
                if there.is_some_and(|entry| !entry.deleting) {
                    world.put_set("web", self.wish.spec()).await;
                }
            }
            Event::Judge(at, ready) => world.judge(NODES[*at], *ready).await,
            Event::DeleteChild(at) => {
                let Some(child) = self.child(*at).await else { return };
                self.world.delete(&child.key, None).await;
            }
            Event::FreezeChild(at, frozen) => {
                let Some(child) = self.child(*at).await else { return };
                self.world.act(&child.key, if *frozen { Door::Freeze } else { Door::Thaw }).await;
            }
            Event::Freeze(frozen) => {
                if world.entry(&set("web")).await.is_some() {
                    world.act(&set("web"), if *frozen { Door::Freeze } else { Door::Thaw }).await;
                }
            }
            Event::DeleteSet(orphan) => {
                if world.entry(&set("web")).await.is_some() {
                    world.delete(&set("web"), orphan.then_some(Propagation::Orphan)).await;
                }
            }
        }
        self.checker.follow(&self.world).await;
    }

    /// Everybody is well again, and what was wished for comes about.
    async fn end(mut self) -> usize {
        for node in NODES {
            self.world.judge(node, true).await;
        }
        self.wish.apply(&Change::Paused(false));
        for name in self.world.apps().await {
            self.world.act(&app(&name), Door::Thaw).await;
        }
        let world = &mut self.world;
        if world.entry(&set("web")).await.is_some_and(|entry| entry.deleting) {
            world.converge().await;
            assert!(world.entry(&set("web")).await.is_none(), "a set that is deleted goes");
        }
        if world.entry(&set("web")).await.is_none() {
            // What was let go of would be in the way of its successor.
            for name in world.apps().await {
                world.delete(&app(&name), None).await;
            }
            world.run_nodes().await;
        } else {
            world.act(&set("web"), Door::Thaw).await;
        }
        // A step that failed is run again for a change only.
        self.wish.apply(&Change::StepImage);
        world.put_set("web", self.wish.spec()).await;
        world.sets = successor(&world.service, world.service.clone()).await;
        world.converge().await;
        self.checker.follow(world).await;

        let nodes: Vec<SpreadNode> = NODES
            .iter()
            .map(|name| SpreadNode { name: (*name).to_owned(), ..SpreadNode::default() })
            .collect();
        let entry = world.entry(&set("web")).await.unwrap();
        let expansion = expand(&entry.object().unwrap(), &nodes).unwrap();
        let wanted: BTreeMap<String, String> = expansion
            .children
            .iter()
            .map(|child| (child.name().to_owned(), child.object.str_at(&["spec", "image"]).to_owned()))
            .collect();
        assert_eq!(world.images().await, wanted);
        assert_eq!(world.status("web").await["phase"], "Ready", "{}", world.status("web").await);
        let before = world.log(0).await.len();
        assert_eq!(world.pass().await.writes, 0);
        assert_eq!(world.log(0).await.len(), before, "at rest nothing is written");
        self.checker.judged
    }
}

fn live(events: &[Event], postgres: bool) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database =
            if postgres { Database::postgres().await } else { Database::Memory(MemoryDatabase::new()) };
        let mut life = Life::begin(database).await;
        for event in events {
            life.happen(event).await;
        }
        life.end().await
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: the budget is kept at every single write, steps come before what
    /// waits for them, nothing wanted is deleted, nothing is made for a set that is deleted or frozen, and in
    /// the end there is what was wished for.
    #[test]
    fn every_write_is_right_when_it_is_made(events in prop::collection::vec(happenings(), 1..40)) {
        live(&events, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 50, ..ProptestConfig::default() })]

    /// The same where it counts.
    #[test]
    fn every_write_is_right_on_postgresql(events in prop::collection::vec(happenings(), 1..30)) {
        live(&events, true);
    }
}

#[test]
fn the_checker_has_something_to_judge() {
    let mut events = Vec::new();
    for _ in 0..3 {
        events.push(Event::Edit(Change::Image(0)));
        events.extend([Event::TwoLooks, Event::Look(usize::MAX), Event::Work, Event::Look(2)]);
    }
    assert!(live(&events, false) >= 4, "every available child that was changed was judged");
}
