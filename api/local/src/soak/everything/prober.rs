//! Measures how long things take to be as they were, by what a client sees.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use horchestra_core::kind::Kind;
use horchestra_store::Revision;
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::super::checker::{Acknowledged, Promise};
use super::super::load::{Author, Made, NAMESPACE, Told, key};
use super::informers::Informers;
use super::site::{APIS, Site, Way, connect};
use crate::client::Client;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// A client takes no answer for so long for none.
const ANSWER: Duration = Duration::from_secs(1);
/// Clients of the balancer, so that some have their connections to the replica that is killed.
const BALANCED: usize = 3;
const READ: &str = "/apis/horchestra.io/v1/namespaces/default";

/// Clients who ask something small all the time, while they are told to.
pub struct Askers {
    askers: Vec<Asker>,
    asking: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

struct Asker {
    way: String,
    /// When answers came.
    answers: Arc<Mutex<Vec<Instant>>>,
}

impl Askers {
    pub fn begin(site: &Site) -> Askers {
        let (asking, told) = watch::channel(false);
        let (mut askers, mut tasks) = (Vec::new(), JoinSet::new());
        let balanced = &site.ways()[APIS];
        for way in site.ways()[..APIS].iter().chain(std::iter::repeat_n(balanced, BALANCED)) {
            let answers = Arc::default();
            askers.push(Asker { way: way.name.clone(), answers: Arc::clone(&answers) });
            tasks.spawn(ask(way.clone(), told.clone(), answers));
        }
        Askers { askers, asking, _tasks: tasks }
    }

    /// From here on they ask, until `quiet`; all of them have had an answer when this returns.
    pub async fn ask(&self) -> Result<()> {
        for asker in &self.askers {
            asker.answers.lock().clear();
        }
        self.asking.send_replace(true);
        let deadline = Instant::now() + PATIENCE;
        while self.askers.iter().any(|asker| asker.answers.lock().is_empty()) {
            if Instant::now() > deadline {
                bail!("somebody has no answer from the API before anything happens");
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    pub fn quiet(&self) {
        self.asking.send_replace(false);
    }

    /// The longest time without an answer to one of those whose way is meant, over since a moment or still going on.
    pub fn longest(&self, since: Instant, meant: impl Fn(&str) -> bool) -> Duration {
        let now = Instant::now();
        let asked = self.askers.iter().filter(|asker| meant(&asker.way));
        asked.map(|asker| longest(&asker.answers.lock(), since, now)).max().unwrap_or_default()
    }
}

/// The longest time between two answers of which the later came after `since`, or between the last one and `now`.
fn longest(answers: &[Instant], since: Instant, now: Instant) -> Duration {
    let pairs = answers.windows(2).map(|pair| (pair[0], pair[1]));
    let last = answers.last().map(|last| (*last, now));
    let after = pairs.chain(last).filter(|(_, later)| *later > since);
    after.map(|(earlier, later)| later - earlier).max().unwrap_or(now - since)
}

async fn ask(way: Way, mut asking: watch::Receiver<bool>, answers: Arc<Mutex<Vec<Instant>>>) {
    let mut connection = None;
    while asking.wait_for(|asking| *asking).await.is_ok() {
        let asked = timeout(ANSWER, async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => way.client.open().await?,
            };
            let (status, _) = open.call(Method::GET, READ, None).await?;
            anyhow::Ok((status, open))
        });
        if let Ok(Ok((status, open))) = asked.await
            && status == StatusCode::OK
        {
            answers.lock().push(Instant::now());
            connection = Some(open);
        }
        sleep(LOOK * 2).await;
    }
}

/// Somebody who makes small things and sees what becomes of them.
pub struct Prober {
    author: Author,
    told: Told,
    made: u64,
}

impl Prober {
    pub fn new(author: Author, told: &Told) -> Prober {
        Prober { author, told: Arc::clone(told), made: 0 }
    }

    fn application(&mut self, node: Option<&str>) -> Value {
        self.made += 1;
        let mut object = json!({
            "apiVersion": "horchestra.io/v1", "kind": "Application",
            "metadata": {"name": format!("probe-{}", self.made)},
            "spec": {
                "image": "registry.example/demo:1",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
            },
        });
        if let Some(node) = node {
            object["spec"]["placement"] = json!({"nodeName": node});
        }
        object
    }

