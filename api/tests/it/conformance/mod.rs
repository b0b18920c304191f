//! What careful clients of a Kubernetes API rely on, line by line, against a real server.
//!
//! One file per part of the API, one row per promise. A row has the promise in words, so a failure reads as
//! "this is no longer true"; all rows of a test are judged before it fails. Other tests of this package go
//! deeper into single matters; here stands the breadth, so that no promise is kept by nobody.

mod deletion;
mod discovery;
mod dry_run;
mod fields;
mod lists;
mod namespaces;
mod objects;
mod openapi;
mod patches;
mod requests;
mod status;
mod tables;
mod versions;
mod watches;

use std::fmt::Debug;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Reply};
use crate::stack::Stack;

pub const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
pub const TEAM_APPS: &str = "/apis/horchestra.io/v1/namespaces/team-a/applications";
pub const ALL_APPS: &str = "/apis/horchestra.io/v1/applications";
pub const NODES: &str = "/apis/horchestra.io/v1/nodes";
pub const NAMESPACES: &str = "/apis/horchestra.io/v1/namespaces";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Judges rows, and fails with all that do not hold.
#[derive(Default)]
pub struct Rows {
    judged: usize,
    broken: Vec<String>,
}

impl Rows {
    /// A row that holds or does not; `shown` is what there is to see if not.
    pub fn holds(&mut self, row: &str, holds: bool, shown: impl Debug) {
        self.judged += 1;
        if !holds {
            let shown: String = format!("{shown:?}").chars().take(1000).collect();
            self.broken.push(format!("{row}: {shown}"));
        }
    }

    /// A row about two values that are the same.
    pub fn same<T: PartialEq + Debug>(&mut self, row: &str, found: T, wanted: T) {
        let holds = found == wanted;
        self.holds(row, holds, (found, "instead of", wanted));
    }

    /// A row about the code of an answer; a failure must be a whole Status with this reason.
    pub fn code(&mut self, row: &str, reply: &Reply, code: u16, reason: &str) {
        self.holds(row, reply.status == code && (code < 400 || reply.reason() == reason), reply);
    }

    /// Fails if a row is broken. A test that judged nothing is broken as well.
    pub fn close(self) {
        assert!(self.judged > 0, "no row was judged");
        assert!(self.broken.is_empty(), "{} of {} rows: {:#?}", self.broken.len(), self.judged, self.broken);
    }
}

/// An Application.
pub fn app(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"image": "nginx:1"}})
}

/// An Application with labels.
pub fn labelled(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"image": "nginx:1"}})
}

/// `metadata.resourceVersion`, as clients compare it.
pub fn revision(object: &Value) -> i64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or("");
    text.parse().unwrap_or_else(|_| panic!("no resourceVersion: {object}"))
}

/// Names of the items of a list.
pub fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap_or_else(|| panic!("no list: {list}"));
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect()
}

/// A value as it stands in a query.
pub fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A stack with the Namespaces `default` and `team-a`, and its operator.
pub async fn stack() -> (Stack, Client) {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    (stack, client)
}

/// A request without headers of its own.
pub async fn send(client: &Client, method: Method, path: &str, body: impl Into<Bytes>) -> Reply {
    client.send(method, path, &[], body).await
}
