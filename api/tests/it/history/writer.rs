//! A client that writes and reads at random.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Method;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use crate::client::{Client, DEADLINE, Reply, patiently};

use super::record::{Claim, Condition, Records};
use super::{GROUP, NAMESPACES, collection, item, key, revision};

/// Names that all writers use; few enough that they meet.
const NAMES: usize = 7;
pub const TIERS: [&str; 3] = ["a", "b", "c"];

pub struct Writer {
    number: u64,
    random: StdRng,
    replicas: [Client; 2],
    records: Arc<Records>,
    /// What this client last saw of each object.
    known: BTreeMap<String, Value>,
    /// Counts requests, so that every write writes something new.
    count: usize,
    /// Revision of what this client wrote last.
    written: i64,
}

impl Writer {
    pub fn new(number: u64, random: StdRng, replicas: &[Client; 2], records: &Arc<Records>) -> Writer {
        Writer {
            number,
            random,
            replicas: replicas.clone(),
            records: Arc::clone(records),
            known: BTreeMap::new(),
            count: 0,
            written: 0,
        }
    }

    pub async fn run(mut self, requests: usize) {
        for _ in 0..requests {
            self.count += 1;
            let namespace = *NAMESPACES.choose(&mut self.random).unwrap();
            let key = format!("{namespace}/app-{}", self.random.random_range(0..NAMES));
            match self.random.random_range(0..100) {
                0..22 => self.create(&key).await,
                22..34 => self.replace(&key).await,
                34..48 => self.merge(&key).await,
                48..56 => self.operations(&key).await,
                56..66 => self.report(&key).await,
                66..71 => self.change_nothing(&key).await,
                71..82 => self.delete(&key).await,
                82..92 => self.read(&key).await,
                _ => self.list(namespace).await,
            }
        }
    }

    fn replica(&mut self) -> Client {
        self.replicas.choose(&mut self.random).unwrap().clone()
    }

    fn mark(&self) -> String {
        format!("{}-{}", self.number, self.count)
    }

    fn labels(&mut self) -> Value {
        match self.random.random_range(0..4) {
            3 => json!({"tier": null}),
            tier => json!({"tier": TIERS[tier]}),
        }
    }

    fn known_uid(&self, key: &str) -> Option<String> {
        Some(self.known.get(key)?["metadata"]["uid"].as_str()?.to_owned())
    }

    /// Sends a write that changes something in any case, and writes down what the answer says.
    async fn tell(
        &mut self,
        what: &str,
        key: &str,
        condition: Condition,
        send: impl AsyncFnOnce(&Client) -> Reply,
    ) {
        let client = self.replica();
        let began = self.records.now();
        let reply = send(&client).await;
        let claim = match reply.status {
            200 | 201 => {
                let object = reply.json();
                assert_eq!(super::key(&object), key, "{what}");
                self.written = revision(&object);
                self.known.insert(key.to_owned(), object.clone());
                Claim::Wrote { object, condition }
            }
            404 => Claim::Saw { key: key.to_owned(), object: None, not_before: 0 },
            409 if reply.reason() == "AlreadyExists" => Claim::Existed { key: key.to_owned() },
            409 | 422 if condition != Condition::None => Claim::Refused { key: key.to_owned(), condition },
            429 | 503 | 504 => Claim::Unsure { key: key.to_owned() },
            _ => panic!("{what} {key}: {reply:?}"),
        };
        self.records.add(began, format!("{what} {key} by {}: {}", self.mark(), reply.status), claim);
    }

