//! Clients that want things all the time, as real ones do: patiently, and remembering what they were told.
//!
//! Every author has objects of its own that nobody else writes (but for the control plane), so that what was
//! acknowledged to it last is what has to stand in the end. None of them waits for the storm, and each leaves its
//! objects so that everything can come to rest: nodes uncordoned, what was too much deleted, the rest as wished.

mod applications;
mod sets;
mod surroundings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::quantity::Quantity;
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use rand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::checker::{Acknowledged, Promise, TURN};
use crate::client::{Client, Connection};

const API: &str = "/apis/horchestra.io/v1";
pub const NAMESPACE: &str = "default";
/// How long one answer may take before it is asked for again.
const ANSWER: Duration = Duration::from_secs(10);
/// How long clients go on asking, and wait for what was promised: on a busy machine a leader that is killed after
/// three seconds may not get to anything, and nor does the next one.
const PATIENCE: Duration = Duration::from_secs(900);

/// What a share of a node's room is: twenty fill it.
#[derive(Clone, Debug)]
pub struct Share {
    milli: i64,
    bytes: i64,
    /// Labels of the few nodes that are filled.
    room: Value,
}

impl Share {
    async fn of_nodes(client: &Client, room: Value) -> Result<Share> {
        let nodes = client.get(&format!("{API}/nodes")).await?;
        let capacity = |resource: &str| -> Result<Quantity> {
            let of = |node: &Value| node["status"]["capacity"][resource].as_str()?.parse::<Quantity>().ok();
            let least = nodes["items"].as_array().into_iter().flatten().filter_map(of).min();
            least.with_context(|| format!("no node says how much {resource} it has"))
        };
        Ok(Share { milli: capacity("cpu")?.milli() / 20, bytes: capacity("memory")?.int() / 20, room })
    }

    /// Labels of the nodes that are filled; none: all of them are.
    pub fn room(&self) -> &Value {
        &self.room
    }

    /// `resources` of an Application that takes so many shares.
    pub fn times(&self, count: i64) -> Value {
        let (milli, bytes) = (self.milli * count, self.bytes * count);
        json!({"requests": {"cpu": format!("{milli}m"), "memory": bytes.to_string()}})
    }
}

/// Everybody at work.
pub struct Load {
    authors: JoinSet<Result<()>>,
    told: Told,
    stop: CancellationToken,
}

/// What clients were told.
pub type Told = Arc<Mutex<Vec<Acknowledged>>>;

impl Load {
    /// Authors call by these ways in turn. Nodes with the labels `room` are filled, and sets that spread go there.
    pub async fn begin(ways: &[Client], room: Value, manner: Manner) -> Result<Load> {
        let first = ways.first().context("there is no way to the API")?;
        let share = Share::of_nodes(first, room).await?;
        let (told, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let mut turns = ways.iter().cycle();
        let mut author = || Author::new(turns.next().unwrap_or(first), &told, &stop, manner);
        let mut authors = JoinSet::new();
        for name in ["north", "south"] {
            authors.spawn(applications::come_and_go(author(), name, share.clone()));
        }
        authors.spawn(applications::crowd(author(), share.clone()));
        for standing in sets::STANDING {
            authors.spawn(sets::edit(author(), standing, share.clone()));
        }
        authors.spawn(sets::come_and_go(author(), share.clone()));
        authors.spawn(surroundings::cordon(author()));
        authors.spawn(surroundings::families(author(), share));
        Ok(Load { authors, told, stop })
    }

    /// Where what they are told is kept.
    pub fn told(&self) -> &Told {
        &self.told
    }

    /// Nobody has given up.
    pub fn check(&mut self) -> Result<()> {
        match self.authors.try_join_next() {
            Some(ended) => ended?.and_then(|()| bail!("an author ended before it was told to")),
            None => Ok(()),
        }
    }

    /// Everybody comes to an end; what they were told.
    pub async fn end(mut self) -> Result<Vec<Acknowledged>> {
        self.stop.cancel();
        while let Some(ended) = self.authors.join_next().await {
            ended??;
        }
        Ok(std::mem::take(&mut self.told.lock()))
    }
}

/// An object that an author has made.
#[derive(Clone, Debug)]
pub struct Made {
    pub key: Key,
    pub uid: Uuid,
}

/// How a deletion is to go on with what depends on the object.
pub const MODES: [&str; 3] = ["Background", "Foreground", "Orphan"];

/// How an author changes what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Whatever stands.
    Outright,
    /// Only what it has just read. Where requests are held up on their way, one that was given up may still arrive, after
    /// later ones, and would put back what it says.
    AsRead,
}

/// One client.
pub struct Author {
    client: Client,
    connection: Option<Connection>,
    told: Told,
    stop: CancellationToken,
    manner: Manner,
}

impl Author {
    /// One who keeps what it is told, until it is time to stop.
    pub fn new(client: &Client, told: &Told, stop: &CancellationToken, manner: Manner) -> Author {
        Author {
            client: client.clone(),
            connection: None,
            told: Arc::clone(told),
            stop: stop.clone(),
            manner,
        }
    }

