//! A control plane of several replicas that a test starts, ends and replaces one by one, from whatever folder the
//! programs lie in, with whatever database.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use horchestra_auth::pki::{HostName, Kubeconfig, Lifetime, LocalPki, Process, write_file};
use horchestra_local::balancer;
use horchestra_testkit::{TempDir, eventually, free_port};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::{Client, page};
use crate::plane::{Agent, Program, make_node};
use crate::stack::said;

/// Until a process that was started does its work. On a busy machine connections take long to be made.
const STARTED: Duration = Duration::from_secs(120);

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Api(usize),
    Workers(usize),
    Gateway(usize),
}

impl Part {
    fn program(self) -> &'static str {
        match self {
            Part::Api(_) => "horchestra-api",
            Part::Workers(_) => "horchestra-workers",
            Part::Gateway(_) => "horchestra-nodegate",
        }
    }

    fn number(self) -> usize {
        match self {
            Part::Api(number) | Part::Workers(number) | Part::Gateway(number) => number,
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.program(), self.number())
    }
}

/// Where a process listens, over restarts.
#[derive(Clone, Copy)]
struct Ports {
    listen: u16,
    internal: u16,
    metrics: u16,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// See the module. Nothing runs before it is started.
pub struct Replicas {
    running: BTreeMap<Part, Program>,
    ports: BTreeMap<Part, Ports>,
    /// For every process.
    environment: Vec<(&'static str, String)>,
    /// Of every process, beside what it cannot do without.
    options: Vec<String>,
    pki: LocalPki,
    api: SocketAddr,
    nodes: SocketAddr,
    folder: TempDir,
    _balancers: DropGuard,
}

impl Replicas {
    /// Keys, ports, and a balancer in front of the replicas of the API and one in front of the gateways.
    pub async fn lay_out(environment: Vec<(&'static str, String)>, parts: &[Part]) -> Replicas {
        let folder = TempDir::new().unwrap();
        let host = HostName::parse("127.0.0.1").unwrap();
        let pki = LocalPki::ensure(&folder.path().join("pki"), &[host]).unwrap();
        fs::create_dir(folder.path().join("token-keys")).unwrap();
        let port = || free_port().unwrap();
        let ports = Vec::from(parts)
            .into_iter()
            .map(|part| (part, Ports { listen: port(), internal: port(), metrics: port() }))
            .collect::<BTreeMap<_, _>>();
        let stop = CancellationToken::new();
        let api = balance(&ports, |part| matches!(part, Part::Api(_)), &stop).await;
        let nodes = balance(&ports, |part| matches!(part, Part::Gateway(_)), &stop).await;
        Replicas {
            running: BTreeMap::new(),
            ports,
            environment,
            options: Vec::new(),
            pki,
            api,
            nodes,
            folder,
            _balancers: stop.drop_guard(),
        }
    }

    /// A command of one of the programs in this folder, on this database.
    pub fn command(&self, programs: &Path, name: &str) -> Command {
        let mut command = Command::new(programs.join(name));
        command
            .env_remove("DATABASE_URL")
            .env_remove("DATABASE_LISTEN_URL")
            .env("RUST_BACKTRACE", "0")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path());
        command
    }

    /// Runs a command of the API's program to its end.
    pub fn run(&self, programs: &Path, args: &[&str]) -> Output {
        self.command(programs, "horchestra-api").args(args).output().unwrap()
    }

    /// The schema, and the keys of Secrets where there are none.
    pub fn prepare(&self, programs: &Path) {
        let migrated = self.run(programs, &["migrate"]);
        assert!(migrated.status.success(), "{}", said(&migrated));
        self.make_keys(programs);
    }

    pub fn make_keys(&self, programs: &Path) {
        if !self.folder.path().join("secret-keys").exists() {
            let made = self.run(programs, &["secret-keys", "new", "secret-keys"]);
            assert!(made.status.success(), "{}", said(&made));
        }
    }

