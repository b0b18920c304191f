//! The views for people on 50,000 Applications: every query of the cookbook, and every sort of condition, each beside
//! COPY of all bodies in the same run.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_runtime::Progress;
use horchestra_store::{Attribution, Columns, Draft, Edge, Heartbeat, Index, Item, Op, Relation, Store};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::BenchArgs;
use super::lists::copy;
use super::report::Section;
use super::server::{Server, store};
use super::watches::millis;
use crate::cookbook;

const APPLICATIONS: usize = 50_000;
const NODES: usize = 1_000;
const NAMESPACES: usize = 100;
/// Applications that one item makes.
const TOGETHER: usize = 50;
/// Items on their way at once.
const WRITERS: usize = 64;

/// Conditions of every sort, beside what the cookbook has.
const CONDITIONS: &[(&str, &str)] = &[
    (
        "all, columns of the table",
        "select namespace, name, phase, node, cpu, memory from inspect.applications",
    ),
    ("all, every column", "select * from inspect.applications"),
    ("count", "select count(*) from inspect.applications"),
    ("by namespace", "select * from inspect.applications where namespace = 'ns-7'"),
    ("by name", "select * from inspect.applications where namespace = 'ns-7' and name = 'app-00007'"),
    ("by part of a name", "select namespace, name from inspect.applications where name like 'app-0001%'"),
    ("by node", "select * from inspect.applications where node = 'node-7'"),
    ("by phase", "select namespace, name, message from inspect.applications where phase = 'Failed'"),
    ("by uid", "select * from inspect.applications where uid = '00000000-0000-0000-0000-000000000001'"),
    ("by label", "select namespace, name from inspect.applications where labels @> '{\"team\": \"team-3\"}'"),
    ("by image", "select namespace, name from inspect.applications where image like '%:1.3'"),
    ("by age", "select namespace, name from inspect.applications where created_at > now()"),
    ("by request", "select namespace, name from inspect.applications where cpu > 1"),
    ("the first page", "select * from inspect.applications order by namespace, name limit 100"),
    ("one node", "select * from inspect.nodes where name = 'node-7'"),
    ("all nodes", "select * from inspect.nodes"),
    (
        "past of one",
        "select * from inspect.applications_history where namespace = 'ns-7' and name = 'app-00007'",
    ),
    (
        "past of all",
        "select count(*) from inspect.applications_history where changed_at > now() - interval '1 hour'",
    ),
    ("last changes", "select * from inspect.changes order by revision desc limit 100"),
];

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Vec<Section>> {
    let url = server.database().await?;
    let store = store(&url, "bench").await?;
    load(&store).await?;
    store.shutdown().await;
    let mut reader = PgConnection::connect(&url).await?;
    sqlx::raw_sql("analyze; set session authorization horchestra_reader").execute(&mut reader).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&url).await?;
    let mut sections = Vec::new();
    let queries: Vec<_> = cookbook::queries().into_iter().chain(CONDITIONS.iter().copied()).collect();
    let progress = Progress::new("queries");
    for (at, (name, query)) in queries.iter().enumerate() {
        progress.at(at as u64, queries.len() as u64);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut found = 0;
        for round in 0..=args.pairs() {
            let began = Instant::now();
            let rows = sqlx::raw_sql(AssertSqlSafe(*query)).fetch_all(&mut reader).await;
            found = rows.with_context(|| format!("the query {name}"))?.len();
            let took = millis(began.elapsed());
            let (bytes, copied) = copy(&pool).await?;
            ensure!(bytes > APPLICATIONS * 1_000, "COPY gave {bytes} bytes");
            // The first round finds nothing in the caches.
            if round > 0 {
                ours.push(took);
                theirs.push(copied);
            }
        }
        sections.push(Section {
            name: format!("inspect, {APPLICATIONS} applications: {name}"),
            unit: "ms",
            comparison: "COPY of all bodies in order".into(),
            ours,
            theirs,
            aim: String::new(),
            notes: vec![format!("{found} rows")],
        });
    }
    drop(progress);
    pool.close().await;
    reader.close().await?;
    server.drop_database(&url).await?;
    Ok(sections)
}

