//! A PostgreSQL that one test owns and may hurt.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::binaries::{Account, folder};
use crate::files::{TempDir, free_port};
use crate::warden;

const START_DEADLINE: Duration = Duration::from_secs(60);

/// How a private server is set up.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Whether commits reach the disk. Off unless a test is about durability or measures something.
    pub fsync: bool,
    pub max_connections: u32,
    /// Further settings (`name`, `value`), given on the command line: they win over everything else.
    pub settings: Vec<(String, String)>,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { fsync: false, max_connections: 200, settings: Vec::new() }
    }
}

/// How [`Cluster::stop`] ends the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Waits for clients to leave.
    Smart,
    /// Disconnects clients, writes a checkpoint.
    Fast,
    /// Leaves at once; the next start recovers from the log.
    Immediate,
}

/// A server of its own, on a loopback port and a Unix socket. It keeps its port over restarts. Everything
/// goes with the value, and with the process when that ends in any other way.
#[derive(Debug)]
pub struct Cluster {
    layout: Layout,
    server: Option<Child>,
    // In this order: the warden finds nothing left to do.
    root: TempDir,
    _users: File,
}

impl Cluster {
    /// Makes and starts a server. Takes one to three seconds and blocks that long.
    pub fn start(options: ClusterOptions) -> anyhow::Result<Cluster> {
        warden::check()?;
        let root = TempDir::new()?;
        let users_path = root.path().join("users");
        let users = warden::lock_file(&users_path)?;
        users.lock_shared()?;
        warden::post(&root.path().join("gate"), &users_path, root.path(), Duration::ZERO)?;
        let mut layout = Layout::make(root.path(), options)?;
        let server = layout.launch_anywhere()?;
        Ok(Cluster { layout, server: Some(server), root, _users: users })
    }

    /// The address of a database as the superuser, over TCP.
    pub fn url(&self, database: &str) -> String {
        self.layout.url(database)
    }

    /// The address of a database as the superuser, over the Unix socket.
    pub fn socket_url(&self, database: &str) -> String {
        format!(
            "postgres://postgres@localhost:{}/{database}?host={}",
            self.layout.port,
            self.layout.root.display()
        )
    }

    pub fn port(&self) -> u16 {
        self.layout.port
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.layout.data()
    }

    /// The folder that holds the data directory, the socket and the server's log.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// The process id of the postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        self.layout.log()
    }

    /// Ends the server and waits for it.
    pub fn stop(&mut self, how: Shutdown) -> anyhow::Result<()> {
        self.end(match how {
            Shutdown::Smart => Signal::SIGTERM,
            Shutdown::Fast => Signal::SIGINT,
            Shutdown::Immediate => Signal::SIGQUIT,
        })
    }

    /// Kills the postmaster and every process of the server with SIGKILL, as a crash of the machine would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let children = self.children();
        self.end(Signal::SIGKILL)?;
        for child in children {
            let _ = kill(child, Signal::SIGKILL);
        }
        Ok(())
    }

    /// Starts the server again after [`Cluster::stop`] or [`Cluster::kill`], on the same port.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.server.is_none(), "the server already runs");
        self.server = Some(self.layout.launch()?);
        Ok(())
    }

    pub fn restart(&mut self, how: Shutdown) -> anyhow::Result<()> {
        self.stop(how)?;
        self.start_again()
    }

    /// Freezes every process of the server (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal_all(Signal::SIGSTOP)
    }

    /// Ends [`Cluster::pause`].
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal_all(Signal::SIGCONT)
    }

    fn signal_all(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(pid) = self.pid() else { bail!("the server does not run") };
        kill(Pid::from_raw(pid.cast_signed()), signal)?;
        for child in self.children() {
            let _ = kill(child, signal);
        }
        Ok(())
    }

    fn children(&self) -> Vec<Pid> {
        let Some(pid) = self.pid() else { return Vec::new() };
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .map(Pid::from_raw)
            .collect()
    }

    fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let Some(mut server) = self.server.take() else { bail!("the server does not run") };
        kill(Pid::from_raw(server.id().cast_signed()), signal)?;
        server.wait()?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = self.kill();
        }
    }
}