    /// The command that a process is.
    pub fn process(&self, part: Part, programs: &Path) -> Command {
        let ports = self.ports[&part];
        let mut command = self.command(programs, part.program());
        let file = |path: PathBuf| path.display().to_string();
        let serving = self.pki.serving();
        let mut serve = |listen: u16, own: Process| {
            let own = self.pki.controller(own);
            command.args(["--listen", &loopback(listen).to_string()]);
            command.args(["--tls-cert", &file(serving.certificate.clone())]);
            command.args(["--tls-key", &file(serving.key.clone())]);
            command.args(["--peer-cert", &file(own.certificate), "--peer-key", &file(own.key)]);
            for authority in ["--tls-ca", "--peer-ca"] {
                command.args([authority, &file(self.pki.authority())]);
            }
            command.args(["--secret-keys", "secret-keys", "--jwt-signing-key", "token-keys"]);
        };
        match part {
            Part::Api(_) => {
                serve(ports.listen, Process::Api);
                // The subcommand comes first.
                let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
                command = self.command(programs, part.program());
                command.arg("serve").args(args);
            }
            Part::Workers(_) => {
                command.args(["--cluster-ca", &file(self.pki.authority())]);
                command.args(["--cluster-ca-key", &file(self.pki.authority_key())]);
            }
            Part::Gateway(number) => {
                serve(ports.listen, Process::Nodegate);
                command.args(["--name", &format!("gate-{number}")]);
                command.args(["--internal-addr", &loopback(ports.internal).to_string()]);
            }
        }
        command.args(["--metrics-addr", &loopback(ports.metrics).to_string()]).args(&self.options);
        command
    }

    /// Starts a process, and returns once it is ready.
    pub async fn start(&mut self, part: Part, programs: &Path) {
        let metrics = loopback(self.ports[&part].metrics);
        let log = self.log_file(part);
        self.running.insert(part, Program::start(self.process(part, programs), &log));
        eventually(STARTED, async || {
            let answer = page(metrics, "/readyz").await.unwrap_or_else(|error| error.to_string());
            if answer == "ok" { Ok(()) } else { Err(format!("{part}: {answer}; {}", tail(&log))) }
        })
        .await;
    }

    /// All of them, in their order.
    pub async fn start_all(&mut self, programs: &Path) {
        for part in self.parts() {
            self.start(part, programs).await;
        }
    }

    pub fn parts(&self) -> Vec<Part> {
        self.ports.keys().copied().collect()
    }

    /// Asks a process to end, waits until it has, and starts it again from this folder.
    pub async fn replace(&mut self, part: Part, programs: &Path) {
        let old = self.running.remove(&part).expect("it runs");
        tokio::task::spawn_blocking(move || old.stop()).await.unwrap();
        self.start(part, programs).await;
    }

    /// The balancer before the API.
    pub fn address(&self) -> SocketAddr {
        self.api
    }

    /// Where one process listens.
    pub fn address_of(&self, part: Part) -> SocketAddr {
        loopback(self.ports[&part].listen)
    }

    pub fn pki_folder(&self) -> PathBuf {
        self.folder.path().join("pki")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The administrator, through the balancer.
    pub fn client(&self) -> Client {
        Client::new(self.api, &self.pki_folder())
    }

    /// Makes a node and starts its agent.
    pub async fn node(&self, name: &str) -> Agent {
        make_node(&self.client(), name).await;
        let server = format!("https://{}", self.nodes);
        let authority = &self.pki.signer().pem().certificate;
        let client = &self.pki.signer().node(name, Lifetime::CLIENT).unwrap();
        let conf =
            Kubeconfig { server: &server, cluster: Kubeconfig::CLUSTER, authority, user: name, client };
        let file = self.folder.path().join(format!("{name}.conf"));
        write_file(&file, conf.yaml().as_bytes(), 0o600).unwrap();
        Agent::start(&self.folder.path().join("agents"), name, &file)
    }

    fn log_file(&self, part: Part) -> PathBuf {
        self.folder.path().join(format!("{part}.log"))
    }

    /// What a process has logged.
    pub fn log(&self, part: Part) -> String {
        fs::read_to_string(self.log_file(part)).unwrap_or_default()
    }

    /// A number on the page of metrics of a process.
    pub async fn metric(&self, part: Part, name: &str) -> Option<f64> {
        let page = page(loopback(self.ports[&part].metrics), "/metrics").await.ok()?;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

async fn balance(
    ports: &BTreeMap<Part, Ports>,
    of: impl Fn(&Part) -> bool,
    stop: &CancellationToken,
) -> SocketAddr {
    let replicas =
        ports.iter().filter(|(part, _)| of(part)).map(|(_, ports)| loopback(ports.listen)).collect();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(balancer::serve(listener, replicas, stop.clone()));
    address
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
