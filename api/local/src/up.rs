//! `up`: from nothing (or from what the last stack left) to a stack that serves.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_auth::pki::Process;
use horchestra_runtime::args::{LogFormat, TelemetryArgs};
use horchestra_runtime::telemetry;
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::UpArgs;
use crate::client::Client;
use crate::layout::{Layout, write_private};
use crate::process::{Endings, Spec, running, supervise};
use crate::stack::{GatewayPorts, Programs, Shared};
use crate::{balancer, down, ground, nodes, postgres, say};

const SUPERVISOR: &str = "supervisor";

/// Starts a supervisor in the background and returns once its stack is ready.
pub fn detach(home: &Path, args: &UpArgs) -> Result<()> {
    let layout = ground::folder(home)?;
    if let Some(pid) = running(&layout.pid_of(SUPERVISOR), &["horchestra-local"]) {
        say(&format!(
            "A stack already runs here (pid {pid}), as it was started; to change that, `make down` first."
        ));
        return wait_for_another(&layout, pid);
    }
    let log_path = layout.log_of(SUPERVISOR);
    let log = fs::File::options().create(true).append(true).open(&log_path)?;
    let mut seen = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--home")
        .arg(layout.root())
        .args(["up", "--nodes", &args.nodes.to_string(), "--restart", &args.restart.to_string()])
        .args(["--api-replicas", &args.api_replicas.to_string()])
        .args(["--worker-replicas", &args.worker_replicas.to_string()])
        .args(["--nodegate-replicas", &args.nodegate_replicas.to_string()])
        .args(["--heartbeat", &args.heartbeat.to_string()])
        .env("HORCHESTRA_DETACHED", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    if let Some(port) = args.api_port {
        command.args(["--api-port", &port.to_string()]);
    }
    if let Some(port) = args.nodegate_port {
        command.args(["--nodegate-port", &port.to_string()]);
    }
    if let Some(gates) = &args.feature_gates {
        command.args(["--feature-gates", gates]);
    }
    if let Some(range) = &args.routed_cidr {
        command.args(["--routed-cidr", range]);
    }
    if let Some(url) = &args.database_url {
        command.env("DATABASE_URL", url);
    }
    let mut supervisor = command.spawn().context("starting the supervisor")?;
    loop {
        seen = show_news(&log_path, seen)?;
        if layout.is_ready(i32::try_from(supervisor.id())?) {
            return Ok(());
        }
        if let Some(status) = supervisor.try_wait()? {
            show_news(&log_path, seen)?;
            bail!("the stack did not come up ({status}); logs are in {}", layout.logs().display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Until the stack that somebody else has started is ready.
fn wait_for_another(layout: &Layout, pid: i32) -> Result<()> {
    while !layout.is_ready(pid) {
        if running(&layout.pid_of(SUPERVISOR), &["horchestra-local"]) != Some(pid) {
            bail!("it has ended meanwhile; logs are in {}", layout.logs().display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    finish(layout)
}

/// Prints what was added to the log and returns how far it was read.
fn show_news(log: &Path, from: u64) -> Result<u64> {
    let mut file = fs::File::open(log)?;
    file.seek(SeekFrom::Start(from))?;
    let mut news = Vec::new();
    file.read_to_end(&mut news)?;
    // Whole lines only; the rest is read next time.
    let whole = news.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&news[..whole]);
    if !text.is_empty() {
        say(text.trim_end_matches('\n'));
    }
    Ok(from + whole as u64)
}

/// Runs the stack in this process until a signal asks it to end.
pub fn foreground(home: &Path, args: &UpArgs) -> Result<()> {
    if std::env::var_os("HORCHESTRA_DETACHED").is_some() {
        // Away from the terminal, so that closing it does not take the stack down.
        let _ = nix::unistd::setsid();
    }
    horchestra_runtime::crypto::install()?;
    telemetry::init(&TelemetryArgs {
        log: "warn,horchestra_local=info".to_owned(),
        log_format: LogFormat::Text,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(home, args))
}

/// Everything that runs, and how to end it in order.
pub(crate) struct Running {
    layout: Layout,
    restart: bool,
    /// Which processes ended by themselves.
    endings: Endings,
    tasks: TaskTracker,
    /// One per stage, in the order of starting; stopped from the last to the first.
    stages: Vec<(CancellationToken, TaskTracker)>,
}

impl Running {
    pub(crate) fn new(layout: Layout, restart: bool) -> Running {
        let (endings, tasks) = (Endings::default(), TaskTracker::new());
        Running { layout, restart, endings, tasks, stages: Vec::new() }
    }

    /// The processes that ended by themselves.
    pub(crate) fn endings(&self) -> &Endings {
        &self.endings
    }

    pub(crate) fn stage(&mut self) {
        self.stages.push((CancellationToken::new(), TaskTracker::new()));
    }

    pub(crate) fn start(&mut self, spec: Spec) -> Result<()> {
        let child = spec.spawn(&self.layout)?;
        let (stop, tasks) = self.stages.last().context("no stage was begun")?;
        let endings = self.endings.clone();
        tasks.spawn(supervise(spec, self.layout.clone(), self.restart, stop.clone(), child, endings));
        Ok(())
    }

    fn balance(&mut self, listener: TcpListener, replicas: Vec<SocketAddr>) -> Result<()> {
        let (stop, _) = self.stages.last().context("no stage was begun")?;
        self.tasks.spawn(balancer::serve(listener, replicas, stop.clone()));
        Ok(())
    }

    pub(crate) async fn stop(mut self) {
        while let Some((stop, tasks)) = self.stages.pop() {
            stop.cancel();
            tasks.close();
            tasks.wait().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Whoever forgets it, or is cut short, leaves nothing running either.
impl Drop for Running {
    fn drop(&mut self) {
        if self.stages.is_empty() {
            return;
        }
        for (stop, _) in &self.stages {
            stop.cancel();
        }
        if let Err(error) = down::stop_leftovers(&self.layout) {
            say(&format!("the stack was not stopped: {error:#}"));
        }
    }
}

async fn run(home: &Path, args: &UpArgs) -> Result<()> {
    let layout = ground::folder(home)?;
    if let Some(pid) = running(&layout.pid_of(SUPERVISOR), &["horchestra-local"]) {
        bail!("a stack already runs here (pid {pid}); `make status` shows it, `make down` stops it");
    }
    let _alone = layout.lock()?;
    down::stop_leftovers(&layout)?;
    let _ = fs::remove_file(layout.ready());
    fs::write(layout.pid_of(SUPERVISOR), format!("{}\n", std::process::id()))?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = Running::new(layout.clone(), args.restart != 0);
    let outcome = tokio::select! {
        outcome = start(&mut running, args) => outcome.map(|()| false),
        _ = interrupt.recv() => Ok(true),
        _ = terminate.recv() => Ok(true),
    };
    if matches!(outcome, Ok(false)) {
        finish(&layout)?;
        fs::write(layout.ready(), format!("{}\n", std::process::id()))?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    say("Stopping …");
    let _ = fs::remove_file(layout.ready());
    running.stop().await;
    down::stop_leftovers(&layout)?;
    let _ = fs::remove_file(layout.pid_of(SUPERVISOR));
    say("Nothing runs any more.");
    outcome.map(drop)
}

/// As a shell wants it.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// The lines that people copy.
fn finish(layout: &Layout) -> Result<()> {
    let kubeconfig = layout.kubeconfig();
    say("");
    say(&format!("export KUBECONFIG={}", quoted(&kubeconfig.display().to_string())));
    say("kubectl get nodes");
    if let Some(note) = ground::kubectl() {
        say(&format!("note: {note}"));
    }
    Ok(())
}

async fn start(running: &mut Running, args: &UpArgs) -> Result<()> {
    let layout = running.layout.clone();
    let programs = Programs::find()?;
    // Before anything runs: a port that is not to be had is told at once.
    let (api, api_port) = listen(args.api_port, 8443, "the API", "API_PORT (--api-port)").await?;
    let (gate, gate_port) =
        listen(args.nodegate_port, 8444, "nodes", "NODEGATE_PORT (--nodegate-port)").await?;

    let pki = layout.ensure_keys()?;
    say(&format!("  pki        {}", layout.pki().display()));

    running.stage();
    let database_url = match &args.database_url {
        Some(url) => {
            say("  database   the one of DATABASE_URL");
            url.clone()
        }
        None => start_postgres(running).await?,
    };
    write_private(&layout.database_url(), format!("{database_url}\n").as_bytes())?;

    let nodes: Vec<String> = (1..=args.nodes).map(|number| format!("node-{number}")).collect();
    let (serving, admin) = (pki.serving(), pki.admin());
    let (api_peer, nodegate_peer) = (pki.controller(Process::Api), pki.controller(Process::Nodegate));
    let (authority, authority_key) = (pki.authority(), pki.authority_key());
    let shared = Shared {
        layout: &layout,
        programs: &programs,
        database_url: &database_url,
        authority: &authority,
        authority_key: &authority_key,
        feature_gates: args.feature_gates.as_deref(),
        routed_cidr: args.routed_cidr.as_deref(),
    };
    migrate(&shared).await?;
    say("  schema     up to date");

    running.stage();
    let mut replicas = Vec::new();
    for index in 0..args.api_replicas {
        let port = port_for(&layout, &format!("api-{index}"))?;
        let metrics = port_for(&layout, &format!("api-{index}.metrics"))?;
        running.start(shared.api(index, port, metrics, &serving, &api_peer))?;
        replicas.push(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    running.balance(api, replicas.clone())?;
    fs::write(layout.port_of("api"), format!("{api_port}\n"))?;
    let address = SocketAddr::from(([127, 0, 0, 1], api_port));
    let kubeconfig = pki.kubeconfig(&format!("https://{address}"), "admin", &admin)?;
    write_private(&layout.kubeconfig(), kubeconfig.as_bytes())?;
    let client = Client::new(address, &authority, &admin.certificate, &admin.key)?;
    let api_replicas = replicas.clone();
    for (index, replica) in replicas.into_iter().enumerate() {
        let name = format!("api-{index}");
        let client = Client::new(replica, &authority, &admin.certificate, &admin.key)?;
        wait_for("the API", running, &name, async || ready(&client).await).await?;
    }
    say(&format!("  api        https://{address} ({} replica(s))", args.api_replicas));

    running.stage();
    for index in 0..args.worker_replicas {
        let metrics = port_for(&layout, &format!("workers-{index}.metrics"))?;
        running.start(shared.workers(index, metrics))?;
    }
    say(&format!("  workers    {} replica(s)", args.worker_replicas));

    let mut replicas = Vec::new();
    for index in 0..args.nodegate_replicas {
        let name = format!("nodegate-{index}");
        let ports = GatewayPorts {
            host: Ipv4Addr::LOCALHOST,
            nodes: port_for(&layout, &name)?,
            internal: port_for(&layout, &format!("{name}.internal"))?,
            metrics: port_for(&layout, &format!("{name}.metrics"))?,
        };
        running.start(shared.nodegate(index, ports, &api_replicas, &serving, &nodegate_peer))?;
        replicas.push(SocketAddr::from(([127, 0, 0, 1], ports.nodes)));
    }
    running.balance(gate, replicas)?;
    fs::write(layout.port_of("nodegate"), format!("{gate_port}\n"))?;
    say(&format!("  nodegate   127.0.0.1:{gate_port} ({} replica(s))", args.nodegate_replicas));

    // A Node that an operator created is admitted; one that registers itself would have to wait.
    for node in &nodes {
        wait_for(node, running, "api-0", async || nodes::create(&client, node).await.map(|()| true)).await?;
    }
    running.stage();
    for (index, node) in nodes.iter().enumerate() {
        running.start(shared.agent(index, node, gate_port, args.heartbeat, &pki.node(node)?))?;
    }
    wait_for("the nodes", running, "nodegate-0", async || all_ready(&client, &nodes).await).await?;
    say(&format!("  nodes      {} ready", nodes.len()));
    Ok(())
}

pub(crate) async fn start_postgres(running: &mut Running) -> Result<String> {
    let layout = running.layout.clone();
    let port = port_for(&layout, "postgres")?;
    let private = postgres::prepare(&layout, port)?;
    running.start(private.spec.clone())?;
    tokio::select! {
        there = postgres::ensure_database(&layout, port, &private) => there?,
        failed = running.endings.again_and_again(running.restart) => bail!(failing(&layout, &failed)),
    }
    say(&format!("  database   PostgreSQL on 127.0.0.1:{port}"));
    Ok(private.url)
}

pub(crate) async fn migrate(shared: &Shared<'_>) -> Result<()> {
    let spec = shared.migrate();
    let mut child = spec.spawn(shared.layout)?;
    let status = child.wait().await?;
    let _ = fs::remove_file(shared.layout.pid_of(&spec.name));
    if !status.success() {
        bail!("the schema could not be brought up to date: {}", why(&shared.layout.log_of(&spec.name)));
    }
    Ok(())
}

/// Takes the port that was asked for, or the usual one, or a free one when that is busy and none was asked
/// for.
async fn listen(asked: Option<u16>, usual: u16, what: &str, option: &str) -> Result<(TcpListener, u16)> {
    let bind = async |port: u16| TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await;
    let listener = match asked {
        Some(port) => bind(port).await.map_err(|error| ground::taken(port, what, option, &error))?,
        None => match bind(usual).await {
            Ok(listener) => listener,
            Err(_) => bind(0).await?,
        },
    };
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// The port that a process had last time if it is free, else a free one; kept in its port file.
pub(crate) fn port_for(layout: &Layout, name: &str) -> Result<u16> {
    let file = layout.port_of(name);
    let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).ok()?.local_addr().ok();
    let last = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    let port = last
        .filter(|port| *port != 0)
        .and_then(free)
        .or_else(|| free(0))
        .context("no free TCP port on loopback")?
        .port();
    fs::write(&file, format!("{port}\n"))?;
    Ok(port)
}

pub(crate) async fn ready(client: &Client) -> Result<bool> {
    let (status, _) = client.call(Method::GET, "/readyz", None).await?;
    Ok(status == StatusCode::OK)
}

async fn all_ready(client: &Client, nodes: &[String]) -> Result<bool> {
    let listing = client.get("/apis/horchestra.io/v1/nodes").await?;
    let ready = |name: &String| {
        listing["items"].as_array().is_some_and(|items| {
            items.iter().any(|item| item["metadata"]["name"] == **name && condition(item, "Ready") == "True")
        })
    };
    Ok(nodes.iter().all(ready))
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    object["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or("Unknown")
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// What is said of a process that does not stay up.
fn failing(layout: &Layout, process: &str) -> String {
    let log = layout.log_of(process);
    format!("{process} ends as soon as it is started (its log is {}): {}", log.display(), why(&log))
}

/// Why a process has ended, by its log: what it gave as its error, in one line, or else the end of the log.
fn why(log: &Path) -> String {
    error_in(&fs::read_to_string(log).unwrap_or_default()).unwrap_or_else(|| format!("\n{}", tail(log)))
}

/// The last error of a program with its causes, if the text ends with one.
fn error_in(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().rposition(|line| line.starts_with("Error: ") || line.starts_with("error: "))?;
    let (_, first) = lines[at].split_once(": ")?;
    let causes = lines[at + 1..]
        .iter()
        .map(|line| line.trim())
        .take_while(|line| *line != "Stack backtrace:" && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty() && *line != "Caused by:")
        .map(|line| {
            line.split_once(": ")
                .filter(|(number, _)| number.parse::<u32>().is_ok())
                .map_or(line, |(_, it)| it)
        });
    let told: Vec<&str> = std::iter::once(first).chain(causes).collect();
    // What goes on after it is no error that ended anything.
    (told.len() <= 8).then(|| told.join(": "))
}

/// Asks again and again until the answer is yes, or a process turns out not to stay up.
async fn wait_for(
    what: &str,
    running: &Running,
    log: &str,
    ask: impl AsyncFn() -> Result<bool>,
) -> Result<()> {
    let layout = &running.layout;
    tokio::select! {
        answer = ask_until_yes(what, layout, log, ask) => answer,
        failed = running.endings.again_and_again(running.restart) => bail!(failing(layout, &failed)),
    }
}

/// Asks again and again until the answer is yes.
pub(crate) async fn ask_until_yes(
    what: &str,
    layout: &Layout,
    log: &str,
    ask: impl AsyncFn() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut last = None;
    while Instant::now() < deadline {
        match tokio::time::timeout(Duration::from_secs(5), ask()).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => last = None,
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(anyhow::anyhow!("no answer within 5 s")),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let why = last.map_or_else(|| "not ready".to_owned(), |error| format!("{error:#}"));
    bail!(
        "{what} did not become ready within two minutes: {why}. The end of {}:\n{}",
        layout.log_of(log).display(),
        tail(&layout.log_of(log))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_with_its_causes_is_one_line() {
        let log = "INFO started\nError: the database was not migrated\n\nCaused by:\n    0: it cannot be reached\n    \
                   1: Connection refused (os error 111)\n\nStack backtrace:\n   0: main\n";
        let told = "the database was not migrated: it cannot be reached: Connection refused (os error 111)";
        assert_eq!(error_in(log).as_deref(), Some(told));
        let clap = "error: invalid value 'x' for '--y': it is none\n\nFor more information, try '--help'.\n";
        assert_eq!(error_in(clap).as_deref(), Some("invalid value 'x' for '--y': it is none"));
        assert_eq!(error_in("Error: one\n\nCaused by:\n    two\n").as_deref(), Some("one: two"));
        assert_eq!(error_in("it runs\n"), None);
        assert_eq!(error_in(&format!("Error: long ago\n{}", "it runs\n".repeat(20))), None);
    }
}
