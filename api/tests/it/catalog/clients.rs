//! What clients do, request by request, with the parameters that they send.

use std::collections::BTreeMap;
use std::time::Duration;

use horchestra_testkit::eventually;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Site, index};
use crate::client::{Client, DEADLINE, Protocol};
use crate::stack::{Setup, Who};

/// The client of Traefik's provider for Consul's catalog.
struct Traefik {
    client: Client,
    /// What it sends with every request.
    always: &'static str,
    strict: &'static [&'static str],
}

impl Traefik {
    async fn get(&self, path: &str) -> (i64, Value) {
        let sign = if path.contains('?') { "&" } else { "?" };
        let reply = self.client.get(&format!("/v1/{path}{sign}{}", self.always)).await;
        (index(&reply), reply.json())
    }

    /// A pass: the addresses behind each service, as far as their health will do.
    async fn load(&self) -> BTreeMap<String, Vec<String>> {
        let mut found = BTreeMap::new();
        let (_, services) = self.get("catalog/services").await;
        for (name, tags) in services.as_object().unwrap() {
            assert!(tags.is_array(), "{name}");
            let (_, entries) = self.get(&format!("catalog/service/{name}")).await;
            let (_, health) = self.get(&format!("health/service/{name}")).await;
            // Older ones take the health of each entry from the same place in the other answer, newer ones go by ids.
            let mut statuses = BTreeMap::new();
            for (entry, item) in entries.as_array().unwrap().iter().zip(health.as_array().unwrap()) {
                assert_eq!(entry["ServiceID"], item["Service"]["ID"]);
                let id = |node: &Value, service: &Value| {
                    format!("{}{}", node.as_str().unwrap(), service.as_str().unwrap())
                };
                let status = item["Checks"][0]["Status"].as_str().unwrap().to_owned();
                let clash = statuses.insert(id(&item["Node"]["ID"], &item["Service"]["ID"]), status);
                assert_eq!(clash, None, "{item}");
                assert!(statuses.contains_key(&id(&entry["ID"], &entry["ServiceID"])));
            }
            assert_eq!(entries.as_array().unwrap().len(), health.as_array().unwrap().len());
            let mut addresses = Vec::new();
            for item in health.as_array().unwrap() {
                let (node, service) = (&item["Node"], &item["Service"]);
                let id = format!("{}{}", node["ID"].as_str().unwrap(), service["ID"].as_str().unwrap());
                if self.strict.contains(&statuses[&id].as_str()) {
                    addresses.push(format!("{}:{}", service["Address"].as_str().unwrap(), service["Port"]));
                }
            }
            found.insert(name.clone(), addresses);
        }
        found
    }
}

const DEFAULTS: &[&str] = &["passing", "warning"];

async fn web(site: &Site) {
    site.node("node-1", "10.0.0.7").await;
    site.node("node-2", "10.0.0.8").await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    site.post("namespaces/default/services", service).await;
    site.run("default", "web-0", "node-1", json!({"serviceName": "web"})).await;
    site.run("default", "web-1", "node-2", json!({"serviceName": "web"})).await;
}

#[tokio::test]
async fn traefik_that_polls() {
    let site = Site::with(Setup::default()).await;
    web(&site).await;
    let both = vec!["10.0.0.7:8080".to_owned(), "10.0.0.8:8080".to_owned()];
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = site.stack.client(Who::Master, protocol);
        for always in ["dc=horchestra", "dc=&stale=", "cached=", "consistent=", "ns=default&stale="] {
            let traefik = Traefik { client: client.clone(), always, strict: DEFAULTS };
            let load = async || traefik.load().await.remove("web") == Some(both.clone());
            // What is cached or stale may be a moment old.
            eventually(DEADLINE, load).await;
        }
    }
    let client = site.stack.client(Who::Master, Protocol::Http2).keep().await;
    let traefik = Traefik { client: client.clone(), always: "", strict: DEFAULTS };
    let strict = Traefik { client, always: "", strict: &["passing"] };
    let at = |found: BTreeMap<String, Vec<String>>| found["web"].clone();
    // A node falls silent, and traffic goes on; it stays so, and traffic ends.
    site.judge("node-2", "Unknown", "NodeSilent").await;
    assert_eq!((at(traefik.load().await), at(strict.load().await)), (both.clone(), both[..1].to_vec()));
    site.judge("node-2", "Unknown", "NodeLost").await;
    assert_eq!(at(traefik.load().await), both[..1]);
    site.judge("node-2", "True", "NodeReports").await;
    site.report("default", "web-0", "Failed").await;
    assert_eq!(at(traefik.load().await), both[1..]);
    site.run("default", "web-2", "node-2", json!({"serviceName": "web"})).await;
    assert_eq!(at(traefik.load().await).len(), 2, "seen by the next pass after its commit");
    site.remove("default", "web-2").await;
    assert_eq!(at(traefik.load().await), both[1..]);
}

