//! What every answer has to be, and what has to be true of everything that was accepted.

use std::time::Duration;

use bytes::Bytes;
use horchestra_core::registry::KindSpec;
use horchestra_core::yaml;
use http::Method;
use http_body_util::BodyExt;
use serde_json::Value;

use super::base;
use super::case::{self, Case, JSON, Place, Target, YAML, collection};
use crate::client::{Client, DEADLINE, Reply};
use crate::stack::Stack;

/// A broken promise. The first word says which, so that a smaller body can be held to the same.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: &'static str,
    pub told: String,
}

fn broken<T>(promise: &'static str, told: impl Into<String>) -> Result<T, Broken> {
    Err(Broken { promise, told: told.into() })
}

/// How a request ended that broke no promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Refused,
}

pub struct Judge<'a> {
    pub stack: &'a Stack,
    pub client: Client,
    /// Makes names; no two objects share one.
    made: u64,
}

impl<'a> Judge<'a> {
    pub async fn new(stack: &'a Stack) -> Judge<'a> {
        Judge { stack, client: stack.master().keep().await, made: 0 }
    }

    pub fn fresh(&mut self) -> Target {
        self.made += 1;
        Target { name: format!("t{}", self.made), object: Value::Null }
    }

    /// A new object of the kind.
    pub async fn target(&mut self, spec: &'static KindSpec) -> Target {
        let mut target = self.fresh();
        let case = case::new(spec, Method::POST, Place::Collection, JSON, base::document(spec));
        let reply = self.client.put_case(&case, &target).await.unwrap();
        assert_eq!(reply.status, 201, "{}: {reply:?}", case.shown(&target));
        target.object = reply.json();
        target
    }

    /// Deletes what is not needed any more; some objects stay, held.
    pub async fn done_with(&self, spec: &KindSpec, target: &Target) {
        let path = format!("{}/{}", collection(spec), target.name);
        self.client.exchange(Method::DELETE, &path, &[], Bytes::new()).await.unwrap();
    }

    /// Panics of the server in answering requests. A panic of this test is none of them.
    fn panics(&self) -> u64 {
        let page = self.stack.page.encode().unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("horchestra_api_panics_total "));
        line.expect("the counter").parse().unwrap()
    }

    /// Asks, and holds the answer to what is promised. The target is left as it is afterwards.
    pub async fn ask(&mut self, case: &Case, target: &mut Target) -> Result<Outcome, Broken> {
        let before = self.panics();
        let reply = match self.client.put_case(case, target).await {
            Ok(reply) => reply,
            Err(error) => {
                self.client = self.stack.master().keep().await;
                return broken("an answer comes", error);
            }
        };
        if self.panics() != before {
            return broken("nothing panics", format!("{reply:?}"));
        }
        match reply.status {
            500.. => broken("no 5xx", format!("{} {}", reply.status, reply.text())),
            400..=499 => {
                refusal(&reply)?;
                self.unchanged(case, target).await?;
                Ok(Outcome::Refused)
            }
            200 | 201 if case.is_dry() => {
                self.unchanged(case, target).await?;
                Ok(Outcome::Accepted)
            }
            200 | 201 => {
                self.accepted(case, &reply, target).await?;
                Ok(Outcome::Accepted)
            }
            other => broken("a code that clients know", format!("{other} {}", reply.text())),
        }
    }

    fn item(case: &Case, name: &str) -> String {
        format!("{}/{name}", collection(case.spec))
    }

    async fn get(&self, path: &str) -> Result<Reply, Broken> {
        let reply = self.client.exchange(Method::GET, path, &[], Bytes::new()).await;
        match reply {
            Ok(reply) if reply.status < 500 => Ok(reply),
            Ok(reply) => broken("what is stored can be read", format!("{path}: {}", reply.text())),
            Err(error) => broken("what is stored can be read", format!("{path}: {error}")),
        }
    }

    async fn unchanged(&self, case: &Case, target: &Target) -> Result<(), Broken> {
        let reply = self.get(&Self::item(case, &target.name)).await?;
        let now = if reply.status == 404 { Value::Null } else { reply.json() };
        if now == target.object {
            return Ok(());
        }
        broken("a refusal stores nothing", format!("it was {}\nand is {now}", target.object))
    }

    async fn accepted(&self, case: &Case, reply: &Reply, target: &mut Target) -> Result<(), Broken> {
        if case.method == Method::DELETE {
            if case.place == Place::Item {
                let left = self.get(&Self::item(case, &target.name)).await?;
                target.object = if left.status == 404 { Value::Null } else { left.json() };
                if left.status == 200 && target.object["metadata"]["deletionTimestamp"].is_null() {
                    return broken("what is deleted is gone or going", target.object.to_string());
                }
            }
            return Ok(());
        }
        let Some(name) = name_of(reply) else {
            return broken("the answer names its object", format!("{reply:?}"));
        };
        target.name = name;
        let item = Self::item(case, &target.name);
        let read = self.get(&item).await?;
        if read.status != 200 {
            return broken("what is stored can be read", format!("{item}: {}", read.text()));
        }
        target.object = read.json();
        if reply.header("content-type") == JSON
            && !case.headers.iter().any(|(name, media)| *name == "accept" && media.contains("as="))
            && reply.json() != target.object
        {
            let told = format!("answered {}\nread     {}", reply.text(), target.object);
            return broken("what is read is what was answered", told);
        }
        self.written_back(case, target).await?;
        self.other_forms(&item, target).await
    }

