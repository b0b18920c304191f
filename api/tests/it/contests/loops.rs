//! Loops and gateways against people, and against their successors.
//!
//! Their doors are no requests, so these contests are played through the services of two replicas. As elsewhere
//! every outcome has to come about, and the log is judged at every revision.

use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_service::{At, Binding, Caller, DoorError, Outcome, RequestContext, Service, ServiceConfig};
use horchestra_store::{Revision, SessionClaim, SessionGrant, Store};
use horchestra_testkit::{TestDatabase, eventually};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Ask, Callers, LATE, ROUNDS, cluster, create, delete, judge_the_log, merge, rounds};
use crate::client::DEADLINE;
use crate::replicas::{database, replica_with};
use crate::seed::Seed;
use crate::stack::Stack;

/// The contests of this module, as the table calls them.
pub const CONTESTS: [&str; 4] = ["leaders", "placement-and-deletion", "placements-of-one-node", "sessions"];

const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";

/// Two replicas.
pub struct Field {
    replicas: [Stack; 2],
    pub callers: [Callers; 2],
    random: StdRng,
    _database: TestDatabase,
}

impl Field {
    pub async fn new(name: &str) -> Field {
        let database = database().await;
        let (here, first) = replica_with(&database, ServiceConfig::default()).await;
        let (there, second) = replica_with(&database, ServiceConfig::default()).await;
        let callers = [Callers::of(&here, &first).await, Callers::of(&there, &second).await];
        Field { replicas: [here, there], callers, random: Seed::of(name).lane(0), _database: database }
    }

    pub fn store(&self, which: usize) -> &Store {
        &self.replicas[which].store
    }

    pub fn service(&self, which: usize) -> &Service {
        self.replicas[which].app.service()
    }

    /// Makes an object through the first replica; answers it.
    pub async fn make(&self, ask: Ask) -> Value {
        let shown = format!("{ask:?}");
        let reply = ask.of(&self.callers[0]).await;
        assert!(reply.status < 300, "{shown}: {}", reply.text());
        reply.json()
    }

    /// An Application that both replicas know, and how to place it.
    pub async fn application(&self, name: &str, cpu: &str, node: &str) -> (Key, Binding) {
        self.to_place(name, json!({"image": "x", "resources": {"requests": {"cpu": cpu}}}), node).await
    }

    /// One with volumes.
    pub async fn mounting(&self, name: &str, volumes: Value, node: &str) -> (Key, Binding) {
        self.to_place(name, json!({"image": "x", "volumes": volumes}), node).await
    }

    async fn to_place(&self, name: &str, spec: Value, node: &str) -> (Key, Binding) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let made = self.make(create(APPLICATIONS.to_owned(), object)).await;
        let text = |member: &str| made["metadata"][member].as_str().unwrap().to_owned();
        let revision: Revision = text("resourceVersion").parse().unwrap();
        for which in 0..2 {
            self.store(which).not_older_than(revision).await.unwrap();
        }
        let key = Key::namespaced(Kind::Application, "default", name);
        let uid = text("uid").parse().unwrap();
        let node = node.to_owned();
        (key.clone(), Binding { key, uid, revision, node, node_revision: None })
    }

    pub async fn node(&self, name: &str, cores: &str) {
        let object = json!({"metadata": {"name": name}, "spec": {}});
        let status = json!({"status": {"ready": true, "capacity": {"cpu": cores, "memory": "8Gi"}}});
        self.make(create(cluster("nodes"), object)).await;
        self.make(merge(format!("{}/{name}/status", cluster("nodes")), status)).await;
    }

    pub async fn scheduler(&self) -> RequestContext {
        leads(self.store(0), "scheduler", Duration::from_secs(600)).await.expect("nobody else leads")
    }

    pub fn late(&mut self) -> Duration {
        Duration::from_micros(self.random.random_range(0..LATE.as_micros().try_into().unwrap_or(1)))
    }

    pub async fn end(self, written: u64) {
        let judged = judge_the_log(self.store(0)).await;
        assert!(judged > usize::try_from(written).unwrap(), "the log was read");
        for replica in &self.replicas {
            replica.store.shutdown().await;
        }
    }
}

