//! A control plane and agents that a test starts by hand, with the commands of the guide: agents go on while the
//! control plane stops, gets another database, or makes room for another one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use horchestra_testkit::{eventually, free_port};
use hyper::Method;
use serde_json::{Value, json};

use crate::client::{Client, page};
use crate::guide::{Reader, programs};
use crate::stack::{said, signal};

const NODES: &str = "/apis/horchestra.io/v1/nodes";
/// Until a process that was started does its work. On a busy machine connections take long to be made.
const STARTED: Duration = Duration::from_secs(120);

/// A process that ends with the value.
pub struct Program(Child);

impl Program {
    /// Starts it, with its output at the end of a log.
    pub fn start(mut command: Command, log: &Path) -> Program {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Program(command.spawn().unwrap())
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        signal(i32::try_from(self.0.id()).unwrap(), "TERM");
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Where a control plane listens, over restarts.
#[derive(Clone, Copy)]
pub struct Ports {
    /// The one address that everybody knows.
    pub address: u16,
    pub api: u16,
    api_metrics: u16,
    workers_metrics: u16,
    internal: u16,
    pub gateway_metrics: u16,
}

impl Ports {
    pub fn free() -> Ports {
        let port = || free_port().unwrap();
        Ports {
            address: port(),
            api: port(),
            api_metrics: port(),
            workers_metrics: port(),
            internal: port(),
            gateway_metrics: port(),
        }
    }

    /// A client of the one address, with `ca.crt`, `admin.crt` and `admin.key` of this folder.
    pub fn client(&self, folder: &Path) -> Client {
        Client::new(loopback(self.address), folder)
    }
}

/// One replica of each process.
pub struct Plane {
    /// In the order of starting.
    programs: Vec<Program>,
    ports: Ports,
}

impl Plane {
    /// Starts the three as the guide does, in a folder that is laid out as it says, and returns once they are ready.
    /// `options` are said to each of them.
    pub async fn start(folder: &Path, ports: Ports, database_url: &str, options: &str) -> Plane {
        let reader = Reader::new(folder)
            .with("DATABASE_URL", database_url)
            .with("API", loopback(ports.api).to_string())
            .with("GATEWAYS", "127.0.0.1")
            .with("ADDRESS", loopback(ports.address).to_string());
        let internal = loopback(ports.internal);
        let mut plane = Plane { programs: Vec::new(), ports };
        for (name, metrics, own) in [
            ("start-api", ports.api_metrics, String::new()),
            ("start-workers", ports.workers_metrics, String::new()),
            ("start-gateway", ports.gateway_metrics, format!("--internal-addr {internal}")),
        ] {
            let metrics = loopback(metrics);
            let command = reader
                .clone()
                .with("OPTIONS", format!("--metrics-addr {metrics} {own} {options}"))
                .program(name);
            let log = folder.join(format!("{name}.log"));
            plane.programs.push(Program::start(command, &log));
            let ready = async || {
                let answer = page(metrics, "/readyz").await.unwrap_or_else(|error| error.to_string());
                if answer == "ok" { Ok(()) } else { Err(format!("{name}: {answer}; {}", tail(&log))) }
            };
            eventually(STARTED, ready).await;
        }
        plane
    }

    /// Ends the gateway first, the API last.
    pub fn stop(mut self) {
        while let Some(program) = self.programs.pop() {
            program.stop();
        }
    }

    /// A number on the gateway's metrics page.
    pub async fn gateway_metric(&self, name: &str) -> Option<f64> {
        let page = page(loopback(self.ports.gateway_metrics), "/metrics").await.ok()?;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// A node's agent, and what it keeps. Its workloads end with the value.
pub struct Agent {
    pub node: String,
    conf: PathBuf,
    state: PathBuf,
    program: Option<Program>,
}

impl Agent {
    /// Starts it below this folder, with a configuration that tells it everything.
    pub fn start(folder: &Path, node: &str, conf: &Path) -> Agent {
        let state = folder.join(node);
        fs::create_dir_all(&state).unwrap();
        let mut agent = Agent { node: node.to_owned(), conf: conf.to_owned(), state, program: None };
        agent.start_again();
        agent
    }

    /// As its supervisor does once it has ended, or anew.
    pub fn start_again(&mut self) {
        if let Some(program) = self.program.take() {
            program.stop();
        }
        let mut command = Command::new(programs().join("horchestra-agent"));
        command.args(["--heartbeat", "1s", "--routed-network", "--kubeconfig"]);
        command.arg(&self.conf).arg("--state-dir").arg(&self.state);
        self.program = Some(Program::start(command, &self.state.join("agent.log")));
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What runs here: by uid, which process it is and how often it was started.
    pub fn units(&self) -> BTreeMap<String, Value> {
        let Ok(entries) = fs::read_dir(self.state.join("units")) else { return BTreeMap::new() };
        entries
            .flatten()
            .filter_map(|entry| {
                let text = fs::read_to_string(entry.path().join("state.json")).ok()?;
                Some((entry.file_name().into_string().ok()?, serde_json::from_str(&text).ok()?))
            })
            .collect()
    }

    pub fn holds(&self, uid: &str) -> bool {
        self.state.join("units").join(uid).is_dir()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.program.take());
        let mut command = Command::new(programs().join("horchestra-agent"));
        let output = command.arg("stop-units").arg("--state-dir").arg(&self.state).output().unwrap();
        if !output.status.success() && !std::thread::panicking() {
            panic!("units of {} go on: {}", self.node, said(&output));
        }
    }
}

/// What runs on these nodes, by node.
pub fn running(agents: &[Agent]) -> BTreeMap<String, BTreeMap<String, Value>> {
    agents.iter().map(|agent| (agent.node.clone(), agent.units())).collect()
}

/// Makes a Node as an operator does, so that its agent is admitted.
pub async fn make_node(client: &Client, node: &str) {
    let body = json!({"metadata": {"name": node}, "spec": {}});
    let (code, made) = client.call_patiently(Method::POST, NODES, Some(&body)).await;
    assert!(code == 201 || code == 409, "{made}");
}

/// Why a node is held, as people see it; empty when it is not, `None` when nobody answers.
pub async fn held(client: &Client, node: &str) -> Option<String> {
    let path = format!("{NODES}/{node}");
    let asked = client.call(Method::GET, &path, None);
    let (code, found) = tokio::time::timeout(Duration::from_secs(10), asked).await.ok()?.ok()?;
    if code != 200 {
        return None;
    }
    let conditions: Vec<Value> = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition["type"] == "Held");
    Some(condition.map(|condition| condition["reason"].as_str().unwrap().to_owned()).unwrap_or_default())
}