    /// Writing what was read changes nothing.
    async fn written_back(&self, case: &Case, target: &Target) -> Result<(), Broken> {
        let item = Self::item(case, &target.name);
        let body = Bytes::from(target.object.to_string());
        let headers = [("content-type", JSON)];
        let again = self.client.exchange(Method::PUT, &item, &headers, body).await;
        match again {
            Ok(again) if again.status == 200 && again.json() == target.object => Ok(()),
            Ok(again) => {
                let told = format!("{} {}\nfor {}", again.status, again.text(), target.object);
                broken("what was read can be written, and changes nothing", told)
            }
            Err(error) => broken("an answer comes", format!("{item}: {error}")),
        }
    }

    async fn other_forms(&self, item: &str, target: &Target) -> Result<(), Broken> {
        for accept in [YAML, "application/json;as=Table;v=v1;g=meta.k8s.io"] {
            let headers = [("accept", accept)];
            let reply = self.client.exchange(Method::GET, item, &headers, Bytes::new()).await;
            let reply = match reply {
                Ok(reply) if reply.status == 200 => reply,
                other => return broken("what is stored can be shown", format!("{accept}: {other:?}")),
            };
            if accept == YAML {
                let value = yaml::read(&reply.body).map(|document| document.object.into_value());
                if value.as_ref().ok() != Some(&target.object) {
                    return broken("YAML says what JSON says", format!("{value:?}\nfor {}", target.object));
                }
            } else if reply.json()["rows"][0]["object"]["metadata"]["name"] != target.name {
                return broken("what is stored can be shown", reply.text());
            }
        }
        Ok(())
    }

    /// Lists, tables and watches of a kind agree on what there is.
    pub async fn check_kind(&self, spec: &'static KindSpec) -> Result<(), Broken> {
        let path = collection(spec);
        let list = self.get(&path).await?.json();
        let items = list["items"].as_array().unwrap();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or("?").to_owned();
        let names: Vec<String> = items.iter().map(name).collect();

        let headers = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        let table = self.client.exchange(Method::GET, &path, &headers, Bytes::new()).await;
        let table = table.map_err(|told| Broken { promise: "tables work", told })?;
        let rows = if table.status == 200 { table.json()["rows"].clone() } else { Value::Null };
        let shown: Vec<String> =
            rows.as_array().into_iter().flatten().map(|row| name(&row["object"])).collect();
        if shown != names {
            return broken("tables work", format!("{}\nfor {names:?}", table.text()));
        }

        let query =
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut watch = self.client.lines(&format!("{path}?{query}"), &[]).await;
        let mut seen = Vec::new();
        loop {
            let frame = watch.frame().await;
            match frame["type"].as_str() {
                Some("ADDED") => seen.push(frame["object"].clone()),
                Some("BOOKMARK") => break,
                _ => return broken("watches work", frame.to_string()),
            }
        }
        seen.sort_by_key(name);
        let mut items = items.clone();
        items.sort_by_key(name);
        if seen != items {
            return broken("watches work", format!("{seen:?}\nfor {items:?}"));
        }
        Ok(())
    }
}

/// A refusal is a Status that says what is the matter.
fn refusal(reply: &Reply) -> Result<(), Broken> {
    let told = || format!("{} {:?} {}", reply.status, reply.headers, reply.text());
    let Ok(status) = serde_json::from_slice::<Value>(&reply.body) else {
        return broken("a refusal is a Status", told());
    };
    let said = |member: &str| status[member].as_str().is_some_and(|text| !text.is_empty());
    let causes = status["details"]["causes"].as_array();
    let well_formed = status["kind"] == "Status"
        && status["apiVersion"] == "v1"
        && status["status"] == "Failure"
        && status["code"] == reply.status
        && reply.header("content-type") == JSON
        && said("reason")
        && said("message")
        && causes.into_iter().flatten().all(|cause| cause["message"].is_string());
    // Half a megabyte of what was sent is no help.
    let bounded = reply.body.len() < 256 << 10;
    if well_formed && bounded { Ok(()) } else { broken("a refusal is a Status", told()) }
}

/// The name of the object in an answer of any form.
fn name_of(reply: &Reply) -> Option<String> {
    let value = if reply.header("content-type") == YAML {
        yaml::read(&reply.body).ok()?.object.into_value()
    } else {
        serde_json::from_slice(&reply.body).ok()?
    };
    let name = match value["kind"].as_str() {
        Some("Table") => &value["rows"][0]["object"]["metadata"]["name"],
        _ => &value["metadata"]["name"],
    };
    name.as_str().map(str::to_owned)
}

impl Client {
    /// A request and its whole answer, or what became of the connection.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, String> {
        let request = self.request(method, path, headers, body);
        let exchange = async {
            let (parts, body) = self.open(request).await?.into_parts();
            let body = body.collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
            Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("nothing for {:?}", Duration::from_secs(DEADLINE.as_secs()))))
    }

    async fn put_case(&self, case: &Case, target: &Target) -> Result<Reply, String> {
        let body = Bytes::from(case.bytes(target));
        self.exchange(case.method.clone(), &case.path(target), &case.headers, body).await
    }
}