pub async fn leads(store: &Store, name: &str, term: Duration) -> Option<RequestContext> {
    let lease = store.acquire_lease(name, Uuid::new_v4(), term).await.unwrap()?;
    Some(RequestContext::new(Caller::Loop { name: name.to_owned(), epoch: lease.epoch }))
}

pub async fn bind(service: &Service, who: &RequestContext, binding: Binding) -> Result<Outcome, DoorError> {
    service.bind(who, vec![binding]).await.pop().expect("one answer")
}

/// That each of several outcomes has come about.
pub fn all_seen(seen: &[u64]) {
    assert!(seen.iter().all(|count| *count > 0) || rounds() < ROUNDS, "never: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_takes_no_more_placements_than_fit() {
    let mut field = Field::new("placements-of-one-node").await;
    let scheduler = field.scheduler().await;
    let mut seen = [0; 2];
    for round in 0..rounds() {
        let node = format!("node-{round}");
        field.node(&node, "4").await;
        let (_, first) = field.application(&format!("a-{round}"), "3", &node).await;
        let (_, second) = field.application(&format!("b-{round}"), "3", &node).await;
        let (before, after) = (field.late(), field.late());
        let (first, second) = tokio::join!(
            async {
                tokio::time::sleep(before).await;
                bind(field.service(0), &scheduler, first).await
            },
            async {
                tokio::time::sleep(after).await;
                bind(field.service(1), &scheduler, second).await
            },
        );
        match (&first, &second) {
            (Ok(_), Err(DoorError::NoCapacity)) => seen[0] += 1,
            (Err(DoorError::NoCapacity), Ok(_)) => seen[1] += 1,
            other => panic!("round {round}: {other:?}"),
        }
    }
    all_seen(&seen);
    field.end(rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_placed_is_not_erased_under_its_node() {
    let mut field = Field::new("placement-and-deletion").await;
    let scheduler = field.scheduler().await;
    field.node("node", "4").await;
    let mut seen = [0; 2];
    for round in 0..rounds() {
        let (key, binding) = field.application(&format!("a-{round}"), "1m", "node").await;
        let (before, after) = (field.late(), field.late());
        let ask = delete(format!("{APPLICATIONS}/{}", key.name));
        let which = usize::from(round % 2 == 1);
        let (deleted, placed) = tokio::join!(
            async {
                tokio::time::sleep(before).await;
                ask.of(&field.callers[which]).await
            },
            async {
                tokio::time::sleep(after).await;
                bind(field.service(1 - which), &scheduler, binding).await
            },
        );
        assert_eq!(deleted.status, 200, "round {round}: {deleted:?}");
        let stored = field.service(0).get(&key, At::Fresh).await;
        match (placed, stored) {
            // Held until its node has let go.
            (Ok(_), Ok(entry)) => {
                assert!(entry.deleting && entry.columns.node.is_some(), "round {round}: {deleted:?}");
                seen[0] += 1;
            }
            (Err(DoorError::Gone | DoorError::Changed), Err(status)) if status.code() == 404 => seen[1] += 1,
            other => panic!("round {round}: {other:?}"),
        }
    }
    all_seen(&seen);
    field.end(rounds()).await;
}

/// What came of one change of holders.
#[derive(Default)]
struct Handover {
    /// What the one before wrote until it was turned away.
    written: Vec<Revision>,
    /// The newest revision when the next one held it.
    head: Revision,
}

impl Handover {
    /// Nothing was written by the one before once the next one was there.
    fn judge(&self, round: u64) {
        let late: Vec<&Revision> = self.written.iter().filter(|revision| **revision > self.head).collect();
        assert!(late.is_empty(), "round {round}: written after {}: {late:?}", self.head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_no_longer_leads_writes_nothing() {
    let mut field = Field::new("leaders").await;
    let mut wrote = 0;
    for round in 0..rounds() {
        let (key, binding) = field.application(&format!("a-{round}"), "1", "none").await;
        let lease = format!("loop-{round}");
        let term = field.late().max(Duration::from_micros(500));
        let before = leads(field.store(0), &lease, term).await.expect("nobody led before");
        let (service, store) = (field.service(0), field.store(1));
        let old = async {
            let (mut revision, mut written) = (binding.revision, Vec::new());
            for number in 0.. {
                let message = format!("old {number}");
                match service.set_unschedulable(&before, &key, revision, &message).await {
                    Ok(outcome) => {
                        revision = outcome.entry.revision;
                        written.push(revision);
                    }
                    Err(DoorError::Fenced) => break,
                    // The next one has written to it.
                    Err(DoorError::Changed) => {
                        revision = service.get(&key, At::Fresh).await.unwrap().revision;
                    }
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
            written
        };
        let next = async {
            let next =
                eventually(DEADLINE, async || leads(store, &lease, Duration::from_secs(600)).await).await;
            let head = store.fresh().await.unwrap().revision();
            let service = field.service(1);
            eventually(DEADLINE, async || {
                let revision = service.get(&key, At::Fresh).await.unwrap().revision;
                service.set_unschedulable(&next, &key, revision, "new").await.map(drop)
            })
            .await;
            head
        };
        let (written, head) = tokio::join!(old, next);
        let handover = Handover { written, head };
        handover.judge(round);
        wrote += u64::from(!handover.written.is_empty());
    }
    all_seen(&[wrote]);
    field.end(rounds()).await;
}

async fn session(store: &Store, node: &str, stale_after: Duration) -> Option<(SessionGrant, Uuid)> {
    let gateway = Uuid::new_v4();
    assert!(store.renew_gateway(gateway, "127.0.0.1:1", Duration::from_secs(600)).await.unwrap());
    let claim = SessionClaim {
        node: node.to_owned(),
        gateway,
        peer: "127.0.0.1:2".to_owned(),
        certificate: "00".repeat(32),
    };
    Some((store.claim_session(claim, stale_after).await.unwrap()?, gateway))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_no_longer_holds_a_session_reports_nothing() {
    let mut field = Field::new("sessions").await;
    let mut wrote = 0;
    for round in 0..rounds() {
        let name = format!("node-{round}");
        field.node(&name, "4").await;
        let speaks = |(grant, gateway): (SessionGrant, Uuid)| {
            RequestContext::new(Caller::Node { name: name.clone(), grant, gateway })
        };
        let status =
            |memory: usize| json!({"ready": true, "capacity": {"cpu": "4", "memory": format!("{memory}Mi")}});
        let before = speaks(session(field.store(0), &name, Duration::ZERO).await.expect("nobody held it"));
        let late = field.late();
        let (service, store) = (field.service(0), field.store(1));
        let old = async {
            let mut written = Vec::new();
            for number in 1.. {
                match service.report_node(&before, &name, &status(number)).await {
                    Ok(outcome) if outcome.changed => written.push(outcome.entry.revision),
                    Ok(_) => {}
                    Err(DoorError::Fenced) => break,
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
            written
        };
        let next = async {
            tokio::time::sleep(late).await;
            let next = eventually(DEADLINE, async || session(store, &name, Duration::ZERO).await).await;
            let head = store.fresh().await.unwrap().revision();
            let reported = field.service(1).report_node(&speaks(next), &name, &status(1 << 20)).await;
            reported.unwrap_or_else(|error| panic!("round {round}: {error}"));
            head
        };
        let (written, head) = tokio::join!(old, next);
        let handover = Handover { written, head };
        handover.judge(round);
        wrote += u64::from(!handover.written.is_empty());
    }
    all_seen(&[wrote]);
    field.end(rounds()).await;
}
