//! A fleet changes its control plane, as the guide says, and nothing on its nodes notices.
//!
//! The other control plane is played by this one: what it leaves is turned into what the other one would have left
//! (`there`). Agents run through all of it, with what they have from before.

mod there;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use horchestra_auth::identity::fingerprint;
use horchestra_auth::pki::Issued;
use horchestra_testkit::{Cluster, TempDir, eventually};
use hyper::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use self::there::{There, as_there, essence};
use crate::certificates;
use crate::client::Client;
use crate::guide::Reader;
use crate::plane::{Agent, Plane, Ports, held, make_node, running};
use crate::restore::fleet::{server, sql, texts};
use crate::restore::{A_WHILE, RECOVERY};
use crate::rotation::client_folder;
use crate::tour::kubectls;

const NODES: [&str; 2] = ["node-1", "node-2"];
/// What the other control plane was started with, and this one is.
const OPTIONS: &str =
    "--routed-cidr 10.244.0.0/24 --service-cidr 10.96.0.0/24 --feature-gates AutoNodeCertRotation=true";
const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/team/applications";
const ADMITTED: [&str; 2] = ["", ""];

/// Everything around the move.
struct Move {
    agents: Vec<Agent>,
    client: Client,
    there: There,
    ports: Ports,
    server: Cluster,
    folder: TempDir,
}

impl Move {
    /// A fleet under the other control plane, with something of everything on it.
    async fn begin() -> (Move, Plane) {
        let server = server();
        for database in ["there", "here"] {
            sql(&server.url("postgres"), &format!("create database {database}")).await;
        }
        let folder = TempDir::new().unwrap();
        let ports = Ports::free();
        let there = There::lay_out(&folder.path().join("left"), ports, &NODES);
        let client = ports.client(client_folder(&there.authority, &there.admin).path());
        let mut this = Move { agents: Vec::new(), client, there, ports, server, folder };
        this.lay_out("there");
        let reader = this.reader("there");
        reader.line("horchestra-api migrate");
        let plane = this.start("there").await;
        for node in NODES {
            make_node(&this.client, node).await;
            let conf = this.left(&format!("{node}/node.conf"));
            let agent = Agent::start(&this.folder.path().join("agents"), node, &conf);
            this.agents.push(agent);
        }
        reader.line(&format!("kubectl apply -f {}/tests/it/moving/fleet.yaml", env!("CARGO_MANIFEST_DIR")));
        for (name, phase) in [
            ("web", "Running"),
            ("isolated", "Running"),
            ("going", "Running"),
            ("done", "Succeeded"),
            ("failed", "Failed"),
            ("shop-web-1", "Running"),
        ] {
            reader.line(&format!(
                "kubectl wait -n team --for=jsonpath='{{.status.phase}}'={phase} app/{name} --timeout=90s"
            ));
        }
        reader.line("kubectl wait -n team --for=jsonpath='{.status.phase}'=Ready appset/shop --timeout=90s");
        reader.line("kubectl wait -n team --for=condition=Scheduled=false app/waiting --timeout=90s");
        // What has ended goes.
        let over = |agent: &Agent| agent.units().values().all(|unit| unit["ending"].is_null());
        eventually(RECOVERY, async || this.agents.iter().all(over)).await;
        (this, plane)
    }

    /// What the other control plane has left.
    fn left(&self, path: &str) -> PathBuf {
        self.folder.path().join("left").join(path)
    }

    /// Files on the host of one of the two, as the guide has them.
    fn lay_out(&self, side: &str) {
        let place = self.folder.path().join(side);
        fs::create_dir_all(&place).unwrap();
        let reader = self.reader(side);
        reader.line("cp -a ../left/pki pki && cp ../left/controller/controller.conf .");
        reader.run("lay-out");
    }

    fn reader(&self, side: &str) -> Reader {
        Reader::new(&self.folder.path().join(side))
            .with("DATABASE_URL", self.url(side))
            .with("KUBECONFIG", self.left("pki/admin.conf").display().to_string())
            .with("HOST", "127.0.0.1")
    }

    fn url(&self, side: &str) -> String {
        self.server.url(side)
    }

    async fn start(&self, side: &str) -> Plane {
        Plane::start(&self.folder.path().join(side), self.ports, &self.url(side), OPTIONS).await
    }

    /// Everything that the control plane prints now.
    fn printed(&self) -> Value {
        let place = self.folder.path().join("printed");
        fs::create_dir_all(&place).unwrap();
        self.reader("printed").run("export");
        serde_json::from_slice(&fs::read(place.join("fleet.json")).unwrap()).unwrap()
    }

