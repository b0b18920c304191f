//! The blocks that start a process which stays: each is started beside a stack, with files of that stack, until it works.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use horchestra_testkit::{TempDir, eventually, free_port};
use hyper::Method;

use super::tour::Checkout;
use super::{Reader, block, commands};
use crate::client::{Client, page};
use crate::plane::Program;
use crate::restore::fleet::{server, sql, texts};
use crate::stack::signal;

const SOON: Duration = Duration::from_secs(90);
const NODES: &str = "/apis/horchestra.io/v1/nodes";

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()))
}

/// A command as it runs in a terminal: the signal of Ctrl-C reaches everything that it has started.
struct Terminal(Child);

impl Terminal {
    fn open(reader: &Reader, text: &str, output: &Path) -> Terminal {
        let output = fs::File::create(output).unwrap();
        let mut command = reader.shell(text);
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Terminal(command.spawn().unwrap())
    }

    fn interrupt(&mut self) {
        signal(-i32::try_from(self.0.id()).unwrap(), "INT");
        self.0.wait().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            self.interrupt();
        }
    }
}

/// Somebody who starts more processes by hand, with the keys of a stack.
struct Hand {
    folder: PathBuf,
    reader: Reader,
    client: Client,
    programs: Vec<Program>,
}

impl Hand {
    fn new(checkout: &Checkout) -> Hand {
        let folder = checkout.folder().join("by-hand");
        fs::create_dir_all(folder.join("token-keys")).unwrap();
        let pki = checkout.home().join("pki");
        let copy = |from: &Path, to: PathBuf| {
            let _ = fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        };
        for entry in
            fs::read_dir(&pki).unwrap().chain(fs::read_dir(checkout.home().join("token-keys")).unwrap())
        {
            let path = entry.unwrap().path();
            let place = if path.starts_with(&pki) { folder.clone() } else { folder.join("token-keys") };
            copy(&path, place.join(path.file_name().unwrap()));
        }
        copy(&checkout.home().join("secret-keys"), folder.join("secret-keys"));
        copy(&pki.join("ca.crt"), folder.join("clients.crt"));
        copy(&pki.join("ca.key"), folder.join("clients.key"));
        fs::set_permissions(folder.join("token-keys"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        let api: u16 = checkout.kept("run/api.port").parse().unwrap();
        Hand {
            reader: Reader::new(&folder)
                .with("DATABASE_URL", checkout.kept("database-url"))
                .with("GATEWAY", format!("127.0.0.1:{}", checkout.kept("run/nodegate.port"))),
            client: Client::new(([127, 0, 0, 1], api).into(), &pki),
            folder,
            programs: Vec::new(),
        }
    }

    /// Starts a command that stays.
    fn start(&mut self, reader: &Reader, command: &str) -> PathBuf {
        let log = self.folder.join(format!("{}.log", self.programs.len()));
        self.programs.push(Program::start(reader.shell(&format!("exec {command}")), &log));
        log
    }

    /// Does what a block says with these options, the last of which stays, and waits until that says it is ready.
    async fn serve(&mut self, reader: &Reader, commands: &[String], options: &str) {
        let metrics = loopback();
        let reader = reader.clone().with("OPTIONS", format!("--metrics-addr {metrics} {options}"));
        let (last, first) = commands.split_last().unwrap();
        for command in first {
            reader.line(command);
        }
        let log = self.start(&reader, last);
        eventually(SOON, async || {
            let answer = page(metrics, "/readyz").await.unwrap_or_else(|error| error.to_string());
            if answer == "ok" { Ok(()) } else { Err((answer, fs::read_to_string(&log))) }
        })
        .await;
        // Whether the command for that says so as well.
        let program = last.split_whitespace().next().unwrap();
        reader.line(&format!("{program} health --metrics-addr {metrics}"));
    }

    /// Until the cluster has all these nodes.
    async fn until_known(&self, names: &[&str]) {
        eventually(SOON, async || {
            let (_, list) = self.client.call_patiently(Method::GET, NODES, None).await;
            let known = |name: &&str| {
                list["items"].as_array()?.iter().find(|node| node["metadata"]["name"] == **name).map(drop)
            };
            let missing: Vec<&&str> = names.iter().filter(|name| known(name).is_none()).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_are_started_by_hand_beside_a_traced_stack() {
    let checkout = Checkout::new();
    let output = checkout.folder().join("output");
    // `exec`, so that the terminal's process is the one that matters.
    let text = block("traced");
    let mut terminal = Terminal::open(&checkout.reader.clone().with("NODES", "1"), &text, &output);
    eventually(SOON, async || {
        let ended = terminal.0.try_wait().unwrap();
        assert!(ended.is_none(), "{}", fs::read_to_string(&output).unwrap());
        checkout.home().join("run/ready").exists()
    })
    .await;

    let mut hand = Hand::new(&checkout);
    let reader = hand.reader.clone();
    let listen = |address: SocketAddr| format!("--listen {address}");
    hand.serve(&reader, &commands("api"), &listen(loopback())).await;
    hand.serve(&reader, &commands("workers"), "").await;
    let gateway = format!("{} --internal-addr {} --name by-hand", listen(loopback()), loopback());
    hand.serve(&reader, &commands("gateway"), &gateway).await;
    one_address(&mut hand, &checkout).await;
    agents(&mut hand).await;
    let_in(&hand, &checkout).await;
    drop(hand);

    terminal.interrupt();
    // The shell may be gone before what it has started.
    eventually(SOON, async || {
        let output = fs::read_to_string(&output).unwrap();
        if output.contains("Nothing runs any more.") { Ok(()) } else { Err(output) }
    })
    .await;
}

/// The address is the gateway's, and the API answers there.
async fn one_address(hand: &mut Hand, checkout: &Checkout) {
    let [gateway, api] = commands("one-address").try_into().unwrap();
    let files = "--tls-cert server.crt --tls-key server.key --tls-ca ca.crt --peer-ca ca.crt \
                 --secret-keys secret-keys --jwt-signing-key token-keys";
    let peer = |name: &str| format!("{files} --peer-cert {name}.crt --peer-key {name}.key");
    let (address, other) = (loopback(), loopback());
    let reader = hand.reader.clone().with("ADDRESS", address.to_string()).with("GATEWAYS", "127.0.0.1");
    hand.serve(&reader.clone().with("API", other.to_string()), &[api], &peer("horchestra-api")).await;
    // Replicas of a stack believe everybody on the loopback.
    let first = format!("127.0.0.1:{}", checkout.kept("run/api-0.port"));
    let reader = reader.with("API", first).with("OTHER", other.to_string());
    let options =
        format!("{} --internal-addr {} --name one-address", peer("horchestra-nodegate"), loopback());
    hand.serve(&reader, &[gateway], &options).await;
    let client = Client::new(address, &checkout.home().join("pki"));
    eventually(SOON, async || {
        let (code, body) =
            client.call(Method::GET, "/version", None).await.map_err(|error| error.to_string())?;
        if code == 200 { Ok(()) } else { Err(format!("{code}: {body}")) }
    })
    .await;
}

async fn agents(hand: &mut Hand) {
    let reader = hand.reader.clone();
    let [pair, conf] = commands("agent").try_into().unwrap();
    reader.line("mkdir pki && cp ca.crt ca.key admin.crt admin.key pki && chmod 700 pki");
    reader.line("horchestra-local pki cert node-8 --group system:nodes");
    reader.line("horchestra-local pki node node-9 --server https://$GATEWAY");
    for (node, command) in [("node-8", pair), ("node-9", conf)] {
        let reader = reader.clone().with("NODE", node).with("FOLDER", format!("state-{node}"));
        hand.start(&reader, &command);
    }
    let [fleet] = commands("fleet").try_into().unwrap();
    hand.start(&reader.clone().with("NODES", "3"), &format!("{fleet} --ramp 0s"));
    hand.until_known(&["node-8", "node-9", "sim-1", "sim-2", "sim-3"]).await;
    // Afterwards, as the text says: a state has one agent.
    hand.programs.clear();
    reader.with("FOLDER", "state-node-8").run("stop-units");
}

/// One node that an operator makes, and one that came by itself.
async fn let_in(hand: &Hand, checkout: &Checkout) {
    let reader = hand
        .reader
        .clone()
        .with("API", format!("127.0.0.1:{}", checkout.kept("run/api.port")))
        .with("KUBECONFIG", checkout.home().join("kubeconfig").display().to_string());
    let [before, afterwards] = commands("let-in").try_into().unwrap();
    reader.clone().with("NODE", "expected").line(&before);
    reader.with("NODE", "node-8").line(&afterwards);
    for node in ["expected", "node-8"] {
        let (_, found) = hand.client.call_patiently(Method::GET, &format!("{NODES}/{node}"), None).await;
        let (status, spec) = (&found["status"], &found["spec"]);
        assert!(found["metadata"]["uid"].is_string(), "{found}");
        assert_ne!(spec["unschedulable"], true, "{found}");
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        assert!(conditions.any(|it| it["type"] == "Admitted" && it["status"] == "True"), "{found}");
    }
}

#[test]
fn certificates_are_made_as_the_guide_says() {
    let folder = TempDir::new().unwrap();
    Reader::new(folder.path()).run("certificates");
    for name in ["pki/ca.key", "pki/admin.conf", "node-1.conf", "alice.conf"] {
        assert!(folder.path().join(name).is_file(), "{name}");
    }
}

#[tokio::test]
async fn the_database_of_an_installation_is_made_as_the_guide_says() {
    let server = server();
    let folder = TempDir::new().unwrap();
    let reader = Reader::new(folder.path()).with("ADMIN_URL", server.url("postgres"));
    reader.run("database");
    let url = format!("postgres://horchestra@127.0.0.1:{}/horchestra", server.port());
    reader.with("DATABASE_URL", url).line("horchestra-api migrate && horchestra-api check");
}

#[tokio::test]
async fn an_administrator_makes_the_roles_that_the_owner_may_not_make() {
    let server = server();
    let folder = TempDir::new().unwrap();
    sql(&server.url("postgres"), "create role keeper login nocreaterole").await;
    sql(&server.url("postgres"), "create database kept owner keeper").await;
    let reader = Reader::new(folder.path())
        .with("DATABASE_URL", format!("postgres://keeper@127.0.0.1:{}/kept", server.port()))
        .with("ADMIN_URL", server.url("postgres"));
    reader.line("horchestra-api migrate");
    let may = "select has_table_privilege(r, 'inspect.nodes', 'select')::text from (select rolname::text r from pg_roles \
               where rolname = 'horchestra_reader') x";
    assert_eq!(texts(&server.url("kept"), may).await, Vec::<String>::new(), "nobody has made it");
    reader.run("roles");
    assert_eq!(texts(&server.url("kept"), may).await, ["true"]);
}
