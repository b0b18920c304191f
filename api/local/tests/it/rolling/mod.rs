//! Every process is replaced, one after the other, under a load that never stops: nobody's request fails, nobody misses an
//! event, sees one twice or has to list anew, no loop and no node is left alone for longer than a term, no node is said to
//! be gone, and nothing is started anew on nodes.
//!
//! With `UPGRADE_FROM_BINARIES`, a folder with the programs of another version, the stack is begun with these and its
//! schema, is migrated under load, goes on under load, and is then replaced by the present programs (`make upgrade-test`).
//! `UPGRADE_WITHOUT_GATEWAYS=1` leaves gateways and nodes out, for versions whose gateways cannot be replaced like this.

mod handover;
mod load;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_testkit::{Cluster, ClusterOptions, eventually};
use hyper::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::task::JoinHandle;

use crate::client::{APPLICATIONS, Client, Seen};
use crate::guide::programs;
use crate::plane::{Agent, running};
use crate::replicas::{Part, Replicas};
use crate::stack::said;
use handover::Handover;
use load::{Followed, Informer, Judge};
use wire::{Protocol, Tally, Wire};

const SOON: Duration = Duration::from_secs(90);
/// Long enough for a few hundred requests.
const A_WHILE: Duration = Duration::from_secs(3);
const NODES: [&str; 2] = ["node-1", "node-2"];

/// For how long a loop may have no leader, and a node no gateway: the terms that they have.
const LEASE_TERM: Duration = Duration::from_secs(12);
const GATEWAY_TERM: Duration = Duration::from_secs(8);

/// Nothing is asked of Applications but that their events come.
fn anything(_: &Value) -> Option<String> {
    None
}

/// A node that is there is never said to be away, or held.
fn ready(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array()?;
    let away = |condition: &&Value| match condition["type"].as_str() {
        Some("Ready") => condition["status"] != "True",
        Some("Held") => condition["status"] == "True",
        _ => false,
    };
    conditions.iter().find(away).map(|condition| format!("{}: {condition}", node["metadata"]["name"]))
}

/// What follows what, how, and which kind that is.
const INFORMERS: [(Kind, Protocol, &str, Judge); 4] = [
    (Kind::Application, Protocol::One, "/apis/horchestra.io/v1/applications", anything),
    (Kind::Application, Protocol::Two, "/apis/horchestra.io/v1/applications", anything),
    (Kind::Application, Protocol::Two, APPLICATIONS, anything),
    (Kind::Node, Protocol::One, "/apis/horchestra.io/v1/nodes", ready),
];
const WRITERS: [Protocol; 4] = [Protocol::One, Protocol::One, Protocol::One, Protocol::Two];

/// The load, while it lasts.
struct Load {
    wire: Wire,
    writers: Vec<JoinHandle<usize>>,
    informers: Vec<(Kind, Informer)>,
    writing: Arc<AtomicBool>,
    following: Arc<AtomicBool>,
}

impl Load {
    async fn begin(replicas: &Replicas) -> Load {
        let wire = Wire::new(replicas.address(), &replicas.pki_folder());
        let (writing, following) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let informers: Vec<_> = INFORMERS
            .into_iter()
            .map(|(kind, protocol, path, judge)| {
                (kind, Informer::begin(&wire, protocol, path, judge, &following))
            })
            .collect();
        eventually(SOON, async || informers.iter().all(|(_, informer)| informer.position() > 0)).await;
        let writers = WRITERS
            .into_iter()
            .enumerate()
            .map(|(number, protocol)| {
                tokio::spawn(load::write(wire.clone(), protocol, number, Arc::clone(&writing)))
            })
            .collect();
        Load { wire, writers, informers, writing, following }
    }

