//! Questions that wait for a change.

use std::time::{Duration, Instant};

use futures::future::join_all;
use horchestra_store::{MemoryDatabase, Store, StoreOptions};
use horchestra_testkit::eventually;
use serde_json::json;
use tokio::task::JoinHandle;

use super::{LONG, PREFIX, Site, ask, index, with};
use crate::client::{BOTH, Client, DEADLINE, Protocol, Reply};
use crate::rbac::{Rules, rule};
use crate::stack::{Setup, Who};
use horchestra_api::http::limits::{Limit, Limits};

/// Asks in the background and waits for as long as it takes.
fn park(client: &Client, path: &str) -> JoinHandle<Reply> {
    let (client, path) = (client.clone(), format!("{PREFIX}/{path}"));
    tokio::spawn(async move {
        let request = client.request(http::Method::GET, &path, &[], bytes::Bytes::new());
        let answer = tokio::time::timeout(LONG, client.open(request)).await.expect("an answer").unwrap();
        let (parts, body) = answer.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    })
}

async fn answered(parked: JoinHandle<Reply>) -> Reply {
    tokio::time::timeout(DEADLINE, parked).await.expect("an answer in time").unwrap()
}

#[tokio::test]
async fn whoever_is_behind_is_answered_at_once_and_the_others_when_their_time_is_up() {
    let site = Site::usual().await;
    for protocol in BOTH {
        let client = site.stack.client(Who::Master, protocol);
        for path in [
            "catalog/services",
            "catalog/service/cache",
            "health/service/cache",
            "health/state/any",
            "catalog/nodes",
            "catalog/node/node-1",
            "health/service/ghost",
        ] {
            let now = ask(&client, path).await;
            assert!(index(&now) > 1, "{path}");
            let behind = ask(&client, &with(path, "index=1&wait=30s")).await;
            assert_eq!((index(&behind), behind.json()), (index(&now), now.json()), "{path}");
            let unchanged = ask(&client, &with(path, &format!("index={}&wait=50ms", index(&now)))).await;
            assert_eq!((index(&unchanged), unchanged.json()), (index(&now), now.json()), "{path}");
        }
        let now = site.ask("catalog/services").await;
        let began = Instant::now();
        let unchanged = ask(&client, &format!("catalog/services?index={}&wait=1s", index(&now))).await;
        assert!(began.elapsed() >= Duration::from_secs(1));
        assert_eq!((index(&unchanged), unchanged.json()), (index(&now), now.json()));
        let nobody_waits = ask(&client, "catalog/datacenters?index=999&wait=1m").await;
        assert_eq!(nobody_waits.status, 200);
    }
    // There is no such index, and most likely there never was.
    let now = site.ask("catalog/services").await;
    let nonsense = site.ask("catalog/services?index=999999999&wait=100s").await;
    assert_eq!((index(&nonsense), nonsense.json()), (index(&now), now.json()));
}

