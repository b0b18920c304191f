//! Two nodes under a control plane of their own, which is stopped and started as the guide says.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use horchestra_auth::pki::{HostName, Kubeconfig, Lifetime, LocalPki, write_file};
use horchestra_testkit::{Cluster, ClusterOptions, TempDir, eventually};
use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{A_WHILE, RECOVERY, SOON, run_app};
use crate::client::{APPLICATIONS, Client};
use crate::guide::Reader;
use crate::plane::{Agent, Plane, Ports, held, make_node};

pub const NODES: [&str; 2] = ["node-1", "node-2"];

/// A server that keeps what it has acknowledged.
pub fn server() -> Cluster {
    Cluster::start(ClusterOptions { fsync: true, ..ClusterOptions::default() }).unwrap()
}

/// Runs statements that answer nothing.
pub async fn sql(url: &str, statements: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The first column of what a query answers.
pub async fn texts(url: &str, query: &str) -> Vec<String> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    rows
}

pub struct Fleet {
    pub plane: Option<Plane>,
    pub agents: Vec<Agent>,
    pub client: Client,
    ports: Ports,
    pub folder: TempDir,
}

impl Fleet {
    /// A fleet with nothing on it, on an empty database.
    pub async fn start(database_url: &str) -> Fleet {
        let folder = TempDir::new().unwrap();
        let ports = Ports::free();
        let pki =
            LocalPki::ensure(&folder.path().join("pki"), &[HostName::parse("127.0.0.1").unwrap()]).unwrap();
        for name in ["ca.crt", "server.crt", "server.key"] {
            fs::copy(folder.path().join("pki").join(name), folder.path().join(name)).unwrap();
        }
        let server = format!("https://127.0.0.1:{}", ports.address);
        let admin = pki.kubeconfig(&server, "admin", &pki.admin()).unwrap();
        write_file(&folder.path().join("admin.conf"), admin.as_bytes(), 0o600).unwrap();
        let client = ports.client(&folder.path().join("pki"));
        let mut fleet = Fleet { plane: None, agents: Vec::new(), client, ports, folder };
        let reader = fleet.reader(database_url);
        reader.line(
            "umask 077; mkdir token-keys; horchestra-api secret-keys new secret-keys; horchestra-api migrate",
        );
        fleet.start_plane(database_url).await;
        for node in NODES {
            make_node(&fleet.client, node).await;
            let authority = &pki.signer().pem().certificate;
            let client = &pki.signer().node(node, Lifetime::CLIENT).unwrap();
            let conf =
                Kubeconfig { server: &server, cluster: Kubeconfig::CLUSTER, authority, user: node, client };
            let file = fleet.folder.path().join(format!("{node}.conf"));
            write_file(&file, conf.yaml().as_bytes(), 0o600).unwrap();
            let agent = Agent::start(&fleet.folder.path().join("agents"), node, &file);
            fleet.agents.push(agent);
        }
        fleet
    }

    pub async fn start_plane(&mut self, database_url: &str) {
        self.plane = Some(Plane::start(self.folder.path(), self.ports, database_url, "").await);
    }

    pub fn stop_plane(&mut self) {
        self.plane.take().expect("it runs").stop();
    }

    /// Somebody who follows the guide in the folder of this fleet.
    pub fn reader(&self, database_url: &str) -> Reader {
        Reader::new(self.folder.path())
            .with("DATABASE_URL", database_url)
            .with("KUBECONFIG", self.folder.path().join("admin.conf").display().to_string())
    }

    /// An Application on each node, by this name; their uids.
    pub async fn run(&self, name: &str) -> Vec<String> {
        let mut uids = Vec::new();
        for node in NODES {
            uids.push(run_app(&self.client, &format!("{name}-{node}"), node).await);
        }
        uids
    }

    /// Deletes what [`Fleet::run`] made, until nothing of it is left.
    pub async fn delete(&self, name: &str) {
        for node in NODES {
            let path = format!("{APPLICATIONS}/{name}-{node}");
            self.client.call_patiently(Method::DELETE, &path, None).await;
            eventually(SOON, async || self.client.call_patiently(Method::GET, &path, None).await.0 == 404)
                .await;
        }
    }

