//! Where PostgreSQL's server programs are, and which user may run them.
//!
//! Distributions keep `initdb` and `postgres` off the PATH, in a folder per major version. `initdb` and
//! `postgres` also refuse to run as root, so a test that runs as root hands them to an unprivileged user.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid, User, chown};

/// The folder that holds both `initdb` and `postgres`.
pub fn folder() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("PATH")
        && let Some(found) = env::split_paths(&path).find(|folder| is_complete(folder))
    {
        return Ok(found);
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        let found = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if is_complete(&found) {
            return Ok(found);
        }
    }
    let mut versioned = installed();
    versioned.sort();
    match versioned.pop() {
        Some((_, bin)) => Ok(bin),
        None => bail!(
            "no PostgreSQL server programs (initdb, postgres) on PATH, through pg_config or under \
             /usr/lib/postgresql/*/bin: install the package postgresql, or set TEST_DATABASE_URL"
        ),
    }
}

/// Folders of distributions, by major version.
fn installed() -> Vec<(u32, PathBuf)> {
    let mut versioned: Vec<(u32, PathBuf)> = Vec::new();
    for root in ["/usr/lib/postgresql", "/usr/libexec/postgresql", "/opt/homebrew/opt"] {
        let Ok(entries) = std::fs::read_dir(root) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            let bin = entry.path().join("bin");
            if let Ok(version) = digits.parse()
                && is_complete(&bin)
            {
                versioned.push((version, bin));
            }
        }
    }
    versioned
}

fn is_complete(folder: &Path) -> bool {
    folder.join("initdb").is_file() && folder.join("postgres").is_file()
}

/// The folder of this major version, where several are installed.
pub fn of_version(major: u32) -> Option<PathBuf> {
    installed().into_iter().find(|(version, _)| *version == major).map(|(_, bin)| bin)
}

/// The major version of the programs in a folder.
pub fn version(folder: &Path) -> anyhow::Result<u32> {
    let program = folder.join("postgres");
    let said =
        Command::new(&program).arg("--version").output().context("asking PostgreSQL for its version")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let number =
        said.split_ascii_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let major: Option<u32> = number.and_then(|number| {
        number.split(|other: char| !other.is_ascii_digit()).next().and_then(|major| major.parse().ok())
    });
    major.with_context(|| format!("{} says {said:?} of its version", program.display()))
}

/// One of PostgreSQL's client programs: from the server's folder, else whatever the PATH has.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let beside = folder()?.join(name);
    Ok(if beside.is_file() { beside } else { PathBuf::from(name) })
}

/// Who runs the server: the current user, or for root an unprivileged account.
#[derive(Clone, Copy, Debug)]
pub struct Account(Option<(Uid, Gid)>);

impl Account {
    pub fn find() -> anyhow::Result<Account> {
        if !nix::unistd::geteuid().is_root() {
            return Ok(Account(None));
        }
        for name in ["postgres", "nobody"] {
            if let Some(user) = User::from_name(name).context("cannot read the user database")? {
                return Ok(Account(Some((user.uid, user.gid))));
            }
        }
        bail!("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")
    }

    /// User and group, when it is not the current user.
    pub fn ids(self) -> Option<(u32, u32)> {
        self.0.map(|(uid, gid)| (uid.as_raw(), gid.as_raw()))
    }

    /// Makes the account the owner of `path`.
    pub fn own(self, path: &Path) -> anyhow::Result<()> {
        if let Some((uid, gid)) = self.0 {
            chown(path, Some(uid), Some(gid))
                .with_context(|| format!("cannot hand {} to the database account", path.display()))?;
        }
        Ok(())
    }

    /// A command that runs as the account, away from the terminal's process group.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.process_group(0).env_remove("PGDATA").env("LC_ALL", "C");
        if let Some((uid, gid)) = self.0 {
            // Supplementary groups of root go too: std clears them when it changes the user.
            command.gid(gid.as_raw()).uid(uid.as_raw());
        }
        command
    }
}
