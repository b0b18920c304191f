//! The catalog of services as its clients see it.

mod clients;
mod python;
mod reading;
mod rights;
mod waiting;

use std::time::Duration;

use horchestra_testkit::eventually;
use serde_json::{Value, json};

use crate::client::{Client, DEADLINE, Protocol, Reply};
use crate::stack::{Setup, Stack, Who};

const CORE: &str = "/apis/horchestra.io/v1";
const PREFIX: &str = "/servicediscovery/v1";

/// A replica with an operator, who plays nodes as well.
struct Site {
    stack: Stack,
    operator: Client,
}

impl Site {
    async fn with(setup: Setup) -> Site {
        let stack = Stack::with(setup).await;
        let operator = stack.client(Who::Master, Protocol::Http2).keep().await;
        let site = Site { stack, operator };
        for name in ["default", "team-a"] {
            site.post("namespaces", json!({"metadata": {"name": name}})).await;
        }
        site
    }

    /// Two instances of the Service `cache` and a workload without Service, all on one node.
    async fn usual() -> Site {
        let site = Site::with(Setup::default()).await;
        site.node("node-1", "10.0.0.7").await;
        let cache = json!({
            "metadata": {"name": "cache", "annotations": {"team": "storage"}},
            "spec": {"clusterIP": "10.243.0.1", "ports": [{"port": 6379}]},
        });
        site.post("namespaces/default/services", cache).await;
        let member = json!({"serviceName": "cache", "ports": [{"name": "redis", "port": 6379}]});
        site.run("default", "cache-0", "node-1", member.clone()).await;
        site.run("default", "cache-1", "node-1", member).await;
        site.run("default", "node-exporter", "node-1", json!({"ports": [{"port": 9100}]})).await;
        site
    }

    async fn post(&self, path: &str, object: Value) -> Value {
        let reply = self.operator.post(&format!("{CORE}/{path}"), &object).await;
        assert_eq!(reply.status, 201, "{path} {object}: {reply:?}");
        reply.json()
    }

    async fn merge(&self, path: &str, change: Value) -> Value {
        let reply = self.operator.merge(&format!("{CORE}/{path}"), &change).await;
        assert_eq!(reply.status, 200, "{path} {change}: {reply:?}");
        reply.json()
    }

    /// A node that is judged ready.
    async fn node(&self, name: &str, address: &str) {
        self.post("nodes", json!({"metadata": {"name": name}, "spec": {}})).await;
        let status = json!({"ip": address, "capacity": {"cpu": "64", "memory": "256Gi"}, "ready": true});
        self.merge(&format!("nodes/{name}/status"), json!({"status": status})).await;
        self.judge(name, "True", "NodeReports").await;
    }

    async fn judge(&self, name: &str, ready: &str, reason: &str) {
        let now = "2026-01-01T00:00:00Z";
        let condition = json!({
            "type": "Ready", "status": ready, "reason": reason, "message": "", "lastTransitionTime": now,
        });
        self.merge(&format!("nodes/{name}/status"), json!({"status": {"conditions": [condition]}})).await;
    }

    /// An Application that runs.
    async fn run(&self, namespace: &str, name: &str, node: &str, mut spec: Value) {
        spec["image"] = json!("nginx:1");
        spec["placement"] = json!({"nodeName": node});
        let path = format!("namespaces/{namespace}/applications");
        self.post(&path, json!({"metadata": {"name": name}, "spec": spec})).await;
        self.report(namespace, name, "Running").await;
    }

    async fn report(&self, namespace: &str, name: &str, phase: &str) {
        let status = json!({"status": {"phase": phase, "observedGeneration": 1}});
        self.merge(&format!("namespaces/{namespace}/applications/{name}/status"), status).await;
    }

    /// The node has let go of it, and it is gone.
    async fn remove(&self, namespace: &str, name: &str) {
        let path = format!("{CORE}/namespaces/{namespace}/applications/{name}");
        let reply = self.operator.delete(&path).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let reply = self
            .operator
            .post(&format!("{path}/finalize"), &json!({"finalizers": ["horchestra.io/node-teardown"]}))
            .await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    async fn ask(&self, path: &str) -> Reply {
        ask(&self.operator, path).await
    }

    async fn answer(&self, path: &str) -> Value {
        let reply = self.ask(path).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// The value of a line of the metrics page; zero while it is not there.
    fn metric(&self, line: &str) -> u64 {
        let page = self.stack.page.encode().unwrap();
        let value = page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or(0)
    }

    fn woken(&self, why: &str) -> u64 {
        self.metric(&format!("horchestra_api_catalog_wakes_total{{why=\"{why}\"}}"))
    }

    /// Waits until so many queries wait.
    async fn parked(&self, count: u64) {
        eventually(DEADLINE, async || self.metric("horchestra_api_catalog_parked") == count).await;
    }
}

async fn ask(client: &Client, path: &str) -> Reply {
    client.get(&format!("{PREFIX}/{path}")).await
}

fn index(reply: &Reply) -> i64 {
    assert_eq!(reply.status, 200, "{reply:?}");
    let index = reply.header("x-consul-index").parse().unwrap();
    assert!(index >= 1, "{reply:?}");
    index
}

fn with(path: &str, parameters: &str) -> String {
    let sign = if path.contains('?') { '&' } else { '?' };
    format!("{path}{sign}{parameters}")
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(120);