    /// Stops writing, lets informers come to the end, and holds what they saw against the log.
    async fn end(self, database_url: &str) -> Outcome {
        self.writing.store(true, Ordering::Relaxed);
        let mut rounds = Vec::new();
        for writer in self.writers {
            rounds.push(writer.await.unwrap());
        }
        let mut connection = PgConnection::connect(database_url).await.unwrap();
        for (kind, informer) in &self.informers {
            let last = last_of(&mut connection, *kind).await;
            eventually(SOON, async || {
                let (at, failures) = (informer.position(), self.wire.tally.failures());
                if at >= last || !failures.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{kind}: {at} of {last}"))
                }
            })
            .await;
        }
        self.following.store(true, Ordering::Relaxed);
        let mut watches = Vec::new();
        for (kind, informer) in self.informers {
            let followed = informer.end().await;
            let logged = log_of(&mut connection, kind, &followed).await;
            if let Some(at) = difference(&followed.events, &logged) {
                self.wire.tally.fail(format!(
                    "an informer of {kind} saw {:?} where the log has {:?}",
                    followed.events.get(at),
                    logged.get(at)
                ));
            }
            watches.push((followed.watches, followed.events.len()));
        }
        connection.close().await.unwrap();
        Outcome { tally: self.wire.tally, rounds, watches }
    }
}

fn difference(seen: &[Seen], logged: &[Seen]) -> Option<usize> {
    let same = seen.iter().zip(logged).take_while(|(seen, logged)| seen == logged).count();
    (same < seen.len().max(logged.len())).then_some(same)
}

async fn last_of(connection: &mut PgConnection, kind: Kind) -> i64 {
    let query = sqlx::query_scalar("select coalesce(max(rv), 0) from horchestra.events where kind = $1");
    query.bind(kind.number()).fetch_one(connection).await.unwrap()
}

/// What an informer should have seen since its list, up to its last event.
async fn log_of(connection: &mut PgConnection, kind: Kind, followed: &Followed) -> Vec<Seen> {
    let last = followed.events.last().map_or(followed.listed_at, |event| event.revision);
    let query =
        "select rv, op, name from horchestra.events where kind = $1 and rv > $2 and rv <= $3 order by rv";
    let query = sqlx::query(query).bind(kind.number()).bind(followed.listed_at).bind(last);
    let rows = query.fetch_all(connection).await.unwrap();
    let kind = |op: i16| ["ADDED", "MODIFIED", "DELETED"][usize::try_from(op).unwrap() - 1].to_owned();
    rows.iter()
        .map(|row| Seen { kind: kind(row.get("op")), name: row.get("name"), revision: row.get("rv") })
        .collect()
}

struct Outcome {
    tally: Arc<Tally>,
    /// Of each writer.
    rounds: Vec<usize>,
    /// Of each informer: how many watches it had one after the other, and how many events it saw.
    watches: Vec<(usize, usize)>,
}

