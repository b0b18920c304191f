//! Writers besides those of the [other load](super::super::load): Secrets, Services, workloads that are processes; and
//! strict ones, who try everything once.
//!
//! A strict writer never asks twice. It changes what it has read and nothing else (`resourceVersion`), so that each
//! attempt is stored once or not at all, and it does not say which when the answer is lost: it writes down that it does
//! not know, and the log tells in the end. After an acknowledged write it reads by another way, which must not show
//! anything older.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_core::kind::{Key, Kind};
use horchestra_store::Revision;
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::checker::{Acknowledged, Promise, TURN};
use super::super::load::{Author, Made, Manner, NAMESPACE, Told, key, turned};
use super::checker::{Attempt, Outcome};
use super::site::{Site, Way};

/// How many of a writer's objects are there at a time.
const ALIVE: usize = 6;
/// How long one answer may take until it is not known what became of a write.
const ANSWER: Duration = Duration::from_secs(5);
/// Strict writers.
const STRICT: usize = 4;

/// Everybody at work.
pub struct Writers {
    tasks: JoinSet<Result<()>>,
    stop: CancellationToken,
    ledger: Arc<Ledger>,
}

/// What strict writers have tried, and what they saw.
#[derive(Debug, Default)]
pub struct Ledger {
    pub attempts: Mutex<Vec<Attempt>>,
    /// Reads that showed something older than what had been acknowledged.
    pub stale: Mutex<Vec<String>>,
}

impl Writers {
    /// What is acknowledged goes to `told`.
    pub fn begin(site: &Site, told: &Told, seed: u64) -> Writers {
        let (stop, ledger) = (CancellationToken::new(), Arc::new(Ledger::default()));
        let mut tasks = JoinSet::new();
        let author = |at: usize| {
            let way = &site.ways()[at % site.ways().len()];
            Author::new(&way.client, told, &stop, Manner::AsRead)
        };
        tasks.spawn(secrets(author(0), Arc::clone(&ledger)));
        tasks.spawn(services(author(1)));
        tasks.spawn(processes(author(2)));
        for number in 0..STRICT {
            let strict = Strict {
                number,
                ways: site.ways().to_vec(),
                told: Arc::clone(told),
                ledger: Arc::clone(&ledger),
                stop: stop.clone(),
                random: StdRng::seed_from_u64(seed.wrapping_add(number as u64)),
            };
            tasks.spawn(Box::pin(strict.run()));
        }
        Writers { tasks, stop, ledger }
    }

    /// Nobody has given up.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            Some(ended) => ended?.and_then(|()| bail!("a writer ended before it was told to")),
            None => Ok(()),
        }
    }

    /// Everybody comes to an end; what the strict ones have tried.
    pub async fn end(mut self) -> Result<(Vec<Attempt>, Vec<String>)> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let attempts = std::mem::take(&mut *self.ledger.attempts.lock());
        let stale = std::mem::take(&mut *self.ledger.stale.lock());
        Ok((attempts, stale))
    }
}

/// What a Secret says after it was changed.
fn second(number: u64) -> String {
    format!("second {number}")
}

/// Secrets that come, change and go. What is left is read in the end: the log has it sealed.
async fn secrets(mut author: Author, ledger: Arc<Ledger>) -> Result<()> {
    let mut alive: VecDeque<(u64, Made)> = VecDeque::new();
    for number in 1_u64.. {
        if author.is_told_to_stop() {
            break;
        }
        let object = json!({
            "metadata": {"name": format!("secret-{number}"), "annotations": turned(number)},
            "stringData": {"password": format!("first {number}")},
        });
        let made = author.create(Kind::Secret, &object).await?;
        let change = json!({
            "metadata": {"annotations": turned(number + 1)},
            "stringData": {"password": second(number)},
        });
        author.merge(&made.key, &change).await?;
        alive.push_back((number, made));
        if alive.len() > ALIVE
            && let Some((_, oldest)) = alive.pop_front()
        {
            author.delete(&oldest, "Background").await?;
        }
        author.pause(700).await;
    }
    for (number, made) in &alive {
        let stands = author.get(&made.key).await?;
        ledger.stale.lock().extend(odd_secret(&made.key, *number, stands.as_ref()));
    }
    Ok(())
}