/// Nodes, and Applications on them, with what a scheduler and nodes say of them.
async fn load(store: &Store) -> Result<()> {
    let mut drafts: Vec<Draft> = (0..NAMESPACES).map(|n| namespace(&format!("ns-{n}"))).collect();
    drafts.extend((0..NODES).map(|n| node(&format!("node-{n}"))));
    drafts.extend((0..APPLICATIONS).map(application));
    let total = drafts.len() as u64;
    let progress = Progress::new("loading");
    let (mut tasks, mut done) = (JoinSet::new(), 0_u64);
    let mut items = drafts.chunks(TOGETHER).map(|ops| Item {
        ops: ops.iter().cloned().map(Op::Create).collect(),
        guards: Vec::new(),
        who: Attribution {
            user: "bench".into(),
            verb: "create".into(),
            audit_id: Uuid::new_v4(),
            trace: None,
        },
    });
    loop {
        while tasks.len() < WRITERS
            && let Some(item) = items.next()
        {
            let store = store.clone();
            tasks.spawn(async move { store.commit(item).await });
        }
        let Some(committed) = tasks.join_next().await else { break };
        done += committed.context("loading ended badly")??.revisions.len() as u64;
        progress.at(done, total);
    }
    let beats: Vec<Heartbeat> = (0..NODES)
        .map(|n| Heartbeat { node: format!("node-{n}"), allocated_cpu: 0, allocated_memory: 0 })
        .collect();
    store.record_heartbeats(&beats).await?;
    Ok(())
}

fn draft(key: Key, tree: Value, columns: Columns, edges: Vec<Edge>) -> Draft {
    let uid = Uuid::new_v4();
    let mut tree = tree;
    tree["metadata"]["name"] = json!(key.name);
    tree["metadata"]["uid"] = json!(uid);
    tree["metadata"]["generation"] = json!(1);
    tree["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
    if key.kind.namespaced() {
        tree["metadata"]["namespace"] = json!(key.namespace);
    }
    let object = Object::from_value(tree).unwrap_or_default();
    let labels = object.labels().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let fields = columns.phase.iter().map(|phase| ("status.phase".to_owned(), phase.clone())).collect();
    Draft {
        body: object::encode(key.kind, &object),
        uid,
        generation: 1,
        deleting: false,
        managed: None,
        index: Index { labels, fields },
        columns,
        edges,
        key,
    }
}

fn namespace(name: &str) -> Draft {
    draft(Key::cluster(Kind::Namespace, name), json!({"metadata": {}}), Columns::default(), Vec::new())
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z"})
}

fn node(name: &str) -> Draft {
    let tree = json!({
        "metadata": {"labels": {"zone": "a"}},
        "spec": {},
        "status": {
            "capacity": {"cpu": "32", "memory": "64Gi"}, "allocated": {}, "ready": true, "ip": "192.0.2.7",
            "conditions": [condition("Ready", "True", "Heard"), condition("Admitted", "True", "Uncordoned")],
        },
    });
    let columns = Columns { node: None, phase: None, cpu: 32_000_000_000, memory: 64 << 30 };
    draft(Key::cluster(Kind::Node, name), tree, columns, Vec::new())
}

/// One in fifty waits for a place, one in a hundred has failed.
fn application(number: usize) -> Draft {
    let on = format!("node-{}", number % NODES);
    let (phase, placed) = match number % 100 {
        0 | 50 => ("Pending", false),
        1 => ("Failed", true),
        _ => ("Running", true),
    };
    let env: Vec<_> = (0..12)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": format!("value-of-setting-{n}")}))
        .collect();
    let mut tree = json!({
        "metadata": {"labels": {"app": "web", "tier": "front", "team": format!("team-{}", number % 20)}},
        "spec": {
            "image": format!("registry.example.com/shop/web:1.{}", number % 7), "env": env,
            "ports": [{"name": "http", "port": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        },
        "status": {"phase": phase, "observedGeneration": 1, "conditions": [
            condition("Scheduled", if placed { "True" } else { "False" }, if placed { "Bound" } else { "Unschedulable" }),
            condition("Ready", if phase == "Running" { "True" } else { "False" }, phase),
        ]},
    });
    let mut edges = Vec::new();
    if placed {
        tree["spec"]["placement"] = json!({"nodeName": on});
        edges.push(Edge { relation: Relation::Node, target: Key::cluster(Kind::Node, on.clone()) });
    }
    let key =
        Key::namespaced(Kind::Application, format!("ns-{}", number % NAMESPACES), format!("app-{number:05}"));
    let columns =
        Columns { node: placed.then_some(on), phase: Some(phase.into()), cpu: 100_000_000, memory: 64 << 20 };
    draft(key, tree, columns, edges)
}
