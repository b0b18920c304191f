//! A leader that stops after any number of writes, and the next one that goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_service::{DoorError, Outcome, Propagation, RequestContext, Service, SetReport};
use horchestra_store::{Entry, Guard, Revision};
use horchestra_workers::sets::apply::Port;
use horchestra_workers::substrate::{PassError, Reconciler as _};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use super::model::Checker;
use super::world::*;

/// A port that lets so many writes through and then stops the loop, that refuses those of one name, or that keeps
/// all of them waiting.
pub struct Limited {
    service: Service,
    left: AtomicUsize,
    refused: Option<String>,
    gate: Option<Arc<Gate>>,
}

/// What writes wait at.
pub struct Gate {
    /// Told when a write has come.
    pub reached: Notify,
    /// A write takes one.
    pub open: Semaphore,
}

impl Gate {
    /// Nobody gets through.
    pub fn closed() -> Arc<Gate> {
        Arc::new(Gate { reached: Notify::new(), open: Semaphore::new(0) })
    }
}

impl Limited {
    pub fn to(service: Service, writes: usize) -> Limited {
        Limited { service, left: AtomicUsize::new(writes), refused: None, gate: None }
    }

    pub fn at(service: Service, gate: &Arc<Gate>) -> Limited {
        Limited { gate: Some(Arc::clone(gate)), ..Limited::to(service, usize::MAX) }
    }

    pub fn refusing(service: Service, name: &str) -> Limited {
        Limited { refused: Some(name.to_owned()), ..Limited::to(service, usize::MAX) }
    }

    async fn pass(&self, kind: Kind, name: &str) -> Result<(), DoorError> {
        if let Some(gate) = &self.gate {
            gate.reached.notify_one();
            gate.open.acquire().await.expect("nobody closes it").forget();
        }
        if self.refused.as_deref() == Some(name) {
            return Err(DoorError::Refused(Status::forbidden(kind, name, "as asked")));
        }
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| DoorError::Fenced)
    }
}

impl Port for Limited {
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        kind: Kind,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Outcome, DoorError>> {
        Box::pin(async move {
            self.pass(kind, object.name()).await?;
            self.service.create_owned(context, kind, object, conditions).await
        })
    }

    fn update<'a>(
        &'a self,
        context: &'a RequestContext,
        entry: &'a Entry,
        object: Object,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Outcome, DoorError>> {
        Box::pin(async move {
            self.pass(entry.key.kind, &entry.key.name).await?;
            self.service.update_owned(context, entry, object, conditions).await
        })
    }

    fn delete<'a>(
        &'a self,
        context: &'a RequestContext,
        key: &'a Key,
        uid: Uuid,
        revision: Option<Revision>,
        conditions: &'a [Guard],
    ) -> BoxFuture<'a, Result<Outcome, DoorError>> {
        Box::pin(async move {
            self.pass(key.kind, &key.name).await?;
            self.service.delete_owned(context, key, uid, revision, conditions).await
        })
    }

    fn report<'a>(
        &'a self,
        context: &'a RequestContext,
        set: &'a Entry,
        report: &'a SetReport,
    ) -> BoxFuture<'a, Result<Outcome, DoorError>> {
        Box::pin(async move {
            self.pass(Kind::ApplicationSet, &set.key.name).await?;
            self.service.report_set(context, &set.key, set.uid, set.core_revision, report).await
        })
    }
}

/// Leaders that get so far each, until one finds nothing to do. Answers how many were stopped.
async fn converge(world: &World, writes: usize) -> usize {
    let mut stopped = 0;
    for _ in 0..500 {
        let before = world.log(0).await.len();
        world.service.store().fresh().await.unwrap();
        let mut sets = successor(&world.service, Limited::to(world.service.clone(), writes)).await;
        let outcome = sets.pass(&world.term).await;
        world.schedule().await;
        world.run_nodes().await;
        match outcome {
            Err(PassError::Deposed) => stopped += 1,
            Err(error) => panic!("{error}"),
            Ok(_) if world.log(0).await.len() == before => return stopped,
            Ok(_) => {}
        }
    }
    panic!("no leader gets to the end");
}

fn spec(image: &str, count: usize, more: bool) -> Value {
    let mut api = replicas("api", image, count);
    api["spec"]["ports"] = json!([{"name": "http", "port": 80}]);
    let mut components = vec![step("init", image), api];
    components.extend(more.then(|| component("more", image)));
    json!({"applications": components, "rollout": {"maxUnavailable": 1}})
}

/// What there is after each stage of the life of a set whose leaders are stopped after so many writes each, and how
/// many of them were.
pub async fn life(world: &World, writes: usize) -> (Vec<Vec<String>>, usize) {
    let mut checker = Checker::default();
    let mut states = Vec::new();
    let mut stopped = 0;
    for stage in 0..5 {
        match stage {
            0 => world.put_set("web", spec("x", 3, true)).await,
            1 => world.put_set("web", spec("y", 4, false)).await,
            2 => world.put_set("web", spec("y", 2, true)).await,
            3 => world.delete(&set("web"), Some(Propagation::Orphan)).await,
            _ => {
                let fresh = json!({"applications": [replicas("b", "z", 3)]});
                world.put_set("next", fresh).await;
                converge(world, writes).await;
                world.delete(&set("next"), None).await;
            }
        }
        stopped += converge(world, writes).await;
        checker.follow(world).await;
        let mut state: Vec<String> =
            world.images().await.into_iter().map(|(name, image)| format!("{name} {image}")).collect();
        state.extend(world.names(Kind::Service).await);
        for name in world.names(Kind::ApplicationSet).await {
            state.push(format!("{name} {}", world.summary(&name).await));
        }
        states.push(state);
    }
    (states, stopped)
}

#[tokio::test]
async fn wherever_a_leader_stops_the_next_one_goes_on() {
    let mut expected: Option<Vec<Vec<String>>> = None;
    for writes in [usize::MAX, 1, 2, 3, 4, 5] {
        let (states, stopped) = life(&World::new(&["n1", "n2"]).await, writes).await;
        assert!(writes == usize::MAX || stopped > 0, "after {writes} writes nobody was stopped");
        match &expected {
            None => expected = Some(states),
            Some(expected) => assert_eq!(expected, &states, "stopped after {writes} writes each"),
        }
    }
}
