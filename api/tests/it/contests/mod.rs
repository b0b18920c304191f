//! Rules about several objects, with two requests at the same moment through two replicas, hundreds of times.
//!
//! A rule says what may come of the two requests, and in which words the one that lost is told. Beside that,
//! the whole log is read afterwards, and what the rules promise is checked at every revision of it
//! ([`invariants`]): an answer may look right while the log shows that for a moment nothing was.
//!
//! Rounds of a rule run side by side, so that their writes share batches; the two requests of a round start up
//! to some milliseconds apart, either first, so that every outcome comes about. A rule of which an outcome
//! was never seen has not been tested, and fails.
//!
//! [`table`] says which guard keeps which rule and which of these contests is about it; the rules between loops
//! and the rest of the world are in [`loops`], [`placements`] and [`owners`].
//!
//! `HORCHESTRA_TEST_ROUNDS` asks for more rounds of each rule.

mod invariants;
mod loops;
mod owners;
mod placements;
mod rules;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use horchestra_service::ServiceConfig;
use horchestra_store::Store;
use http::Method;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::client::{Client, Protocol, Reply};
use crate::replicas::{database, replica_with};
use crate::seed::Seed;
use crate::stack::{Stack, Who};

use rules::{RULES, Rule};

const ROUNDS: u64 = 200;
/// Rounds of a rule that run at the same time.
const LANES: u64 = 8;
/// How much later the second request of a round starts at most.
const LATE: Duration = Duration::from_millis(4);
/// Where Services get their addresses from.
const RANGE: &str = "10.243.0.0/16";

/// Somebody who may do what roles say.
const GRANTER: &str = "granter";

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    method: Method,
    path: String,
    media: &'static str,
    body: Value,
    /// Made by [`GRANTER`], not by an administrator.
    ruled: bool,
}

/// The callers of one replica.
#[derive(Clone)]
pub struct Callers {
    master: Client,
    granter: Client,
}

impl Callers {
    async fn of(stack: &Stack, master: &Client) -> Callers {
        let granter = stack.client(Who::User(GRANTER, "people"), Protocol::Http2);
        Callers { master: master.keep().await, granter: granter.keep().await }
    }
}

impl Ask {
    async fn of(self, callers: &Callers) -> Reply {
        let body = if self.body.is_null() { Bytes::new() } else { Bytes::from(self.body.to_string()) };
        let client = if self.ruled { &callers.granter } else { &callers.master };
        client.send(self.method, &self.path, &[("content-type", self.media)], body).await
    }

    /// The same, made by [`GRANTER`].
    pub fn by_granter(self) -> Ask {
        Ask { ruled: true, ..self }
    }
}

fn ask(method: Method, path: String, media: &'static str, body: Value) -> Ask {
    Ask { method, path, media, body, ruled: false }
}

pub fn create(path: String, body: Value) -> Ask {
    ask(Method::POST, path, "application/json", body)
}

pub fn merge(path: String, body: Value) -> Ask {
    ask(Method::PATCH, path, "application/merge-patch+json", body)
}

/// An order to a door.
pub fn act(path: String, order: Value) -> Ask {
    create(path, order)
}

/// A deletion of the object as it was at this revision.
pub fn delete_at(path: String, revision: &Value) -> Ask {
    let body = json!({"preconditions": {"resourceVersion": revision}});
    ask(Method::DELETE, path, "application/json", body)
}

pub fn delete(path: String) -> Ask {
    ask(Method::DELETE, path, "application/json", Value::Null)
}

/// A round of a rule: its objects are called after it.
pub struct Round {
    /// The namespace that the rounds of the rule share.
    pub namespace: String,
    /// A name that is no other round's.
    pub name: String,
    pub number: u64,
    /// What the requests of the setup were answered.
    pub made: Vec<Value>,
}

impl Round {
    /// The path of the objects of a namespaced kind.
    pub fn path(&self, plural: &str) -> String {
        format!("/apis/horchestra.io/v1/namespaces/{}/{plural}", self.namespace)
    }

    /// The name of one of several objects of a kind.
    pub fn named(&self, which: &str) -> String {
        format!("{}-{which}", self.name)
    }
}

/// The path of the objects of a kind without namespaces.
pub fn cluster(plural: &str) -> String {
    format!("/apis/horchestra.io/v1/{plural}")
}

// A test has no arguments.
#[allow(clippy::disallowed_methods)]
fn rounds() -> u64 {
    let given = std::env::var("HORCHESTRA_TEST_ROUNDS").ok();
    given.map_or(ROUNDS, |text| text.parse().expect("HORCHESTRA_TEST_ROUNDS is a number"))
}