/// It waits for a change of the list of services and for one of any health, and then asks for everything.
#[tokio::test]
async fn traefik_that_watches() {
    let site = Site::with(Setup::default()).await;
    web(&site).await;
    let client = site.stack.client(Who::Master, Protocol::Http2).keep().await;
    let traefik = Traefik { client: client.clone(), always: "", strict: DEFAULTS };
    let mut indexes = BTreeMap::new();
    for path in ["catalog/services", "health/state/any"] {
        indexes.insert(path, traefik.get(path).await.0);
    }
    let changes: [(&str, &str); 5] = [
        ("a new instance", "health/state/any"),
        ("one that fails", "health/state/any"),
        ("a node that is lost", "health/state/any"),
        ("one that goes", "health/state/any"),
        ("a new service", "catalog/services"),
    ];
    for (what, told_by) in changes {
        let mut watches = JoinSet::new();
        for (path, index) in indexes.clone() {
            let client = client.clone();
            watches.spawn(async move {
                let reply = client.get(&format!("/v1/{path}?index={index}&wait=10s")).await;
                (path, self::index(&reply))
            });
        }
        site.parked(2).await;
        match what {
            "a new instance" => site.run("default", "web-2", "node-1", json!({"serviceName": "web"})).await,
            "one that fails" => site.report("default", "web-2", "Failed").await,
            "a node that is lost" => site.judge("node-2", "Unknown", "NodeLost").await,
            "one that goes" => site.remove("default", "web-2").await,
            _ => {
                let service = json!({"metadata": {"name": "api"}, "spec": {"ports": [{"port": 81}]}});
                site.post("namespaces/default/services", service).await;
                site.run("default", "api-0", "node-1", json!({"serviceName": "api"})).await;
            }
        }
        // The first to be told says that something is new; the other may be told as well.
        let mut told = Vec::new();
        while !told.contains(&told_by) {
            let (path, index) = watches.join_next().await.expect(what).unwrap();
            assert!(index >= indexes[path], "{what}: {path}");
            if index > indexes[path] {
                told.push(path);
            }
            indexes.insert(path, index);
        }
        watches.abort_all();
        while watches.join_next().await.is_some() {}
        for (path, known) in &mut indexes {
            *known = traefik.get(path).await.0;
        }
        let found = traefik.load().await;
        let expected = match what {
            "a new instance" => 3,
            "one that fails" => 2,
            _ => 1,
        };
        assert_eq!(found["web"].len(), expected, "{what}: {found:?}");
        assert_eq!(found.contains_key("api"), what == "a new service");
        site.parked(0).await;
    }
}

/// What Prometheus has found.
type Targets = BTreeMap<String, Vec<String>>;

fn targets(health: &Value) -> Vec<String> {
    let targets = health.as_array().unwrap().iter().map(|item| {
        let address = match item["Service"]["Address"].as_str().unwrap() {
            "" => item["Node"]["Address"].as_str().unwrap(),
            address => address,
        };
        let status = item["Checks"][0]["Status"].as_str().unwrap();
        format!("{address}:{} {status}", item["Service"]["Port"])
    });
    targets.collect()
}

/// A service discovery of Prometheus: one query that waits for the list of services, one for each service.
struct Prometheus {
    /// As Go does, it opens another connection when one is full.
    clients: Vec<Client>,
    sent: usize,
    prefix: &'static str,
    targets: Targets,
    indexes: BTreeMap<String, i64>,
    waiting: JoinSet<(String, i64, Value)>,
}

/// The query for the list.
const LIST: &str = "catalog/services";

impl Prometheus {
    async fn start(clients: Vec<Client>, prefix: &'static str) -> Prometheus {
        let shown = clients[0].get(&format!("{prefix}/agent/self")).await.json();
        assert_eq!(shown["Config"]["Datacenter"], "horchestra");
        let mut prometheus = Prometheus {
            clients,
            sent: 0,
            prefix,
            targets: Targets::new(),
            indexes: BTreeMap::new(),
            waiting: JoinSet::new(),
        };
        prometheus.ask(LIST.to_owned());
        prometheus
    }