/// What is wrong with a Secret that was left.
fn odd_secret(key: &Key, number: u64, stands: Option<&Value>) -> Option<String> {
    let Some(stands) = stands else { return Some(format!("{key} was acknowledged, and is not there")) };
    let password = stands["data"]["password"].as_str().and_then(|data| STANDARD.decode(data).ok());
    let turn = &stands["metadata"]["annotations"][TURN];
    let expected = (number + 1).to_string();
    let well = turn.as_str() == Some(&expected) && password == Some(second(number).into_bytes());
    (!well).then(|| format!("{key}: turn {} was acknowledged, and it is read with {turn}", number + 1))
}

fn service(name: &str, turn: u64) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "Service",
        "metadata": {"name": name, "annotations": turned(turn)},
        "spec": {"ports": [{"name": "web", "port": 80, "targetName": "web"}]},
    })
}

/// Services that come, change and go.
async fn services(mut author: Author) -> Result<()> {
    let mut alive: VecDeque<Made> = VecDeque::new();
    for number in 1_u64.. {
        if author.is_told_to_stop() {
            break;
        }
        let made = author.create(Kind::Service, &service(&format!("service-{number}"), number)).await?;
        author.merge(&made.key, &json!({"metadata": {"annotations": turned(number + 1)}})).await?;
        alive.push_back(made);
        if alive.len() > ALIVE
            && let Some(oldest) = alive.pop_front()
        {
            author.delete(&oldest, "Background").await?;
        }
        author.pause(1_000).await;
    }
    Ok(())
}

/// Workloads that are processes of this machine, on the nodes whose agents run some.
async fn processes(mut author: Author) -> Result<()> {
    let mut alive: VecDeque<Made> = VecDeque::new();
    for number in 1_u64.. {
        if author.is_told_to_stop() {
            break;
        }
        let object = json!({
            "metadata": {"name": format!("process-{number}"), "annotations": turned(number)},
            "spec": {
                "image": "registry.example/demo:1", "command": ["sleep", "100000"],
                "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
                "placement": {"nodeSelector": Site::room()},
            },
        });
        alive.push_back(author.create(Kind::Application, &object).await?);
        if alive.len() > ALIVE
            && let Some(oldest) = alive.pop_front()
        {
            author.delete(&oldest, "Background").await?;
            author.is_gone(&oldest).await?;
        }
        author.pause(2_000).await;
    }
    Ok(())
}

/// A writer who tries everything once.
struct Strict {
    number: usize,
    ways: Vec<Way>,
    told: Told,
    ledger: Arc<Ledger>,
    stop: CancellationToken,
    random: StdRng,
}

/// What a strict writer knows of its object.
struct Known {
    revision: Revision,
    uid: uuid::Uuid,
}

impl Strict {
    async fn run(mut self) -> Result<()> {
        for life in 1_u64.. {
            if self.stop.is_cancelled() {
                break;
            }
            self.live(life).await?;
        }
        Ok(())
    }

    /// One object, from its beginning to its end.
    async fn live(&mut self, life: u64) -> Result<()> {
        let key = key(Kind::Service, &format!("strict-{}-{life}", self.number));
        let mut turn = 1;
        let at = self.way();
        self.attempt(at, &key, turn, Method::POST, Some(&service(&key.name, turn))).await;
        let turns = 1 + self.random.random_range(2..=6);
        while turn < turns && !self.stop.is_cancelled() {
            self.pause().await;
            let Some(known) = self.read(&key).await? else {
                // It was not stored, or not yet: whoever tries again may be in the way of the first attempt, and is
                // told so.
                turn += 1;
                let at = self.way();
                self.attempt(at, &key, turn, Method::POST, Some(&service(&key.name, turn))).await;
                continue;
            };
            turn += 1;
            let patch = json!({"metadata": {
                "annotations": turned(turn), "resourceVersion": known.revision.to_string(),
            }});
            let at = self.way();
            self.attempt(at, &key, turn, Method::PATCH, Some(&patch)).await;
        }
        self.bury(&key).await
    }

