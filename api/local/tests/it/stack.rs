//! A stack for a test: started in a folder of its own, stopped when the test ends.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use horchestra_testkit::{TempDir, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::client::Client;

/// How long a process may take to come back after it was killed.
pub const RECOVERY: Duration = Duration::from_secs(60);

pub struct Stack {
    home: TempDir,
    /// For every process of the stack.
    environment: Vec<(&'static str, String)>,
}

impl Stack {
    /// Starts a stack with these options on free ports.
    pub fn up(options: &[&str]) -> Stack {
        Stack::up_in(Vec::new(), options)
    }

    /// As [`Stack::up`], with these variables for every process of it.
    pub fn up_in(environment: Vec<(&'static str, String)>, options: &[&str]) -> Stack {
        let stack = Stack { home: TempDir::new().unwrap(), environment };
        stack.up_again(options);
        stack
    }

    /// Starts the stack of this folder.
    pub fn up_again(&self, options: &[&str]) {
        let free = || horchestra_testkit::free_port().unwrap().to_string();
        let (api, nodes) = (free(), free());
        let mut args = vec!["up", "--detach", "--api-port", &api, "--nodegate-port", &nodes];
        args.extend_from_slice(options);
        let output = self.local(&args);
        assert!(output.status.success(), "up failed: {}", said(&output));
    }

    pub fn down(&self) {
        let output = self.local(&["down"]);
        assert!(output.status.success(), "down failed: {}", said(&output));
    }

    /// Runs the tool on this stack.
    pub fn local(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_horchestra-local"))
            .arg("--home")
            .arg(self.home.path())
            .args(args)
            .env_remove("DATABASE_URL")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("the tool can be started")
    }

    /// Runs a command of the API's program on the keys and the database of this stack; it must succeed. Answers
    /// what it printed.
    pub fn operate(&self, args: &[&str]) -> String {
        let output = self.api(args).output().expect("the program can be started");
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A command of the API's program.
    pub fn api(&self, args: &[&str]) -> Command {
        let beside = Path::new(env!("CARGO_BIN_EXE_horchestra-local")).with_file_name("horchestra-api");
        let mut command = Command::new(beside);
        command
            .args(args)
            .env("DATABASE_URL", self.database_url())
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The file with the keys of Secrets.
    pub fn secret_keys(&self) -> String {
        self.home().join("secret-keys").display().to_string()
    }

    /// The metrics page of a process.
    pub async fn metrics(&self, process: &str) -> anyhow::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port(&format!("{process}.metrics"))));
        crate::client::page(address, "/metrics").await
    }

    /// Whether the process has a key of Secrets, and whether it seals with it.
    pub async fn key_of(&self, process: &str, id: &str) -> Option<bool> {
        let page = self.metrics(process).await.ok()?;
        let line = format!("horchestra_secret_keys{{key=\"{id}\"}} ");
        page.lines().find_map(|text| text.strip_prefix(&line)).map(|value| value.trim() == "1")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.home().join("kubeconfig")
    }

    pub fn database_url(&self) -> String {
        fs::read_to_string(self.home().join("database-url")).unwrap().trim().to_owned()
    }

    pub fn pid(&self, process: &str) -> i32 {
        let file = self.home().join("run").join(format!("{process}.pid"));
        fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .trim()
            .parse()
            .unwrap()
    }

    pub fn port(&self, name: &str) -> u16 {
        fs::read_to_string(self.home().join("run").join(format!("{name}.port")))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// A client of the balanced port (`api`) or of one replica (`api-0`, …), as the administrator.
    pub fn client(&self, of: &str) -> Client {
        let pki = self.home().join("pki");
        Client::new(SocketAddr::from(([127, 0, 0, 1], self.port(of))), &pki)
    }

    /// Kills a process and waits until the supervisor has started another one in its place.
    pub async fn kill_and_await_successor(&self, process: &str) {
        let old = self.pid(process);
        signal(old, "KILL");
        let file = self.home().join("run").join(format!("{process}.pid"));
        eventually(RECOVERY, async || {
            let now: Option<i32> = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
            now.is_some_and(|now| now != old)
        })
        .await;
    }

    /// The tail of a log, for failure messages.
    pub fn log(&self, process: &str) -> String {
        let text =
            fs::read_to_string(self.home().join("logs").join(format!("{process}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let output = self.local(&["down"]);
        if !output.status.success() && !std::thread::panicking() {
            panic!("down failed: {}", said(&output));
        }
        crate::stumbles::forget(self.home());
    }
}

pub fn said(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Sends a signal by name, to a process or (with a minus) to a group. Not by kill(1): some take the first digit of a
/// group for all of it, and reach every process of the machine.
pub fn signal(pid: i32, name: &str) {
    let signal: Signal = format!("SIG{name}").parse().unwrap();
    kill(Pid::from_raw(pid), signal).unwrap_or_else(|error| panic!("{signal} to {pid}: {error}"));
}