    /// Until a new Application has a node, from the moment it was wanted.
    pub async fn bound(&mut self, since: Instant) -> Result<Duration> {
        let object = self.application(None);
        let made = self.author.create(Kind::Application, &object).await?;
        let placed = |object: &Value| {
            object["spec"]["placement"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
        };
        self.becomes(&made, "placed", placed).await?;
        let took = since.elapsed();
        self.author.delete(&made, "Background").await?;
        Ok(took)
    }

    /// Until something new runs on each of these nodes.
    pub async fn runs(&mut self, nodes: &[String], since: Instant) -> Result<Duration> {
        let mut all = Vec::new();
        for node in nodes {
            let object = self.application(Some(node));
            all.push(self.author.create(Kind::Application, &object).await?);
        }
        for made in &all {
            self.becomes(made, "running", |object| object["status"]["phase"] == "Running").await?;
        }
        let took = since.elapsed();
        for made in &all {
            self.author.delete(made, "Background").await?;
        }
        Ok(took)
    }

    async fn becomes(&mut self, made: &Made, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stands = self.author.get(&made.key).await?;
            if stands.as_ref().is_some_and(&is) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("after {PATIENCE:?} {} is not {what}: {stands:?}", made.key);
            }
            sleep(LOOK).await;
        }
    }

    /// Until a write through every replica is acknowledged, and every informer of Applications has seen it.
    pub async fn written(&mut self, site: &Site, informers: &Informers, since: Instant) -> Result<Duration> {
        let objects: Vec<Value> = (0..APIS).map(|_| self.application(None)).collect();
        let writes = objects
            .iter()
            .enumerate()
            .map(|(replica, object)| write(site.direct(replica), &self.told, object));
        let written = futures::future::try_join_all(writes).await?;
        for (revision, _) in &written {
            informers.all_see(*revision).await?;
        }
        let took = since.elapsed();
        for (_, made) in &written {
            self.author.delete(made, "Background").await?;
        }
        Ok(took)
    }
}

/// Makes an object, as often as it takes.
async fn write(client: &Client, told: &Told, object: &Value) -> Result<(Revision, Made)> {
    let collection = format!("/apis/horchestra.io/v1/namespaces/{NAMESPACE}/applications");
    let key = key(Kind::Application, object["metadata"]["name"].as_str().unwrap_or_default());
    let path = format!("{collection}/{}", key.name);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = timeout(ANSWER, client.call(Method::POST, &collection, Some(object))).await;
        let status = asked.as_ref().ok().and_then(|asked| Some(asked.as_ref().ok()?.0));
        let answer = match asked {
            Ok(Ok((StatusCode::CREATED, answer))) => Some(answer),
            // An earlier attempt was stored, and its answer lost.
            Ok(Ok((StatusCode::CONFLICT, _))) => {
                timeout(ANSWER, client.get(&path)).await.ok().and_then(Result::ok)
            }
            _ => None,
        };
        if let Some(answer) = answer {
            let metadata = &answer["metadata"];
            let revision = metadata["resourceVersion"].as_str().unwrap_or_default().parse()?;
            let uid = metadata["uid"].as_str().unwrap_or_default().parse()?;
            let promise = Promise::Written(revision);
            told.lock().push(Acknowledged { key: key.clone(), uid, promise, turn: None });
            return Ok((revision, Made { key, uid }));
        }
        if Instant::now() > deadline {
            bail!("after {PATIENCE:?} {key} is not written: {status:?}");
        }
        sleep(LOOK).await;
    }
}

/// Waits until the database answers; when it did.
pub async fn database_answers(url: &str) -> Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = async {
            let mut database = connect(url).await?;
            anyhow::Ok(sqlx::query_scalar::<_, i32>("select 1").fetch_one(&mut database).await?)
        };
        match asked.await {
            Ok(_) => return Ok(Instant::now()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Nodes that a gateway serves, by its name.
pub async fn nodes_of(database: &mut PgConnection, gateway: usize) -> Result<Vec<String>> {
    let query = "select s.node from horchestra.node_sessions s join horchestra.gateways g on g.id = s.gateway \
        where g.name = $1 order by s.node";
    Ok(sqlx::query_scalar(query).bind(format!("gateway-{gateway}")).fetch_all(database).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_without_an_answer_ends_after_the_fault_began() {
        let began = Instant::now();
        let at = |seconds: &[u64]| -> Vec<Instant> {
            seconds.iter().map(|second| began + Duration::from_secs(*second)).collect()
        };
        let since = began + Duration::from_secs(10);
        let now = began + Duration::from_secs(20);
        let tales: [(&[u64], u64); 5] = [
            (&[1, 8, 11, 13, 19], 6),
            // It began before and ended after.
            (&[7, 12, 15, 18], 5),
            // Nothing since then.
            (&[1, 9], 11),
            (&[], 10),
            // What was before it does not count.
            (&[0, 9, 10, 12, 14, 16, 18, 20], 2),
        ];
        for (answers, expected) in tales {
            assert_eq!(longest(&at(answers), since, now), Duration::from_secs(expected), "{answers:?}");
        }
    }
}