/// An Application on each node.
async fn run_apps(client: &Client) {
    for node in NODES {
        let app = json!({"metadata": {"name": format!("steady-{node}")}, "spec": {
            "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"],
            "placement": {"nodeName": node}}});
        let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
        assert_eq!(code, 201, "{made}");
        let path = format!("{APPLICATIONS}/steady-{node}");
        eventually(SOON, async || {
            let (_, found) = client.call_patiently(Method::GET, &path, None).await;
            if found["status"]["phase"] == "Running" { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
}

/// A request to a replica that is half there when that is told to end, and is finished a moment later.
async fn half_a_request(replicas: &Replicas, wire: &Wire, part: Part) -> JoinHandle<(u16, bool)> {
    let app = json!({"metadata": {"name": format!("half-{part}")},
        "spec": {"image": "x", "resources": {"requests": {"cpu": "4000"}}}});
    let half = wire.half(replicas.address_of(part), APPLICATIONS, &app).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        half.finish().await.expect("an answer")
    })
}

/// From these programs to those, under load.
#[allow(clippy::print_stderr)]
async fn roll(from: &Path, to: &Path, gateways: bool) {
    let server = Cluster::start(ClusterOptions::default()).unwrap();
    let url = server.url("postgres");
    let mut parts = vec![Part::Api(0), Part::Api(1), Part::Workers(0), Part::Workers(1)];
    if gateways {
        parts.extend([Part::Gateway(0), Part::Gateway(1)]);
    }
    let mut replicas = Replicas::lay_out(vec![("DATABASE_URL", url.clone())], &parts).await;
    replicas.prepare(from);
    replicas.start_all(from).await;
    let mut agents: Vec<Agent> = Vec::new();
    if gateways {
        for node in NODES {
            agents.push(replicas.node(node).await);
        }
        run_apps(&replicas.client()).await;
    }
    let units = running(&agents);
    assert!(units.values().all(|units| units.len() == 1), "{units:?}");

    let load = Load::begin(&replicas).await;
    tokio::time::sleep(A_WHILE).await;
    if from != to {
        // The new schema comes first, and what runs goes on with it.
        let mut migrate = replicas.command(to, "horchestra-api");
        let migrated = tokio::task::spawn_blocking(move || migrate.arg("migrate").output().unwrap());
        let migrated = migrated.await.unwrap();
        assert!(migrated.status.success(), "{}", said(&migrated));
        tokio::time::sleep(2 * A_WHILE).await;
    }
    let handover = Handover::watch(url.clone());
    for part in replicas.parts() {
        let half = match part {
            Part::Api(_) => Some(half_a_request(&replicas, &load.wire, part).await),
            _ => None,
        };
        replicas.replace(part, to).await;
        if let Some(half) = half {
            // What was begun is answered, and says that it is the last.
            assert_eq!(half.await.unwrap(), (201, true), "{part}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(A_WHILE).await;
    let Outcome { tally, rounds, watches } = Box::pin(load.end(&url)).await;
    let pauses = handover.end().await;

    let number = |of: &std::sync::atomic::AtomicUsize| of.load(Ordering::Relaxed);
    eprintln!(
        "{} requests in {rounds:?} rounds, {} of them sent again; {} connections were closed as announced, {} with a \
         goodbye; informers began and saw {watches:?}; pauses {pauses:?}",
        number(&tally.requests),
        number(&tally.repeated),
        number(&tally.announced),
        number(&tally.goodbyes)
    );
    let failures = tally.failures();
    assert!(failures.is_empty(), "{} failures: {:#?}", failures.len(), &failures[..failures.len().min(20)]);
    assert!(rounds.iter().all(|rounds| *rounds > 10), "there was no load to speak of: {rounds:?}");
    assert!(watches.iter().all(|(begun, _)| *begun > 1), "nobody had to go on anywhere: {watches:?}");
    // Each replica ends a watch once, and a gateway may have it passed on elsewhere.
    let most_watches = 1 + 2 * replicas.parts().len();
    assert!(watches.iter().all(|(begun, _)| *begun <= most_watches), "{watches:?} of {most_watches}");
    assert!(number(&tally.goodbyes) > 0, "nobody was told that replicas leave");
    // Every connection ended once or twice.
    let most = 4 * (WRITERS.len() + INFORMERS.len());
    assert!(number(&tally.repeated) <= most, "{} requests were sent again", number(&tally.repeated));
    for (what, longest) in &pauses {
        let term = if what.starts_with("lease ") { LEASE_TERM } else { GATEWAY_TERM };
        assert!(*longest <= term, "{what} was left alone for {longest:?}");
    }
    assert_eq!(running(&agents), units, "something was started anew on a node");
    if gateways {
        assert!(NODES.iter().all(|node| pauses.contains_key(&format!("node {node}"))), "{pauses:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_is_replaced_under_load() {
    Box::pin(roll(&programs(), &programs(), true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn an_upgrade_under_load_is_not_noticed() {
    let Some(from) = std::env::var_os("UPGRADE_FROM_BINARIES").filter(|folder| !folder.is_empty()) else {
        eprintln!("NOTE: no UPGRADE_FROM_BINARIES; this test is passed over (make upgrade-test FROM=…)");
        return;
    };
    let gateways = std::env::var_os("UPGRADE_WITHOUT_GATEWAYS").is_none_or(|said| said != "1");
    Box::pin(roll(&PathBuf::from(from), &programs(), gateways)).await;
}
