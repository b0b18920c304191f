//! Clients that write, read back and follow, all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::wire::{Answer, Caller, Protocol, Wire};
use crate::client::{APPLICATIONS, Seen};

/// Between two rounds of a writer.
const BREATH: Duration = Duration::from_millis(20);

/// Creates, patches, reads, lists and deletes an Application that fits nowhere, again and again.
pub async fn write(wire: Wire, protocol: Protocol, number: usize, stop: Arc<AtomicBool>) -> usize {
    let mut caller = Caller::new(&wire, protocol);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        round(&wire, &mut caller, number, rounds).await;
        rounds += 1;
        tokio::time::sleep(BREATH).await;
    }
    rounds
}

async fn round(wire: &Wire, caller: &mut Caller, number: usize, round: usize) {
    let name = format!("load-{number}-{round}");
    let path = format!("{APPLICATIONS}/{name}");
    let app = json!({"metadata": {"name": name, "labels": {"writer": format!("w{number}")}},
        "spec": {"image": "x", "resources": {"requests": {"cpu": "4000"}}}});
    let marked = json!({"metadata": {"labels": {"round": round.to_string()}}});
    let listed = format!("{APPLICATIONS}?labelSelector=writer%3Dw{number}&limit=10");
    let expect = |what: &str, code: u16, answer: &Option<Answer>| {
        // What was sent twice must not have been done twice: whoever leaves answers what it does.
        if let Some(answer) = answer.as_ref().filter(|answer| answer.code != code) {
            let again = if answer.again { ", sent again" } else { "" };
            wire.tally.fail(format!("{what} {name}{again}: {} {}", answer.code, answer.body));
        }
    };
    let made = caller.call(Method::POST, APPLICATIONS, Some(&app)).await;
    expect("create", 201, &made);
    let patched = caller.call(Method::PATCH, &path, Some(&marked)).await;
    expect("patch", 200, &patched);
    let found = caller.call(Method::GET, &path, None).await;
    expect("get", 200, &found);
    let written = Value::from(round.to_string());
    if let Some(found) = found.filter(|found| found.body["metadata"]["labels"]["round"] != written) {
        wire.tally.fail(format!("get {name}: not what was written: {}", found.body));
    }
    let list = caller.call(Method::GET, &listed, None).await;
    expect("list", 200, &list);
    if let Some(list) = list {
        let items = list.body["items"].as_array().cloned().unwrap_or_default();
        if !items.iter().any(|item| item["metadata"]["name"] == *name) {
            wire.tally.fail(format!("list of writer {number}: {name} is missing: {}", list.body));
        }
    }
    expect("delete", 200, &caller.call(Method::DELETE, &path, None).await);
}

/// Who has listed once, and follows from there on.
pub struct Informer {
    /// Of the last event.
    position: Arc<AtomicI64>,
    task: JoinHandle<Followed>,
}

/// What came after a list.
pub struct Followed {
    pub listed_at: i64,
    pub events: Vec<Seen>,
    /// How often a watch was begun.
    pub watches: usize,
}

/// Looks at every object that comes; what is wrong with it.
pub type Judge = fn(&Value) -> Option<String>;

impl Informer {
    pub fn begin(
        wire: &Wire,
        protocol: Protocol,
        path: &'static str,
        judge: Judge,
        stop: &Arc<AtomicBool>,
    ) -> Informer {
        let position = Arc::new(AtomicI64::new(0));
        let following = Following {
            wire: wire.clone(),
            path,
            judge,
            position: Arc::clone(&position),
            stop: Arc::clone(stop),
        };
        Informer { position, task: tokio::spawn(following.run(protocol)) }
    }

    pub fn position(&self) -> i64 {
        self.position.load(Ordering::Relaxed)
    }

    pub async fn end(self) -> Followed {
        self.task.await.unwrap()
    }
}

struct Following {
    wire: Wire,
    path: &'static str,
    judge: Judge,
    position: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
}

impl Following {
    async fn run(self, protocol: Protocol) -> Followed {
        let mut followed = Followed { listed_at: 0, events: Vec::new(), watches: 0 };
        let Some(list) = Caller::new(&self.wire, protocol).call(Method::GET, self.path, None).await else {
            return followed;
        };
        followed.listed_at = revision(&list.body["metadata"]);
        self.position.store(followed.listed_at, Ordering::Relaxed);
        let mut from = followed.listed_at;
        loop {
            let goes_on = self.watch(protocol, &mut from, &mut followed).await;
            if !goes_on || self.stop.load(Ordering::Relaxed) {
                return followed;
            }
        }
    }

    fn fail(&self, what: &str) -> bool {
        self.wire.tally.fail(format!("watch of {}: {what}", self.path));
        false
    }

    /// One watch to its end; whether another one is to follow.
    async fn watch(&self, protocol: Protocol, from: &mut i64, followed: &mut Followed) -> bool {
        let path = format!("{}?watch=1&resourceVersion={from}&allowWatchBookmarks=true", self.path);
        let Ok(mut connection) = self.wire.connect(protocol).await else {
            tokio::time::sleep(BREATH).await;
            return true;
        };
        let Ok(response) = connection.send(self.wire.request(&Method::GET, &path, None)).await else {
            connection.bury(&self.wire.tally).await;
            return true;
        };
        if response.status() != 200 {
            let status = response.status();
            let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return self.fail(&format!("{status} from {from}: {}", String::from_utf8_lossy(&body)));
        }
        followed.watches += 1;
        let (mut body, mut buffer) = (response.into_body(), Vec::new());
        loop {
            let frame = match tokio::time::timeout(Duration::from_millis(200), body.frame()).await {
                Err(_) if self.stop.load(Ordering::Relaxed) => return false,
                Err(_) => continue,
                Ok(Some(Ok(frame))) => frame,
                Ok(None) if buffer.is_empty() => break,
                Ok(None) => return self.fail("it ends within an event"),
                Ok(Some(Err(error))) => return self.fail(&format!("it breaks off: {error:?}")),
            };
            buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if !self.take(&line, from, followed) {
                    return false;
                }
            }
        }
        connection.bury(&self.wire.tally).await;
        true
    }

    fn take(&self, line: &[u8], from: &mut i64, followed: &mut Followed) -> bool {
        let event: Value = serde_json::from_slice(line).unwrap_or_default();
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        if !["ADDED", "MODIFIED", "DELETED", "BOOKMARK"].contains(&kind) {
            return self.fail(&event.to_string());
        }
        *from = revision(&object["metadata"]);
        if kind == "BOOKMARK" {
            return true;
        }
        if let Some(wrong) = (self.judge)(object) {
            self.fail(&wrong);
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        followed.events.push(Seen { kind: kind.to_owned(), name, revision: *from });
        self.position.store(*from, Ordering::Relaxed);
        true
    }
}

fn revision(metadata: &Value) -> i64 {
    metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}