    async fn wait_until_held(&self, reasons: [&str; 2]) {
        for (node, reason) in NODES.into_iter().zip(reasons) {
            eventually(RECOVERY, async || {
                let found = held(&self.client, node).await;
                if found.as_deref() == Some(reason) { Ok(()) } else { Err(found) }
            })
            .await;
        }
    }

    /// Both nodes have sessions, and have been pushed to so often at least.
    async fn wait_for_nodes(&self, plane: &Plane, pushes: f64) {
        eventually(RECOVERY, async || {
            let sessions = plane.gateway_metric("horchestra_gate_sessions ").await;
            let pushed = plane.gateway_metric("horchestra_gate_pushes_total ").await;
            if sessions == Some(2.0) && pushed >= Some(pushes) { Ok(()) } else { Err((sessions, pushed)) }
        })
        .await;
    }

    /// How many runs each job has written of.
    fn runs(&self) -> BTreeMap<PathBuf, usize> {
        let logs = self.agents.iter().flat_map(|agent| outputs(agent.state()));
        logs.map(|log| (log.clone(), fs::read_to_string(log).unwrap().matches("ran").count()))
            .filter(|(_, runs)| *runs > 0)
            .collect()
    }

    async fn app(&self, name: &str) -> Value {
        let (code, app) =
            self.client.call_patiently(Method::GET, &format!("{APPLICATIONS}/{name}"), None).await;
        assert_eq!(code, 200, "{app}");
        app
    }
}

/// What workloads below this folder write and wrote.
fn outputs(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.append(&mut outputs(&path));
        } else if path.ends_with("output") {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_changes_over_and_nothing_on_its_nodes_notices() {
    if kubectls().is_empty() {
        return;
    }
    let (fleet, plane) = Move::begin().await;
    let volume = eventually(RECOVERY, async || volume_of(fleet.agents[0].state())).await;
    fs::write(volume.join("kept"), "for ever").unwrap();
    let (before, runs) = (running(&fleet.agents), fleet.runs());
    // Of done, going, failed, and of the set's migration.
    assert_eq!(runs.values().sum::<usize>(), 4, "{runs:?}");
    let nothing_happened = |when: &str| {
        assert_eq!(running(&fleet.agents), before, "{when}");
        let now: usize = fleet.runs().values().sum();
        assert_eq!(now, 4, "{when}: {:?}", fleet.runs());
        assert_eq!(fs::read_to_string(volume.join("kept")).unwrap(), "for ever", "{when}");
    };

    // As the other one prints it, and with its key for tokens.
    let mut objects = fleet.printed();
    as_there(&mut objects);
    plane.stop();
    fleet.lay_out("here");
    let here = fleet.folder.path().join("here");
    fs::write(here.join("fleet.json"), objects.to_string()).unwrap();
    let operator = fleet.reader("here");
    operator.line("cp ../there/token-keys/* token-keys/");
    for name in ["server.crt", "server.key", "ca.crt"] {
        let read = |path: PathBuf| fs::read(path).unwrap();
        assert_eq!(read(here.join(name)), read(fleet.left(&format!("pki/{name}"))), "{name}");
    }
    operator.run("import");

    let plane = fleet.start("here").await;
    fleet.wait_until_held(["Imported"; 2]).await;
    fleet.wait_for_nodes(&plane, 0.0).await;
    let compared = operator.run("compare");
    assert!(compared.contains("Held") && compared.contains("shop-web-1"), "{compared}");
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(plane.gateway_metric("horchestra_gate_pushes_total ").await, Some(0.0));
    same(&objects, &fleet.printed(), "held");
    nothing_happened("while held");

    // Back, and here again.
    plane.stop();
    let plane = fleet.start("there").await;
    fleet.wait_for_nodes(&plane, 2.0).await;
    tokio::time::sleep(A_WHILE).await;
    nothing_happened("back at the other one");
    plane.stop();
    let plane = fleet.start("here").await;
    fleet.wait_until_held(["Imported"; 2]).await;

    // One node, and then all.
    operator.run("admit");
    fleet.wait_until_held(["", "Imported"]).await;
    fleet.wait_for_nodes(&plane, 1.0).await;
    tokio::time::sleep(A_WHILE).await;
    nothing_happened("with one node admitted");
    assert!(operator.run("admit-all").ends_with("no node is held\n"));
    fleet.wait_until_held(ADMITTED).await;
    fleet.wait_for_nodes(&plane, 2.0).await;
    // The set writes its own digests, which changes nothing of what it has made.
    eventually(RECOVERY, async || !fleet.printed().to_string().contains(&"5f".repeat(32))).await;
    operator.line("kubectl wait -n team --for=jsonpath='{.status.phase}'=Ready appset/shop --timeout=90s");
    tokio::time::sleep(A_WHILE).await;
    nothing_happened("after all");
    same(&objects, &fleet.printed(), "admitted");

    it_can_be_worked_with(&fleet, &operator).await;
    nothing_happened("after some work");
    let mut fleet = fleet;
    certificates_are_renewed(&mut fleet, &before).await;
    everything_is_read(&fleet, &operator).await;
    plane.stop();
}

#[track_caller]
fn same(there: &Value, here: &Value, when: &str) {
    let (there, here) = (essence(there), essence(here));
    let names = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&here), names(&there), "{when}");
    for (name, wanted) in &there {
        assert_eq!(&here[name], wanted, "{when}: {name}");
    }
}