    /// Every node holds its own of these.
    pub fn assert_runs(&self, uids: &[String], when: &str) {
        for (agent, uid) in self.agents.iter().zip(uids) {
            assert!(agent.holds(uid), "{when}: {} has stopped {uid}", agent.node);
        }
    }

    /// All nodes are held, for this reason.
    pub async fn wait_until_held(&self, reason: &str) {
        for node in NODES {
            eventually(RECOVERY, async || {
                let found = held(&self.client, node).await;
                if found.as_deref() == Some(reason) { Ok(()) } else { Err(found) }
            })
            .await;
        }
    }

    /// `kept` runs on and `lost` is unknown to the database: node-1 is admitted and loses its own of `lost`, then all
    /// are. The processes of `kept` stay the same.
    pub async fn converge(&self, reader: &Reader, kept: &[String], lost: &[String]) {
        let of = |agent: &Agent, uid: &str| agent.units().remove(uid).expect("it is held");
        let before: Vec<Value> = self.agents.iter().zip(kept).map(|(agent, uid)| of(agent, uid)).collect();
        tokio::time::sleep(A_WHILE).await;
        self.assert_runs(kept, "while held");
        self.assert_runs(lost, "while held");
        reader.run("compare");
        reader.run("admit");
        eventually(SOON, async || !self.agents[0].holds(&lost[0])).await;
        assert!(self.agents[1].holds(&lost[1]), "node-2 was not admitted");
        assert_eq!(reader.run("release"), "no node is held\n");
        eventually(SOON, async || !self.agents[1].holds(&lost[1])).await;
        self.wait_until_held("").await;
        run_app(&self.client, "later", "node-2").await;
        let after: Vec<Value> = self.agents.iter().zip(kept).map(|(agent, uid)| of(agent, uid)).collect();
        assert_eq!(after, before, "what was to go on was started anew");
    }

    /// The newest revision, as a list has it.
    pub async fn revision(&self) -> i64 {
        let (code, list) = self.client.call_patiently(Method::GET, APPLICATIONS, None).await;
        assert_eq!(code, 200, "{list}");
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    /// A watch from a revision on.
    pub async fn watch(&self, revision: i64) -> Watch {
        let path = format!("{APPLICATIONS}?watch=1&resourceVersion={revision}");
        let response = self.client.send(Method::GET, &path, None).await.unwrap();
        assert_eq!(response.status(), 200);
        Watch { body: response.into_body(), seen: Vec::new() }
    }

    /// `kubectl get app -w`, which has shown what there is and goes on.
    pub fn kubectl_watch(&self, reader: &Reader) -> (Child, BufReader<ChildStdout>) {
        let mut command = reader.shell("exec kubectl get app -w -o name");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut shown = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        shown.read_line(&mut line).unwrap();
        assert!(line.contains("application"), "{line}");
        (child, shown)
    }

    /// One Application more, for which there is room nowhere: every watch tells of it.
    pub async fn touch(&self, name: &str) {
        let requests = json!({"requests": {"cpu": "4000"}});
        let app = json!({"metadata": {"name": name}, "spec": {"image": "x", "resources": requests}});
        let (code, made) = self.client.call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
        assert_eq!(code, 201, "{made}");
    }
}

/// A stream of changes.
pub struct Watch {
    body: Incoming,
    seen: Vec<u8>,
}

impl Watch {
    /// The next event; `None`: the stream is over.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.seen.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.seen.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.ok()?;
            self.seen.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
    }

    /// It tells of this Application.
    pub async fn wait_for(&mut self, name: &str) {
        loop {
            let event = tokio::time::timeout(SOON, self.next()).await.expect("an event").expect("it goes on");
            if event["object"]["metadata"]["name"] == name {
                return;
            }
        }
    }

    /// It ends because what it is about is gone.
    pub async fn assert_expires(mut self) {
        let last = tokio::time::timeout(RECOVERY, async {
            let mut last = Value::Null;
            while let Some(event) = self.next().await {
                last = event;
            }
            last
        });
        let last = last.await.expect("the watch ends");
        assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)), "{last}");
        assert_eq!(last["object"]["reason"], "Expired", "{last}");
    }
}

/// Waits until a process has ended by itself.
pub async fn ended((mut child, _shown): (Child, BufReader<ChildStdout>)) {
    eventually(RECOVERY, async || child.try_wait().unwrap()).await;
}
