//! A PgBouncer in front of a server, for one test.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::binaries::Account;
use crate::files::{TempDir, free_port};

const START_DEADLINE: Duration = Duration::from_secs(30);

/// Ends the pooler when its input does, and that ends with the test however the test ends.
const KEEPER: &str = r#"
"$0" -q "$1" </dev/null &
pooler=$!
read -r _
kill -INT "$pooler" 2>/dev/null
wait "$pooler"
"#;

/// For how long a client is given a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Session,
    Transaction,
}

/// A pooler on a loopback port. Whoever connects is the superuser of the server behind it.
#[derive(Debug)]
pub struct Pooler {
    keeper: Child,
    port: u16,
    folder: TempDir,
}

impl Pooler {
    /// Where the program is, if it is installed.
    pub fn program() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
        folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
    }

    /// First two numbers of its version.
    pub fn version() -> Option<(u32, u32)> {
        let output = Command::new(Pooler::program()?).arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut numbers = text.split_whitespace().nth(1)?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Starts one in front of the server on a loopback port, with further settings. Blocks until it takes connections.
    pub fn start(server: u16, pooling: Pooling, settings: &[(&str, &str)]) -> anyhow::Result<Pooler> {
        let program = Pooler::program().context("PgBouncer is not installed")?;
        let account = Account::find()?;
        let folder = TempDir::new()?;
        account.own(folder.path())?;
        for _ in 0..3 {
            let port = free_port()?;
            write_configuration(folder.path(), server, port, pooling, settings)?;
            if let Some(keeper) = launch(&program, account, folder.path(), port)? {
                return Ok(Pooler { keeper, port, folder });
            }
        }
        bail!("PgBouncer does not start: {}", log(folder.path()));
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        log(self.folder.path())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

fn write_configuration(
    folder: &Path,
    server: u16,
    port: u16,
    pooling: Pooling,
    settings: &[(&str, &str)],
) -> anyhow::Result<()> {
    let mode = match pooling {
        Pooling::Session => "session",
        Pooling::Transaction => "transaction",
    };
    let mut text = format!(
        "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\nmax_client_conn = 500\n\
         default_pool_size = 60\nignore_startup_parameters = extra_float_digits\nlogfile = {}\n",
        folder.join("log").display()
    );
    for (name, value) in settings {
        let _ = writeln!(text, "{name} = {value}");
    }
    std::fs::write(folder.join("pgbouncer.ini"), text).context("the configuration cannot be written")
}

/// `None`: it has ended, as where somebody else took the port first.
fn launch(program: &Path, account: Account, folder: &Path, port: u16) -> anyhow::Result<Option<Child>> {
    let _ = std::fs::remove_file(folder.join("log"));
    let mut command = account.command(Path::new("/bin/sh"));
    command.args(["-c", KEEPER]).arg(program).arg(folder.join("pgbouncer.ini")).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut keeper = command.spawn().context("cannot run PgBouncer")?;
    let started = Instant::now();
    loop {
        let ready = format!("listening on 127.0.0.1:{port}");
        let text = log(folder);
        if text.contains(&ready) {
            return Ok(Some(keeper));
        }
        if text.contains("FATAL") || started.elapsed() > START_DEADLINE {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