/// Which of the questions below a change concerns.
#[tokio::test]
async fn a_change_wakes_those_whose_answer_it_is() {
    let site = Site::usual().await;
    site.node("node-2", "10.0.0.8").await;
    site.post(
        "namespaces/default/services",
        json!({
            "metadata": {"name": "idle"}, "spec": {"ports": [{"port": 1}]},
        }),
    )
    .await;
    site.run("team-a", "other", "node-2", json!({"ports": [{"port": 80}]})).await;
    const ASKED: [&str; 8] = [
        "catalog/services",
        "catalog/service/cache",
        "health/service/cache",
        "health/service/node-1",
        "health/state/any",
        "catalog/node/node-1",
        "health/service/ghost",
        "health/service/node-2?ns=team-a",
    ];
    let cache = "namespaces/default/services/cache";
    let app = |name: &str| format!("namespaces/default/applications/{name}");
    let status = |name: &str| format!("{}/status", app(name));
    let joins = json!({"image": "nginx:1", "serviceName": "cache", "placement": {"nodeName": "node-1"}});
    let changes: Vec<(&str, Change, &[usize])> = vec![
        (
            "a message",
            Change::Merge(status("cache-0"), json!({"status": {"message": "m", "attempts": 3}})),
            &[],
        ),
        (
            "the same once more",
            Change::Merge(status("cache-0"), json!({"status": {"phase": "Running"}})),
            &[],
        ),
        ("a label", Change::Merge(app("cache-0"), json!({"metadata": {"labels": {"a": "b"}}})), &[]),
        (
            "resources",
            Change::Merge(app("cache-0"), json!({"spec": {"resources": {"requests": {"cpu": "10m"}}}})),
            &[],
        ),
        (
            "what a node has",
            Change::Merge("nodes/node-1/status".into(), json!({"status": {"capacity": {"cpu": "128"}}})),
            &[],
        ),
        (
            "a label of a node",
            Change::Merge("nodes/node-1".into(), json!({"metadata": {"labels": {"zone": "a"}}})),
            &[],
        ),
        (
            "a Service without instances",
            Change::Merge(
                "namespaces/default/services/idle".into(),
                json!({"spec": {"ports": [{"port": 2}]}}),
            ),
            &[],
        ),
        (
            "something unplaced",
            Change::Post(
                "namespaces/default/applications".into(),
                json!({"metadata": {"name": "later"}, "spec": {"image": "i", "serviceName": "cache"}}),
            ),
            &[],
        ),
        (
            "another namespace",
            Change::Merge(
                "namespaces/team-a/applications/other/status".into(),
                json!({"status": {"phase": "Failed"}}),
            ),
            &[7],
        ),
        (
            "another kind",
            Change::Post(
                "namespaces/default/persistentvolumes".into(),
                json!({"metadata": {"name": "v"}, "spec": {"size": "1Gi"}}),
            ),
            &[],
        ),
        ("health", Change::Merge(status("cache-0"), json!({"status": {"phase": "Failed"}})), &[2, 3, 4]),
        (
            "an annotation of the Service",
            Change::Merge(
                "namespaces/default/services/cache".into(),
                json!({"metadata": {"annotations": {"team": "x"}}}),
            ),
            &[1, 2, 4, 5],
        ),
        (
            "one more",
            Change::Post(
                "namespaces/default/applications".into(),
                json!({"metadata": {"name": "cache-9"}, "spec": joins}),
            ),
            &[1, 2, 4, 5],
        ),
        (
            "another protocol",
            Change::Merge(cache.into(), json!({"spec": {"ports": [{"port": 6379, "protocol": "UDP"}]}})),
            &[0, 1, 2, 4, 5],
        ),
        (
            "the address of a node",
            Change::Merge("nodes/node-2/status".into(), json!({"status": {"ip": "10.0.0.9"}})),
            &[7],
        ),
    ];
    let client = site.operator.clone();
    let mut expected_wakes = 0;
    for (what, change, woken) in changes {
        let mut parked = Vec::new();
        let mut known = Vec::new();
        for path in ASKED {
            let now = ask(&client, path).await;
            known.push(index(&now));
            parked.push(park(&client, &with(path, &format!("index={}&wait=100s", index(&now)))));
        }
        site.parked(ASKED.len() as u64).await;
        let revision = change.make(&site).await;
        expected_wakes += woken.len() as u64;
        let told = async || {
            let told: Vec<usize> = (0..ASKED.len()).filter(|at| parked[*at].is_finished()).collect();
            if told == woken { Ok(()) } else { Err(format!("{what} was told to {told:?}")) }
        };
        eventually(DEADLINE, told).await;
        site.parked((ASKED.len() - woken.len()) as u64).await;
        for (at, (path, parked)) in ASKED.iter().zip(parked).enumerate() {
            if woken.contains(&at) {
                let reply = answered(parked).await;
                assert_eq!(index(&reply), revision, "{what}: {path}");
            } else {
                assert!(!parked.is_finished(), "{what}: {path}");
                parked.abort();
                let now = ask(&client, path).await;
                assert_eq!(index(&now), known[at], "{what}: {path}");
            }
        }
        site.parked(0).await;
        assert_eq!(site.woken("changed"), expected_wakes, "{what}");
    }
    assert_eq!(site.woken("elapsed"), 0);
}