/// The outcomes of the rounds of one lane, counted.
async fn run(
    rule: &'static Rule,
    numbers: Vec<u64>,
    callers: [Callers; 2],
    mut random: StdRng,
) -> BTreeMap<usize, u64> {
    let mut seen = BTreeMap::new();
    for number in numbers {
        let namespace = rule.namespace();
        let name = format!("{}-{number}", rule.name);
        let mut round = Round { namespace, name, number, made: Vec::new() };
        for ask in (rule.setup)(&round) {
            let shown = format!("{ask:?}");
            let reply = ask.of(&callers[0]).await;
            assert!(reply.status < 300, "{}: {shown}: {}", round.name, reply.text());
            round.made.push(reply.json());
        }
        let [first, second] = (rule.race)(&round);
        if first.ruled || second.ruled {
            // Whether one may ask at all is judged by what the replica knows: let it know of the setup.
            let known = callers[1].master.get(&cluster("namespaces")).await;
            assert_eq!(known.status, 200, "{known:?}");
        }
        let swapped = usize::from(number % 2 == 1);
        let late = |random: &mut StdRng| {
            Duration::from_micros(random.random_range(0..LATE.as_micros().try_into().unwrap_or(1)))
        };
        let (before, after) = (late(&mut random), late(&mut random));
        let (here, there) = (&callers[swapped], &callers[1 - swapped]);
        let (first, second) = tokio::join!(
            async {
                tokio::time::sleep(before).await;
                first.of(here).await
            },
            async {
                tokio::time::sleep(after).await;
                second.of(there).await
            },
        );
        let fits = |outcome: &&rules::Outcome| {
            let told = [&first, &second].into_iter().all(|reply| {
                reply.status < 300 || (reply.text().contains(outcome.told) && !reply.reason().is_empty())
            });
            (first.status, second.status) == outcome.codes && told && outcome.is_in_order([&first, &second])
        };
        let outcome = rule.outcomes.iter().position(|outcome| fits(&outcome));
        let told = || {
            format!("{}: {} {}\n{} {}", round.name, first.status, first.text(), second.status, second.text())
        };
        *seen.entry(outcome.unwrap_or_else(|| panic!("{}", told()))).or_default() += 1;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_requests_get_around_a_rule() {
    let seed = Seed::of("contests");
    let database = database().await;
    let config = || ServiceConfig { service_range: Some(RANGE.parse().unwrap()), ..ServiceConfig::default() };
    let (here, first) = replica_with(&database, config()).await;
    let (there, second) = replica_with(&database, config()).await;
    let callers = [Callers::of(&here, &first).await, Callers::of(&there, &second).await];
    let rounds = rounds();
    for (at, rule) in RULES.iter().enumerate() {
        let room = json!({"metadata": {"name": rule.namespace()}});
        assert_eq!(callers[0].master.post(&cluster("namespaces"), &room).await.status, 201);
        let lanes = (0..LANES).map(|lane| {
            let numbers = (0..rounds).filter(|number| number % LANES == lane).collect();
            let random = seed.lane(at as u64 * LANES + lane);
            tokio::spawn(run(rule, numbers, callers.clone(), random))
        });
        let mut seen: BTreeMap<usize, u64> = BTreeMap::new();
        for lane in futures::future::join_all(lanes).await {
            for (outcome, count) in lane.unwrap() {
                *seen.entry(outcome).or_default() += count;
            }
        }
        for (number, outcome) in rule.outcomes.iter().enumerate() {
            let count = seen.get(&number).copied().unwrap_or_default();
            assert!(
                count > 0 || outcome.rare || rounds < ROUNDS,
                "{}: never {outcome:?}: {seen:?}",
                rule.name
            );
        }
    }
    let checked = judge_the_log(&here.store).await;
    assert!(checked > usize::try_from(rounds).unwrap(), "the log was read");
    here.store.shutdown().await;
    there.store.shutdown().await;
}

/// Checks every revision of the log; answers how many changes there were.
async fn judge_the_log(store: &Store) -> usize {
    let backend = Arc::clone(store.backend());
    let (mut state, mut at) = (invariants::State::default(), 0);
    loop {
        let rows = backend.changes(at, 1000).await.unwrap().rows;
        let Some(last) = rows.last() else { break };
        at = last.change.revision;
        for row in rows {
            state.take(&row.change, &row.who);
        }
    }
    state.end_of_item();
    state.checked
}
