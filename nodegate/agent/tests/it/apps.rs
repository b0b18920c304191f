use std::path::Path;
use std::time::Duration;

use horchestra_agent::node::{Node, NodeOptions};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::gateway::FakeGateway;
use crate::pki::Pki;

/// An application as a gateway pushes it, to be changed as a test needs it.
#[derive(Clone)]
pub struct TestApp(pub Value);

impl TestApp {
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "horchestra.io/v1",
            "kind": "Application",
            "metadata": {"name": name, "namespace": "shop", "uid": Uuid::new_v4(), "generation": 1},
            "spec": {"image": "example/web:1", "placement": {"nodeName": "n1"}},
        }))
    }

    pub fn uid(&self) -> Uuid {
        serde_json::from_value(self.0["metadata"]["uid"].clone()).expect("a uid")
    }

    pub fn shell(mut self, script: &str) -> Self {
        self.0["spec"]["command"] = json!(["/bin/sh", "-c", script]);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        let spec = &mut self.0["spec"];
        if spec["env"].is_null() {
            spec["env"] = json!([]);
        }
        spec["env"].as_array_mut().expect("a list").push(json!({"name": name, "value": value}));
        self
    }

    pub fn lifecycle(mut self, lifecycle: Value) -> Self {
        self.0["spec"]["lifecycle"] = lifecycle;
        self
    }

    pub fn generation(mut self, generation: i64) -> Self {
        self.0["metadata"]["generation"] = json!(generation);
        self
    }

    pub fn deleting(mut self) -> Self {
        self.0["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self
    }

    pub fn spec(mut self, member: &str, value: Value) -> Self {
        self.0["spec"][member] = value;
        self
    }
}

/// Options that make tests quick without changing what happens.
pub fn quick() -> NodeOptions {
    NodeOptions {
        heartbeat: Duration::from_millis(100),
        reconnect: Duration::from_millis(100),
        ..NodeOptions::default()
    }
}

/// Options of a node that runs commands and keeps its state here.
pub fn running(state: &Path) -> NodeOptions {
    NodeOptions {
        state: Some(state.to_owned()),
        supervisor: Some(env!("CARGO_BIN_EXE_horchestra-agent").into()),
        ..quick()
    }
}

/// A node that runs in the test's process.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(gateway: &FakeGateway, pki: &Pki, options: NodeOptions) -> Self {
        let identity = pki.nodes().node("n1").expect("an identity");
        let node = Node::new(gateway.controller.clone(), identity, options).expect("a node");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { node.run(stopped).await });
        Self { stop, task }
    }

    /// Ends the agent as TERM does.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("a clean end");
    }

    /// Ends it as KILL does.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