    fn ask(&mut self, path: String) {
        let (client, prefix) = (self.clients[self.sent % self.clients.len()].clone(), self.prefix);
        self.sent += 1;
        let index = self.indexes.get(&path).map(|index| format!("index={index}&")).unwrap_or_default();
        self.waiting.spawn(async move {
            let query = format!("{prefix}/{path}?dc=horchestra&{index}stale=&wait=120000ms");
            let request = client.request(http::Method::GET, &query, &[], bytes::Bytes::new());
            let answer = client.open(request).await.unwrap();
            let (parts, body) = answer.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let reply = crate::client::Reply { status: parts.status.as_u16(), headers: parts.headers, body };
            (path, self::index(&reply), reply.json())
        });
    }

    /// Takes the next answer, and asks again.
    async fn turn(&mut self) {
        let (path, index, answer) = tokio::time::timeout(DEADLINE, self.waiting.join_next())
            .await
            .expect("an answer")
            .unwrap()
            .unwrap();
        let before = self.indexes.insert(path.clone(), index);
        if before != Some(index) {
            match path.strip_prefix("health/service/") {
                Some(name) => drop(self.targets.insert(name.to_owned(), targets(&answer))),
                None => self.take_list(&answer),
            }
        }
        // Those that are not listed any more are not watched.
        if path == LIST || self.targets.contains_key(path.trim_start_matches("health/service/")) {
            self.ask(path);
        }
    }

    /// Goes on until as many queries wait as have been sent.
    async fn rest(&mut self, site: &Site) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while site.metric("horchestra_api_catalog_parked") != self.waiting.len() as u64 {
            assert!(tokio::time::Instant::now() < deadline, "{} have been sent", self.waiting.len());
            let _ = tokio::time::timeout(Duration::from_millis(50), self.turn()).await;
        }
    }

    fn take_list(&mut self, services: &Value) {
        let services = services.as_object().unwrap();
        self.targets.retain(|name, _| services.contains_key(name));
        for name in services.keys() {
            if !self.targets.contains_key(name) {
                self.targets.insert(name.clone(), Vec::new());
                self.indexes.remove(&format!("health/service/{name}"));
                self.ask(format!("health/service/{name}"));
            }
        }
    }

    async fn until(&mut self, what: &str, found: impl Fn(&Targets) -> bool) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !found(&self.targets) {
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:?}", self.targets);
            self.turn().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_with_three_hundred_services() {
    const SERVICES: usize = 300;
    let site = Site::with(Setup::default()).await;
    site.node("node-1", "10.0.0.7").await;
    let name = |number: usize| format!("s{number:03}");
    for number in 0..SERVICES {
        let service = json!({"metadata": {"name": name(number)}, "spec": {"ports": [{"port": 9100}]}});
        site.post("namespaces/default/services", service).await;
        site.run("default", &name(number), "node-1", json!({"serviceName": name(number)})).await;
    }
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(site.stack.client(Who::Master, Protocol::Http2).keep().await);
    }
    let mut prometheus = Prometheus::start(clients, "/servicediscovery/v1").await;
    let alive = |address: &str| format!("{address}:9100 passing");
    prometheus
        .until("all", |found| found.len() == SERVICES && found.values().all(|it| *it == [alive("10.0.0.7")]))
        .await;
    prometheus.rest(&site).await;
    assert_eq!(prometheus.waiting.len(), SERVICES + 1);
    let wakes = site.woken("changed");

    site.run("default", "second", "node-1", json!({"serviceName": name(7)})).await;
    prometheus
        .until("a new instance", |found| {
            found[&name(7)].iter().all(|it| *it == alive("10.0.0.7")) && found[&name(7)].len() == 2
        })
        .await;
    site.report("default", "second", "Failed").await;
    prometheus
        .until("a dead one", |found| found[&name(7)].contains(&"10.0.0.7:9100 critical".to_owned()))
        .await;
    site.remove("default", "second").await;
    prometheus.until("is gone", |found| found[&name(7)].len() == 1).await;
    // It came, started, failed, was to be deleted and was gone: of each of these one query was told, and none of the
    // other three hundred.
    prometheus.rest(&site).await;
    let told = site.woken("changed") - wakes;
    assert!((3..=5).contains(&told), "{told}");

    site.remove("default", &name(8)).await;
    prometheus.until("a service that is gone", |found| !found.contains_key(&name(8))).await;
    let service = json!({"metadata": {"name": "new"}, "spec": {"ports": [{"port": 9100}]}});
    site.post("namespaces/default/services", service).await;
    site.run("default", "new", "node-1", json!({"serviceName": "new"})).await;
    prometheus
        .until("a new service", |found| found.get("new").is_some_and(|it| *it == [alive("10.0.0.7")]))
        .await;
    assert_eq!(prometheus.targets.len(), SERVICES);
    assert_eq!(site.woken("elapsed"), 0);
}