/// Something that is changed.
enum Change {
    Post(String, serde_json::Value),
    Merge(String, serde_json::Value),
}

impl Change {
    /// Makes it and answers its revision.
    async fn make(&self, site: &Site) -> i64 {
        let object = match self {
            Change::Post(path, object) => site.post(path, object.clone()).await,
            Change::Merge(path, change) => site.merge(path, change.clone()).await,
        };
        object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn rights_and_places_end_while_somebody_waits() {
    let parked = Limit { server: 3, caller: 2 };
    let limits = Limits { parked, reads: Limit { server: 2, caller: 2 }, ..Limits::default() };
    let mut site = Site::with(Setup { limits, ..Setup::default() }).await;
    let rules = Rules(site.operator.clone());
    rules
        .cluster_role("paths", json!([{"nonResourceURLs": ["/servicediscovery/*"], "verbs": ["get"]}]))
        .await;
    rules.role("team-a", "lister", json!([rule("horchestra.io", &["services"], &["list"])])).await;
    rules.bind("team-a", "alice", "Role", "lister").await;
    rules.bind_everywhere("alice", "paths").await;
    let alice = site.stack.client(Who::User("alice", "team"), Protocol::Http2).keep().await;
    let path = format!(
        "catalog/services?ns=team-a&index={}",
        index(&ask(&alice, "catalog/services?ns=team-a").await)
    );
    let first = park(&alice, &path);
    site.parked(1).await;
    let second = park(&alice, &path);
    site.parked(2).await;
    let third = ask(&alice, &path).await;
    assert_eq!((third.status, third.header("retry-after")), (429, "1"), "{third:?}");
    assert_eq!(ask(&alice, "catalog/services?ns=team-a").await.status, 200, "reads are counted apart");
    assert_eq!(site.ask("catalog/services?ns=team-a&index=1").await.status, 200, "and callers");
    first.abort();
    second.abort();
    site.parked(0).await;

    let waits = park(&alice, &path);
    site.parked(1).await;
    let roles = "/apis/rbac.horchestra.io/v1/namespaces/team-a/roles/lister";
    assert_eq!(site.operator.delete(roles).await.status, 200);
    site.node("node-1", "10.0.0.7").await;
    site.run("team-a", "web", "node-1", json!({"ports": [{"port": 80}]})).await;
    let reply = answered(waits).await;
    assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{reply:?}");

    // Whoever hangs up waits no more.
    let now = index(&site.ask("catalog/services").await);
    for protocol in BOTH {
        let client = site.stack.client(Who::Master, protocol);
        let waits = park(&client, &format!("catalog/services?index={now}"));
        site.parked(1).await;
        waits.abort();
        site.parked(0).await;
    }

    // A replica that ends lets nobody wait.
    let now = index(&site.ask("catalog/services").await);
    let waits = park(&site.operator, &format!("catalog/services?index={now}"));
    site.parked(1).await;
    site.stack.begin_stop();
    let reply = answered(waits).await;
    assert_eq!(index(&reply), now);
    assert_eq!(site.woken("ended"), 1);
    site.stack.stop().await;
}

/// What is asked of the database while so many unrelated changes are made.
async fn questions(site: &Site, from: usize) -> u64 {
    let before = site.stack.store.metrics().fresh_reads.get();
    for number in from..from + 50 {
        let change = json!({"status": {"capacity": {"cpu": (100 + number).to_string()}}});
        site.merge("nodes/node-9/status", change).await;
    }
    site.stack.store.metrics().fresh_reads.get() - before
}

/// Two thousand that wait cost nothing until something of theirs happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_wait_for_nothing() {
    const QUERIES: usize = 2_000;
    const CONNECTIONS: usize = 20;
    let site = Site::usual().await;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(site.stack.client(Who::Master, Protocol::Http2).keep().await);
    }
    site.node("node-9", "10.0.0.9").await;
    let alone = questions(&site, 0).await;
    let now = index(&site.ask("health/service/cache").await);
    let path = format!("health/service/cache?index={now}&wait=5m");
    let parked: Vec<_> = (0..QUERIES).map(|at| park(&clients[at % CONNECTIONS], &path)).collect();
    site.parked(QUERIES as u64).await;