    /// Takes it away, patiently: this one counts for nothing.
    async fn bury(&mut self, key: &Key) -> Result<()> {
        while let Some(known) = self.read(key).await? {
            let way = self.way();
            let path = path(key);
            let asked = timeout(ANSWER, self.ways[way].client.call(Method::DELETE, &path, None)).await;
            if let Ok(Ok((status, _))) = asked
                && status.is_success()
            {
                let (key, uid) = (key.clone(), known.uid);
                self.told.lock().push(Acknowledged { key, uid, promise: Promise::Deleted, turn: None });
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn way(&mut self) -> usize {
        self.random.random_range(0..self.ways.len())
    }

    async fn pause(&mut self) {
        let time = Duration::from_millis(self.random.random_range(100..=600));
        self.stop.run_until_cancelled(sleep(time)).await;
    }

    /// One attempt, whose outcome is written down.
    async fn attempt(&mut self, way: usize, key: &Key, turn: u64, method: Method, body: Option<&Value>) {
        let creates = method == Method::POST;
        let path = if creates { collection(key.kind) } else { path(key) };
        let answer = timeout(ANSWER, self.ways[way].client.call(method, &path, body)).await;
        let mut outcome = Outcome::Unknown;
        if let Ok(Ok((status, answer))) = answer {
            if status.is_success() {
                if let Ok(known) = known(&answer) {
                    outcome = Outcome::Stored(known.revision);
                    let promise = Promise::Written(known.revision);
                    let (key, uid) = (key.clone(), known.uid);
                    self.told.lock().push(Acknowledged { key, uid, promise, turn: Some(turn) });
                }
            } else if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
                outcome = Outcome::Refused(status.as_u16());
            }
        }
        self.ledger.attempts.lock().push(Attempt { key: key.clone(), turn, creates, outcome });
        if let Outcome::Stored(revision) = outcome {
            self.look(way, key, revision).await;
        }
    }

    /// What was acknowledged by one way is seen by another.
    async fn look(&mut self, way: usize, key: &Key, revision: Revision) {
        let other = (way + 1 + self.random.random_range(0..self.ways.len() - 1)) % self.ways.len();
        let read = timeout(ANSWER, self.ways[other].client.call(Method::GET, &path(key), None)).await;
        let Ok(Ok((status, answer))) = read else { return };
        let fresh = match status {
            StatusCode::OK => known(&answer).is_ok_and(|known| known.revision >= revision),
            StatusCode::NOT_FOUND => false,
            _ => return,
        };
        if !fresh {
            let (by, seen) = (&self.ways[other].name, &answer["metadata"]["resourceVersion"]);
            let from = &self.ways[way].name;
            self.ledger.stale.lock().push(format!(
                "{key} was acknowledged at revision {revision} by {from}, then {by} showed {status} {seen}"
            ));
        }
    }

    /// What stands, patiently.
    async fn read(&mut self, key: &Key) -> Result<Option<Known>> {
        loop {
            let way = self.way();
            let read = timeout(ANSWER, self.ways[way].client.call(Method::GET, &path(key), None)).await;
            match read {
                Ok(Ok((StatusCode::OK, answer))) => return Ok(Some(known(&answer)?)),
                Ok(Ok((StatusCode::NOT_FOUND, _))) => return Ok(None),
                _ => sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

fn known(object: &Value) -> Result<Known> {
    let text = |member: &str| object["metadata"][member].as_str().context("an object without metadata");
    Ok(Known { revision: text("resourceVersion")?.parse()?, uid: text("uid")?.parse()? })
}

fn collection(kind: Kind) -> String {
    format!("/apis/{}/namespaces/{NAMESPACE}/{}", kind.api_version(), kind.plural())
}

fn path(key: &Key) -> String {
    format!("{}/{}", collection(key.kind), key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_was_changed_last() {
        let read = |turn: &str, password: &str| json!({"metadata": {"annotations": {TURN: turn}}, "data": {"password": STANDARD.encode(password)}});
        let key = key(Kind::Secret, "secret-3");
        let odd = |stands: Option<Value>| odd_secret(&key, 3, stands.as_ref());
        assert_eq!(odd(Some(read("4", "second 3"))), None);
        for wrong in [None, Some(read("3", "second 3")), Some(read("4", "first 3")), Some(json!({}))] {
            assert!(odd(wrong.clone()).is_some(), "{wrong:?}");
        }
    }
}