    pub fn is_told_to_stop(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// A pause of about so many milliseconds, unless it is time to stop.
    pub async fn pause(&self, milliseconds: u64) {
        let about = rand::rng().random_range(milliseconds / 2..=milliseconds * 3 / 2);
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = sleep(Duration::from_millis(about)) => {}
        }
    }

    /// Again and again until there is an answer that says something: connections are lost and servers are busy in
    /// a storm.
    async fn call(
        &mut self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let outcome = timeout(ANSWER, self.attempt(method, path, body)).await;
            match outcome {
                Ok(Ok((status, answer))) if !is_for_later(status) => return Ok((status, answer)),
                Ok(Ok((status, answer))) if Instant::now() > deadline => {
                    bail!("{method} {path}: {status}: {answer}")
                }
                Ok(Err(error)) if Instant::now() > deadline => {
                    return Err(error.context(format!("{method} {path}")));
                }
                Err(_) if Instant::now() > deadline => bail!("no answer to {method} {path}"),
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => self.connection = None,
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn attempt(
        &mut self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.open().await?,
        };
        let answer = connection.call(method.clone(), path, body).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// Makes an object. Where it is there already, an earlier attempt's answer was lost: names are used once.
    pub async fn create(&mut self, kind: Kind, object: &Value) -> Result<Made> {
        let name = object["metadata"]["name"].as_str().context("an object without a name")?.to_owned();
        let (status, answer) = self.call(&Method::POST, &collection(kind), Some(object)).await?;
        let stored = match status {
            StatusCode::CREATED => answer,
            StatusCode::CONFLICT => {
                self.get(&key(kind, &name)).await?.context("it is there, and it is not")?
            }
            _ => bail!("making {kind} {name}: {status}: {answer}"),
        };
        self.written(kind, &stored)
    }

    /// Changes an object with a merge patch.
    pub async fn merge(&mut self, key: &Key, patch: &Value) -> Result<Made> {
        let mut patch = patch.clone();
        loop {
            if self.manner == Manner::AsRead {
                let stands = self.get(key).await?.with_context(|| format!("{key} is not there"))?;
                patch["metadata"]["resourceVersion"] = stands["metadata"]["resourceVersion"].clone();
            }
            let (status, answer) = self.call(&Method::PATCH, &path(key), Some(&patch)).await?;
            match status {
                StatusCode::OK => return self.written(key.kind, &answer),
                // Somebody else was there in between, or an earlier attempt of its own.
                StatusCode::CONFLICT if self.manner == Manner::AsRead => {}
                _ => bail!("changing {key}: {status}: {answer}"),
            }
        }
    }

    /// Asks for a deletion.
    pub async fn delete(&mut self, made: &Made, mode: &str) -> Result<()> {
        let path = format!("{}?propagationPolicy={mode}", path(&made.key));
        let (status, answer) = self.call(&Method::DELETE, &path, None).await?;
        if !status.is_success() && status != StatusCode::NOT_FOUND {
            bail!("deleting {}: {status}: {answer}", made.key);
        }
        let (key, uid) = (made.key.clone(), made.uid);
        self.told.lock().push(Acknowledged { key, uid, promise: Promise::Deleted, turn: None });
        Ok(())
    }

    /// Waits until an object that was deleted is gone.
    pub async fn is_gone(&mut self, made: &Made) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stands = self.get(&made.key).await?;
            let Some(stands) = stands.filter(|it| it["metadata"]["uid"] == made.uid.to_string()) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                bail!("{} was deleted and does not go: {stands}", made.key);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        let (status, answer) = self.call(&Method::GET, &path(key), None).await?;
        match status {
            StatusCode::OK => Ok(Some(answer)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => bail!("reading {key}: {status}: {answer}"),
        }
    }

    /// Keeps what an answer promises.
    fn written(&mut self, kind: Kind, stored: &Value) -> Result<Made> {
        let metadata = &stored["metadata"];
        let text = |member: &str| metadata[member].as_str().unwrap_or_default();
        let made = Made { key: key(kind, text("name")), uid: text("uid").parse()? };
        let revision = text("resourceVersion").parse().context("an answer without a revision")?;
        let turn = metadata["annotations"][TURN].as_str().and_then(|turn| turn.parse().ok());
        let (key, uid) = (made.key.clone(), made.uid);
        self.told.lock().push(Acknowledged { key, uid, promise: Promise::Written(revision), turn });
        Ok(made)
    }
}

fn is_for_later(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Where a turn is written.
pub fn turned(turn: u64) -> Value {
    json!({TURN: turn.to_string()})
}

pub fn key(kind: Kind, name: &str) -> Key {
    if kind.namespaced() { Key::namespaced(kind, NAMESPACE, name) } else { Key::cluster(kind, name) }
}

fn collection(kind: Kind) -> String {
    let plural = kind.plural();
    if kind.namespaced() {
        format!("{API}/namespaces/{NAMESPACE}/{plural}")
    } else {
        format!("{API}/{plural}")
    }
}

fn path(key: &Key) -> String {
    format!("{}/{}", collection(key.kind), key.name)
}