    // Nothing of this is theirs, and they ask the database nothing.
    assert_eq!(questions(&site, 50).await, alone);
    assert_eq!(site.woken("changed"), 0);
    assert_eq!(site.metric("horchestra_api_catalog_parked"), QUERIES as u64);

    site.report("default", "cache-0", "Failed").await;
    let replies = join_all(parked).await;
    let first = replies[0].as_ref().unwrap().json();
    assert_eq!(first[0]["Checks"][0]["Status"], "critical");
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().json() == first));
    assert_eq!(site.woken("changed"), QUERIES as u64);
    site.parked(0).await;
}

#[tokio::test]
async fn an_index_means_the_same_to_every_replica_and_never_goes_back() {
    let database = MemoryDatabase::new();
    let open = || Store::open(database.connect(), StoreOptions::default());
    let old = Site::with(Setup { store: Some(open()), ..Setup::default() }).await;
    old.node("node-1", "10.0.0.7").await;
    let web = json!({"ports": [{"port": 80}]});
    old.run("default", "web", "node-1", web.clone()).await;
    let path = "health/service/node-1";
    let at_old = index(&old.ask(path).await);
    for number in 0..5 {
        old.merge(
            "nodes/node-1/status",
            json!({"status": {"capacity": {"cpu": (100 + number).to_string()}}}),
        )
        .await;
    }
    assert_eq!(index(&old.ask(path).await), at_old);

    // A replica that starts later does not know how long ago the last change was, and says so by a higher index.
    let young = crate::stack::Stack::with(Setup { store: Some(open()), ..Setup::default() }).await;
    let operator = young.master().keep().await;
    let at_young = index(&ask(&operator, path).await);
    assert!(at_young > at_old);
    let moved = ask(&operator, &with(path, &format!("index={at_old}&wait=100s"))).await;
    assert_eq!(index(&moved), at_young, "who comes from the other is told once");
    // On the way back nothing is lower, and a change is seen.
    let waits = park(&old.operator, &with(path, &format!("index={at_young}&wait=100s")));
    old.parked(1).await;
    let unchanged = old.ask(&with(path, &format!("index={at_young}&wait=100ms"))).await;
    assert_eq!(index(&unchanged), at_young);
    old.report("default", "web", "Failed").await;
    let there = answered(waits).await;
    assert!(index(&there) > at_young);
    let here = ask(&operator, &with(path, &format!("index={at_young}&wait=100s"))).await;
    assert_eq!((index(&here), here.json()), (index(&there), there.json()));

    // What is gone has an index that has not gone back either.
    old.remove("default", "web").await;
    let gone = ask(&operator, &with(path, &format!("index={}&wait=100s", index(&here)))).await;
    // First the deletion is asked for, and then it is done.
    let gone = if gone.json() == json!([]) {
        gone
    } else {
        ask(&operator, &with(path, &format!("index={}&wait=100s", index(&gone)))).await
    };
    assert_eq!(gone.json(), json!([]));
    assert!(index(&gone) > index(&here));
}

/// The database is another one, with more to it; or it has lost something.
#[tokio::test]
async fn an_index_does_not_go_back_with_the_database() {
    let database = MemoryDatabase::new();
    let store = Store::open(database.connect(), StoreOptions::default());
    let site = Site::with(Setup { store: Some(store), ..Setup::default() }).await;
    site.node("node-1", "10.0.0.7").await;
    let backup = database.backup();
    site.run("default", "web", "node-1", json!({"ports": [{"port": 80}]})).await;
    let path = "catalog/service/node-1";
    let before = site.ask(path).await;
    assert_eq!(before.json().as_array().unwrap().len(), 1);
    let waits = park(&site.operator, &with(path, &format!("index={}&wait=100s", index(&before))));
    site.parked(1).await;
    database.restore(&backup);
    let after = answered(waits).await;
    assert_eq!(after.json(), json!([]));
    assert!(index(&after) > index(&before), "{} {}", index(&after), index(&before));
}