/// Where a server keeps its things: `data`, the socket and `log` under one folder.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    pub(crate) port: u16,
    bin: PathBuf,
    account: Account,
    options: ClusterOptions,
}

impl Layout {
    /// Runs initdb in `root`, which exists and is empty.
    pub(crate) fn make(root: &Path, options: ClusterOptions) -> anyhow::Result<Layout> {
        let account = Account::find()?;
        account.own(root)?;
        let layout = Layout { root: root.to_owned(), port: free_port()?, bin: folder()?, account, options };
        let output = account
            .command(&layout.bin.join("initdb"))
            .arg("--pgdata")
            .arg(layout.data())
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"])
            .stdin(Stdio::null())
            .current_dir(root)
            .output()
            .context("cannot run initdb")?;
        if !output.status.success() {
            bail!(
                "initdb failed: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(layout)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.root.join("log")).unwrap_or_default()
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// As [`Layout::launch`], on another port when it cannot have this one.
    pub(crate) fn launch_anywhere(&mut self) -> anyhow::Result<Child> {
        for _ in 0..3 {
            match self.launch() {
                Ok(server) => return Ok(server),
                // The likeliest reason: somebody else took the port first.
                Err(_) => self.port = free_port()?,
            }
        }
        self.launch()
    }

    /// Starts the server and returns once it takes connections.
    pub(crate) fn launch(&self) -> anyhow::Result<Child> {
        let started = Instant::now();
        loop {
            match self.launch_once(started) {
                Ok(child) => return Ok(child),
                // The children of a killed postmaster hold its shared memory until they have noticed.
                Err(error)
                    if format!("{error}").contains("pre-existing shared memory")
                        && started.elapsed() < START_DEADLINE =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn launch_once(&self, started: Instant) -> anyhow::Result<Child> {
        let mut log = File::options().create(true).append(true).open(self.root.join("log"))?;
        self.account.own(&self.root.join("log"))?;
        let logged = log.seek(SeekFrom::End(0))?;
        let mut command = self.account.command(&self.bin.join("postgres"));
        command.arg("-D").arg(self.data()).current_dir(&self.root);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut settings = vec![
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), self.port.to_string()),
            ("unix_socket_directories".to_owned(), self.root.display().to_string()),
            ("max_connections".to_owned(), self.options.max_connections.to_string()),
            ("shared_buffers".to_owned(), "64MB".to_owned()),
            ("log_checkpoints".to_owned(), "off".to_owned()),
        ];
        if !self.options.fsync {
            for name in ["fsync", "synchronous_commit", "full_page_writes"] {
                settings.push((name.to_owned(), "off".to_owned()));
            }
        }
        settings.extend(self.options.settings.iter().cloned());
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = command.spawn().context("cannot run postgres")?;
        loop {
            if let Some(status) = child.try_wait()? {
                let mut said = String::new();
                let mut log = File::open(self.root.join("log"))?;
                log.seek(SeekFrom::Start(logged))?;
                log.read_to_string(&mut said)?;
                bail!("postgres ended with {status} while it started: {said}");
            }
            if postmaster(&self.data()).is_some_and(|found| found.ready && found.pid == child.id()) {
                return Ok(child);
            }
            if started.elapsed() > START_DEADLINE {
                let _ = child.kill();
                let _ = child.wait();
                bail!("postgres took no connections within {START_DEADLINE:?}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What `postmaster.pid` says.
pub(crate) struct Postmaster {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    pub(crate) ready: bool,
}

pub(crate) fn postmaster(data: &Path) -> Option<Postmaster> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    Some(Postmaster {
        pid: lines.first()?.parse().ok()?,
        port: lines.get(3)?.parse().ok()?,
        ready: lines.get(7).is_some_and(|state| *state == "ready"),
    })
}