    async fn create(&mut self, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap();
        let labels = self.labels();
        let mut object = json!({
            "metadata": {"name": name, "labels": labels, "annotations": {"mark": self.mark()}},
            "spec": {"image": "registry.example/demo:1"},
        });
        if self.random.random_bool(0.3) {
            object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        self.tell("create", key, Condition::None, async |client| {
            client.post(&collection(namespace), &object).await
        })
        .await;
    }

    async fn replace(&mut self, key: &str) {
        let Some(mut object) = self.known.get(key).cloned() else { return self.read(key).await };
        object["metadata"]["annotations"] = json!({"mark": self.mark()});
        let tier = TIERS.choose(&mut self.random).unwrap();
        object["metadata"]["labels"] = json!({"tier": tier});
        let condition = if self.random.random_bool(0.7) {
            let uid = self.known_uid(key).unwrap();
            Condition::Unchanged { uid, revision: revision(&object) }
        } else {
            let metadata = object["metadata"].as_object_mut().unwrap();
            for member in ["resourceVersion", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
                metadata.remove(member);
            }
            // Lets go of the object; when somebody is deleting it, that erases it.
            metadata.remove("finalizers");
            Condition::None
        };
        self.tell("replace", key, condition, async |client| client.put(&item(key), &object).await).await;
    }

    async fn merge(&mut self, key: &str) {
        let mut metadata = json!({"annotations": {"mark": self.mark()}});
        match self.random.random_range(0..4) {
            0 => metadata["finalizers"] = Value::Null,
            _ => metadata["labels"] = self.labels(),
        }
        let mut condition = Condition::None;
        if self.random.random_bool(0.25)
            && let Some(known) = self.known.get(key)
        {
            let (uid, revision) = (self.known_uid(key).unwrap(), revision(known));
            metadata["resourceVersion"] = json!(revision.to_string());
            // What a patch says about the uid is passed over, and revisions are never given twice.
            condition = Condition::Unchanged { uid, revision };
        }
        let patch = json!({"metadata": metadata});
        self.tell("merge", key, condition, async |client| client.merge(&item(key), &patch).await).await;
    }

    async fn operations(&mut self, key: &str) {
        let mut patch =
            vec![json!({"op": "add", "path": "/metadata/annotations/mark", "value": self.mark()})];
        let mut condition = Condition::None;
        if self.random.random_bool(0.6)
            && let Some(known) = self.known.get(key)
        {
            let revision = revision(known);
            let test =
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": revision.to_string()});
            patch.insert(0, test);
            condition = Condition::Exactly(revision);
        }
        let patch = Value::Array(patch);
        self.tell("patch", key, condition, async |client| client.json_patch(&item(key), &patch).await).await;
    }

    async fn report(&mut self, key: &str) {
        let path = format!("{}/status", item(key));
        let mark = self.mark();
        let known = self.known.get(key).filter(|_| self.random.random_bool(0.5)).cloned();
        if let Some(mut object) = known {
            object["status"] = json!({"phase": "Running", "message": mark});
            let revision = revision(&object);
            // An object of that uid has had no other revision that is that one.
            let condition = Condition::Exactly(revision);
            self.tell("report", key, condition, async |client| client.put(&path, &object).await).await;
        } else {
            let patch = json!({"status": {"message": mark}});
            self.tell("report", key, Condition::None, async |client| client.merge(&path, &patch).await).await;
        }
    }

    /// A write that asks for what is there already is a read.
    async fn change_nothing(&mut self, key: &str) {
        let client = self.replica();
        let began = self.records.now();
        let reply = client.merge(&item(key), &json!({})).await;
        let object = match reply.status {
            200 => Some(reply.json()),
            404 => None,
            429 | 503 | 504 => return,
            _ => panic!("an empty patch of {key}: {reply:?}"),
        };
        let claim = Claim::Saw { key: key.to_owned(), object, not_before: 0 };
        self.records.add(began, format!("change nothing of {key}: {}", reply.status), claim);
    }

    async fn delete(&mut self, key: &str) {
        let known = self.known.get(key).cloned();
        let (condition, options) = match (self.random.random_range(0..4), known) {
            (0, Some(known)) => {
                let uid = known["metadata"]["uid"].as_str().unwrap().to_owned();
                (Condition::Uid(uid.clone()), json!({"preconditions": {"uid": uid}}))
            }
            (1, Some(known)) => {
                let options = json!({"preconditions": {"resourceVersion": revision(&known).to_string()}});
                (Condition::Exactly(revision(&known)), options)
            }
            _ => (Condition::None, json!({})),
        };
        let client = self.replica();
        let began = self.records.now();
        let reply = client.send(Method::DELETE, &item(key), &[], options.to_string()).await;
        let claim = match reply.status {
            200 => {
                // A Status when it is gone, the object while something holds it.
                let answer = reply.json();
                let uid = answer["details"]["uid"].as_str().or(answer["metadata"]["uid"].as_str());
                let uid = uid.expect("the uid of what was deleted").to_owned();
                Claim::Deleted { key: key.to_owned(), uid, condition }
            }
            404 => Claim::Saw { key: key.to_owned(), object: None, not_before: 0 },
            409 if condition != Condition::None => Claim::Refused { key: key.to_owned(), condition },
            429 | 503 | 504 => Claim::Unsure { key: key.to_owned() },
            _ => panic!("delete {key}: {reply:?}"),
        };
        self.records.add(began, format!("delete {key} by {}: {}", self.mark(), reply.status), claim);
    }

    /// Reads one object: the newest, or one that is not older than what this client wrote.
    async fn read(&mut self, key: &str) {
        let client = self.replica();
        let not_before = if self.random.random_bool(0.3) { self.written } else { 0 };
        let query = if not_before > 0 { format!("?resourceVersion={not_before}") } else { String::new() };
        let began = self.records.now();
        let reply = patiently(&client, &format!("{}{query}", item(key))).await;
        let object = match reply.status {
            200 => Some(reply.json()),
            404 => None,
            _ => panic!("read {key}: {reply:?}"),
        };
        match &object {
            Some(object) => self.known.insert(key.to_owned(), object.clone()),
            None => self.known.remove(key),
        };
        let claim = Claim::Saw { key: key.to_owned(), object, not_before };
        self.records.add(began, format!("read {key}{query}: {}", reply.status), claim);
    }

    async fn list(&mut self, namespace: &str) {
        let client = self.replica();
        let namespace = self.random.random_bool(0.6).then_some(namespace);
        let not_before = if self.random.random_bool(0.3) { self.written } else { 0 };
        let path = namespace.map_or_else(|| format!("{GROUP}/applications"), collection);
        let query = if not_before > 0 { format!("?resourceVersion={not_before}") } else { String::new() };
        let began = self.records.now();
        let reply = patiently(&client, &format!("{path}{query}")).await;
        assert_eq!(reply.status, 200, "list: {reply:?}");
        let list = reply.json();
        let objects: BTreeMap<String, Value> =
            list["items"].as_array().unwrap().iter().map(|object| (key(object), object.clone())).collect();
        assert_eq!(objects.len(), list["items"].as_array().unwrap().len(), "a list names an object twice");
        self.known.extend(objects.clone());
        let revision = revision(&list);
        let namespace = namespace.map(str::to_owned);
        let claim = Claim::Listed { namespace, revision, objects, not_before };
        self.records.add(began, format!("list {path}{query} at {revision}"), claim);
    }
}

/// Names of the last objects: in each namespace one that each selector of the watchers sees.
pub const LAST: [(&str, Option<&str>); 4] =
    [("end-a", Some("a")), ("end-b", Some("b")), ("end-c", Some("c")), ("end-plain", None)];

/// Creates the objects that watchers without bookmarks wait for; returns the last revision.
pub async fn write_the_end(client: &Client, records: &Records) -> i64 {
    let mut last = 0;
    for namespace in NAMESPACES {
        for (name, tier) in LAST {
            let object = json!({
                "metadata": {"name": name, "labels": {"tier": tier}},
                "spec": {"image": "registry.example/demo:1"},
            });
            let began = records.now();
            let path = format!("{}/{name}", collection(namespace));
            let object = horchestra_testkit::eventually(DEADLINE, async || {
                let reply = client.post(&collection(namespace), &object).await;
                // 409: an attempt that was answered with "not now" was made after all.
                if reply.status == 409 {
                    patiently(client, &path).await.json_of(200)
                } else {
                    reply.json_of(201)
                }
            })
            .await;
            last = revision(&object);
            records.add(began, format!("create {name}"), Claim::Wrote { object, condition: Condition::None });
        }
    }
    last
}
