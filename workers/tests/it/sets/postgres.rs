//! Two loops that both lead, on PostgreSQL.
//!
//! Both write with the epoch of one term, so the fence stops neither of them: what keeps them from harm is what
//! their writes rest on alone. Each has a store of its own, so each learns of the other's writes as any process
//! does, from the log.

use std::collections::BTreeMap;

use horchestra_core::kind::Kind;
use horchestra_service::{Propagation, Service};
use horchestra_store::ChangeKind;
use horchestra_workers::sets::Sets;
use horchestra_workers::substrate::Reconciler as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::crash::{Gate, Limited, life};
use super::model::Checker;
use super::world::*;

/// The second leader of a world.
struct Rival {
    service: Service,
    sets: Sets,
}

impl Rival {
    async fn of(world: &World) -> Rival {
        let service = connect(&world.database).await;
        let sets = successor(&service, service.clone()).await;
        Rival { service, sets }
    }

    /// One pass of each at the same time, of the same view. Answers how much was refused.
    async fn race(&mut self, world: &mut World) -> usize {
        world.service.store().fresh().await.unwrap();
        self.service.store().fresh().await.unwrap();
        let (first, second) = tokio::join!(world.sets.pass(&world.term), self.sets.pass(&world.term));
        first.unwrap().refused + second.unwrap().refused
    }
}

async fn world() -> World {
    World::on(Database::postgres().await, &["n1", "n2", "n3"]).await
}

/// Both at work until nothing is left to do, every write judged. Answers how much was refused.
async fn converge(world: &mut World, rival: &mut Rival, checker: &mut Checker) -> usize {
    let mut refused = 0;
    for _ in 0..PATIENCE {
        let before = world.head().await;
        refused += rival.race(world).await;
        checker.follow(world).await;
        world.schedule().await;
        world.run_nodes().await;
        if world.head().await == before {
            return refused;
        }
    }
    panic!("two leaders do not come to rest");
}

fn spec(image: &str, budget: usize) -> Value {
    json!({
        "applications": [replicas("a", image, 5), replicas("b", image, 3)],
        "rollout": {"maxUnavailable": budget},
    })
}

#[tokio::test]
async fn two_leaders_together_keep_to_the_budget_and_make_nothing_twice() {
    let mut world = world().await;
    let mut rival = Rival::of(&world).await;
    let mut checker = Checker::default();
    world.put_set("web", spec("v0", 1)).await;
    let refused = converge(&mut world, &mut rival, &mut checker).await;
    assert!(refused > 0, "they got in each other's way");
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for row in world.log(0).await {
        if row.change.object_kind() == Kind::Application && row.change.kind == ChangeKind::Added {
            *made.entry(row.change.key().name.clone()).or_default() += 1;
        }
    }
    assert_eq!(made.len(), 8, "{made:?}");
    assert!(made.values().all(|times| *times == 1), "{made:?}");

    for (round, budget) in [1, 2, 1, 3].into_iter().enumerate() {
        let image = format!("v{}", round + 1);
        world.put_set("web", spec(&image, budget)).await;
        let judged = checker.judged;
        let refused = converge(&mut world, &mut rival, &mut checker).await;
        assert!(world.images().await.values().all(|found| *found == image), "budget {budget}");
        assert!(checker.judged - judged >= 8, "every child was up when it was changed, budget {budget}");
        assert!(refused > 0, "they got in each other's way, budget {budget}");
    }
}

/// A leader has planned, and before it writes something else happens.
#[tokio::test]
async fn no_child_is_taken_down_on_the_strength_of_one_that_is_down_by_now() {
    for (what, expected) in [("nothing", 1), ("a child", 0), ("a node", 0), ("another leader", 1)] {
        let mut world = world().await;
        let spec = |image: &str| json!({"applications": [replicas("a", image, 3)], "rollout": {"maxUnavailable": 1}});
        world.put_set("web", spec("x")).await;
        world.converge().await;
        world.put_set("web", spec("y")).await;

        let rival = connect(&world.database).await;
        rival.store().fresh().await.unwrap();
        let gate = Gate::closed();
        let mut sets = successor(&rival, Limited::at(rival.clone(), &gate)).await;
        let term = world.term.clone();
        let planned = tokio::spawn(async move { sets.pass(&term).await.unwrap().refused });
        gate.reached.notified().await;
        match what {
            "a child" => world.report("web-a-2", "Failed", None).await,
            "a node" => {
                let node = world.tree(&app("web-a-2")).await["spec"]["placement"]["nodeName"].clone();
                world.judge(node.as_str().unwrap(), false).await;
            }
            "another leader" => drop(world.pass().await),
            _ => {}
        }
        gate.open.add_permits(Semaphore::MAX_PERMITS);
        let refused = planned.await.unwrap();
        let changed = world.images().await.values().filter(|image| *image == "y").count();
        assert_eq!(changed, expected, "meanwhile {what} went down");
        assert_eq!(refused > 0, what != "nothing", "meanwhile {what} went down");
    }
}

#[tokio::test]
async fn two_leaders_together_make_nothing_for_a_set_that_goes() {
    for policy in [None, Some(Propagation::Orphan)] {
        let mut world = world().await;
        let mut rival = Rival::of(&world).await;
        let mut checker = Checker::default();
        world.put_set("web", spec("v0", 1)).await;
        // Gone before all of its children are there.
        rival.race(&mut world).await;
        world.schedule().await;
        world.put_set("web", spec("v1", 1)).await;
        world.delete(&set("web"), policy).await;
        converge(&mut world, &mut rival, &mut checker).await;
        assert!(world.entry(&set("web")).await.is_none(), "{policy:?}");
        let left = world.apps().await.len();
        assert_eq!(left > 0, policy == Some(Propagation::Orphan), "{policy:?}: {left} are left");
    }
}

#[tokio::test]
async fn wherever_a_leader_stops_the_next_one_goes_on_here_too() {
    let nodes = ["n1", "n2"];
    let (expected, _) = life(&World::new(&nodes).await, usize::MAX).await;
    for writes in [usize::MAX, 2] {
        let world = World::on(Database::postgres().await, &nodes).await;
        let (states, stopped) = life(&world, writes).await;
        assert_eq!(states, expected, "stopped after {writes} writes each");
        assert_eq!(stopped > 0, writes == 2);
    }
}