/// The folder of the one volume of a node.
fn volume_of(state: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(state.join("volumes/data")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

/// What is new gets what nobody has, and rights are what they were.
async fn it_can_be_worked_with(fleet: &Move, operator: &Reader) {
    let old = fleet.app("isolated").await;
    let mut new = json!({"metadata": {"name": "isolated-too"}, "spec": old["spec"].clone()});
    new["spec"].as_object_mut().unwrap().remove("securityContext");
    let (code, made) = fleet.client.call_patiently(Method::POST, APPLICATIONS, Some(&new)).await;
    assert_eq!(code, 201, "{made}");
    operator
        .line("kubectl wait -n team --for=jsonpath='{.status.phase}'=Running app/isolated-too --timeout=90s");
    let new = fleet.app("isolated-too").await;
    let user = "/spec/securityContext/runAsUser";
    assert_ne!(new["status"]["address"], old["status"]["address"]);
    assert_ne!(new.pointer(user), old.pointer(user));
    operator.line("kubectl delete -n team app isolated-too --timeout=90s");

    let alice = operator.clone().with("KUBECONFIG", fleet.left("alice.conf").display().to_string());
    alice.line("kubectl get app -n team && kubectl get nodes");
    alice.line("! kubectl get secrets -n team");
}

/// An agent renews its certificate by what it has been given by the other control plane, and goes on with it.
async fn certificates_are_renewed(fleet: &mut Move, before: &BTreeMap<String, BTreeMap<String, Value>>) {
    let folder = client_folder(&fleet.there.authority, &fleet.there.nodes["node-1"]);
    let client = fleet.ports.client(folder.path());
    let (certificate, key) = certificates::renew(&client, "node-1", "node-1-0badcafe").await.unwrap();
    let leaf = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let conf = fleet.left("node-1/node.conf");
    there::renewed(&conf, fleet.ports, "node-1", &fleet.there.authority, &Issued { certificate, key });
    fleet.agents[0].start_again();
    let query = "select certificate from horchestra.node_sessions where node = 'node-1'";
    eventually(RECOVERY, async || texts(&fleet.url("here"), query).await == [fingerprint(&leaf)]).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(&running(&fleet.agents), before, "after the renewal");
}

/// Every way to look at things takes what was imported.
async fn everything_is_read(fleet: &Move, operator: &Reader) {
    for kind in [
        "namespaces",
        "nodes",
        "applications",
        "applicationsets",
        "services",
        "secrets",
        "secretstores",
        "persistentvolumes",
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
        "certificatesigningrequests",
        "pods",
        "events",
    ] {
        let listed = operator.line(&format!("kubectl get {kind} -A -o wide"));
        assert!(listed.lines().count() > 1, "{kind}: {listed}");
        operator.line(&format!("kubectl get {kind} -A -o yaml"));
        operator.line(&format!("kubectl describe {kind} -A"));
    }
    for path in [
        "/v1/catalog/services?ns=team",
        "/v1/health/service/web-http?ns=team",
        "/apis/horchestra.io/v1/namespaces/team/applications/web/revisions",
        "/apis/horchestra.io/v1/namespaces/team/applicationsets/shop/revisions",
        "/metrics",
    ] {
        let answer = operator.line(&format!("kubectl get --raw '{path}'"));
        assert!(answer.contains("web") || answer.contains("generation"), "{path}: {answer}");
    }
    assert!(operator.line("kubectl logs -n team done").contains("ran"));
    for (_, query) in horchestra_local::cookbook::queries() {
        sql(&fleet.url("here"), query).await;
    }
    let status = operator.line("horchestra-local status --database-url \"$DATABASE_URL\"");
    assert!(status.contains("horchestra-workers"), "{status}");
    operator.line("horchestra-api check --secret-keys secret-keys");
}
